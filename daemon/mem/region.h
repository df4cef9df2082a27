/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Region: memory shared with a client, mapped here
 *
 * Made from a memfd that import.h has checked; unmapped when the last reference goes, which may be
 * the control thread's or a progress thread's. Carries the quota charge of its bytes with it.
 *
 * Or memory of a GPU (`gpu` is set): `base` is then an address that only copies of gpu/gpu.h may
 * use, different from all of the host's; what it costs is charged with its allocations.
 *
 * Thread: any (immutable but for the count)      Owns: the mapping, the charge      Locks: none
 */
#ifndef ROCECOMM_MEM_REGION_H
#define ROCECOMM_MEM_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "util/quota.h"
#include "util/ref.h"

struct region {
	struct ref ref;
	uint8_t *base;
	uint64_t size; /* bytes that the client may name */
	size_t mapped; /* size, up to whole pages */
	bool internal; /* the library's own (staging, argument arrays), for rocectl */
	struct quota_charge charge;
	struct gpu_memory *gpu; /* NULL: memory of the host */
};

/*
 * @base: a mapping of @mapped bytes, consumed on success. @charge: moved into the region on
 * success. Return: 0, -ENOMEM.
 */
int region_new(void *base, size_t mapped, uint64_t size, struct quota_charge *charge,
	       struct region **ret);
/* @memory: the reference is consumed on success. Return: 0, -ENOMEM. */
int region_new_gpu(struct gpu_memory *memory, struct region **ret);
struct region *region_ref(struct region *r);
/* NULL allowed. Return: NULL. */
struct region *region_unref(struct region *r);

/* Is [off, off + len) inside? Right for any values. */
static inline bool region_contains(const struct region *r, uint64_t off, uint64_t len)
{
	return off <= r->size && len <= r->size - off;
}

#endif
