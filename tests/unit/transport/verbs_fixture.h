/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fixture of the verbs tests: two hosts with rails between them, over fake verbs
 *
 * Payload bytes depend on the message and on their place. The receiving end counts each byte, so
 * what comes twice or not at all shows. When a message is complete its memory is filled with
 * something else, and looked at again at the end: nothing may have been written there since.
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TESTS_TRANSPORT_VERBS_FIXTURE_H
#define ROCECOMM_TESTS_TRANSPORT_VERBS_FIXTURE_H

#include "tests/fake/verbs/fake_verbs.h"
#include "topo/rdma.h"
#include "topo/rdma_mem.h"
#include "transport/verbs/verbs.h"

#define HOSTS 2
#define RAILS 3

enum vmode { V_DIRECT, V_PLAIN, V_FRAGMENT, V_DISCARD, V_MIXED };
enum vcall { VC_NONE, VC_BEGIN, VC_FRAGMENT, VC_DONE, VC_SENT, VC_DOWN, VC_RAIL };

struct vmsg {
	struct transport_send send;
	struct transport_recv recv;
	struct vend *from, *to;
	uint64_t length;
	enum vmode mode;
	uint8_t *out, *in, *seen;
	struct iovec *out_iov, *in_iov;
	uint32_t pieces;
	int sent, begun, received, status;
};

struct vend {
	struct vnet *net;
	struct rdma *devices;
	struct verbs *v;
	struct verbs_peer *peer;
	struct rdma_mem *mem; /* the arena, registered */
	uint8_t *arena;
	size_t used;
	struct vmsg *incoming;
	uint32_t nincoming;
	enum vcall free_in;
	uint32_t begun, done, sent, down, ups, downs;
	int down_error;
	uint32_t sent_before_down;
	char reason[VERBS_REASON], rail_text[VERBS_REASON];
};

struct vnet {
	struct fake_net *fake;
	struct fake_device *devices[HOSTS][RAILS];
	struct vend end[HOSTS];
	uint32_t rails;
	/* The other way, when there is one: in order, some time later. */
	bool outside;
	struct vcontrol {
		uint32_t to, size;
		uint8_t data[VERBS_CONTROL_MAX];
	} * control; /* [64] */
	uint32_t ncontrol;
	/* Another transport, when there is one: messages and fragments, in any order. */
	bool stand_in;
	struct vother {
		uint32_t to, ticket, size;
		struct transport_send *send; /* NULL: a fragment */
		void *data;
		struct verbs_fragment *fragment;
	} other[256];
	uint32_t nother;
};

/* Two hosts with @rails devices each, connected and up unless @lazy. */
void vnet_init(struct vnet *n, uint64_t seed, uint32_t rails, const struct verbs_options *options,
	       bool lazy);
/* The two hosts have different options. */
void vnet_init_two(struct vnet *n, uint64_t seed, uint32_t rails,
		   const struct verbs_options options[HOSTS]);
/* The same, and the ends can talk another way while no rail is up. */
void vnet_init_outside(struct vnet *n, uint64_t seed, uint32_t rails);
/* The same, and another transport takes over meanwhile. */
void vnet_init_stand_in(struct vnet *n, uint64_t seed, uint32_t rails);
void vnet_connect(struct vnet *n, uint32_t rail);
void vnet_fini(struct vnet *n);
/* Lets the network and both ends work a little. */
void vnet_turn(struct vnet *n);
/* Until both rails are up; fails the test when that takes long. */
void vnet_settle(struct vnet *n);

/* From arena memory, registered when the mode says so. */
struct vmsg *vmsgs_new(struct vnet *n, uint32_t from, uint32_t count);
void vmsg_init(struct vmsg *m, uint64_t length, uint32_t pieces, enum vmode mode);
/* Everything came exactly once, and nothing was written afterwards. */
void vmsgs_check(struct vmsg *m, uint32_t count);
void vmsgs_free(struct vmsg *m, uint32_t count);
uint64_t vrandom(struct vnet *n, uint64_t below);

#endif
