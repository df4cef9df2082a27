/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Measure: one row
 *
 * Warm-up, then stretches of repetitions: a barrier, and one repetition after the other without
 * anything between them; every rank times each of its own. The time of a repetition is the longest
 * of all ranks. The check of the results is a repetition of its own, outside.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_MEASURE_H
#define ROCEBENCH_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

#include "libclient/roceclient.h"
#include "tools/rocebench/compute.h"
#include "tools/rocebench/options.h"
#include "tools/rocebench/stats.h"

/* What all rows of a run share; borrowed. */
struct measure {
	const struct options *options;
	struct roce_client *client;
	struct roce_comm *comm;
	struct compute *compute;

	/* Called between repetitions with the share of the row's time that is over; may be NULL. */
	void (*progress)(void *ctx, double share);
	void *progress_ctx;
};

struct row {
	enum bench_id id;
	size_t bytes;
	size_t count;
	bool in_place;
	size_t reps;
	struct stats seconds;
	bool checked;
	size_t wrong; /* elements, of all ranks */
};

#define MEASURE_REFUSED (-1) /* on all ranks; the reason was told */

/* Collective over all ranks, the same row on each. Return: a roce status or MEASURE_REFUSED. */
int measure_row(const struct measure *m, enum bench_id id, size_t bytes, struct row *ret);
/* The longest of all ranks, for each of @n times. Return: a roce status. */
int measure_longest(struct roce_comm *comm, double *seconds, size_t n);
double measure_now(void);

#endif
