/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU memory and streams: hand-over, cache, staging, gates, watchdog
 *
 * On the fake CUDA, whose device memory only its copies can touch, and the fake daemon, which maps
 * what it is handed and moves bytes once the gate is open.
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_gpu.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/client.h"
#include "libclient/clock.h"
#include "proto/base.h"
#include "proto/gpu.h"

#define UNIT ((size_t)64 << 10) /* of the fake's cuMemCreate() */

TestSuite(gpu, .init = setup, .fini = teardown, .timeout = 240);
TestSuite(gpu_env, .fini = teardown, .timeout = 240); /* sets the fake up first */

/* A reservation with @n mapped allocations of @units each. */
static CUdeviceptr vmm(CUdeviceptr at, size_t n, size_t units, unsigned int types)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = (CUmemAllocationHandleType)types,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h;

	if (!at) {
		cr_assert_eq(cu.MemAddressReserve(&at, 64 * UNIT, 0, 0, 0), CUDA_SUCCESS);
	}
	for (size_t i = 0; i < n; i++) {
		cr_assert_eq(cu.MemCreate(&h, units * UNIT, &prop, 0), CUDA_SUCCESS);
		cr_assert_eq(cu.MemMap(at + i * units * UNIT, units * UNIT, 0, h, 0), CUDA_SUCCESS);
		cr_assert_eq(cu.MemRelease(h), CUDA_SUCCESS);
	}
	cr_assert_eq(cu.MemSetAccess(at, n * units * UNIT, &access, 1), CUDA_SUCCESS);
	return at;
}

Test(gpu, ipc_allocation_is_handed_over_once)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(1 << 20);
	struct fake_alloc last;
	char text[300];

	/* Four views at odd offsets, and the whole: one allocation, one buffer. */
	for (size_t i = 0; i < 4; i++) {
		moves(comm, p + 1000 * i + 3, p + 500000 + 70000 * i + 1, GPU_SMALL + 1 + 17 * i);
	}
	moves(comm, p, p + 500000, 2 * GPU_SMALL);
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_ALLOC_REGISTER]), 1);
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_BUFFER_REGISTER]), 1);
	last = fake_get(&fake, last_alloc);
	cr_assert_eq(last.kind, GPU_HANDLE_IPC);
	cr_assert_eq(last.size, 1 << 20);
	ok(roce_mem_path(client, ptr(p + 77), text, sizeof(text)));
	cr_assert(strstr(text, "staged") && strstr(text, "no NIC"), "%s", text);
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_REGISTER]), 0, "nothing was staged here");
}

Test(gpu, freed_and_used_again)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p, q, other;

	/* The same address may come back with other memory behind it: another buffer id. */
	for (unsigned int i = 0; i < 8; i++) {
		p = device_alloc(200000);
		other = device_alloc(200000);
		moves(comm, p, other, GPU_SMALL + 1000 + i);
		cr_assert_eq(cu.MemFree(p), CUDA_SUCCESS);
		q = device_alloc(200000);
		moves(comm, q, other, GPU_SMALL + 2000 + i);
		cr_assert_eq(cu.MemFree(q), CUDA_SUCCESS);
		cr_assert_eq(cu.MemFree(other), CUDA_SUCCESS);
	}
	ok(roce_mem_forget(client, NULL, 0));
	for (int i = 0; i < 1000 && fake_get(&fake, n_allocs) > 0; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(fake_get(&fake, n_allocs), 0, "allocations that are gone are given back");
	cr_assert_eq(fake_get(&fake, n_open), 0);
}

