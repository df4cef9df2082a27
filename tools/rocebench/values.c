/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Values: implementation
 *
 * All arithmetic is in 64-bit integers, which wrap as the integer types do; floats hold integers
 * until the division of an average, which is rounded once.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/rocebench/values.h"

#include <assert.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tools/model/scramble.h"

/* A product of floats has at most so many factors of two: within f16's range. */
#define PROD_TWOS 8

static uint32_t key(const struct values *v, int rank)
{
	return scramble(v->seed * 0x9e3779b9u + scramble((uint32_t)rank + 1));
}

/* A place in 32 bits: one that is off by a multiple of 2^32 must not look right. */
static uint32_t fold(size_t at)
{
	return (uint32_t)at ^ (uint32_t)((uint64_t)at >> 32) * 0x9e3779b1u;
}

void values_moved(const struct values *v, int rank, size_t first, size_t n, uint8_t *out)
{
	uint32_t k = key(v, rank);

	for (size_t i = 0; i < n; i++) {
		uint32_t x = (fold(first + i) ^ k) * 0x9e3779b1u;

		x ^= x >> 15;
		out[i] = (uint8_t)(x * 0x85ebca77u >> 24);
	}
}

static bool is_signed(int dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

/* The type's range of integers that are followed by their successors, as a power of two. */
static unsigned int exact_bits(int dtype)
{
	switch (dtype) {
	case DTYPE_F64:
		return 31; /* more than enough */
	case DTYPE_F32:
		return 24;
	case DTYPE_F16:
		return 11;
	case DTYPE_BF16:
		return 8;
	default:
		return MIN(8 * dtype_size((unsigned int)dtype), 32) - (is_signed(dtype) ? 1 : 0);
	}
}

/* How to make values of a number in 0 .. 2^32-1 so that the result is exact. */
struct make {
	bool wide;	 /* any bits do: integers wrap */
	bool zeros;	 /* wide, with zeros among them: what is logical */
	uint64_t limit;	 /* else: values are 0 .. limit - 1 */
	uint64_t offset; /* added to all */
	int ranks;	 /* beyond these, only the least value */
};

static void make_init(struct make *make, const struct values *v)
{
	bool is_float = dtype_is_float((unsigned int)v->dtype);
	uint64_t most = UINT64_C(1) << exact_bits(v->dtype);
	bool adds = v->redop == REDOP_SUM || v->redop == REDOP_AVG;

	*make = (struct make){.limit = most, .ranks = v->size};
	if (v->redop == REDOP_PROD && is_float) {
		make->limit = 2;
		make->offset = 1;
		make->ranks = PROD_TWOS;
	} else if (adds && (is_float || v->redop == REDOP_AVG)) {
		/* The sum stays under the limit; with too many ranks, the rest adds nothing. */
		make->limit = MAX(most / (uint64_t)v->size, 2);
		make->ranks = (int)MIN((uint64_t)v->size, most - 1);
	} else if (!is_float) {
		make->wide = true;
		make->zeros = v->redop >= REDOP_LAND;
	}
}

/* The integer that a type makes of these bits. */
static uint64_t narrow(int dtype, uint64_t x)
{
	unsigned int bits = 8 * dtype_size((unsigned int)dtype);

	if (bits == 64) {
		return x;
	}
	x &= (UINT64_C(1) << bits) - 1;
	if (is_signed(dtype) && x >> (bits - 1)) {
		x |= ~UINT64_C(0) << bits;
	}
	return x;
}

static void give(const struct values *v, int rank, size_t first, size_t n, uint64_t *out)
{
	uint32_t k = key(v, rank);
	struct make make;

	make_init(&make, v);
	for (size_t i = 0; i < n; i++) {
		uint32_t h = scramble(fold(first + i) ^ k);

		if (make.wide) {
			bool zero = make.zeros && (h & 0x30) == 0;

			out[i] = narrow(v->dtype, zero ? 0 : h * UINT64_C(0x100000001));
		} else {
			out[i] = (rank < make.ranks ? h * make.limit >> 32 : 0) + make.offset;
		}
	}
}

static void add_one(const struct values *v, uint64_t *acc, const uint64_t *x, size_t n)
{
	bool sign = is_signed(v->dtype);

	if (v->redop == REDOP_SUM || v->redop == REDOP_AVG) {
		for (size_t i = 0; i < n; i++) {
			acc[i] += x[i];
		}
		return;
	}
	for (size_t i = 0; i < n; i++) {
		bool less = sign ? (int64_t)x[i] < (int64_t)acc[i] : x[i] < acc[i];

		switch (v->redop) {
		case REDOP_PROD:
			acc[i] *= x[i];
			break;
		case REDOP_MIN:
			acc[i] = less ? x[i] : acc[i];
			break;
		case REDOP_MAX:
			acc[i] = less ? acc[i] : x[i];
			break;
		case REDOP_BAND:
			acc[i] &= x[i];
			break;
		case REDOP_BOR:
			acc[i] |= x[i];
			break;
		case REDOP_BXOR:
			acc[i] ^= x[i];
			break;
		case REDOP_LAND:
			acc[i] = acc[i] && x[i];
			break;
		case REDOP_LOR:
			acc[i] = acc[i] || x[i];
			break;
		case REDOP_LXOR:
			acc[i] = !acc[i] != !x[i];
			break;
		default:
			break;
		}
	}
}

/* Rounds a normal float to the upper 16 bits, to nearest, ties to even. */
static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The same for f16; zero, or in its normal range: our values are sums of integers over a count. */
static uint16_t to_f16(float x)
{
	uint32_t bits;

	if (x < 0x1p-14f) {
		/* Subnormal: the spacing is 2^-24, and adding 0.5 rounds at just that place. */
		float shifted = x + 0.5f;

		memcpy(&bits, &shifted, sizeof(bits));
		return (uint16_t)(bits & 0x7ff);
	}
	memcpy(&bits, &x, sizeof(bits));
	bits -= UINT32_C(112) << 23; /* the two biases: 127 - 15 */
	return (uint16_t)((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

/* Writes elements; @share: what each is divided by, 1 or the number of ranks. */
static void store(int dtype, const uint64_t *x, size_t n, int share, uint8_t *out)
{
	unsigned int elem = dtype_size((unsigned int)dtype);

	for (size_t i = 0; i < n; i++, out += elem) {
		uint64_t whole = x[i] / (uint64_t)share;
		float f = (float)x[i] / (float)share;
		double d = (double)x[i] / share;
		uint16_t half;

		switch (dtype) {
		case DTYPE_F64:
			memcpy(out, &d, sizeof(d));
			break;
		case DTYPE_F32:
			memcpy(out, &f, sizeof(f));
			break;
		case DTYPE_F16:
		case DTYPE_BF16:
			half = dtype == DTYPE_F16 ? to_f16(f) : to_bf16(f);
			memcpy(out, &half, sizeof(half));
			break;
		default:
			/* Little endian, as all that rocecomm runs on. */
			memcpy(out, &whole, elem);
			break;
		}
	}
}

void values_given(const struct values *v, int rank, size_t first, size_t n, void *out)
{
	unsigned int elem = dtype_size((unsigned int)v->dtype);
	uint64_t x[VALUES_CHUNK];
	uint8_t *to = out;

	for (size_t at = 0; at < n; at += VALUES_CHUNK) {
		size_t now = MIN(n - at, (size_t)VALUES_CHUNK);

		give(v, rank, first + at, now, x);
		store(v->dtype, x, now, 1, to + at * elem);
	}
}

void values_reduced(const struct values *v, size_t first, size_t n, void *out)
{
	uint64_t acc[VALUES_CHUNK], x[VALUES_CHUNK];

	assert(n <= VALUES_CHUNK);
	give(v, 0, first, n, acc);
	for (int rank = 1; rank < v->size; rank++) {
		give(v, rank, first, n, x);
		add_one(v, acc, x, n);
	}
	for (size_t i = 0; i < n && v->size == 1 && v->redop >= REDOP_LAND; i++) {
		acc[i] = acc[i] != 0; /* one rank alone: still 0 or 1 */
	}
	store(v->dtype, acc, n, v->redop == REDOP_AVG ? v->size : 1, out);
}
