/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the verbs backend: messages, memory, credits, sleeping
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>

#include "tests/unit/transport/verbs_fixture.h"

static void run(struct vnet *n, uint32_t to, uint32_t count)
{
	for (int i = 0; i < 2000000 && (n->end[to].done < count || n->end[!to].sent < count); i++) {
		vnet_turn(n);
		cr_assert(!n->end[0].down && !n->end[1].down, "%s%s", n->end[0].reason,
			  n->end[1].reason);
	}
}

static void run_sizes(uint32_t rails, enum vmode mode, uint32_t pieces)
{
	static const uint64_t sizes[] = {0,    1,    63,    64,	    4095,   8192,
					 8193, 9999, 65536, 100001, 1000000};
	uint32_t count = ARRAY_SIZE(sizes);
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 7 + rails + mode * 3 + pieces, rails, NULL, false);
	m = vmsgs_new(&n, 0, count);
	for (uint32_t i = 0; i < count; i++) {
		vmsg_init(&m[i], sizes[i], pieces, mode);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	run(&n, 1, count);
	vmsgs_check(m, count);
	vnet_fini(&n);
	vmsgs_free(m, count);
}

Test(verbs, sizes)
{
	for (enum vmode mode = V_DIRECT; mode <= V_MIXED; mode++) {
		for (uint32_t rails = 1; rails <= 2; rails++) {
			run_sizes(rails, mode, 1);
			run_sizes(rails, mode, 3);
			run_sizes(rails, mode, 200);
		}
	}
}

static void run_both_ways(uint32_t rails, const struct verbs_options *options, uint64_t seed)
{
	uint32_t count = 300;
	struct vmsg *m[HOSTS];
	struct vnet n;

	vnet_init(&n, seed, rails, options, false);
	for (uint32_t h = 0; h < HOSTS; h++) {
		m[h] = vmsgs_new(&n, h, count);
	}
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t h = 0; h < HOSTS; h++) {
			uint64_t length = vrandom(&n, UINT64_C(1) << (1 + vrandom(&n, 17)));

			vmsg_init(&m[h][i], length, 1 + (uint32_t)vrandom(&n, 9), V_MIXED);
			verbs_send(n.end[h].peer, &m[h][i].send);
		}
		if (vrandom(&n, 3) == 0) {
			vnet_turn(&n);
		}
	}
	for (uint32_t h = 0; h < HOSTS; h++) {
		run(&n, h, count);
	}
	for (uint32_t h = 0; h < HOSTS; h++) {
		vmsgs_check(m[h], count);
	}
	vnet_fini(&n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		vmsgs_free(m[h], count);
	}
}

Test(verbs, both_ways)
{
	struct verbs_options tight = {.fragment = 1024,
				      .eager = 4096,
				      .frames = 80,
				      .chunks = 4,
				      .bulk_qps = 1,
				      .bulk_depth = 1,
				      .credits = 8,
				      .tickets = 3},
			     wide = {.fragment = 64 * 1024, .bulk_qps = 8};

	run_both_ways(1, NULL, 1);
	run_both_ways(3, NULL, 2);
	run_both_ways(1, &tight, 3);
	run_both_ways(2, &tight, 4);
	run_both_ways(2, &wide, 5);
}

Test(verbs, registered_memory_is_not_copied)
{
	struct verbs_stats a, b;
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 9, 2, NULL, false);
	verbs_get_stats(n.end[0].v, &a);
	m = vmsgs_new(&n, 0, 1);
	vmsg_init(&m[0], 1 << 20, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[0].send);
	run(&n, 1, 1);
	vmsgs_check(m, 1);
	verbs_get_stats(n.end[0].v, &b);
	cr_assert_eq(b.bytes_copied, 0);
	cr_assert_eq(b.writes_sent - a.writes_sent, 64);
	/* Beside the writes: RTS, and a few credits. */
	cr_assert(b.frames_sent - a.frames_sent <= 4, "%zu frames",
		  (size_t)(b.frames_sent - a.frames_sent));
	cr_assert_eq(b.send_wrs - a.send_wrs, 64 + b.frames_sent - a.frames_sent);
	verbs_get_stats(n.end[1].v, &b);
	cr_assert_eq(b.bytes_copied, 0);
	cr_assert_eq(b.writes_received, 64);
	cr_assert(b.frames_sent < 20, "%zu frames", (size_t)b.frames_sent);
	vnet_fini(&n);
	vmsgs_free(m, 1);
}

