/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * State of a flow: what flow.c (steps, progress threads) and flow_wire.c (messages) share
 *
 * A task is a step of a segment's run (or the run's grants) that takes the progress thread of its
 * host; it is known by its place in flow.tasks and lies in at most one of the host's two queues.
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_FLOW_IMPL_H
#define ROCECOMM_SIMULATE_FLOW_IMPL_H

#include "proto/base.h"
#include "tools/simulate/flow.h"
#include "tools/simulate/queue.h"

#define FLOW_NONE UINT32_MAX

enum flow_event {
	EV_POST,   /* a send may go */
	EV_SENT,   /* has left its host */
	EV_UPLINK, /* its first byte is at the rack's way out */
	EV_WIRE,   /* its first byte is at the receiver's NIC */
	EV_LANDED, /* its last one */
	EV_CPU, /* the progress thread is free; last, so it knows what else there is at that time */
};

struct flow_task {
	uint32_t pending; /* steps to wait for */
	uint32_t next;	  /* in a queue */
	bool arrived;	  /* a message; grants: queued */
	uint64_t left;	  /* LOCAL: work to do, in ps */
};

struct flow_fifo {
	uint32_t head;
	uint32_t tail;
};

struct flow_run_state {
	uint64_t segment; /* UINT64_MAX: none */
	uint32_t left;	  /* steps */
};

struct flow_host {
	const struct shape *shape;
	uint32_t first_task; /* (nsteps + 1) a run; the last one of each is its grants */
	uint32_t nruns;
	uint32_t first_run;
	struct flow_fifo messages;
	struct flow_fifo local;
	uint32_t running; /* task, or FLOW_NONE */
	uint32_t parked;  /* sends of others that wait for a segment to begin */
	uint64_t next_segment;
	uint64_t finished;
	uint64_t slice; /* of `running`, in ps */
	uint64_t busy;	/* all slices */
	uint64_t pace_began, pace_ended;
	uint64_t sent;
	uint64_t messages_sent;
	uint64_t ended;
	uint32_t next_waiting; /* host that waits for a core, too */
	bool waiting;
};

struct flow_parked {
	uint32_t host; /* of the sender */
	uint32_t task;
	uint64_t segment;
	uint32_t next;
};

struct flow {
	const struct fleet *fleet;
	const struct link_model *m;
	struct queue queue;
	uint64_t now;
	uint64_t seg_elems;
	uint64_t count; /* elements of a block */
	uint64_t nseg;
	uint64_t pace_from, pace_to; /* segments between which a host's pace is taken; 0: none */
	uint64_t ntasks;
	bool eager;
	uint32_t rails;
	struct flow_host *hosts;
	struct flow_task *tasks;
	struct flow_run_state *runs;
	uint64_t *granted; /* [host * nseg + segment]: when its sends may be known; 0: not begun */
	uint64_t *tx;	   /* [host * rails]: when the rail is free */
	uint64_t *rx;
	uint64_t *up; /* [rack] */
	uint64_t *down;
	struct flow_parked *parked;
	uint32_t nparked, cap_parked;
	uint32_t free_parked;
	struct flow_stack {
		uint32_t *items;
		size_t n, cap;
	} ready;
	uint32_t idle_cores; /* FLOW_NONE: each host has its own */
	uint32_t first_waiting, last_waiting;
	uint64_t events;
	int error;
};

/* Index of a task, of a run within its host, of a step within its plan. */
static inline uint32_t flow_task_of(const struct flow_host *h, uint32_t run, uint32_t step)
{
	return h->first_task + run * (h->shape->nsteps + 1) + step;
}

static inline uint32_t flow_run_of(const struct flow_host *h, uint32_t task)
{
	return (task - h->first_task) / (h->shape->nsteps + 1);
}

static inline uint32_t flow_step_of(const struct flow_host *h, uint32_t task)
{
	return (task - h->first_task) % (h->shape->nsteps + 1);
}

/* The host that has the state of @host: itself, or the one that stands for all. */
static inline uint32_t flow_actor(const struct flow *f, uint32_t host)
{
	return f->fleet->mirror == FLEET_FULL ? host : 0;
}

/* Bytes of one piece of a step; a host that stands for all rounds parts up, so all are alike. */
uint64_t flow_piece(const struct flow *f, const struct shape_step *step, uint64_t segment);
void flow_add_event(struct flow *f, uint64_t at, enum flow_event kind, uint32_t host, uint32_t step,
		    uint64_t segment, uint32_t rail);
/* Queues a task for the progress thread of its host. */
void flow_add_task(struct flow *f, uint32_t host, uint32_t task, bool local);

/* A send whose data is there: it goes when the receiver has granted it. */
void flow_send_ready(struct flow *f, uint32_t host, uint32_t task, uint64_t segment);
/* Grants have left @host: those who wait for them, and those who come later, may send. */
void flow_grants_sent(struct flow *f, uint32_t host, uint64_t segment);
/* The progress thread has handed a message to the NIC. */
void flow_transmit(struct flow *f, uint32_t host, uint32_t task, uint64_t segment);
void flow_pass_uplink(struct flow *f, const struct event *e);
void flow_reserve_rx(struct flow *f, const struct event *e);

#endif
