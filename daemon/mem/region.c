/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Region: implementation
 *
 * Thread: any      Owns: see region.h      Locks: none
 */
#include "mem/region.h"

#include <sys/mman.h>

#include "proto/base.h"

/* See region.h. */
int region_new(void *base, size_t mapped, uint64_t size, struct quota_charge *charge,
	       struct region **ret)
{
	struct region *r;

	r = calloc(1, sizeof(*r));
	if (!r) {
		return err_origin(-ENOMEM);
	}
	ref_init(&r->ref);
	r->base = base;
	r->mapped = mapped;
	r->size = size;
	r->charge = *charge;
	*charge = (struct quota_charge){0};
	*ret = r;
	return 0;
}

/* See region.h. */
int region_new_gpu(struct gpu_memory *memory, struct region **ret)
{
	struct quota_charge none = {0};
	uint64_t size = gpu_memory_size(memory);
	int r;

	r = region_new((void *)(uintptr_t)gpu_memory_address(memory), size, size, &none, ret);
	if (r < 0) {
		return err_trace(r);
	}
	(*ret)->gpu = memory;
	return 0;
}

/**
 * region_ref() - take a reference
 * @r:  borrowed
 *
 * Return: @r
 */
struct region *region_ref(struct region *r)
{
	ref_get(&r->ref);
	return r;
}

/* See region.h. */
struct region *region_unref(struct region *r)
{
	if (r && ref_put(&r->ref)) {
		if (r->gpu) {
			gpu_memory_unref(r->gpu);
		} else {
			munmap(r->base, r->mapped);
		}
		quota_release(&r->charge);
		free(r);
	}
	return NULL;
}
