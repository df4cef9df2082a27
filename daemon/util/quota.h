/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Quota: a limit, what is used of it, and charges that give themselves back
 *
 * Everything a client can grow embeds a struct quota_charge and takes it before it is created. This
 * is the mechanism only: whose limit and how much is job/tenant's. The count is atomic since the
 * last reference to a charged object may be dropped by any thread.
 *
 * Thread: any      Owns: nothing; a quota outlives its charges      Locks: none
 */
#ifndef ROCECOMM_UTIL_QUOTA_H
#define ROCECOMM_UTIL_QUOTA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
	QUOTA_E_EXCEEDED = 1, /* nothing was charged; quota_describe() has the words */
};

#define QUOTA_UNLIMITED UINT64_MAX

struct quota {
	const char *key;	/* configuration key of the limit; static */
	_Atomic uint64_t limit; /* a reload may change it, also to below what is used */
	_Atomic uint64_t used;
};

/* All zero: charges nothing. */
struct quota_charge {
	struct quota *quota;
	uint64_t amount;
};

void quota_init(struct quota *q, const char *key, uint64_t limit);
/* Asserts that nothing is charged any more. */
void quota_deinit(struct quota *q);
void quota_set_limit(struct quota *q, uint64_t limit);

/* Return: 0, QUOTA_E_EXCEEDED. */
int quota_charge(struct quota *q, uint64_t amount, struct quota_charge *ret);
/* Gives back; harmless when empty or done already. */
void quota_release(struct quota_charge *c);

static inline uint64_t quota_used(const struct quota *q)
{
	return atomic_load_explicit(&((struct quota *)q)->used, memory_order_relaxed);
}

static inline uint64_t quota_limit(const struct quota *q)
{
	return atomic_load_explicit(&((struct quota *)q)->limit, memory_order_relaxed);
}

/*
 * The sentence for a refusal, such as "max_buffers of tenant default: 4096 of 4096 used, 1 more
 * asked for; free some, or raise max_buffers in [tenant default]".
 */
void quota_describe(const struct quota *q, const char *tenant, uint64_t amount, char *buf,
		    size_t size);

#endif
