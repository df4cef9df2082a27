/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank bench: collectives on a stream
 *
 * Allreduce is in place, all others are not. Bytes are those of the larger side of a rank, and
 * bandwidths what nccl-tests calls bus bandwidth. A line an operation and size: the median of
 * single operations, from the call to the end of the stream, and the time of each of a row that is
 * enqueued at once, as a training step does it.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "rank.h"
#include "tools/rocebench/size.h"

#define MAX_REPS 2000
#define SIZE_LIMIT ((size_t)64 << 30)
#define ROW 20
#define WARM 6 /* a daemon tries GPUs with each other when an operation could use it first */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* One operation and size. */
struct row {
	const char *op;
	CUdeviceptr in, out;
	size_t bytes;
	int dtype;
	size_t elem;
};

static void post(struct rank *r, const struct row *row)
{
	void *in = (void *)(uintptr_t)row->in, *out = (void *)(uintptr_t)row->out;
	size_t count = row->bytes / row->elem;
	size_t block = count / (size_t)r->size > 0 ? count / (size_t)r->size : 1;
	int rc;

	if (strcmp(row->op, "allreduce") == 0) {
		rc = roce_allreduce_stream(in, in, count, row->dtype, ROCE_SUM, r->comm, r->stream,
					   NULL);
	} else if (strcmp(row->op, "broadcast") == 0) {
		rc = roce_broadcast_stream(in, count, row->dtype, 0, r->comm, r->stream, NULL);
	} else if (strcmp(row->op, "allgather") == 0) {
		rc = roce_allgather_stream(in, out, block, row->dtype, r->comm, r->stream, NULL);
	} else if (strcmp(row->op, "alltoall") == 0) {
		rc = roce_alltoall_stream(in, out, block, row->dtype, r->comm, r->stream, NULL);
	} else if (strcmp(row->op, "reduce-scatter") == 0) {
		rc = roce_reduce_scatter_stream(in, out, block, row->dtype, ROCE_SUM, r->comm,
						r->stream, NULL);
	} else {
		die("--ops=%s: allreduce, broadcast, allgather, alltoall and reduce-scatter are "
		    "known",
		    row->op);
	}
	must(rc, row->op);
}

static double bus_bytes(const struct rank *r, const struct row *row)
{
	double part = (double)(r->size - 1) / r->size;

	if (strcmp(row->op, "broadcast") == 0) {
		return (double)row->bytes;
	}
	return (double)row->bytes * (strcmp(row->op, "allreduce") == 0 ? 2 * part : part);
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

static void bench_one(struct rank *r, const struct row *row)
{
	double t[MAX_REPS], begin, each;
	int reps;

	must_cuda(r, r->cu.MemsetD8Async(row->in, 0, row->bytes, r->stream), "cuMemsetD8Async");
	for (int i = 0; i < WARM; i++) {
		post(r, row);
		finish(r);
	}
	begin = now_us();
	post(r, row);
	finish(r);
	reps = agree(r, now_us() - begin);
	for (int i = 0; i < reps; i++) {
		must(roce_barrier(r->comm), "roce_barrier");
		begin = now_us();
		post(r, row);
		must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
		t[i] = now_us() - begin;
	}
	must(roce_barrier(r->comm), "roce_barrier");
	begin = now_us();
	for (int i = 0; i < ROW; i++) {
		post(r, row);
	}
	finish(r);
	each = (now_us() - begin) / ROW;
	qsort(t, (size_t)reps, sizeof(t[0]), compare);
	if (r->rank == 0) {
		printf("{\"op\": \"%s\", \"dtype\": \"%s\", \"bytes\": %zu, \"reps\": %d, "
		       "\"median_us\": %.1f, \"min_us\": %.1f, \"p99_us\": %.1f, \"row_us\": %.1f, "
		       "\"busbw_GBs\": %.3f}\n",
		       row->op, row->dtype == ROCE_F32 ? "f32" : "bf16", row->bytes, reps,
		       t[reps / 2], t[0], t[(size_t)(reps * 0.99)], each,
		       bus_bytes(r, row) / t[reps / 2] / 1e3);
	}
}

static void bench_op(struct rank *r, const char *op, CUdeviceptr base, const size_t *sizes, int n,
		     size_t max)
{
	struct row row = {.op = op, .in = base, .out = base + max};

	for (int i = 0; i < n; i++) {
		row.bytes = sizes[i];
		row.dtype = ROCE_F32;
		row.elem = 4;
		bench_one(r, &row);
		row.dtype = ROCE_BF16;
		row.elem = 2;
		bench_one(r, &row);
	}
}

/* Return: how many; ends the process if the text is not such a list. */
static int parse_sizes(const char *text, size_t *sizes, int max)
{
	for (int n = 0; n < max; n++) {
		size_t length = strcspn(text, ",");

		if (options_size(text, length, &sizes[n]) < 0 || sizes[n] > SIZE_LIMIT) {
			die("--sizes: '%.*s' is not a size of 0 to 64G bytes, such as 8, 64K or 1M",
			    (int)length, text);
		}
		if (text[length] == '\0') {
			return n + 1;
		}
		text += length + 1;
	}
	die("--sizes: up to %d sizes are allowed", max);
}

int run_bench(struct rank *r)
{
	size_t max = 0, sizes[32];
	char *ops = strdup(r->ops);
	struct memory m;
	int n = parse_sizes(r->sizes, sizes, ARRAY_SIZE(sizes));

	for (int i = 0; i < n; i++) {
		max = MAX(max, sizes[i]);
	}
	/* An all-gather of 8 bytes has a block of one element a rank all the same. */
	max = ALIGN_UP(max + (size_t)r->size * 8, 256);
	memory_new(r, MEMORY_VMM, 2 * max, &m);
	for (char *save, *op = strtok_r(ops, ",", &save); op; op = strtok_r(NULL, ",", &save)) {
		bench_op(r, op, m.base, sizes, n, max);
	}
	memory_free(r, &m);
	free(ops);
	return 0;
}