Test(gpu, segments_under_one_tensor)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr va = vmm(0, 3, 2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUdeviceptr to = device_alloc(16 * UNIT);

	moves(comm, va + 5, to, GPU_SMALL + 1); /* inside one: its neighbours come along */
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_ALLOC_REGISTER]), 4);
	moves(comm, va + 2 * UNIT - 50, to + 1, 3 * UNIT); /* spanning three */
	moves(comm, to, va + UNIT, 4 * UNIT);
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_ALLOC_REGISTER]), 4);
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_BUFFER_REGISTER]), 2);
	cr_assert_eq(fake_get(&fake, last_alloc).kind, GPU_HANDLE_IPC);
	/* It grows: only the new allocation travels. */
	vmm(va + 6 * UNIT, 1, 2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	moves(comm, va + 5 * UNIT, to, 3 * UNIT);
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_ALLOC_REGISTER]), 5);
	cr_assert_eq(fake_get(&fake, pieces), 4);
	/* Its middle is exchanged: an old mapping there would give old bytes. */
	cr_assert_eq(cu.MemUnmap(va + 2 * UNIT, 2 * UNIT), CUDA_SUCCESS);
	vmm(va + 2 * UNIT, 1, 2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	moves(comm, va + UNIT, to, 4 * UNIT);
	moves(comm, to, va + UNIT + 9, 4 * UNIT);
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_REGISTER]), 0, "nothing was staged here");
}

Test(gpu, replaced_before_it_is_posted)
{
	const unsigned int types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr va = vmm(0, 3, 2, types), to = device_alloc(16 * UNIT), other;
	uint8_t in[1000], out[1000] = {0};
	struct roce_request *request;
	int64_t deadline;

	memset(in, 0x5a, sizeof(in));
	put(va, in, sizeof(in));
	ok(roce_group_start(client));
	ok(roce_allreduce_stream(ptr(va), ptr(to), sizeof(in), ROCE_U8, ROCE_SUM, comm, stream,
				 NULL));
	/* It grows: another buffer stands for the whole. */
	vmm(va + 6 * UNIT, 1, 2, types);
	ok(roce_allreduce_stream(ptr(va + 5 * UNIT), ptr(to + UNIT), 2 * UNIT, ROCE_U8, ROCE_SUM,
				 comm, stream, NULL));
	cr_assert_not_null(client->gpu.dead);
	poll(NULL, 0, 100); /* the watchdog is about */
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_DEREGISTER]), 0, "it is named still");
	/* A piece is freed that none of them names: nobody waits for what they themselves hold. */
	cr_assert_eq(cu.MemUnmap(va + 2 * UNIT, 2 * UNIT), CUDA_SUCCESS);
	other = device_alloc(4096);
	deadline = clock_deadline(500);
	ok(roce_allreduce_stream(ptr(other), ptr(other), 16, ROCE_U8, ROCE_SUM, comm, stream,
				 NULL));
	cr_assert_gt(clock_left_ms(deadline), 0);
	ok(roce_group_end(client));
	sync_stream();
	get(to, out, sizeof(out));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	for (int i = 0; i < 1000 && fake_get(&fake, seen[MSG_BUFFER_DEREGISTER]) < 2; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_DEREGISTER]), 2);
	/* A group that is dropped names nothing any more. */
	ok(roce_group_start(client));
	ok(roce_allreduce_stream(ptr(to), ptr(to), 16, ROCE_U8, ROCE_SUM, comm, stream, NULL));
	ok(roce_allreduce_stream(ptr(to), ptr(to), 16, ROCE_U8, ROCE_SUM, comm, stream, &request));
	cr_assert_neq(roce_allreduce_stream(ptr(to), ptr(to), 16, 77, ROCE_SUM, comm, stream, NULL),
		      ROCE_OK);
	cr_assert_neq(roce_group_end(client), ROCE_OK);
	cr_assert_neq(roce_wait(&request, 0), ROCE_OK);
	ok(roce_mem_forget(client, ptr(to), 16));
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_DEREGISTER]), 3);
}

