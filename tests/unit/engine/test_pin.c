/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of registration beside the control thread: slow devices, and what happens meanwhile
 *
 * One host with one rank; its device is a fake whose registrations take as long as a test wants.
 *
 * Thread: one, and the engine's      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/engine_rdma.h"
#include "engine/registrar.h"
#include "mem/region.h"
#include "proto/base.h"
#include "tests/fake/verbs/fake_verbs.h"
#include "tests/unit/engine/lab.h"
#include "topo/rdma_mem.h"

#define LARGE (1u << 20)
#define FIRST 10 /* number of the first buffer that a test makes */

static const uint32_t one[] = {0};

struct desk {
	struct lab *lab;
	struct engine *engine;
	struct fake_net *net;
	struct fake_device *device;
	struct rdma *list;
	struct engine_device work;
	int added, removed;
};

static void count(void *arg)
{
	++*(int *)arg;
}

static void wait_for(struct desk *k, const int *what, int n)
{
	for (int i = 0; i < 20000 && *what < n; i++) {
		lab_pump(k->lab);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(*what, n, "%d of %d", *what, n);
}

static int registered(const struct desk *k)
{
	struct fake_mr_view view;

	fake_verbs_mrs(k->device, &view);
	return view.registered;
}

static void wait_held(struct desk *k, int n)
{
	struct fake_mr_view view = {0};

	for (int i = 0; i < 20000 && view.waiting < n; i++) {
		lab_pump(k->lab);
		fake_verbs_mrs(k->device, &view);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(view.waiting, n);
}

/* Nothing comes for a while. */
static void pump(struct desk *k)
{
	for (int i = 0; i < 20; i++) {
		lab_pump(k->lab);
		poll(NULL, 0, 1);
	}
}

static void desk_start(struct desk *k)
{
	static const struct rdma_options all = {NULL, NULL};
	struct engine_rdma_options o = {0};

	memset(k, 0, sizeof(*k));
	k->net = fake_verbs_new(1);
	k->device = fake_verbs_device(k->net, 0, "fake0", 0);
	k->lab = lab_new(one, 1, 1, 2 * LARGE, NULL);
	k->engine = k->lab->engines[0];
	cr_assert_eq(rdma_new(fake_verbs_api(k->net, 0), &all, &k->list), 0);
	o.list = k->list;
	cr_assert_eq(engine_rdma_start(k->engine, &o), 0);
	k->work.device = k->list->devices[0];
}

static void desk_add_device(struct desk *k)
{
	engine_device_add(k->engine, &k->work, count, &k->added);
	wait_for(k, &k->added, 1);
	cr_assert_eq(k->work.result, 0, "%s", k->work.why);
}

static struct desk desk_new(void)
{
	struct desk k;

	desk_start(&k);
	desk_add_device(&k);
	return k;
}

static void desk_free(struct desk *k)
{
	lab_free(k->lab);
	rdma_free(k->list);
	fake_verbs_free(k->net); /* fails when a registration is left */
}

/* Memory that nobody touches. */
static struct region *region_make(size_t size, struct quota *quota)
{
	struct quota_charge charge = {0};
	struct region *region;
	void *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	cr_assert_neq(base, MAP_FAILED);
	if (quota) {
		cr_assert_eq(quota_charge(quota, size, &charge), 0);
	}
	cr_assert_eq(region_new(base, size, size, &charge, &region), 0);
	return region;
}

/* Return: is it registered already? */
static bool region_put(struct desk *k, uint32_t id, size_t size, int *ready)
{
	struct engine_session *s = k->lab->ranks[0].session;
	struct region *region = region_make(size, NULL);

	cr_assert_eq(engine_region_add(k->engine, s, id, region), 0);
	region_unref(region);
	return engine_region_ready(k->engine, s, id, count, ready);
}

static void region_take(struct desk *k, uint32_t id, int *gone)
{
	engine_region_remove(k->engine, k->lab->ranks[0].session, id, count, gone);
}

static void sum_works(struct desk *k)
{
	struct shm_desc d = {.kind = COLL_ALLREDUCE,
			     .dtype = DTYPE_I64,
			     .op = REDOP_SUM,
			     .count = 16,
			     .send_buf = 1,
			     .recv_buf = 1};
	int status = lab_wait(k->lab, 0, lab_post(k->lab, 0, &d));

	cr_assert_eq(status, 0, "status %d", status);
}

/* A large one takes its time: control, operations and other clients go on. */
Test(pin, slow_registration_holds_nobody_up)
{
	struct desk k = desk_new();
	int slow = 0, quick = 0, gone = 0, before = registered(&k);

	fake_verbs_hold(k.device, LARGE);
	cr_assert_not(region_put(&k, FIRST, LARGE, &slow));
	wait_held(&k, 1);
	sum_works(&k);
	if (!region_put(&k, FIRST + 1, 4096, &quick)) {
		wait_for(&k, &quick, 1);
	}
	cr_assert_eq(slow, 0);
	cr_assert_eq(registered(&k), before + 1);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &slow, 1);
	cr_assert_eq(registered(&k), before + 2);
	/* Giving back takes as long. */
	fake_verbs_hold(k.device, LARGE);
	region_take(&k, FIRST, &gone);
	wait_held(&k, 1);
	sum_works(&k);
	region_take(&k, FIRST + 1, &gone);
	wait_for(&k, &gone, 1);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &gone, 2);
	cr_assert_eq(registered(&k), before);
	desk_free(&k);
}

