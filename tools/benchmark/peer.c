/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer: implementation
 *
 * Values are small whole numbers that depend on rank, element and round, so that every sum is exact
 * and a lost, doubled or misplaced block shows. They repeat with period VALUES, so that what a sum
 * must be is looked up rather than computed.
 *
 * Thread: main      Owns: see peer.h      Locks: none
 */
#include "tools/benchmark/peer.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base.h"
#include "tools/benchmark/work.h"

#define VALUES 31
#define RANK_STEP 13
#define REPS_MAX 1000000

struct options {
	int hosts;
	const char *variant;
	const char *memory;
	size_t products;
};

struct bench_case {
	enum coll coll;
	size_t bytes;
	unsigned int inflight;
	unsigned int reps;
	unsigned int warmup;
};

struct run {
	struct peer *peer;
	const struct options *options;
	const struct bench_case *c;
	struct work *work;
	size_t count; /* what post() gets */
	size_t send_count;
	size_t recv_count;
	float *send[PEER_INFLIGHT_MAX];
	float *recv[PEER_INFLIGHT_MAX];
	float sums[VALUES]; /* of all ranks, by rank 0's value */
};

static const char *const coll_names[COLL_MAX] = {
	[COLL_ALLREDUCE] = "allreduce",
	[COLL_ALLGATHER] = "allgather",
	[COLL_REDUCE_SCATTER] = "reduce_scatter",
	[COLL_BROADCAST] = "broadcast",
	[COLL_REDUCE] = "reduce",
	[COLL_GATHER] = "gather",
	[COLL_SCATTER] = "scatter",
	[COLL_ALLTOALL] = "alltoall",
	[COLL_BARRIER] = "barrier",
	[COLL_SENDRECV] = "sendrecv",
	[COLL_BESIDE] = "beside",
	[COLL_COMM] = "comm",
};

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static bool coll_has_blocks(enum coll coll)
{
	return coll == COLL_ALLGATHER || coll == COLL_REDUCE_SCATTER || coll == COLL_GATHER ||
	       coll == COLL_SCATTER || coll == COLL_ALLTOALL;
}

/* Bytes over the busiest link for each byte of algbw, as nccl-tests counts them. */
static double coll_bus_factor(enum coll coll, int size)
{
	if (coll == COLL_ALLREDUCE || coll == COLL_BESIDE) {
		return 2.0 * (size - 1) / size;
	}
	return coll_has_blocks(coll) ? (double)(size - 1) / size : 1.0;
}

/* ---- values --------------------------------------------------------------------------------- */

static unsigned int value_at(int rank, size_t element, unsigned int round)
{
	return (unsigned int)((element + (size_t)rank * RANK_STEP + (size_t)round * 7) % VALUES);
}

static void run_sums(struct run *run)
{
	for (unsigned int v = 0; v < VALUES; v++) {
		run->sums[v] = 0;
		for (int r = 0; r < run->peer->size; r++) {
			run->sums[v] += (float)((v + (unsigned int)r * RANK_STEP) % VALUES);
		}
	}
}

static void run_fill(struct run *run, unsigned int round)
{
	int rank = run->peer->rank;
	bool broadcast = run->c->coll == COLL_BROADCAST;

	for (unsigned int s = 0; s < run->c->inflight; s++) {
		float *data = broadcast ? run->recv[s] : run->send[s];
		size_t n = broadcast ? run->recv_count : run->send_count;
		unsigned int v = value_at(rank, s, round);

		if (!broadcast) {
			memset(run->recv[s], 0xff, run->recv_count * sizeof(float));
		}
		for (size_t i = 0; i < n; i++) {
			data[i] = broadcast && rank != 0 ? -1 : (float)v;
			v = v + 1 == VALUES ? 0 : v + 1;
		}
	}
}

/* Elements [0, n) of @data against the values of @rank from @element on; @sum: of all ranks. */
static size_t values_differ(const struct run *run, const float *data, size_t n, int rank,
			    size_t element, unsigned int round, bool sum)
{
	unsigned int v = value_at(rank, element, round);
	size_t bad = 0;

	for (size_t i = 0; i < n; i++) {
		bad += data[i] != (sum ? run->sums[v] : (float)v);
		v = v + 1 == VALUES ? 0 : v + 1;
	}
	return bad;
}

