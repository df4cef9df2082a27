/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of rocebench: statistics, bandwidths, sizes, options, plans, and that its check bites
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tools/model/gpt2.h"
#include "tools/rocebench/options.h"
#include "tools/rocebench/plan.h"
#include "tools/rocebench/stats.h"
#include "tools/rocebench/values.h"
#include "tools/rocebench/verify.h"

#define RANKS 4

static bool near(double a, double b)
{
	return fabs(a - b) <= 1e-12 * fabs(b);
}

Test(stats, one_sample)
{
	double x[] = {7};
	struct stats s;

	stats_make(x, 1, &s);
	cr_assert(s.min == 7 && s.median == 7 && s.p99 == 7 && s.p999 == 7);
}

Test(stats, median_of_odd_and_even)
{
	double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 100};
	struct stats s;

	stats_make(odd, 3, &s);
	cr_assert(s.median == 5 && s.min == 1 && s.p99 == 9);
	stats_make(even, 4, &s);
	cr_assert_eq(s.median, 3.5);
}

Test(stats, percentiles_are_by_nearest_rank)
{
	double x[2000];
	struct stats s;

	for (int i = 0; i < 2000; i++) {
		x[i] = 2000 - i; /* 1 .. 2000, backwards */
	}
	stats_make(x, 1000, &s); /* 1001 .. 2000 */
	cr_assert_eq(s.p99, 1990);
	cr_assert_eq(s.p999, 1999);
	for (int i = 0; i < 2000; i++) {
		x[i] = i + 1;
	}
	stats_make(x, 2000, &s);
	cr_assert_eq(s.p99, 1980);
	cr_assert_eq(s.p999, 1998);
	cr_assert_eq(stats_percentile(x, 2000, 0), 1);
	cr_assert_eq(stats_percentile(x, 2000, 1), 2000);
	cr_assert_eq(stats_percentile(x, 999, 0.999), 999);
}

Test(stats, bandwidths)
{
	/* 1 GB in a tenth of a second by 4 ranks. */
	cr_assert(near(stats_algbw(1000000000, 0.1), 10));
	cr_assert(near(stats_busbw(1000000000, 0.1, STATS_BUS_TWICE, 4), 15));
	cr_assert(near(stats_busbw(1000000000, 0.1, STATS_BUS_SHARE, 4), 7.5));
	cr_assert(near(stats_busbw(1000000000, 0.1, STATS_BUS_ONE, 4), 10));
	cr_assert_eq(stats_busbw(1000000000, 0.1, STATS_BUS_NONE, 4), 0);
	cr_assert_eq(stats_busbw(1000000000, 0.1, STATS_BUS_TWICE, 1), 0);
	cr_assert_eq(stats_algbw(0, 0.1), 0);
	cr_assert_eq(stats_algbw(8, 0), 0);
}

Test(bench, factors_are_those_of_nccl_tests)
{
	cr_assert_eq(bench_get(BENCH_ALLREDUCE)->bus, STATS_BUS_TWICE);
	cr_assert_eq(bench_get(BENCH_RESNET50)->bus, STATS_BUS_TWICE);
	cr_assert_eq(bench_get(BENCH_ALLGATHER)->bus, STATS_BUS_SHARE);
	cr_assert_eq(bench_get(BENCH_REDUCE_SCATTER)->bus, STATS_BUS_SHARE);
	cr_assert_eq(bench_get(BENCH_ALLTOALL)->bus, STATS_BUS_SHARE);
	cr_assert_eq(bench_get(BENCH_GATHER)->bus, STATS_BUS_SHARE);
	cr_assert_eq(bench_get(BENCH_SCATTER)->bus, STATS_BUS_SHARE);
	cr_assert_eq(bench_get(BENCH_BROADCAST)->bus, STATS_BUS_ONE);
	cr_assert_eq(bench_get(BENCH_REDUCE)->bus, STATS_BUS_ONE);
	cr_assert_eq(bench_get(BENCH_SENDRECV)->bus, STATS_BUS_ONE);
	cr_assert_eq(bench_get(BENCH_BARRIER)->bus, STATS_BUS_NONE);
	cr_assert_eq(bench_find("step:moe", 8), BENCH_MOE);
	cr_assert_eq(bench_find("reduce", 6), BENCH_REDUCE);
	cr_assert_eq(bench_find("reduced", 7), BENCH_COUNT_);
}

static int size_of(const char *text, size_t *ret)
{
	return options_size(text, strlen(text), ret);
}

