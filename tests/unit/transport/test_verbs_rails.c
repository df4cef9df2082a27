/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the verbs backend: rails that fail and come back, lost completions, peers that are gone
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/transport/verbs_fixture.h"

#define COUNT 24

static void must_be_up(const struct vnet *n)
{
	cr_assert(!n->end[0].down && !n->end[1].down, "%s%s", n->end[0].reason, n->end[1].reason);
}

static void turn(struct vnet *n, uint64_t ns)
{
	vnet_turn(n);
	fake_verbs_advance(n->fake, ns);
}

/* Events reach the contexts as the control thread would hand them on. */
static void hand_on_events(struct vnet *n)
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			struct rdma_device *d = n->end[h].devices->devices[r];
			struct rdma_event event;

			while (rdma_device_event(d, &event) == 0) {
				verbs_device_event(n->end[h].v, d, &event);
			}
		}
	}
}

static bool all_through(const struct vnet *n)
{
	return n->end[0].done == COUNT && n->end[1].done == COUNT && n->end[0].sent == COUNT &&
	       n->end[1].sent == COUNT;
}

static void send_all(struct vnet *n, struct vmsg *m[HOSTS], bool mixed)
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		m[h] = vmsgs_new(n, h, COUNT);
	}
	for (uint32_t i = 0; i < COUNT; i++) {
		for (uint32_t h = 0; h < HOSTS; h++) {
			uint64_t length = vrandom(n, UINT64_C(1) << (4 + vrandom(n, 15)));

			vmsg_init(&m[h][i], length, 1 + (uint32_t)vrandom(n, 3),
				  mixed ? V_MIXED : V_DIRECT);
			verbs_send(n->end[h].peer, &m[h][i].send);
		}
	}
}

static void done_all(struct vnet *n, struct vmsg *m[HOSTS])
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		vmsgs_check(m[h], COUNT);
	}
	vnet_fini(n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		vmsgs_free(m[h], COUNT);
	}
}

