/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Counters: implementation
 *
 * Thread: see counters.h      Owns: nothing      Locks: none
 */
#include "telemetry/counters.h"

#include "proto/base.h"

/**
 * comm_view_new() - allocate a communicator's view
 * @nlocal:  its ranks on this host
 * @ret:     the view, all zero, on cache lines of its own
 *
 * Return: 0, -ENOMEM
 */
int comm_view_new(uint32_t nlocal, struct comm_view **ret)
{
	size_t size = sizeof(struct comm_view) + (size_t)nlocal * sizeof(struct comm_rank_view);
	struct comm_view *v;

	v = aligned_alloc(64, ALIGN_UP(size, 64));
	if (!v) {
		return err_origin(-ENOMEM);
	}
	__builtin_memset(v, 0, ALIGN_UP(size, 64));
	v->nlocal = nlocal;
	*ret = v;
	return 0;
}

/**
 * comm_view_free() - free a view
 * @v:  consumed, may be NULL
 *
 * Return: NULL
 */
struct comm_view *comm_view_free(struct comm_view *v)
{
	free(v);
	return NULL;
}

const struct counter_row counter_comm_rows[] = {
#define COUNTER_COMM(name, unit, help) {#name, unit, help, offsetof(struct comm_view, name)},
#define COUNTER_THREAD(name, unit, help)
#include "telemetry/counters.def"
#undef COUNTER_COMM
#undef COUNTER_THREAD
};
const size_t counter_comm_nrows = ARRAY_SIZE(counter_comm_rows);

const struct counter_row counter_thread_rows[] = {
#define COUNTER_COMM(name, unit, help)
#define COUNTER_THREAD(name, unit, help) {#name, unit, help, offsetof(struct thread_view, name)},
#include "telemetry/counters.def"
#undef COUNTER_COMM
#undef COUNTER_THREAD
};
const size_t counter_thread_nrows = ARRAY_SIZE(counter_thread_rows);
