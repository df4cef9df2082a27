/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU layer on the fake driver: imports, refusals, copies, faults, and what is left afterwards
 *
 * The "client" is this process, for VMM memory; an IPC handle needs a process of its own. The fake
 * driver fails calls as FAKE_CUDA_FAIL says, which it reads when it is loaded: each test is a
 * process, and sets it first.
 *
 * Thread: the test's      Owns: what it makes      Locks: none
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "util/clock.h"

#define UNIT (64u << 10)

struct bench {
	struct cuda_abi cuda;
	struct gpu *gpu;
	struct gpu_channel channel;
	uint8_t uuids[2][GPU_UUID_BYTES];
	unsigned int live;
	bool answered;
};

static void start(struct bench *b, uint64_t staging)
{
	struct gpu_options o = {.staging = staging, .spin_us = 10};
	char err[256];
	CUuuid uuid;

	memset(b, 0, sizeof(*b));
	cr_assert_eq(cuda_abi_open(NULL, &b->cuda, err, sizeof(err)), 0, "%s", err);
	b->channel.bell = eventfd(0, EFD_NONBLOCK);
	cr_assert_eq(b->cuda.Init(0), CUDA_SUCCESS);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(b->cuda.DeviceGetUuid(&uuid, i), CUDA_SUCCESS);
		memcpy(b->uuids[i], uuid.bytes, GPU_UUID_BYTES);
	}
	cr_assert_eq(gpu_new(&o, &b->gpu), 0);
}

static void pump(struct bench *b)
{
	gpu_dispatch(b->gpu);
	sched_yield();
}

static void stop(struct bench *b)
{
	uint64_t end = clock_monotonic() + 20 * CLOCK_NS_PER_S;

	while (b->live && clock_monotonic() < end) {
		pump(b);
	}
	cr_assert_eq(b->live, 0);
	gpu_free(b->gpu);
	close(b->channel.bell);
}

static void on_gone(void *arg)
{
	struct bench *b = arg;

	b->live--;
}

static void on_done(struct gpu_request *request)
{
	struct bench *b = request->arg;

	b->answered = true;
}

static enum status wait_for(struct bench *b, const struct gpu_request *request)
{
	struct pollfd p = {.fd = gpu_fd(b->gpu), .events = POLLIN};

	while (!b->answered) {
		cr_assert_eq(poll(&p, 1, 20000), 1);
		gpu_dispatch(b->gpu);
	}
	b->answered = false;
	return request->status;
}

static struct gpu_request request_of(struct bench *b)
{
	struct gpu_request r = {
		.done = on_done, .arg = b, .gone = on_gone, .gone_arg = b, .fd = -1};

	return r;
}

/* A descriptor of memory on a GPU. */
static int export(struct bench *b, int device, size_t size)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
	CUmemGenericAllocationHandle handle;
	int fd;

	cr_assert_eq(b->cuda.MemCreate(&handle, size, &prop, 0), CUDA_SUCCESS);
	cr_assert_eq(b->cuda.MemExportToShareableHandle(&fd, handle, prop.requestedHandleTypes, 0),
		     CUDA_SUCCESS);
	cr_assert_eq(b->cuda.MemRelease(handle), CUDA_SUCCESS);
	return fd;
}

/* Return: the allocation, or NULL with the reason in @text. @fd: consumed. */
static struct gpu_alloc *open_vmm(struct bench *b, int device, int fd, size_t size, char *text)
{
	struct gpu_request r = request_of(b);

	r.handle = GPU_HANDLE_VMM;
	r.size = size;
	r.fd = fd;
	memcpy(r.uuid, b->uuids[device], sizeof(r.uuid));
	gpu_open(b->gpu, &r);
	wait_for(b, &r);
	close(fd);
	snprintf(text, GPU_TEXT, "%s", r.text);
	b->live += r.alloc != NULL;
	return r.alloc;
}

static struct gpu_memory *map(struct bench *b, struct gpu_piece *pieces, uint32_t n, char *text)
{
	struct gpu_request r = request_of(b);

	r.pieces = pieces;
	r.npieces = n;
	gpu_map(b->gpu, &r);
	wait_for(b, &r);
	snprintf(text, GPU_TEXT, "%s", r.text);
	return r.memory;
}

/* ---- copies ------------------------------------------------------------------------------- */

