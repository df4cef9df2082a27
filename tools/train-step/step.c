/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Step: implementation
 *
 * Thread: main      Owns: see step.h      Locks: none
 */
#include "tools/train-step/step.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/base.h"

struct pass {
	double begin;
	double done[BUCKETS_MAX];
	struct roce_request *requests[BUCKETS_MAX];
};

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int step_init(struct step *step, struct roce_client *client, struct roce_comm *comm)
{
	struct tensor forward[RESNET50_TENSORS];
	size_t counts[RESNET50_TENSORS];

	memset(step, 0, sizeof(*step));
	step->client = client;
	step->comm = comm;
	resnet50_tensors(forward);
	for (size_t i = 0; i < RESNET50_TENSORS; i++) {
		step->tensors[i] = forward[RESNET50_TENSORS - 1 - i];
		counts[i] = step->tensors[i].count;
	}
	step->n_buckets = buckets_assign(counts, RESNET50_TENSORS, step->buckets);
	for (size_t b = 0; b < step->n_buckets; b++) {
		void *ptr;
		int r = roce_mem_alloc(client, step->buckets[b].count * sizeof(float), 0, &ptr);

		if (r != ROCE_OK) {
			return r;
		}
		step->gradients[b] = ptr;
	}
	return 0;
}

void step_deinit(struct step *step)
{
	for (size_t b = 0; b < step->n_buckets; b++) {
		roce_mem_free(step->client, step->gradients[b]);
	}
}

/* Notes which of the first @n buckets are complete by now. */
static int pass_poll(struct pass *pass, size_t n)
{
	for (size_t b = 0; b < n; b++) {
		int r;

		if (!pass->requests[b]) {
			continue;
		}
		r = roce_test(&pass->requests[b]);
		if (r == ROCE_OK) {
			pass->done[b] = now();
		} else if (r != ROCE_IN_PROGRESS) {
			return r;
		}
	}
	return 0;
}

static int pass_wait(struct pass *pass, size_t n)
{
	for (;;) {
		size_t b = n;
		int r = roce_wait_any(pass->requests, n, -1, &b);

		if (b == n || r != ROCE_OK) {
			return r;
		}
		pass->done[b] = now();
	}
}

static int pass_backward(struct step *step, const struct values *values, struct pass *pass)
{
	unsigned int rank = (unsigned int)roce_comm_rank(step->comm);

	for (size_t b = 0; b < step->n_buckets; b++) {
		const struct bucket *bucket = &step->buckets[b];
		float *gradient = step->gradients[b];
		size_t at = 0;
		int r;

		for (size_t t = bucket->first; t < bucket->first + bucket->tensors; t++) {
			size_t count = step->tensors[t].count;

			values_fill(values, rank, bucket->base + at, count, gradient + at);
			at += count;
			r = pass_poll(pass, b);
			if (r != ROCE_OK) {
				return r;
			}
		}
		step->ready[b] = now() - pass->begin;
		r = roce_iallreduce(gradient, gradient, bucket->count, ROCE_F32, ROCE_AVG,
				    step->comm, &pass->requests[b]);
		if (r != ROCE_OK) {
			return r;
		}
	}
	return 0;
}

/* The worst time of any rank, for each. */
static int step_worst(struct step *step)
{
	double times[2 * BUCKETS_MAX + 2];
	size_t n = step->n_buckets;
	int r;

	memcpy(times, step->ready, n * sizeof(double));
	memcpy(times + n, step->took, n * sizeof(double));
	times[2 * n] = step->whole;
	times[2 * n + 1] = step->first_to_last;
	r = roce_allreduce(times, times, 2 * n + 2, ROCE_F64, ROCE_MAX, step->comm);
	if (r != ROCE_OK) {
		return r;
	}
	memcpy(step->ready, times, n * sizeof(double));
	memcpy(step->took, times + n, n * sizeof(double));
	step->whole = times[2 * n];
	step->first_to_last = times[2 * n + 1];
	return 0;
}

int step_run(struct step *step, const struct values *values)
{
	struct pass pass = {0};
	double last = 0;
	int r;

	r = roce_barrier(step->comm);
	if (r != ROCE_OK) {
		return r;
	}
	pass.begin = now();
	r = pass_backward(step, values, &pass);
	if (r == ROCE_OK) {
		r = pass_wait(&pass, step->n_buckets);
	}
	if (r != ROCE_OK) {
		return r;
	}
	for (size_t b = 0; b < step->n_buckets; b++) {
		double done = pass.done[b] - pass.begin;

		step->took[b] = done - step->ready[b];
		last = MAX(last, done);
	}
	step->whole = last;
	step->first_to_last = last - step->ready[0];
	return step_worst(step);
}

size_t step_check(const struct step *step, const struct values *values)
{
	size_t bad = 0;

	for (size_t b = 0; b < step->n_buckets; b++) {
		const struct bucket *bucket = &step->buckets[b];
		size_t at = 0, where = 0, wrong;
		double want = 0;

		for (size_t t = bucket->first; t < bucket->first + bucket->tensors; t++) {
			const float *got = step->gradients[b] + at;
			size_t count = step->tensors[t].count;

			wrong = values_check(values, bucket->base + at, count, got, &where, &want);
			if (wrong > 0 && bad == 0) {
				fprintf(stderr,
					"rank %d: %s[%zu] is %.9g and should be %.9g (%zu of %zu "
					"elements are wrong)\n",
					roce_comm_rank(step->comm), step->tensors[t].name, where,
					got[where], want, wrong, count);
			}
			bad += wrong;
			at += count;
		}
		assert(at == bucket->count);
	}
	return bad;
}
