/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Model tests: every collective, algorithm, layout and count through the simulator
 *
 * Each case runs twice with different orders of events and must give the same bits. The bytes on
 * the wire must be those of the algorithm, which for most is the optimum. Every case follows from
 * one seed: ROCECOMM_SEED=n repeats a run, ROCECOMM_MODEL_SCALE=0 leaves the large layouts out.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base.h"
#include "sim.h"

struct totals {
	unsigned int passed;
	unsigned int failed;
	uint64_t seed;
};

/* ---- layouts ------------------------------------------------------------------------------ */

enum { REGULAR, SCRAMBLED };

static const struct layout_case {
	const char *name;
	uint32_t nhosts;
	uint32_t ranks[8]; /* of each host; 0: as the first */
	int placement;
} layouts[] = {
	{"1x1", 1, {1}, REGULAR},
	{"1x4", 1, {4}, REGULAR},
	{"2x1", 2, {1}, REGULAR},
	{"2x4", 2, {4}, REGULAR},
	{"3 hosts 1/4/2", 3, {1, 4, 2}, REGULAR},
	{"4x1", 4, {1}, REGULAR},
	{"5x1", 5, {1}, REGULAR},
	{"8x2", 8, {2}, REGULAR},
	{"7 hosts unequal", 7, {3, 1, 2, 1, 4, 1, 2}, REGULAR},
	{"4 hosts scrambled", 4, {3, 2, 4, 1}, SCRAMBLED},
	{"6 hosts scrambled", 6, {2, 1, 3, 2, 1, 2}, SCRAMBLED},
};

/* Ranks by host in order, or shuffled. */
static struct coll_layout *make_layout(uint32_t nhosts, const uint32_t *ranks, int placement,
				       uint64_t seed)
{
	struct coll_layout *layout = NULL;
	uint32_t nranks = 0;
	uint32_t *host_of;

	for (uint32_t h = 0; h < nhosts; h++) {
		nranks += ranks[h];
	}
	host_of = calloc(nranks, sizeof(*host_of));
	if (!host_of) {
		abort();
	}
	for (uint32_t h = 0, r = 0; h < nhosts; h++) {
		for (uint32_t k = 0; k < ranks[h]; k++) {
			host_of[r++] = h;
		}
	}
	for (uint32_t r = nranks; placement == SCRAMBLED && r > 1; r--) {
		uint32_t other = (uint32_t)(sim_hash(seed, 100, r, 0) % r);
		uint32_t host = host_of[r - 1];

		host_of[r - 1] = host_of[other];
		host_of[other] = host;
	}
	if (coll_layout_new(host_of, nranks, nhosts, &layout)) {
		abort();
	}
	free(host_of);
	return layout;
}

static struct coll_layout *layout_of_case(const struct layout_case *l, uint64_t seed)
{
	uint32_t ranks[8];

	for (uint32_t h = 0; h < l->nhosts; h++) {
		ranks[h] = l->ranks[h] ? l->ranks[h] : l->ranks[0];
	}
	return make_layout(l->nhosts, ranks, l->placement, seed);
}

/* ---- bytes on the wire -------------------------------------------------------------------- */

static uint64_t log2_floor(uint64_t x)
{
	return 63 - (uint64_t)__builtin_clzll(x);
}

/* Elements that all hosts together send. */
static uint64_t expected_elems(const struct sim_config *c, const struct sim_result *r)
{
	uint64_t hosts = c->layout->nhosts;
	uint64_t pairs = 1ull << log2_floor(hosts);

	switch (c->kind) {
	case COLL_ALLREDUCE:
		if (c->algo == COLL_ALGO_DIRECT) {
			return hosts * (hosts - 1) * c->count;
		}
		if (c->algo == COLL_ALGO_DOUBLING) {
			return (pairs * log2_floor(hosts) + 2 * (hosts - pairs)) * c->count;
		}
		return 2 * (hosts - 1) * c->count;
	case COLL_REDUCE:
	case COLL_BROADCAST:
		return (hosts - 1) * c->count;
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
		return (hosts - 1) * r->elems_total;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		return (hosts - 1) * r->elems_total +
		       (c->algo == COLL_ALGO_HALVING ? r->elems_folded : 0);
	case COLL_GATHER:
	case COLL_GATHERV:
	case COLL_SCATTER:
	case COLL_SCATTERV:
		return r->elems_remote;
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		return r->elems_crossing;
	default:
		return 0;
	}
}