struct test_job {
	struct gpu_job job;
	struct gpu_copy copies[4];
};

static void test_piece(const struct gpu_job *job, uint32_t piece, struct gpu_copy *ret)
{
	*ret = container_of((struct gpu_job *)job, struct test_job, job)->copies[piece];
}

/* Return: the driver's error. */
static int copy(struct bench *b, struct gpu_memory *m, uint64_t off, void *host, uint64_t size,
		bool out)
{
	struct test_job t = {
		.job = {.device = gpu_memory_device(m),
			.channel = &b->channel,
			.out = out,
			.npieces = 2,
			.piece = test_piece},
		.copies = {{gpu_memory_address(m) + off, host, size / 3},
			   {gpu_memory_address(m) + off + size / 3, (uint8_t *)host + size / 3,
			    size - size / 3}},
	};
	struct gpu_job *back;

	gpu_copy(&t.job);
	while (!(back = gpu_channel_take(&b->channel))) {
		struct pollfd p = {.fd = b->channel.bell, .events = POLLIN};
		uint64_t v;

		if (gpu_channel_arm(&b->channel)) {
			cr_assert_eq(poll(&p, 1, 20000), 1, "the end of a job does not ring");
			(void)!read(b->channel.bell, &v, sizeof(v));
		}
		gpu_channel_disarm(&b->channel);
	}
	cr_assert_eq(back, &t.job);
	return t.job.error;
}

static void check_round_trip(struct bench *b, struct gpu_memory *m)
{
	uint64_t size = gpu_memory_size(m);
	uint8_t *stage = gpu_staging_take(gpu_memory_device(m), size, GPU_STAGING_SEND);

	cr_assert(stage);
	for (uint64_t i = 0; i < size; i++) {
		stage[i] = (uint8_t)(i * 7 + i / 256);
	}
	cr_assert_eq(copy(b, m, 0, stage, size, true), 0);
	memset(stage, 0, size);
	cr_assert_eq(copy(b, m, 0, stage, size, false), 0);
	for (uint64_t i = 0; i < size; i++) {
		cr_assert_eq(stage[i], (uint8_t)(i * 7 + i / 256), "byte %zu", (size_t)i);
	}
	gpu_staging_put(gpu_memory_device(m), stage, size, GPU_STAGING_SEND);
}

/* ---- tests -------------------------------------------------------------------------------- */

Test(gpu, one_allocation_many_buffers)
{
	struct bench b;
	char text[GPU_TEXT];
	struct gpu_memory *m[4];
	struct gpu_status s;
	struct gpu_alloc *a;
	uint8_t byte;

	start(&b, 64 << 20);
	cr_assert_str_eq(gpu_reason(b.gpu), "");
	a = open_vmm(&b, 1, export(&b, 1, 2 * UNIT), 2 * UNIT, text);
	cr_assert(a, "%s", text);
	for (uint64_t i = 0; i < 4; i++) {
		struct gpu_piece p = {a, i * 1001, 999};

		m[i] = map(&b, &p, 1, text);
		cr_assert(m[i], "%s", text);
		cr_assert_eq(gpu_memory_address(m[i]), gpu_memory_address(m[0]) + i * 1001);
		byte = (uint8_t)(i + 1);
		cr_assert_eq(copy(&b, m[i], 998, &byte, 1, true), 0);
	}
	for (uint64_t i = 0; i < 4; i++) {
		cr_assert_eq(copy(&b, m[0], i * 1001 + 998, &byte, 1, false), 0);
		cr_assert_eq(byte, i + 1);
	}
	cr_assert(gpu_get_status(b.gpu, 0, &s));
	cr_assert(!gpu_get_status(b.gpu, 1, &s), "the other one is not in use");
	cr_assert_eq(s.allocs, 1);
	cr_assert_eq(s.alloc_bytes, 2 * UNIT);
	cr_assert_eq(s.bytes_in, 4);
	cr_assert_eq(s.jobs, 8);
	gpu_alloc_unref(a);
	for (int i = 0; i < 4; i++) {
		cr_assert_eq(b.live, 1, "it lives as long as its buffers");
		gpu_memory_unref(m[i]);
	}
	stop(&b);
}

