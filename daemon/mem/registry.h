/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Registry: the buffers of one session, by the ids that the client uses
 *
 * Thread: control      Owns: a reference to each region      Locks: none
 */
#ifndef ROCECOMM_MEM_REGISTRY_H
#define ROCECOMM_MEM_REGISTRY_H

#include <stdint.h>

#include "mem/region.h"
#include "util/idpool.h"

enum {
	REGISTRY_E_FULL = 1,	  /* max buffers are registered */
	REGISTRY_E_NOT_FOUND = 2, /* no buffer has this id */
	REGISTRY_E_BOUNDS = 3,	  /* offset and length reach outside the buffer */
};

struct registry {
	struct idpool ids;
	struct region **regions; /* [capacity], by id - 1 */
	uint32_t capacity;
	uint64_t bytes; /* of all regions */
};

void registry_init(struct registry *r, uint32_t max);
/* Drops all references. */
void registry_deinit(struct registry *r);

/* @region: the reference is consumed on success. Return: 0, REGISTRY_E_FULL, -ENOMEM. */
int registry_add(struct registry *r, struct region *region, uint32_t *ret_id);
/* Borrowed. Return: the region, or NULL. */
struct region *registry_get(const struct registry *r, uint32_t id);
/* Return: the region, whose reference is the caller's now, or NULL. */
struct region *registry_take(struct registry *r, uint32_t id);
/* Return: 0 and the address, REGISTRY_E_NOT_FOUND, REGISTRY_E_BOUNDS. */
int registry_resolve(const struct registry *r, uint32_t id, uint64_t off, uint64_t len,
		     uint8_t **ret);

static inline uint32_t registry_count(const struct registry *r)
{
	return r->ids.count;
}

#endif
