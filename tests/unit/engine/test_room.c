/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the room that memory of clients has with devices: bounds, quotas, what is given back
 *
 * Thread: the test's, and the engine's      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/client_ring.h"
#include "engine/engine_impl.h"
#include "mem/region.h"
#include "proto/base.h"
#include "tests/unit/engine/desk.h"

#define MIB DESK_LARGE
#define FIRST DESK_FIRST

static const struct engine_region *find(const struct desk *k, uint32_t id)
{
	list_for_each (l, &k->engine->regions) {
		const struct engine_region *r = container_of(l, struct engine_region, all);

		if (r->id == id && r->session == k->lab->ranks[0].session && !r->leaving) {
			return r;
		}
	}
	return NULL;
}

/* Does the progress thread send from it and receive into it without copies? */
static bool is_registered(const struct desk *k, uint32_t id)
{
	const struct engine_region *r = find(k, id);

	return r && r->pin.told && !r->pin.busy && pin_has(&r->pin);
}

static void put(struct desk *k, uint32_t id, size_t size)
{
	int ready = 0;

	if (!desk_put(k, id, size, &ready)) {
		desk_wait(k, &ready, 1);
	}
}

static void take(struct desk *k, uint32_t id)
{
	int gone = 0;

	desk_take(k, id, &gone);
	desk_wait(k, &gone, 1);
}

static void wait_registered(struct desk *k, uint32_t id)
{
	for (int i = 0; i < 20000 && !is_registered(k, id); i++) {
		lab_pump(k->lab);
		poll(NULL, 0, 1);
	}
	cr_assert(is_registered(k, id), "buffer %u", id);
}

static uint64_t counted(const struct desk *k, size_t counter)
{
	const struct thread_view *v = engine_thread_view(k->engine);

	return counter_get((const _Atomic uint64_t *)((const uint8_t *)v + counter));
}

#define COUNTED(k, name) counted(k, offsetof(struct thread_view, name))

/* The least recently used ones go, as many as are in the way. */
Test(room, bytes_are_bounded)
{
	struct rdma_bounds bounds = {.bytes = 4 * MIB};
	struct desk k = desk_new_bounded(1, &bounds);
	struct fake_mr_view view;
	size_t own;

	fake_verbs_mrs(k.device, &view);
	own = view.bytes - 2 * MIB; /* all but buffer 1 */
	put(&k, FIRST, MIB);
	put(&k, FIRST + 1, MIB);
	cr_assert_eq(k.list->memory.evictions, 0);
	desk_use(&k, 1);
	desk_use(&k, FIRST);
	put(&k, FIRST + 2, MIB);
	cr_assert(is_registered(&k, 1) && is_registered(&k, FIRST));
	cr_assert(!is_registered(&k, FIRST + 1) && is_registered(&k, FIRST + 2));
	desk_use(&k, 1);
	put(&k, FIRST + 3, 2 * MIB);
	cr_assert(is_registered(&k, 1) && is_registered(&k, FIRST + 3));
	fake_verbs_mrs(k.device, &view);
	cr_assert_eq(view.bytes, own + 4 * MIB);
	cr_assert_eq(k.list->memory.evictions, 3);
	cr_assert_eq(k.list->memory.fallbacks, 0);
	cr_assert_eq(k.list->memory.staged, 3);
	cr_assert_eq(k.list->memory.staged_bytes, 3 * MIB);
	cr_assert_eq(COUNTED(&k, rdma_evictions), 3);
	cr_assert_eq(k.list->devices[0]->evictions, 3);
	take(&k, FIRST + 1);
	cr_assert_eq(k.list->memory.staged, 2);
	desk_free(&k);
}

