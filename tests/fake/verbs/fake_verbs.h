/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake verbs: RDMA devices of several hosts, and the network between them, in one process
 *
 * Stands in for libibverbs (topo/verbs_api.h). Reliable connections behave as the contract says:
 * in order, receives consumed, keys and bounds checked, flushes in the error state. A write is
 * first in the network, then in memory, then acknowledged; in between the link may go, and what is
 * in the network arrives even when its sender is gone. What happens next is drawn from a seed.
 * Things that no soft device can be made to show are knobs: caps, failing registrations,
 * completions lost, doubled or swapped, broken devices, registration that takes as long as the test
 * wants it to.
 *
 * Thread: the test's; regions are registered and given back, and contexts closed, by any
 * Owns: everything that its api hands out      Locks: fake_net.lock: regions
 */
#ifndef ROCECOMM_FAKE_VERBS_H
#define ROCECOMM_FAKE_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/verbs_api.h"
#include "util/clock.h"

#define FAKE_GIDS 16
#define FAKE_DEVICES 8

struct fake_net;

enum fake_mangle { FAKE_KEEP, FAKE_DROP, FAKE_DOUBLE, FAKE_SWAP };

struct fake_gid {
	bool valid;
	union ibv_gid gid;
	uint32_t type; /* enum ibv_gid_type */
	uint32_t ifindex;
};

struct fake_caps {
	int max_qp, max_cq, max_mr, max_qp_wr, max_cqe, max_sge;
	uint32_t max_inline;
	int reg_errno;	   /* registering fails so */
	int dmabuf_errno;  /* of reg_dmabuf */
	int relaxed_errno; /* of both, with relaxed ordering */
	int open_errno;
	int rtr_errno;	   /* modify to RTR fails so */
	size_t max_pinned; /* bytes registered at a time, as a limit has it; 0: any */
};

/* What is known of memory that was offered. */
struct fake_mr_view {
	int registered, dmabufs; /* now; of these, by dma-buf */
	int waiting;		 /* calls that are held */
	int calls;		 /* to register, so far */
	size_t bytes;		 /* registered now */
	unsigned int access;	 /* of the last one */
};

struct fake_device {
	struct ibv_device device;
	struct fake_net *net;
	uint32_t host;
	bool present;
	struct fake_caps caps;
	struct ibv_port_attr port; /* all devices have one */
	struct fake_gid gids[FAKE_GIDS];
	bool link;		       /* packets pass */
	bool stalled;		       /* packets neither pass nor fail: no completion comes */
	uint32_t swallow_above;	       /* longer messages from here never arrive; 0: all do */
	uint32_t slow;		       /* only one in so many steps moves something; 0: all */
	int qps, cqs, mrs;	       /* in use */
	size_t hold;		       /* fake_net.lock; see fake_verbs_hold() */
	struct fake_mr_view mr_view;   /* fake_net.lock */
	uint64_t writes, sends, bytes; /* delivered from here */
};

struct fake_net *fake_verbs_new(uint64_t seed);
/* Everything that was made is destroyed: leaks fail the test. */
struct fake_net *fake_verbs_free(struct fake_net *net);
const struct verbs_api *fake_verbs_api(struct fake_net *net, uint32_t host);
const struct clock_source *fake_verbs_clock(struct fake_net *net);
void fake_verbs_advance(struct fake_net *net, uint64_t ns);
uint64_t fake_verbs_random(struct fake_net *net, uint64_t below);

/* An up port with 4096 bytes MTU, and a RoCE v2 GID for 10.<rail>.0.<host + 1> at a random index.
 */
struct fake_device *fake_verbs_device(struct fake_net *net, uint32_t host, const char *name,
				      uint32_t rail);
union ibv_gid fake_verbs_gid(uint32_t rail, uint32_t host);
/*
 * Calls that register or give back @size bytes or more do not return until it is 0 again: what
 * takes long is under the test's control.
 */
void fake_verbs_hold(struct fake_device *d, size_t size);
void fake_verbs_mrs(struct fake_device *d, struct fake_mr_view *ret);
/* Link and port state, with the event. */
void fake_verbs_link(struct fake_device *d, bool up);
void fake_verbs_event(struct fake_device *d, enum ibv_event_type type);

/* Of the completions of receives (or of sends) of the device from now: what becomes of the n-th. */
void fake_verbs_mangle(struct fake_device *d, bool receive, uint32_t nth, enum fake_mangle what);

/* Lets one thing happen in the network. Return: false when nothing can. */
bool fake_verbs_step(struct fake_net *net);
/* Receives that were missing when something arrived: the device's flow control was used. */
uint64_t fake_verbs_rnr(const struct fake_net *net);
/* Attributes of a live queue pair, the n-th of the device; NULL: there are not so many. */
const struct ibv_qp_attr *fake_verbs_qp_attr(struct fake_device *d, uint32_t nth);
/* Bytes that it delivered. */
uint64_t fake_verbs_qp_bytes(struct fake_device *d, uint32_t nth);
/* Writes in the network now. */
uint32_t fake_verbs_in_network(const struct fake_net *net);

#endif
