/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Staging: see staging.h
 *
 * Thread: see staging.h      Owns: see staging.h      Locks: none
 */
#include "gpu/staging.h"

#include <assert.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base.h"

/* A wish: where the kernel cannot, it takes other memory. */
static void prefer_node(void *base, uint64_t size, int node)
{
	unsigned long mask[16] = {0};
	const int bits = 8 * (int)sizeof(mask[0]);

	if (node < 0 || node >= bits * (int)ARRAY_SIZE(mask)) {
		return;
	}
	mask[node / bits] = 1ul << (node % bits);
	syscall(SYS_mbind, base, size, MPOL_PREFERRED, mask, sizeof(mask) * 8, 0);
}

int staging_init(struct staging *s, uint64_t size, int node)
{
	*s = (struct staging){0};
	s->size = ALIGN_UP(MIN(MAX(size, STAGING_SLAB), STAGING_MAX), (uint64_t)STAGING_SLAB);
	s->units = (uint32_t)(s->size / STAGING_UNIT);
	s->nslabs = (uint32_t)(s->size / STAGING_SLAB);
	s->taken = calloc(DIV_UP(s->units, 64), sizeof(*s->taken));
	s->slabs = calloc(s->nslabs, sizeof(*s->slabs));
	s->base = mmap(NULL, s->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (s->base == MAP_FAILED) {
		s->base = NULL;
	}
	if (!s->taken || !s->slabs || !s->base) {
		staging_deinit(s);
		return err_origin(-ENOMEM);
	}
	prefer_node(s->base, s->size, node);
	madvise(s->base, s->size, MADV_HUGEPAGE);
	madvise(s->base, s->size, MADV_DONTDUMP);
	return 0;
}

void staging_deinit(struct staging *s)
{
	if (s->base) {
		munmap(s->base, s->size);
	}
	free(s->taken);
	free(s->slabs);
	*s = (struct staging){0};
}

static bool unit_taken(const struct staging *s, uint32_t unit)
{
	return s->taken[unit / 64] >> (unit % 64) & 1;
}

static void mark(struct staging *s, uint32_t from, uint32_t n, bool taken)
{
	for (uint32_t i = from; i < from + n; i++) {
		uint64_t bit = UINT64_C(1) << (i % 64);

		assert(unit_taken(s, i) != taken);
		if (taken) {
			s->taken[i / 64] |= bit;
		} else {
			s->taken[i / 64] &= ~bit;
		}
	}
}

/* The lowest @n free units in a row, or s->units. Whole words of taken ones are passed over. */
static uint32_t find(const struct staging *s, uint32_t n)
{
	uint32_t run = 0;

	for (uint32_t i = s->low; i < s->units;) {
		if (i % 64 == 0 && s->taken[i / 64] == UINT64_MAX) {
			run = 0;
			i += 64;
		} else {
			run = unit_taken(s, i) ? 0 : run + 1;
			i++;
			if (run == n) {
				return i - n;
			}
		}
	}
	return s->units;
}

uint64_t staging_limit(const struct staging *s, enum gpu_staging_use use)
{
	switch (use) {
	case GPU_STAGING_SEND:
		return s->size;
	case GPU_STAGING_RUN:
		return s->size / 4 * 3;
	default:
		return s->size / 2;
	}
}

/* See enum gpu_staging_use. */
static bool may_take(const struct staging *s, uint64_t units, enum gpu_staging_use use)
{
	uint64_t half = s->units / 2, most = s->units / 4 * 3;

	switch (use) {
	case GPU_STAGING_SEND:
		return units <= s->units;
	case GPU_STAGING_RECV:
		return s->recv + units <= half && s->recv + s->run + units <= most;
	case GPU_STAGING_RUN:
		return s->recv + s->run + units <= most;
	default:
		return s->recv + s->run + units <= half;
	}
}

static void account(struct staging *s, int64_t units, enum gpu_staging_use use)
{
	if (use == GPU_STAGING_RECV) {
		s->recv += (uint64_t)units;
	} else if (use != GPU_STAGING_SEND) {
		s->run += (uint64_t)units;
	}
}

uint8_t *staging_take(struct staging *s, uint64_t size, enum gpu_staging_use use)
{
	uint64_t units = DIV_UP(MAX(size, 1), STAGING_UNIT);
	uint64_t used;
	uint32_t at;

	if (!may_take(s, units, use)) {
		return NULL;
	}
	at = find(s, (uint32_t)units);
	if (at == s->units) {
		return NULL;
	}
	mark(s, at, (uint32_t)units, true);
	account(s, (int64_t)units, use);
	while (s->low < s->units && unit_taken(s, s->low)) {
		s->low++;
	}
	used = atomic_load_explicit(&s->used, memory_order_relaxed) + units * STAGING_UNIT;
	atomic_store_explicit(&s->used, used, memory_order_relaxed);
	if (used > atomic_load_explicit(&s->peak, memory_order_relaxed)) {
		atomic_store_explicit(&s->peak, used, memory_order_relaxed);
	}
	return s->base + (uint64_t)at * STAGING_UNIT;
}

void staging_put(struct staging *s, uint8_t *at, uint64_t size, enum gpu_staging_use use)
{
	uint32_t units = (uint32_t)DIV_UP(MAX(size, 1), STAGING_UNIT);
	uint32_t first = (uint32_t)((uint64_t)(at - s->base) / STAGING_UNIT);

	mark(s, first, units, false);
	account(s, -(int64_t)units, use);
	s->low = MIN(s->low, first);
	atomic_fetch_sub_explicit(&s->used, (uint64_t)units * STAGING_UNIT, memory_order_relaxed);
}