/* A rail goes at a random moment and comes back at another; every byte arrives once. */
static void run_loss(uint64_t seed, bool events, uint64_t *resent)
{
	struct verbs_stats s;
	struct vmsg *m[HOSTS];
	uint64_t at, back;
	struct vnet n;
	uint32_t rail;

	vnet_init(&n, seed, 2, NULL, false);
	send_all(&n, m, true);
	at = vrandom(&n, 1500);
	back = at + vrandom(&n, 4000);
	rail = (uint32_t)vrandom(&n, 2);
	for (uint64_t i = 0; i < 400000 && (!all_through(&n) || i <= back); i++) {
		if (i == at) {
			fake_verbs_link(n.devices[vrandom(&n, 2)][rail], false);
		}
		if (i == back) {
			fake_verbs_link(n.devices[0][rail], true);
			fake_verbs_link(n.devices[1][rail], true);
		}
		if (events) {
			hand_on_events(&n);
		}
		turn(&n, 100 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	cr_assert(all_through(&n), "seed %zu: %u/%u done %u/%u sent", (size_t)seed, n.end[0].done,
		  n.end[1].done, n.end[0].sent, n.end[1].sent);
	vnet_settle(&n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		verbs_get_stats(n.end[h].v, &s);
		*resent += s.resent_writes + s.resent_frames;
	}
	for (int i = 0; i < 500; i++) {
		vnet_turn(&n);
	}
	cr_assert_eq(fake_verbs_in_network(n.fake), 0);
	done_all(&n, m);
}

Test(verbs_rails, loss_at_any_moment)
{
	uint64_t resent = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		run_loss(seed, false, &resent);
		run_loss(seed + 1000, true, &resent);
	}
	cr_assert(resent > 100, "only %zu were sent again: the test shows little", (size_t)resent);
}

/* It is used again, and told so. */
Test(verbs_rails, comes_back)
{
	struct verbs_rail_info info;
	uint64_t writes;
	struct vmsg *m;
	struct vnet n;

	vnet_init(&n, 3, 2, NULL, false);
	cr_assert_eq(n.end[0].ups, 2);
	fake_verbs_link(n.devices[1][0], false);
	hand_on_events(&n);
	for (int i = 0; i < 20000; i++) {
		turn(&n, CLOCK_NS_PER_MS);
	}
	must_be_up(&n);
	cr_assert(n.end[0].downs >= 1 && n.end[1].downs >= 1);
	verbs_rail_info(n.end[1].peer, 0, &info);
	cr_assert(info.state != VERBS_RAIL_UP);
	cr_assert(strstr(info.reason, "roceb0 port 1"), "%s", info.reason);
	fake_verbs_link(n.devices[1][0], true);
	hand_on_events(&n);
	vnet_settle(&n);
	writes = n.devices[0][0]->writes;
	m = vmsgs_new(&n, 0, 1);
	vmsg_init(&m[0], 1 << 20, 1, V_DIRECT);
	verbs_send(n.end[0].peer, &m[0].send);
	while (!n.end[1].done || !n.end[0].sent) {
		vnet_turn(&n);
	}
	vmsgs_check(m, 1);
	cr_assert(n.devices[0][0]->writes > writes + 10);
	vnet_fini(&n);
	vmsgs_free(m, 1);
}

/* Flapping for long: rails come and go, both at times; all of it arrives, or the peer is down. */
Test(verbs_rails, flapping)
{
	for (uint64_t seed = 1; seed <= 15; seed++) {
		struct vmsg *m[HOSTS];
		struct vnet n;

		vnet_init(&n, seed * 77, 3, NULL, false);
		send_all(&n, m, true);
		for (uint64_t i = 0; i < 30000 && !all_through(&n); i++) {
			if (vrandom(&n, 200) == 0) {
				/* The third stays. */
				struct fake_device *d = n.devices[vrandom(&n, 2)][vrandom(&n, 2)];

				fake_verbs_link(d, !d->link);
			}
			hand_on_events(&n);
			turn(&n, CLOCK_NS_PER_MS);
			must_be_up(&n);
		}
		for (uint32_t h = 0; h < HOSTS; h++) {
			for (uint32_t r = 0; r < 2; r++) {
				fake_verbs_link(n.devices[h][r], true);
			}
		}
		hand_on_events(&n);
		vnet_settle(&n);
		for (uint64_t i = 0; i < 400000 && !all_through(&n); i++) {
			turn(&n, CLOCK_NS_PER_US);
		}
		cr_assert(all_through(&n), "seed %zu", (size_t)seed);
		done_all(&n, m);
	}
}

Test(verbs_rails, none_left)
{
	struct vmsg *m[HOSTS];
	struct vnet n;

	vnet_init(&n, 5, 2, NULL, false);
	send_all(&n, m, true);
	for (int i = 0; i < 30; i++) {
		vnet_turn(&n);
	}
	fake_verbs_link(n.devices[1][0], false);
	fake_verbs_link(n.devices[1][1], false);
	for (int i = 0; i < 100000 && (!n.end[0].down || !n.end[1].down); i++) {
		turn(&n, CLOCK_NS_PER_MS);
	}
	cr_assert(n.end[0].down == 1 && n.end[1].down == 1, "%u (%s) and %u (%s)", n.end[0].down,
		  n.end[0].reason, n.end[1].down, n.end[1].reason);
	cr_assert(strstr(n.end[0].reason, "GID 10.") && strstr(n.end[0].reason, "rocea") &&
			  strstr(n.end[0].reason, "roceb") && strstr(n.end[0].reason, "beta") &&
			  strstr(n.end[0].reason, "status 12") &&
			  strstr(n.end[0].reason, "UDP 4791"),
		  "%s", n.end[0].reason);
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t i = 0; i < COUNT; i++) {
			cr_assert_eq(m[h][i].sent, 1);
		}
	}
	vnet_fini(&n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		vmsgs_free(m[h], COUNT);
	}
}

