/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fork: how a child is kept away from its parent's clients
 *
 * Each client remembers the generation it was made in; the child handler of pthread_atfork() bumps
 * the generation, so that every entry recognises an inherited handle by comparing two integers,
 * without a system call. The handler also closes the inherited descriptors: the daemon must see
 * the parent's socket hang up when the parent dies, whatever children it leaves.
 *
 * Memory of the user that became the daemon's, too (alias.h), was private before, and is again in a
 * child: what the child writes there, the parent does not see. What the parent writes later may
 * show in pages that the child has not written.
 *
 * Thread: any      Owns: the lists of guards and ranges (both are their owners')
 * Locks: list lock inside, held across fork()
 */
#ifndef ROCECLIENT_FORK_H
#define ROCECLIENT_FORK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define FORK_GUARD_FDS 4

struct fork_guard {
	struct fork_guard *next;
	struct fork_guard **prev;
	int *fds[FORK_GUARD_FDS]; /* closed and set to -1 in a child; unused entries NULL */
};

/* Pages of a descriptor that a child gets as private ones, at the same place. */
struct fork_range {
	struct fork_range *next;
	struct fork_range **prev;
	void *base;
	size_t size;
	int *fd; /* closed and set to -1 in a child */
	uint64_t off;
};

extern _Atomic unsigned int fork_generation_word;

static inline unsigned int fork_generation(void)
{
	/* relaxed: written only in a child that still has one thread */
	return atomic_load_explicit(&fork_generation_word, memory_order_relaxed);
}

/* Starts guarding; @guard->fds must be set. Return: 0 or negative errno. */
int fork_guard_add(struct fork_guard *guard);
/* Stops guarding. Harmless in a child and when it was never added. */
void fork_guard_remove(struct fork_guard *guard);
/* The same for a range, in a process that has a guard; all its fields but the links are set. */
void fork_range_add(struct fork_range *range);
void fork_range_remove(struct fork_range *range);

#endif
