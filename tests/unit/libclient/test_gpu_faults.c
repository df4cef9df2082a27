/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Streams when something fails half-way: nothing is left that never ends
 *
 * The fake CUDA fails calls as FAKE_CUDA_FAIL says, which it reads once: each test sets it first.
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_gpu.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "proto/base.h"

TestSuite(gpu_faults, .fini = teardown, .timeout = 60);

static void set_up(const char *fails)
{
	setenv("FAKE_CUDA_FAIL", fails, 1);
	setup();
}

/* Memory that a stream copies itself, in groups as well. */
static CUdeviceptr pool_alloc(size_t size)
{
	CUdeviceptr p;

	cr_assert_eq(cu.MemAllocAsync(&p, size, stream), CUDA_SUCCESS);
	return p;
}

/* All streamed operations are settled in the end, and the stream is through. */
static void all_settled(void)
{
	for (int i = 0; i < 5000 && (atomic_load(&client->gpu.open) > 0 ||
				     cu.StreamQuery(stream) == CUDA_ERROR_NOT_READY);
	     i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(atomic_load(&client->gpu.open), 0, "%u operations never end",
		     atomic_load(&client->gpu.open));
	cr_assert_eq(cu.StreamQuery(stream), CUDA_SUCCESS, "the stream waits for ever");
	cr_assert_eq(client->gpu.small, 0);
}

/* A group of @n operations on the pool, each from its own page to the one behind all of them. */
static void group_of(struct roce_comm *comm, CUdeviceptr p, size_t n, struct roce_request **ret)
{
	ok(roce_group_start(client));
	for (size_t i = 0; i < n; i++) {
		char c = (char)('a' + i);

		put(p + i * 4096, &c, 1);
		ok(roce_allreduce_stream(ptr(p + i * 4096), ptr(p + (n + i) * 4096), 1, ROCE_U8,
					 ROCE_SUM, comm, stream, &ret[i]));
	}
}

static char at(CUdeviceptr p)
{
	char c = 0;

	get(p, &c, 1);
	return c;
}

Test(gpu_faults, gate_of_the_third_of_five)
{
	struct roce_request *r[5];
	struct roce_comm *comm;
	CUdeviceptr p;

	set_up("cuStreamWriteValue32=1@2x1"); /* groups write no copies' flags before their end */
	comm = test_comm(client, 0, 1);
	p = pool_alloc(10 * 4096);
	group_of(comm, p, 5, r);
	refused(roce_group_end(client), ROCE_ERR_INTERNAL, "CUDA_ERROR_INVALID_VALUE");
	cr_assert_eq(fake_get(&fake, seen[MSG_COMM_ABORT]), 1);
	all_settled();
	/* What was posted before went its way, and the stream waited for it. */
	for (size_t i = 0; i < 2; i++) {
		int status = roce_wait(&r[i], 1000);

		cr_assert(status == ROCE_OK || status == ROCE_ERR_ABORTED, "%d", status);
		cr_assert(status != ROCE_OK || at(p + (5 + i) * 4096) == (char)('a' + i));
	}
	cr_assert_eq(roce_wait(&r[2], 1000), ROCE_ERR_ABORTED);
	cr_assert_eq(roce_wait(&r[3], 1000), ROCE_ERR_INTERNAL);
	cr_assert_eq(roce_wait(&r[4], 1000), ROCE_ERR_INTERNAL);
	refused(roce_barrier_stream(comm, stream, NULL), ROCE_ERR_ABORTED,
		"CUDA_ERROR_INVALID_VALUE");
}

Test(gpu_faults, wait_of_the_first_of_three)
{
	struct roce_request *r[3];
	struct roce_comm *comm, *other;
	CUdeviceptr p;

	set_up("cuStreamWaitValue32=1@0x1");
	comm = test_comm(client, 0, 1);
	other = test_comm(client, 0, 1);
	p = pool_alloc(6 * 4096);
	group_of(comm, p, 3, r);
	refused(roce_group_end(client), ROCE_ERR_INTERNAL, "CUDA_ERROR_INVALID_VALUE");
	cr_assert_eq(fake_get(&fake, seen[MSG_COMM_ABORT]), 1);
	all_settled();
	for (size_t i = 0; i < 3; i++) {
		int status = roce_wait(&r[i], 1000);

		cr_assert(status == ROCE_OK || status == ROCE_ERR_ABORTED, "%d", status);
	}
	moves(other, p, p + 4096, 100);
	all_settled();
}

Test(gpu_faults, all_waits_fail)
{
	struct roce_request *r[4];
	struct roce_comm *comm;

	set_up("cuStreamWaitValue32=1@0x4");
	comm = test_comm(client, 0, 1);
	group_of(comm, pool_alloc(8 * 4096), 4, r);
	refused(roce_group_end(client), ROCE_ERR_INTERNAL, "CUDA_ERROR_INVALID_VALUE");
	cr_assert_eq(fake_get(&fake, seen[MSG_COMM_ABORT]), 1, "once is enough");
	all_settled();
	for (size_t i = 0; i < 4; i++) {
		cr_assert_neq(roce_wait(&r[i], 1000), ROCE_IN_PROGRESS);
	}
}

/* ---- an operation that is over before its group is posted --------------------------------- */

struct meanwhile {
	struct roce_comm *third;
	struct shm_desc full, barrier;
	struct roce_request *request;
};

/* While the second of a group waits for room. */
static void *meanwhile_main(void *arg)
{
	struct meanwhile *m = arg;
	struct shm_desc first;

	cr_assert_eq(fake_pop(&fake, &first, 1), 1);
	fake_complete(&fake, &first, ROCE_OK);
	while (atomic_load(&client->gpu.open) > 0) {
		poll(NULL, 0, 1);
	}
	/* Its request and its ticket are somebody else's now. */
	ok(roce_ibarrier(m->third, &m->request));
	cr_assert_eq(fake_pop(&fake, &m->barrier, 1), 1);
	cr_assert_eq(m->barrier.ticket, first.ticket);
	fake_complete(&fake, &m->full, ROCE_OK);
	return NULL;
}

Test(gpu_faults, over_before_its_group_is_posted)
{
	static struct shm_desc fill[LIMIT_COMM_WINDOW];
	struct roce_comm *comm, *narrow;
	struct meanwhile m = {0};
	struct shm_desc second;
	pthread_t thread;
	CUdeviceptr p;
	float *shared;

	set_up("");
	fake_set(&fake, run, false);
	comm = test_comm(client, 0, 1);
	narrow = test_comm(client, 0, 1);
	m.third = test_comm(client, 0, 1);
	p = device_alloc(4096);
	ok(roce_mem_alloc(client, 4096, 0, (void **)&shared));
	for (unsigned int i = 0; i < LIMIT_COMM_WINDOW; i++) {
		struct roce_request *request;

		ok(roce_iallreduce(shared, shared, 1, ROCE_F32, ROCE_SUM, narrow, &request));
	}
	cr_assert_eq(fake_pop(&fake, fill, LIMIT_COMM_WINDOW), LIMIT_COMM_WINDOW);
	m.full = fill[0];
	ok(roce_group_start(client));
	ok(roce_allreduce_stream(ptr(p), ptr(p), 1, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	ok(roce_allreduce_stream(ptr(p), ptr(p), 1, ROCE_F32, ROCE_SUM, narrow, stream, NULL));
	cr_assert_eq(pthread_create(&thread, NULL, meanwhile_main, &m), 0);
	ok(roce_group_end(client));
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_eq(fake_pop(&fake, &second, 1), 1);
	fake_complete(&fake, &second, ROCE_OK);
	all_settled(); /* it must not wait for the barrier */
	fake_complete(&fake, &m.barrier, ROCE_OK);
	ok(roce_wait(&m.request, 1000));
}

/* ---- a dma-buf that is promised and not to be had (field case 19) ------------------------- */

/* @tried: how often the daemon is asked: once an allocation, not once an operation. */
static void without_dmabuf(const char *words, unsigned int tried)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = pool_alloc(64 * 4096), odd = pool_alloc(5000);
	char text[600];

	for (size_t i = 0; i < 5; i++) {
		moves(comm, p + 1000 * i + 7, p + 32 * 4096 + 4097 * i + 3, 70000 + i);
		moves(comm, odd + i, odd + 2500 + 3 * i, 1000 + i);
	}
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_ALLOC_REGISTER]), tried);
	cr_assert_eq(fake_get(&fake, n_allocs), 0);
	for (size_t i = 0; i < 2; i++) {
		ok(roce_mem_path(client, ptr(i == 0 ? p + 9 : odd), text, sizeof(text)));
		cr_assert(strstr(text, "copied by this process") && strstr(text, "cudaMallocAsync"),
			  "%s", text);
		cr_assert(i > 0 || strstr(text, words), "%s", text);
	}
	ok(roce_mem_forget(client, NULL, 0));
}

