/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Loops: what tests of failures and of costs run
 *
 * loop: allreduce after allreduce until --iterations or an error; --late makes a rank sleep first.
 * flow: the same with values that are another one at each place of each operation of each rank, for
 * transports that are disturbed meanwhile: nothing may be lost, doubled or elsewhere.
 * post: many small operations in a window, on shared memory, for counting system calls.
 * mismatch: rank 2 does something else than the others.
 * churn: memory and communicators come and go, until killed.
 * quota: takes buffers until refused.
 *
 * Thread: main      Owns: memory      Locks: none
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tests/integration/collcheck/collcheck.h"

#define POST_WINDOW 128

static void say_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int shared_floats(struct collcheck *cc, size_t n, float **ret)
{
	void *ptr;
	int r = roce_mem_alloc(cc->client, MAX(n, 1) * sizeof(float), 0, &ptr);

	if (r == ROCE_OK) {
		*ret = ptr;
	}
	return r;
}

int mode_loop(struct collcheck *cc)
{
	float *data, want = (float)cc->size;
	int r;

	r = shared_floats(cc, cc->count, &data);
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "memory", r);
	}
	for (unsigned long i = 0; i < cc->iterations; i++) {
		double begin;

		for (size_t k = 0; k < cc->count; k++) {
			data[k] = 1;
		}
		if (i == 1) {
			say_ready();
			if ((int)cc->rank == cc->late_rank) {
				poll(NULL, 0, (int)cc->late_ms);
			}
		}
		begin = collcheck_now();
		r = roce_allreduce(data, data, cc->count, ROCE_F32, ROCE_SUM, cc->comm);
		if (r != ROCE_OK) {
			return collcheck_stopped(r, collcheck_now() - begin);
		}
		for (size_t k = 0; k < cc->count; k++) {
			if (data[k] != want) {
				fprintf(stderr, "rank %u: element %zu is %g, must be %g\n",
					cc->rank, k, (double)data[k], (double)want);
				return 1;
			}
		}
	}
	printf("done %lu operations\n", cc->iterations);
	return 0;
}

/* Below 4096, so that sums over 1024 ranks are exact. */
static float flow_value(uint64_t seed, unsigned int rank, size_t k)
{
	uint64_t x = (k + seed * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + rank * 0x94d049bbu;

	return (float)(x >> 40 & 0xfff);
}

static size_t flow_check(const struct collcheck *cc, const float *data, unsigned long i)
{
	size_t wrong = 0;

	for (size_t k = 0; k < cc->count; k++) {
		float want = 0;

		for (unsigned int r = 0; r < cc->size; r++) {
			want += flow_value(i, r, k);
		}
		if (data[k] != want && wrong++ == 0) {
			fprintf(stderr, "rank %u: operation %lu, element %zu is %g, must be %g\n",
				cc->rank, i, k, (double)data[k], (double)want);
		}
	}
	return wrong;
}

int mode_flow(struct collcheck *cc)
{
	float *in, *out;
	int r;

	r = shared_floats(cc, cc->count, &in);
	if (r == ROCE_OK) {
		r = shared_floats(cc, cc->count, &out);
	}
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "memory", r);
	}
	for (unsigned long i = 0; i < cc->iterations; i++) {
		double begin;

		for (size_t k = 0; k < cc->count; k++) {
			in[k] = flow_value(i, cc->rank, k);
			out[k] = -1;
		}
		if (i == 1) {
			say_ready();
		}
		printf("begin %lu\n", i);
		fflush(stdout);
		begin = collcheck_now();
		r = roce_allreduce(in, out, cc->count, ROCE_F32, ROCE_SUM, cc->comm);
		if (r != ROCE_OK) {
			return collcheck_stopped(r, collcheck_now() - begin);
		}
		printf("end %lu %.0f\n", i, (collcheck_now() - begin) * 1e3);
		fflush(stdout);
		if (flow_check(cc, out, i) != 0) {
			return 1;
		}
	}
	printf("done %lu operations\n", cc->iterations);
	return 0;
}

int mode_post(struct collcheck *cc)
{
	struct roce_request *requests[POST_WINDOW] = {NULL};
	float *data;
	int r;

	r = shared_floats(cc, cc->count * POST_WINDOW, &data);
	if (r == ROCE_OK) {
		r = roce_barrier(cc->comm);
	}
	for (unsigned long i = 0; i < cc->iterations + POST_WINDOW && r == ROCE_OK; i++) {
		unsigned int slot = i % POST_WINDOW;
		float *at = data + slot * cc->count;

		r = roce_wait(&requests[slot], -1);
		if (r == ROCE_OK && i < cc->iterations) {
			r = roce_iallreduce(at, at, cc->count, ROCE_F32, ROCE_MAX, cc->comm,
					    &requests[slot]);
		}
	}
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "post", r);
	}
	printf("done %lu operations\n", cc->iterations);
	return 0;
}

