/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unit tests: the simulator against times worked out by hand
 *
 * In the bare model (one GB/s, no work on the hosts) a message of m bytes takes alpha + m + header
 * nanoseconds, so textbook formulas must come out to the picosecond.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <ctype.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/simulate/predict.h"
#include "tools/simulate/queue.h"
#include "tools/simulate/simulate.h"
#include "transport/wire.h"

#define ALPHA 5.0 /* us */

static struct link_model bare(void)
{
	return (struct link_model){
		.name = "bare",
		.alpha_us = ALPHA,
		.gbit = 8,
		.rails = 1,
		.oversub = 1,
		.chunk_kib = 256,
		.eager_kib = 64,
		.scratch_kib = 512,
	};
}

/* Of one message on the wire, in us. */
static double wire(double bytes)
{
	return (bytes + WIRE_SIZE) / 1000;
}

static struct prediction predicted(const struct link_model *m, bool full, enum coll_kind kind,
				   enum coll_algo algo, uint32_t nhosts, uint32_t ranks,
				   uint64_t bytes)
{
	struct predictor p = {.model = *m, .full = full};
	struct prediction ret = {0};
	int r = predict(&p, kind, algo, nhosts, ranks, bytes, &ret);

	cr_assert_eq(r, 0, "%s %s %u x %u, %lu bytes: %s", coll_kind_name(kind),
		     coll_algo_name(algo), nhosts, ranks, (unsigned long)bytes, strerror(-r));
	predictor_deinit(&p);
	return ret;
}

static void expect(double us, double by_hand, const char *what)
{
	cr_assert(us > by_hand - 1e-5 && us < by_hand + 1e-5, "%s: %.6f us, by hand %.6f us", what,
		  us, by_hand);
}

/* ---- queue -------------------------------------------------------------------------------- */

Test(simulate, events_come_by_time_then_by_order)
{
	struct queue q = {0};
	struct event e;
	uint64_t random = 1;
	uint64_t last = 0;
	uint32_t last_step = 0;
	unsigned int n = 0;

	for (uint32_t i = 0; i < 5000; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		cr_assert_eq(queue_add(&q, (struct event){.at = random >> 58, .step = i}), 0);
		if (i % 7 == 0) {
			cr_assert(queue_take(&q, &e));
			n++;
		}
	}
	for (; queue_take(&q, &e); n++) {
		cr_assert_geq(e.at, last);
		cr_assert(e.at > last || last_step <= e.step);
		last_step = e.at > last ? 0 : e.step;
		last = e.at;
	}
	cr_assert_eq(n, 5000);
	queue_deinit(&q);
}

/* ---- link model --------------------------------------------------------------------------- */

Test(simulate, model_values_are_checked)
{
	static const char *const bad[] = {"alpha",	  "alpha_us", "alpha_us=", "alpha_us=-1",
					  "alpha_us=1x",  "gbit=0",   "rails=0",   "oversub=0.5",
					  "alpha_us=nan", "=1"};
	struct link_model m = *link_find("tcp");
	char err[200];

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		cr_assert_eq(link_set(&m, bad[i], err, sizeof(err)), -EINVAL, "%s", bad[i]);
		cr_assert_not_null(strstr(err, bad[i]), "%s", err);
	}
	cr_assert_eq(link_set(&m, "alpha_us=2.5", err, sizeof(err)), 0);
	cr_assert_eq(m.alpha_us, 2.5);
	cr_assert_null(link_find("token-ring"));
}

Test(simulate, man_page_has_every_key)
{
	static char page[1 << 16];
	char file[] = __FILE__;
	char text[512];
	FILE *in;

	snprintf(text, sizeof(text), "%s/../../../tools/man/rocecomm-simulate.1", dirname(file));
	in = fopen(text, "r");
	cr_assert(in, "%s cannot be opened from the build directory", text);
	cr_assert_gt(fread(page, 1, sizeof(page) - 1, in), 0);
	fclose(in);
	for (size_t i = 0; i < link_nkeys; i++) {
		snprintf(text, sizeof(text), "\n.It Cm %s\n%c%s.\n", link_keys[i].name,
			 toupper((unsigned char)link_keys[i].help[0]), link_keys[i].help + 1);
		cr_assert_not_null(strstr(page, text), "the page lacks:%s", text);
	}
	for (size_t i = 0; i < link_nmodels; i++) {
		cr_assert_not_null(strstr(page, link_models[i].name), "%s", link_models[i].name);
	}
}

