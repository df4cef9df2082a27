/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank bench: allreduce on a stream
 *
 * A line a size: the median of single operations, from the call to the end of the stream, and the
 * time of each of a row that is enqueued at once, as a training step does it.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>

#include "proto/base.h"
#include "rank.h"

#define MAX_REPS 2000
#define ROW 20

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void post(struct rank *r, CUdeviceptr p, size_t count, int dtype)
{
	must(roce_allreduce_stream((void *)(uintptr_t)p, (void *)(uintptr_t)p, count, dtype,
				   ROCE_SUM, r->comm, r->stream, NULL),
	     "roce_allreduce_stream");
}

static void finish(struct rank *r)
{
	char text[400];

	must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
	if (roce_comm_error(r->comm, text, sizeof(text)) != ROCE_OK) {
		die("the communicator failed: %s", text);
	}
}

/* All ranks leave together: the number of repetitions is agreed by the first. */
static int agree(struct rank *r, double each_us)
{
	int32_t n = (int32_t)(r->seconds * 1e6 / (each_us > 1 ? each_us : 1));

	n = n < 5 ? 5 : n > MAX_REPS ? MAX_REPS : n;
	must(roce_broadcast(&n, 1, ROCE_I32, 0, r->comm), "roce_broadcast");
	return n;
}

static void bench_one(struct rank *r, CUdeviceptr p, size_t bytes, int dtype, size_t elem)
{
	double t[MAX_REPS], begin, row, busbw;
	int reps;

	must_cuda(r, r->cu.MemsetD8Async(p, 0, bytes, r->stream), "cuMemsetD8Async");
	for (int i = 0; i < 3; i++) {
		post(r, p, bytes / elem, dtype);
		finish(r);
	}
	begin = now_us();
	post(r, p, bytes / elem, dtype);
	finish(r);
	reps = agree(r, now_us() - begin);
	for (int i = 0; i < reps; i++) {
		must(roce_barrier(r->comm), "roce_barrier");
		begin = now_us();
		post(r, p, bytes / elem, dtype);
		must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
		t[i] = now_us() - begin;
	}
	must(roce_barrier(r->comm), "roce_barrier");
	begin = now_us();
	for (int i = 0; i < ROW; i++) {
		post(r, p, bytes / elem, dtype);
	}
	finish(r);
	row = (now_us() - begin) / ROW;
	qsort(t, (size_t)reps, sizeof(t[0]), compare);
	busbw = 2.0 * (r->size - 1) / r->size * (double)bytes / t[reps / 2] / 1e3;
	if (r->rank == 0) {
		printf("{\"op\": \"allreduce\", \"dtype\": \"%s\", \"bytes\": %zu, \"reps\": %d, "
		       "\"median_us\": %.1f, \"min_us\": %.1f, \"p99_us\": %.1f, \"row_us\": %.1f, "
		       "\"busbw_GBs\": %.3f}\n",
		       dtype == ROCE_F32 ? "f32" : "bf16", bytes, reps, t[reps / 2], t[0],
		       t[(size_t)(reps * 0.99)], row, busbw);
	}
}

int run_bench(struct rank *r)
{
	size_t max = 0, sizes[32];
	const char *s = r->sizes;
	struct memory m;
	int n = 0;

	while (*s && n < 32) {
		char *end;

		sizes[n] = strtoul(s, &end, 10);
		sizes[n] <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
		end += *end == 'K' || *end == 'M' || *end == 'G';
		max = sizes[n] > max ? sizes[n] : max;
		n++;
		s = *end == ',' ? end + 1 : end;
	}
	memory_new(r, MEMORY_VMM, max, &m);
	for (int i = 0; i < n; i++) {
		bench_one(r, m.base, sizes[i], ROCE_F32, 4);
		bench_one(r, m.base, sizes[i], ROCE_BF16, 2);
	}
	memory_free(r, &m);
	return 0;
}