Test(options, sizes)
{
	size_t n;

	cr_assert(size_of("8", &n) == 0 && n == 8);
	cr_assert(size_of("64K", &n) == 0 && n == 65536);
	cr_assert(size_of("25m", &n) == 0 && n == 25u << 20);
	cr_assert(size_of("1024G", &n) == 0 && n == (size_t)1 << 40);
	cr_assert(size_of("1025G", &n) < 0);
	cr_assert(size_of("99999999999999999999", &n) < 0);
	cr_assert(size_of("", &n) < 0);
	cr_assert(size_of("K", &n) < 0);
	cr_assert(size_of("4KB", &n) < 0);
	cr_assert(size_of("-4", &n) < 0);
	cr_assert(size_of("4T", &n) < 0);
}

static int parse(const char *line, struct options *ret, int *ret_exit)
{
	char text[256], *argv[32] = {NULL}, *save = NULL;
	int argc = 0;

	snprintf(text, sizeof(text), "%s", line);
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		argv[argc++] = w;
	}
	optind = 0;
	return options_parse(argc, argv, ret, ret_exit);
}

Test(options, what_they_mean)
{
	struct options o;
	int code;

	cr_assert_eq(parse("rocebench", &o, &code), 0);
	cr_assert(o.chosen[BENCH_ALLREDUCE] && !o.chosen[BENCH_BARRIER]);
	cr_assert(o.launch && o.ranks == 1 && o.verify && o.inflight == 1);
	cr_assert(o.sizes[0] == 8 && o.sizes[1] == 32);
	cr_assert_eq(parse("rocebench -n 2 -b 1K -e 16K -f 2 -d bf16 -o max all", &o, &code), 0);
	cr_assert(o.n_sizes == 5 && o.sizes[4] == 16384 && o.dtype == DTYPE_BF16);
	cr_assert(o.redop == REDOP_MAX && o.chosen[BENCH_MOE] && !o.chosen[BENCH_CREATE]);
	cr_assert(!o.transport);
	cr_assert_eq(parse("rocebench --transport rdma --create", &o, &code), 0);
	cr_assert_str_eq(o.transport, "rdma");
	cr_assert(o.chosen[BENCH_CREATE] && !o.chosen[BENCH_ALLREDUCE]);
	cr_assert_eq(parse("rocebench --sizes 8,25M barrier,gather scatter", &o, &code), 0);
	cr_assert(o.n_sizes == 2 && o.chosen[BENCH_BARRIER] && o.chosen[BENCH_GATHER] &&
		  o.chosen[BENCH_SCATTER] && !o.chosen[BENCH_ALLREDUCE]);
}

Test(options, what_is_refused)
{
	static const char *const lines[] = {
		"rocebench nothing",
		"rocebench --sizes 8,,9",
		"rocebench -b 0",
		"rocebench -b 8K -e 4K",
		"rocebench -f 1",
		"rocebench -n 0",
		"rocebench -n 65",
		"rocebench -D 513",
		"rocebench -D 257 sendrecv",
		"rocebench --hosts 2 --host 1",
		"rocebench --hosts 2 --host 2 --root 10.0.0.1",
		"rocebench -n 2 --root-rank 2 broadcast",
		"rocebench -d f8e4m3",
		"rocebench -d f32 -o band",
		"rocebench -o premul-sum",
		"rocebench --corrupt --no-verify",
		"rocebench --memory gpu",
		"rocebench --transport roce",
		"rocebench -t 0",
		"rocebench -t nan",
		"rocebench --such",
	};
	struct options o;
	int code = 0;

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		cr_assert_eq(parse(lines[i], &o, &code), -1, "%s", lines[i]);
		cr_assert_eq(code, ROCEBENCH_USAGE, "%s", lines[i]);
	}
	cr_assert_eq(parse("rocebench -d f8e4m3 alltoall", &o, &code), 0);
	cr_assert_eq(parse("rocebench --help", &o, &code), -1);
	cr_assert_eq(code, ROCEBENCH_OK);
}

Test(options, a_launcher_says_where_ranks_meet)
{
	struct options o;
	int code = 0;

	cr_assert_eq(setenv("SLURM_PROCID", "3", 1), 0);
	cr_assert_eq(parse("rocebench", &o, &code), 0);
	cr_assert(!o.launch);
	cr_assert_eq(parse("rocebench --root 10.0.0.1", &o, &code), -1);
	cr_assert_eq(code, ROCEBENCH_USAGE);
	cr_assert_eq(parse("rocebench --job mine", &o, &code), -1);
	cr_assert_eq(parse("rocebench --job mine -n 2", &o, &code), 0);
	cr_assert(o.launch);
	cr_assert_eq(parse("rocebench --hosts 2 --root 10.0.0.1", &o, &code), 0);
	cr_assert(o.launch);
}

