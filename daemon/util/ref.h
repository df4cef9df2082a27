/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ref: atomic reference count, embedded
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_UTIL_REF_H
#define ROCECOMM_UTIL_REF_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>

struct ref {
	atomic_uint count;
};

static inline void ref_init(struct ref *r)
{
	atomic_init(&r->count, 1);
}

/* The caller holds a reference already, so nothing needs ordering. */
static inline void ref_get(struct ref *r)
{
	unsigned int before = atomic_fetch_add_explicit(&r->count, 1, memory_order_relaxed);

	assert(before > 0);
	(void)before;
}

/*
 * Return: was that the last one? Release pairs with the acquire of whoever drops the last
 * reference, so that the destructor sees every holder's writes.
 */
static inline bool ref_put(struct ref *r)
{
	unsigned int before = atomic_fetch_sub_explicit(&r->count, 1, memory_order_acq_rel);

	assert(before > 0);
	return before == 1;
}

static inline unsigned int ref_count(const struct ref *r)
{
	return atomic_load_explicit(&((struct ref *)r)->count, memory_order_relaxed);
}

#endif