static const char *check_bytes(const struct sim_config *c, const struct sim_result *r)
{
	uint64_t esize = c->floats ? 4 : 8;
	uint64_t hosts = c->layout->nhosts;

	if (r->wire_bytes != expected_elems(c, r) * esize) {
		return "not the number of bytes of the algorithm";
	}
	/* Ring: 2 (H - 1) / H of the vector from every host, but for parts of one element more. */
	if (c->kind == COLL_ALLREDUCE && c->algo == COLL_ALGO_RING &&
	    r->most_sent - r->least_sent > 2 * esize * r->segments) {
		return "some hosts of a ring send more than others";
	}
	if (c->kind == COLL_ALLREDUCE && c->algo == COLL_ALGO_HALVING && !(hosts & (hosts - 1)) &&
	    r->most_sent - r->least_sent > 2 * log2_floor(hosts) * esize * r->segments) {
		return "some hosts of halving-doubling send more than others";
	}
	return NULL;
}

/* ---- cases -------------------------------------------------------------------------------- */

static void report_failure(struct totals *t, const struct sim_config *c, const char *layout,
			   const char *why)
{
	t->failed++;
	printf("FAILED: %s %s on %s, root %u, count %" PRIu64 ", %s, place %d%s, chunk %" PRIu64
	       ", window %u, seed %" PRIu64 ": %s\n",
	       coll_kind_name(c->kind), coll_algo_name(c->algo), layout, c->root, c->count,
	       c->floats ? "f32" : "i64", c->place, c->premul ? ", premul" : "", c->chunk,
	       c->window, c->seed, why);
}

static void run_case(struct totals *t, const struct sim_config *c, const char *layout, int runs)
{
	struct sim_result first = {0};
	char why[256] = "";

	for (int run = 0; run < runs; run++) {
		struct sim_result result;
		const char *wrong;

		if (sim_run(c, sim_hash(c->seed, 200, (uint64_t)run, 0), &result, why,
			    sizeof(why))) {
			report_failure(t, c, layout, why);
			return;
		}
		wrong = check_bytes(c, &result);
		if (!wrong && run > 0 && result.digest != first.digest) {
			wrong = "two runs differ";
		}
		if (wrong) {
			report_failure(t, c, layout, wrong);
			return;
		}
		first = result;
	}
	t->passed++;
}

/* Every variation of one collective by one algorithm for one count and root. */
static void run_variations(struct totals *t, struct sim_config c, const char *layout)
{
	bool reduces = coll_kind_reduces(c.kind);
	static const uint64_t chunks[] = {1, 600, 5000, 1 << 20};

	for (int place = SIM_OUT_OF_PLACE; place <= SIM_MIXED; place++) {
		for (int type = 0; type < (reduces ? 4 : 1); type++) {
			uint64_t x = sim_hash(t->seed, 300, t->passed + t->failed, 0);

			c.place = (enum sim_place)place;
			c.floats = type & 1;
			c.premul = type & 2;
			c.seed = x;
			c.chunk = chunks[x % ARRAY_SIZE(chunks)];
			c.max_temp = x / 8 % 2 ? 1 << 20 : 4096;
			c.window = 1 + x / 16 % 4;
			run_case(t, &c, layout, 2);
		}
	}
}

static void run_layout(struct totals *t, const struct layout_case *l)
{
	static const uint64_t counts[] = {0, 1, 2, 31, 1009};
	struct coll_layout *layout = layout_of_case(l, t->seed);

	for (unsigned int kind = 0; kind < COLL_SEND; kind++) {
		uint32_t roots[] = {0, layout->nranks - 1, layout->nranks / 2};
		uint32_t nroots = coll_kind_has_root(kind) ? MIN(layout->nranks, 3) : 1;

		for (unsigned int algo = COLL_ALGO_LOCAL; algo < COLL_ALGO_COUNT_; algo++) {
			if (!coll_supports(kind, algo, layout->nhosts)) {
				continue;
			}
			for (size_t i = 0; i < nroots * ARRAY_SIZE(counts); i++) {
				struct sim_config c = {
					.layout = layout,
					.kind = kind,
					.algo = algo,
					.root = roots[i / ARRAY_SIZE(counts)],
					.count = counts[i % ARRAY_SIZE(counts)],
				};

				run_variations(t, c, l->name);
			}
		}
	}
	coll_layout_free(layout);
}

/* ---- scale -------------------------------------------------------------------------------- */

