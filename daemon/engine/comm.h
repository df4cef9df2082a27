/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicator, engine side: what its local ranks posted, in which order it may start
 *
 * Collectives of a communicator are numbered from 0 by every rank; number n of all local ranks is
 * one `struct op`. Operations start in order of their numbers, once every local rank has posted and
 * no earlier operation that is still going on touches the same memory; they run side by side. The
 * window of LIMIT_COMM_WINDOW operations is allocated with the communicator, so posting allocates
 * nothing.
 *
 * A failure is sticky: every operation, present and future, completes with the same status.
 *
 * Thread: progress (allocated and freed by control)      Owns: window, plan cache      Locks: none
 */
#ifndef ROCECOMM_ENGINE_COMM_H
#define ROCECOMM_ENGINE_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/client_ring.h"
#include "engine/engine.h"
#include "engine/mailbox.h"
#include "proto/types.h"
#include "util/list.h"

#define COMM_PLANS 32	     /* plans kept a communicator */
#define COMM_ACTIVE 32	     /* operations running side by side */
#define COMM_TEMP (4u << 20) /* scratch of one running operation, bytes */
/* Objects a rank: one whose client was told may still wait for its grant to leave. */
#define COMM_P2PS (2 * LIMIT_P2P_WINDOW)
/* Why an operation cannot be: a sentence's second half. */
#define ENGINE_NOT_LINKED                                                                          \
	"it needs a link between hosts that have none, since the communicator has too many hosts " \
	"for links between all of them: use collectives other than gather, scatter and all-to-all"
#define COMM_VARGS 4 /* v-variants running side by side */

/* Adds to a counter that communicators and their thread have in common. */
#define COMM_COUNT(c, name, n) \
	(counter_add(&(c)->params.view->name, n), counter_add(&(c)->progress->view.name, n))

struct op_ctx;
struct plan_entry;
struct p2p;
struct p2p_rank;

/* What one local rank posted for one operation, and its place in that rank's posting order. */
struct post {
	struct list link; /* engine_rank.posts, while it is not complete */
	uint32_t ticket;
	uint32_t generation;
	uint8_t *in, *out;
	uint64_t in_len, out_len; /* bytes, for conflicts */
	struct engine_region *in_region, *out_region, *args_region;
	const uint8_t *args;
	uint64_t count;
	uint64_t scalar;
	bool posted;
	bool completed; /* the client was told */
};

enum op_state {
	OP_FREE = 0,	/* nobody here posted it */
	OP_POSTING = 1, /* some ranks did */
	OP_READY = 2,	/* all did; waits for its turn */
	OP_ACTIVE = 3,
	OP_ZOMBIE = 4, /* failed; a transport or workers still hold memory */
};

struct op {
	struct engine_comm *comm;
	uint32_t seq;
	uint32_t sig_seq; /* the operation that sig is of, also when it is over */
	uint8_t state;
	bool grant_all; /* a peer asked for grants (RTS) before it started */
	bool remote_known;
	uint32_t nposted;
	uint32_t remote_host;
	struct engine_signature sig;
	struct engine_signature remote_sig; /* first one heard of */
	uint64_t first_post;		    /* ns */
	uint64_t last_progress;		    /* ns */
	struct op_ctx *ctx;
	struct post *posts; /* [nlocal] */
};

struct engine_rank {
	struct engine_session *session;
	uint32_t handle;
	uint32_t rank;
	bool detached;
	uint64_t posted;   /* collectives */
	struct list posts; /* struct post.link, oldest first */
	struct p2p_rank *p2p;
};

/* v-arrays of one running operation. */
struct vargs {
	bool used;
	uint64_t *in_counts, *in_displs, *out_counts, *out_displs; /* [nlocal * nranks] */
	uint64_t *counts, *displs; /* [nranks]: one set for all local ranks */
};

struct engine_comm {
	struct list link;
	struct engine_comm *hash_next;
	struct progress *progress;
	struct engine_comm_params params; /* arrays inside are ours */
	uint32_t nlocal;
	uint32_t nranks;
	uint32_t nhosts;
	struct engine_rank *ranks;    /* [nlocal] */
	struct op *ops;		      /* [LIMIT_COMM_WINDOW] */
	struct post *posts;	      /* [LIMIT_COMM_WINDOW * nlocal] */
	uint32_t done;		      /* operations below are over */
	uint32_t started;	      /* operations below have started */
	uint32_t tail;		      /* operations from here on nobody here has posted */
	uint64_t oldest_since;	      /* ns: when `done` last moved */
	bool over[LIMIT_COMM_WINDOW]; /* finished out of order: done catches up */

	/* Grants of peers: segments below may be sent; [LIMIT_COMM_WINDOW * nhosts]. */
	uint32_t *grants;
	uint64_t *grant_lost; /* [nhosts] numbers below: a grant may have been dropped */
	uint64_t rts_lost;    /* numbers below: a peer's request may have been dropped */

