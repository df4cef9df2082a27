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

/* Ways: each a stream of its own, so that all work at once. */
enum { COPIER_IN = 0, COPIER_OUT = 1, COPIER_PEER = 2, COPIER_LANES = 3 };

/* Copies of one GPU to another: how, and why so. */
enum peer_verdict {
	PEER_UNTRIED = 0,
	PEER_DIRECT,
	PEER_OFF,	/* gpu_peer = off */
	PEER_NO_ACCESS, /* the driver says that they cannot reach each other */
	PEER_NO_MEMORY, /* for the trial */
	PEER_FAILED,	/* the trial did, see error */
	PEER_WRONG,	/* the trial's bytes were */
	PEER_SLOW,	/* slower than through the host */
	PEER_BROKEN,	/* a copy failed after a good trial, see error */
};

struct gpu_pair {
	_Atomic int verdict;
	_Atomic int error;
	_Atomic uint32_t direct_mbytes, staged_mbytes; /* a second */
};

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
	uint32_t index; /* in gpu.devices */
	uint8_t uuid[GPU_UUID_BYTES];
	char name[64];
	char uuid_text[48];
	char bus[32];
	int node;

	/* the "gpu" thread's */
	bool open;
	CUcontext ctx;
	uint64_t users;	   /* allocations and buffers */
	CUdeviceptr trial; /* see trial.c; 0: none */

	/* the copying thread's, but for the inbox */
	struct thread thread;
	struct copier_lane lanes[COPIER_LANES];
	_Alignas(64) struct gpu_inbox inbox;
	_Atomic uint32_t state; /* enum copier_state; the futex */
	_Atomic bool stop;

	struct staging staging;

	/* everybody's */
	_Atomic bool used; /* has been opened once: the texts above may be read */
	_Atomic int lost;  /* enum cudaError_enum */
	_Atomic uint64_t allocs, alloc_bytes;
	_Atomic uint64_t bytes_in, bytes_out, bytes_peer, jobs, jobs_failed, jobs_ended;
	struct gpu_pair pairs[GPU_MAX_DEVICES]; /* by index of the other */
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
	/* Other GPUs, bit an index: that may write to it; that it cannot be opened to. */
	_Atomic uint64_t open_to, closed_to;
	struct gpu_task peer_task; /* of one request to open it */
	_Atomic bool peer_asked;
	struct gpu_device *peer_from; /* the GPU that asks */
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

/* Among those found so far. NULL: none. */
struct gpu_device *device_by_uuid(struct gpu *gpu, const uint8_t *uuid);
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

/* ---- peer.c ------------------------------------------------------------------------------- */

/* A context goes: what its trials found out goes with it. */
void peer_forget(struct gpu_device *d);

/* ---- copier.c ----------------------------------------------------------------------------- */

int copier_start(struct gpu_device *d);
void copier_stop(struct gpu_device *d);
/* The "gpu" thread, when no job is under way: unpins slabs from @first on and gives them back. */
void copier_trim(struct gpu_device *d, uint32_t first);

#endif
