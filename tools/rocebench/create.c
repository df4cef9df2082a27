/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Create: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocebench/create.h"

#include "proto/base.h"

#define REPS_MIN 10
#define REPS_MAX 1000

/* Makes, uses and destroys one. */
static int create_one(const struct measure *m, double *ret_seconds)
{
	struct roce_comm_options options = {.size = sizeof(options), .name = "rocebench-create"};
	int rank = roce_comm_rank(m->comm), size = roce_comm_size(m->comm);
	struct roce_unique_id id = {{0}};
	struct roce_comm *comm;
	double begin, seconds;
	int r = ROCE_OK;

	if (rank == 0) {
		r = roce_get_unique_id(m->client, &id);
	}
	if (r == ROCE_OK) {
		r = roce_broadcast(&id, sizeof(id), ROCE_U8, 0, m->comm);
	}
	if (r == ROCE_OK) {
		r = roce_barrier(m->comm);
	}
	begin = measure_now();
	if (r == ROCE_OK) {
		r = roce_comm_init(m->client, &id, rank, size, &options, &comm);
	}
	if (r != ROCE_OK) {
		return r;
	}
	seconds = measure_now() - begin;
	if (m->options->verify) {
		r = roce_barrier(comm);
	}
	/* All are through it before the first leaves, or a rank may lose its peers in it. */
	if (r == ROCE_OK) {
		r = roce_barrier(m->comm);
	}
	if (r == ROCE_OK) {
		*ret_seconds = seconds;
	}
	roce_comm_destroy(comm);
	return r;
}

static int create_many(const struct measure *m, double *seconds, size_t n)
{
	int r = ROCE_OK;

	for (size_t i = 0; i < n && r == ROCE_OK; i++) {
		r = create_one(m, &seconds[i]);
	}
	return r == ROCE_OK ? measure_longest(m->comm, seconds, n) : r;
}

int create_measure(const struct measure *m, struct row *row)
{
	cleanup_free double *seconds = calloc(REPS_MAX, sizeof(*seconds));
	size_t reps = m->options->reps;
	struct stats stats;
	int r;

	if (!seconds) {
		return ROCE_ERR_NO_MEMORY;
	}
	r = create_many(m, seconds, REPS_MIN);
	if (r != ROCE_OK) {
		return r;
	}
	if (reps == 0) {
		stats_make(seconds, REPS_MIN, &stats);
		reps = (size_t)MIN(m->options->seconds / MAX(stats.median, 1e-6), REPS_MAX);
	}
	reps = MIN(MAX(reps, 1), REPS_MAX);
	r = create_many(m, seconds, reps);
	if (r != ROCE_OK) {
		return r;
	}
	row->reps = reps;
	row->checked = m->options->verify;
	stats_make(seconds, reps, &row->seconds);
	return ROCE_OK;
}