Test(gpu, segments_in_a_row)
{
	struct bench b;
	char text[GPU_TEXT];
	struct gpu_piece p[3];
	struct gpu_memory *m;

	start(&b, 64 << 20);
	for (int i = 0; i < 3; i++) {
		p[i] = (struct gpu_piece){open_vmm(&b, 0,
						   export(&b, 0, UNIT * (unsigned int)(i + 1)),
						   UNIT * (unsigned int)(i + 1), text),
					  0, UNIT * (unsigned int)(i + 1)};
		cr_assert(p[i].alloc, "%s", text);
	}
	m = map(&b, p, 3, text);
	cr_assert(m, "%s", text);
	cr_assert_eq(gpu_memory_size(m), 6 * UNIT);
	check_round_trip(&b, m);
	p[1].size--;
	cr_assert_null(map(&b, p, 3, text));
	cr_assert(strstr(text, "whole VMM allocations"), "%s", text);
	p[1].size += 2;
	cr_assert_null(map(&b, p, 3, text));
	cr_assert(strstr(text, "outside its allocation"), "%s", text);
	for (int i = 0; i < 3; i++) {
		gpu_alloc_unref(p[i].alloc);
	}
	gpu_memory_unref(m);
	stop(&b);
}

/* What it holds is what it is charged for: see handle_gpu.c. */
static void check_vmm_sizes(void)
{
	struct gpu_status s;
	char text[GPU_TEXT];
	struct gpu_alloc *a;
	struct bench b;

	start(&b, 64 << 20);
	for (unsigned int said = 1; said < 4; said++) {
		a = open_vmm(&b, 0, export(&b, 0, 2 * UNIT), said * UNIT, text);
		cr_assert_eq(a != NULL, said == 2, "%u: %s", said, text);
		cr_assert(a || strstr(text, "as its client says"), "%s", text);
		cr_assert(gpu_get_status(b.gpu, 0, &s));
		cr_assert_eq(s.alloc_bytes, a ? 2 * UNIT : 0);
		gpu_alloc_unref(a);
		while (b.live) {
			pump(&b);
		}
	}
	cr_assert_null(open_vmm(&b, 0, export(&b, 0, 2 * UNIT), 2 * UNIT - 1, text));
	cr_assert(strstr(text, "as its client says"), "%s", text);
	stop(&b);
}

Test(gpu, vmm_size_is_what_it_is)
{
	check_vmm_sizes();
}

Test(gpu, vmm_size_where_parts_can_be_mapped)
{
	setenv("FAKE_CUDA_MAP_PART", "1", 1);
	check_vmm_sizes();
}

Test(gpu, staging_is_pinned_when_used_and_given_back)
{
	struct bench b;
	char text[GPU_TEXT];
	struct gpu_status s;
	struct gpu_piece p = {.size = 40 << 20};
	struct gpu_memory *m;

	start(&b, 256 << 20);
	p.alloc = open_vmm(&b, 0, export(&b, 0, p.size), p.size, text);
	cr_assert(p.alloc, "%s", text);
	m = map(&b, &p, 1, text);
	check_round_trip(&b, m); /* over the border of a slab */
	cr_assert(gpu_get_status(b.gpu, 0, &s));
	cr_assert_eq(s.staging_pinned, 64 << 20);
	cr_assert_eq(s.staging_used, 0);
	gpu_alloc_unref(p.alloc);
	gpu_memory_unref(m);
	while (b.live) {
		pump(&b);
	}
	cr_assert(gpu_get_status(b.gpu, 0, &s));
	cr_assert_eq(s.staging_pinned, 32 << 20, "one slab for the next client");
	stop(&b);
}