Test(simulate, bytes_become_picoseconds)
{
	struct link_model m = bare();

	cr_assert_eq(link_bytes_ps(1000, 1), 1000000);
	cr_assert_eq(link_bytes_ps(1000, 0), 0);
	cr_assert_eq(link_wire_ps(&m, 1), 1000);
	m.rack = 4;
	m.oversub = 8;
	cr_assert_eq(link_uplink_ps(&m, 1), 2000); /* four hosts share half a GB/s */
}

/* ---- by hand ------------------------------------------------------------------------------ */

Test(simulate, ring_allreduce)
{
	struct link_model m = bare();

	for (uint32_t n = 2; n <= 64; n *= 2) {
		double part = 65536.0 / n;
		struct prediction p =
			predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_RING, n, 1, 65536);

		expect(p.us, 2 * (n - 1) * (ALPHA + wire(part)), "ring");
		cr_assert_eq(p.sent, 2 * (n - 1) * part);
		cr_assert_eq(p.messages, 2 * (n - 1));
	}
}

Test(simulate, doubling_and_halving_allreduce)
{
	struct link_model m = bare();
	double halving = 0;
	uint32_t rounds = 0;

	for (uint32_t n = 2; n <= 64; n *= 2) {
		rounds++;
		halving += 2 * (ALPHA + wire(65536.0 / n));
		expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_DOUBLING, n, 1, 4096).us,
		       rounds * (ALPHA + wire(4096)), "doubling");
		/* Scratch for each round: 512 KiB is room for the whole vector up to here. */
		expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_HALVING, n, 1, 65536).us,
		       halving, "halving");
	}
}

Test(simulate, direct_exchange_takes_turns_on_the_wire)
{
	struct link_model m = bare();

	expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_DIRECT, 5, 1, 1024).us,
	       ALPHA + 4 * wire(1024), "direct");
	expect(predicted(&m, true, COLL_ALLTOALL, COLL_ALGO_PAIRWISE, 9, 1, 1024).us,
	       ALPHA + 8 * wire(1024), "pairwise");
	/* Two ranks on either side: four blocks a message. */
	expect(predicted(&m, true, COLL_ALLTOALL, COLL_ALGO_PAIRWISE, 3, 2, 1024).us,
	       ALPHA + 2 * wire(4096), "pairwise, 2 ranks");
	m.rails = 2;
	expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_DIRECT, 5, 1, 1024).us,
	       ALPHA + 2 * wire(1024), "direct, 2 rails");
}

Test(simulate, binomial_tree_broadcast)
{
	struct link_model m = bare();

	/* Host 7 hears it through 4 and 6; host 1, the last child of the root, earlier. */
	expect(predicted(&m, true, COLL_BROADCAST, COLL_ALGO_TREE, 8, 1, 1000).us,
	       3 * (ALPHA + wire(1000)), "tree");
	expect(predicted(&m, true, COLL_BARRIER, COLL_ALGO_DOUBLING, 8, 1, 0).us,
	       3 * (ALPHA + wire(0)), "barrier");
}

Test(simulate, chain_is_a_pipeline)
{
	struct link_model m = bare();
	double w = wire(256 * 1024);

	/* One grant, five hops of the first segment, then one segment after the other. */
	expect(predicted(&m, true, COLL_BROADCAST, COLL_ALGO_RING, 6, 1, 30 * 256 * 1024).us,
	       ALPHA + 5 * (ALPHA + w) + 29 * w, "chain");
}

Test(simulate, hosts_work)
{
	struct link_model m = bare();

	m.send_us = 3;
	m.recv_us = 4;
	m.stack_GBps = 2;
	m.reduce_GBps = 0.5;
	m.copy_GBps = 0.25;
	m.op_us = 10;
	m.rank_us = 1;
	/* Two ranks: their sum is made first, what arrives is added, and the second one copied. */
	expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_DIRECT, 2, 2, 1000).us,
	       10 + 1 + 2 + (3 + 0.5) + (ALPHA + wire(1000)) + (4 + 0.5 + 2 + 4), "direct, work");
	/* Longer than eager: a grant is sent and received first, on either side. */
	m.eager_kib = 0;
	expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_DIRECT, 2, 2, 1000).us,
	       10 + 1 + (3 + 4 + ALPHA) + (3 + 0.5) + (ALPHA + wire(1000)) + (4 + 0.5 + 2 + 4),
	       "direct, grant");
}

