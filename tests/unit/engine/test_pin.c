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
#include "tests/unit/engine/desk.h"
#include "topo/rdma_mem.h"

#define LARGE DESK_LARGE
#define FIRST DESK_FIRST

/* A large one takes its time: control, operations and other clients go on. */
Test(pin, slow_registration_holds_nobody_up)
{
	struct desk k = desk_new();
	int slow = 0, quick = 0, gone = 0, before = desk_registered(&k);

	fake_verbs_hold(k.device, LARGE);
	cr_assert_not(desk_put(&k, FIRST, LARGE, &slow));
	desk_wait_held(&k, 1);
	desk_use(&k, 1);
	if (!desk_put(&k, FIRST + 1, 4096, &quick)) {
		desk_wait(&k, &quick, 1);
	}
	cr_assert_eq(slow, 0);
	cr_assert_eq(desk_registered(&k), before + 1);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &slow, 1);
	cr_assert_eq(desk_registered(&k), before + 2);
	/* Giving back takes as long. */
	fake_verbs_hold(k.device, LARGE);
	desk_take(&k, FIRST, &gone);
	desk_wait_held(&k, 1);
	desk_use(&k, 1);
	desk_take(&k, FIRST + 1, &gone);
	desk_wait(&k, &gone, 1);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &gone, 2);
	cr_assert_eq(desk_registered(&k), before);
	desk_free(&k);
}

/* More of them than there are threads. */
Test(pin, small_ones_overtake_large_ones)
{
	struct desk k = desk_new();
	int slow = 0, quick = 0;

	fake_verbs_hold(k.device, LARGE);
	for (uint32_t i = 0; i < 2 * REGISTRAR_THREADS; i++) {
		cr_assert_not(desk_put(&k, FIRST + i, REGISTRAR_SMALL + 4096, &slow));
	}
	desk_wait_held(&k, REGISTRAR_THREADS - 1);
	if (!desk_put(&k, FIRST + 100, 4096, &quick)) {
		desk_wait(&k, &quick, 1);
	}
	cr_assert_eq(slow, 0);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &slow, 2 * REGISTRAR_THREADS);
	desk_free(&k);
}

/* It stays mapped until the device has let go of it, and nobody is told that it was ready. */
Test(pin, given_back_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0, before = desk_registered(&k);

	fake_verbs_hold(k.device, LARGE);
	cr_assert_not(desk_put(&k, FIRST, LARGE, &ready));
	desk_wait_held(&k, 1);
	desk_take(&k, FIRST, &gone);
	desk_pump(&k);
	cr_assert_eq(gone, 0);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &gone, 1);
	cr_assert_eq(ready, 0);
	cr_assert_eq(desk_registered(&k), before);
	desk_free(&k);
}

/* The same number again, while the old one is still being registered. */
Test(pin, number_used_again)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0, before = desk_registered(&k);

	for (int i = 0; i < 50; i++) {
		int want = ready + !desk_put(&k, FIRST, LARGE, &ready);

		if (i % 2) {
			desk_wait(&k, &ready, want);
		}
		desk_take(&k, FIRST, &gone);
		desk_wait(&k, &gone, i + 1);
	}
	cr_assert_eq(desk_registered(&k), before);
	desk_free(&k);
}

/* The session goes: neither it nor what was charged is given back before its memory is. */
Test(pin, client_dies_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0, before = desk_registered(&k);
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
		region = desk_region(LARGE, &quota);
		cr_assert_eq(engine_region_add(k.engine, s, id, region), 0);
		cr_assert_not(engine_region_ready(k.engine, s, id, desk_count, &ready));
		region_unref(region);
	}
	desk_wait_held(&k, 2);
	engine_session_remove(k.engine, s, desk_count, &gone);
	desk_pump(&k);
	cr_assert_eq(gone, 0);
	cr_assert_eq(quota_used(&quota), 2 * LARGE);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &gone, 1);
	cr_assert_eq(ready, 0);
	cr_assert_eq(desk_registered(&k), before);
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
	cr_assert_not(desk_put(&k, FIRST, LARGE, &ready));
	desk_wait_held(&k, 1);
	k.list->devices[0]->gone = true;
	engine_device_remove(k.engine, k.list->devices[0], "it was pulled", desk_count, &k.removed);
	desk_pump(&k);
	cr_assert_eq(k.removed, 0);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &k.removed, 1);
	cr_assert_eq(desk_registered(&k), 0);
	rdma_device_close(k.list->devices[0]);
	desk_wait(&k, &ready, 1); /* it is staged from now on */
	desk_take(&k, FIRST, &gone);
	desk_wait(&k, &gone, 1);
	desk_use(&k, 1);
	desk_free(&k);
}

