/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPUs of the lab: see lab_gpu.h
 *
 * Thread: the test's      Owns: see lab_gpu.h      Locks: none
 */
#include "lab_gpu.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "util/clock.h"

#define UNIT (64u << 10) /* of the fake's cuMemCreate() */

struct lab_gpu {
	struct cuda_abi cuda; /* as the ranks' processes have it */
	struct gpu *gpu;
	unsigned int live;
	bool all;
	bool answered;
};

struct lab_gpu *lab_gpu_new(void)
{
	const char *mode = getenv("LAB_GPU");
	struct gpu_options o = {.staging = 64u << 20, .spin_us = 20};
	struct lab_gpu *g;
	char err[256];

	if (!mode) {
		return NULL;
	}
	g = calloc(1, sizeof(*g));
	cr_assert(g);
	g->all = strcmp(mode, "all") == 0;
	cr_assert_eq(cuda_abi_open(NULL, &g->cuda, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(g->cuda.Init(0), CUDA_SUCCESS);
	cr_assert_eq(gpu_new(&o, &g->gpu), 0);
	return g;
}

bool lab_gpu_has(const struct lab_gpu *g, uint32_t rank)
{
	return g && (g->all || rank % 2 == 1);
}

void lab_gpu_pump(struct lab_gpu *g)
{
	if (g) {
		gpu_dispatch(g->gpu);
	}
}

unsigned int lab_gpu_live(const struct lab_gpu *g)
{
	return g ? g->live : 0;
}

void lab_gpu_free(struct lab_gpu *g)
{
	uint64_t end = clock_monotonic() + 20 * CLOCK_NS_PER_S;
	struct gpu_status s;

	if (!g) {
		return;
	}
	while (g->live && clock_monotonic() < end) {
		gpu_dispatch(g->gpu);
		sched_yield();
	}
	cr_assert_eq(g->live, 0, "memory of GPUs is not given back");
	for (unsigned int i = 0; gpu_get_status(g->gpu, i, &s); i++) {
		cr_assert_eq(s.staging_used, 0);
		cr_assert_eq(s.allocs, 0);
		cr_assert_eq(s.jobs_waiting, 0);
	}
	gpu_free(g->gpu);
	free(g);
}

static void on_gone(void *arg)
{
	struct lab_gpu *g = arg;

	g->live--;
}

static void on_done(struct gpu_request *request)
{
	struct lab_gpu *g = request->arg;

	g->answered = true;
}

static void wait_for(struct lab_gpu *g)
{
	while (!g->answered) {
		gpu_dispatch(g->gpu);
		sched_yield();
	}
	g->answered = false;
}

/* What libroceclient and control do. @fd: borrowed. */
static struct gpu_memory *import(struct lab_gpu *g, int device, int fd, size_t size)
{
	struct gpu_request request = {
		.done = on_done,
		.arg = g,
		.handle = GPU_HANDLE_VMM,
		.size = size,
		.fd = fd,
		.gone = on_gone,
		.gone_arg = g,
	};
	struct gpu_piece piece = {.size = size};
	CUuuid uuid;

	cr_assert_eq(g->cuda.DeviceGetUuid(&uuid, device), CUDA_SUCCESS);
	memcpy(request.uuid, uuid.bytes, sizeof(request.uuid));
	gpu_open(g->gpu, &request);
	wait_for(g);
	cr_assert_eq(request.status, STATUS_OK, "%s", request.text);
	g->live++;
	piece.alloc = request.alloc;
	request.npieces = 1;
	request.pieces = &piece;
	gpu_map(g->gpu, &request);
	wait_for(g);
	cr_assert_eq(request.status, STATUS_OK, "%s", request.text);
	gpu_alloc_unref(piece.alloc); /* the buffer stands on it */
	return request.memory;
}

struct region *lab_gpu_region(struct lab_gpu *g, uint32_t rank, size_t size, void **ret_view)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)(rank / 2 % 2)},
	};
	CUmemGenericAllocationHandle handle;
	struct region *region;
	int fd;

	size = ALIGN_UP(size, UNIT);
	cr_assert_eq(g->cuda.MemCreate(&handle, size, &prop, 0), CUDA_SUCCESS);
	cr_assert_eq(g->cuda.MemExportToShareableHandle(&fd, handle, prop.requestedHandleTypes, 0),
		     CUDA_SUCCESS);
	cr_assert_eq(g->cuda.MemRelease(handle), CUDA_SUCCESS);
	cr_assert_eq(region_new_gpu(import(g, prop.location.id, fd, size), &region), 0);
	*ret_view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(*ret_view, MAP_FAILED);
	close(fd);
	return region;
}

uint64_t lab_gpu_peer_bytes(const struct lab_gpu *g)
{
	struct gpu_status s;
	uint64_t sum = 0;

	for (unsigned int i = 0; gpu_get_status(g->gpu, i, &s); i++) {
		sum += s.bytes_peer;
	}
	return sum;
}

uint64_t lab_gpu_host_bytes(const struct lab_gpu *g)
{
	struct gpu_status s;
	uint64_t sum = 0;

	for (unsigned int i = 0; g && gpu_get_status(g->gpu, i, &s); i++) {
		sum += s.bytes_in + s.bytes_out;
	}
	return sum;
}

uint64_t lab_gpu_staging_peak(const struct lab_gpu *g)
{
	struct gpu_status s;
	uint64_t peak = 0;

	for (unsigned int i = 0; g && gpu_get_status(g->gpu, i, &s); i++) {
		peak = MAX(peak, s.staging_peak);
	}
	return peak;
}

void lab_gpu_peer_reason(const struct lab_gpu *g, uint32_t rank, char *text, size_t size)
{
	struct gpu_peer_status s = {0};

	gpu_get_peer(g->gpu, rank / 2 % 2, 0, &s);
	snprintf(text, size, "%s", s.reason);
}
