/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Inbox: a stack of intrusive items that any thread fills and one empties
 *
 * Taken whole and reversed, so that items come out in the order in which they went in. Nothing is
 * allocated, no place runs out, nobody waits.
 *
 * Thread: any may push, one takes      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_GPU_INBOX_H
#define ROCECOMM_GPU_INBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct gpu_item {
	struct gpu_item *next;
};

struct gpu_inbox {
	_Atomic(struct gpu_item *) top;
};

/* Return: true when it was empty. */
static inline bool gpu_inbox_push(struct gpu_inbox *box, struct gpu_item *item)
{
	struct gpu_item *top = atomic_load_explicit(&box->top, memory_order_relaxed);

	do {
		item->next = top;
		/* seq_cst: pairs with the exchange below, and comes before a look at who sleeps */
	} while (!atomic_compare_exchange_weak_explicit(&box->top, &top, item, memory_order_seq_cst,
							memory_order_relaxed));
	return !top;
}

static inline bool gpu_inbox_empty(const struct gpu_inbox *box)
{
	return !atomic_load_explicit(&((struct gpu_inbox *)box)->top, memory_order_seq_cst);
}

/* Return: all items, the oldest first, linked by next. */
static inline struct gpu_item *gpu_inbox_take(struct gpu_inbox *box)
{
	struct gpu_item *top = NULL;
	struct gpu_item *first = NULL;

	/* A plain look first: this is polled. */
	if (atomic_load_explicit(&box->top, memory_order_relaxed)) {
		top = atomic_exchange_explicit(&box->top, NULL, memory_order_acquire);
	}
	while (top) {
		struct gpu_item *next = top->next;

		top->next = first;
		first = top;
		top = next;
	}
	return first;
}

#endif
