/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Operation: interprets a plan for one collective
 *
 * An operation borrows a context from its plan's entry: runs (segments in flight), grant messages,
 * step states; all allocated by control together with the plan. Steps become runnable when their
 * dependencies are done and are then executed from the thread's runnable list, in bounded slices.
 *
 * Thread: progress      Owns: nothing (contexts belong to plan entries)      Locks: none
 */
#ifndef ROCECOMM_ENGINE_OP_H
#define ROCECOMM_ENGINE_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/comm.h"
#include "engine/conn.h"
#include "engine/device.h"
#include "engine/slice.h"
#include "transport/transport.h"

#define OP_RUNS 8 /* segments of one operation in flight */
/* The same with buffers on GPUs, where a segment is also copied in and out. */
#define OP_DEVICE_RUNS 32
#define OP_WANT_DEVICE                                                                       \
	(1u << 31)	      /* plan_entry.want: contexts have as many; nothing of the plan \
			       */
#define OP_SLICE (512u << 10) /* bytes that one local step handles before others get a turn */
/*
 * In engine_options.reduce_min, the least that is worth handing over: operations from this many on
 * use workers, a slice for a worker has this many.
 */
#define OP_OFFLOAD 4
#define OP_WORKER_SLICE 2

enum step_state_kind {
	STEP_WAITING = 0,
	STEP_READY = 1,	  /* on the run's ready stack */
	STEP_BLOCKED = 2, /* a send without grant or credit */
	STEP_POSTED = 3,  /* the transport has it, or a receive that may arrive */
	STEP_ARRIVING = 4,
	STEP_DONE = 5,
	STEP_WORKING = 6, /* workers have what is left of it */
};

/*
 * Local steps that a receive waits for: while a worker has one of them there is no place for what
 * arrives. So grants wait for it; unless it waits for an own message, which may wait for a grant
 * of somebody who waits for ours: such a step is left to the progress thread, which can do it when
 * the message is there.
 */
enum step_gate {
	GATE_NONE = 0,
	GATE_GRANT = 1,
	GATE_INLINE = 2,
};

struct step_state {
	struct op_run *run;
	uint32_t index;
	uint32_t deps;
	uint8_t state;
	uint32_t piece;	 /* cursor of what is not done or handed out, see slice.h */
	uint64_t offset; /* elements of that piece */
	uint32_t slices; /* that workers have */
	bool deferred;	 /* a receive whose arithmetic begins when all of it is here */
	bool dropped;	 /* a receive that a device may still write, of a failed operation */
	uint8_t *stage;	 /* where a deferred RECV_REDUCE arrives; NULL: none */
	uint64_t length; /* bytes of the message */
	union {
		struct transport_send send;
		struct transport_recv recv;
	};
	struct recv_target target; /* what recv.user points to */
	struct iovec *iov;	   /* [npieces] */
};

struct op_run {
	struct list link; /* progress.runnable */
	struct op_ctx *ctx;
	uint32_t segment;
	uint32_t left;	/* steps not done */
	uint32_t gates; /* steps with GATE_GRANT not done, if grants wait for them */
	bool active;
	uint8_t phase;	  /* enum device_phase */
	uint32_t copying; /* jobs of that phase */
	uint32_t nready;
	uint32_t *ready;	  /* [nsteps] stack */
	struct step_state *steps; /* [nsteps] */
	uint8_t *temp;
};

/* A control message of an operation to one peer: at most one on its way, repeated when outdated. */
struct op_note {
	struct transport_send send;
	struct op_ctx *ctx;
	uint32_t host;
	uint32_t limit; /* what the one on its way says */
	bool busy;
	bool again;
};

struct op_ctx {
	struct plan_entry *entry;
	struct op *op; /* NULL: free */
	struct engine_comm *comm;
	uint64_t seg; /* bytes of every block a segment; UINT64_MAX: whole */
	uint64_t seg_elems;
	uint32_t nseg;
	uint32_t started;
	uint32_t finished;
	uint32_t nruns;
	uint32_t held;	  /* messages that the transport holds, slices that workers have */
	uint32_t slices;  /* of them: slices, and messages that a device may still write */
	uint32_t granted; /* what all senders were told last */
	bool offload;	  /* large enough for workers */
	uint32_t temp_slot;
	unsigned int esize;
	bool eager; /* every message is small: no grants by default */
	bool far;   /* the results do not fit into a cache: copies go past it */
	struct vargs *vargs;
	struct device_op *device; /* NULL: no buffer is on a GPU */
	struct op_run *runs;	  /* [entry->nruns] */
	struct op_note *grants;	  /* [plan->nrecv_peers] */
	struct op_note *rts;	  /* [plan->nsend_peers] */
};