Test(gpu_faults, dmabuf_that_no_nic_takes)
{
	static const int refusals[] = {ROCE_ERR_UNSUPPORTED, ROCE_ERR_BAD_MEMORY, ROCE_ERR_INVALID};

	set_up("");
	for (size_t i = 0; i < ARRAY_SIZE(refusals); i++) {
		fake_set(&fake, fail[MSG_GPU_ALLOC_REGISTER], refusals[i]);
		without_dmabuf("no NIC takes its dma-buf", (unsigned int)i + 1);
	}
}

Test(gpu_faults, dmabuf_that_the_driver_fails)
{
	set_up("cuMemGetHandleForAddressRange=801");
	without_dmabuf("has no handle of its own", 0);
}

Test(gpu_faults, dmabuf_that_there_is_none_of)
{
	setenv("FAKE_CUDA_NO_DMABUF", "1", 1);
	set_up("");
	without_dmabuf("has no handle of its own", 0);
}

/* ---- several devices ---------------------------------------------------------------------- */

static void hold(void *arg)
{
	while (!atomic_load((_Atomic int *)arg)) {
		poll(NULL, 0, 1);
	}
}

static void *let_go(void *arg)
{
	poll(NULL, 0, 500);
	atomic_store((_Atomic int *)arg, 1);
	return NULL;
}

