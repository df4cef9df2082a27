/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: memory of clients on GPUs, and copies between it and memory of the host
 *
 * The one place of the daemon that calls the CUDA driver, which is loaded at run time and not
 * before a client brings GPU memory: a host without a GPU loses nothing. The daemon launches no
 * kernel; all it asks of a GPU are copies by its copy engines.
 *
 * CUDA calls that may take long (starting the driver, a context, mapping, unmapping) are made by a
 * thread of their own ("gpu"), which control hands requests to. Each GPU in use has one more
 * ("gpu-N"), which submits copies and looks for their ends: the progress thread hands it jobs
 * through a lock-free inbox and gets them back through another, and never waits.
 *
 * GPUs are known by UUID: numbers differ between processes. Each GPU's staging memory (staging.h)
 * is near it and pinned when it is first used.
 *
 * A fault that spoils a context for good (an uncorrectable ECC error, a GPU that falls off the bus)
 * fails all that is under way on that GPU, and each use of memory that is imported already. When
 * all of that has been given back the context is thrown away, and the next import begins anew.
 *
 * Thread: as each function says      Owns: threads, contexts, staging memory      Locks: none
 */
#ifndef ROCECOMM_GPU_H
#define ROCECOMM_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/inbox.h"
#include "proto/gpu.h"
#include "proto/status.h"

#define GPU_MAX_DEVICES 64
#define GPU_TEXT 512
#define GPU_TRIAL_TEXT 200

struct gpu;	   /* the GPUs of this host */
struct gpu_device; /* one of them */
struct gpu_alloc;  /* an allocation of a client, imported */
struct gpu_memory; /* consecutive addresses made of allocations */

struct gpu_options {
	bool off;	     /* refuse everything */
	bool peer_off;	     /* no copies from GPU to GPU */
	const char *library; /* NULL: as cuda_abi_open() does */
	uint64_t staging;    /* bytes a GPU, at most */
	uint32_t spin_us;    /* the copying threads look for work that long before they sleep */
};

/* ---- control thread ----------------------------------------------------------------------- */

int gpu_new(const struct gpu_options *options, struct gpu **ret);
/* All memory has been given back and told so; ends the threads. */
struct gpu *gpu_free(struct gpu *gpu);
/* Readable when gpu_dispatch() has something to do. */
int gpu_fd(const struct gpu *gpu);
/* Runs what requests and releases have to say. */
void gpu_dispatch(struct gpu *gpu);

/* Work for the "gpu" thread, and what control does about it afterwards. */
struct gpu_task {
	struct gpu_item item;
	void (*run)(struct gpu *gpu, struct gpu_task *task);
	void (*back)(struct gpu_task *task);
};

/* What is asked of the "gpu" thread. The caller keeps it until done() runs, from gpu_dispatch(). */
struct gpu_request {
	struct gpu_task task; /* not the caller's business */
	void (*done)(struct gpu_request *request);
	void *arg;

	/* gpu_open(): an allocation */
	enum gpu_handle handle;
	uint8_t uuid[GPU_UUID_BYTES];
	uint64_t size; /* as the client says; in the answer, what is held */
	uint64_t buffer_id;
	int fd; /* borrowed; -1 for IPC */
	uint8_t ipc[GPU_IPC_BYTES];
	/* of the allocation, on the control thread, when it is unmapped */
	void (*gone)(void *arg);
	void *gone_arg;

	/* gpu_map(): a buffer */
	uint32_t npieces;
	struct gpu_piece *pieces; /* borrowed */

	/* the answer */
	enum status status;
	char text[GPU_TEXT];	   /* why not */
	struct gpu_alloc *alloc;   /* a new reference */
	struct gpu_memory *memory; /* a new reference */
};

struct gpu_piece {
	struct gpu_alloc *alloc; /* borrowed */
	uint64_t offset;
	uint64_t size;
};