Test(plan, what_is_done_is_whole_elements)
{
	struct options o = {.dtype = DTYPE_F32, .inflight = 2};
	struct plan plan;

	cr_assert_eq(plan_init(&plan, &o, BENCH_ALLGATHER, 1000, 1, 3), 0);
	cr_assert(plan.bytes == 996 && plan.count == 83 && plan.n_ops == 2);
	cr_assert(plan.ops[1].send_count == 83 && plan.ops[1].recv_count == 249);
	plan_deinit(&plan);
	cr_assert_eq(plan_init(&plan, &o, BENCH_ALLTOALL, 8, 0, 8), 0);
	cr_assert_eq(plan.bytes, 32);
	plan_deinit(&plan);
	cr_assert_eq(plan_init(&plan, &o, BENCH_GPT2, 0, 0, 8), 0);
	cr_assert_eq(plan.bytes, (size_t)GPT2_PARAMETERS * 4);
	cr_assert(plan.ops[0].in_place);
	plan_deinit(&plan);
}

Test(plan, skew)
{
	size_t sum = 0;

	/* 1 : 1/2 : 1/3 : 1/4 = 12 : 6 : 4 : 3 */
	cr_assert_eq(plan_skewed(25000000, 0, 4) / 10000, 1200);
	cr_assert_eq(plan_skewed(25000000, 3, 4) / 10000, 300);
	for (int i = 0; i < 7; i++) {
		sum += plan_skewed(1001, i, 7);
	}
	cr_assert_eq(sum, 1001);
	cr_assert_eq(plan_skewed(5, 0, 1), 5);
}

/* All ranks of a plan, each with buffers. */
struct world {
	struct plan plans[RANKS];
};

static void world_init(struct world *w, const struct options *o, enum bench_id id, size_t bytes)
{
	for (int r = 0; r < RANKS; r++) {
		struct plan *plan = &w->plans[r];

		cr_assert_eq(plan_init(plan, o, id, bytes, r, RANKS), 0);
		for (size_t i = 0; i < plan->n_ops; i++) {
			plan->ops[i].send = malloc(plan->ops[i].send_count * plan->elem + 1);
			plan->ops[i].recv = malloc(plan->ops[i].recv_count * plan->elem + 1);
		}
		verify_fill(plan);
	}
}

static void world_deinit(struct world *w)
{
	for (int r = 0; r < RANKS; r++) {
		for (size_t i = 0; i < w->plans[r].n_ops; i++) {
			free(w->plans[r].ops[i].send);
			free(w->plans[r].ops[i].recv);
		}
		plan_deinit(&w->plans[r]);
	}
}

/* Every byte of every result counts: each is changed and put back. */
static void must_bite(struct world *w)
{
	for (int r = 0; r < RANKS; r++) {
		struct plan *plan = &w->plans[r];

		cr_assert_eq(verify_check(plan, NULL), 0, "rank %d", r);
		for (size_t i = 0; i < plan->n_ops; i++) {
			uint8_t *recv = plan->ops[i].recv;

			for (size_t b = 0; b < plan->ops[i].recv_count * plan->elem; b++) {
				recv[b] ^= 1;
				cr_assert_eq(verify_check(plan, NULL), 1, "rank %d byte %zu", r, b);
				recv[b] ^= 1;
			}
		}
	}
}

Test(verify, moved_bytes)
{
	struct options o = {.dtype = DTYPE_F16, .inflight = 2};
	struct world w;

	world_init(&w, &o, BENCH_ALLTOALLV, 120);
	for (int from = 0; from < RANKS; from++) {
		for (int to = 0; to < RANKS; to++) {
			for (size_t i = 0; i < 2; i++) {
				const struct plan *a = &w.plans[from], *b = &w.plans[to];

				cr_assert_eq(a->out.counts[to], b->in.counts[from]);
				memcpy(b->ops[i].recv + b->in.displs[from] * 2,
				       a->ops[i].send + a->out.displs[to] * 2,
				       a->out.counts[to] * 2);
			}
		}
	}
	must_bite(&w);
	/* Of two operations each has its own bytes. */
	memcpy(w.plans[1].ops[1].recv, w.plans[1].ops[0].recv, w.plans[1].ops[0].recv_count * 2);
	cr_assert_gt(verify_check(&w.plans[1], NULL), 0);
	world_deinit(&w);
}

Test(verify, gathered_blocks)
{
	struct options o = {.dtype = DTYPE_I32, .inflight = 1, .root_rank = 2};
	struct world w;

	world_init(&w, &o, BENCH_GATHER, 160);
	for (int from = 0; from < RANKS; from++) {
		memcpy(w.plans[2].ops[0].recv + 40 * from, w.plans[from].ops[0].send, 40);
	}
	cr_assert(plan_has_result(&w.plans[2], &w.plans[2].ops[0]));
	cr_assert(!plan_has_result(&w.plans[1], &w.plans[1].ops[0]));
	must_bite(&w);
	world_deinit(&w);
}

