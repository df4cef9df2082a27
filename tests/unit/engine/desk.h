/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Desk: one host of the lab with one fake device, for tests of what is registered with it
 *
 * Thread: the test's      Owns: everything it makes      Locks: none
 */
#ifndef ROCECOMM_TESTS_ENGINE_DESK_H
#define ROCECOMM_TESTS_ENGINE_DESK_H

#include "engine/engine_rdma.h"
#include "tests/fake/verbs/fake_verbs.h"
#include "tests/unit/engine/lab.h"
#include "util/quota.h"

#define DESK_LARGE (1u << 20)
#define DESK_FIRST 10 /* number of the first buffer that a test makes */

struct desk {
	struct lab *lab;
	struct engine *engine;
	struct fake_net *net;
	struct fake_device *device;
	struct rdma *list;
	struct engine_device work;
	int added, removed;
};

/* Its device is added. Each rank has a buffer 1 of twice DESK_LARGE. */
struct desk desk_new(void);
struct desk desk_new_bounded(uint32_t nranks, const struct rdma_bounds *bounds);
/* Without the device. @bounds: NULL: none */
void desk_start(struct desk *k, uint32_t nranks, const struct rdma_bounds *bounds);
void desk_add_device(struct desk *k);
/* Checks that no registration is left. */
void desk_free(struct desk *k);

/* A done callback that counts up an int. */
void desk_count(void *arg);
/* Waits until so many are counted. */
void desk_wait(struct desk *k, const int *what, int n);
int desk_registered(const struct desk *k);
/* Waits until so many calls are held (fake_verbs_hold()). */
void desk_wait_held(struct desk *k, int n);
/* Of a thread: after a while lets go what is held. @desk: struct desk */
void *desk_let_go(void *desk);
/* Lets a while go by. */
void desk_pump(struct desk *k);

/* Memory that nobody touches. @quota: charged; NULL allowed */
struct region *desk_region(size_t size, struct quota *quota);
/* A buffer of the first rank. Return: is it registered already? Else @ready is counted. */
bool desk_put(struct desk *k, uint32_t id, size_t size, int *ready);
void desk_take(struct desk *k, uint32_t id, int *gone);
/* An allreduce in place, in this buffer. */
struct shm_desc desk_operation(uint32_t id);
/* Such an operation of the only rank, to its end. */
void desk_use(struct desk *k, uint32_t id);

#endif
