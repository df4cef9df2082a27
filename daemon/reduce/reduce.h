/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reduce: k-way element-wise reduction, dtype x op, with run-time CPU dispatch
 *
 * One call combines any number of sources in the order given, (((s0 . s1) . s2) ...), into one
 * destination. The order is the caller's promise of bit-identical results; every kernel keeps it.
 * f16 and bf16 are widened to f32, accumulated there and rounded once (to nearest even) at the end
 * of the call, so the number of sources of one call costs one rounding.
 *
 * min, max: NaN if any operand is NaN (as NumPy's minimum); of two zeros that differ in sign, -0 is
 * the smaller. Integers wrap modulo 2^bits. avg: the sum is divided by `divisor` in the last call
 * only; integer division truncates toward zero; float division is a true division in the
 * accumulation type. Logical ops: 0 or 1, from two sources on. One source is copied bit for bit,
 * whatever the op and dtype, unless it is scaled or divided (a divisor of 1 divides nothing).
 *
 * The destination may be equal to any source (same address), never overlap one partially.
 * Pointers need no alignment.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_REDUCE_H
#define ROCECOMM_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/types.h"

#define REDUCE_MAX_SRC (LIMIT_LOCAL_RANKS + 2)

struct reduce_src {
	const void *ptr;
	/*
	 * premul-sum: this source is a rank's raw input and is multiplied by `scalar` first (the
	 * bits of a double for float types, of an int64 for integer types); otherwise it is a
	 * partial result and taken as it is. Ignored for other ops.
	 */
	uint64_t scalar;
	uint8_t scaled;
};

struct reduce_args {
	void *dst;
	const struct reduce_src *src;
	unsigned int nsrc; /* 1 .. REDUCE_MAX_SRC; 1 is a copy (scaled, divided if asked) */
	size_t count;	   /* elements */
	uint8_t dtype;	   /* enum dtype; must satisfy redop_supports() unless nsrc == 1 */
	uint8_t op;	   /* enum redop */
	uint64_t divisor;  /* avg: number of ranks when this call yields the final value, else 0 */
};

/* Runs the reduction with the best kernel of this CPU. */
void reduce_run(const struct reduce_args *args);

/* The reference: plain C, one element at a time. Every other kernel is tested against it. */
void reduce_run_scalar(const struct reduce_args *args);

/* "avx512", "avx2", "sse2", on other CPUs "generic": what reduce_run() uses here. */
const char *reduce_isa(void);

#endif