/* More of them than there are threads. */
Test(pin, small_ones_overtake_large_ones)
{
	struct desk k = desk_new();
	int slow = 0, quick = 0;

	fake_verbs_hold(k.device, LARGE);
	for (uint32_t i = 0; i < 2 * REGISTRAR_THREADS; i++) {
		cr_assert_not(region_put(&k, FIRST + i, REGISTRAR_SMALL + 4096, &slow));
	}
	wait_held(&k, REGISTRAR_THREADS - 1);
	if (!region_put(&k, FIRST + 100, 4096, &quick)) {
		wait_for(&k, &quick, 1);
	}
	cr_assert_eq(slow, 0);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &slow, 2 * REGISTRAR_THREADS);
	desk_free(&k);
}

/* It stays mapped until the device has let go of it, and nobody is told that it was ready. */
Test(pin, given_back_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0, before = registered(&k);

	fake_verbs_hold(k.device, LARGE);
	cr_assert_not(region_put(&k, FIRST, LARGE, &ready));
	wait_held(&k, 1);
	region_take(&k, FIRST, &gone);
	pump(&k);
	cr_assert_eq(gone, 0);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &gone, 1);
	cr_assert_eq(ready, 0);
	cr_assert_eq(registered(&k), before);
	desk_free(&k);
}

/* The same number again, while the old one is still being registered. */
Test(pin, number_used_again)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0, before = registered(&k);

	for (int i = 0; i < 50; i++) {
		int want = ready + !region_put(&k, FIRST, LARGE, &ready);

		if (i % 2) {
			wait_for(&k, &ready, want);
		}
		region_take(&k, FIRST, &gone);
		wait_for(&k, &gone, i + 1);
	}
	cr_assert_eq(registered(&k), before);
	desk_free(&k);
}

/* The session goes: neither it nor what was charged is given back before its memory is. */
Test(pin, client_dies_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0, before = registered(&k);
	void *page = mmap(NULL, SHM_FULL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			  -1, 0);
	int bell = eventfd(0, EFD_NONBLOCK);
	struct engine_session *s;
	struct region *region;
	struct quota quota;

	shm_format(page);
	shm_format_gates(page);
	cr_assert_eq(engine_session_add(k.engine, page, bell, bell, NULL, &s), 0);
	fake_verbs_hold(k.device, LARGE);
	quota_init(&quota, "max_bytes", 2 * LARGE);
	for (uint32_t id = 1; id <= 2; id++) {
		region = region_make(LARGE, &quota);
		cr_assert_eq(engine_region_add(k.engine, s, id, region), 0);
		cr_assert_not(engine_region_ready(k.engine, s, id, count, &ready));
		region_unref(region);
	}
	wait_held(&k, 2);
	engine_session_remove(k.engine, s, count, &gone);
	pump(&k);
	cr_assert_eq(gone, 0);
	cr_assert_eq(quota_used(&quota), 2 * LARGE);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &gone, 1);
	cr_assert_eq(ready, 0);
	cr_assert_eq(registered(&k), before);
	quota_deinit(&quota); /* nothing is charged any more */
	munmap(page, SHM_FULL_SIZE);
	close(bell);
	desk_free(&k);
}

