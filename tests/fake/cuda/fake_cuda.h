/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake CUDA: a libcuda.so.1 on host memory, so that GPU code runs and fails on any machine
 *
 * A shared library with the driver's symbols (proto/cuda_abi.h), loaded by ROCECOMM_CUDA_LIBRARY.
 * What programs rely on is real: device addresses cannot be touched by the CPU (PROT_NONE; copies
 * go through a second mapping), allocations are memfds that travel by descriptor or by IPC handle
 * and outlive their owner, a mapping has an id that no later one has, streams are threads that work
 * in order, and a stream that waits for a value waits. Two processes with two daemons may share it.
 *
 * Environment, read when it is loaded:
 *   FAKE_CUDA_DEVICES=N         devices, 2; their UUIDs differ in the last byte: 0, 1, ...
 *   CUDA_VISIBLE_DEVICES=LIST   ordinals or GPU-/MIG-UUID prefixes, as the driver reads it
 *   FAKE_CUDA_FAIL=NAME=CODE[@SKIP[xCOUNT]],...  calls of NAME (cuMemCreate; no version) fail
 *   FAKE_CUDA_MAP_PART=1        cuMemMap maps a part of an allocation, too
 *   FAKE_CUDA_COPY_US=N         each copy of a stream takes that long
 *   FAKE_CUDA_HOST_US=N         each MiB to or from the host takes that long
 *   FAKE_CUDA_NO_PEER=1         no GPU can reach another one
 *   FAKE_CUDA_PEER_US=N         each copy between two GPUs takes that long
 *   FAKE_CUDA_PEER_SPOIL=1      it arrives wrong
 *   FAKE_CUDA_STATE=DIR         counts of this process in DIR/PID (struct fake_counts), while it
 * lives
 *
 * Thread: any      Owns: everything its calls hand out      Locks: root.lock; a stream's lock
 * inside
 */
#ifndef ROCECOMM_FAKE_CUDA_H
#define ROCECOMM_FAKE_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/cuda_abi.h"

#define FAKE_DEVICES 8
#define FAKE_FAILS 16
#define FAKE_STACK 16
#define FAKE_PAGE 4096u
#define FAKE_GRANULARITY (64u << 10) /* of cuMemCreate(); 2 MiB on real devices */

#define FAKE_API __attribute__((visibility("default")))

enum fake_kind {
	FAKE_DEVICE,	/* cuMemAlloc() */
	FAKE_POOL,	/* cuMemAllocAsync() */
	FAKE_VMM,	/* cuMemMap() */
	FAKE_IMPORTED,	/* cuIpcOpenMemHandle() */
	FAKE_MANAGED,	/* cuMemAllocManaged() */
	FAKE_HOST,	/* cuMemHostAlloc() */
	FAKE_REGISTERED /* cuMemHostRegister() */
};

/* A range of addresses that the driver knows. */
struct fake_range {
	struct fake_range *next;
	enum fake_kind kind;
	uintptr_t base;
	size_t size;
	uint8_t *alias; /* where the bytes can be touched; host kinds: base itself */
	uint64_t id;
	int device;
	int fd;			    /* FAKE_DEVICE: behind it; else -1 */
	struct fake_physical *phys; /* FAKE_VMM */
	unsigned int access;	    /* FAKE_VMM: bit a device that may touch it */
	unsigned int opened;	    /* FAKE_IMPORTED: times */
	uint8_t key[40];	    /* FAKE_IMPORTED: the handle */
};

/* cuMemCreate(), or its import. */
struct fake_physical {
	unsigned int refs;
	int fd;
	size_t size;
	int device;
	unsigned int handle_types;
	uint64_t block;
};

/* A reservation of cuMemAddressReserve(). */
struct fake_reserve {
	struct fake_reserve *next;
	uintptr_t base;
	size_t size;
};

/* What a test reads while the process lives, or after it was killed. */
struct fake_counts {
	_Atomic uint64_t device_bytes; /* allocated here */
	_Atomic uint64_t mapped;       /* VMM mappings */
	_Atomic uint64_t physical;     /* VMM allocations, imported or own */
	_Atomic uint64_t ipc;	       /* open IPC handles */
	_Atomic uint64_t host_bytes;   /* allocated and registered host memory */
	_Atomic uint64_t streams;
	_Atomic uint64_t events;
	_Atomic uint64_t copies; /* ever */
	_Atomic uint64_t copied; /* bytes, ever */
	_Atomic uint64_t waits;	 /* stream waits that are not satisfied now */
	_Atomic uint64_t peer;	 /* bytes between two GPUs, ever */
};

struct fake_fail {
	char name[40];
	int code;
	long skip;
	long count;
};

struct CUctx_st {
	int device;
	unsigned int refs;
};

struct fake_root {
	pthread_mutex_t lock;
	pid_t pid; /* of cuInit(); 0: not initialised */
	int real_devices;
	int n_visible;
	int visible[FAKE_DEVICES];
	struct CUctx_st ctx[FAKE_DEVICES]; /* primary, by visible ordinal */
	struct fake_range *ranges;
	struct fake_reserve *reserves;
	uint64_t next_id;
	struct fake_fail fails[FAKE_FAILS];
	unsigned int n_fails;
	CUresult sticky; /* after CUDA_ERROR_ILLEGAL_ADDRESS and the like */
	long copy_us, host_us, peer_us;
	bool no_peer, peer_spoil;
	unsigned int peers[FAKE_DEVICES]; /* bit a device whose context that device's has enabled */
	struct fake_counts *counts;
	CUstream defaults[FAKE_DEVICES][2]; /* legacy, per thread (one for all) */
};

extern struct fake_root fake;

/* First thing of every call. Return: CUDA_SUCCESS, or the error that the call returns. */
CUresult fake_enter(const char *name, bool needs_init);
/* The current context of this thread, or NULL. */
CUcontext fake_ctx(void);
#define FAKE_ENTER(name)                                  \
	do {                                              \
		CUresult enter_ = fake_enter(name, true); \
		if (enter_ != CUDA_SUCCESS) {             \
			return enter_;                    \
		}                                         \
	} while (0)
#define FAKE_ENTER_CTX(name)                               \
	do {                                               \
		FAKE_ENTER(name);                          \
		if (!fake_ctx()) {                         \
			return CUDA_ERROR_INVALID_CONTEXT; \
		}                                          \
	} while (0)

/* The range that holds @addr, or NULL. Lock held. */
struct fake_range *fake_find(uintptr_t addr);
struct fake_range *fake_range_new(enum fake_kind kind, uintptr_t base, size_t size, int device);
void fake_range_remove(struct fake_range *range);
/* Where the bytes at @addr can be touched; *ret_left: how many follow. NULL: nowhere. */
uint8_t *fake_touch(uintptr_t addr, size_t *ret_left);
/* Copies between any two places. Return: CUDA_SUCCESS or CUDA_ERROR_INVALID_VALUE. */
CUresult fake_copy(uintptr_t dst, uintptr_t src, size_t size);
int fake_memfd(size_t size);
/* A device range over @fd (kept by the caller). Return: NULL without memory. */
struct fake_range *fake_map(enum fake_kind kind, int fd, size_t size, int device);
/* Waits until the streams of all threads are idle. */
void fake_drain(void);

#endif
