/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Quota: implementation
 *
 * Relaxed order throughout: the counter guards no other memory.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "util/quota.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/**
 * quota_init() - set a limit with nothing used
 * @q:      uninitialised
 * @key:    configuration key, borrowed for ever
 * @limit:  QUOTA_UNLIMITED: none
 */
void quota_init(struct quota *q, const char *key, uint64_t limit)
{
	q->key = key;
	atomic_init(&q->limit, limit);
	atomic_init(&q->used, 0);
}

/* See quota.h. */
void quota_deinit(struct quota *q)
{
	assert(quota_used(q) == 0);
}

/* See quota.h. */
void quota_set_limit(struct quota *q, uint64_t limit)
{
	atomic_store_explicit(&q->limit, limit, memory_order_relaxed);
}

/**
 * quota_charge() - take an amount
 * @q:       borrowed until the charge is released
 * @amount:  0 is fine
 * @ret:     written on success; must not hold another charge
 *
 * Return: 0, QUOTA_E_EXCEEDED
 */
int quota_charge(struct quota *q, uint64_t amount, struct quota_charge *ret)
{
	uint64_t limit = quota_limit(q);
	uint64_t used = quota_used(q);

	do {
		if (used > limit || amount > limit - used) {
			return QUOTA_E_EXCEEDED;
		}
	} while (!atomic_compare_exchange_weak_explicit(
		&q->used, &used, used + amount, memory_order_relaxed, memory_order_relaxed));
	*ret = (struct quota_charge){.quota = q, .amount = amount};
	return 0;
}

/* See quota.h. */
void quota_release(struct quota_charge *c)
{
	uint64_t before;

	if (!c->quota) {
		return;
	}
	before = atomic_fetch_sub_explicit(&c->quota->used, c->amount, memory_order_relaxed);
	assert(before >= c->amount);
	(void)before;
	*c = (struct quota_charge){0};
}

/**
 * quota_describe() - say why a charge was refused
 * @q:       the quota
 * @tenant:  whose
 * @amount:  what was asked for
 * @buf:     where the sentence goes, cut at @size
 */
void quota_describe(const struct quota *q, const char *tenant, uint64_t amount, char *buf,
		    size_t size)
{
	snprintf(buf, size,
		 "%s of tenant %s: %" PRIu64 " of %" PRIu64 " used, %" PRIu64
		 " more asked for; free some, or raise %s in [tenant %s]",
		 q->key, tenant, quota_used(q), quota_limit(q), amount, q->key, tenant);
}
