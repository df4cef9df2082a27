/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * The engine over rails: whole operations on fake devices that lose, double and swap completions
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>

#include "mem/region.h"
#include "tests/unit/engine/lab_rails.h"

#define HALF (MEM / 2)
#define ITEMS (HALF / sizeof(int64_t))

static int64_t value(uint32_t rank, uint64_t i, uint32_t round)
{
	return (int64_t)((i + round) * 64 + rank + 1);
}

static int64_t *at(struct lab_rails *n, uint32_t r, size_t off)
{
	return (int64_t *)(n->lab->ranks[r].mem + off);
}

static void post(struct lab_rails *n, uint64_t items, uint32_t round, uint32_t tickets[HOSTS])
{
	for (uint32_t r = 0; r < HOSTS; r++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .dtype = DTYPE_I64,
				     .op = REDOP_SUM,
				     .count = items,
				     .send_buf = 1,
				     .recv_buf = 1,
				     .recv_off = HALF};

		for (uint64_t i = 0; i < items; i++) {
			at(n, r, 0)[i] = value(r, i, round);
			at(n, r, HALF)[i] = -1;
		}
		tickets[r] = lab_post(n->lab, r, &d);
	}
}

static void check(struct lab_rails *n, uint64_t items, uint32_t round)
{
	for (uint32_t r = 0; r < HOSTS; r++) {
		for (uint64_t i = 0; i < items; i++) {
			cr_assert_eq(at(n, r, HALF)[i], value(0, i, round) + value(1, i, round),
				     "rank %u [%zu]", r, (size_t)i);
		}
	}
}

static void allreduce(struct lab_rails *n, uint64_t items, uint32_t round)
{
	uint32_t tickets[HOSTS];

	post(n, items, round, tickets);
	for (uint32_t r = 0; r < HOSTS; r++) {
		int status = lab_wait(n->lab, r, tickets[r]);

		cr_assert_eq(status, STATUS_OK, "status %d in round %u", status, round);
	}
	check(n, items, round);
}

static const uint64_t sizes[] = {1, 100, 511, 513, 8192, 100003, ITEMS};

Test(engine_rails, right_bits_over_rails, .timeout = 120)
{
	for (uint32_t rails = 1; rails <= RAILS; rails++) {
		struct lab_rails n;

		lab_rails_init(&n, rails, rails);
		for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
			uint64_t before = lab_rails_delivered(&n);

			allreduce(&n, sizes[i], i);
			/* Two hosts send half of it twice. */
			cr_assert_geq(lab_rails_delivered(&n) - before,
				      2 * sizes[i] * sizeof(int64_t));
		}
		cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
		lab_rails_fini(&n);
	}
}

/* A send of several parts takes rails like any message. */
Test(engine_rails, sends_in_parts, .timeout = 60)
{
	const uint64_t items = MEM / sizeof(int64_t) - 3;
	struct shm_desc s = {
		.kind = COLL_SEND, .dtype = DTYPE_I64, .root = 1, .count = items, .send_buf = 1};
	struct shm_desc r = {.kind = COLL_RECV, .dtype = DTYPE_I64, .count = items, .recv_buf = 1};
	struct lab_rails n;

	lab_rails_init(&n, 7, RAILS);
	for (uint32_t round = 0; round < 3; round++) {
		uint64_t before = lab_rails_delivered(&n);
		uint32_t t[HOSTS];

		for (uint64_t i = 0; i < items; i++) {
			at(&n, 0, 0)[i] = value(0, i, round);
			at(&n, 1, 0)[i] = -1;
		}
		t[0] = lab_post(n.lab, 0, &s);
		t[1] = lab_post(n.lab, 1, &r);
		for (uint32_t h = 0; h < HOSTS; h++) {
			cr_assert_eq(lab_wait(n.lab, h, t[h]), STATUS_OK);
		}
		for (uint64_t i = 0; i < items; i++) {
			cr_assert_eq(at(&n, 1, 0)[i], value(0, i, round), "[%zu]", (size_t)i);
		}
		cr_assert_geq(lab_rails_delivered(&n) - before, items * sizeof(int64_t));
	}
	cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
	lab_rails_fini(&n);
}

static uint64_t counted(struct lab_rails *n, uint32_t h, size_t counter)
{
	const struct thread_view *v = engine_thread_view(n->lab->engines[h]);

	return counter_get((const _Atomic uint64_t *)((const uint8_t *)v + counter));
}

/*
 * What an operation costs: 4 MiB are 64 messages of 64 KiB here and as many there, each of them
 * four writes, and a receive for each; requests and grants share the rest.
 */