/* The only rail goes and comes back, several times: the ends meet again another way. */
static void run_outage(uint64_t seed, uint32_t rails, bool stand_in, uint64_t *resent,
		       uint64_t *outside)
{
	struct verbs_stats s;
	struct vmsg *m[HOSTS];
	struct vnet n;
	uint64_t next = 0;

	if (stand_in) {
		vnet_init_stand_in(&n, seed, rails);
	} else {
		vnet_init_outside(&n, seed, rails);
	}
	send_all(&n, m, true);
	for (uint64_t i = 0; i < 400000 && !all_through(&n); i++) {
		if (i >= next) {
			bool up = !n.devices[0][0]->link;
			uint32_t host = (uint32_t)vrandom(&n, 2);

			for (uint32_t r = 0; r < rails; r++) {
				fake_verbs_link(n.devices[0][r], up || host);
				fake_verbs_link(n.devices[1][r], up || !host);
			}
			next = i + vrandom(&n, up ? 1000 : 3000);
		}
		hand_on_events(&n);
		turn(&n, 200 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	cr_assert(all_through(&n), "seed %zu: %u/%u done %u/%u sent, %u on the other transport",
		  (size_t)seed, n.end[0].done, n.end[1].done, n.end[0].sent, n.end[1].sent,
		  n.nother);
	for (uint32_t h = 0; h < HOSTS; h++) {
		verbs_get_stats(n.end[h].v, &s);
		*resent += s.resent_writes + s.resent_frames;
		*outside += s.outside_writes;
	}
	done_all(&n, m);
}

Test(verbs_rails, outage_of_all)
{
	uint64_t resent = 0, outside = 0;

	for (uint64_t seed = 1; seed <= 25; seed++) {
		run_outage(seed, 1, false, &resent, &outside);
		run_outage(seed + 100, 2, false, &resent, &outside);
	}
	cr_assert(resent > 100, "only %zu", (size_t)resent);
	cr_assert_eq(outside, 0);
}

/* Another transport finishes what was begun and takes what was not; rails may be back any time. */
Test(verbs_rails, stand_in)
{
	uint64_t resent = 0, outside = 0;

	for (uint64_t seed = 1; seed <= 50; seed++) {
		run_outage(seed, 1, true, &resent, &outside);
		run_outage(seed + 100, 2, true, &resent, &outside);
	}
	cr_assert(resent > 100, "only %zu", (size_t)resent);
	cr_assert(outside > 100, "only %zu", (size_t)outside);
}

/* No rail comes back: all arrives all the same, and the peer is not down. */
Test(verbs_rails, stand_in_for_good)
{
	struct vmsg *m[HOSTS];
	struct vnet n;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		vnet_init_stand_in(&n, seed, 2);
		send_all(&n, m, true);
		for (uint64_t i = vrandom(&n, 1500); i > 0; i--) {
			turn(&n, 100 * CLOCK_NS_PER_US);
		}
		for (uint32_t r = 0; r < 2; r++) {
			fake_verbs_link(n.devices[vrandom(&n, 2)][r], false);
		}
		for (int i = 0; i < 100000 && !all_through(&n); i++) {
			turn(&n, CLOCK_NS_PER_MS);
			must_be_up(&n);
		}
		cr_assert(all_through(&n));
		cr_assert_eq(n.end[0].ups + n.end[1].ups, 4);
		for (int i = 0; i < 30000; i++) {
			turn(&n, CLOCK_NS_PER_MS);
		}
		must_be_up(&n);
		done_all(&n, m);
	}
}

/* It does not come back: the peer is down in time, with the reason of the rail. */
Test(verbs_rails, outage_for_good)
{
	struct vmsg *m[HOSTS];
	uint64_t start;
	struct vnet n;

	vnet_init_outside(&n, 51, 1);
	send_all(&n, m, true);
	fake_verbs_link(n.devices[1][0], false);
	start = clock_now(fake_verbs_clock(n.fake));
	for (int i = 0; i < 100000 && !(n.end[0].down && n.end[1].down); i++) {
		turn(&n, CLOCK_NS_PER_MS);
	}
	cr_assert(n.end[0].down && n.end[1].down);
	cr_assert(clock_now(fake_verbs_clock(n.fake)) - start < 15 * CLOCK_NS_PER_S);
	cr_assert(strstr(n.end[0].reason, "no rail came back within 10000 ms") &&
			  strstr(n.end[0].reason, "rocea0") && strstr(n.end[0].reason, "GID 10."),
		  "%s", n.end[0].reason);
	vnet_fini(&n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		vmsgs_free(m[h], COUNT);
	}
}

static void run_mangled(bool receive, enum fake_mangle what, uint64_t seed, uint32_t rails,
			uint32_t *ret_failed)
{
	struct vmsg *m[HOSTS];
	struct vnet n;
	bool down;

	vnet_init(&n, seed, rails, NULL, false);
	send_all(&n, m, true);
	fake_verbs_mangle(n.devices[vrandom(&n, 2)][0], receive, (uint32_t)vrandom(&n, 60), what);
	for (int i = 0; i < 300000 && !all_through(&n) && !n.end[0].down && !n.end[1].down; i++) {
		turn(&n, 200 * CLOCK_NS_PER_US);
	}
	down = n.end[0].down || n.end[1].down;
	cr_assert(down || all_through(&n), "it hangs: seed %zu %d %d", (size_t)seed, receive, what);
	if (down) {
		const char *text = n.end[0].down ? n.end[0].reason : n.end[1].reason;

		++*ret_failed;
		cr_assert(what == FAKE_DROP, "%s", text);
		cr_assert(strstr(text, "state "), "%s", text);
		vnet_fini(&n);
		for (uint32_t h = 0; h < HOSTS; h++) {
			vmsgs_free(m[h], COUNT);
		}
	} else {
		done_all(&n, m);
	}
}

/* One completion twice, swapped with the next, or lost: right, or an error in time. */
Test(verbs_rails, mangled_completions)
{
	uint32_t failed = 0;

	for (uint64_t seed = 1; seed <= 12; seed++) {
		for (int receive = 0; receive < 2; receive++) {
			run_mangled(receive, FAKE_DOUBLE, seed, 1, &failed);
			run_mangled(receive, FAKE_SWAP, seed, 2, &failed);
		}
		cr_assert_eq(failed, 0);
	}
	for (uint64_t seed = 1; seed <= 12; seed++) {
		run_mangled(true, FAKE_DROP, seed, 1, &failed);
		run_mangled(false, FAKE_DROP, seed, 2, &failed);
	}
	cr_assert(failed > 0);
}

/* A slow rail gets less, and does not hold the others up. */
Test(verbs_rails, slow_rail)
{
	struct vmsg *m;
	struct vnet n;
	uint64_t fast, slow;
	uint32_t count = 8;

	vnet_init(&n, 21, 2, NULL, false);
	n.devices[0][1]->slow = 20;
	fast = n.devices[0][0]->bytes;
	slow = n.devices[0][1]->bytes;
	m = vmsgs_new(&n, 0, count);
	for (uint32_t i = 0; i < count; i++) {
		vmsg_init(&m[i], 1 << 20, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	while (n.end[1].done < count || n.end[0].sent < count) {
		turn(&n, 20 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	vmsgs_check(m, count);
	fast = n.devices[0][0]->bytes - fast;
	slow = n.devices[0][1]->bytes - slow;
	cr_assert(slow > 0 && fast > 3 * slow, "%zu and %zu bytes", (size_t)fast, (size_t)slow);
	vnet_fini(&n);
	vmsgs_free(m, count);
}

/* Equal rails get about the same. */
Test(verbs_rails, equal_rails)
{
	struct vmsg *m;
	struct vnet n;
	uint64_t a, b;

	vnet_init(&n, 22, 2, NULL, false);
	a = n.devices[0][0]->bytes;
	b = n.devices[0][1]->bytes;
	m = vmsgs_new(&n, 0, 4);
	for (uint32_t i = 0; i < 4; i++) {
		vmsg_init(&m[i], 4 << 20, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	while (n.end[1].done < 4 || n.end[0].sent < 4) {
		vnet_turn(&n);
	}
	vmsgs_check(m, 4);
	a = n.devices[0][0]->bytes - a;
	b = n.devices[0][1]->bytes - b;
	cr_assert(a * 10 > b * 7 && b * 10 > a * 7, "%zu and %zu bytes", (size_t)a, (size_t)b);
	vnet_fini(&n);
	vmsgs_free(m, 4);
}

/* Elephants are spread: what each queue pair (UDP source port) carried differs little. */
Test(verbs_rails, equal_queue_pairs)
{
	struct verbs_options o = {
		.fragment = 4096, .direct = 4096, .chunks = 16, .bulk_qps = 4, .bulk_depth = 16};
	uint64_t least = UINT64_MAX, most = 0;
	struct vmsg *m;
	struct vnet n;

	vnet_init(&n, 28, 1, &o, false);
	m = vmsgs_new(&n, 0, 8);
	for (uint32_t i = 0; i < 8; i++) {
		vmsg_init(&m[i], 2 << 20, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	while (n.end[1].done < 8 || n.end[0].sent < 8) {
		vnet_turn(&n);
	}
	vmsgs_check(m, 8);
	for (uint32_t i = 1; i <= 4; i++) {
		uint64_t bytes = fake_verbs_qp_bytes(n.devices[0][0], i);

		least = MIN(least, bytes);
		most = MAX(most, bytes);
	}
	cr_assert(most - least < most / 10, "%zu to %zu bytes", (size_t)least, (size_t)most);
	vnet_fini(&n);
	vmsgs_free(m, 8);
}

/* Nothing completes and nothing fails: the time-out of a work request ends it. */
Test(verbs_rails, silent_device)
{
	struct verbs_options o = {.fragment = 4096, .chunks = 16, .wr_timeout_ms = 100};
	struct vmsg *m[HOSTS];
	struct vnet n;

	vnet_init(&n, 23, 2, &o, false);
	send_all(&n, m, true);
	n.devices[0][1]->stalled = true;
	for (int i = 0; i < 200000 && !all_through(&n); i++) {
		turn(&n, 100 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	cr_assert(all_through(&n));
	n.devices[0][1]->stalled = false;
	vnet_settle(&n);
	done_all(&n, m);
}

/* Frames that are stuck on one rail do not let the others' numbers run away. */
Test(verbs_rails, numbers_wait)
{
	struct verbs_options o = {
		.fragment = 4096, .chunks = 16, .wr_timeout_ms = 4000, .credits = 200};
	uint32_t count = 9000;
	struct vmsg *m;
	struct vnet n;

	vnet_init(&n, 27, 2, &o, false);
	n.devices[0][0]->stalled = true;
	m = vmsgs_new(&n, 0, count);
	for (uint32_t i = 0; i < count; i++) {
		vmsg_init(&m[i], i % 64, 1, V_DIRECT);
		verbs_send(n.end[0].peer, &m[i].send);
	}
	for (int i = 0; i < 400000 && n.end[1].done < count; i++) {
		turn(&n, 20 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	vmsgs_check(m, count);
	n.devices[0][0]->stalled = false;
	vnet_settle(&n);
	vnet_fini(&n);
	vmsgs_free(m, count);
}

static void run_fatal(bool removed)
{
	struct vmsg *m[HOSTS];
	struct rdma_options all = {NULL, NULL};
	struct rdma_device *d;
	struct vnet n;

	vnet_init(&n, 24, 2, NULL, false);
	send_all(&n, m, true);
	for (int i = 0; i < 400; i++) {
		vnet_turn(&n);
	}
	d = n.end[0].devices->devices[0];
	if (removed) {
		n.devices[0][0]->present = false;
		cr_assert_eq(rdma_refresh(n.end[0].devices, &all), 0);
		cr_assert(d->gone);
		verbs_device_lost(n.end[0].v, d, d->reason);
	} else {
		fake_verbs_event(n.devices[0][0], IBV_EVENT_DEVICE_FATAL);
		hand_on_events(&n);
	}
	for (int i = 0; i < 200000 && !all_through(&n); i++) {
		turn(&n, 100 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	cr_assert(all_through(&n));
	cr_assert_eq(n.devices[0][0]->qps, 0);
	cr_assert_eq(n.devices[0][0]->cqs, 0, "%d %d", n.devices[0][0]->cqs, removed);
	done_all(&n, m);
}

Test(verbs_rails, device_breaks)
{
	run_fatal(false);
	run_fatal(true);
}

/* A device that nobody was to use any more may be used again: its rail comes back by itself. */
static void run_denied(uint32_t host)
{
	struct vmsg *m[HOSTS];
	struct rdma_device *d;
	char why[200] = "";
	struct vnet n;

	vnet_init(&n, 25, 2, NULL, false);
	send_all(&n, m, true);
	for (int i = 0; i < 400; i++) {
		vnet_turn(&n);
	}
	d = n.end[host].devices->devices[0];
	verbs_device_lost(n.end[host].v, d, "denied by the configuration");
	rdma_mem_drop_device(n.end[host].mem, d);
	for (int i = 0; i < 200000 && !all_through(&n); i++) {
		turn(&n, 100 * CLOCK_NS_PER_US);
		must_be_up(&n);
	}
	cr_assert(all_through(&n));
	cr_assert_eq(n.devices[host][0]->qps + n.devices[host][0]->cqs, 0);
	cr_assert_eq(rdma_mem_add_device(n.end[host].mem, d), 0);
	cr_assert_eq(verbs_device_add(n.end[host].v, d, why, sizeof(why)), 0, "%s", why);
	vnet_settle(&n);
	cr_assert(n.end[0].ups == 3 && n.end[1].ups == 3, "%d %d", n.end[0].ups, n.end[1].ups);
	done_all(&n, m);
}

Test(verbs_rails, device_denied_and_allowed)
{
	run_denied(0);
	run_denied(1);
}

/* An event of a port that is not used, or of one that is the only one, is no failure. */
Test(verbs_rails, harmless_events)
{
	struct vnet n;

	vnet_init(&n, 25, 1, NULL, false);
	fake_verbs_event(n.devices[0][0], IBV_EVENT_SM_CHANGE);
	fake_verbs_event(n.devices[0][0], IBV_EVENT_PORT_ERR);
	fake_verbs_event(n.devices[0][0], IBV_EVENT_PORT_ACTIVE);
	fake_verbs_event(n.devices[0][0], IBV_EVENT_GID_CHANGE);
	hand_on_events(&n);
	for (int i = 0; i < 1000; i++) {
		vnet_turn(&n);
	}
	must_be_up(&n);
	cr_assert_eq(n.end[0].downs, 0);
	vnet_fini(&n);
}

/* The address moves to another index while the rail is down: found again there. */
Test(verbs_rails, gid_moves)
{
	struct fake_device *d;
	struct verbs_rail_info before, after;
	struct vnet n;

	vnet_init(&n, 26, 2, NULL, false);
	d = n.devices[0][0];
	verbs_rail_info(n.end[0].peer, 0, &before);
	fake_verbs_link(d, false);
	hand_on_events(&n);
	for (int i = 0; i < 5000; i++) {
		turn(&n, CLOCK_NS_PER_MS);
	}
	d->gids[1] = d->gids[before.gid_index];
	d->gids[before.gid_index].valid = false;
	fake_verbs_link(d, true);
	hand_on_events(&n);
	vnet_settle(&n);
	verbs_rail_info(n.end[0].peer, 0, &after);
	cr_assert_eq(after.gid_index, 1);
	cr_assert_neq(before.gid_index, 1);
	vnet_fini(&n);
}