	struct list unexpected; /* eager_slot.link */

	struct plan_entry *plans[COMM_PLANS];
	uint32_t plan_clock;
	bool plan_pending;
	struct mailbox_msg plan_msg; /* the request on its way; control owns the slot meanwhile */
	uint8_t plan_kind, plan_algo;
	uint32_t plan_root, plan_want;
	uint32_t plan_slot;		 /* where it is to go */
	bool plan_failed;		 /* no memory */
	struct plan_entry *plan_evicted; /* goes back with the request */

	uint32_t *peer_hosts; /* open hash of a peer: its host + 1 */
	uint32_t peer_mask;   /* slots - 1 */
	uint8_t *temp;	      /* [COMM_ACTIVE * COMM_TEMP], reserved address space */
	uint32_t temp_used;   /* bit a slot */
	uint8_t *devices;     /* [COMM_ACTIVE], see device.c */
	struct vargs vargs[COMM_VARGS];

	struct p2p *p2ps;  /* [nlocal * COMM_P2PS] */
	uint32_t p2p_used; /* of p2ps, ever */
	struct list p2p_free;
	struct list p2p_active;

	enum status failed; /* STATUS_OK: works */
	uint32_t zombies;   /* operations that a transport still holds */
	bool removing;
	uint32_t pins;	/* somebody walks over it: not to be given back yet */
	bool advancing; /* inside comm_advance() */
	bool again;
	bool p2p_advancing; /* inside p2p_advance() */
	struct engine_failure failure;
	struct mailbox_msg fail_msg;
	bool fail_told;
	struct mailbox_msg *remove_msg;
};

/* Control thread. */
int comm_new(const struct engine_comm_params *params, struct progress *p, struct engine_comm **ret);
struct engine_comm *comm_free(struct engine_comm *c);

void comm_insert(struct engine_comm *c);
void comm_unlink(struct engine_comm *c);
struct engine_comm *comm_find(struct progress *p, uint64_t uid);
/*
 * Walks over all communicators, one walk at a time; any of them may go meanwhile: what is done to
 * one may send, and the memory that another one waits for comes back from inside that.
 */
struct engine_comm *comm_walk(struct progress *p);
struct engine_comm *comm_walk_next(struct progress *p);

/* A validated-for-session descriptor arrives. */
void comm_post(struct engine_comm *c, uint32_t local, const struct shm_desc *d);
/* Starts what may start. */
void comm_advance(struct engine_comm *c);
/* The operation has run (status OK) or failed; tells clients and recycles the slot. */
void comm_op_finished(struct op *op);
/* Tells the clients how an operation has ended, those that were not told yet. */
void comm_op_tell(struct op *op, enum status status);
/* Neither transport nor workers hold memory of a failed operation any more. */
void comm_op_drained(struct op *op);

void comm_fail(struct engine_comm *c, enum status status);
/* Fails by its own finding, with an event for control. */
void comm_fail_event(struct engine_comm *c, const struct engine_failure *failure);
void comm_detach(struct engine_comm *c, uint32_t local);
void comm_check_timeouts(struct engine_comm *c);
/* True when it may be given back to control. */
bool comm_idle(const struct engine_comm *c);
void comm_try_remove(struct engine_comm *c);

/* The whole number of an operation in or at the window; @seq: its lower half, as on the wire. */
uint64_t comm_number(const struct engine_comm *c, uint32_t seq);
/* The operation with wire number @seq, or NULL when outside the window (or over). */
struct op *comm_op(struct engine_comm *c, uint32_t seq);
/* Compares a peer's signature with ours; fails the communicator when they differ. */
bool comm_check_signature(struct op *op, uint32_t host, const struct engine_signature *theirs);
/*
 * The same for an operation that is over here: a host that comes with another signature afterwards
 * (the count was 0 here, for example) must be told, not left waiting.
 */
void comm_check_past(struct engine_comm *c, uint32_t seq, uint32_t host,
		     const struct engine_signature *theirs);

/* Fills in the memory of a post. Return: NULL, or what is wrong with it. */
const char *post_fill(struct engine_comm *c, uint32_t local, const struct shm_desc *d,
		      struct post *post);
/* Memory overlap with what this rank posted before @post and is not complete. */
bool post_conflicts(const struct engine_rank *rank, const struct post *post);
void post_complete(struct engine_comm *c, uint32_t local, struct post *post, enum status status,
		   uint64_t bytes);
void post_release(struct post *post);

static inline uint32_t comm_peer_slot(const struct engine_comm *c, const struct engine_peer *peer)
{
	/* Fibonacci hashing; an allocation's lowest bits are all the same */
	return (uint32_t)((uint64_t)(uintptr_t)peer / 64 * 0x9e3779b97f4a7c15u >> 32) &
	       c->peer_mask;
}

#endif
