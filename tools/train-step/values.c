/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Values: implementation
 *
 * Exact values have two parts: a scrambled index of the element, the same on every rank, and a
 * term of the rank (quadratic, so that a rank that counts twice is not made up by one that does
 * not count). f32 holds integers up to 2^24; the index gets what the number of ranks leaves.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/train-step/values.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "tools/model/scramble.h"

#define RANK_TERM_BITS 12

static uint32_t index_mask(unsigned int size)
{
	unsigned int bits = 23;

	while (size > 1 && bits > 8) {
		size = (size + 1) / 2;
		bits--;
	}
	return (1u << bits) - 1;
}

static uint32_t rank_term(const struct values *v, unsigned int rank)
{
	return (rank * rank * 37 + rank * 11 + v->step) & ((1u << RANK_TERM_BITS) - 1);
}

/* A float in (-2^e, 2^e) with e from -4 to 3. */
static float arbitrary(const struct values *v, unsigned int rank, size_t i)
{
	static const float scale[] = {0x1p-27f, 0x1p-26f, 0x1p-25f, 0x1p-24f,
				      0x1p-23f, 0x1p-22f, 0x1p-21f, 0x1p-20f};
	uint32_t x = scramble((uint32_t)i * 2654435761u + rank * 40503u + v->step);
	int32_t mantissa = (int32_t)(x & 0xffffff) - 0x800000;

	return (float)mantissa * scale[x >> 29];
}

void values_fill(const struct values *v, unsigned int rank, size_t first, size_t n, float *out)
{
	uint32_t mask = index_mask(v->size), term = rank_term(v, rank);

	if (!v->exact) {
		for (size_t i = 0; i < n; i++) {
			out[i] = arbitrary(v, rank, first + i);
		}
		return;
	}
	for (size_t i = 0; i < n; i++) {
		out[i] = (float)((scramble((uint32_t)(first + i)) & mask) + term);
	}
}

static void note(size_t i, double want, size_t *bad, size_t *ret_where, double *ret_want)
{
	if ((*bad)++ == 0) {
		*ret_where = i;
		*ret_want = want;
	}
}

size_t values_check(const struct values *v, size_t first, size_t n, const float *got,
		    size_t *ret_where, double *ret_want)
{
	uint32_t mask = index_mask(v->size);
	double terms = 0;
	size_t bad = 0;

	for (unsigned int r = 0; r < v->size; r++) {
		terms += rank_term(v, r);
	}
	for (size_t i = 0; i < n && v->exact; i++) {
		double sum = (double)(scramble((uint32_t)(first + i)) & mask) * v->size + terms;
		/* The sum is exact, so one rounding, by the division, is all there may be. */
		float want = (float)sum / (float)v->size;

		if (got[i] != want) {
			note(i, want, &bad, ret_where, ret_want);
		}
	}
	for (size_t i = 0; i < n && !v->exact; i++) {
		double sum = 0, magnitude = 0;

		for (unsigned int r = 0; r < v->size; r++) {
			double x = arbitrary(v, r, first + i);

			sum += x;
			magnitude += fabs(x);
		}
		if (!(fabs(got[i] - sum / v->size) <= magnitude * (FLT_EPSILON / 2) * 1.01)) {
			note(i, sum / v->size, &bad, ret_where, ret_want);
		}
	}
	return bad;
}
