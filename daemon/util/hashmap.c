/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Hashmap: implementation
 *
 * Thread: any, one user at a time      Owns: its table      Locks: none
 */
#include "util/hashmap.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

#include "proto/base.h"
#include "util/clock.h"

#define HASHMAP_MIN 16

/* Finaliser of MurmurHash3's family: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	x ^= x >> 33;
	return x;
}

static size_t home_of(const struct hashmap *m, const uint64_t key[2])
{
	return mix(mix(key[0] ^ m->seed) + key[1]) & (m->capacity - 1);
}

static bool key_equal(const uint64_t a[2], const uint64_t b[2])
{
	return a[0] == b[0] && a[1] == b[1];
}

/**
 * hashmap_init() - make an empty map; allocates nothing
 * @m:  uninitialised
 */
void hashmap_init(struct hashmap *m)
{
	*m = (struct hashmap){0};
	/* Early in boot there may be no entropy; the time is then better than nothing. */
	if (getrandom(&m->seed, sizeof(m->seed), GRND_NONBLOCK) != sizeof(m->seed)) {
		m->seed = mix(clock_monotonic() ^ (uintptr_t)m);
	}
}

/**
 * hashmap_deinit() - free the table; the values are the caller's
 * @m:  initialised, or all zero
 */
void hashmap_deinit(struct hashmap *m)
{
	free(m->entries);
	m->entries = NULL;
	m->capacity = 0;
	m->count = 0;
}

/* Return: the entry of @key, or the free one where it belongs. The table is never full. */
static struct hashmap_entry *find(const struct hashmap *m, const uint64_t key[2])
{
	size_t i = home_of(m, key);

	while (m->entries[i].value && !key_equal(m->entries[i].key, key)) {
		i = (i + 1) & (m->capacity - 1);
	}
	return &m->entries[i];
}

static int grow(struct hashmap *m)
{
	struct hashmap bigger = *m;

	bigger.capacity = m->capacity > 0 ? 2 * m->capacity : HASHMAP_MIN;
	bigger.entries = calloc(bigger.capacity, sizeof(*bigger.entries));
	if (!bigger.entries) {
		return err_origin(-ENOMEM);
	}
	for (size_t i = 0; i < m->capacity; i++) {
		if (m->entries[i].value) {
			*find(&bigger, m->entries[i].key) = m->entries[i];
		}
	}
	free(m->entries);
	*m = bigger;
	return 0;
}

static int put(struct hashmap *m, const uint64_t key[2], void *value)
{
	struct hashmap_entry *e;
	int r;

	assert(value);
	if (m->capacity > 0 && find(m, key)->value) {
		return HASHMAP_E_EXISTS;
	}
	if (3 * (m->count + 1) > 2 * m->capacity) {
		r = grow(m);
		if (r < 0) {
			return err_trace(r);
		}
	}
	e = find(m, key);
	*e = (struct hashmap_entry){.key = {key[0], key[1]}, .value = value};
	m->count++;
	return 0;
}

static void *get(const struct hashmap *m, const uint64_t key[2])
{
	return m->capacity > 0 ? find(m, key)->value : NULL;
}

/* Closes the gap at @hole: entries behind it that may not be reached over it any more move up. */
static void shift_back(struct hashmap *m, size_t hole)
{
	size_t mask = m->capacity - 1;

	for (size_t i = (hole + 1) & mask; m->entries[i].value; i = (i + 1) & mask) {
		size_t home = home_of(m, m->entries[i].key);

		/* Is the hole on the way from home to i? */
		if (((i - home) & mask) >= ((i - hole) & mask)) {
			m->entries[hole] = m->entries[i];
			hole = i;
		}
	}
	m->entries[hole].value = NULL;
}

static void *remove_key(struct hashmap *m, const uint64_t key[2])
{
	struct hashmap_entry *e;
	void *value;

	if (m->capacity == 0) {
		return NULL;
	}
	e = find(m, key);
	value = e->value;
	if (value) {
		shift_back(m, (size_t)(e - m->entries));
		m->count--;
	}
	return value;
}

/* See hashmap.h. */
int hashmap_put(struct hashmap *m, uint64_t key, void *value)
{
	return put(m, (uint64_t[2]){key, 0}, value);
}

/* See hashmap.h. */
void *hashmap_get(const struct hashmap *m, uint64_t key)
{
	return get(m, (uint64_t[2]){key, 0});
}

/* See hashmap.h. */
void *hashmap_remove(struct hashmap *m, uint64_t key)
{
	return remove_key(m, (uint64_t[2]){key, 0});
}

/* See hashmap.h. */
int hashmap_put16(struct hashmap *m, const uint8_t key[16], void *value)
{
	uint64_t k[2];

	memcpy(k, key, sizeof(k));
	return put(m, k, value);
}

/* See hashmap.h. */
void *hashmap_get16(const struct hashmap *m, const uint8_t key[16])
{
	uint64_t k[2];

	memcpy(k, key, sizeof(k));
	return get(m, k);
}

/* See hashmap.h. */
void *hashmap_remove16(struct hashmap *m, const uint8_t key[16])
{
	uint64_t k[2];

	memcpy(k, key, sizeof(k));
	return remove_key(m, k);
}

/* See hashmap.h. */
void *hashmap_next(const struct hashmap *m, size_t *iter)
{
	while (*iter < m->capacity) {
		void *value = m->entries[(*iter)++].value;

		if (value) {
			return value;
		}
	}
	return NULL;
}

/* See hashmap.h. */
void *hashmap_any(const struct hashmap *m)
{
	size_t iter = 0;

	return m->count > 0 ? hashmap_next(m, &iter) : NULL;
}