/* Imports an allocation. gone() runs once if, and only if, this succeeds. */
void gpu_open(struct gpu *gpu, struct gpu_request *request);
/* Makes a buffer; it refers to its allocations. */
void gpu_map(struct gpu *gpu, struct gpu_request *request);

/* Memory on a GPU in use, for network devices to try to register. The caller keeps it until done().
 */
struct gpu_trial {
	struct gpu_task task; /* not the caller's business */
	void (*done)(struct gpu_trial *trial);
	uint8_t uuid[GPU_UUID_BYTES];
	/* the answer */
	uint64_t address; /* valid until the daemon stops using the GPU; 0: none, see text */
	uint64_t size;
	int fd; /* its dma-buf, the caller's; -1: none, see text */
	char text[GPU_TRIAL_TEXT];
};

void gpu_trial(struct gpu *gpu, struct gpu_trial *trial);

/* For work on a GPU's memory that a thread of the caller's does: gpu_free() must come later. */
void gpu_task_begin(struct gpu *gpu, struct gpu_task *task, void (*back)(struct gpu_task *task));
/* Any thread, once: back() runs from gpu_dispatch(). */
void gpu_task_end(struct gpu *gpu, struct gpu_task *task);

struct gpu_alloc *gpu_alloc_ref(struct gpu_alloc *alloc);
/* The last one: it is unmapped when no buffer stands on it, and then gone() runs. NULL allowed. */
struct gpu_alloc *gpu_alloc_unref(struct gpu_alloc *alloc);

/* ---- any thread --------------------------------------------------------------------------- */

struct gpu_memory *gpu_memory_ref(struct gpu_memory *memory);
/* The last one: it is unmapped, later. NULL allowed. Return: NULL. */
struct gpu_memory *gpu_memory_unref(struct gpu_memory *memory);
/* An address of the daemon's, to be used with its device only. */
uint64_t gpu_memory_address(const struct gpu_memory *memory);
uint64_t gpu_memory_size(const struct gpu_memory *memory);
struct gpu_device *gpu_memory_device(const struct gpu_memory *memory);
/* NUMA node of a GPU, -1: not known. */
int gpu_device_node(const struct gpu_device *device);
/* Of its GPU. */
const uint8_t *gpu_memory_uuid(const struct gpu_memory *memory);
/* How its allocations were handed over, for people. */
const char *gpu_memory_kind(const struct gpu_memory *memory);

/* What is known of one GPU; numbers of different moments. */
struct gpu_status {
	char name[64];
	char uuid[48]; /* GPU-... */
	uint8_t id[GPU_UUID_BYTES];
	char bus[32]; /* PCI address */
	int node;     /* NUMA, -1: not known */
	bool lost;    /* its context is spoilt */
	char error[128];
	uint64_t allocs, alloc_bytes;
	uint64_t staging_limit, staging_used, staging_peak, staging_pinned;
	uint64_t bytes_in, bytes_out; /* copied from the GPU, to the GPU */
	uint64_t bytes_peer;	      /* copied straight to other GPUs */
	uint64_t jobs, jobs_failed, jobs_waiting;
};

/* Return: false: there is no GPU @index that was ever used. */
bool gpu_get_status(const struct gpu *gpu, unsigned int index, struct gpu_status *ret);
/* Why there is none: "" when nobody has asked for one. */
const char *gpu_reason(const struct gpu *gpu);

/* ---- the thread that copies are for ------------------------------------------------------- */

/* Where its jobs come back. */
struct gpu_channel {
	struct gpu_inbox done;
	_Atomic bool asleep;
	_Atomic uint32_t ending; /* copying threads that are about to ring */
	int bell;		 /* eventfd, borrowed */
};

struct gpu_copy {
	uint64_t device;
	void *host; /* staging memory, or any other: slower then */
	uint64_t size;
	struct gpu_device *stage; /* whose staging memory it is, if another GPU's; else NULL */
	/* Of a job between GPUs: where it goes. On the same GPU it goes by @room bytes at @host. */
	struct gpu_device *to;
	uint64_t to_address;
	uint64_t room;
};

