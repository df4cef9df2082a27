/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank check: every operation on every kind of memory, with and without a stream
 *
 * Values are small whole numbers that all types hold exactly, each different from its neighbours
 * and from the other ranks', so that the sums are exact in any order. Around each result are
 * canaries.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "rank.h"

#define CANARY 64
#define FILL 0xA5

struct test {
	struct rank *r;
	enum coll_kind kind;
	enum dtype dtype;
	enum memory_kind from, to;
	size_t count; /* elements of a block */
	size_t skew;  /* elements in front of both sides */
	bool streamed;
	size_t elem;
	int root;
};

static unsigned int value(int rank, size_t i)
{
	return (unsigned int)((i * 5 + (size_t)rank * 3 + i / 11) % 8);
}

/* A small whole number as the bits of a type. */
static void encode(enum dtype dtype, unsigned int v, uint8_t *out)
{
	float f = (float)v;
	uint32_t bits;
	uint16_t half;
	double d = v;

	memcpy(&bits, &f, sizeof(bits));
	switch (dtype) {
	case DTYPE_F32:
		memcpy(out, &f, 4);
		break;
	case DTYPE_F64:
		memcpy(out, &d, 8);
		break;
	case DTYPE_BF16:
		half = (uint16_t)(bits >> 16);
		memcpy(out, &half, 2);
		break;
	case DTYPE_F16:
		half = v == 0 ? 0
			      : (uint16_t)((((bits >> 23) - 127 + 15) << 10) |
					   ((bits >> 13) & 0x3ff));
		memcpy(out, &half, 2);
		break;
	default: /* integers */
		memset(out, 0, dtype_size(dtype));
		out[0] = (uint8_t)v;
		if (dtype_size(dtype) > 1) {
			out[1] = (uint8_t)(v >> 8);
		}
		break;
	}
}

/* Elements that a rank gives and gets. */
static void extents(const struct test *t, size_t *send, size_t *recv)
{
	size_t n = (size_t)t->r->size, c = t->count;
	bool root = t->r->rank == t->root;

	*send = c;
	*recv = c;
	switch (t->kind) {
	case COLL_REDUCE:
		*recv = root ? c : 0;
		break;
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
		*recv = n * c;
		break;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		*send = n * c;
		break;
	case COLL_GATHER:
	case COLL_GATHERV:
		*recv = root ? n * c : 0;
		break;
	case COLL_SCATTER:
	case COLL_SCATTERV:
		*send = root ? n * c : 0;
		break;
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		*send = n * c;
		*recv = n * c;
		break;
	default:
		break;
	}
}

/* What element @i of this rank's result must be. */
static unsigned int expected(const struct test *t, size_t i)
{
	size_t n = (size_t)t->r->size, c = t->count, me = (size_t)t->r->rank;
	unsigned int sum = 0;

	switch (t->kind) {
	case COLL_ALLREDUCE:
	case COLL_REDUCE:
		for (size_t k = 0; k < n; k++) {
			sum += value((int)k, i);
		}
		return sum;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		for (size_t k = 0; k < n; k++) {
			sum += value((int)k, me * c + i);
		}
		return sum;
	case COLL_BROADCAST:
		return value(t->root, i);
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
	case COLL_GATHER:
	case COLL_GATHERV:
		return value((int)(i / c), i % c);
	case COLL_SCATTER:
	case COLL_SCATTERV:
		return value(t->root, me * c + i);
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		return value((int)(i / c), me * c + i % c);
	default: /* send to the next, receive from the one before */
		return value((int)((me + n - 1) % n), i);
	}
}