static int deviate(struct collcheck *cc, void *a, void *b)
{
	const char *v = cc->variant;
	size_t n = cc->count;
	int r;

	if (strcmp(v, "count") == 0) {
		return roce_allreduce(a, b, n / 2, ROCE_F32, ROCE_SUM, cc->comm);
	}
	if (strcmp(v, "dtype") == 0) {
		return roce_allreduce(a, b, n, ROCE_I32, ROCE_SUM, cc->comm);
	}
	if (strcmp(v, "dtype-bytes") == 0) {
		return roce_allreduce(a, b, 2 * n, ROCE_BF16, ROCE_SUM, cc->comm);
	}
	if (strcmp(v, "op") == 0) {
		return roce_allreduce(a, b, n, ROCE_F32, ROCE_MAX, cc->comm);
	}
	if (strcmp(v, "kind") == 0) {
		return roce_broadcast(b, n, ROCE_F32, 0, cc->comm);
	}
	if (strcmp(v, "root") == 0) {
		return roce_broadcast(b, n, ROCE_F32, 1, cc->comm);
	}
	if (strcmp(v, "order") == 0) {
		r = roce_allreduce(a, b, n, ROCE_F32, ROCE_SUM, cc->comm);
		return r == ROCE_OK ? roce_broadcast(b, n, ROCE_F32, 0, cc->comm) : r;
	}
	/* skip */
	poll(NULL, 0, 4000);
	return roce_allreduce(a, b, n, ROCE_F32, ROCE_SUM, cc->comm);
}

static int conform(struct collcheck *cc, void *a, void *b)
{
	size_t n = cc->count;
	int r;

	if (strcmp(cc->variant, "root") == 0) {
		return roce_broadcast(b, n, ROCE_F32, 0, cc->comm);
	}
	if (strcmp(cc->variant, "order") == 0) {
		r = roce_broadcast(b, n, ROCE_F32, 0, cc->comm);
		return r == ROCE_OK ? roce_allreduce(a, b, n, ROCE_F32, ROCE_SUM, cc->comm) : r;
	}
	return roce_allreduce(a, b, n, ROCE_F32, ROCE_SUM, cc->comm);
}

int mode_mismatch(struct collcheck *cc)
{
	float *a, *b;
	double begin;
	int r;

	r = shared_floats(cc, cc->count, &a);
	if (r == ROCE_OK) {
		r = shared_floats(cc, cc->count, &b);
	}
	if (r == ROCE_OK) {
		r = roce_barrier(cc->comm);
	}
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "setting up", r);
	}
	say_ready();
	/* A failure takes along what others are still finishing: the barrier must be behind all. */
	poll(NULL, 0, 200);
	begin = collcheck_now();
	r = cc->rank == 2 ? deviate(cc, a, b) : conform(cc, a, b);
	if (r == ROCE_OK) {
		/* The root of a broadcast may be done before anybody disagrees. */
		r = roce_barrier(cc->comm);
	}
	if (r != ROCE_OK) {
		return collcheck_stopped(r, collcheck_now() - begin);
	}
	printf("done 1 operations\n");
	return 0;
}

int mode_churn(struct collcheck *cc)
{
	void *ptrs[8] = {NULL};
	unsigned long i = 0;

	say_ready();
	for (;; i++) {
		uint64_t h = value_hash(cc->seed, cc->rank, i);
		void **slot = &ptrs[h % ARRAY_SIZE(ptrs)];
		size_t size = 4096 + (h >> 8) % (8u << 20);
		struct roce_request *request = NULL;
		struct roce_comm *comm;
		int r;

		roce_mem_free(cc->client, take_ptr(*slot));
		r = roce_mem_alloc(cc->client, size, 0, slot);
		if (r == ROCE_OK) {
			r = roce_iallreduce(*slot, *slot, size / 4, ROCE_F32, ROCE_SUM, cc->comm,
					    &request);
		}
		if (r == ROCE_OK) {
			r = roce_comm_dup(cc->comm, &comm);
		}
		if (r == ROCE_OK) {
			roce_comm_destroy(comm);
			r = roce_wait(&request, -1);
		}
		if (r != ROCE_OK) {
			return collcheck_failed(cc, "churn", r);
		}
	}
}

int mode_quota(struct collcheck *cc)
{
	void *ptr;
	int r;

	for (unsigned long i = 0; i < cc->iterations; i++) {
		r = roce_mem_alloc(cc->client, cc->count, 0, &ptr);
		if (r != ROCE_OK) {
			printf("refused %lu\n", i);
			return collcheck_stopped(r, 0);
		}
	}
	printf("done %lu operations\n", cc->iterations);
	return 0;
}
