/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fork: the handlers
 *
 * File-scope state cannot be avoided here: fork() is a property of the process. Only list heads
 * and a counter live in it.
 *
 * Thread: any      Owns: list heads, generation
 * Locks: list_lock: the lists; taken before fork() and released on both sides, so that a child
 * always finds whole lists. Leaf lock.
 */
#include "libclient/fork.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#include "proto/base.h"

_Atomic unsigned int fork_generation_word;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct fork_guard *guards;
static struct fork_range *ranges;
static int fork_once_result;

static void fork_prepare(void)
{
	pthread_mutex_lock(&list_lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&list_lock);
}

/* In a child: the pages of the parent's memory that are shared become private again. */
static void fork_ranges(void)
{
	for (struct fork_range *r = ranges, *next; r; r = next) {
		next = r->next;
		if (*r->fd >= 0) {
			/* If it fails the pages stay shared: all of them are there. */
			(void)!mmap(r->base, r->size, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_FIXED, *r->fd, (off_t)r->off);
			*r->fd = base_close(*r->fd);
		}
		r->next = NULL;
		r->prev = NULL;
	}
	ranges = NULL;
}

static void fork_child(void)
{
	atomic_fetch_add_explicit(&fork_generation_word, 1, memory_order_relaxed);
	for (struct fork_guard *g = guards; g; g = g->next) {
		for (unsigned int i = 0; i < FORK_GUARD_FDS; i++) {
			if (g->fds[i]) {
				*g->fds[i] = base_close(*g->fds[i]);
			}
		}
	}
	for (struct fork_guard *g = guards, *next; g; g = next) {
		next = g->next;
		g->next = NULL;
		g->prev = NULL;
	}
	guards = NULL;
	fork_ranges();
	pthread_mutex_unlock(&list_lock);
}

static void fork_install(void)
{
	fork_once_result = pthread_atfork(fork_prepare, fork_parent, fork_child);
}

int fork_guard_add(struct fork_guard *guard)
{
	pthread_once(&fork_once, fork_install);
	if (fork_once_result != 0) {
		return -fork_once_result;
	}
	pthread_mutex_lock(&list_lock);
	guard->next = guards;
	guard->prev = &guards;
	if (guards) {
		guards->prev = &guard->next;
	}
	guards = guard;
	pthread_mutex_unlock(&list_lock);
	return 0;
}

void fork_guard_remove(struct fork_guard *guard)
{
	pthread_mutex_lock(&list_lock);
	if (guard->prev) {
		*guard->prev = guard->next;
		if (guard->next) {
			guard->next->prev = guard->prev;
		}
		guard->next = NULL;
		guard->prev = NULL;
	}
	pthread_mutex_unlock(&list_lock);
}

void fork_range_add(struct fork_range *range)
{
	pthread_mutex_lock(&list_lock);
	range->next = ranges;
	range->prev = &ranges;
	if (ranges) {
		ranges->prev = &range->next;
	}
	ranges = range;
	pthread_mutex_unlock(&list_lock);
}

void fork_range_remove(struct fork_range *range)
{
	pthread_mutex_lock(&list_lock);
	if (range->prev) {
		*range->prev = range->next;
		if (range->next) {
			range->next->prev = range->prev;
		}
		range->next = NULL;
		range->prev = NULL;
	}
	pthread_mutex_unlock(&list_lock);
}