Test(simulate, racks_share_uplinks)
{
	struct link_model m = bare();

	m.rack = 1;
	m.oversub = 4;
	expect(predicted(&m, true, COLL_ALLREDUCE, COLL_ALGO_DIRECT, 2, 1, 1000).us,
	       ALPHA + 4 * wire(1000), "one host behind a quarter");
	/*
	 * Two racks of two. Each host sends to the next one first, so 1 and 3 cross at once; then
	 * all four cross, two a rack, each through what passes one at a time; then 0 and 2.
	 */
	m.rack = 2;
	m.oversub = 2;
	expect(predicted(&m, true, COLL_ALLTOALL, COLL_ALGO_PAIRWISE, 4, 1, 1000).us,
	       ALPHA + 4 * wire(1000), "two racks");
}

/* ---- short cuts --------------------------------------------------------------------------- */

static const struct {
	enum coll_kind kind;
	enum coll_algo algo;
} plans[] = {
	{COLL_ALLREDUCE, COLL_ALGO_DIRECT},	 {COLL_ALLREDUCE, COLL_ALGO_DOUBLING},
	{COLL_ALLREDUCE, COLL_ALGO_HALVING},	 {COLL_ALLREDUCE, COLL_ALGO_RING},
	{COLL_ALLREDUCE, COLL_ALGO_TREE},	 {COLL_REDUCE, COLL_ALGO_TREE},
	{COLL_REDUCE, COLL_ALGO_RING},		 {COLL_BROADCAST, COLL_ALGO_TREE},
	{COLL_BROADCAST, COLL_ALGO_RING},	 {COLL_ALLGATHER, COLL_ALGO_DIRECT},
	{COLL_ALLGATHER, COLL_ALGO_DOUBLING},	 {COLL_ALLGATHER, COLL_ALGO_RING},
	{COLL_REDUCE_SCATTER, COLL_ALGO_DIRECT}, {COLL_REDUCE_SCATTER, COLL_ALGO_HALVING},
	{COLL_REDUCE_SCATTER, COLL_ALGO_RING},	 {COLL_ALLTOALL, COLL_ALGO_PAIRWISE},
	{COLL_BARRIER, COLL_ALGO_DIRECT},	 {COLL_BARRIER, COLL_ALGO_DOUBLING},
	{COLL_BARRIER, COLL_ALGO_TREE},
};

Test(simulate, one_host_stands_for_all)
{
	static const uint32_t hosts[] = {2, 3, 4, 6, 8, 16, 24};
	static const uint64_t bytes[] = {192, 49152, 786432, 6291456};
	const struct link_model *m = link_find("tcp");
	unsigned int symmetric = 0;

	for (size_t i = 0; i < ARRAY_SIZE(plans) * ARRAY_SIZE(hosts) * ARRAY_SIZE(bytes); i++) {
		size_t p = i / ARRAY_SIZE(bytes) / ARRAY_SIZE(hosts);
		uint32_t n = hosts[i / ARRAY_SIZE(bytes) % ARRAY_SIZE(hosts)];
		uint64_t b = plans[p].kind == COLL_BARRIER ? 0 : bytes[i % ARRAY_SIZE(bytes)];
		uint32_t ranks = 1 + i % 2 * 2;
		struct prediction all, one;
		double slack;

		if (n > 8 && b > 786432) {
			continue;
		}
		all = predicted(m, true, plans[p].kind, plans[p].algo, n, ranks, b);
		one = predicted(m, false, plans[p].kind, plans[p].algo, n, ranks, b);
		if (!one.symmetry || one.steady) {
			continue;
		}
		symmetric++;
		/* Parts of a segment differ by an element when the hosts do not divide it. */
		slack = n & (n - 1) ? 1e-3 : 1e-12;
		cr_assert(one.us > all.us * (1 - slack) && one.us < all.us * (1 + slack),
			  "%s %s %u x %u, %lu bytes: %f, all %f", coll_kind_name(plans[p].kind),
			  coll_algo_name(plans[p].algo), n, ranks, (unsigned long)b, one.us,
			  all.us);
		cr_assert(one.sent >= all.sent * (1 - slack) && one.sent <= all.sent * (1 + slack),
			  "%s %s %u x %u, %lu bytes: sent %f, all %f",
			  coll_kind_name(plans[p].kind), coll_algo_name(plans[p].algo), n, ranks,
			  (unsigned long)b, one.sent, all.sent);
		cr_assert_eq(one.messages, all.messages);
	}
	cr_assert_gt(symmetric, 180);
}

