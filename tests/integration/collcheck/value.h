/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Value: element-unique inputs, and the reference of every reduction
 *
 * An input is a pure function of (seed, rank, index), so that every rank can compute what every
 * other one sent. For reductions of floats the values are integers so small that each
 * intermediate result is exact: the result must then be equal to the reference bit by bit, in
 * whatever order it was computed. `arbitrary` gives up that: floats of all sizes, compared within
 * the rounding error. Integers use their whole range and wrap, except for averages.
 *
 * Computed in double and int64/uint64, one element at a time, from the definition; shares no code
 * with the daemon.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef COLLCHECK_VALUE_H
#define COLLCHECK_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct value_spec {
	int kind; /* enum coll_kind: moved or reduced? */
	int dtype;
	int op; /* enum redop; REDOP_PREMUL_SUM: rank's scalar is value_scalar(rank) */
	unsigned int size;
	uint64_t seed;
	bool arbitrary;
};

/* Element @i of the send buffer of @rank. */
void value_make(const struct value_spec *v, unsigned int rank, uint64_t i, void *out);
/* The reduction of element @i over all ranks. */
void value_reduce(const struct value_spec *v, uint64_t i, void *out);
/* Is @got close enough to the reduction of element @i? For arbitrary floats. */
bool value_close(const struct value_spec *v, uint64_t i, const void *got);
/* What rank's input is multiplied by in a pre-multiplied sum. */
double value_scalar(unsigned int rank);
/* For messages. */
double value_read(int dtype, const void *raw);

uint64_t value_hash(uint64_t a, uint64_t b, uint64_t c);

#endif
