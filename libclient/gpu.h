/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: what a client knows and holds of CUDA
 *
 * The driver is used only where the process has loaded it already (or a test names one). Device
 * memory is handed to the daemon by allocation, found again by address and believed only while the
 * driver still gives it the same buffer id; what cannot be handed over is copied by copy engines
 * through staging. Streams post by writing a gate and wait on the completion cell; a watchdog
 * thread, which never calls the driver, lets them go when the daemon is lost.
 *
 * Files: gpu.c (driver, contexts, pinning), gpu_mem.c (the cache), gpu_export.c (allocations),
 * gpu_copy.c (copies), gpu_stream.c (what is enqueued), gpu_watch.c (the watchdog).
 *
 * Thread: any      Owns: registrations, pinnings, streams for copies, the watchdog
 * Locks: grow: one registration at a time, held across requests; lock: the buffer table; inner:
 * allocations, what is dead, contexts; copy: copy streams, pinning. Order: grow or the client's
 * lock, then copy or lock, then inner. The watchdog takes only the client's lock and inner, under
 * which the driver is not called: a call of it may wait for a stream that the watchdog has to let
 * go.
 */
#ifndef ROCECLIENT_GPU_H
#define ROCECLIENT_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cuda_abi.h"

#define GPU_DEVICES 64
#define GPU_REASON 400

/*
 * Operations of a stream with at most so many bytes a side are copied by the stream, through our
 * staging, also where the daemon has the memory; and so much staging, all in all.
 */
#define GPU_SMALL ((size_t)64 << 10)
#define GPU_SMALL_ROOM ((size_t)16 << 20)

struct roce_client;
struct copy_list;
struct op;
struct shmem;

enum gpu_kind {
	GPU_HOST,     /* not device memory: as any other */
	GPU_EXPORTED, /* the daemon has it */
	GPU_COPIED,   /* device memory that only this process can touch */
};

/* What is known of a pointer. */
struct gpu_place {
	enum gpu_kind kind;
	bool pinned; /* GPU_HOST: the driver can copy it in stream order */
	int device;
	uint32_t buffer; /* GPU_EXPORTED */
	uint64_t off;
	struct gpu_buffer *used; /* gives `buffer` its meaning until gpu_drop(); or NULL */
};

/* A physical allocation, exported once. */
struct gpu_alloc {
	struct gpu_alloc *next;
	CUdeviceptr base;
	size_t size;
	uint64_t key; /* the driver's buffer id */
	int device;
	uint32_t id;	   /* the daemon's; 0: it cannot be handed over, see reason */
	unsigned int refs; /* buffers that stand on it */
	char reason[GPU_REASON];
};

/* A range of addresses that the daemon maps, or that is known not to be exportable. */
struct gpu_buffer {
	struct gpu_buffer *next_dead;
	CUdeviceptr base;
	size_t size;
	uint32_t id; /* 0: copied */
	int device;
	char path[GPU_REASON]; /* how, and why */
	bool freed;	       /* its memory is gone; else it was only replaced */
	_Atomic unsigned int
		users; /* places that name it and are not posted; no new ones once dead */
	size_t n;
	struct gpu_alloc *pieces[];
};

struct gpu {
	pthread_mutex_t grow;
	pthread_mutex_t lock;
	struct gpu_buffer **buffers; /* sorted by base */
	size_t n_buffers;
	size_t room;
	struct roce_buffer *registered; /* device memory that the user registered */
	bool takes;			/* the daemon takes GPU memory (Welcome) */
	bool warned;

	pthread_mutex_t inner;
	struct gpu_alloc *allocs;
	struct gpu_buffer *dead;    /* to be deregistered by the watchdog */
	unsigned int freed;	    /* of them, and of those being deregistered: memory is gone */
	CUcontext ctx[GPU_DEVICES]; /* primary contexts that we hold */

	pthread_mutex_t copy;
	CUstream copy_stream[GPU_DEVICES];