Test(room, regions_are_bounded)
{
	struct rdma_bounds bounds = {.regions = 3};
	struct desk k = desk_new_bounded(1, &bounds);
	int before = desk_registered(&k);

	for (uint32_t i = 0; i < 10; i++) {
		put(&k, FIRST + i, 4096);
		cr_assert_leq(desk_registered(&k), before + 2);
	}
	cr_assert_eq(k.list->memory.evictions, 8);
	for (uint32_t i = 0; i < 10; i++) {
		cr_assert_eq(is_registered(&k, FIRST + i), i >= 7);
	}
	desk_free(&k);
}

/* The device's own number is the bound, less what the daemon needs. */
Test(room, regions_of_the_device)
{
	struct desk k;

	desk_start(&k, 1, NULL);
	k.list->devices[0]->attr.max_mr = 16;
	desk_add_device(&k);
	for (uint32_t i = 0; i < 20; i++) {
		put(&k, FIRST + i, 4096);
	}
	/* An eighth is left to others, and two are the daemon's. */
	cr_assert_eq(desk_registered(&k), 14);
	cr_assert_eq(k.list->memory.evictions, 21 - 12);
	cr_assert_eq(k.list->devices[0]->refused[RDMA_REFUSED_FULL], 0);
	desk_free(&k);
}

/* Others have regions there, too: it says no before the bound is reached. */
Test(room, device_is_full)
{
	struct desk k = desk_new();

	put(&k, FIRST, MIB);
	put(&k, FIRST + 1, MIB);
	desk_use(&k, 1);
	k.device->caps.max_mr = desk_registered(&k);
	put(&k, FIRST + 2, MIB);
	cr_assert(is_registered(&k, FIRST + 2) && !is_registered(&k, FIRST));
	cr_assert(is_registered(&k, 1) && is_registered(&k, FIRST + 1));
	cr_assert_eq(k.list->memory.evictions, 1);
	cr_assert_eq(k.list->memory.fallbacks, 0);
	desk_free(&k);
}

/* The same by bytes: as much as is wanted is given back, not more. */
Test(room, pages_cannot_be_locked)
{
	struct desk k = desk_new();
	struct fake_mr_view view;

	for (uint32_t i = 0; i < 8; i++) {
		put(&k, FIRST + i, MIB);
	}
	desk_use(&k, 1);
	fake_verbs_mrs(k.device, &view);
	k.device->caps.max_pinned = view.bytes;
	put(&k, FIRST + 8, 3 * MIB);
	cr_assert(is_registered(&k, FIRST + 8) && is_registered(&k, 1));
	cr_assert_eq(k.list->memory.evictions, 3);
	/* In vain: no more than it wanted is given back. */
	put(&k, FIRST + 9, MIB);
	k.device->caps.max_pinned = 1;
	put(&k, FIRST + 10, 2 * MIB);
	cr_assert_not(is_registered(&k, FIRST + 10));
	cr_assert_eq(k.list->memory.evictions, 6);
	cr_assert_eq(k.list->memory.fallbacks, 1);
	cr_assert(strstr(k.list->memory.reason, "cannot register"), "%s", k.list->memory.reason);
	desk_use(&k, FIRST + 10); /* through copies */
	desk_free(&k);
}

/* The other tests of this process have the limit that was, and the capability. */
static void limit_memlock(rlim_t bytes, bool on)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	const uint32_t mask = CAP_TO_MASK(CAP_IPC_LOCK);
	struct rlimit limit;

	cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = on ? bytes : limit.rlim_max;
	cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	cr_assert_eq(syscall(SYS_capget, &header, data), 0);
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~mask;
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective |=
		on ? 0 : data[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted & mask;
	cr_assert_eq(syscall(SYS_capset, &header, data), 0);
}

