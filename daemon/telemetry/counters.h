/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Counters: what a progress thread lets others see
 *
 * A view has one writer, its progress thread, and any readers. Every member is a relaxed atomic: a
 * reader sees each value whole, but not all of one instant. The writer adds with
 * counter_add(), which needs no locked instruction since nobody else writes.
 *
 * Thread: written by the progress thread that owns it, read by any      Owns: itself      Locks:
 * none
 */
#ifndef ROCECOMM_TELEMETRY_COUNTERS_H
#define ROCECOMM_TELEMETRY_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* One rank of this host in a communicator. */
struct comm_rank_view {
	_Atomic uint64_t posted;       /* collectives posted so far */
	_Atomic uint64_t last_post_ns; /* monotonic; 0: never */
};

struct comm_view {
	_Atomic uint64_t started;   /* collectives that all local ranks had posted */
	_Atomic uint64_t completed; /* collectives completed here */
	/*
	 * Of the oldest collective that is not completed: when its first local rank posted it; 0:
	 * there is none. The cur_ members describe it.
	 */
	_Atomic uint64_t wait_since_ns;
	_Atomic uint64_t cur_count;
	_Atomic uint32_t cur_kind;  /* enum coll_kind */
	_Atomic uint32_t cur_dtype; /* enum dtype */
	_Atomic uint32_t cur_op;    /* enum redop */
	_Atomic uint32_t cur_algo;  /* enum coll_algo; 0 until it is started */
	_Atomic uint32_t cur_root;

#define COUNTER_COMM(name, unit, help) _Atomic uint64_t name;
#define COUNTER_THREAD(name, unit, help)
#include "telemetry/counters.def"
#undef COUNTER_COMM
#undef COUNTER_THREAD

	uint32_t nlocal;
	struct comm_rank_view ranks[]; /* [nlocal], in the layout's order */
};

struct thread_view {
#define COUNTER_COMM(name, unit, help)
#define COUNTER_THREAD(name, unit, help) _Atomic uint64_t name;
#include "telemetry/counters.def"
#undef COUNTER_COMM
#undef COUNTER_THREAD
};

/* For the writer. */
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
	uint64_t now = atomic_load_explicit(c, memory_order_relaxed);

	atomic_store_explicit(c, now + n, memory_order_relaxed);
}

static inline void counter_set(_Atomic uint64_t *c, uint64_t v)
{
	atomic_store_explicit(c, v, memory_order_relaxed);
}

static inline void counter_set32(_Atomic uint32_t *c, uint32_t v)
{
	atomic_store_explicit(c, v, memory_order_relaxed);
}

/* For readers. */
static inline uint64_t counter_get(const _Atomic uint64_t *c)
{
	return atomic_load_explicit((_Atomic uint64_t *)c, memory_order_relaxed);
}

static inline uint32_t counter_get32(const _Atomic uint32_t *c)
{
	return atomic_load_explicit((_Atomic uint32_t *)c, memory_order_relaxed);
}

/* All zero. Return: 0, -ENOMEM. */
int comm_view_new(uint32_t nlocal, struct comm_view **ret);
struct comm_view *comm_view_free(struct comm_view *v);

/* Rows of counters.def, for rocectl and metrics. */
struct counter_row {
	const char *name;
	const char *unit;
	const char *help;
	size_t offset; /* of the _Atomic uint64_t in its view */
};
extern const struct counter_row counter_comm_rows[];
extern const size_t counter_comm_nrows;
extern const struct counter_row counter_thread_rows[];
extern const size_t counter_thread_nrows;

static inline uint64_t counter_row_get(const struct counter_row *row, const void *view)
{
	return counter_get((const _Atomic uint64_t *)((const char *)view + row->offset));
}

#endif
