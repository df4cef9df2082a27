/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Event queue, see queue.h: a heap with four children a node, which is flatter than a binary one
 *
 * Thread: any, one user at a time      Owns: its array      Locks: none
 */
#include "tools/simulate/queue.h"

#include "proto/base.h"

#define CHILDREN 4

static bool before(const struct event *a, const struct event *b)
{
	if (a->at != b->at) {
		return a->at < b->at;
	}
	if (a->kind != b->kind) {
		return a->kind < b->kind;
	}
	return a->step != b->step ? a->step < b->step : a->order < b->order;
}

void queue_deinit(struct queue *q)
{
	free(q->heap);
	*q = (struct queue){0};
}

int queue_add(struct queue *q, struct event e)
{
	size_t at;

	if (q->n == q->cap) {
		size_t cap = q->cap ? q->cap * 2 : 1024;
		struct event *heap = reallocarray(q->heap, cap, sizeof(*heap));

		if (!heap) {
			return err_origin(-ENOMEM);
		}
		q->heap = heap;
		q->cap = cap;
	}
	e.order = q->order++;
	at = q->n++;
	while (at > 0) {
		size_t parent = (at - 1) / CHILDREN;

		if (!before(&e, &q->heap[parent])) {
			break;
		}
		q->heap[at] = q->heap[parent];
		at = parent;
	}
	q->heap[at] = e;
	return 0;
}

bool queue_take(struct queue *q, struct event *ret)
{
	struct event last;
	size_t at = 0;

	if (q->n == 0) {
		return false;
	}
	*ret = q->heap[0];
	last = q->heap[--q->n];
	for (;;) {
		size_t first = at * CHILDREN + 1;
		size_t least = first;

		if (first >= q->n) {
			break;
		}
		for (size_t i = first + 1; i < first + CHILDREN && i < q->n; i++) {
			if (before(&q->heap[i], &q->heap[least])) {
				least = i;
			}
		}
		if (!before(&q->heap[least], &last)) {
			break;
		}
		q->heap[at] = q->heap[least];
		at = least;
	}
	q->heap[at] = last;
	return true;
}
