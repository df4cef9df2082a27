/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Buffers: more of them than may be registered with devices
 *
 * --buffers of --count floats; each of --iterations sums a few of them in place, as chance has it,
 * and looks at every value. Every tenth begins after --late's pause: what others use may then give
 * way.
 *
 * Thread: main      Owns: memory      Locks: none
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/base.h"
#include "tests/integration/collcheck/collcheck.h"
#include "tests/integration/collcheck/value.h"

#define AT_ONCE 3

/* Below 4096, so that sums over 1024 ranks are exact. */
static float value_of(uint64_t operation, unsigned int rank, size_t k)
{
	uint64_t x = (k + operation * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + rank * 977u;

	return (float)(x >> 40 & 0xfff);
}

static bool is_right(const struct collcheck *cc, const float *data, uint64_t operation)
{
	for (size_t k = 0; k < cc->count; k++) {
		float want = 0;

		for (unsigned int r = 0; r < cc->size; r++) {
			want += value_of(operation, r, k);
		}
		if (data[k] != want) {
			fprintf(stderr, "rank %u: operation %llu, element %zu is %g, must be %g\n",
				cc->rank, (unsigned long long)operation, k, (double)data[k],
				(double)want);
			return false;
		}
	}
	return true;
}

/* Return: an exit status. */
static int iteration(struct collcheck *cc, float *const *buffers, unsigned long i)
{
	struct roce_request *requests[AT_ONCE] = {NULL};
	uint64_t first = value_hash(cc->seed, 0, i); /* the same on all ranks */
	int r = ROCE_OK;

	for (unsigned int w = 0; w < AT_ONCE && r == ROCE_OK; w++) {
		float *data = buffers[(first + w) % cc->buffers];

		for (size_t k = 0; k < cc->count; k++) {
			data[k] = value_of(i * AT_ONCE + w, cc->rank, k);
		}
		r = roce_iallreduce(data, data, cc->count, ROCE_F32, ROCE_SUM, cc->comm,
				    &requests[w]);
	}
	for (unsigned int w = 0; w < AT_ONCE && r == ROCE_OK; w++) {
		r = roce_wait(&requests[w], -1);
	}
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "allreduce", r);
	}
	for (unsigned int w = 0; w < AT_ONCE; w++) {
		if (!is_right(cc, buffers[(first + w) % cc->buffers], i * AT_ONCE + w)) {
			return 1;
		}
	}
	return 0;
}

static int take_all(struct collcheck *cc, float **buffers)
{
	for (unsigned int b = 0; b < cc->buffers; b++) {
		void *ptr;
		int r = roce_mem_alloc(cc->client, cc->count * sizeof(float), 0, &ptr);

		if (r != ROCE_OK) {
			return collcheck_failed(cc, "memory", r);
		}
		buffers[b] = ptr;
	}
	return 0;
}

int mode_buffers(struct collcheck *cc)
{
	float **buffers = cc->buffers >= AT_ONCE ? calloc(cc->buffers, sizeof(*buffers)) : NULL;
	int r = buffers ? take_all(cc, buffers) : 1;

	if (r == 0) {
		printf("ready\n");
		fflush(stdout);
	}
	for (unsigned long i = 0; i < cc->iterations && r == 0; i++) {
		if (i % 10 == 9) {
			poll(NULL, 0, (int)cc->late_ms);
		}
		r = iteration(cc, buffers, i);
	}
	if (r == 0) {
		printf("done %lu operations\n", cc->iterations * AT_ONCE);
		for (unsigned int b = 0; b < cc->buffers; b++) {
			roce_mem_free(cc->client, buffers[b]);
		}
	}
	free(buffers);
	return r;
}