/* One that comes late is used when all memory that was there is registered with it. */
Test(pin, device_comes_late)
{
	struct desk k;
	int ready = 0, gone = 0;

	desk_start(&k, 1, NULL);
	cr_assert(desk_put(&k, FIRST, LARGE, &ready));
	fake_verbs_hold(k.device, LARGE);
	engine_device_add(k.engine, &k.work, desk_count, &k.added);
	desk_wait_held(&k, 3); /* those of the rank and of the gauge, too */
	desk_use(&k, 1);
	cr_assert_eq(k.added, 0);
	/* One that is given back is not waited for. */
	desk_take(&k, FIRST, &gone);
	fake_verbs_hold(k.device, 0);
	desk_wait(&k, &k.added, 1);
	desk_wait(&k, &gone, 1);
	cr_assert_eq(k.work.result, 0);
	cr_assert_eq(desk_registered(&k), 3); /* the rank's, the transport's, that of the gauge */
	desk_free(&k);
}

/* The transport cannot use the device: nothing is left registered with it. */
Test(pin, device_refused_by_the_transport)
{
	struct desk k;

	desk_start(&k, 1, NULL);
	k.device->caps.max_mr = 1;
	engine_device_add(k.engine, &k.work, desk_count, &k.added);
	desk_wait(&k, &k.added, 1);
	cr_assert_lt(k.work.result, 0);
	cr_assert_eq(desk_registered(&k), 0);
	rdma_device_close(k.list->devices[0]);
	k.list->devices[0]->gone = true;
	desk_use(&k, 1);
	desk_free(&k);
}

/* What the device does not take is staged, and the client hears that it is ready. */
Test(pin, refused_memory_is_ready)
{
	struct desk k = desk_new();
	int ready = 0, before = desk_registered(&k);

	k.device->caps.reg_errno = ENOMEM;
	if (!desk_put(&k, FIRST, 4096, &ready)) {
		desk_wait(&k, &ready, 1);
	}
	/* Buffer 1 was given back for it, in vain. */
	cr_assert_eq(desk_registered(&k), before - 1);
	k.device->caps.reg_errno = EFAULT;
	if (!desk_put(&k, FIRST + 1, 4096, &ready)) {
		desk_wait(&k, &ready, 2);
	}
	cr_assert_eq(desk_registered(&k), before - 1);
	desk_free(&k);
}

/* What is under way is waited for, what is not yet is not begun. */
Test(pin, engine_stops_meanwhile)
{
	struct desk k = desk_new();
	int ready = 0, gone = 0;
	pthread_t thread;

	fake_verbs_hold(k.device, LARGE);
	for (uint32_t i = 0; i < 2 * REGISTRAR_THREADS; i++) {
		cr_assert_not(desk_put(&k, FIRST + i, LARGE, &ready));
	}
	desk_wait_held(&k, REGISTRAR_THREADS);
	desk_take(&k, FIRST, &gone);
	cr_assert_eq(pthread_create(&thread, NULL, desk_let_go, &k), 0);
	engine_stop(k.engine, STATUS_SHUTDOWN);
	pthread_join(thread, NULL);
	cr_assert_eq(gone, 1);
	cr_assert_eq(ready, 2 * REGISTRAR_THREADS - 1);
	desk_free(&k);
}