Test(gpu, what_cannot_be_exported_is_copied)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr plain = vmm(0, 1, 4, 0), pool, managed, to = device_alloc(4 * UNIT);
	struct roce_request *request;
	uint8_t in[600], out[600] = {0};
	char text[300];
	void *pinned;

	cr_assert_eq(cu.MemAllocAsync(&pool, 4 * UNIT, stream), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAllocManaged(&managed, 4 * UNIT, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	cr_assert_eq(cu.MemHostAlloc(&pinned, 4 * UNIT, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
	moves(comm, plain, to, 3 * UNIT + 1);
	moves(comm, pool + 1, plain + 7, UNIT);
	moves(comm, managed, pool, 99);
	moves(comm, (uintptr_t)pinned, managed + 5, UNIT);
	moves(comm, to, (uintptr_t)pinned, UNIT);
	ok(roce_mem_path(client, ptr(plain), text, sizeof(text)));
	cr_assert(strstr(text, "copied by this process") && strstr(text, "cuMemCreate()"), "%s",
		  text);
	ok(roce_mem_path(client, ptr(managed), text, sizeof(text)));
	cr_assert(strstr(text, "managed"), "%s", text);
	/* Without a stream too. */
	memset(in, 0x33, sizeof(in));
	put(plain + 11, in, sizeof(in));
	ok(roce_iallreduce(ptr(plain + 11), ptr(pool + 3), 600, ROCE_U8, ROCE_SUM, comm, &request));
	ok(roce_wait(&request, -1));
	get(pool + 3, out, sizeof(out));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	/* Device memory without a stream, handed over. */
	put(to, in, sizeof(in));
	ok(roce_allreduce(ptr(to), ptr(to + 1000), 600, ROCE_U8, ROCE_SUM, comm));
	memset(out, 0, sizeof(out));
	get(to + 1000, out, sizeof(out));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
}

Test(gpu, what_a_stream_refuses)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUresult (*begin)(CUstream, int) =
		(CUresult(*)(CUstream, int))dlsym(RTLD_DEFAULT, "cuStreamBeginCapture_v2");
	CUdeviceptr p = device_alloc(4096);
	void *driver = dlopen(getenv(CUDA_ABI_ENV), RTLD_NOW | RTLD_NOLOAD);
	float plain[4];
	float *shared;

	cr_assert_not_null(driver);
	begin = (CUresult(*)(CUstream, int))dlsym(driver, "cuStreamBeginCapture_v2");
	refused(roce_allreduce_stream(plain, plain, 4, ROCE_F32, ROCE_SUM, comm, stream, NULL),
		ROCE_ERR_UNSUPPORTED, "plain host memory");
	refused(roce_allreduce_stream(ptr(p), ptr(p), 4, 99, ROCE_SUM, comm, stream, NULL),
		ROCE_ERR_INVALID, "dtype 99");
	ok(roce_mem_alloc(client, 4096, 0, (void **)&shared));
	ok(roce_allreduce_stream(shared, shared, 4, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	ok(roce_barrier_stream(comm, stream, NULL));
	sync_stream();
	cr_assert_eq(begin(stream, 0), CUDA_SUCCESS);
	refused(roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream, NULL),
		ROCE_ERR_UNSUPPORTED, "captured into a CUDA graph");
	cr_assert_eq(fake_get(&fake, seen[MSG_COMM_ABORT]), 0);
}

Test(gpu, order_of_one_stream_and_of_two)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(1 << 20);
	CUstream second;
	CUevent event;
	uint32_t v = 0;

	cr_assert_eq(cu.StreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	cr_assert_eq(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	/* Each step needs what the one before it left. */
	for (uint32_t i = 0; i < 50; i++) {
		cr_assert_eq(cu.MemsetD8Async(p, (unsigned char)i, 4096, stream), CUDA_SUCCESS);
		ok(roce_allreduce_stream(ptr(p), ptr(p + 4096), 4096, ROCE_U8, ROCE_SUM, comm,
					 stream, NULL));
		cr_assert_eq(cu.EventRecord(event, stream), CUDA_SUCCESS);
		cr_assert_eq(cu.StreamWaitEvent(second, event, 0), CUDA_SUCCESS);
		ok(roce_allreduce_stream(ptr(p + 4096), ptr(p + 8192 + 4 * i), 4, ROCE_U8, ROCE_SUM,
					 comm, second, NULL));
		cr_assert_eq(cu.EventRecord(event, second), CUDA_SUCCESS);
		cr_assert_eq(cu.StreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
	}
	cr_assert_eq(cu.StreamSynchronize(second), CUDA_SUCCESS);
	for (uint32_t i = 0; i < 50; i++) {
		get(p + 8192 + 4 * i, &v, 4);
		cr_assert_eq(v, i * 0x01010101u, "step %u: %x", i, v);
	}
	cr_assert_eq(cu.StreamDestroy(second), CUDA_SUCCESS);
	cr_assert_eq(cu.EventDestroy(event), CUDA_SUCCESS);
}

Test(gpu, gate_and_flags_of_a_descriptor)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	size_t at = 2 * GPU_SMALL, count = GPU_SMALL / sizeof(float) + 1;
	CUdeviceptr p = device_alloc(4 * GPU_SMALL);
	struct roce_request *request;
	_Atomic uint32_t *gates;
	struct shm_desc d;

	fake_set(&fake, run, false);
	ok(roce_allreduce_stream(ptr(p + 8), ptr(p + at), count, ROCE_F32, ROCE_MAX, comm, stream,
				 &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert_eq(d.flags, SHM_DESC_GATED);
	cr_assert_eq(d.send_off, 8);
	cr_assert_eq(d.recv_off, at);
	cr_assert_eq(d.send_buf, d.recv_buf);
	gates = shm_gates(fake.sessions[0].page, SHM_FULL_SIZE);
	for (int i = 0; i < 1000 && atomic_load(&gates[d.ticket]) != d.generation; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(atomic_load(&gates[d.ticket]), d.generation);
	cr_assert_eq(roce_test(&request), ROCE_IN_PROGRESS);
	cr_assert_eq(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	fake_complete(&fake, &d, ROCE_OK);
	sync_stream();
	ok(roce_wait(&request, 1000));
}

/* Stands for a kernel that takes until the test says so. */
static void hold(void *arg)
{
	while (!atomic_load((_Atomic int *)arg)) {
		poll(NULL, 0, 1);
	}
}

Test(gpu, ticket_waits_for_a_late_stream)
{
	CUresult (*launch)(CUstream, void (*)(void *), void *);
	void *driver = dlopen(getenv(CUDA_ABI_ENV), RTLD_NOW | RTLD_NOLOAD);
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct roce_request *request, *next;
	CUdeviceptr p = device_alloc(8192);
	_Atomic int go = 0;
	struct shm_desc d, e;

	*(void **)&launch = dlsym(driver, "cuLaunchHostFunc");
	fake_set(&fake, run, false);
	cr_assert_eq(launch(stream, hold, (void *)&go), CUDA_SUCCESS);
	ok(roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	fake_complete(&fake, &d, ROCE_ERR_PEER_DIED); /* before the stream came to its gate */
	cr_assert_eq(roce_wait(&request, 50), ROCE_IN_PROGRESS);
	ok(roce_ibarrier(comm, &next));
	cr_assert_eq(fake_pop(&fake, &e, 1), 1);
	cr_assert_neq(e.ticket, d.ticket, "the late gate would open a later operation's");
	fake_complete(&fake, &e, ROCE_OK);
	ok(roce_wait(&next, 1000));
	atomic_store(&go, 1);
	sync_stream();
	cr_assert_eq(roce_wait(&request, 1000), ROCE_ERR_PEER_DIED);
}

Test(gpu, failure_is_sticky_without_a_request)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	CUdeviceptr p = device_alloc(8192);
	struct shm_desc d;
	int r = 0;

	fake_set(&fake, run, false);
	fake_set(&fake, sticky, ROCE_ERR_PEER_DIED);
	ok(roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	fake_complete(&fake, &d, ROCE_ERR_PEER_DIED);
	sync_stream();
	/* Nobody waits: the watchdog sees it. */
	for (int i = 0; i < 200 && r == 0; i++) {
		poll(NULL, 0, 10);
		r = roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream,
					  NULL);
	}
	refused(r, ROCE_ERR_PEER_DIED, "rank 1 (beta) is gone");
}

Test(gpu, dead_daemon_lets_streams_go)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	CUdeviceptr p = device_alloc(8192), pool;
	char text[200];

	cr_assert_eq(cu.MemAllocAsync(&pool, 8192, stream), CUDA_SUCCESS);
	fake_set(&fake, run, false);
	for (int i = 0; i < 5; i++) {
		ok(roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream,
					 NULL));
		ok(roce_allreduce_stream(ptr(pool), ptr(pool), 4, ROCE_F32, ROCE_SUM, comm, stream,
					 NULL));
	}
	poll(NULL, 0, 50);
	cr_assert_eq(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	fake_hang_up(&fake);
	sync_stream(); /* the test's time-out tells when it does not end */
	cr_assert_eq(roce_comm_error(comm, text, sizeof(text)), ROCE_ERR_NO_DAEMON, "%s", text);
}

Test(gpu, disconnect_lets_streams_go)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	CUdeviceptr p = device_alloc(8192);

	fake_set(&fake, run, false);
	ok(roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	roce_disconnect(client);
	client = NULL;
	sync_stream();
}

Test(gpu, abort_of_a_mute_daemon)
{
	struct roce_comm *comm;
	struct roce_client_options options = {.size = sizeof(options), .timeout_ms = 300};
	CUdeviceptr p = device_alloc(8192);

	roce_disconnect(client);
	ok(roce_connect(fake.path, &options, &client));
	comm = test_comm(client, 0, 2);
	fake_set(&fake, run, false);
	ok(roce_allreduce_stream(ptr(p), ptr(p), 4, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	fake_set(&fake, mute[MSG_COMM_ABORT], true);
	cr_assert_eq(roce_comm_abort(comm), ROCE_ERR_TIMEOUT);
	sync_stream();
}

Test(gpu, group_of_streams)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(1 << 16);
	struct roce_request *request = NULL;
	uint8_t in[100], out[100] = {0};

	memset(in, 9, sizeof(in));
	put(p, in, sizeof(in));
	ok(roce_group_start(client));
	ok(roce_send_stream(ptr(p), 100, ROCE_U8, 0, comm, stream, NULL));
	ok(roce_recv_stream(ptr(p + 512), 100, ROCE_U8, 0, comm, stream, NULL));
	ok(roce_allreduce_stream(ptr(p), ptr(p + 1024), 100, ROCE_U8, ROCE_SUM, comm, stream,
				 &request));
	cr_assert_eq(cu.StreamQuery(stream), CUDA_SUCCESS, "nothing is posted before the end");
	ok(roce_group_end(client));
	sync_stream();
	ok(roce_wait(&request, 1000));
	get(p + 1024, out, sizeof(out));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	/* A group that is dropped leaves nothing behind. */
	ok(roce_group_start(client));
	ok(roce_allreduce_stream(ptr(p), ptr(p + 1024), 100, ROCE_U8, ROCE_SUM, comm, stream,
				 NULL));
	cr_assert_neq(roce_allreduce_stream(ptr(p), ptr(p), 100, 77, ROCE_SUM, comm, stream, NULL),
		      ROCE_OK);
	cr_assert_neq(roce_group_end(client), ROCE_OK);
	sync_stream();
	moves(comm, p, p + 2048, 300);
}

Test(gpu, in_place_alltoall_and_blocks)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(1 << 16);
	size_t counts[] = {100}, displs[] = {3}, to[] = {200};
	uint8_t in[1024], out[1024] = {0};

	for (size_t i = 0; i < sizeof(in); i++) {
		in[i] = (uint8_t)i;
	}
	put(p, in, sizeof(in));
	/* The daemon wants the sides apart: one is staged by the stream. */
	ok(roce_alltoall_stream(ptr(p), ptr(p), 500, ROCE_U8, comm, stream, NULL));
	ok(roce_alltoallv_stream(ptr(p), counts, displs, ptr(p + 2048), counts, to, ROCE_U8, comm,
				 stream, NULL));
	sync_stream();
	get(p, out, sizeof(out));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	get(p + 2048 + 200, out, 100);
	cr_assert_eq(memcmp(in + 3, out, 100), 0);
}

Test(gpu, many_without_waiting)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(1 << 16);

	/* More than the ring and the window hold: what streams have passed comes back by itself. */
	for (int i = 0; i < 1500; i++) {
		ok(roce_allreduce_stream(ptr(p), ptr(p + 4096), 16, ROCE_U8, ROCE_SUM, comm, stream,
					 NULL));
	}
	moves(comm, p, p + 2048, 300);
	for (int i = 0; i < 1000 && atomic_load(&client->gpu.open) > 0; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(atomic_load(&client->gpu.open), 0);
}

Test(gpu, registering_device_memory)
{
	CUdeviceptr p = device_alloc(100000), pool;
	struct roce_buffer *buffer, *copied;

	ok(roce_mem_register(client, ptr(p + 100), 5000, &buffer));
	cr_assert_eq(fake_get(&fake, n_allocs), 1);
	cr_assert_eq(roce_buffer_ptr(buffer), ptr(p + 100));
	cr_assert_eq(roce_buffer_is_shared(buffer), 0);
	ok(roce_mem_deregister(buffer));
	cr_assert_eq(fake_get(&fake, n_allocs), 0);
	cr_assert_eq(cu.MemAllocAsync(&pool, 8192, stream), CUDA_SUCCESS);
	ok(roce_mem_register(client, ptr(pool), 8192, &copied)); /* left to the disconnect */
}

Test(gpu_env, errors_of_the_driver)
{
	struct roce_comm *comm;
	CUdeviceptr p, q;

	setenv("FAKE_CUDA_FAIL", "cuIpcGetMemHandle=304@0x1,cuStreamWriteValue32=1@4x1", 1);
	setup();
	comm = test_comm(client, 0, 1);
	p = device_alloc(8192);
	q = device_alloc(8192);
	put(q, "q", 1);
	moves(comm, p, p + 100, 50); /* its export failed: copied, and right */
	moves(comm, q, q + 100, 50); /* the next one is handed over */
	refused(roce_allreduce_stream(ptr(q), ptr(q), 4, ROCE_F32, ROCE_SUM, comm, stream, NULL),
		ROCE_ERR_INTERNAL, "CUDA_ERROR_INVALID_VALUE");
	cr_assert_eq(fake_get(&fake, seen[MSG_COMM_ABORT]), 1);
	refused(roce_allreduce_stream(ptr(q), ptr(q), 4, ROCE_F32, ROCE_SUM, comm, stream, NULL),
		ROCE_ERR_ABORTED, "CUDA_ERROR_INVALID_VALUE");
}

Test(gpu_env, older_daemon)
{
	struct roce_comm *comm;
	CUdeviceptr p;
	uint8_t in[64], out[64] = {0};
	char text[300];

	start();
	fake_start(&fake);
	fake.old = true;
	client = test_connect(&fake);
	fake_set(&fake, run, true);
	comm = test_comm(client, 0, 1);
	p = device_alloc(8192);
	memset(in, 5, sizeof(in));
	put(p, in, sizeof(in));
	ok(roce_allreduce(ptr(p), ptr(p + 64), 64, ROCE_U8, ROCE_SUM, comm));
	get(p + 64, out, sizeof(out));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	ok(roce_mem_path(client, ptr(p), text, sizeof(text)));
	cr_assert(strstr(text, "takes no GPU memory"), "%s", text);
	refused(roce_allreduce_stream(ptr(p), ptr(p), 64, ROCE_U8, ROCE_SUM, comm, stream, NULL),
		ROCE_ERR_UNSUPPORTED, "older");
	cr_assert_eq(fake_get(&fake, seen[MSG_GPU_ALLOC_REGISTER]), 0);
}

Test(gpu_env, devices_are_named_by_uuid)
{
	struct roce_comm *comm;
	CUdeviceptr p;

	setenv("FAKE_CUDA_DEVICES", "4", 1);
	setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
	setup();
	comm = test_comm(client, 0, 1);
	p = device_alloc(8192); /* on this process's device 0 */
	moves(comm, p, p + 4096, 100);
	cr_assert_eq(fake_get(&fake, last_alloc).uuid[15], 3);
}