Test(engine_rails, work_of_an_operation_is_bounded, .timeout = 60)
{
	static const struct {
		size_t counter;
		uint64_t limit;
		const char *name;
	} limits[] = {
		{offsetof(struct thread_view, rdma_work_requests), 850, "work requests"},
		{offsetof(struct thread_view, rdma_doorbells), 400, "doorbells"},
		{offsetof(struct thread_view, rdma_completions), 750, "completions"},
		{offsetof(struct thread_view, bytes_copied), 65536, "bytes copied"},
	};
	uint64_t before[ARRAY_SIZE(limits)];
	struct lab_rails n;

	lab_rails_init(&n, 3, 1);
	allreduce(&n, ITEMS, 0);
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		before[i] = counted(&n, 0, limits[i].counter);
	}
	allreduce(&n, ITEMS, 1);
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		uint64_t now = counted(&n, 0, limits[i].counter) - before[i];

		cr_assert_leq(now, limits[i].limit, "%zu %s", (size_t)now, limits[i].name);
	}
	lab_rails_fini(&n);
}

static void put_region(struct lab_rails *n, uint32_t h, uint8_t **ret_base);

/* Hosts that are connected: no queue pair, and no registration but that of a new buffer. */
Test(engine_rails, a_new_job_makes_its_buffers_only, .timeout = 60)
{
	struct comm_view *views[HOSTS];
	struct engine_comm *comms[HOSTS];
	uint32_t tickets[HOSTS];
	int qps, registered;
	uint8_t *base;
	struct lab_rails n;

	lab_rails_init(&n, 4, RAILS);
	allreduce(&n, ITEMS, 0);
	qps = lab_rails_made(&n, true);
	registered = lab_rails_made(&n, false);
	for (uint32_t h = 0; h < HOSTS; h++) {
		struct engine_comm_rank rank = {n.lab->ranks[h].session, 2, h};
		struct engine_comm_params p = {.uid = 78,
					       .layout = n.lab->layout,
					       .tuning = &n.lab->tuning,
					       .host = h,
					       .peers = n.lab->peers[h],
					       .ranks = &rank,
					       .transfer_timeout_ms = 60000};

		cr_assert_eq(comm_view_new(1, &views[h]), 0);
		p.view = views[h];
		n.pending++;
		cr_assert_eq(engine_comm_add(n.lab->engines[h], &p, lab_rails_done, &n, &comms[h]),
			     0);
		n.lab->ranks[h].seq = 0;
	}
	lab_rails_settle(&n);
	for (uint32_t r = 0; r < HOSTS; r++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .comm = 2,
				     .dtype = DTYPE_I64,
				     .count = ITEMS,
				     .send_buf = 1,
				     .recv_buf = 1};

		tickets[r] = lab_post(n.lab, r, &d);
	}
	for (uint32_t r = 0; r < HOSTS; r++) {
		cr_assert_eq(lab_wait(n.lab, r, tickets[r]), STATUS_OK);
	}
	cr_assert_eq(lab_rails_made(&n, true), qps);
	cr_assert_eq(lab_rails_made(&n, false), registered);
	put_region(&n, 0, &base);
	cr_assert_eq(lab_rails_made(&n, true), qps);
	cr_assert_eq(lab_rails_made(&n, false), registered + RAILS);
	n.pending += HOSTS + 1;
	engine_region_remove(n.lab->engines[0], n.lab->ranks[0].session, 9, lab_rails_done, &n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		engine_comm_remove(n.lab->engines[h], comms[h], lab_rails_done, &n);
	}
	lab_rails_settle(&n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		comm_view_free(views[h]);
	}
	lab_rails_fini(&n);
}

/* Completions that come twice or in another order change nothing. */
Test(engine_rails, completions_doubled_and_swapped, .timeout = 120)
{
	struct lab_rails n;

	lab_rails_init(&n, 5, RAILS);
	for (uint32_t round = 0; round < 40; round++) {
		lab_rails_mangle(&n, round % 2, round & 2, round * 3 % 17,
				 round & 4 ? FAKE_DOUBLE : FAKE_SWAP);
		allreduce(&n, 60000, round);
	}
	cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
	lab_rails_fini(&n);
}

/*
 * One that never comes: later ones stand for it, the rail is left, or the peer is, with an error
 * and in time; what is completed is right.
 */
static void lose(uint64_t seed, bool receive, uint32_t nth)
{
	uint32_t tickets[HOSTS];
	struct lab_rails n;
	int status[HOSTS];

	lab_rails_init(&n, seed, RAILS);
	lab_rails_mangle(&n, 0, receive, nth, FAKE_DROP);
	post(&n, ITEMS, nth, tickets);
	for (uint32_t r = 0; r < HOSTS; r++) {
		status[r] = lab_wait(n.lab, r, tickets[r]);
		cr_assert(status[r] == STATUS_OK || status[r] == STATUS_PEER_DIED, "status %d",
			  status[r]);
		if (status[r] != STATUS_OK) {
			/* The other daemon hears of it through this one's. */
			for (uint32_t h = 0; h < HOSTS; h++) {
				engine_comm_fail(n.lab->engines[h], n.lab->comms[h],
						 STATUS_PEER_DIED);
			}
		}
	}
	if (status[0] == STATUS_OK && status[1] == STATUS_OK) {
		check(&n, ITEMS, nth);
	}
	lab_rails_fini(&n);
}

