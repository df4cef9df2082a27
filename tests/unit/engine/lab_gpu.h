/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPUs of the lab's hosts: ranks whose memory is on (fake) GPUs
 *
 * With LAB_GPU=all, or =odd for every second rank, ranks have their memory on the GPUs of the fake
 * driver, and every test of the engine is one of that. The test sees the same bytes through a
 * mapping of its own, for such memory is a file there.
 *
 * Thread: the test's      Owns: what it makes      Locks: none
 */
#ifndef ROCECOMM_TESTS_ENGINE_LAB_GPU_H
#define ROCECOMM_TESTS_ENGINE_LAB_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mem/region.h"

struct lab_gpu;

/* Those of one host. Return: NULL: no rank of this lab has memory on a GPU. */
struct lab_gpu *lab_gpu_new(void);
/* Everything has been given back: checks that. */
void lab_gpu_free(struct lab_gpu *g);
bool lab_gpu_has(const struct lab_gpu *g, uint32_t rank);
/* Memory on the GPU that is the rank's. *ret_view: for the test and as memory of the host. */
struct region *lab_gpu_region(struct lab_gpu *g, uint32_t rank, size_t size, void **ret_view);
void lab_gpu_pump(struct lab_gpu *g);
/* Bytes that went from GPU to GPU, and through the host to and from GPUs. */
uint64_t lab_gpu_peer_bytes(const struct lab_gpu *g);
uint64_t lab_gpu_host_bytes(const struct lab_gpu *g);
/* The most staging memory that a GPU ever had in use. */
uint64_t lab_gpu_staging_peak(const struct lab_gpu *g);
/* Copies from the rank's GPU to the other one's: state and reason, in words. */
void lab_gpu_peer_reason(const struct lab_gpu *g, uint32_t rank, char *text, size_t size);
/* Allocations that are not given back. */
unsigned int lab_gpu_live(const struct lab_gpu *g);

#endif
