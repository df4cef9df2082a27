/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Point to point: sends and receives of a communicator
 *
 * The n-th send from a to b meets the n-th receive on b from a. On one host both are copied when
 * both are there; across hosts the receiver grants by count (how many receives from a it has
 * posted), small messages may go before that as eager ones.
 *
 * A message longer than WIRE_P2P_PART travels in parts, each a message of the transport. A few of
 * them have places (`parts`): the receiver grants parts that have one, the first when the receive
 * starts, others when the first arrives, for then its sender is there. So what is on a GPU is
 * copied part by part while others are on the wire, and staging memory is bounded. From memory of a
 * host to that of another it goes as one message: the receiver's grant says that it may.
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

#define P2P_PLACES 4  /* parts of a message that are under way in one host */
#define P2P_SENDING 2 /* of them with the transport, while others are fetched from a GPU */

enum p2p_state {
	P2P_WAITING = 0, /* for earlier operations, the other side, grants, parts */
	P2P_DIRECT = 1,	 /* a copy from GPU to GPU has it */
	P2P_OVER = 2,	 /* client told; a grant or a part is still on its way */
};

enum part_state {
	PART_FREE = 0,
	PART_OPEN = 1,	  /* a receive: there is a place for it */
	PART_READY = 2,	  /* a send: its bytes are in memory of the host */
	PART_COPYING = 3, /* between GPU and staging memory */
	PART_MOVING = 4,  /* the transport has it */
};

/* A place for a part. */
struct p2p_part {
	struct p2p *op;
	uint32_t index; /* which part */
	uint8_t state;
	bool dropped;	/* nothing is written to it any more, though it arrives */
	uint8_t *stage; /* of a buffer on a GPU; kept for later parts */
	struct device_job copy;
	struct iovec iov;
	struct transport_send send;
	struct transport_recv recv;
	struct recv_target target;
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
	bool begun;	     /* its partner is there */
	bool note_busy;	     /* its grant is with the transport */
	bool indirect;	     /* a send: not from GPU to GPU, that has failed */
	enum status error;   /* its peer is lost */
	struct p2p *partner; /* a send: whose buffer copies from GPU to GPU fill */
	uint64_t bytes;
	uint64_t since;	 /* ns: waits for its partner from then on */
	uint64_t cursor; /* copied so far, between ranks of this host */
	uint64_t part;	 /* bytes of a part but the last: WIRE_P2P_PART, or all of it */
	uint32_t nparts;
	uint32_t next;	  /* parts below have got their place */
	uint32_t sent;	  /* a send: parts below were given to the transport */
	uint32_t granted; /* parts below may be sent: as the receiver said, as it was told */
	uint32_t done;	  /* parts that are over */
	uint32_t sending; /* with the transport */
	uint32_t held;	  /* with transport or copy engines */
	struct post post;
	struct transport_send note;	   /* a receive: its grant */
	struct p2p_part parts[P2P_PLACES]; /* part i is in number i % P2P_PLACES */
};

/* Counters of one local rank, by the other rank. */
struct p2p_rank {
	uint32_t *sends;   /* [nranks] posted */
	uint32_t *recvs;   /* [nranks] posted */
	uint32_t *opened;  /* [nranks] receives that have started: what the other rank is granted */
	uint32_t *granted; /* [nranks] receives that the other rank has opened for our sends */
	uint64_t *whole;   /* [nranks] bit i: receive granted - 1 - i takes it as one message */
	uint32_t in_flight;
};

void p2p_post(struct engine_comm *c, uint32_t local, const struct shm_desc *d);
/* Looks at all that wait: conflicts over, credits or grants here, the other side posted. */
void p2p_advance(struct engine_comm *c);
struct transport_recv *p2p_recv_begin(struct engine_comm *c, uint32_t host,
				      const struct wire_header *h);
void p2p_recv_done(struct p2p_part *part);
/* The copy between a part's place and a GPU has ended. */
void p2p_copied(struct p2p_part *part);
/* The copy from a send's GPU to that of its partner has ended. */
void p2p_moved(struct p2p *x, bool ok);
void p2p_granted(struct engine_comm *c, const struct wire_header *h);
/* The oldest that waits for its partner since before @limit (ns), or NULL. */
const struct p2p *p2p_overdue(struct engine_comm *c, uint64_t limit);
void p2p_fail(struct engine_comm *c);
/* Peer is lost: receives that were arriving will never end. */
void p2p_abandon(struct engine_comm *c, struct engine_peer *peer);

/* ---- parts (p2p_part.c) -------------------------------------------------------------------- */

static inline struct p2p_part *p2p_part(struct p2p *x, uint32_t index)
{
	return &x->parts[index % P2P_PLACES];
}

static inline uint64_t p2p_part_size(const struct p2p *x, uint32_t index)
{
	return MIN(x->bytes - index * x->part, x->part);
}

/* Where the bytes of a part are that are sent, or arrive. */
uint8_t *p2p_part_place(const struct p2p_part *part);
/* A send: gets parts below @limit ready, those that there are places for. */
void p2p_prepare(struct p2p *x, uint32_t limit);
/* A receive: gives places to its next parts. */
void p2p_open(struct p2p *x);
/* All bytes of a part of a receive are in its place. */
void p2p_part_here(struct p2p_part *part);
/* One more is over, the whole of it perhaps. */
void p2p_part_done(struct p2p *x);
/* To another host: sends what may go. */
void p2p_send(struct p2p *x);
/* From another host: takes what came early, grants what has a place. */
void p2p_receive(struct p2p *x);

/* Both: p2p.c. Tells the client. */
void p2p_finish(struct p2p *x, enum status status);
/* It has failed and a part has come back: the client is told when nobody writes any more. */
void p2p_settle(struct p2p *x);
void p2p_mismatch(struct p2p *x, uint64_t theirs);
static inline uint32_t p2p_host(const struct p2p *x)
{
	return x->comm->params.layout->host_of[x->peer];
}

#endif
