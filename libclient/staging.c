/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Staging: implementation
 *
 * Thread: any      Owns: see staging.h      Locks: the client's lock, taken inside
 */
#include "libclient/staging.h"

#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/request.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

static const size_t small_sizes[STAGING_SMALL_CLASSES] = {1 << 10, 8 << 10, 64 << 10, 256 << 10};
#define SMALL_MAX ((size_t)256 << 10)

/*
 * Large classes: (4 + q) / 4 * 2^(18 + e), q = 1 .. 4: 320 KiB, 384 KiB, 448 KiB, 512 KiB,
 * 640 KiB, ... At most a fifth is wasted, and only address space: pages come when touched.
 */
size_t staging_class_size(unsigned int bin)
{
	unsigned int e, q;

	if (bin < STAGING_SMALL_CLASSES) {
		return small_sizes[bin];
	}
	bin -= STAGING_SMALL_CLASSES;
	e = bin / 4;
	q = bin % 4 + 1;
	return ((size_t)1 << (16 + e)) * (4 + q);
}

unsigned int staging_class(size_t size)
{
	unsigned int bin = 0, e;

	while (bin < STAGING_SMALL_CLASSES && size > small_sizes[bin]) {
		bin++;
	}
	if (bin < STAGING_SMALL_CLASSES) {
		return bin;
	}
	/* 2^(18 + e) < size <= 2^(19 + e) */
	e = 63 - (unsigned int)__builtin_clzll(size - 1) - 18;
	return STAGING_SMALL_CLASSES + 4 * e +
	       (unsigned int)(DIV_UP(size, (size_t)1 << (16 + e)) - 5);
}

static bool class_is_small(unsigned int bin)
{
	return bin < STAGING_SMALL_CLASSES;
}

static struct staging_block *staging_pop(struct staging *staging, unsigned int bin)
{
	struct staging_block *block = staging->free[bin];

	if (block) {
		staging->free[bin] = block->next;
		block->next = NULL;
		if (!class_is_small(bin)) {
			staging->idle -= block->slab->shm.size;
		}
	}
	return block;
}

/* Makes a slab of @class. Lock not held. Return: 0 or a status. */
static int staging_slab_new(struct roce_client *client, unsigned int bin, struct staging_slab **ret)
{
	size_t block_size = staging_class_size(bin);
	size_t n = class_is_small(bin) ? STAGING_SLAB / block_size : 1;
	struct staging_slab *slab;
	int r;

	slab = calloc(1, sizeof(*slab) + n * sizeof(slab->blocks[0]));
	if (!slab) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a staging slab");
	}
	r = shmem_new(client, n * block_size, SHMEM_INTERNAL, &slab->shm);
	if (r != 0) {
		free(slab);
		return r;
	}
	for (size_t i = 0; i < n; i++) {
		struct staging_block *b = &slab->blocks[i];

		b->slab = slab;
		b->off = i * block_size;
		b->ptr = slab->shm.base + b->off;
		b->buffer = slab->shm.id;
		b->bin = bin;
		b->next = i + 1 < n ? b + 1 : NULL;
	}
	*ret = slab;
	return 0;
}

static void staging_link(struct staging *staging, struct staging_slab *slab)
{
	slab->next = staging->slabs;
	slab->prev = &staging->slabs;
	if (slab->next) {
		slab->next->prev = &slab->next;
	}
	staging->slabs = slab;
}

static void staging_unlink(struct staging_slab *slab)
{
	*slab->prev = slab->next;
	if (slab->next) {
		slab->next->prev = slab->prev;
	}
}

int staging_get(struct roce_client *client, size_t size, struct staging_block **ret)
{
	struct staging *staging = &client->staging;
	struct staging_block *block;
	struct staging_slab *slab;
	unsigned int bin;
	int r;

	if (size > (size_t)1 << 60) {
		return error_set(ROCE_ERR_INVALID, "%zu bytes are beyond any memory", size);
	}
	bin = staging_class(size);
	pthread_mutex_lock(&client->lock);
	block = staging_pop(staging, bin);
	pthread_mutex_unlock(&client->lock);
	if (block) {
		*ret = block;
		return 0;
	}
	r = staging_slab_new(client, bin, &slab);
	if (r == ROCE_ERR_QUOTA || r == ROCE_ERR_NO_MEMORY) {
		/* What finished requests still hold, and what lies idle, may be enough. */
		pthread_mutex_lock(&client->lock);
		request_harvest(client);
		block = staging_pop(staging, bin);
		pthread_mutex_unlock(&client->lock);
		if (block) {
			*ret = block;
			return 0;
		}
		staging_trim(client, 0);
		r = staging_slab_new(client, bin, &slab);
	}
	if (r != 0) {
		return error_prefix(r,
				    "a staging copy of %zu bytes is needed, since the memory is "
				    "not from roce_mem_alloc()",
				    size);
	}
	pthread_mutex_lock(&client->lock);
	staging_link(staging, slab);
	block = &slab->blocks[0];
	if (block->next) {
		struct staging_block *last = block->next;

		while (last->next) {
			last = last->next;
		}
		last->next = staging->free[bin];
		staging->free[bin] = block->next;
		block->next = NULL;
	}
	pthread_mutex_unlock(&client->lock);
	*ret = block;
	return 0;
}

void staging_put(struct roce_client *client, struct staging_block *block)
{
	struct staging *staging = &client->staging;

	if (!block) {
		return;
	}
	block->released_at = ++staging->tick;
	block->next = staging->free[block->bin];
	staging->free[block->bin] = block;
	if (!class_is_small(block->bin)) {
		staging->idle += block->slab->shm.size;
	}
}

/* Takes the large block that was idle longest off its list. Lock held. */
static struct staging_slab *staging_oldest(struct staging *staging)
{
	struct staging_block **oldest = NULL;
	struct staging_block *block;

	for (unsigned int c = STAGING_SMALL_CLASSES; c < STAGING_CLASSES; c++) {
		for (struct staging_block **p = &staging->free[c]; *p; p = &(*p)->next) {
			if (!oldest || (*p)->released_at < (*oldest)->released_at) {
				oldest = p;
			}
		}
	}
	if (!oldest) {
		return NULL;
	}
	block = *oldest;
	*oldest = block->next;
	staging->idle -= block->slab->shm.size;
	staging_unlink(block->slab);
	return block->slab;
}

void staging_trim(struct roce_client *client, size_t keep)
{
	for (;;) {
		struct staging_slab *slab = NULL;

		pthread_mutex_lock(&client->lock);
		if (client->staging.idle > keep) {
			slab = staging_oldest(&client->staging);
		}
		pthread_mutex_unlock(&client->lock);
		if (!slab) {
			return;
		}
		/* If this fails the daemon is gone, and the registration with it. */
		shmem_deregister(client, &slab->shm);
		shmem_free(&slab->shm, false);
		free(slab);
	}
}

void staging_deinit(struct staging *staging, bool forked)
{
	struct staging_slab *slab = staging->slabs;

	while (slab) {
		struct staging_slab *next = slab->next;

		shmem_free(&slab->shm, forked);
		free(slab);
		slab = next;
	}
	staging->slabs = NULL;
}