Test(gpu_faults, disconnect_waits_for_streams_of_every_device)
{
	CUresult (*launch)(CUstream, void (*)(void *), void *);
	struct roce_comm *comm;
	_Atomic int go = 0;
	pthread_t thread;
	CUstream second;
	CUcontext ctx;

	set_up("");
	*(void **)&launch =
		dlsym(dlopen(getenv(CUDA_ABI_ENV), RTLD_NOW | RTLD_NOLOAD), "cuLaunchHostFunc");
	comm = test_comm(client, 0, 1);
	ok(roce_barrier_stream(comm, stream, NULL));
	sync_stream();
	/* The library has nothing else to do with this device. */
	cr_assert_eq(cu.DevicePrimaryCtxRetain(&ctx, 1), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxPushCurrent(ctx), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxPopCurrent(&ctx), CUDA_SUCCESS);
	cr_assert_eq(launch(second, hold, (void *)&go), CUDA_SUCCESS);
	ok(roce_barrier_stream(comm, second, NULL));
	cr_assert_eq(pthread_create(&thread, NULL, let_go, (void *)&go), 0);
	roce_disconnect(client);
	client = NULL;
	cr_assert_eq(cu.StreamQuery(second), CUDA_SUCCESS,
		     "it still writes to pages that are gone");
	cr_assert_eq(pthread_join(thread, NULL), 0);
}
