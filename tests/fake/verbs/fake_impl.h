/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake verbs, inside view
 *
 * Thread: the test's      Owns: see fake_verbs.h      Locks: none
 */
#ifndef ROCECOMM_FAKE_VERBS_IMPL_H
#define ROCECOMM_FAKE_VERBS_IMPL_H

#include <pthread.h>

#include "tests/fake/verbs/fake_verbs.h"
#include "util/list.h"

#define FAKE_RETRIES 40

struct fake_context {
	struct ibv_context context;
	struct fake_device *device;
	struct list link;
};

struct fake_mr {
	struct ibv_mr mr;
	struct fake_device *device;
	unsigned int access;
	bool dmabuf;
	struct list link;
};

struct fake_channel {
	struct ibv_comp_channel channel;
	uint32_t events;
	struct ibv_cq *cq[64];
};

struct fake_cq {
	struct ibv_cq cq;
	struct fake_device *device;
	bool armed;
	uint32_t head, count;
	struct ibv_wc *wc; /* [cq.cqe] */
};

enum fake_phase { FAKE_QUEUED, FAKE_IN_NETWORK, FAKE_DELIVERED };

struct fake_wr {
	struct list link; /* fake_qp.sq, fake_net.network */
	struct list net;
	struct fake_qp *qp; /* NULL: its sender is gone */
	enum fake_phase phase;
	uint64_t wr_id;
	unsigned int flags;
	enum ibv_wr_opcode opcode;
	uint32_t imm, rkey;
	uint64_t addr;
	int nsge;
	struct ibv_sge sge[16];
	uint8_t *data;
	uint32_t size;
	/* where it goes, also after its sender is gone */
	struct fake_device *from;
	union ibv_gid dgid;
	uint32_t dest, src;
	enum ibv_wc_status status;
};

struct fake_recv {
	uint64_t wr_id;
	struct ibv_sge sge;
	bool has_buffer;
};

struct fake_qp {
	struct ibv_qp qp;
	struct fake_device *device;
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	struct list link;
	struct list sq;
	uint32_t nsq;
	uint32_t retries;
	uint64_t bytes; /* delivered */
	uint32_t rq_head, rq_count;
	struct fake_recv *rq; /* [cap.max_recv_wr] */
};

struct fake_mangler {
	bool receive;
	uint32_t left;
	enum fake_mangle what;
	struct fake_device *device;
	struct ibv_wc held;
	struct fake_cq *held_for;
};

struct fake_host {
	struct verbs_api api;
	struct fake_net *net;
	uint32_t index;
};

struct fake_net {
	pthread_mutex_t lock; /* mrs, next_key, and what each device says of regions */
	pthread_cond_t held;
	uint64_t seed, now;
	struct clock_source clock;
	struct fake_host hosts[4];
	struct fake_device *devices[FAKE_DEVICES];
	uint32_t ndevices;
	struct list qps, mrs, network;
	uint32_t next_qpn, next_key;
	uint64_t rnr;
	struct fake_mangler mangler;
	struct {
		struct fake_device *device;
		struct ibv_async_event event;
	} events[64];
	uint32_t nevents;
};

extern const struct verbs_api fake_table;

void fake_complete(struct fake_cq *cq, const struct ibv_wc *wc, bool receive);
/* The error state: what is queued is flushed. */
void fake_qp_error(struct fake_qp *qp);
void fake_wr_free(struct fake_wr *w);
/* The registration that @key names on this device and that holds the range; NULL: none. */
struct fake_mr *fake_mr_find(struct fake_device *d, uint32_t key, uint64_t addr, uint64_t size,
			     unsigned int access);

#endif
