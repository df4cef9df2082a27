/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * State of a simulation: what sim.c (events) and sim_run.c (beginning and end) share
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#ifndef ROCECOMM_TESTS_SIM_IMPL_H
#define ROCECOMM_TESTS_SIM_IMPL_H

#include "proto/base.h"
#include "sim.h"

enum step_state { WAITING = 0, READY, RUNNING, DONE };

struct message {
	uint32_t from, to, tag;
	uint64_t seg;
	uint32_t sender_step;
	uint64_t size;
	uint8_t *data;
};

struct segment {
	bool started;
	uint32_t *pending;
	uint8_t *state;
	uint8_t *fragments; /* left to run */
	struct message **arrived;
	uint32_t left;
	uint8_t *temp;
};

struct host {
	struct plan *plan;
	uint64_t nseg;
	uint64_t next_seg; /* first one that is not started */
	uint32_t in_flight;
	uint64_t sent;
	struct segment *segs;
	struct message **parked; /* for segments that are not started */
	size_t nparked, cap_parked;
	uint32_t *pred_first; /* what steps wait for; made when first needed */
	uint32_t *pred;
};

enum action_kind { START_SEGMENT, RUN_FRAGMENT, START_SEND, END_SEND, DELIVER };

struct action {
	uint8_t kind;
	uint8_t fragment;
	uint32_t host;
	uint32_t step;
	uint64_t seg;
	struct message *msg;
};

enum order { ORDER_RANDOM, ORDER_NEWEST, ORDER_OLDEST, ORDER_COUNT_ };

struct sim {
	struct sim_data *data;
	const struct coll_layout *layout;
	struct host *hosts;
	uint64_t seg; /* elements */
	uint64_t random;
	enum order order;
	struct action *pool;
	size_t npool, cap_pool;
	uint64_t messages;
	char *why;
	size_t why_size;
	bool failed;
};

/* Remembers the first failure. */
attr_printf(2, 3) void sim_fail(struct sim *s, const char *format, ...);
uint64_t sim_random(struct sim *s);
/* Yields @p, or ends the program: the simulator does not survive a lack of memory. */
void *sim_need(void *p);
/* Lets @host start segments up to its window. */
void sim_start_segments(struct sim *s, uint32_t host);
/* Until nothing can happen any more, or something failed. */
void sim_events(struct sim *s);

#endif
