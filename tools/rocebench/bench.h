/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Bench: the table of what can be measured
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_BENCH_H
#define ROCEBENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/rocebench/stats.h"

enum bench_id {
	BENCH_ALLREDUCE,
	BENCH_ALLGATHER,
	BENCH_REDUCE_SCATTER,
	BENCH_BROADCAST,
	BENCH_REDUCE,
	BENCH_GATHER,
	BENCH_SCATTER,
	BENCH_ALLTOALL,
	BENCH_ALLTOALLV,
	BENCH_BARRIER,
	BENCH_SENDRECV,
	BENCH_RESNET50,
	BENCH_GPT2,
	BENCH_MOE,
	BENCH_CREATE, /* of a communicator; not one of "all" */
	BENCH_COUNT_
};

struct bench {
	const char *name;
	int kind; /* enum coll_kind of its operations */
	enum stats_bus bus;
	bool blocks;   /* its bytes are those of one block for each rank */
	bool one_row;  /* has its own size */
	bool in_place; /* comes in place */
	bool always;   /* in place, asked for or not: so do trainers */
};

/* Never NULL. */
const struct bench *bench_get(enum bench_id id);
/* Return: BENCH_COUNT_ when there is none of that name. */
enum bench_id bench_find(const char *name, size_t length);

#endif
