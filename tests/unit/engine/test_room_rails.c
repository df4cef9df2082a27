/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Operations over rails with more buffers than may be registered: they come and go meanwhile
 *
 * The fake fails whoever uses a key that was given back, so a rail that never fails says that no
 * posted work lost its memory.
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "mem/region.h"
#include "tests/unit/engine/lab_rails.h"

#define FIRST 10
#define BUFFERS 10
#define SIZE (1u << 20)
#define ITEMS (SIZE / 2 / sizeof(int64_t))
#define DEPTH 3 /* operations at a time */

static int64_t value(uint32_t rank, uint64_t i, uint32_t round)
{
	return (int64_t)((i + round) * 64 + rank + 1);
}

static uint8_t *put(struct lab_rails *n, uint32_t h, uint32_t id)
{
	struct engine_session *s = n->lab->ranks[h].session;
	struct engine *e = n->lab->engines[h];
	struct quota_charge none = {0};
	struct region *region;
	uint8_t *base =
		mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(base, MAP_FAILED);
	cr_assert_eq(region_new(base, SIZE, SIZE, &none, &region), 0);
	cr_assert_eq(engine_region_add(e, s, id, region), 0);
	region_unref(region);
	n->pending++;
	if (engine_region_ready(e, s, id, lab_rails_done, n)) {
		n->pending--;
	}
	lab_rails_settle(n);
	return base;
}

static void post(struct lab_rails *n, int64_t *const base[HOSTS], uint32_t id, uint32_t round,
		 uint32_t tickets[HOSTS])
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .dtype = DTYPE_I64,
				     .op = REDOP_SUM,
				     .count = ITEMS,
				     .send_buf = id,
				     .recv_buf = id,
				     .recv_off = SIZE / 2};

		for (uint64_t i = 0; i < ITEMS; i++) {
			base[h][i] = value(h, i, round);
			base[h][ITEMS + i] = -1;
		}
		tickets[h] = lab_post(n->lab, h, &d);
	}
}

static void check(struct lab_rails *n, int64_t *const base[HOSTS], uint32_t round,
		  const uint32_t tickets[HOSTS])
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		cr_assert_eq(lab_wait(n->lab, h, tickets[h]), STATUS_OK);
	}
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint64_t i = 0; i < ITEMS; i++) {
			cr_assert_eq(base[h][ITEMS + i], value(0, i, round) + value(1, i, round),
				     "round %u, rank %u [%zu]", round, h, (size_t)i);
		}
	}
}

static void take(struct lab_rails *n, uint32_t id)
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		n->pending++;
		engine_region_remove(n->lab->engines[h], n->lab->ranks[h].session, id,
				     lab_rails_done, n);
	}
	lab_rails_settle(n);
}

/* One of them is given back, and another one takes its number, in whatever state it is. */
static void renew(struct lab_rails *n, int64_t *base[HOSTS], uint32_t id)
{
	take(n, id);
	for (uint32_t h = 0; h < HOSTS; h++) {
		base[h] = (int64_t *)(void *)put(n, h, id);
	}
}

/* Different buffers, a few at a time, as chance has it. @flap: a rail goes and comes. */
static void churn(struct lab_rails *n, uint32_t rounds, bool flap)
{
	int64_t *base[BUFFERS][HOSTS];
	unsigned int seed = 7;

	for (uint32_t b = 0; b < BUFFERS; b++) {
		for (uint32_t h = 0; h < HOSTS; h++) {
			base[b][h] = (int64_t *)(void *)put(n, h, FIRST + b);
		}
	}
	for (uint32_t round = 0; round < rounds; round++) {
		uint32_t tickets[DEPTH][HOSTS], first = (uint32_t)rand_r(&seed);

		for (uint32_t i = 0; i < DEPTH; i++) {
			uint32_t b = (first + i) % BUFFERS;

			post(n, base[b], FIRST + b, round + i, tickets[i]);
		}
		if (round % 3 == 2) {
			uint32_t b = (first + DEPTH + round % (BUFFERS - DEPTH)) % BUFFERS;

			renew(n, base[b], FIRST + b);
		}
		if (flap && round % 8 == 3) {
			lab_rails_link(n, round / 8 % RAILS, false);
		}
		for (uint32_t i = 0; i < DEPTH; i++) {
			check(n, base[(first + i) % BUFFERS], round + i, tickets[i]);
		}
		if (flap && round % 8 == 6) {
			lab_rails_link(n, round / 8 % RAILS, true);
		}
	}
	cr_assert_eq(n->lab->failures + n->lab->peers_down, 0);
}