/* A plan with everything that running it takes. */
struct plan_entry {
	struct plan *plan;
	uint32_t want;
	uint32_t last_used;
	uint32_t in_use; /* contexts */
	uint32_t nctx;
	uint32_t nruns; /* a context */
	struct op_ctx *ctxs;
	void *storage;	 /* one allocation for all of it */
	uint8_t *gate;	 /* [nsteps] enum step_gate */
	uint32_t ngates; /* steps with GATE_GRANT */
	/* All local ranks get the same, and their OUTs may be one place; for buffers on GPUs. */
	bool shared_out;
};

/* Control thread. */
int plan_entry_new(const struct coll_layout *layout, uint32_t host, uint8_t kind, uint8_t algo,
		   uint32_t root, uint32_t want, struct plan_entry **ret);
struct plan_entry *plan_entry_free(struct plan_entry *e);

/*
 * The plan from the communicator's cache; asks control for it when it is not there.
 * Return: the entry, or NULL: comm_advance() is called again when it arrives.
 */
struct plan_entry *plan_cache_get(struct engine_comm *c, uint8_t kind, uint8_t algo, uint32_t root,
				  uint32_t want);

/* Return: 0 started, OP_E_LATER: resources are taken, comm_advance() will come again. */
enum { OP_E_LATER = 1 };
int op_start(struct op *op);
/* Begins its segments. */
void op_go(struct op_ctx *ctx);
void op_run_steps(struct op_run *run);
/* Takes back what workers have done. Return: how many slices. */
int op_reap(struct progress *p);
void op_run_finished(struct op_run *run);
/* Its input is there, or its output is where it belongs. */
void op_run_copied(struct op_run *run);
/* The transport gave a message of this operation back. */
void op_unhold(struct op_ctx *ctx);
/* Tries blocked sends again. */
void op_retry(struct op *op);
/* Those to a host that had granted the segments below @from, and now has those below @to. */
void op_granted(struct op *op, uint32_t host, uint32_t from, uint32_t to);
/* Fails: nothing new is sent, what arrives is dropped. Return: true when nothing is held. */
bool op_cancel(struct op *op);
void op_release(struct op *op);
void op_send_grants(struct op_ctx *ctx, bool all);
/* A run's gates are done: grants may go further. */
void op_gates_open(struct op_ctx *ctx);
/* Asks one receiver for a grant (once at a time). */
void op_request_grant(struct op_ctx *ctx, uint32_t host);
/* A message of another length than ours arrived: the communicator fails. */
void op_wrong_length(struct op *op, uint32_t host, uint64_t ours, uint64_t theirs);

/* A message arrives. Return: where it goes, or NULL: not now (the caller buffers it). */
struct transport_recv *op_recv_begin(struct op *op, uint32_t host, const struct wire_header *h);
void op_recv_fragment(struct step_state *st, const void *data, uint64_t offset, uint64_t size);
void op_recv_done(struct step_state *st);
void op_dropped(struct step_state *st);
/* Early messages have come in for it: hands them to the steps that wait for them. */
void op_take_early(struct op *op);
/* Messages that were arriving from @peer will never end: failed operations let go of them. */
void op_abandon(struct engine_comm *c, struct engine_peer *peer);

/* Geometry of a piece in a run: elements [ret_first, +ret_n) of its block; ret_lo: in the segment.
 */
void op_piece(const struct op_ctx *ctx, const struct op_run *run, const struct plan_piece *piece,
	      uint64_t *ret_first, uint64_t *ret_lo, uint64_t *ret_n);
uint8_t *op_ref(const struct op_ctx *ctx, const struct op_run *run, const struct plan_ref *ref,
		uint64_t first, uint64_t lo);

#endif
