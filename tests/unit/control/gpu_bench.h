/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU bench: a GPU in use and up to two network devices, on the fakes
 *
 * Thread: the test's      Owns: what gpu_bench_start() makes      Locks: none
 */
#ifndef ROCECOMM_TESTS_GPU_BENCH_H
#define ROCECOMM_TESTS_GPU_BENCH_H

#include "control/gpu_paths.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "tests/fake/verbs/fake_verbs.h"

struct gpu_bench {
	struct cuda_abi cuda;
	struct gpu *gpu;
	struct fake_net *net;
	struct fake_device *nic[2];
	struct rdma *devices;
	struct gpu_paths paths;
	struct gpu_alloc *alloc;
	uint8_t uuid[GPU_UUID_BYTES];
	bool answered, gone, looked;
};

/* @nics: mlx5_0, mlx5_1 */
void gpu_bench_start(struct gpu_bench *b, uint32_t nics);
/* Whatever was made is gone, or the test fails. */
void gpu_bench_stop(struct gpu_bench *b);
/* A client's allocation, so that the GPU is in use. */
void gpu_bench_use(struct gpu_bench *b, int device, uint8_t uuid[GPU_UUID_BYTES],
		   struct gpu_alloc **ret);
/* Runs what comes back until @what. */
void gpu_bench_until(struct gpu_bench *b, const bool *what);
/* One look, to its end. */
void gpu_bench_look(struct gpu_bench *b);
/* Sets looked; @arg: the bench. */
void gpu_bench_looked(void *arg);
/* What is said of the GPU has these words. */
void gpu_bench_reason(const struct gpu_bench *b, const char *words);
/* gpu_paths_json() as text, to be freed. */
char *gpu_bench_json(const struct gpu_bench *b);
void gpu_bench_row(const struct gpu_bench *b, size_t row, enum rdma_mem_way way, const char *words);

#endif