/* The limit is looked at before: an eighth of it is left, and nothing is refused. */
Test(room, memlock_is_looked_at)
{
	struct desk k = desk_new();
	const uint64_t limit = 8 * MIB;
	struct fake_mr_view view;

	limit_memlock(limit, true);
	for (uint32_t i = 0; i < 20; i++) {
		put(&k, FIRST + i, MIB / 2);
		fake_verbs_mrs(k.device, &view);
		cr_assert_leq(view.bytes, limit / 8 * 7);
	}
	cr_assert_eq(k.list->devices[0]->refused[RDMA_REFUSED_MEMLOCK], 0);
	cr_assert_eq(k.list->memory.fallbacks, 0);
	cr_assert_geq(k.list->memory.evictions, 12);
	put(&k, FIRST + 20, 2 * limit);
	cr_assert_eq(k.list->memory.fallbacks, 1);
	cr_assert(strstr(k.list->memory.reason, "LimitMEMLOCK"), "%s", k.list->memory.reason);
	limit_memlock(limit, false);
	desk_free(&k);
}

/* What an operation uses stays; the other one is staged, and comes when it is used later. */
Test(room, used_memory_stays)
{
	struct rdma_bounds bounds = {.regions = 3, .rest_ms = 1};
	struct shm_desc d = desk_operation(FIRST);
	struct desk k = desk_new_bounded(2, &bounds);
	uint32_t ticket, other;

	put(&k, FIRST, MIB);
	ticket = lab_post(k.lab, 0, &d);
	d.send_buf = d.recv_buf = 1;
	lab_post(k.lab, 0, &d); /* that of the first rank, too: only the other rank's can go */
	lab_rest(k.lab, 20);
	put(&k, FIRST + 1, MIB);
	cr_assert(is_registered(&k, FIRST) && is_registered(&k, 1) && is_registered(&k, FIRST + 1));
	d.send_buf = d.recv_buf = FIRST + 1;
	lab_post(k.lab, 0, &d);
	lab_rest(k.lab, 20);
	put(&k, FIRST + 2, MIB);
	cr_assert(is_registered(&k, FIRST) && is_registered(&k, 1) && is_registered(&k, FIRST + 1));
	cr_assert_not(is_registered(&k, FIRST + 2));
	cr_assert_eq(k.list->memory.evictions, 1);
	cr_assert_eq(k.list->memory.fallbacks, 1);
	cr_assert(strstr(k.list->memory.reason, "max_regions") &&
			  strstr(k.list->memory.reason, "given back now"),
		  "%s", k.list->memory.reason);
	lab_rest(k.lab, 20);
	cr_assert_eq(COUNTED(&k, rdma_fallbacks), 1);
	d.send_buf = d.recv_buf = 1;
	for (int i = 0; i < 3; i++) {
		other = lab_post(k.lab, 1, &d);
		cr_assert_eq(lab_wait(k.lab, 1, other), 0);
	}
	cr_assert_eq(lab_wait(k.lab, 0, ticket), 0);
	lab_rest(k.lab, 20);
	d.send_buf = d.recv_buf = FIRST + 2;
	lab_post(k.lab, 0, &d);
	wait_registered(&k, FIRST + 2);
	cr_assert_geq(k.list->memory.returns, 1);
	d.send_buf = d.recv_buf = 1;
	cr_assert_eq(lab_wait(k.lab, 1, lab_post(k.lab, 1, &d)), 0);
	desk_free(&k);
}

/* What was given back is registered again when it is used. */
Test(room, comes_again)
{
	struct rdma_bounds bounds = {.regions = 2, .rest_ms = 1};
	struct desk k = desk_new_bounded(1, &bounds);

	put(&k, FIRST, MIB);
	put(&k, FIRST + 1, MIB);
	cr_assert_not(is_registered(&k, 1));
	for (uint32_t i = 0; i < 20; i++) {
		uint32_t id = i % 3 ? FIRST + i % 3 - 1 : 1;

		lab_rest(k.lab, 5);
		desk_use(&k, id);
		wait_registered(&k, id);
	}
	cr_assert_geq(k.list->memory.returns, 18);
	cr_assert_eq(k.list->memory.fallbacks, 0);
	cr_assert_eq(k.list->memory.staged, 1);
	desk_free(&k);
}