static size_t slot_differs(const struct run *run, unsigned int s, unsigned int round)
{
	const float *recv = run->recv[s];
	size_t count = run->count, bad = 0;
	int rank = run->peer->rank;

	switch (run->c->coll) {
	case COLL_ALLREDUCE:
	case COLL_BESIDE:
		return values_differ(run, recv, count, 0, s, round, true);
	case COLL_REDUCE:
		return rank ? 0 : values_differ(run, recv, count, 0, s, round, true);
	case COLL_REDUCE_SCATTER:
		return values_differ(run, recv, count, 0, s + (size_t)rank * count, round, true);
	case COLL_BROADCAST:
		return values_differ(run, recv, count, 0, s, round, false);
	case COLL_SENDRECV:
		return values_differ(run, recv, count, rank ^ 1, s, round, false);
	case COLL_SCATTER:
		return values_differ(run, recv, count, 0, s + (size_t)rank * count, round, false);
	case COLL_ALLGATHER:
	case COLL_GATHER:
	case COLL_ALLTOALL:
		for (int r = 0; r < run->peer->size; r++) {
			size_t from = run->c->coll == COLL_ALLTOALL ? (size_t)rank * count : 0;

			if (run->c->coll == COLL_GATHER && rank != 0) {
				break;
			}
			bad += values_differ(run, recv + (size_t)r * count, count, r, s + from,
					     round, false);
		}
		return bad;
	default:
		return 0;
	}
}

/* ---- one case ------------------------------------------------------------------------------- */

static int run_once(struct run *run)
{
	const struct bench_case *c = run->c;
	int r;

	if (c->coll == COLL_COMM) {
		return run->peer->new_comm(run->peer);
	}
	for (unsigned int s = 0; s < c->inflight; s++) {
		if (c->coll == COLL_BESIDE) {
			work_run(run->work, run->options->products);
		}
		r = run->peer->post(run->peer, c->coll == COLL_BESIDE ? COLL_ALLREDUCE : c->coll,
				    run->send[s], run->recv[s], run->count, s, c->inflight == 1);
		if (r == 0 && c->coll == COLL_BESIDE) {
			r = run->peer->poll(run->peer, s + 1);
		}
		if (r != 0) {
			return r;
		}
	}
	return run->peer->wait(run->peer, c->inflight);
}

/* Runs once with known values; *ret_bad: elements that are wrong on any rank. */
static int run_verify(struct run *run, unsigned int round, double *ret_bad)
{
	double bad = 0;
	int r;

	run_fill(run, round);
	r = run_once(run);
	if (r != 0) {
		return r;
	}
	for (unsigned int s = 0; s < run->c->inflight; s++) {
		bad += (double)slot_differs(run, s, round);
	}
	r = run->peer->max(run->peer, &bad, 1);
	if (r == 0) {
		*ret_bad = bad;
	}
	return r;
}