static void post_stream(struct test *t, void *s, void *d, const size_t *counts,
			const size_t *displs)
{
	struct rank *r = t->r;
	void *st = r->stream;
	size_t c = t->count;
	int ty = (int)t->dtype, rc = ROCE_OK;

	switch (t->kind) {
	case COLL_ALLREDUCE:
		rc = roce_allreduce_stream(s, d, c, ty, ROCE_SUM, r->comm, st, NULL);
		break;
	case COLL_REDUCE:
		rc = roce_reduce_stream(s, d, c, ty, ROCE_SUM, t->root, r->comm, st, NULL);
		break;
	case COLL_BROADCAST:
		rc = roce_broadcast_stream(d, c, ty, t->root, r->comm, st, NULL);
		break;
	case COLL_ALLGATHER:
		rc = roce_allgather_stream(s, d, c, ty, r->comm, st, NULL);
		break;
	case COLL_REDUCE_SCATTER:
		rc = roce_reduce_scatter_stream(s, d, c, ty, ROCE_SUM, r->comm, st, NULL);
		break;
	case COLL_GATHER:
		rc = roce_gather_stream(s, d, c, ty, t->root, r->comm, st, NULL);
		break;
	case COLL_SCATTER:
		rc = roce_scatter_stream(s, d, c, ty, t->root, r->comm, st, NULL);
		break;
	case COLL_ALLTOALL:
		rc = roce_alltoall_stream(s, d, c, ty, r->comm, st, NULL);
		break;
	case COLL_ALLGATHERV:
		rc = roce_allgatherv_stream(s, c, d, counts, displs, ty, r->comm, st, NULL);
		break;
	case COLL_REDUCE_SCATTERV:
		rc = roce_reduce_scatterv_stream(s, d, counts, ty, ROCE_SUM, r->comm, st, NULL);
		break;
	case COLL_GATHERV:
		rc = roce_gatherv_stream(s, c, d, counts, displs, ty, t->root, r->comm, st, NULL);
		break;
	case COLL_SCATTERV:
		rc = roce_scatterv_stream(s, counts, displs, d, c, ty, t->root, r->comm, st, NULL);
		break;
	case COLL_ALLTOALLV:
		rc = roce_alltoallv_stream(s, counts, displs, d, counts, displs, ty, r->comm, st,
					   NULL);
		break;
	default:
		must(roce_group_start(r->client), "roce_group_start");
		must(roce_send_stream(s, c, ty, (r->rank + 1) % r->size, r->comm, st, NULL),
		     "roce_send_stream");
		must(roce_recv_stream(d, c, ty, (r->rank + r->size - 1) % r->size, r->comm, st,
				      NULL),
		     "roce_recv_stream");
		rc = roce_group_end(r->client);
		break;
	}
	must(rc, coll_kind_name(t->kind));
}

/* Without a stream, those that differ in what they do with memory. Return: false: not this one. */
static bool post_plain(struct test *t, void *s, void *d)
{
	struct rank *r = t->r;
	int ty = (int)t->dtype, rc;

	switch (t->kind) {
	case COLL_ALLREDUCE:
		rc = roce_allreduce(s, d, t->count, ty, ROCE_SUM, r->comm);
		break;
	case COLL_BROADCAST:
		rc = roce_broadcast(d, t->count, ty, t->root, r->comm);
		break;
	case COLL_ALLGATHER:
		rc = roce_allgather(s, d, t->count, ty, r->comm);
		break;
	case COLL_ALLTOALL:
		rc = roce_alltoall(s, d, t->count, ty, r->comm);
		break;
	default:
		return false;
	}
	must(rc, coll_kind_name(t->kind));
	return true;
}

static void verify(const struct test *t, const uint8_t *out, size_t recv)
{
	uint8_t want[8];

	for (size_t i = 0; i < CANARY; i++) {
		if (out[i] != FILL || out[CANARY + recv * t->elem + i] != FILL) {
			die("%s %s from %s to %s: bytes outside the result were written",
			    coll_kind_name(t->kind), dtype_name(t->dtype), memory_name(t->from),
			    memory_name(t->to));
		}
	}
	for (size_t i = 0; i < recv; i++) {
		encode(t->dtype, expected(t, i), want);
		if (memcmp(want, out + CANARY + i * t->elem, t->elem) != 0) {
			die("%s %s x %zu (+%zu) from %s to %s%s: element %zu is wrong: first byte "
			    "%02x, %02x is due",
			    coll_kind_name(t->kind), dtype_name(t->dtype), t->count, t->skew,
			    memory_name(t->from), memory_name(t->to), t->streamed ? ", stream" : "",
			    i, out[CANARY + i * t->elem], want[0]);
		}
	}
}

