/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake CUDA: does it behave as what was seen on a real device?
 *
 * tests/device/gpu-check runs the same questions there.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base.h"
#include "proto/cuda_abi.h"

#define UNIT (64u << 10)

static void start(struct cuda_abi *cu)
{
	char err[256];
	CUcontext ctx;

	cr_assert_eq(cuda_abi_open(NULL, cu, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(cu->Init(0), CUDA_SUCCESS);
	cr_assert_eq(cu->DevicePrimaryCtxRetain(&ctx, 0), CUDA_SUCCESS);
	cr_assert_eq(cu->CtxSetCurrent(ctx), CUDA_SUCCESS);
}

static uint64_t buffer_id(const struct cuda_abi *cu, CUdeviceptr p)
{
	unsigned long long id = 0;

	cr_assert_eq(cu->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p), CUDA_SUCCESS);
	return id;
}

Test(fake_cuda, memory_is_not_the_cpus)
{
	struct cuda_abi cu;
	CUdeviceptr p, q;
	uint64_t id;
	uint32_t v = 7, w = 0;
	pid_t pid;
	int status;

	start(&cu);
	cr_assert_eq(cu.MemAlloc(&p, 1000), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy(p + 12, (uintptr_t)&v, 4), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy((uintptr_t)&w, p + 12, 4), CUDA_SUCCESS);
	cr_assert_eq(w, 7);
	pid = fork();
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile int *)p);
	}
	waitpid(pid, &status, 0);
	cr_assert(WIFSIGNALED(status), "device memory can be read by the CPU");
	id = buffer_id(&cu, p);
	cr_assert_eq(buffer_id(&cu, p + 999), id);
	cr_assert_eq(cu.MemFree(p), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAlloc(&q, 1000), CUDA_SUCCESS);
	cr_assert_neq(buffer_id(&cu, q), id);
	cr_assert_eq(cu.PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (uintptr_t)&v),
		     CUDA_ERROR_INVALID_VALUE, "plain memory");
}