static int run_timed(struct run *run, double *times)
{
	int r;

	for (unsigned int i = 0; i < run->c->warmup; i++) {
		r = run_once(run);
		if (r != 0) {
			return r;
		}
	}
	r = run->peer->barrier(run->peer);
	for (unsigned int i = 0; r == 0 && i < run->c->reps; i++) {
		double begin = now_us();

		r = run_once(run);
		times[i] = now_us() - begin;
	}
	return r != 0 ? r : run->peer->max(run->peer, times, run->c->reps);
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* By nearest rank, as rocebench has it; @per_mille of @n times. */
static double quantile(const double *sorted, size_t n, size_t per_mille)
{
	return sorted[(n * per_mille + 999) / 1000 - 1];
}

static void run_print(const struct run *run, double *times, bool verified)
{
	const struct bench_case *c = run->c;
	const struct options *o = run->options;
	size_t n = c->reps;
	double median, bandwidth;

	qsort(times, n, sizeof(*times), less);
	median = n % 2 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
	bandwidth = (double)c->bytes * c->inflight / median * 1e-3;
	printf("{\"system\":\"%s\",\"variant\":\"%s\",\"coll\":\"%s\",\"bytes\":%zu,"
	       "\"dtype\":\"f32\",\"op\":\"sum\",\"hosts\":%d,\"ranks\":%d,\"inflight\":%u,"
	       "\"memory\":\"%s\",\"inplace\":false,\"reps\":%u,\"min_us\":%.3f,"
	       "\"median_us\":%.3f,\"p99_us\":%.3f,\"p999_us\":%.3f,\"algbw_GBps\":%.6f,"
	       "\"busbw_GBps\":%.6f,\"verified\":%s}\n",
	       run->peer->system, o->variant, coll_names[c->coll], c->bytes, o->hosts,
	       run->peer->size, c->inflight, o->memory, c->reps, times[0], median,
	       quantile(times, n, 990), quantile(times, n, 999), bandwidth,
	       bandwidth * coll_bus_factor(c->coll, run->peer->size), verified ? "true" : "false");
	fflush(stdout);
}

static int run_case(struct run *run)
{
	cleanup_free double *times = calloc(run->c->reps, sizeof(*times));
	double before, after;
	int r;

	if (!times) {
		fprintf(stderr, "%s: no memory for %u times\n", run->peer->system, run->c->reps);
		return 1;
	}
	run_sums(run);
	r = run_verify(run, 1, &before);
	if (r == 0) {
		r = run_timed(run, times);
	}
	if (r == 0) {
		r = run_verify(run, 2, &after);
	}
	if (r != 0) {
		return r;
	}
	if (run->peer->rank == 0) {
		run_print(run, times, before + after == 0);
	}
	if (before + after != 0) {
		fprintf(stderr, "%s: wrong elements in %s\n", run->peer->system,
			coll_names[run->c->coll]);
		return 1;
	}
	return 0;
}

static void run_deinit(struct run *run)
{
	for (unsigned int s = 0; s < run->c->inflight; s++) {
		run->peer->free(run->peer, run->send[s]);
		run->peer->free(run->peer, run->recv[s]);
	}
	run->work = work_free(run->work);
}

static int run_init(struct run *run)
{
	enum coll coll = run->c->coll;
	size_t elements = run->c->bytes / sizeof(float), size = (size_t)run->peer->size;

	run->count = coll_has_blocks(coll) ? elements / size : elements;
	run->send_count = coll == COLL_ALLGATHER || coll == COLL_GATHER ? run->count : elements;
	run->recv_count =
		coll == COLL_REDUCE_SCATTER || coll == COLL_SCATTER ? run->count : elements;
	if (coll_has_blocks(coll) && (elements % size != 0 || elements == 0)) {
		fprintf(stderr, "%s: %zu bytes are no whole elements for each of %zu ranks\n",
			coll_names[coll], run->c->bytes, size);
		return 1;
	}
	run->work = work_new();
	for (unsigned int s = 0; s < run->c->inflight; s++) {
		run->send[s] = run->peer->alloc(run->peer, run->send_count * sizeof(float) + 1);
		run->recv[s] = run->peer->alloc(run->peer, run->recv_count * sizeof(float) + 1);
		if (!run->send[s] || !run->recv[s] || !run->work) {
			fprintf(stderr, "%s: no memory for %zu bytes\n", run->peer->system,
				run->c->bytes);
			return 1;
		}
	}
	return 0;
}

/* ---- the command line ----------------------------------------------------------------------- */

static int case_parse(const char *text, struct bench_case *ret_case)
{
	struct bench_case c = {0};
	char name[32];
	int used = -1;

	if (sscanf(text, "%31[a-z_]:%zu:%u:%u:%u%n", name, &c.bytes, &c.inflight, &c.reps,
		   &c.warmup, &used) == 5 &&
	    used >= 0 && text[used] == '\0' && c.inflight >= 1 && c.inflight <= PEER_INFLIGHT_MAX &&
	    c.reps >= 1 && c.reps <= REPS_MAX) {
		for (size_t i = 0; i < COLL_MAX; i++) {
			if (strcmp(name, coll_names[i]) == 0) {
				c.coll = (enum coll)i;
				*ret_case = c;
				return 0;
			}
		}
	}
	fprintf(stderr, "not a case: %s (COLL:BYTES:INFLIGHT:REPS:WARMUP)\n", text);
	return 1;
}

static int option_parse(struct options *o, const char *text)
{
	if (strncmp(text, "--hosts=", 8) == 0) {
		o->hosts = atoi(text + 8);
	} else if (strncmp(text, "--variant=", 10) == 0) {
		o->variant = text + 10;
	} else if (strncmp(text, "--memory=", 9) == 0) {
		o->memory = text + 9;
	} else if (strncmp(text, "--work=", 7) == 0) {
		o->products = strtoull(text + 7, NULL, 10);
	} else {
		fprintf(stderr, "unknown option %s\n", text);
		return 1;
	}
	return 0;
}

int peer_main(struct peer *peer, int argc, char **argv)
{
	struct options options = {.hosts = 1, .variant = "", .memory = "plain"};

	for (int i = 1; i < argc; i++) {
		cleanup_free struct run *run = calloc(1, sizeof(*run));
		struct bench_case c;
		int r;

		if (strncmp(argv[i], "--", 2) == 0) {
			if (option_parse(&options, argv[i]) != 0) {
				return 2;
			}
			continue;
		}
		if (!run || case_parse(argv[i], &c) != 0) {
			return 2;
		}
		run->peer = peer;
		run->options = &options;
		run->c = &c;
		r = run_init(run);
		if (r == 0) {
			r = run_case(run);
		}
		run_deinit(run);
		if (r != 0) {
			return 1;
		}
	}
	return 0;
}
