/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: what the files of this folder know of each other
 *
 * Thread: as each member says      Owns: see gpu.h      Locks: none
 */
#ifndef ROCECOMM_GPU_IMPL_H
#define ROCECOMM_GPU_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "gpu/staging.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "util/ref.h"
#include "util/thread.h"

#define COPIER_EVENTS 32 /* jobs with the GPU at a time, each way */

/* Copies in one direction: a stream, jobs that the GPU has, jobs that wait. */
struct copier_lane {
	CUstream stream;
	CUevent events[COPIER_EVENTS];
	struct gpu_job *flying[COPIER_EVENTS];
	uint32_t first, count;
	struct gpu_job *waiting, *last;
};

struct gpu_device {
	struct gpu *gpu;
	/* constant */
	CUdevice device;
	uint8_t uuid[GPU_UUID_BYTES];
	char name[64];
	char uuid_text[48];
	char bus[32];
	int node;

	/* the "gpu" thread's */
	bool open;
	CUcontext ctx;
	uint64_t users; /* allocations and buffers */

	/* the copying thread's, but for the inbox */
	struct thread thread;
	struct copier_lane lanes[2]; /* from the GPU, to the GPU */
	_Alignas(64) struct gpu_inbox inbox;
	_Atomic uint32_t state; /* enum copier_state; the futex */
	_Atomic bool stop;

	struct staging staging;

	/* everybody's */
	_Atomic bool used; /* has been opened once: the texts above may be read */
	_Atomic int lost;  /* enum cudaError_enum */
	_Atomic uint64_t allocs, alloc_bytes;
	_Atomic uint64_t bytes_in, bytes_out, jobs, jobs_failed, jobs_ended;
};

struct gpu {
	struct gpu_options options;
	struct cuda_abi cuda;
	/* the "gpu" thread's */
	bool loaded; /* the driver is there and started */
	struct gpu_device *devices[GPU_MAX_DEVICES];

	/* everybody's */
	_Atomic uint32_t ndevices; /* entries below are set */
	_Atomic uint64_t live;	   /* allocations, buffers and requests that are not back */
	struct gpu_inbox inbox;	   /* tasks */
	_Atomic uint32_t wake;	   /* the "gpu" thread's futex */
	_Atomic bool stop;
	struct gpu_inbox back; /* tasks on the way to control */
	int fd;

	/* control's */
	struct thread thread;
	char library[256];
	_Atomic bool failed; /* `reason` is set; it is written once */
	char reason[GPU_TEXT];
};

struct gpu_alloc {
	struct gpu_task task; /* of its release */
	struct ref ref;
	struct gpu_device *device;
	enum gpu_handle handle;
	uint64_t size;
	CUmemGenericAllocationHandle vmm;
	CUdeviceptr base; /* mapped as a whole; 0: not yet */
	void (*gone)(void *arg);
	void *gone_arg;
};

struct gpu_memory {
	struct gpu_task task; /* of its release */
	struct ref ref;
	struct gpu_device *device;
	uint64_t address;
	uint64_t size;
	CUdeviceptr reserved; /* 0: it lies in the mapping of its only allocation */
	uint32_t nallocs;
	struct gpu_alloc *allocs[];
};

/* ---- gpu.c -------------------------------------------------------------------------------- */

/* Any thread: hands a task to the "gpu" thread. */
void gpu_post(struct gpu *gpu, struct gpu_task *task);
/* The "gpu" thread: hands it back to control. */
void gpu_post_back(struct gpu *gpu, struct gpu_task *task);
attr_printf(3, 4) void gpu_refuse(struct gpu_request *request, enum status status, const char *fmt,
				  ...);
/* The same with a CUDA error at the end of the sentence. */
void gpu_refuse_cuda(struct gpu *gpu, struct gpu_request *request, const char *what, CUresult r);

/* ---- device.c: the "gpu" thread ----------------------------------------------------------- */

/* Starts the driver if need be and finds the GPU. NULL: refused. */
struct gpu_device *device_find(struct gpu *gpu, struct gpu_request *request);
/* Gives it a context and a copying thread if it has none. Return: false: refused. */
bool device_open(struct gpu_device *d, struct gpu_request *request);
/* Nobody has memory there any more: gives back what costs; a spoilt context as a whole. */
void device_idle(struct gpu_device *d);
void device_close(struct gpu_device *d);
void device_free(struct gpu_device *d);
/* A call has failed: is the context spoilt? Any thread that has it as its current one. */
void device_check(struct gpu_device *d, CUresult r);

/* ---- copier.c ----------------------------------------------------------------------------- */

int copier_start(struct gpu_device *d);
void copier_stop(struct gpu_device *d);
/* The "gpu" thread, when no job is under way: unpins slabs from @first on and gives them back. */
void copier_trim(struct gpu_device *d, uint32_t first);

#endif
