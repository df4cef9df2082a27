/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of measuring with messages: latency, bandwidth, two at once, a peer that is lost
 *
 * Thread: one, and the engines'      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>

#include "engine/engine_rdma.h"
#include "engine/gauge.h"
#include "tests/unit/engine/lab.h"
#include "util/clock.h"

#define SECONDS(x) (UINT64_C(x) * CLOCK_NS_PER_S)

static const uint32_t two[] = {0, 1};

static void count(void *arg)
{
	++*(int *)arg;
}

static void wait_until(struct lab *lab, const int *done, int n)
{
	for (int i = 0; i < 20000 && *done < n; i++) {
		lab_pump(lab);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(*done, n, "%d of %d came back", *done, n);
}

Test(gauge, latency_and_bandwidth)
{
	struct lab *lab = lab_new(two, 2, 2, 4096, NULL);
	struct engine_rails_view view[2];
	struct engine_gauge g = {
		.message = 8, .window = 1, .ns = SECONDS(1) / 10, .give_up = SECONDS(5)};
	int done = 0;

	engine_gauge(lab->engines[0], lab->peers[0][1], &g, count, &done);
	wait_until(lab, &done, 1);
	cr_assert_eq(g.result, 0);
	cr_assert(g.messages > 1 && g.ntimes > 1 && g.times[0] > 0);
	cr_assert_geq(g.elapsed, g.ns);
	g = (struct engine_gauge){
		.message = 1u << 20, .window = 8, .ns = SECONDS(1) / 5, .give_up = SECONDS(5)};
	engine_gauge(lab->engines[1], lab->peers[1][0], &g, count, &done);
	wait_until(lab, &done, 2);
	cr_assert_eq(g.result, 0);
	cr_assert_gt(g.messages, 8);
	/* What the data connections carried is told of both ends. */
	for (int i = 0; i < 2; i++) {
		engine_peer_look(lab->engines[i], lab->peers[i][1 - i], &view[i], count, &done);
	}
	wait_until(lab, &done, 4);
	cr_assert_geq(view[1].tcp_sent, g.messages << 20);
	cr_assert_geq(view[0].tcp_received, g.messages << 20);
	cr_assert(!view[0].up && view[0].tcp_sent > 0 && view[1].tcp_received > 0);
	lab_free(lab);
}

/* Both ways at the same time, and a second one the same way, which is refused. */
Test(gauge, both_ways)
{
	struct lab *lab = lab_new(two, 2, 2, 4096, NULL);
	struct engine_gauge g[3];
	int done = 0;

	for (int i = 0; i < 3; i++) {
		g[i] = (struct engine_gauge){.message = 1u << 18,
					     .window = GAUGE_WINDOW,
					     .ns = SECONDS(1) / 5,
					     .give_up = SECONDS(5)};
		engine_gauge(lab->engines[i % 2], lab->peers[i % 2][1 - i % 2], &g[i], count,
			     &done);
	}
	wait_until(lab, &done, 3);
	cr_assert_eq(g[0].result, 0);
	cr_assert_eq(g[1].result, 0);
	cr_assert_eq(g[2].result, -EBUSY);
	cr_assert_gt(g[0].messages, GAUGE_WINDOW);
	lab_free(lab);
}

/* The other host is gone in the middle of it, and then before it. */
Test(gauge, peer_lost)
{
	struct lab *lab = lab_new(two, 2, 2, 4096, NULL);
	struct engine_gauge g = {
		.message = 1u << 20, .window = 8, .ns = SECONDS(60), .give_up = SECONDS(60)};
	int done = 0;

	engine_gauge(lab->engines[0], lab->peers[0][1], &g, count, &done);
	poll(NULL, 0, 50);
	engine_peer_remove(lab->engines[1], lab->peers[1][0], count, &done);
	lab->peers[1][0] = NULL;
	wait_until(lab, &done, 2);
	cr_assert_lt(g.result, 0);
	engine_gauge(lab->engines[0], lab->peers[0][1], &g, count, &done);
	wait_until(lab, &done, 3);
	cr_assert_lt(g.result, 0);
	lab_free(lab);
}

/* The engine stops while it measures: what it was given comes back. */
Test(gauge, engine_stops)
{
	struct lab *lab = lab_new(two, 2, 2, 4096, NULL);
	struct engine_gauge g = {
		.message = 1u << 20, .window = 8, .ns = SECONDS(60), .give_up = SECONDS(60)};
	int done = 0;

	engine_gauge(lab->engines[0], lab->peers[0][1], &g, count, &done);
	poll(NULL, 0, 50);
	engine_stop(lab->engines[0], STATUS_SHUTDOWN);
	cr_assert_eq(done, 1);
	cr_assert_eq(g.result, -ESHUTDOWN);
	engine_gauge(lab->engines[0], lab->peers[0][1], &g, count, &done);
	wait_until(lab, &done, 2);
	cr_assert_eq(g.result, -ESHUTDOWN);
	lab_free(lab);
}
