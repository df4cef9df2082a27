/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Test of the program that times the peers: it must notice every wrong element
 *
 * The library under test is a fake for one rank out of two: the other's values are what the file's
 * rule says, so that results can be made here, right or wrong.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "tools/benchmark/peer.h"

#define RANKS 2
#define PERIOD 31
#define STEP 13

struct fake {
	struct peer peer;
	unsigned int posts;
	unsigned int waits;
	unsigned int spoil; /* the number of the post whose last element is wrong */
};

static struct fake *fake_of(struct peer *peer)
{
	return container_of(peer, struct fake, peer);
}

/* This rank is 0, so its value v becomes (v + 13) mod 31 on the other one. */
static float other(float v)
{
	return (float)(((unsigned int)v + STEP) % PERIOD);
}

static int fake_post(struct peer *peer, enum coll coll, const void *send, void *recv, size_t count,
		     unsigned int slot, int alone)
{
	struct fake *fake = fake_of(peer);
	const float *in = send;
	float *out = recv;
	size_t n = count;

	for (size_t i = 0; i < count; i++) {
		switch (coll) {
		case COLL_ALLREDUCE:
		case COLL_REDUCE:
		case COLL_REDUCE_SCATTER:
			out[i] = in[i] + other(in[i]);
			break;
		case COLL_ALLGATHER:
		case COLL_GATHER:
		case COLL_ALLTOALL:
			out[i] = in[i];
			out[count + i] = other(in[i]);
			n = 2 * count;
			break;
		case COLL_SCATTER:
			out[i] = in[i];
			break;
		default:
			break;
		}
	}
	if (++fake->posts == fake->spoil) {
		out[n - 1] += 1;
	}
	return alone && slot != 0;
}

static int fake_wait(struct peer *peer, unsigned int n)
{
	fake_of(peer)->waits += n;
	return 0;
}

static int fake_poll(struct peer *peer, unsigned int n)
{
	return 0;
}

/* The times are 1 to n, in no order. */
static int fake_max(struct peer *peer, double *values, size_t n)
{
	for (size_t i = 0; n > 1 && i < n; i++) {
		values[i * 7 % n] = (double)i + 1;
	}
	return 0;
}

static int fake_nothing(struct peer *peer)
{
	return 0;
}

static void *fake_alloc(struct peer *peer, size_t size)
{
	return malloc(size);
}

static void fake_free(struct peer *peer, void *ptr)
{
	free(ptr);
}

static struct fake fake_make(unsigned int spoil)
{
	struct fake fake = {
		.peer =
			{
				.system = "fake",
				.size = RANKS,
				.post = fake_post,
				.wait = fake_wait,
				.poll = fake_poll,
				.max = fake_max,
				.barrier = fake_nothing,
				.new_comm = fake_nothing,
				.alloc = fake_alloc,
				.free = fake_free,
			},
		.spoil = spoil,
	};

	return fake;
}

static int run(struct fake *fake, const char *text)
{
	char name[] = "test", work[] = "--work=1", *c = strdup(text);
	char *argv[] = {name, work, c, NULL};
	int r = peer_main(&fake->peer, 3, argv);

	free(c);
	return r;
}

static const char *const cases[] = {
	"allreduce:4096:1:5:2", "allgather:4096:1:5:2", "reduce_scatter:4096:1:5:2",
	"broadcast:4096:1:5:2", "reduce:4096:1:5:2",	"gather:4096:1:5:2",
	"scatter:4096:1:5:2",	"alltoall:4096:1:5:2",	"allreduce:40:1:5:2",
	"beside:4096:1:5:2",
};

Test(peer, right_results_pass)
{
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct fake fake = fake_make(0);

		cr_assert_eq(run(&fake, cases[i]), 0, "%s", cases[i]);
		cr_assert_eq(fake.posts, 9, "two checks, two to warm up, five repetitions");
	}
}

/* The first post and the last one are those that are checked. */
Test(peer, a_wrong_element_fails)
{
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct fake first = fake_make(1), last = fake_make(9);

		cr_assert_eq(run(&first, cases[i]), 1, "%s, before", cases[i]);
		cr_assert_eq(run(&last, cases[i]), 1, "%s, after", cases[i]);
	}
}

Test(peer, several_in_flight_are_all_waited_for_and_checked)
{
	struct fake fake = fake_make(0), wrong = fake_make(7);

	cr_assert_eq(run(&fake, "allreduce:4096:7:3:1"), 0);
	cr_assert_eq(fake.posts, 7 * 6);
	cr_assert_eq(fake.waits, 7 * 6);
	cr_assert_eq(run(&wrong, "allreduce:4096:7:3:1"), 1, "the last of the first seven");
}

Test(peer, what_moves_nothing_runs)
{
	struct fake fake = fake_make(0);

	cr_assert_eq(run(&fake, "barrier:0:1:5:1"), 0);
	cr_assert_eq(run(&fake, "comm:0:1:5:1"), 0);
}

Test(peer, wrong_usage_is_refused)
{
	static const char *const bad[] = {
		"allreduce",	      "allreduce:8:1:5", "allreduce:8:0:5:1",	"allreduce:8:1:0:1",
		"allreduce:8:1:5:1x", "nothing:8:1:5:1", "allreduce:8:257:5:1",
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct fake fake = fake_make(0);

		cr_assert_eq(run(&fake, bad[i]), 2, "%s", bad[i]);
		cr_assert_eq(fake.posts, 0);
	}
}

Test(peer, blocks_must_be_whole)
{
	struct fake fake = fake_make(0);

	cr_assert_eq(run(&fake, "allgather:12:1:5:1"), 1);
	cr_assert_eq(fake.posts, 0);
}

/* By nearest rank, as rocebench has them (test_rocebench.c): figures stand beside each other. */
Test(peer, percentiles_are_those_of_rocebench)
{
	static const struct {
		const char *text;
		double median, p99, p999;
	} want[] = {
		{"allreduce:8:1:5:1", 3, 5, 5},
		{"allreduce:8:1:200:1", 100.5, 198, 200},
		{"allreduce:8:1:2000:1", 1000.5, 1980, 1998},
	};

	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		struct fake fake = fake_make(0);
		FILE *keep = stdout;
		double median, p99, p999;
		char *text;
		size_t size;

		stdout = open_memstream(&text, &size);
		cr_assert_eq(run(&fake, want[i].text), 0);
		fclose(stdout);
		stdout = keep;
		cr_assert_eq(sscanf(strstr(text, "\"median_us\""),
				    "\"median_us\":%lf,\"p99_us\":%lf,\"p999_us\":%lf", &median,
				    &p99, &p999),
			     3);
		cr_assert(median == want[i].median && p99 == want[i].p99 && p999 == want[i].p999,
			  "%s: %s", want[i].text, text);
		free(text);
	}
}