/* Field case 26: the handle is the block's, and another process has made it. */
Test(gpu, ipc_from_another_process)
{
	int to_child[2], to_parent[2];
	CUipcMemHandle handle;
	struct gpu_piece piece = {.offset = 4096 + 3, .size = 5001};
	struct gpu_request r;
	char text[GPU_TEXT];
	struct gpu_memory *m;
	struct bench b;
	uint8_t buf[3] = {0};
	pid_t pid;
	char go;

	cr_assert_eq(pipe(to_child), 0);
	cr_assert_eq(pipe(to_parent), 0);
	pid = fork();
	if (pid == 0) {
		struct cuda_abi cuda;
		CUcontext ctx;
		CUdeviceptr p;

		if (cuda_abi_open(NULL, &cuda, text, sizeof(text)) || cuda.Init(0) ||
		    cuda.DevicePrimaryCtxRetain(&ctx, 0) || cuda.CtxSetCurrent(ctx) ||
		    cuda.MemAlloc(&p, 16384) ||
		    cuda.Memcpy(p + 4096 + 3 + 5000, (uintptr_t) "x", 1) ||
		    cuda.IpcGetMemHandle(&handle, p)) {
			_exit(1);
		}
		(void)!write(to_parent[1], &handle, sizeof(handle));
		(void)!read(to_child[0], &go, 1);
		_exit(0);
	}
	cr_assert_eq(read(to_parent[0], &handle, sizeof(handle)), (ssize_t)sizeof(handle));
	start(&b, 64 << 20);
	r = request_of(&b);
	r.handle = GPU_HANDLE_IPC;
	r.size = 16385;
	memcpy(r.uuid, b.uuids[0], sizeof(r.uuid));
	memcpy(r.ipc, handle.reserved, sizeof(r.ipc));
	gpu_open(b.gpu, &r);
	cr_assert_eq(wait_for(&b, &r), STATUS_INVALID, "larger than it is");
	r.size = 100;
	gpu_open(b.gpu, &r);
	cr_assert_eq(wait_for(&b, &r), STATUS_OK, "%s", r.text);
	cr_assert_eq(r.size, 16384, "what is held, not what was said");
	b.live++;
	piece.alloc = r.alloc;
	m = map(&b, &piece, 1, text);
	cr_assert(m, "%s", text);
	cr_assert_str_eq(gpu_memory_kind(m), "ipc");
	kill(pid, 9); /* its owner dies; the memory stays as long as we have it */
	waitpid(pid, NULL, 0);
	cr_assert_eq(copy(&b, m, 5000, buf, 1, false), 0);
	cr_assert_eq(buf[0], 'x');
	gpu_alloc_unref(piece.alloc);
	gpu_memory_unref(m);
	stop(&b);
}

static void refused(struct bench *b, struct gpu_request *r, enum status status, const char *words)
{
	gpu_open(b->gpu, r);
	wait_for(b, r);
	cr_assert_eq(r->status, status, "%d, not %d: %s", (int)r->status, (int)status, r->text);
	cr_assert(strstr(r->text, words), "%s not in %s", words, r->text);
	cr_assert_null(r->alloc);
}

Test(gpu, refusals)
{
	struct bench b;
	struct gpu_request r;

	start(&b, 64 << 20);
	r = request_of(&b);
	r.size = UNIT;
	r.handle = GPU_HANDLE_VMM;
	memset(r.uuid, 0xab, sizeof(r.uuid));
	refused(&b, &r, STATUS_NOT_FOUND, "does not see GPU-abababab-abab");
	memcpy(r.uuid, b.uuids[1], sizeof(r.uuid));
	r.fd = eventfd(0, 0);
	refused(&b, &r, STATUS_BAD_MEMORY, "cannot be imported");
	close(r.fd);
	r.handle = GPU_HANDLE_DMABUF;
	refused(&b, &r, STATUS_UNSUPPORTED, "dma-buf");
	r.handle = 77;
	refused(&b, &r, STATUS_INVALID, "77");
	stop(&b);
}

Test(gpu, off_and_without_driver)
{
	struct gpu_options off = {.off = true};
	struct gpu_options missing = {.library = "/nowhere/libcuda.so.1"};
	struct bench b = {.channel = {.bell = eventfd(0, EFD_NONBLOCK)}};
	struct gpu_request r = request_of(&b);

	cr_assert_eq(gpu_new(&off, &b.gpu), 0);
	refused(&b, &r, STATUS_UNSUPPORTED, "gpu = off");
	gpu_free(b.gpu);
	cr_assert_eq(gpu_new(&missing, &b.gpu), 0);
	refused(&b, &r, STATUS_UNSUPPORTED, "/nowhere/libcuda.so.1");
	cr_assert(strstr(gpu_reason(b.gpu), "/nowhere"));
	stop(&b);
}

