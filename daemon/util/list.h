/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * List: intrusive, circular, doubly linked
 *
 * Thread: any, one user at a time      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_UTIL_LIST_H
#define ROCECOMM_UTIL_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base.h"

struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_insert_before(struct list *pos, struct list *e)
{
	e->prev = pos->prev;
	e->next = pos;
	pos->prev->next = e;
	pos->prev = e;
}

static inline void list_append(struct list *head, struct list *e)
{
	list_insert_before(head, e);
}

static inline void list_prepend(struct list *head, struct list *e)
{
	list_insert_before(head->next, e);
}

/* Leaves the element initialised, so removing twice is harmless. */
static inline void list_remove(struct list *e)
{
	e->prev->next = e->next;
	e->next->prev = e->prev;
	list_init(e);
}

static inline struct list *list_first(struct list *head)
{
	return list_empty(head) ? NULL : head->next;
}

#define list_for_each(pos, head) \
	for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
#define list_for_each_safe(pos, head)                                                 \
	for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head); \
	     pos = pos##_next, pos##_next = pos->next)

#endif