static const struct {
	enum coll_kind kind;
	enum coll_algo algo;
	uint32_t nhosts;
	uint64_t count;
} large[] = {
	{COLL_ALLREDUCE, COLL_ALGO_DOUBLING, 1000, 3},
	{COLL_ALLREDUCE, COLL_ALGO_HALVING, 1000, 1200},
	{COLL_ALLREDUCE, COLL_ALGO_TREE, 1000, 20},
	{COLL_ALLREDUCE, COLL_ALGO_RING, 1000, 1100},
	{COLL_REDUCE, COLL_ALGO_TREE, 1000, 20},
	{COLL_BROADCAST, COLL_ALGO_TREE, 1000, 20},
	{COLL_REDUCE, COLL_ALGO_RING, 1000, 40},
	{COLL_BROADCAST, COLL_ALGO_RING, 1000, 40},
	{COLL_ALLGATHER, COLL_ALGO_DOUBLING, 1000, 1},
	{COLL_ALLGATHER, COLL_ALGO_RING, 1000, 1},
	{COLL_REDUCE_SCATTER, COLL_ALGO_HALVING, 1000, 1},
	{COLL_REDUCE_SCATTER, COLL_ALGO_RING, 1000, 1},
	{COLL_ALLTOALL, COLL_ALGO_PAIRWISE, 500, 1},
	{COLL_GATHERV, COLL_ALGO_PAIRWISE, 1000, 5},
	{COLL_SCATTER, COLL_ALGO_PAIRWISE, 1000, 5},
	{COLL_BARRIER, COLL_ALGO_DOUBLING, 1000, 0},
	{COLL_BARRIER, COLL_ALGO_TREE, 1000, 0},
	{COLL_ALLREDUCE, COLL_ALGO_DOUBLING, 4096, 3},
	{COLL_ALLREDUCE, COLL_ALGO_HALVING, 4096, 1024},
	{COLL_ALLREDUCE, COLL_ALGO_TREE, 4096, 20},
	{COLL_REDUCE, COLL_ALGO_TREE, 4096, 20},
	{COLL_BROADCAST, COLL_ALGO_TREE, 4096, 20},
	{COLL_REDUCE, COLL_ALGO_RING, 4096, 20},
	{COLL_BROADCAST, COLL_ALGO_RING, 4096, 20},
	{COLL_BARRIER, COLL_ALGO_DOUBLING, 4096, 0},
	{COLL_BARRIER, COLL_ALGO_TREE, 4096, 0},
};

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct coll_layout *scrambled_hosts(uint32_t nhosts, uint64_t seed)
{
	uint32_t *ranks = calloc(nhosts, sizeof(*ranks));
	struct coll_layout *layout;

	if (!ranks) {
		abort();
	}
	for (uint32_t h = 0; h < nhosts; h++) {
		ranks[h] = 1;
	}
	layout = make_layout(nhosts, ranks, SCRAMBLED, seed);
	free(ranks);
	return layout;
}

static void run_large(struct totals *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(large); i++) {
		uint32_t nhosts = large[i].nhosts;
		struct coll_layout *layout = scrambled_hosts(nhosts, t->seed);
		struct sim_config c = {
			.layout = layout,
			.kind = large[i].kind,
			.algo = large[i].algo,
			.root = coll_kind_has_root(large[i].kind) ? nhosts / 3 : 0,
			.count = large[i].count,
			.place = SIM_MIXED,
			.chunk = 1 << 16,
			.max_temp = 1 << 24,
			.window = 2,
			.seed = sim_hash(t->seed, 400, i, 0),
		};
		double began = now();
		char name[32];

		snprintf(name, sizeof(name), "%ux1", nhosts);
		run_case(t, &c, name, 1);
		printf("  %-14s %-8s %5u hosts %6.2f s\n", coll_kind_name(c.kind),
		       coll_algo_name(c.algo), nhosts, now() - began);
		fflush(stdout);
		coll_layout_free(layout);
	}
}

int main(void)
{
	const char *seed = getenv("ROCECOMM_SEED");
	const char *scale = getenv("ROCECOMM_MODEL_SCALE");
	struct totals t = {.seed = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL)};

	printf("ROCECOMM_SEED=%" PRIu64 "\n", t.seed);
	for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
		unsigned int before = t.passed;

		run_layout(&t, &layouts[i]);
		printf("  %-20s %6u cases\n", layouts[i].name, t.passed - before);
		fflush(stdout);
	}
	if (!scale || strcmp(scale, "0") != 0) {
		run_large(&t);
	}
	printf("%u passed, %u failed\n", t.passed, t.failed);
	return t.failed ? 1 : 0;
}
