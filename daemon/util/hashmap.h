/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Hashmap: 64-bit or 16-byte keys to pointers
 *
 * Open addressing with linear probing, no tombstones (removal shifts back), at most two thirds
 * full. Keys may be chosen by hostile clients, therefore each map hashes with a random seed. Values
 * are borrowed and never NULL. One map holds keys of one kind: a 64-bit key k is the 16-byte key
 * (k, 0).
 *
 * Thread: any, one user at a time      Owns: its table, not the values      Locks: none
 */
#ifndef ROCECOMM_UTIL_HASHMAP_H
#define ROCECOMM_UTIL_HASHMAP_H

#include <stddef.h>
#include <stdint.h>

enum {
	HASHMAP_E_EXISTS = 1, /* the key is taken; nothing was changed */
};

struct hashmap_entry {
	uint64_t key[2];
	void *value; /* NULL: free */
};

struct hashmap {
	struct hashmap_entry *entries; /* [capacity], a power of two; NULL while empty */
	size_t capacity;
	size_t count;
	uint64_t seed;
};

void hashmap_init(struct hashmap *m);
void hashmap_deinit(struct hashmap *m);

/* Return: 0, HASHMAP_E_EXISTS, -ENOMEM. */
int hashmap_put(struct hashmap *m, uint64_t key, void *value);
void *hashmap_get(const struct hashmap *m, uint64_t key);
/* Return: the value that was there, or NULL. */
void *hashmap_remove(struct hashmap *m, uint64_t key);

/* The same for keys of 16 bytes (host ids, communicator uids). */
int hashmap_put16(struct hashmap *m, const uint8_t key[16], void *value);
void *hashmap_get16(const struct hashmap *m, const uint8_t key[16]);
void *hashmap_remove16(struct hashmap *m, const uint8_t key[16]);

static inline size_t hashmap_count(const struct hashmap *m)
{
	return m->count;
}

/*
 * Goes through all values in no order: *iter starts at 0; NULL ends. Nothing may be added or
 * removed meanwhile; to empty a map, take hashmap_any() until it is NULL.
 */
void *hashmap_next(const struct hashmap *m, size_t *iter);
void *hashmap_any(const struct hashmap *m);

#endif
