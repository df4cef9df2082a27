/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Staging: shared blocks that stand in for memory the daemon cannot see
 *
 * A pool by size class. Small blocks are carved from slabs of 1 MiB, so that hundreds of small
 * operations cost one registration; larger ones are a registration each, rounded up to quarter
 * powers of two. Returned blocks are kept warm up to STAGING_IDLE_MAX bytes; above that the large
 * ones are deregistered, the longest unused first. Nobody ever waits for a block: an operation that
 * holds one may depend on the operation that would wait.
 *
 * Thread: any, under the client's lock except where said      Owns: slabs and blocks
 * Locks: none of its own
 */
#ifndef ROCECLIENT_STAGING_H
#define ROCECLIENT_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/shmem.h"

#define STAGING_SLAB ((size_t)1 << 20)
#define STAGING_SMALL_CLASSES 4 /* 1 KiB, 8 KiB, 64 KiB, 256 KiB */
#define STAGING_CLASSES (STAGING_SMALL_CLASSES + 4 * 44)
#define STAGING_IDLE_MAX ((size_t)256 << 20)

struct staging_block {
	struct staging_block *next; /* free list of the class */
	struct staging_slab *slab;
	uint8_t *ptr;
	uint64_t off; /* in the buffer */
	uint32_t buffer;
	uint32_t bin;
	uint64_t released_at; /* tick of the last put */
};

struct staging_slab {
	struct staging_slab *next;
	struct staging_slab **prev;
	struct shmem shm;
	struct staging_block blocks[];
};

struct staging {
	struct staging_slab *slabs;
	struct staging_block *free[STAGING_CLASSES];
	size_t idle; /* bytes of large blocks on free lists */
	uint64_t tick;
};

/* Class of a size, and the size of a class. Pure; for tests. */
unsigned int staging_class(size_t size);
size_t staging_class_size(unsigned int bin);

/*
 * Gets a block of at least @size > 0 bytes; its content is arbitrary. Takes the client's lock
 * itself and may make requests. Return: 0 or a status with its sentence.
 */
int staging_get(struct roce_client *client, size_t size, struct staging_block **ret);
/* Returns a block. Client's lock held. NULL is allowed. */
void staging_put(struct roce_client *client, struct staging_block *block);
/* Deregisters idle large blocks until at most @keep bytes are idle. Lock not held. */
void staging_trim(struct roce_client *client, size_t keep);
void staging_deinit(struct staging *staging, bool forked);

#endif
