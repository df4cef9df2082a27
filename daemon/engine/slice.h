/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Slice: a part of a step's arithmetic and copying that fits into a cache
 *
 * A step's pieces, one after the other, are a row of elements; a slice is a range of that row.
 * Slices of a step are disjoint and every element is combined in the order of its sources, so the
 * bits do not depend on how a step is cut, nor on who runs what.
 *
 * slice_run() reads what describes the operation (plan, posts, run) and nothing that changes while
 * the operation lasts, and counts into the slice: any thread may run it while the operation is
 * held.
 *
 * Thread: any (slice_cut: progress)      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_SLICE_H
#define ROCECOMM_ENGINE_SLICE_H

#include <stdint.h>

struct op_run;
struct plan_piece;
struct step_state;

/* Bytes, by the rules of telemetry/counters.def. */
struct slice_moved {
	uint64_t copied;
	uint64_t local;
	uint64_t reduced;
};

struct slice {
	struct step_state *st;
	uint32_t piece;	     /* where it begins; slice_run() moves this on */
	uint64_t offset;     /* elements into that piece */
	uint64_t count;	     /* elements; slice_run() leaves what the step has not */
	const uint8_t *wire; /* RECV_REDUCE: what has arrived, from the slice's first element on */
	struct slice_moved moved; /* slice_run() adds */
};

/*
 * Takes up to @max elements from the step's cursor on and moves the cursor. Return: how many; 0:
 * the step has no more.
 */
uint64_t slice_cut(struct step_state *st, uint64_t max, struct slice *ret);
void slice_run(struct slice *s);

/*
 * Combines @n elements of a piece, beginning @skip elements into it, into the first destination
 * and copies the result to the others. @wire: where PLAN_WIRE sources are read.
 */
void slice_combine(const struct op_run *run, const struct plan_piece *piece, uint64_t first,
		   uint64_t lo, uint64_t skip, uint64_t n, const void *wire,
		   struct slice_moved *moved);
/*
 * Bytes [off, off + bytes) of a RECV piece have landed (@data NULL) or lie in @data: they go to all
 * its destinations.
 */
void slice_spread(const struct op_run *run, const struct plan_piece *piece, uint64_t first,
		  uint64_t lo, uint64_t off, uint64_t bytes, const void *data,
		  struct slice_moved *moved);

#endif