/* More buffers in turn than there is room for: some stay, instead of all coming and going. */
Test(room, in_turn_some_stay)
{
	struct rdma_bounds bounds = {.regions = 4, .rest_ms = 60000};
	struct desk k = desk_new_bounded(1, &bounds);
	uint64_t before;

	for (uint32_t i = 0; i < 7; i++) {
		put(&k, FIRST + i, MIB);
	}
	before = k.list->memory.evictions;
	cr_assert_eq(before, 4);
	for (uint32_t i = 0; i < 50; i++) {
		desk_use(&k, FIRST + i % 7);
	}
	desk_pump(&k);
	cr_assert_eq(k.list->memory.evictions, before);
	for (uint32_t i = 0; i < 7; i++) {
		cr_assert_eq(is_registered(&k, FIRST + i), i >= 3);
	}
	cr_assert_eq(k.list->memory.fallbacks, 3); /* asked once, and then not for a minute */
	/* Room that comes free is taken, but not before that. */
	take(&k, FIRST + 6);
	desk_free(&k);
}

/* What can never find room drives nobody out. */
Test(room, too_large)
{
	struct rdma_bounds bounds = {.bytes = 4 * MIB};
	struct desk k = desk_new_bounded(1, &bounds);

	put(&k, FIRST, 5 * MIB);
	cr_assert_not(is_registered(&k, FIRST));
	cr_assert(is_registered(&k, 1));
	cr_assert_eq(k.list->memory.evictions, 0);
	cr_assert_eq(k.list->memory.fallbacks, 1);
	cr_assert_eq(k.list->devices[0]->refused[RDMA_REFUSED_BOUND], 1);
	cr_assert(strstr(k.list->memory.reason, "fake0") &&
			  strstr(k.list->memory.reason, "max_pinned"),
		  "%s", k.list->memory.reason);
	desk_use(&k, FIRST);
	desk_free(&k);
}

/* Each tenant makes room among its own. */
Test(room, quota)
{
	struct desk k = desk_new();
	struct quota quota;

	quota_init(&quota, "max_pinned", 2 * MIB);
	engine_session_quota(k.lab->ranks[0].session, &quota, "ml");
	put(&k, FIRST, MIB);
	put(&k, FIRST + 1, MIB);
	cr_assert_eq(quota_used(&quota), 2 * MIB);
	put(&k, FIRST + 2, MIB);
	cr_assert(is_registered(&k, 1)); /* it has no quota */
	cr_assert(!is_registered(&k, FIRST) && is_registered(&k, FIRST + 1) &&
		  is_registered(&k, FIRST + 2));
	cr_assert_eq(quota_used(&quota), 2 * MIB);
	put(&k, FIRST + 3, 3 * MIB);
	cr_assert_not(is_registered(&k, FIRST + 3));
	cr_assert_eq(k.list->memory.evictions, 1);
	cr_assert_eq(k.list->devices[0]->refused[RDMA_REFUSED_QUOTA], 1);
	cr_assert(strstr(k.list->memory.reason, "max_pinned of tenant ml"), "%s",
		  k.list->memory.reason);
	take(&k, FIRST + 1);
	cr_assert_eq(quota_used(&quota), MIB);
	for (uint32_t i = 0; i < 4; i++) {
		if (i != 1) {
			take(&k, FIRST + i);
		}
	}
	cr_assert_eq(quota_used(&quota), 0);
	desk_free(&k);
	quota_deinit(&quota);
}

