/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Desk: implementation
 *
 * Thread: the test's      Owns: see desk.h      Locks: none
 */
#include "desk.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "mem/region.h"

void desk_count(void *arg)
{
	++*(int *)arg;
}

void desk_wait(struct desk *k, const int *what, int n)
{
	for (int i = 0; i < 20000 && *what < n; i++) {
		lab_pump(k->lab);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(*what, n, "%d of %d", *what, n);
}

int desk_registered(const struct desk *k)
{
	struct fake_mr_view view;

	fake_verbs_mrs(k->device, &view);
	return view.registered;
}

void desk_wait_held(struct desk *k, int n)
{
	struct fake_mr_view view = {0};

	for (int i = 0; i < 20000 && view.waiting < n; i++) {
		lab_pump(k->lab);
		fake_verbs_mrs(k->device, &view);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(view.waiting, n);
}

void desk_pump(struct desk *k)
{
	for (int i = 0; i < 20; i++) {
		lab_pump(k->lab);
		poll(NULL, 0, 1);
	}
}

void desk_start(struct desk *k, uint32_t nranks, const struct rdma_bounds *bounds)
{
	static const uint32_t here[LAB_MAX_RANKS];
	static const struct rdma_options all = {NULL, NULL};
	/* Little of its own: a limit of locked memory may be 8 MiB where tests run. */
	struct engine_rdma_options o = {
		.verbs = {.fragment = 16 << 10, .eager = 4096, .frames = 128, .chunks = 16}};

	memset(k, 0, sizeof(*k));
	k->net = fake_verbs_new(1);
	k->device = fake_verbs_device(k->net, 0, "fake0", 0);
	k->lab = lab_new(here, nranks, 1, 2 * DESK_LARGE, NULL);
	k->engine = k->lab->engines[0];
	cr_assert_eq(rdma_new(fake_verbs_api(k->net, 0), &all, &k->list), 0);
	o.list = k->list;
	if (bounds) {
		o.bounds = *bounds;
	}
	cr_assert_eq(engine_rdma_start(k->engine, &o), 0);
	k->work.device = k->list->devices[0];
}

void desk_add_device(struct desk *k)
{
	engine_device_add(k->engine, &k->work, desk_count, &k->added);
	desk_wait(k, &k->added, 1);
	cr_assert_eq(k->work.result, 0, "%s", k->work.why);
}

struct desk desk_new_bounded(uint32_t nranks, const struct rdma_bounds *bounds)
{
	struct desk k;

	desk_start(&k, nranks, bounds);
	desk_add_device(&k);
	return k;
}

struct desk desk_new(void)
{
	return desk_new_bounded(1, NULL);
}

void desk_free(struct desk *k)
{
	lab_free(k->lab);
	rdma_free(k->list);
	fake_verbs_free(k->net); /* fails when a registration is left */
}

struct region *desk_region(size_t size, struct quota *quota)
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

bool desk_put(struct desk *k, uint32_t id, size_t size, int *ready)
{
	struct engine_session *s = k->lab->ranks[0].session;
	struct region *region = desk_region(size, NULL);

	cr_assert_eq(engine_region_add(k->engine, s, id, region), 0);
	region_unref(region);
	return engine_region_ready(k->engine, s, id, desk_count, ready);
}

void desk_take(struct desk *k, uint32_t id, int *gone)
{
	engine_region_remove(k->engine, k->lab->ranks[0].session, id, desk_count, gone);
}

void *desk_let_go(void *desk)
{
	struct desk *k = desk;

	poll(NULL, 0, 100);
	fake_verbs_hold(k->device, 0);
	return NULL;
}

struct shm_desc desk_operation(uint32_t id)
{
	return (struct shm_desc){.kind = COLL_ALLREDUCE,
				 .dtype = DTYPE_I64,
				 .op = REDOP_SUM,
				 .count = 16,
				 .send_buf = id,
				 .recv_buf = id};
}

void desk_use(struct desk *k, uint32_t id)
{
	struct shm_desc d = desk_operation(id);
	int status = lab_wait(k->lab, 0, lab_post(k->lab, 0, &d));

	cr_assert_eq(status, 0, "status %d", status);
}