/* Every call fails once: told, nothing is left, and the next client is served. */
static void fails_once(const char *call)
{
	char text[GPU_TEXT], fail[80];
	struct gpu_piece p = {.size = 2 * UNIT};
	struct gpu_memory *m = NULL;
	struct bench b;
	int tries = 0;

	snprintf(fail, sizeof(fail), "%s=999@0x1", call);
	setenv("FAKE_CUDA_FAIL", fail, 1);
	start(&b, 64 << 20);
	while (!m && tries++ < 4) {
		p.alloc = open_vmm(&b, 0, export(&b, 0, p.size), p.size, text);
		if (!p.alloc) {
			cr_assert(text[0]);
			continue;
		}
		m = map(&b, &p, 1, text);
		gpu_alloc_unref(p.alloc);
	}
	cr_assert(m, "%s: %s", call, text);
	cr_assert_leq(tries, 2, "%s", call);
	check_round_trip(&b, m);
	gpu_memory_unref(m);
	stop(&b);
}

#define FAIL(call)                      \
	Test(gpu_fails, call)           \
	{                               \
		fails_once("cu" #call); \
	}
FAIL(DeviceGetCount)
FAIL(DeviceGetName)
FAIL(DeviceGetPCIBusId)
FAIL(DevicePrimaryCtxRetain)
FAIL(StreamCreate)
FAIL(EventCreate)
FAIL(MemImportFromShareableHandle)
FAIL(MemGetAllocationPropertiesFromHandle)
FAIL(MemAddressReserve)
FAIL(MemMap)
FAIL(MemSetAccess)
FAIL(MemHostRegister)

/* Copies that fail come back with the error, those after them work. */
static void copy_fails(const char *call)
{
	char text[GPU_TEXT], fail[80];
	struct gpu_piece p = {.size = UNIT};
	struct gpu_memory *m;
	struct gpu_status s;
	uint8_t buf[300];
	struct bench b;

	snprintf(fail, sizeof(fail), "%s=1@1x1", call);
	setenv("FAKE_CUDA_FAIL", fail, 1);
	start(&b, 64 << 20);
	p.alloc = open_vmm(&b, 0, export(&b, 0, p.size), p.size, text);
	cr_assert(p.alloc, "%s", text);
	m = map(&b, &p, 1, text);
	gpu_alloc_unref(p.alloc);
	for (int i = 0, failed = 0; i < 4; i++) {
		failed += copy(&b, m, 0, buf, sizeof(buf), false) != 0;
		cr_assert_eq(failed, i >= (strcmp(call, "cuMemcpyDtoHAsync") ? 1 : 0), "%s %d",
			     call, i);
	}
	cr_assert(gpu_get_status(b.gpu, 0, &s));
	cr_assert_eq(s.jobs_failed, 1);
	cr_assert(!s.lost);
	gpu_memory_unref(m);
	stop(&b);
}

Test(gpu_fails, submitting)
{
	copy_fails("cuMemcpyDtoHAsync");
}

Test(gpu_fails, recording)
{
	copy_fails("cuEventRecord");
}

/* Field case 41: a spoilt context. All jobs come back, new imports are told, memory is let go. */
Test(gpu_fails, for_good)
{
	char text[GPU_TEXT];
	struct gpu_piece p = {.size = UNIT};
	struct gpu_memory *m;
	struct gpu_status s;
	uint8_t buf[300];
	struct bench b;
	int fd;

	setenv("FAKE_CUDA_FAIL", "cuEventQuery=700@0x1,cuStreamQuery=700", 1);
	start(&b, 64 << 20);
	p.alloc = open_vmm(&b, 0, export(&b, 0, p.size), p.size, text);
	cr_assert(p.alloc, "%s", text);
	m = map(&b, &p, 1, text);
	fd = export(&b, 0, p.size); /* the fake spoils the whole process */
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(copy(&b, m, 0, buf, sizeof(buf), i == 1), 700);
	}
	cr_assert(gpu_get_status(b.gpu, 0, &s));
	cr_assert(s.lost);
	cr_assert(strstr(s.error, "ILLEGAL_ADDRESS"), "%s", s.error);
	cr_assert_null(open_vmm(&b, 0, fd, p.size, text));
	cr_assert(strstr(text, "is spoilt"), "%s", text);
	gpu_alloc_unref(p.alloc);
	gpu_memory_unref(m);
	while (b.live) {
		pump(&b);
	}
	cr_assert(gpu_get_status(b.gpu, 0, &s));
	cr_assert(!s.lost, "the context was thrown away with its last client");
	cr_assert_eq(s.staging_pinned, 0);
	stop(&b);
}
