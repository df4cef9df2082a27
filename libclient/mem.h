/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: what the user allocated from us or registered, found by address
 *
 * A table sorted by address, searched at every post. Ranges never overlap. A buffer is either
 * shared (the user's pointer is the shared mapping) or mirrored (the user owns the memory; a
 * shared mapping of the same size stands beside it and is copied to and from). Of a mirror with an
 * alias the whole pages are the user's own, and only the bytes around them are copied. Such a
 * buffer may outlive its client, since what frees the memory still holds it. Memory of a GPU is
 * looked up elsewhere (gpu_mem.c); registering it only makes that look-up find it.
 *
 * Thread: any, table under the client's lock      Owns: the buffers      Locks: none of its own
 */
#ifndef ROCECLIENT_MEM_H
#define ROCECLIENT_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/alias.h"
#include "libclient/shmem.h"

struct roce_buffer {
	struct roce_client *client; /* NULL: it is gone */
	uint8_t *ptr;		    /* as the user knows it */
	size_t size;		    /* as the user asked */
	bool shared;		    /* ptr is shm.base */
	bool device;		    /* memory of a GPU: not in the table, no shm */
	struct roce_buffer *next;
	struct shmem shm;
	size_t head; /* of a mirror: where ptr's byte is in shm */
	struct alias alias;
	void (*free_fn)(void *arg); /* of roce_mem_share() */
	void *free_arg;
};

struct mem_table {
	struct roce_buffer **items; /* sorted by ptr */
	size_t n;
	size_t room;
};

enum mem_hit {
	MEM_NONE,    /* touches no buffer */
	MEM_INSIDE,  /* wholly inside *ret */
	MEM_PARTIAL, /* begins or ends inside *ret, but does not fit */
};

/* Finds the buffer of [ptr, ptr + size), size > 0. Lock held. *ret is set unless MEM_NONE. */
enum mem_hit mem_find(const struct mem_table *table, const void *ptr, size_t size,
		      struct roce_buffer **ret);
void mem_deinit(struct mem_table *table, bool forked);

#endif
