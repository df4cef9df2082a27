/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reduce kernels: the table that every instruction set fills, for reduce.c and its tests
 *
 * A kernel makes one pass over n elements; reduce.c strings passes together. All pointers may be
 * unaligned; an output may be equal to an input (same address), as each position is read before it
 * is written.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_REDUCE_IMPL_H
#define ROCECOMM_REDUCE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/reduce/reduce.h"

/* out = a . b */
typedef void (*reduce_fold_fn)(void *out, const void *a, const void *b, size_t n);
/* out = in * operand (bits as in struct reduce_src), or in / operand (an integer) */
typedef void (*reduce_unary_fn)(void *out, const void *in, size_t n, uint64_t operand);
/* f16 or bf16 to f32, or back */
typedef void (*reduce_convert_fn)(void *out, const void *in, size_t n);

#define REDUCE_DTYPES (DTYPE_F64 + 1) /* fp8 is never reduced */

struct reduce_kernels {
	/* REDOP_AVG and REDOP_PREMUL_SUM have none: they use REDOP_SUM. */
	reduce_fold_fn fold[REDOP_COUNT_][REDUCE_DTYPES];
	/* These have none for f16 and bf16: what they need goes through f32. */
	reduce_unary_fn scale[REDUCE_DTYPES];
	reduce_unary_fn divide[REDUCE_DTYPES];
	/* Only f16 and bf16. add: f32 out = f32 a + half b. */
	reduce_convert_fn widen[REDUCE_DTYPES];
	reduce_convert_fn narrow[REDUCE_DTYPES];
	reduce_fold_fn add[REDUCE_DTYPES];
};

extern const struct reduce_kernels reduce_kernels_base; /* 16-byte vectors, any CPU */
extern const struct reduce_kernels reduce_kernels_avx2;
extern const struct reduce_kernels reduce_kernels_avx512;

struct reduce_level {
	const char *name;
	const struct reduce_kernels *kernels;
	bool (*usable)(void); /* slow (may execute cpuid): ask once */
};

/* Best first; the last is always usable. reduce_x86.c or reduce_generic.c. */
extern const struct reduce_level reduce_levels[];
extern const size_t reduce_nlevels;

void reduce_run_with(const struct reduce_kernels *kernels, const struct reduce_args *args);

#endif
