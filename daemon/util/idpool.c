/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Idpool: implementation
 *
 * Thread: any, one user at a time      Owns: its bitmap      Locks: none
 */
#include "util/idpool.h"

#include <assert.h>
#include <string.h>

#include "proto/base.h"

/**
 * idpool_init() - make a pool with nothing taken; allocates nothing
 * @p:    uninitialised
 * @max:  the highest id
 */
void idpool_init(struct idpool *p, uint32_t max)
{
	*p = (struct idpool){.max = max};
}

/**
 * idpool_deinit() - free the bitmap
 * @p:  initialised, or all zero
 */
void idpool_deinit(struct idpool *p)
{
	free(p->used);
	p->used = NULL;
	p->words = 0;
	p->count = 0;
}

static int grow(struct idpool *p)
{
	uint32_t words = p->words > 0 ? 2 * p->words : 1;
	uint64_t *used;

	used = realloc(p->used, (size_t)words * sizeof(*used));
	if (!used) {
		return err_origin(-ENOMEM);
	}
	memset(used + p->words, 0, (size_t)(words - p->words) * sizeof(*used));
	p->used = used;
	p->words = words;
	return 0;
}

/* See idpool.h. */
int idpool_take(struct idpool *p, uint32_t *ret_id)
{
	uint32_t w = p->first, bit;
	int r;

	if (p->count >= p->max) {
		return IDPOOL_E_FULL;
	}
	while (w < p->words && p->used[w] == UINT64_MAX) {
		w++;
	}
	if (w == p->words) {
		r = grow(p);
		if (r < 0) {
			return err_trace(r);
		}
	}
	p->first = w;
	bit = (uint32_t)__builtin_ctzll(~p->used[w]);
	p->used[w] |= 1ull << bit;
	p->count++;
	*ret_id = 64 * w + bit + 1;
	assert(*ret_id <= p->max);
	return 0;
}

/* See idpool.h. */
bool idpool_taken(const struct idpool *p, uint32_t id)
{
	uint32_t i = id - 1;

	return id > 0 && i / 64 < p->words && (p->used[i / 64] >> (i % 64) & 1) != 0;
}

/* See idpool.h. */
void idpool_release(struct idpool *p, uint32_t id)
{
	uint32_t i = id - 1;

	assert(idpool_taken(p, id));
	p->used[i / 64] &= ~(1ull << (i % 64));
	p->count--;
	if (i / 64 < p->first) {
		p->first = i / 64;
	}
}