Test(verify, sums)
{
	struct options o = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .inflight = 1};
	struct world w;

	world_init(&w, &o, BENCH_REDUCE_SCATTER, 64);
	for (int to = 0; to < RANKS; to++) {
		for (size_t i = 0; i < 4; i++) {
			float sum = 0, x;

			for (int r = 0; r < RANKS; r++) {
				memcpy(&x, w.plans[r].ops[0].send + ((size_t)to * 4 + i) * 4, 4);
				sum += x;
			}
			memcpy(w.plans[to].ops[0].recv + i * 4, &sum, 4);
		}
	}
	must_bite(&w);
	world_deinit(&w);
}

Test(verify, corrupt_bites)
{
	struct options o = {.dtype = DTYPE_U8, .inflight = 1};
	struct world w;

	world_init(&w, &o, BENCH_BROADCAST, 64);
	for (int r = 1; r < RANKS; r++) {
		memcpy(w.plans[r].ops[0].recv, w.plans[0].ops[0].recv, 64);
	}
	for (int r = 0; r < RANKS; r++) {
		verify_corrupt(&w.plans[r]);
		cr_assert_eq(verify_check(&w.plans[r], NULL), r == RANKS - 1 ? 1 : 0);
	}
	world_deinit(&w);
}

/* One element: the last ranks get none of it, the check must bite all the same. */
Test(verify, corrupt_bites_where_there_is_something)
{
	struct options o = {.dtype = DTYPE_U32, .inflight = 1};
	struct world w;
	size_t wrong = 0;

	world_init(&w, &o, BENCH_ALLTOALLV, 4);
	for (int from = 0; from < RANKS; from++) {
		memcpy(w.plans[0].ops[0].recv + w.plans[0].in.displs[from] * 4,
		       w.plans[from].ops[0].send, 4);
	}
	for (int r = 0; r < RANKS; r++) {
		verify_corrupt(&w.plans[r]);
		wrong += verify_check(&w.plans[r], NULL);
	}
	cr_assert_eq(wrong, 1);
	world_deinit(&w);
}

/* What lies 4 GiB off, or 2^32 elements, is something else. */
Test(values, places_beyond_32_bits)
{
	struct values v = {.dtype = DTYPE_U8, .redop = REDOP_BXOR, .size = RANKS};
	size_t far = (size_t)1 << 32;
	uint8_t near_bytes[64], far_bytes[64];

	values_moved(&v, 1, 100, 64, near_bytes);
	values_moved(&v, 1, far + 100, 64, far_bytes);
	cr_assert(memcmp(near_bytes, far_bytes, 64) != 0);
	values_moved(&v, 1, far - 32, 64, far_bytes);
	values_moved(&v, 1, far, 32, near_bytes);
	cr_assert_eq(memcmp(near_bytes, far_bytes + 32, 32), 0);
	values_reduced(&v, 100, 64, near_bytes);
	values_reduced(&v, far + 100, 64, far_bytes);
	cr_assert(memcmp(near_bytes, far_bytes, 64) != 0);
}

/* Small integers must be exact in each type, added in any order. */
Test(values, halves_hold_all_partial_sums)
{
	for (int size = 1; size <= 300; size += 37) {
		struct values v = {.dtype = DTYPE_BF16, .redop = REDOP_SUM, .size = size};
		uint16_t want[64], given[64];
		float sum[64] = {0};

		for (int r = 0; r < size; r++) {
			values_given(&v, r, 5, 64, given);
			for (int i = 0; i < 64; i++) {
				uint32_t bits = (uint32_t)given[i] << 16;
				float x;

				memcpy(&x, &bits, sizeof(x));
				sum[i] += x;
				cr_assert(x == floorf(x) && sum[i] <= 256);
			}
		}
		values_reduced(&v, 5, 64, want);
		for (int i = 0; i < 64; i++) {
			uint32_t bits;

			memcpy(&bits, &sum[i], sizeof(bits));
			cr_assert_eq(want[i], bits >> 16);
		}
	}
}

Test(values, f16_of_averages)
{
	struct values v = {.dtype = DTYPE_F16, .redop = REDOP_AVG, .size = 3};
	uint16_t want[256], given[256];
	unsigned int thirds = 0;

	values_reduced(&v, 0, 256, want);
	for (int i = 0; i < 256; i++) {
		double sum = 0, got = ldexp((want[i] & 0x3ff) | (want[i] >> 10 ? 0x400 : 0),
					    MAX(want[i] >> 10, 1) - 25);

		for (int r = 0; r < 3; r++) {
			values_given(&v, r, 0, 256, given);
			sum += ldexp((given[i] & 0x3ff) | (given[i] >> 10 ? 0x400 : 0),
				     MAX(given[i] >> 10, 1) - 25);
		}
		thirds += fmod(sum, 3) != 0;
		cr_assert(fabs(got - sum / 3) <= sum / 3 * 0x1p-11, "%d: %g %g", i, got, sum / 3);
	}
	cr_assert_gt(thirds, 100);
}