/* One operation: inputs up, run, results down. */
static void run_one(struct test *t, const struct memory *from, const struct memory *to)
{
	struct rank *r = t->r;
	size_t send, recv, *counts, *displs, n = (size_t)r->size;
	size_t bytes;
	uint8_t *in, *out;
	CUdeviceptr s, d;

	extents(t, &send, &recv);
	bytes = recv * t->elem + 2 * CANARY;
	in = malloc(send * t->elem + 1);
	out = malloc(bytes);
	counts = malloc(2 * n * sizeof(*counts));
	displs = counts + n;
	/* Odd offsets, so that pieces and pages are crossed. */
	s = from->base + t->skew * t->elem;
	d = to->base + to->size / 2 + t->skew * t->elem;
	for (size_t i = 0; i < send; i++) {
		encode(t->dtype, value(r->rank, i), in + i * t->elem);
	}
	for (size_t i = 0; i < n; i++) {
		counts[i] = t->count;
		displs[i] = i * t->count;
	}
	memset(out, FILL, bytes);
	must_cuda(r, r->cu.Memcpy(d - CANARY, (uintptr_t)out, bytes), "clearing the result");
	if (t->kind == COLL_BROADCAST && r->rank == t->root) {
		must_cuda(r, r->cu.Memcpy(d, (uintptr_t)in, send * t->elem), "input");
	} else if (send > 0) {
		must_cuda(r, r->cu.Memcpy(s, (uintptr_t)in, send * t->elem), "input");
	}
	must_cuda(r, r->cu.CtxSynchronize(), "cuCtxSynchronize");
	if (t->streamed) {
		post_stream(t, (void *)(uintptr_t)s, (void *)(uintptr_t)d, counts, displs);
		must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
	} else if (!post_plain(t, (void *)(uintptr_t)s, (void *)(uintptr_t)d)) {
		recv = 0; /* nothing ran: the canaries are whole */
		bytes = 2 * CANARY;
	}
	must_cuda(r, r->cu.Memcpy((uintptr_t)out, d - CANARY, bytes), "reading the result");
	verify(t, out, recv);
	r->cases++;
	free(counts);
	free(out);
	free(in);
}

static void run_kinds(struct rank *r, struct test *t, const struct memory *from,
		      const struct memory *to)
{
	for (unsigned int kind = 0; kind <= COLL_SEND; kind++) {
		if (kind == COLL_BARRIER) {
			continue;
		}
		t->kind = (enum coll_kind)kind;
		for (t->root = 0; t->root<r->size; t->root += r->size> 1 ? r->size - 1 : 1) {
			t->streamed = true;
			run_one(t, from, to);
			t->streamed = false;
			run_one(t, from, to);
			if (!coll_kind_has_root(kind)) {
				break;
			}
		}
	}
}

int run_check(struct rank *r)
{
	static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I32};
	static const size_t counts[] = {1, 129, 5003, 70001};
	struct memory memory[MEMORY_KINDS];
	size_t size = ((size_t)r->size * 70001 * 4 + 4096) * 2;
	char text[300], err[400] = "";

	for (unsigned int k = 0; k < MEMORY_KINDS; k++) {
		memory_new(r, (enum memory_kind)k, size, &memory[k]);
		must(roce_mem_path(r->client, (void *)(uintptr_t)memory[k].base, text,
				   sizeof(text)),
		     "roce_mem_path");
		printf("path %s: %s\n", memory_name((enum memory_kind)k), text);
	}
	for (unsigned int a = 0; a < MEMORY_KINDS; a++) {
		for (unsigned int i = 0; i < ARRAY_SIZE(dtypes); i++) {
			for (unsigned int c = 0; c < (r->brief ? 2u : ARRAY_SIZE(counts)); c++) {
				struct test t = {
					.r = r,
					.dtype = dtypes[i],
					.elem = dtype_size(dtypes[i]),
					.count = counts[c],
					.skew = 1 + 16 * i + c,
					.from = (enum memory_kind)a,
					/* The other kind, now and then. */
					.to = (enum memory_kind)((a + (i + c) % 2) % MEMORY_KINDS),
				};

				t.skew += CANARY / t.elem;
				run_kinds(r, &t, &memory[a], &memory[t.to]);
			}
		}
	}
	must(roce_barrier_stream(r->comm, r->stream, NULL), "roce_barrier_stream");
	must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
	must(roce_comm_error(r->comm, err, sizeof(err)), "roce_comm_error");
	for (unsigned int k = 0; k < MEMORY_KINDS; k++) {
		memory_free(r, &memory[k]);
	}
	printf("{\"cases\": %ld}\n", r->cases);
	return 0;
}
