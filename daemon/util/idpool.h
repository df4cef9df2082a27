/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Idpool: small integers 1..max, the lowest free one first
 *
 * A bitmap that grows with use. Ids of handles that clients see; 0 is never one.
 *
 * Thread: any, one user at a time      Owns: its bitmap      Locks: none
 */
#ifndef ROCECOMM_UTIL_IDPOOL_H
#define ROCECOMM_UTIL_IDPOOL_H

#include <stdbool.h>
#include <stdint.h>

enum {
	IDPOOL_E_FULL = 1, /* max ids are in use */
};

struct idpool {
	uint64_t *used; /* [words], bit i of word w: id 64 w + i + 1 */
	uint32_t words;
	uint32_t max;
	uint32_t count; /* in use */
	uint32_t first; /* no free id in words before this */
};

void idpool_init(struct idpool *p, uint32_t max);
void idpool_deinit(struct idpool *p);
/* Return: 0, IDPOOL_E_FULL, -ENOMEM. */
int idpool_take(struct idpool *p, uint32_t *ret_id);
/* @id: taken */
void idpool_release(struct idpool *p, uint32_t id);
bool idpool_taken(const struct idpool *p, uint32_t id);

#endif