/* Who waits for room, and whose memory is on its way out, may go at any time. */
Test(room, given_back_meanwhile)
{
	struct rdma_bounds bounds = {.bytes = 4 * MIB};

	for (int which = 0; which < 3; which++) {
		struct desk k = desk_new_bounded(1, &bounds);
		int ready = 0, gone = 0;

		put(&k, FIRST, 2 * MIB);
		desk_use(&k, 1);
		fake_verbs_hold(k.device, 2 * MIB); /* giving it back takes a while */
		cr_assert_not(desk_put(&k, FIRST + 1, MIB, &ready));
		cr_assert_not(desk_put(&k, FIRST + 2, MIB, &ready));
		desk_wait_held(&k, 1);
		desk_use(&k, FIRST); /* through copies; it asks for room, too */
		desk_use(&k, 1);
		cr_assert_eq(ready, 0);
		desk_take(&k, FIRST + (uint32_t)which, &gone);
		desk_pump(&k);
		cr_assert_eq(gone, which > 0);
		fake_verbs_hold(k.device, 0);
		desk_wait(&k, &ready, which ? 1 : 2);
		desk_wait(&k, &gone, 1);
		cr_assert(is_registered(&k, 1));
		cr_assert_eq(is_registered(&k, FIRST + 1), which != 1);
		cr_assert_eq(is_registered(&k, FIRST + 2), which != 2);
		desk_free(&k);
	}
}

/* The device goes while memory waits for room there: it is ready, and the device may be closed. */
Test(room, device_removed_meanwhile)
{
	struct rdma_bounds bounds = {.regions = 1};
	struct desk k = desk_new_bounded(1, &bounds);
	int ready = 0;

	fake_verbs_hold(k.device, MIB);
	cr_assert_not(desk_put(&k, FIRST, MIB, &ready));
	desk_wait_held(&k, 1);
	k.list->devices[0]->gone = true;
	engine_device_remove(k.engine, k.list->devices[0], "it was pulled", desk_count, &k.removed);
	desk_pump(&k);
	cr_assert_eq(k.removed, 0);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &k.removed, 1);
	desk_wait(&k, &ready, 1);
	cr_assert_eq(desk_registered(&k), 0);
	rdma_device_close(k.list->devices[0]);
	desk_use(&k, FIRST);
	desk_free(&k);
}

/* What waited for a device that went has nothing registered, so no quota is used. */
Test(room, device_removed_quota)
{
	struct rdma_bounds bounds = {.regions = 1};
	struct desk k = desk_new_bounded(1, &bounds);
	struct quota quota;
	int ready = 0;

	quota_init(&quota, "max_pinned", 4 * MIB);
	engine_session_quota(k.lab->ranks[0].session, &quota, "ml");
	fake_verbs_hold(k.device, MIB);
	cr_assert_not(desk_put(&k, FIRST, MIB, &ready));
	desk_wait_held(&k, 1);
	engine_device_remove(k.engine, k.list->devices[0], "it was pulled", desk_count, &k.removed);
	desk_pump(&k);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &k.removed, 1);
	desk_wait(&k, &ready, 1);
	cr_assert_eq(quota_used(&quota), 0);
	desk_free(&k);
	quota_deinit(&quota);
}

static void set_used(const struct desk *k, uint32_t id, uint64_t ns)
{
	atomic_store_explicit((_Atomic uint64_t *)&find(k, id)->pin.used, ns, memory_order_relaxed);
}

/* Who refused to go for others may go for one that comes again, however it went itself. */
Test(room, each_asks_anew)
{
	struct rdma_bounds bounds = {.regions = 3, .rest_ms = 60000};
	struct desk k = desk_new_bounded(2, &bounds);
	struct shm_desc d = {.kind = COLL_ALLREDUCE,
			     .dtype = DTYPE_I64,
			     .op = REDOP_SUM,
			     .count = 16,
			     .send_buf = 1,
			     .recv_buf = 1};
	uint32_t ticket;

	put(&k, FIRST, MIB);
	ticket = lab_post(k.lab, 0, &d);
	lab_rest(k.lab, 20);
	set_used(&k, 1, 1);
	set_used(&k, FIRST, 2);
	put(&k, FIRST + 1, MIB); /* 1 says no, FIRST goes */
	cr_assert(is_registered(&k, 1) && is_registered(&k, FIRST + 1));
	cr_assert_not(is_registered(&k, FIRST));
	cr_assert_eq(lab_wait(k.lab, 1, lab_post(k.lab, 1, &d)), 0);
	cr_assert_eq(lab_wait(k.lab, 0, ticket), 0);
	set_used(&k, 1, 1);
	d.send_buf = d.recv_buf = FIRST;
	ticket = lab_post(k.lab, 0, &d);
	wait_registered(&k, FIRST);
	cr_assert_not(is_registered(&k, 1));
	d.send_buf = d.recv_buf = 1;
	cr_assert_eq(lab_wait(k.lab, 1, lab_post(k.lab, 1, &d)), 0);
	cr_assert_eq(lab_wait(k.lab, 0, ticket), 0);
	cr_assert_eq(k.list->memory.fallbacks, 0);
	desk_free(&k);
}