Test(fake_cuda, vmm_travels_by_descriptor)
{
	struct cuda_abi cu;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h[2], back;
	CUdeviceptr va, vb;
	uint64_t before;
	uint32_t v = 42, w = 0;
	int fd;

	start(&cu);
	cr_assert_eq(cu.MemAddressReserve(&va, 4 * UNIT, 0, 0, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAddressReserve(&vb, 4 * UNIT, 0, 0, 0), CUDA_SUCCESS);
	for (unsigned int i = 0; i < 2; i++) {
		cr_assert_eq(cu.MemCreate(&h[i], UNIT, &prop, 0), CUDA_SUCCESS);
		cr_assert_eq(cu.MemMap(va + i * UNIT, UNIT, 0, h[i], 0), CUDA_SUCCESS);
	}
	cr_assert_eq(cu.MemMap(va, UNIT, 0, h[0], 0), CUDA_ERROR_INVALID_VALUE, "mapped already");
	cr_assert_eq(cu.MemSetAccess(va, 2 * UNIT, &access, 1), CUDA_SUCCESS);
	cr_assert_eq(cu.MemExportToShareableHandle(&fd, h[1], 1, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemImportFromShareableHandle(&back, (void *)(intptr_t)fd, 1), CUDA_SUCCESS);
	close(fd);
	cr_assert_eq(cu.MemMap(vb, UNIT, 0, back, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemRelease(back), CUDA_SUCCESS);
	cr_assert_eq(cu.MemSetAccess(vb, UNIT, &access, 1), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy(va + UNIT, (uintptr_t)&v, 4), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy((uintptr_t)&w, vb, 4), CUDA_SUCCESS);
	cr_assert_eq(w, 42);
	before = buffer_id(&cu, va + UNIT);
	cr_assert_eq(cu.MemUnmap(va + UNIT, UNIT), CUDA_SUCCESS);
	cr_assert_eq(cu.MemMap(va + UNIT, UNIT, 0, h[1], 0), CUDA_SUCCESS);
	cr_assert_neq(buffer_id(&cu, va + UNIT), before, "a mapping has its own number");
	cr_assert_eq(cu.MemAddressFree(vb, 4 * UNIT), CUDA_ERROR_INVALID_VALUE, "still mapped");
	cr_assert_eq(cu.MemUnmap(vb, UNIT), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAddressFree(vb, 4 * UNIT), CUDA_SUCCESS);
}

Test(fake_cuda, ipc_between_processes)
{
	struct cuda_abi cu;
	int to_child[2], to_parent[2];
	CUipcMemHandle handle;
	CUdeviceptr p = 0, q = 0;
	uint32_t v = 5;
	char go = 0;
	int status;
	pid_t pid;

	cr_assert_eq(pipe(to_child), 0);
	cr_assert_eq(pipe(to_parent), 0);
	pid = fork();
	if (pid == 0) {
		CUdeviceptr again = 0;

		start(&cu);
		cr_assert_eq(read(to_child[0], &handle, sizeof(handle)), (ssize_t)sizeof(handle));
		cr_assert_eq(cu.IpcOpenMemHandle(&q, handle, 1), CUDA_SUCCESS);
		cr_assert_eq(cu.IpcOpenMemHandle(&again, handle, 1), CUDA_SUCCESS);
		cr_assert_eq(again, q);
		v = 99;
		cr_assert_eq(cu.Memcpy(q + 100, (uintptr_t)&v, 4), CUDA_SUCCESS);
		(void)!write(to_parent[1], "x", 1);
		(void)!read(to_child[0], &go, 1); /* freed by its owner */
		cr_assert_eq(cu.Memcpy((uintptr_t)&v, q + 100, 4), CUDA_SUCCESS);
		_exit(v == 99 && cu.IpcCloseMemHandle(q) == CUDA_SUCCESS ? 0 : 1);
	}
	start(&cu);
	cr_assert_eq(cu.MemAlloc(&p, 5000), CUDA_SUCCESS);
	cr_assert_eq(cu.IpcGetMemHandle(&handle, p + 300), CUDA_SUCCESS);
	(void)!write(to_child[1], &handle, sizeof(handle));
	(void)!read(to_parent[0], &go, 1);
	cr_assert_eq(cu.Memcpy((uintptr_t)&v, p + 100, 4), CUDA_SUCCESS);
	cr_assert_eq(v, 99);
	cr_assert_eq(cu.MemFree(p), CUDA_SUCCESS);
	(void)!write(to_child[1], "x", 1);
	waitpid(pid, &status, 0);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Test(fake_cuda, streams_wait_for_values)
{
	struct cuda_abi cu;
	_Atomic uint32_t *page =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr dev, p;
	CUstream a, b;
	CUevent event;
	uint32_t v = 3;

	start(&cu);
	cr_assert_eq(cu.StreamCreate(&a, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamCreate(&b, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamWriteValue32(a, (uintptr_t)page, 1, 0), CUDA_ERROR_INVALID_VALUE,
		     "not registered");
	cr_assert_eq(cu.MemHostRegister(page, 4096, 3), CUDA_SUCCESS);
	cr_assert_eq(cu.MemHostGetDevicePointer(&dev, page, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAlloc(&p, 64), CUDA_SUCCESS);
	cr_assert_eq(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamWaitValue32(a, dev, 0xfffffffe, CU_STREAM_WAIT_VALUE_GEQ), 0);
	cr_assert_eq(cu.StreamWaitValue32(a, dev, 2, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
	cr_assert_eq(cu.MemcpyHtoDAsync(p, &v, 4, a), CUDA_SUCCESS);
	cr_assert_eq(cu.EventRecord(event, a), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamWaitEvent(b, event, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamWriteValue32(b, dev + 4, 11, 0), CUDA_SUCCESS);
	usleep(20000);
	cr_assert_eq(cu.StreamQuery(a), CUDA_ERROR_NOT_READY);
	cr_assert_eq(cu.EventQuery(event), CUDA_ERROR_NOT_READY);
	cr_assert_eq(atomic_load(&page[1]), 0);
	atomic_store(&page[0], 2);
	cr_assert_eq(cu.StreamSynchronize(b), CUDA_SUCCESS);
	cr_assert_eq(atomic_load(&page[1]), 11);
	v = 0;
	cr_assert_eq(cu.Memcpy((uintptr_t)&v, p, 4), CUDA_SUCCESS);
	cr_assert_eq(v, 3);
	cr_assert_eq(cu.MemHostUnregister(page), CUDA_SUCCESS);
}

Test(fake_cuda, visible_devices_and_errors_on_demand)
{
	struct cuda_abi cu;
	CUdeviceptr p;
	CUuuid uuid;
	int n = 0;

	setenv("FAKE_CUDA_DEVICES", "3", 1);
	setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
	setenv("FAKE_CUDA_FAIL", "cuMemAlloc=2@1x1,cuMemFree=700", 1);
	start(&cu);
	cr_assert_eq(cu.DeviceGetCount(&n), CUDA_SUCCESS);
	cr_assert_eq(n, 2);
	cr_assert_eq(cu.DeviceGetUuid(&uuid, 0), CUDA_SUCCESS);
	cr_assert_eq(uuid.bytes[15], 2);
	cr_assert_eq(cu.MemAlloc(&p, 64), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAlloc(&p, 64), CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_eq(cu.MemAlloc(&p, 64), CUDA_SUCCESS);
	cr_assert_eq(cu.MemFree(p), CUDA_ERROR_ILLEGAL_ADDRESS);
	cr_assert_eq(cu.MemAlloc(&p, 64), CUDA_ERROR_ILLEGAL_ADDRESS, "sticky");
}

static CUresult push(const struct cuda_abi *cu, CUcontext *ctx, CUdeviceptr to, CUdeviceptr from)
{
	CUresult r = cu->MemcpyPeerAsync(to, ctx[1], from, ctx[0], 64, CU_STREAM_PER_THREAD);

	return r ? r : cu->StreamSynchronize(CU_STREAM_PER_THREAD);
}

/* A copy to another device needs its memory to be open: VMM by range, all other by context. */
Test(fake_cuda, copies_between_devices)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h;
	CUdeviceptr from, to, vmm;
	uint32_t v = 7, w = 0;
	CUcontext ctx[2];
	struct cuda_abi cu;
	int can = 0;

	start(&cu);
	cr_assert_eq(cu.DevicePrimaryCtxRetain(&ctx[0], 0), CUDA_SUCCESS);
	cr_assert_eq(cu.DevicePrimaryCtxRetain(&ctx[1], 1), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxSetCurrent(ctx[1]), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAlloc(&to, 64), CUDA_SUCCESS);
	cr_assert_eq(cu.MemCreate(&h, UNIT, &prop, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAddressReserve(&vmm, UNIT, 0, 0, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemMap(vmm, UNIT, 0, h, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.MemSetAccess(vmm, UNIT, &access, 1), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxSetCurrent(ctx[0]), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAlloc(&from, 64), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy(from, (uintptr_t)&v, 4), CUDA_SUCCESS);
	cr_assert_eq(cu.DeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
	cr_assert_eq(can, 1);
	cr_assert_eq(push(&cu, ctx, to, from), CUDA_ERROR_INVALID_VALUE);
	cr_assert_eq(push(&cu, ctx, vmm, from), CUDA_ERROR_INVALID_VALUE);
	cr_assert_eq(cu.CtxEnablePeerAccess(ctx[1], 0), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxEnablePeerAccess(ctx[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	cr_assert_eq(push(&cu, ctx, to, from), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy((uintptr_t)&w, to, 4), CUDA_SUCCESS);
	cr_assert_eq(w, 7);
	cr_assert_eq(push(&cu, ctx, vmm, from), CUDA_ERROR_INVALID_VALUE);
	access.location.id = 0;
	cr_assert_eq(cu.MemSetAccess(vmm, UNIT, &access, 1), CUDA_SUCCESS);
	cr_assert_eq(push(&cu, ctx, vmm, from), CUDA_SUCCESS);
	cr_assert_eq(cu.Memcpy((uintptr_t)&w, vmm, 4), CUDA_SUCCESS);
	cr_assert_eq(w, 7);
}
