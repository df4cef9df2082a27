/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reduce: strings the passes of a kernel table together, block by block
 *
 * Two plain sources are one pass straight into the destination. Everything else goes block by block
 * through an accumulator that stays in the L1 cache with the blocks it meets; the destination block
 * is written by the last pass only, when every source block has been read, which is what lets it be
 * equal to any of them. f16 and bf16 accumulate in f32 and are rounded by that last pass.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "daemon/reduce/reduce.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "daemon/reduce/reduce_impl.h"
#include "proto/base.h"

/* Accumulator, one converted source, one source and the destination: half of a 32 KiB L1. */
#define REDUCE_BLOCK 4096 /* bytes, in the accumulator's type */

/* One call, looked through once. */
struct reduce_pass {
	const struct reduce_kernels *kernels;
	const struct reduce_args *args;
	size_t size;	     /* bytes of one element */
	unsigned int sum_op; /* row of kernels->fold */
	unsigned int wide;   /* dtype of the accumulator */
	bool half;	     /* wide differs from the dtype */
	bool divide;
};

/* The choice is made once and is the same whoever makes it, so that a race is harmless. */
static _Atomic(const struct reduce_level *) reduce_chosen;

static const struct reduce_level *reduce_level_best(void)
{
	/* Relaxed: what it points to is constant; pairs with the store below. */
	const struct reduce_level *level =
		atomic_load_explicit(&reduce_chosen, memory_order_relaxed);

	if (!level) {
		level = reduce_levels;
		while (!level->usable()) {
			level++;
		}
		atomic_store_explicit(&reduce_chosen, level, memory_order_relaxed);
	}
	return level;
}

static bool pass_is_scaled(const struct reduce_args *args, unsigned int i)
{
	return args->op == REDOP_PREMUL_SUM && args->src[i].scaled;
}

static bool pass_any_scaled(const struct reduce_args *args)
{
	for (unsigned int i = 0; i < args->nsrc; i++) {
		if (pass_is_scaled(args, i)) {
			return true;
		}
	}
	return false;
}

/* Elements [at, at + n) of source i in the accumulator's type, at `room` if they need a change. */
static const void *pass_fetch(const struct reduce_pass *pass, unsigned int i, size_t at, size_t n,
			      void *room)
{
	const struct reduce_args *args = pass->args;
	const void *block = (const char *)args->src[i].ptr + at * pass->size;

	if (pass->half) {
		pass->kernels->widen[args->dtype](room, block, n);
		block = room;
	}
	if (pass_is_scaled(args, i)) {
		pass->kernels->scale[pass->wide](room, block, n, args->src[i].scalar);
		block = room;
	}
	return block;
}

/* Reduces elements [at, at + n). */
static void pass_block(const struct reduce_pass *pass, size_t at, size_t n)
{
	_Alignas(64) char acc[REDUCE_BLOCK];
	_Alignas(64) char room[REDUCE_BLOCK];
	const struct reduce_kernels *k = pass->kernels;
	const struct reduce_args *args = pass->args;
	const bool fused = pass->half && pass->sum_op == REDOP_SUM;
	void *dst = (char *)args->dst + at * pass->size;
	void *final = pass->half ? acc : dst; /* where the finished block in `wide` goes */
	const void *sum = pass_fetch(pass, 0, at, n, acc);

	for (unsigned int i = 1; i < args->nsrc; i++) {
		void *to = i + 1 == args->nsrc && !pass->divide ? final : acc;

		if (fused && !pass_is_scaled(args, i)) {
			k->add[args->dtype](to, sum,
					    (const char *)args->src[i].ptr + at * pass->size, n);
		} else {
			k->fold[pass->sum_op][pass->wide](to, sum, pass_fetch(pass, i, at, n, room),
							  n);
		}
		sum = to;
	}
	if (pass->divide) {
		k->divide[pass->wide](final, sum, n, args->divisor);
		sum = final;
	}
	if (pass->half) {
		k->narrow[args->dtype](dst, sum, n);
	} else if (sum != dst) {
		memcpy(dst, sum, n * pass->size); /* one source, scaled */
	}
}

/**
 * reduce_run_with() - run a reduction with the given kernels
 * @kernels: a table that this CPU can run
 * @args:    borrowed
 */
void reduce_run_with(const struct reduce_kernels *kernels, const struct reduce_args *args)
{
	const bool half = args->dtype == DTYPE_F16 || args->dtype == DTYPE_BF16;
	const bool sums = args->op == REDOP_AVG || args->op == REDOP_PREMUL_SUM;
	const struct reduce_pass pass = {
		.kernels = kernels,
		.args = args,
		.size = dtype_size(args->dtype),
		.sum_op = sums ? REDOP_SUM : args->op,
		.wide = half ? DTYPE_F32 : args->dtype,
		.half = half,
		.divide = args->op == REDOP_AVG && args->divisor > 1,
	};
	const bool plain = !pass.divide && !pass_any_scaled(args);
	const size_t step = REDUCE_BLOCK / dtype_size(pass.wide);

	assert(args->nsrc >= 1 && args->nsrc <= REDUCE_MAX_SRC);
	if (args->count == 0) {
		return;
	}
	if (args->nsrc == 1 && plain) {
		if (args->dst != args->src[0].ptr) {
			/* Not memcpy: ranges of a client that lies may overlap in part. */
			memmove(args->dst, args->src[0].ptr, args->count * pass.size);
		}
		return;
	}
	assert(redop_supports(args->op, args->dtype));
	if (args->nsrc == 2 && plain) {
		kernels->fold[pass.sum_op][args->dtype](args->dst, args->src[0].ptr,
							args->src[1].ptr, args->count);
		return;
	}
	for (size_t at = 0; at < args->count; at += step) {
		pass_block(&pass, at, MIN(step, args->count - at));
	}
}

/**
 * reduce_run() - run a reduction with the best kernels of this CPU
 * @args: borrowed
 */
void reduce_run(const struct reduce_args *args)
{
	reduce_run_with(reduce_level_best()->kernels, args);
}

/**
 * reduce_isa() - name the kernels that reduce_run() uses here
 *
 * Return: a constant string.
 */
const char *reduce_isa(void)
{
	return reduce_level_best()->name;
}