/* One that comes late takes what has room there. */
Test(room, device_comes_late)
{
	struct rdma_bounds bounds = {.regions = 2};
	struct desk k;

	desk_start(&k, 1, &bounds);
	for (uint32_t i = 0; i < 5; i++) {
		put(&k, FIRST + i, MIB);
	}
	desk_add_device(&k);
	cr_assert_eq(desk_registered(&k), 2 + 2);
	cr_assert_eq(k.list->memory.staged + k.list->memory.fallbacks > 0, true);
	for (uint32_t i = 0; i < 5; i++) {
		desk_use(&k, FIRST + i);
	}
	desk_free(&k);
}

/* Used again before it is given back, for another device just comes: it is given back first. */
Test(room, comes_again_too_soon)
{
	static const struct rdma_options all = {NULL, NULL};
	struct rdma_bounds bounds = {.regions = 2, .rest_ms = 60000};
	struct desk k = desk_new_bounded(1, &bounds);
	struct engine_device work = {0};
	struct fake_device *other;
	int ready = 0;

	put(&k, FIRST, MIB);
	desk_use(&k, 1);
	other = fake_verbs_device(k.net, 0, "fake1", 1);
	cr_assert_eq(rdma_refresh(k.list, &all), 0);
	work.device = k.list->devices[1];
	fake_verbs_hold(other, MIB);
	cr_assert_not(desk_put(&k, FIRST + 1, MIB, &ready)); /* FIRST is asked */
	engine_device_add(k.engine, &work, desk_count, &k.added);
	desk_pump(&k);
	desk_use(&k, FIRST);
	desk_pump(&k);
	cr_assert_eq(ready, 0);
	fake_verbs_hold(other, 0);
	desk_wait(&k, &ready, 1);
	desk_wait(&k, &k.added, 2);
	cr_assert(is_registered(&k, FIRST + 1) && !is_registered(&k, FIRST));
	cr_assert_eq(k.list->memory.evictions, 1);
	desk_free(&k);
}

/* The session dies with memory in each state. */
Test(room, client_dies)
{
	struct rdma_bounds bounds = {.regions = 3};
	struct desk k = desk_new_bounded(1, &bounds);
	pthread_t thread;
	int ready = 0;

	for (uint32_t i = 0; i < 5; i++) {
		put(&k, FIRST + i, MIB);
	}
	fake_verbs_hold(k.device, MIB);
	cr_assert_not(desk_put(&k, FIRST + 5, MIB, &ready));
	cr_assert_not(desk_put(&k, FIRST + 6, MIB, &ready));
	desk_wait_held(&k, 1);
	cr_assert_eq(pthread_create(&thread, NULL, desk_let_go, &k), 0);
	lab_kill(k.lab, 0);
	pthread_join(thread, NULL);
	cr_assert_eq(ready, 0);
	cr_assert_eq(k.list->memory.staged, 0);
	desk_free(&k);
}

/* The engine stops while memory waits. */
Test(room, engine_stops)
{
	struct rdma_bounds bounds = {.regions = 2};
	struct desk k = desk_new_bounded(1, &bounds);
	int ready = 0;

	for (uint32_t i = 0; i < 20; i++) {
		desk_put(&k, FIRST + i, MIB, &ready);
	}
	engine_stop(k.engine, STATUS_SHUTDOWN);
	desk_free(&k);
}