Test(simulate, steady_state_holds)
{
	static const uint32_t hosts[] = {2, 5, 31};
	const struct link_model *m = link_find("tcp");
	unsigned int steady = 0;

	for (size_t i = 0; i < ARRAY_SIZE(plans) * ARRAY_SIZE(hosts); i++) {
		size_t p = i / ARRAY_SIZE(hosts);
		uint32_t n = hosts[i % ARRAY_SIZE(hosts)];
		/* Blocks of some, vectors of others: long pipelines of either. */
		uint64_t b = plans[p].kind >= COLL_ALLGATHER ? 5 << 20 : 75 << 20;
		struct prediction all, some;

		if (plans[p].kind == COLL_BARRIER) {
			continue;
		}
		all = predicted(m, true, plans[p].kind, plans[p].algo, n, 2, b);
		some = predicted(m, false, plans[p].kind, plans[p].algo, n, 2, b);
		steady += some.steady;
		cr_assert(some.us > all.us * 0.98 && some.us < all.us * 1.02,
			  "%s %s %u: %.1f us, all of it %.1f us", coll_kind_name(plans[p].kind),
			  coll_algo_name(plans[p].algo), n, some.us, all.us);
	}
	cr_assert_gt(steady, 25);
}

/* The first hosts of a long chain come to the pace soon, the last ones late. */
Test(simulate, steady_state_holds_along_chains)
{
	static const enum coll_kind kinds[] = {COLL_BROADCAST, COLL_REDUCE};
	const struct link_model *m = link_find("tcp");

	for (size_t i = 0; i < ARRAY_SIZE(kinds) * 2; i++) {
		enum coll_kind kind = kinds[i / 2];
		uint32_t n = i % 2 ? 150 : 64;
		struct prediction all = predicted(m, true, kind, COLL_ALGO_RING, n, 8, 200 << 20);
		struct prediction some = predicted(m, false, kind, COLL_ALGO_RING, n, 8, 200 << 20);

		cr_assert(some.steady);
		cr_assert(some.us > all.us * 0.95 && some.us < all.us * 1.05,
			  "%s %u: %.1f us, all of it %.1f us", coll_kind_name(kind), n, some.us,
			  all.us);
	}
}

Test(simulate, what_cannot_be_is_said)
{
	struct predictor p = {.model = *link_find("tcp")};
	struct prediction ret;

	cr_assert_eq(predict(&p, COLL_ALLREDUCE, COLL_ALGO_DIRECT, 33, 1, 8, &ret), -EOPNOTSUPP);
	cr_assert_eq(predict(&p, COLL_ALLTOALL, COLL_ALGO_RING, 2, 1, 8, &ret), -EOPNOTSUPP);
	p.full = true;
	cr_assert_eq(predict(&p, COLL_REDUCE_SCATTER, COLL_ALGO_HALVING, 10000, 1, 8, &ret),
		     -E2BIG);
	cr_assert_eq(predict(&p, COLL_ALLREDUCE, COLL_ALGO_RING, 2, 1, 8, &ret), 0);
	cr_assert_str_eq(prediction_how(&ret), "full");
	predictor_deinit(&p);
}

/* ---- options ------------------------------------------------------------------------------ */

/* Exit status of `data @words`, a list with spaces; what it prints goes nowhere. */
static int data_status(const char *words)
{
	char text[256], *argv[16] = {(char[]){"data"}};
	int argc = 1;
	char *at;

	snprintf(text, sizeof(text), "%s", words);
	for (char *word = strtok_r(text, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
		argv[argc++] = word;
	}
	return simulate_data(argc, argv);
}

Test(simulate, numbers_are_in_range)
{
	static const char *const refused[] = {
		"--ranks=4G",	  "--ranks=2G",	 "--ranks=65",
		"--ranks=0",	  "--hosts=1",	 "--hosts=16385",
		"--hosts=2,,3",	  "--hosts=-2",	 "--sizes=0",
		"--sizes= 8",	  "--sizes=8,",	 "--sizes=1T",
		"--sizes=1024K8", "--sizes=1G,", "--sizes=1152921504606846976",
	};

	cr_redirect_stdout();
	cr_redirect_stderr();
	for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
		cr_assert_eq(data_status(refused[i]), SIMULATE_USAGE, "%s", refused[i]);
	}
	/* Bytes without a unit, more than a GiB of them. */
	cr_assert_eq(data_status("--hosts=2 --ranks=1 --coll=allreduce --sizes=2000000000"),
		     SIMULATE_OK);
}