/* What is sent in one turn: work requests, doorbells, and completions on both ends. */
Test(verbs, what_is_sent_together_goes_together)
{
	uint32_t shorts = 30, longs = 20;
	struct verbs_stats a, b;
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 10, 1, NULL, false);
	m = vmsgs_new(&n, 0, shorts + longs);
	verbs_get_stats(n.end[0].v, &a);
	for (uint32_t i = 0; i < shorts + longs; i++) {
		vmsg_init(&m[i], i < shorts ? 100 : 9000, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	verbs_get_stats(n.end[0].v, &b);
	cr_assert_eq(b.send_doorbells, a.send_doorbells);
	verbs_flush(n.end[0].v);
	verbs_get_stats(n.end[0].v, &b);
	/* 256 bytes a short message, 128 a request: 10240, in frames of 8 KiB. */
	cr_assert_eq(b.frames_sent - a.frames_sent, 50);
	cr_assert_eq(b.send_wrs - a.send_wrs, 2);
	cr_assert_eq(b.send_doorbells - a.send_doorbells, 1);
	run(&n, 1, shorts + longs);
	vmsgs_check(m, shorts + longs);
	verbs_get_stats(n.end[0].v, &b);
	/* The first is divided, as is some of the second: then both queue pairs have enough. */
	cr_assert_eq(b.writes_sent - a.writes_sent, longs + 3, "%zu writes",
		     (size_t)(b.writes_sent - a.writes_sent));
	cr_assert(b.send_wrs - a.send_wrs <= longs + 7, "%zu work requests",
		  (size_t)(b.send_wrs - a.send_wrs));
	verbs_get_stats(n.end[1].v, &b);
	cr_assert(b.send_wrs <= 8, "%zu work requests for grants", (size_t)b.send_wrs);
	vnet_fini(&n);
	vmsgs_free(m, shorts + longs);
}

static uint64_t writes_for(uint32_t count)
{
	const struct verbs_options o = {.fragment = 4096, .direct = 65536, .bulk_qps = 2};
	struct verbs_stats a, b;
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 12, 1, &o, false);
	m = vmsgs_new(&n, 0, count);
	verbs_get_stats(n.end[0].v, &a);
	for (uint32_t i = 0; i < count; i++) {
		vmsg_init(&m[i], 65536, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	run(&n, 1, count);
	vmsgs_check(m, count);
	verbs_get_stats(n.end[0].v, &b);
	vnet_fini(&n);
	vmsgs_free(m, count);
	return b.writes_sent - a.writes_sent;
}

/* One message is divided among queue pairs; of many each goes whole, as soon as all have work. */
Test(verbs, writes_are_no_smaller_than_they_must)
{
	cr_assert_eq(writes_for(1), 4);
	cr_assert_eq(writes_for(16), 4 + 15);
}

/* Many at once, one way: credits hold the sender back, receives never run out (see vnet_fini()). */
Test(verbs, flood)
{
	uint32_t count = 5000;
	struct verbs_stats s;
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 11, 1, NULL, false);
	m = vmsgs_new(&n, 0, count);
	for (uint32_t i = 0; i < count; i++) {
		vmsg_init(&m[i], i % 100, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	run(&n, 1, count);
	vmsgs_check(m, count);
	verbs_get_stats(n.end[0].v, &s);
	cr_assert(s.frames_sent <= count + count / 16 && s.send_doorbells < s.send_wrs / 2);
	/* One in sixteen asks for a completion. */
	cr_assert(s.completions < count / 4, "%zu completions", (size_t)s.completions);
	vnet_fini(&n);
	vmsgs_free(m, count);
}

/* Hosts that are configured differently agree on what both can. */
Test(verbs, different_options)
{
	static const struct verbs_options two[HOSTS] = {
		{.fragment = 4096, .eager = 4096, .credits = 8, .tickets = 5, .bulk_qps = 1},
		{.fragment = 65536, .eager = 16384, .credits = 200, .tickets = 300, .bulk_qps = 4},
	};

	for (uint32_t from = 0; from < HOSTS; from++) {
		uint32_t count = 400;
		struct verbs_rail_info info;
		struct vnet n;
		struct vmsg *m;

		vnet_init_two(&n, 61, 2, two);
		verbs_rail_info(n.end[from].peer, 0, &info);
		cr_assert_eq(info.nqps, 2);
		m = vmsgs_new(&n, from, count);
		for (uint32_t i = 0; i < count; i++) {
			vmsg_init(&m[i], i % 4 ? i : i * 200, 1, V_MIXED);
			verbs_send(n.end[from].peer, &m[i].send);
		}
		run(&n, !from, count);
		vmsgs_check(m, count);
		vnet_fini(&n);
		vmsgs_free(m, count);
	}
}

/* The receiver loses interest: the rest goes nowhere, and the memory is told free only when it is.
 */
Test(verbs, dropped_messages)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		uint32_t count = 6;
		bool dropped[6] = {false}, free_at_once[6] = {false};
		struct vnet n;
		struct vmsg *m;

		vnet_init(&n, seed + 70, 2, NULL, false);
		m = vmsgs_new(&n, 0, count);
		for (uint32_t i = 0; i < count; i++) {
			vmsg_init(&m[i], 300000, 1, i % 2 ? V_PLAIN : V_DIRECT);
			verbs_send(n.end[0].peer, &m[i].send);
		}
		for (int i = 0; i < 400000 && (n.end[1].done < count || n.end[0].sent < count);
		     i++) {
			uint32_t k = (uint32_t)vrandom(&n, count);

			if (m[k].begun && !m[k].received && !dropped[k] && vrandom(&n, 20) == 0) {
				free_at_once[k] = verbs_drop(n.end[1].peer, &m[k].recv);
				dropped[k] = true;
				m[k].mode = V_DISCARD;
				/* What is written from now on shows below. */
				memset(m[k].in, free_at_once[k] ? 0xa5 : 0, m[k].length);
				cr_assert(free_at_once[k] || k % 2 == 0);
			}
			vnet_turn(&n);
		}
		for (uint32_t k = 0; k < count; k++) {
			cr_assert(m[k].received == 1 && m[k].sent == 1);
			for (uint64_t i = 0; i < m[k].length && free_at_once[k]; i++) {
				cr_assert_eq(m[k].in[i], 0xa5);
			}
			m[k].mode = k % 2 ? V_PLAIN : V_DIRECT;
		}
		vnet_fini(&n);
		vmsgs_free(m, count);
	}
}

/* A thread that slept long is not taken for one that waited long. */
Test(verbs, long_sleep)
{
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 62, 1, NULL, false);
	m = vmsgs_new(&n, 0, 20);
	for (uint32_t i = 0; i < 20; i++) {
		fake_verbs_advance(n.fake, 100 * CLOCK_NS_PER_S);
		vmsg_init(&m[i], i * 3000, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
		verbs_poll(n.end[0].v);
		run(&n, 1, i + 1);
	}
	vmsgs_check(m, 20);
	cr_assert_eq(n.end[0].downs + n.end[1].downs, 0);
	vnet_fini(&n);
	vmsgs_free(m, 20);
}

Test(verbs, free_in_any_callback)
{
	for (enum vcall c = VC_BEGIN; c <= VC_RAIL; c++) {
		for (enum vmode mode = V_DIRECT; mode <= V_DISCARD; mode++) {
			uint32_t count = 20;
			struct vmsg *m, *back;
			struct vnet n;

			vnet_init(&n, 13 + c, 2, NULL, false);
			m = vmsgs_new(&n, 0, count);
			back = vmsgs_new(&n, 1, count);
			n.end[1].free_in = c;
			for (uint32_t i = 0; i < count; i++) {
				vmsg_init(&m[i], 1 + 3000 * i, 2, mode);
				vmsg_init(&back[i], 1 + 3000 * i, 2, mode);
				verbs_send(n.end[0].peer, &m[i].send);
				if (n.end[1].peer) {
					verbs_send(n.end[1].peer, &back[i].send);
				}
			}
			if (c >= VC_DOWN) {
				fake_verbs_link(n.devices[0][0], false);
				fake_verbs_link(n.devices[0][1], false);
			}
			for (int i = 0; i < 20000 && n.end[1].peer; i++) {
				vnet_turn(&n);
			}
			cr_assert(!n.end[1].peer || mode == V_DISCARD, "callback %d mode %d", c,
				  mode);
			for (int i = 0; i < 2000; i++) {
				vnet_turn(&n);
			}
			n.end[0].peer = verbs_peer_free(n.end[0].peer);
			for (uint32_t i = 0; i < count; i++) {
				cr_assert_eq(m[i].sent, 1);
			}
			vnet_fini(&n);
			vmsgs_free(m, count);
			vmsgs_free(back, count);
		}
	}
}

static bool readable(const struct verbs *v)
{
	struct pollfd p = {.fd = verbs_fd(v), .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void quiet(struct vnet *n)
{
	for (int i = 0; i < 2000; i++) {
		vnet_turn(n);
	}
}

Test(verbs, sleeps_and_wakes)
{
	struct verbs_stats before, after;
	struct vnet n;
	struct vmsg *m;

	vnet_init(&n, 17, 1, NULL, false);
	m = vmsgs_new(&n, 0, 3);
	quiet(&n);
	cr_assert(verbs_arm(n.end[1].v));
	cr_assert(!readable(n.end[1].v));
	vmsg_init(&m[0], 8, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[0].send);
	verbs_flush(n.end[0].v);
	while (fake_verbs_step(n.fake)) {
		/* until it is there */
	}
	cr_assert(readable(n.end[1].v));
	verbs_poll(n.end[1].v);
	cr_assert_eq(n.end[1].done, 1);

	/* The event is taken before the next sleep, and only one that must be there is looked for.
	 */
	verbs_get_stats(n.end[1].v, &before);
	cr_assert_eq(before.events, 0);
	quiet(&n);
	cr_assert(verbs_arm(n.end[1].v));
	cr_assert(!readable(n.end[1].v));
	verbs_get_stats(n.end[1].v, &after);
	cr_assert(after.events == 1 && after.notifies == before.notifies + 1);
	cr_assert(verbs_arm(n.end[1].v));
	verbs_get_stats(n.end[1].v, &after);
	cr_assert(after.events == 1 && after.notifies == before.notifies + 1);

	/* What comes meanwhile wakes, and what came before arming is not slept over. */
	vmsg_init(&m[1], 8, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[1].send);
	verbs_flush(n.end[0].v);
	while (fake_verbs_step(n.fake)) {
		/* until it is there */
	}
	cr_assert(readable(n.end[1].v));
	verbs_poll(n.end[1].v);
	cr_assert_eq(n.end[1].done, 2);
	verbs_get_stats(n.end[1].v, &before);
	vmsg_init(&m[2], 8, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[2].send);
	verbs_flush(n.end[0].v);
	while (fake_verbs_step(n.fake)) {
		/* until it is there */
	}
	cr_assert(!verbs_arm(n.end[1].v));
	verbs_poll(n.end[1].v);
	cr_assert_eq(n.end[1].done, 3);
	verbs_get_stats(n.end[1].v, &after);
	cr_assert(after.notifies - before.notifies == 1);
	vnet_fini(&n);
	vmsgs_free(m, 3);
}

Test(verbs, options)
{
	struct verbs_options o[] = {{.fragment = 100}, {.retry = 7},	  {.rnr_retry = 7},
				    {.bulk_qps = 9},   {.tickets = 2000}, {.credits = 2}};
	struct verbs_handler none = {0};
	struct verbs *v;

	for (size_t i = 0; i < ARRAY_SIZE(o); i++) {
		cr_assert_eq(verbs_new(&o[i], &none, NULL, &clock_system, &v), -EINVAL);
	}
}

Test(verbs, regions)
{
	struct verbs_options o = {0};
	struct verbs_handler none = {0};
	uint8_t *base = malloc(4096);
	struct rdma_mem a = {.base = base, .size = 1024}, b = {.base = base + 1024, .size = 1024},
			c = {.base = base + 2000, .size = 100};
	struct verbs *v;

	cr_assert_eq(verbs_new(&o, &none, NULL, &clock_system, &v), 0);
	cr_assert_eq(verbs_mem_add(v, &b), 0);
	cr_assert_eq(verbs_mem_add(v, &a), 0);
	cr_assert_eq(verbs_mem_add(v, &c), -EEXIST);
	verbs_mem_remove(v, &b);
	cr_assert_eq(verbs_mem_add(v, &c), 0);
	verbs_free(v);
	free(base);
}
