/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Point to point: sends and receives of a communicator
 *
 * The n-th send from a to b meets the n-th receive on b from a. On one host both are copied when
 * both are there; across hosts the receiver grants by count (how many receives from a it has
 * posted), small messages may go before that as eager ones.
 *
 * Thread: progress      Owns: nothing (the pool is the communicator's)      Locks: none
 */
#ifndef ROCECOMM_ENGINE_P2P_H
#define ROCECOMM_ENGINE_P2P_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/comm.h"
#include "engine/conn.h"
#include "engine/device.h"

enum p2p_state {
	P2P_WAITING = 0, /* for earlier operations on the same memory, the other side, a grant */
	P2P_HELD = 1,	 /* the transport has it */
	P2P_OVER = 2,	 /* client told, grant message still on its way */
};

struct p2p {
	struct list link; /* engine_comm.p2p_free or p2p_active */
	struct engine_comm *comm;
	uint32_t local; /* whose it is */
	uint32_t peer;	/* the other global rank */
	uint32_t seq;
	uint8_t kind; /* COLL_SEND, COLL_RECV */
	uint8_t dtype;
	uint8_t state;
	bool started;	     /* no conflict any more */
	bool note_busy;	     /* its grant is with the transport */
	bool copying;	     /* between its buffer on a GPU and `stage` */
	bool fetched;	     /* a send: `stage` has it */
	bool indirect;	     /* a send: not from GPU to GPU, that has failed */
	struct p2p *partner; /* a send: whose buffer copies from GPU to GPU fill */
	uint64_t bytes;
	uint64_t since;	 /* ns: waits for its partner from then on */
	uint64_t cursor; /* copied so far, between ranks of this host */
	struct post post;
	struct iovec iov;
	struct transport_send send; /* payload of a send, grant of a receive */
	struct transport_recv recv;
	struct recv_target target;
	uint8_t *stage; /* what is sent or received for a buffer on a GPU; NULL: none yet */
	struct device_job copy;
};

/* Counters of one local rank, by the other rank. */
struct p2p_rank {
	uint32_t *sends;   /* [nranks] posted */
	uint32_t *recvs;   /* [nranks] posted */
	uint32_t *opened;  /* [nranks] receives that have started: what the other rank is granted */
	uint32_t *granted; /* [nranks] receives that the other rank has opened for our sends */
	uint32_t in_flight;
};

void p2p_post(struct engine_comm *c, uint32_t local, const struct shm_desc *d);
/* Looks at all that wait: conflicts over, credits or grants here, the other side posted. */
void p2p_advance(struct engine_comm *c);
struct transport_recv *p2p_recv_begin(struct engine_comm *c, uint32_t host,
				      const struct wire_header *h);
void p2p_recv_done(struct p2p *x);
/* The copy between its buffer and staging memory has ended, or its communicator has failed. */
void p2p_copied(struct p2p *x);
/* The copy from a send's GPU to that of its partner has ended. */
void p2p_moved(struct p2p *x, bool ok);
void p2p_granted(struct engine_comm *c, const struct wire_header *h);
/* The oldest that waits for its partner since before @limit (ns), or NULL. */
const struct p2p *p2p_overdue(struct engine_comm *c, uint64_t limit);
void p2p_fail(struct engine_comm *c, enum status status);
/* Peer is lost: receives that were arriving will never end. */
void p2p_abandon(struct engine_comm *c, struct engine_peer *peer);

#endif
