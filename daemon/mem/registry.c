/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Registry: implementation
 *
 * Thread: control      Owns: see registry.h      Locks: none
 */
#include "mem/registry.h"

#include <string.h>

#include "proto/base.h"

/**
 * registry_init() - make an empty table
 * @r:    uninitialised
 * @max:  highest id
 */
void registry_init(struct registry *r, uint32_t max)
{
	*r = (struct registry){0};
	idpool_init(&r->ids, max);
}

/* See registry.h. */
void registry_deinit(struct registry *r)
{
	for (uint32_t i = 0; i < r->capacity; i++) {
		region_unref(r->regions[i]);
	}
	free(r->regions);
	r->regions = NULL;
	r->capacity = 0;
	r->bytes = 0;
	idpool_deinit(&r->ids);
}

static int reserve(struct registry *r, uint32_t id)
{
	uint32_t capacity = MAX(r->capacity, 8);
	struct region **regions;

	if (id <= r->capacity) {
		return 0;
	}
	while (capacity < id) {
		capacity *= 2;
	}
	regions = realloc(r->regions, capacity * sizeof(struct region *));
	if (!regions) {
		return err_origin(-ENOMEM);
	}
	memset(regions + r->capacity, 0, (capacity - r->capacity) * sizeof(struct region *));
	r->regions = regions;
	r->capacity = capacity;
	return 0;
}

/* See registry.h. */
int registry_add(struct registry *r, struct region *region, uint32_t *ret_id)
{
	uint32_t id;
	int ret;

	ret = idpool_take(&r->ids, &id);
	if (ret != 0) {
		return ret == IDPOOL_E_FULL ? REGISTRY_E_FULL : err_trace(ret);
	}
	ret = reserve(r, id);
	if (ret < 0) {
		idpool_release(&r->ids, id);
		return err_trace(ret);
	}
	r->regions[id - 1] = region;
	r->bytes += region->size;
	*ret_id = id;
	return 0;
}

/* See registry.h. */
struct region *registry_get(const struct registry *r, uint32_t id)
{
	return id > 0 && id <= r->capacity ? r->regions[id - 1] : NULL;
}

/* See registry.h. */
struct region *registry_take(struct registry *r, uint32_t id)
{
	struct region *region = registry_get(r, id);

	if (region) {
		r->regions[id - 1] = NULL;
		r->bytes -= region->size;
		idpool_release(&r->ids, id);
	}
	return region;
}

/* See registry.h. */
int registry_resolve(const struct registry *r, uint32_t id, uint64_t off, uint64_t len,
		     uint8_t **ret)
{
	struct region *region = registry_get(r, id);

	if (!region) {
		return REGISTRY_E_NOT_FOUND;
	}
	if (!region_contains(region, off, len)) {
		return REGISTRY_E_BOUNDS;
	}
	*ret = region->base + off;
	return 0;
}