/* Copies, in order. The caller keeps it, and what piece() reads, until it has it back. */
struct gpu_job {
	struct gpu_item item;
	struct gpu_device *device;
	struct gpu_channel *channel;
	bool out;  /* to the GPU */
	bool peer; /* from the GPU to others: see gpu_peer_ready() */
	uint32_t npieces;
	int error; /* enum cudaError_enum, 0: all is copied */
	/* Called by the copying thread, with 0 .. npieces - 1. Size 0: nothing to copy. */
	void (*piece)(const struct gpu_job *job, uint32_t piece, struct gpu_copy *ret);
};

void gpu_copy(struct gpu_job *job);
/* Jobs that have ended, the first to end first. */
static inline struct gpu_job *gpu_channel_take(struct gpu_channel *channel)
{
	return (struct gpu_job *)gpu_inbox_take(&channel->done);
}
/* Announces sleep: from now on the end of a job rings. Return: false if one has ended already. */
static inline bool gpu_channel_arm(struct gpu_channel *channel)
{
	atomic_store_explicit(&channel->asleep, true, memory_order_seq_cst);
	/* seq_cst: who ends a job now sees us asleep, or we see it */
	return gpu_inbox_empty(&channel->done);
}
static inline void gpu_channel_disarm(struct gpu_channel *channel)
{
	atomic_store_explicit(&channel->asleep, false, memory_order_relaxed);
}

/* All jobs are back: may the channel be freed? Not while somebody still looks whether to ring. */
static inline bool gpu_channel_quiet(const struct gpu_channel *channel)
{
	return !atomic_load_explicit(&((struct gpu_channel *)channel)->ending,
				     memory_order_acquire);
}

/*
 * May copy engines copy from @from to @to, on another GPU of this host? Never waits: what is not
 * known yet the "gpu" thread finds out, by a trial of the pair of GPUs and by opening @to to the
 * other GPU, and a later call says so. Any thread that holds both.
 */
bool gpu_peer_ready(struct gpu_memory *from, struct gpu_memory *to);
/* A copy between them has failed: no more of them. @error: as gpu_job.error. */
void gpu_peer_broken(struct gpu_device *from, struct gpu_device *to, int error);

/* What is known of one GPU's way to another. Numbers of different moments. */
struct gpu_peer_status {
	char uuid[48]; /* of the other */
	bool direct;
	uint32_t direct_mbytes, staged_mbytes; /* a second, in the trial; 0: none was made */
	char reason[300];		       /* a sentence */
};

/* @index: as gpu_get_status(). Return: false: there is no @peer-th other GPU that was ever used. */
bool gpu_get_peer(const struct gpu *gpu, unsigned int index, unsigned int peer,
		  struct gpu_peer_status *ret);

/*
 * What staging memory is for. What is held until another host has done its part must leave room for
 * what ends by itself, or hosts could wait for each other in a circle:
 */
enum gpu_staging_use {
	GPU_STAGING_SEND = 0, /* a message that its receiver waits for: up to all of it */
	GPU_STAGING_RECV = 1, /* a message that may come late: together up to a half */
	/* Of a collective whose turn it is. With receives up to three quarters. */
	GPU_STAGING_RUN = 2,
	/* What makes it faster, and collectives behind it. The same, up to a half. */
	GPU_STAGING_MORE = 3,
};

/* Near the GPU. One thread a GPU takes and gives back. Return: NULL: not now. */
uint8_t *gpu_staging_take(struct gpu_device *device, uint64_t size, enum gpu_staging_use use);
void gpu_staging_put(struct gpu_device *device, uint8_t *at, uint64_t size,
		     enum gpu_staging_use use);
/* The most that one can ever have for that. */
uint64_t gpu_staging_limit(const struct gpu_device *device, enum gpu_staging_use use);

#endif
