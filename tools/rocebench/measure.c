/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Measure: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocebench/measure.h"

#include <stdio.h>
#include <time.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tools/rocebench/barrier.h"
#include "tools/rocebench/create.h"
#include "tools/rocebench/memory.h"
#include "tools/rocebench/plan.h"
#include "tools/rocebench/post.h"
#include "tools/rocebench/verify.h"

#define WARMUP 5
#define STRETCHES 10 /* of a row, about */
#define REPS_MIN 10  /* when their number is set by time */

double measure_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int measure_longest(struct roce_comm *comm, double *seconds, size_t n)
{
	return roce_allreduce(seconds, seconds, n, ROCE_F64, ROCE_MAX, comm);
}

/* @n repetitions; @seconds takes the time of each. */
static int repeat(struct post *post, size_t n, double *seconds)
{
	double before, after;
	int r;

	r = roce_barrier(post->comm);
	before = measure_now();
	for (size_t i = 0; i < n && r == ROCE_OK; i++) {
		r = post_run(post);
		after = measure_now();
		seconds[i] = after - before;
		before = after;
	}
	return r;
}

/* The repetitions of a row. */
struct samples {
	double *seconds;
	size_t n, room;
};

/* @n more repetitions; *ret_took is what they took together. */
static int samples_add(struct samples *samples, const struct measure *m, struct post *post,
		       size_t n, double *ret_took)
{
	double took = 0, *seconds;
	int r;

	if (samples->n + n > samples->room) {
		size_t room = MAX(samples->n + n, 2 * samples->room);

		seconds = realloc(samples->seconds, room * sizeof(*seconds));
		if (!seconds) {
			return ROCE_ERR_NO_MEMORY;
		}
		samples->seconds = seconds;
		samples->room = room;
	}
	seconds = samples->seconds + samples->n;
	r = repeat(post, n, seconds);
	if (r == ROCE_OK) {
		r = measure_longest(m->comm, seconds, n);
	}
	if (r != ROCE_OK) {
		return r;
	}
	for (size_t i = 0; i < n; i++) {
		took += seconds[i];
	}
	samples->n += n;
	*ret_took = took;
	return ROCE_OK;
}

/* How many repetitions of this length fit in a stretch. */
static size_t stretch(const struct measure *m, double one, double left)
{
	double n = MIN(left, m->options->seconds / STRETCHES) / MAX(one, 1e-9);

	return (size_t)MIN(MAX(n, 1), (double)OPTIONS_REPS_MAX);
}

/*
 * Repetitions in stretches until the time is up. All ranks see the same longest times, hence they
 * agree without a word on how long the next stretch is, and on which is the last.
 */
static int samples_by_time(struct samples *samples, const struct measure *m, struct post *post,
			   double one)
{
	double took, left = m->options->seconds;
	size_t n = stretch(m, one, left);
	int r;

	while (n > 0) {
		r = samples_add(samples, m, post, n, &took);
		if (r != ROCE_OK) {
			return r;
		}
		left -= took;
		if (m->progress) {
			m->progress(m->progress_ctx, 1 - left / m->options->seconds);
		}
		n = stretch(m, took / (double)n, left);
		if (left <= 0) {
			n = samples->n < REPS_MIN ? 1 : 0;
		}
		n = MIN(n, OPTIONS_REPS_MAX - samples->n);
	}
	return ROCE_OK;
}

/*
 * A number that was asked for is made in one go, with nothing in between. Otherwise a few, one by
 * one, since long repetitions need no more than the time of a row.
 */
static int warm_up(struct samples *samples, const struct measure *m, struct post *post,
		   double *ret_one)
{
	bool given = m->options->warmup_given;
	unsigned long n = given ? m->options->warmup : WARMUP, step = given ? n : 1;
	double took = 0, all = 0;
	int r;

	for (unsigned long i = 0; i < n; i += step) {
		r = samples_add(samples, m, post, step, &took);
		if (r != ROCE_OK) {
			return r;
		}
		all += took;
		if (!given && all > m->options->seconds) {
			break;
		}
	}
	samples->n = 0;
	*ret_one = took > 0 ? took / (double)step : m->options->seconds;
	return ROCE_OK;
}

static int time_all(const struct measure *m, struct post *post, struct row *row)
{
	struct samples samples = {NULL};
	double one, took;
	int r;

	r = warm_up(&samples, m, post, &one);
	if (r == ROCE_OK && m->options->reps > 0) {
		r = samples_add(&samples, m, post, m->options->reps, &took);
	} else if (r == ROCE_OK) {
		r = samples_by_time(&samples, m, post, one);
	}
	if (r == ROCE_OK) {
		row->reps = samples.n;
		stats_make(samples.seconds, samples.n, &row->seconds);
	}
	free(samples.seconds);
	return r;
}

/* One more repetition, checked on all ranks. */
static int check(const struct measure *m, struct post *post, struct row *row)
{
	const struct plan *plan = post->plan;
	int64_t wrong = 0;
	int r;

	if (plan->bench->kind == COLL_BARRIER) {
		r = barrier_check(m->comm, &wrong);
	} else {
		verify_fill(plan);
		r = post_run(post);
	}
	if (r != ROCE_OK) {
		return r;
	}
	if (m->options->corrupt) {
		verify_corrupt(plan);
	}
	wrong += (int64_t)verify_check(plan, stderr);
	r = roce_allreduce(&wrong, &wrong, 1, ROCE_I64, ROCE_SUM, m->comm);
	if (r == ROCE_OK) {
		row->checked = true;
		row->wrong = (size_t)wrong;
	}
	return r;
}

static int measure_plan(const struct measure *m, struct plan *plan, struct row *row)
{
	struct memory memory;
	struct post post = {NULL};
	bool fits;
	int r;

	r = memory_fits(plan, m->comm, &fits);
	if (r != ROCE_OK || !fits) {
		return r == ROCE_OK ? MEASURE_REFUSED : r;
	}
	r = memory_init(&memory, m->client, m->options->plain, plan);
	if (r == ROCE_OK && post_init(&post, plan, m->comm, m->compute) < 0) {
		r = ROCE_ERR_NO_MEMORY;
	}
	if (r == ROCE_OK) {
		verify_fill(plan);
		r = time_all(m, &post, row);
	}
	if (r == ROCE_OK && m->options->verify) {
		r = check(m, &post, row);
	}
	post_deinit(&post);
	memory_deinit(&memory);
	return r;
}

int measure_row(const struct measure *m, enum bench_id id, size_t bytes, struct row *ret)
{
	struct row row = {.id = id};
	struct plan plan;
	int r;

	if (id == BENCH_CREATE) {
		r = create_measure(m, &row);
		if (r == ROCE_OK) {
			*ret = row;
		}
		return r;
	}
	r = ROCE_ERR_NO_MEMORY;
	if (plan_init(&plan, m->options, id, bytes, roce_comm_rank(m->comm),
		      roce_comm_size(m->comm)) == 0) {
		row.bytes = plan.bytes;
		row.count = plan.count;
		row.in_place = plan.ops[0].in_place;
		r = measure_plan(m, &plan, &row);
	}
	plan_deinit(&plan);
	if (r == ROCE_OK) {
		*ret = row;
	}
	return r;
}