	/* Streams. */
	_Atomic uint32_t *gates; /* of the session page; NULL: the daemon has none */
	_Atomic uint32_t *moved; /* [LIMIT_TICKETS]: the stream has also made the op's copies */
	CUdeviceptr page_dev;	 /* the session page as devices see it; 0: not pinned yet */
	CUdeviceptr moved_dev;
	_Atomic uint32_t open; /* gated operations that are not settled */
	size_t small;	       /* staging of small operations in flight; the client's lock */

	pthread_t watchdog;
	bool watching;
	pthread_cond_t wake;
	bool sleeping;
	bool quit;
};

/* The driver, or NULL: the process has none loaded, or it is too old. */
const struct cuda_abi *gpu_cuda(void);

void gpu_init(struct gpu *gpu);
/* Lets streams go, stops the watchdog, unpins. @forked: forgets. */
void gpu_deinit(struct roce_client *client, bool forked);

/* Gives the contexts back, when everything pinned is unpinned. */
void gpu_release(struct roce_client *client);
/*
 * Makes the primary context of @device current (-1: of any); gpu_pop() follows. Return: 0 or a
 * status.
 */
int gpu_push(struct roce_client *client, int device);
void gpu_pop(void);
/* A status with its sentence for a call of the driver that failed. */
int gpu_error(const char *what, CUresult error);
/* Pins shared memory once, so that copies of it run in stream order. Return: 0 or a status. */
int gpu_pin(struct roce_client *client, int device, struct shmem *shm);
/* Before it is unmapped. */
void gpu_unpin(struct shmem *shm);

/*
 * Finds out what [ptr, ptr + size) is, and hands it to the daemon if need be. @size > 0. No lock
 * may be held. Return: 0 or a status with its sentence; then gpu_drop() @ret->used.
 */
int gpu_find(struct roce_client *client, const void *ptr, size_t size, struct gpu_place *ret);
/* What names the buffer is posted, or never will be. NULL: nothing. */
void gpu_drop(struct gpu_buffer *buffer);
/* How the memory at @ptr reaches the daemon, in words. */
void gpu_describe(struct roce_client *client, const void *ptr, char *text, size_t size);
/* Forgets what touches the range, or, with @size 0, what was freed. Waits for the daemon. */
int gpu_forget(struct roce_client *client, const void *ptr, size_t size);
/*
 * Deregisters what was given up, or of that only what was freed; makes requests, calls no driver.
 * The answers come when no operation uses it any more.
 */
void gpu_bury(struct roce_client *client, bool only_freed);

/* The driver's id of what is at @ptr now; 0: nothing. */
uint64_t gpu_key(const struct cuda_abi *cu, CUdeviceptr ptr);
/*
 * The allocation at @base, handed over now if it is new; sets its id or its reason. gpu.grow held.
 * Return: 0, or the status of a lost daemon or of want of memory.
 */
int gpu_alloc_get(struct roce_client *client, const struct cuda_abi *cu, CUdeviceptr base,
		  size_t size, int device, struct gpu_alloc **ret);
/* Gives one use back; tells the daemon after the last. */
void gpu_alloc_put(struct roce_client *client, struct gpu_alloc *alloc);
/* Is the memory at @ptr a mapping of cuMemMap()? */
bool gpu_is_vmm(const struct cuda_abi *cu, CUdeviceptr ptr);

/* Copies between the user's device memory and staging, and waits. Return: 0 or a status. */
int gpu_copy(struct roce_client *client, const struct copy_list *list, bool out);

/* Can operations be posted on @stream? Pins what streams write to. Return: 0 or a status. */
int gpu_stream_check(struct roce_client *client, void *stream, const char *what);
/* After the op has its ticket: inputs to staging, then the gate. Return: 0 or a status. */
int gpu_stream_post(struct op *op);
/* Then: wait for the cell, results from staging. Return: 0 or a status. */
int gpu_stream_wait(struct op *op);

/* Starts the watchdog if it does not run. Return: 0 or a status. */
int gpu_watch(struct roce_client *client);
/* Wakes it: there is something to watch. Client's lock held. */
void gpu_watch_more(struct roce_client *client);
void gpu_watch_stop(struct roce_client *client);

#endif