/* The device may be closed only when nothing is being registered with it. */
Test(pin, device_removed_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0;

	fake_verbs_hold(k.device, LARGE);
	cr_assert_not(region_put(&k, FIRST, LARGE, &ready));
	wait_held(&k, 1);
	k.list->devices[0]->gone = true;
	engine_device_remove(k.engine, k.list->devices[0], "it was pulled", count, &k.removed);
	pump(&k);
	cr_assert_eq(k.removed, 0);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &k.removed, 1);
	cr_assert_eq(registered(&k), 0);
	rdma_device_close(k.list->devices[0]);
	wait_for(&k, &ready, 1); /* it is staged from now on */
	region_take(&k, FIRST, &gone);
	wait_for(&k, &gone, 1);
	sum_works(&k);
	desk_free(&k);
}

/* One that comes late is used when all memory that was there is registered with it. */
Test(pin, device_comes_late)
{
	struct desk k;
	int ready = 0, gone = 0;

	desk_start(&k);
	cr_assert(region_put(&k, FIRST, LARGE, &ready));
	fake_verbs_hold(k.device, LARGE);
	engine_device_add(k.engine, &k.work, count, &k.added);
	wait_held(&k, 3); /* those of the rank and of the gauge, too */
	sum_works(&k);
	cr_assert_eq(k.added, 0);
	/* One that is given back is not waited for. */
	region_take(&k, FIRST, &gone);
	fake_verbs_hold(k.device, 0);
	wait_for(&k, &k.added, 1);
	wait_for(&k, &gone, 1);
	cr_assert_eq(k.work.result, 0);
	cr_assert_eq(registered(&k), 3); /* the rank's, the transport's, that of the gauge */
	desk_free(&k);
}

/* The transport cannot use the device: nothing is left registered with it. */
Test(pin, device_refused_by_the_transport)
{
	struct desk k;

	desk_start(&k);
	k.device->caps.max_mr = 1;
	engine_device_add(k.engine, &k.work, count, &k.added);
	wait_for(&k, &k.added, 1);
	cr_assert_lt(k.work.result, 0);
	cr_assert_eq(registered(&k), 0);
	rdma_device_close(k.list->devices[0]);
	k.list->devices[0]->gone = true;
	sum_works(&k);
	desk_free(&k);
}

/* What the device does not take is staged, and the client hears that it is ready. */
Test(pin, refused_memory_is_ready)
{
	struct desk k = desk_new();
	int ready = 0, before = registered(&k);

	k.device->caps.reg_errno = ENOMEM;
	if (!region_put(&k, FIRST, 4096, &ready)) {
		wait_for(&k, &ready, 1);
	}
	cr_assert_eq(registered(&k), before);
	k.device->caps.reg_errno = 0;
	k.device->caps.max_mr = before;
	if (!region_put(&k, FIRST + 1, 4096, &ready)) {
		wait_for(&k, &ready, 2);
	}
	cr_assert_eq(registered(&k), before);
	desk_free(&k);
}

static void *let_go(void *arg)
{
	struct desk *k = arg;

	poll(NULL, 0, 100);
	fake_verbs_hold(k->device, 0);
	return NULL;
}

/* What is under way is waited for, what is not yet is not begun. */
Test(pin, engine_stops_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0;
	pthread_t thread;

	fake_verbs_hold(k.device, LARGE);
	for (uint32_t i = 0; i < 2 * REGISTRAR_THREADS; i++) {
		cr_assert_not(region_put(&k, FIRST + i, LARGE, &ready));
	}
	wait_held(&k, REGISTRAR_THREADS);
	region_take(&k, FIRST, &gone);
	cr_assert_eq(pthread_create(&thread, NULL, let_go, &k), 0);
	engine_stop(k.engine, STATUS_SHUTDOWN);
	pthread_join(thread, NULL);
	cr_assert_eq(gone, 1);
	cr_assert_eq(ready, 2 * REGISTRAR_THREADS - 1);
	desk_free(&k);
}
