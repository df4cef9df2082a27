/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Staging: host memory between a GPU and the wire
 *
 * Address space that is reserved with the GPU, near it, and costs nothing until it is used. Taken
 * in units, the lowest that fit, so that the same memory is used again and again: it is in the
 * cache, and what is above is never touched. Slabs are pinned when a copy first needs them; a slab
 * that cannot be pinned is used all the same, copies are slower then.
 *
 * Thread: take, put: one; slabs: the copying thread      Owns: the memory      Locks: none
 */
#ifndef ROCECOMM_GPU_STAGING_H
#define ROCECOMM_GPU_STAGING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"

#define STAGING_UNIT (64u << 10)
#define STAGING_SLAB (32u << 20) /* pinned at a time; copies end at its borders */
#define STAGING_MAX (UINT64_C(64) << 30)

enum staging_slab {
	STAGING_FRESH = 0,
	STAGING_PINNED = 1,
	STAGING_UNPINNABLE = 2,
};

struct staging {
	uint8_t *base;
	uint64_t size;
	uint32_t units;
	uint64_t *taken; /* bit a unit */
	uint32_t low;	 /* units below are taken */
	uint8_t *slabs;	 /* enum staging_slab, the copying thread's */
	uint32_t nslabs;
	uint64_t recv, run; /* units held for receives, for collectives */
	_Atomic uint64_t used, peak, pinned;
};

/* @node: NUMA node to prefer, -1: none. Return: 0, -ENOMEM. */
int staging_init(struct staging *s, uint64_t size, int node);
void staging_deinit(struct staging *s);
uint8_t *staging_take(struct staging *s, uint64_t size, enum gpu_staging_use use);
void staging_put(struct staging *s, uint8_t *at, uint64_t size, enum gpu_staging_use use);
/* The largest piece, if nobody else has any. */
uint64_t staging_limit(const struct staging *s, enum gpu_staging_use use);

static inline bool staging_contains(const struct staging *s, const void *at)
{
	return (const uint8_t *)at >= s->base && (const uint8_t *)at < s->base + s->size;
}

#endif
