/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank: one rank that works on GPU memory
 *
 * Needs a CUDA driver (or tests/fake/cuda) and nothing else of CUDA: it launches no kernel, all
 * values are made and looked at by the CPU and copied.
 *
 * Thread: main      Owns: see struct rank      Locks: none
 */
#ifndef GPU_RANK_H
#define GPU_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/roceclient.h"
#include "proto/cuda_abi.h"

struct rank {
	struct cuda_abi cu;
	CUcontext ctx;
	CUstream stream;
	struct roce_client *client;
	struct roce_comm *comm;
	int rank;
	int size;
	bool brief;
	int device;
	double seconds;
	const char *sizes;
	const char *ops;
	size_t bytes;
	long cases;
};

enum memory_kind {
	MEMORY_IPC,
	MEMORY_VMM,
	MEMORY_PLAIN,
	MEMORY_POOL,
	MEMORY_MANAGED,
	MEMORY_KINDS
};

struct memory {
	enum memory_kind kind;
	CUdeviceptr base;
	size_t size;
	size_t unit; /* VMM: of one allocation */
};

/* Ends the process with words. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Dies with the library's or the driver's words. */
void must(int status, const char *what);
void must_cuda(struct rank *r, CUresult result, const char *what);
double now_us(void);

const char *memory_name(enum memory_kind kind);
void memory_new(struct rank *r, enum memory_kind kind, size_t size, struct memory *ret);
void memory_free(struct rank *r, struct memory *memory);

int run_check(struct rank *r);
int run_bench(struct rank *r);
int run_loop(struct rank *r);
int run_churn(struct rank *r);

#endif
