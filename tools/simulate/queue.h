/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Event queue: what happens next on virtual time
 *
 * A heap by time; of what happens at the same time the lower kind comes first, then the lower step,
 * then what was put in first. So a run depends on nothing but its input, and hosts that do the same
 * do it in the same order.
 *
 * Thread: any, one user at a time      Owns: its array      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_QUEUE_H
#define ROCECOMM_SIMULATE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event {
	uint64_t at; /* picoseconds */
	uint64_t order;
	uint32_t host;
	uint32_t step;
	uint32_t segment;
	uint16_t kind;
	uint16_t rail;
};

struct queue {
	struct event *heap;
	size_t n;
	size_t cap;
	uint64_t order;
};

void queue_deinit(struct queue *q);
/* @e: its order is set here. Return: 0 or -ENOMEM. */
int queue_add(struct queue *q, struct event e);
/* Return: false when nothing is left. */
bool queue_take(struct queue *q, struct event *ret);

#endif