static uint32_t rail_failures(struct lab_rails *n)
{
	struct engine_rails_view view;
	uint32_t failures = 0;

	for (uint32_t h = 0; h < HOSTS; h++) {
		n->pending++;
		engine_peer_look(n->lab->engines[h], n->lab->peers[h][!h], &view, lab_rails_done,
				 n);
		lab_rails_settle(n);
		for (uint32_t r = 0; r < n->rails; r++) {
			failures += view.rails[r].failures;
		}
	}
	return failures;
}

Test(room_rails, buffers_come_and_go, .timeout = 240)
{
	for (uint32_t rails = 1; rails <= RAILS; rails++) {
		struct rdma_bounds bounds = {.regions = DEPTH, .rest_ms = 1};
		struct lab_rails n;

		lab_rails_init_bounded(&n, rails, rails, &bounds);
		churn(&n, 40, false);
		lab_rest(n.lab, 50); /* some may just be coming */
		for (uint32_t h = 0; h < HOSTS; h++) {
			const struct rdma_memory *m = &n.list[h]->memory;

			cr_assert_gt(m->evictions, 10, "%zu", (size_t)m->evictions);
			cr_assert_gt(m->returns, 5, "%zu", (size_t)m->returns);
			cr_assert_geq(m->staged, BUFFERS + 1 - DEPTH);
		}
		cr_assert_eq(rail_failures(&n), 0);
		lab_rails_fini(&n);
	}
}

/* What is on its way to or from a buffer keeps it, also when there is no other to give back. */
Test(room_rails, memory_in_use_stays, .timeout = 120)
{
	struct rdma_bounds bounds = {.regions = 1, .rest_ms = 1};
	uint32_t caught = 0;
	struct lab_rails n;

	lab_rails_init_bounded(&n, 8, 1, &bounds);
	for (uint32_t round = 1; round <= 20; round++) {
		uint64_t delivered, fallbacks, evictions;
		int64_t *base[HOSTS], *other[HOSTS];
		uint32_t tickets[HOSTS];

		for (uint32_t h = 0; h < HOSTS; h++) {
			base[h] = (int64_t *)(void *)put(&n, h, FIRST);
		}
		fallbacks = n.list[0]->memory.fallbacks;
		evictions = n.list[0]->memory.evictions;
		delivered = lab_rails_delivered(&n);
		post(&n, base, FIRST, round, tickets);
		while (lab_rails_delivered(&n) < delivered + round * 32768) {
			lab_pump(n.lab);
		}
		lab_rails_pause(&n, true);
		for (uint32_t h = 0; h < HOSTS; h++) {
			other[h] = (int64_t *)(void *)put(&n, h, FIRST + 1);
		}
		/* It may have been over already. */
		if (!lab_done(n.lab, 0, tickets[0])) {
			cr_assert_eq(n.list[0]->memory.evictions, evictions, "round %u", round);
			cr_assert_eq(n.list[0]->memory.fallbacks, fallbacks + 1);
			caught++;
		}
		lab_rails_pause(&n, false);
		check(&n, base, round, tickets);
		post(&n, other, FIRST + 1, round, tickets);
		check(&n, other, round, tickets);
		take(&n, FIRST);
		take(&n, FIRST + 1);
	}
	cr_assert_gt(caught, 0);
	cr_assert_eq(rail_failures(&n), 0);
	lab_rails_fini(&n);
}

/* What is given back while rails fail and are drained is nobody's place any more. */
Test(room_rails, while_rails_flap, .timeout = 240)
{
	struct rdma_bounds bounds = {.bytes = 4 * SIZE, .rest_ms = 1};
	struct lab_rails n;

	lab_rails_init_bounded(&n, 5, RAILS, &bounds);
	churn(&n, 48, true);
	for (uint32_t h = 0; h < HOSTS; h++) {
		cr_assert_gt(n.list[h]->memory.evictions, 10);
	}
	lab_rails_fini(&n);
}

/* No memory at all may be registered: everything is staged, over rails. */
Test(room_rails, nothing_has_room, .timeout = 120)
{
	struct rdma_bounds bounds = {.bytes = 4096};
	struct lab_rails n;
	uint64_t before;

	lab_rails_init_bounded(&n, 6, 1, &bounds);
	before = lab_rails_delivered(&n);
	churn(&n, 4, false);
	cr_assert_geq(lab_rails_delivered(&n) - before, UINT64_C(4) * DEPTH * SIZE);
	cr_assert_eq(n.list[0]->memory.evictions, 0);
	cr_assert_eq(n.list[0]->memory.staged, BUFFERS + 1);
	cr_assert_eq(rail_failures(&n), 0);
	lab_rails_fini(&n);
}