Test(engine_rails, completions_lost, .timeout = 120)
{
	for (uint32_t nth = 0; nth < 6; nth++) {
		lose(20 + nth, nth % 2, nth * 7);
	}
}

/* A rail goes in the middle, then both: the rest goes another way, with the same bits. */
Test(engine_rails, links_go_and_come_back, .timeout = 120)
{
	struct lab_rails n;

	lab_rails_init(&n, 7, RAILS);
	for (uint32_t round = 0; round < 12; round++) {
		uint32_t tickets[HOSTS], gone = round % 3; /* 2: both */

		post(&n, ITEMS, round, tickets);
		poll(NULL, 0, (int)(round % 4));
		for (uint32_t r = 0; r < RAILS; r++) {
			if (gone == r || gone == 2) {
				lab_rails_link(&n, r, false);
			}
		}
		for (uint32_t r = 0; r < HOSTS; r++) {
			int status = lab_wait(n.lab, r, tickets[r]);

			cr_assert_eq(status, STATUS_OK, "status %d in round %u", status, round);
		}
		check(&n, ITEMS, round);
		for (uint32_t r = 0; r < RAILS; r++) {
			lab_rails_link(&n, r, true);
		}
		lab_rails_wait_up(&n);
	}
	cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
	lab_rails_fini(&n);
}

/* ---- memory that cannot be registered ------------------------------------------------------- */

static void put_region(struct lab_rails *n, uint32_t h, uint8_t **ret_base)
{
	struct quota_charge none = {0};
	struct region *region;
	uint8_t *base = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(base, MAP_FAILED);
	cr_assert_eq(region_new(base, MEM, MEM, &none, &region), 0);
	cr_assert_eq(engine_region_add(n->lab->engines[h], n->lab->ranks[h].session, 9, region), 0);
	region_unref(region);
	n->pending++;
	if (engine_region_ready(n->lab->engines[h], n->lab->ranks[h].session, 9, lab_rails_done,
				n)) {
		n->pending--;
	}
	lab_rails_settle(n);
	*ret_base = base;
}

static void sum_of_staged(struct lab_rails *n, uint8_t *base[HOSTS], uint32_t round)
{
	uint32_t tickets[HOSTS];

	for (uint32_t r = 0; r < HOSTS; r++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .dtype = DTYPE_I64,
				     .op = REDOP_SUM,
				     .count = ITEMS,
				     .send_buf = 9,
				     .recv_buf = 9,
				     .recv_off = HALF};

		for (uint64_t i = 0; i < ITEMS; i++) {
			((int64_t *)base[r])[i] = value(r, i, round);
		}
		tickets[r] = lab_post(n->lab, r, &d);
	}
	for (uint32_t r = 0; r < HOSTS; r++) {
		cr_assert_eq(lab_wait(n->lab, r, tickets[r]), STATUS_OK);
	}
	for (uint32_t r = 0; r < HOSTS; r++) {
		for (uint64_t i = 0; i < ITEMS; i++) {
			cr_assert_eq(((int64_t *)(base[r] + HALF))[i],
				     value(0, i, round) + value(1, i, round));
		}
	}
}

/* Refused by one device of two, on one host or both: staged, over the same rails. */
Test(engine_rails, registrations_that_fail, .timeout = 120)
{
	static const int errors[] = {ENOMEM, EFAULT, EPERM};

	for (uint32_t which = 0; which < ARRAY_SIZE(errors); which++) {
		uint8_t *base[HOSTS];
		uint64_t before;
		struct lab_rails n;

		lab_rails_init(&n, 40 + which, RAILS);
		n.devices[0][which % RAILS]->caps.reg_errno = errors[which];
		n.devices[1][0]->caps.reg_errno = which == 2 ? EFAULT : 0;
		for (uint32_t h = 0; h < HOSTS; h++) {
			put_region(&n, h, &base[h]);
		}
		before = lab_rails_delivered(&n);
		for (uint32_t round = 0; round < 3; round++) {
			sum_of_staged(&n, base, round);
		}
		cr_assert_geq(lab_rails_delivered(&n) - before, 3 * 2 * HALF);
		cr_assert_gt(counted(&n, 0, offsetof(struct thread_view, bytes_copied)), HALF);
		/* What was registered before works as before. */
		allreduce(&n, 100003, which);
		for (uint32_t h = 0; h < HOSTS; h++) {
			n.devices[h][which % RAILS]->caps.reg_errno = 0;
			n.pending++;
			engine_region_remove(n.lab->engines[h], n.lab->ranks[h].session, 9,
					     lab_rails_done, &n);
		}
		lab_rails_settle(&n);
		cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
		lab_rails_fini(&n);
	}
}
