/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Value: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tests/integration/collcheck/value.h"

#include <math.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"

/* A binary float format by its widths. */
struct format {
	int mantissa; /* bits behind the point */
	int bias;
	int bits;
};

static const struct format f16 = {.mantissa = 10, .bias = 15, .bits = 16};
static const struct format bf16 = {.mantissa = 7, .bias = 127, .bits = 16};

uint64_t value_hash(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u) * 0xbf58476d1ce4e5b9u ^
		     (c + 1) * 0x94d049bb133111ebu;

	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

double value_scalar(unsigned int rank)
{
	return (double)(rank % 4 + 2);
}

/* Rounds a finite double to a small format, to nearest, ties to even. */
static uint16_t half_from(const struct format *f, double x)
{
	uint16_t sign = signbit(x) ? 0x8000 : 0;
	int max_exp = (1 << (f->bits - 1 - f->mantissa)) - 1;
	int exp;
	double scaled;
	uint32_t bits;

	x = fabs(x);
	if (isnan(x)) {
		return (uint16_t)(((unsigned int)max_exp << f->mantissa) | 1u << (f->mantissa - 1));
	}
	if (x == 0) {
		return sign;
	}
	frexp(x, &exp);
	exp = MAX(exp - 1, 1 - f->bias); /* below: subnormal, the same spacing */
	scaled = nearbyint(ldexp(x, f->mantissa - exp));
	if (isinf(x) || exp > max_exp) {
		return sign | (uint16_t)(max_exp << f->mantissa);
	}
	/* A carry out of the mantissa moves into the exponent by itself, up to infinity. */
	bits = ((uint32_t)(exp + f->bias - 1) << f->mantissa) + (uint32_t)scaled;
	return sign | (uint16_t)MIN(bits, (uint32_t)max_exp << f->mantissa);
}

static double half_to(const struct format *f, uint16_t h)
{
	int max_exp = (1 << (f->bits - 1 - f->mantissa)) - 1;
	int exp = (h & 0x7fff) >> f->mantissa;
	int mantissa = h & ((1 << f->mantissa) - 1);
	double x;

	if (exp == max_exp) {
		x = mantissa ? NAN : INFINITY;
	} else if (exp == 0) {
		x = ldexp(mantissa, 1 - f->bias - f->mantissa);
	} else {
		x = ldexp(mantissa + (1 << f->mantissa), exp - f->bias - f->mantissa);
	}
	return h & 0x8000 ? -x : x;
}

static bool is_signed(int dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

static uint64_t int_read(int dtype, const void *raw)
{
	unsigned int size = dtype_size((unsigned int)dtype);
	uint64_t x = 0;

	memcpy(&x, raw, size);
	if (is_signed(dtype) && size < 8 && x >> (8 * size - 1)) {
		x |= ~UINT64_C(0) << (8 * size);
	}
	return x;
}

static void float_write(int dtype, double x, void *out)
{
	float f = (float)x;
	uint16_t h;

	switch (dtype) {
	case DTYPE_F64:
		memcpy(out, &x, sizeof(x));
		break;
	case DTYPE_F32:
		memcpy(out, &f, sizeof(f));
		break;
	default:
		h = half_from(dtype == DTYPE_F16 ? &f16 : &bf16, x);
		memcpy(out, &h, sizeof(h));
		break;
	}
}

double value_read(int dtype, const void *raw)
{
	uint16_t h;
	double d;
	float f;

	switch (dtype) {
	case DTYPE_F64:
		memcpy(&d, raw, sizeof(d));
		return d;
	case DTYPE_F32:
		memcpy(&f, raw, sizeof(f));
		return f;
	case DTYPE_F16:
	case DTYPE_BF16:
		memcpy(&h, raw, sizeof(h));
		return half_to(dtype == DTYPE_F16 ? &f16 : &bf16, h);
	default:
		d = (double)int_read(dtype, raw);
		return is_signed(dtype) ? (double)(int64_t)int_read(dtype, raw) : d;
	}
}

/* Half a unit in the last place of 1, and the first integer that is not followed by its successor.
 */
static double float_unit(int dtype)
{
	switch (dtype) {
	case DTYPE_F64:
		return 0x1p-53;
	case DTYPE_F32:
		return 0x1p-24;
	case DTYPE_F16:
		return 0x1p-11;
	default:
		return 0x1p-8;
	}
}

static double float_make(const struct value_spec *v, uint64_t h)
{
	double range;

	if (v->arbitrary) {
		return ((double)(int64_t)h * 0x1p-63) * (double)(1 << (h & 3));
	}
	if (v->op == REDOP_PROD) {
		return (h & 1 ? 2.0 : 1.0) * (h & 2 ? -1.0 : 1.0);
	}
	range = 1 / float_unit(v->dtype) - 1;
	if (v->op == REDOP_SUM || v->op == REDOP_AVG) {
		range = floor(range / v->size);
	} else if (v->op == REDOP_PREMUL_SUM) {
		range = floor(range / v->size / 5);
	}
	return (double)(int64_t)(h % (2 * (uint64_t)range + 1)) - range;
}

static uint64_t int_make(const struct value_spec *v, uint64_t h)
{
	unsigned int bits = 8 * dtype_size((unsigned int)v->dtype);
	uint64_t range = (UINT64_C(1) << (bits - 1)) - 1;

	if (v->op == REDOP_AVG) {
		/* The sum may not wrap: what the average of a wrapped sum is, is nobody's promise.
		 */
		range /= v->size;
		h %= range * 2 + 1;
		return is_signed(v->dtype) ? h - range : h;
	}
	if (v->op >= REDOP_LAND && v->op <= REDOP_LXOR) {
		return h & 0x100 ? h | 1 : 0;
	}
	return h;
}

void value_make(const struct value_spec *v, unsigned int rank, uint64_t i, void *out)
{
	uint64_t h = value_hash(v->seed, rank, i);
	unsigned int size = dtype_size((unsigned int)v->dtype);

	if (coll_kind_reduces((unsigned int)v->kind)) {
		if (dtype_is_float((unsigned int)v->dtype)) {
			float_write(v->dtype, float_make(v, h), out);
			return;
		}
		h = int_make(v, h);
	}
	memcpy(out, &h, size);
}

static double float_step(int op, double acc, double x)
{
	switch (op) {
	case REDOP_PROD:
		return acc * x;
	case REDOP_MIN:
		return isnan(acc) || acc < x ? acc : x;
	case REDOP_MAX:
		return isnan(acc) || acc > x ? acc : x;
	default:
		return acc + x;
	}
}

static uint64_t int_step(int op, bool sign, uint64_t acc, uint64_t x)
{
	bool less = sign ? (int64_t)x < (int64_t)acc : x < acc;

	switch (op) {
	case REDOP_PROD:
		return acc * x;
	case REDOP_MIN:
		return less ? x : acc;
	case REDOP_MAX:
		return less ? acc : x;
	case REDOP_BAND:
		return acc & x;
	case REDOP_BOR:
		return acc | x;
	case REDOP_BXOR:
		return acc ^ x;
	case REDOP_LAND:
		return acc && x;
	case REDOP_LOR:
		return acc || x;
	case REDOP_LXOR:
		return !acc != !x;
	default:
		return acc + x;
	}
}

/* The exact (or in double rounded) result; *ret_magnitude is the sum of the absolute values. */
static double float_reduce(const struct value_spec *v, uint64_t i, double *ret_magnitude)
{
	double acc = 0, magnitude = 0;

	for (unsigned int r = 0; r < v->size; r++) {
		uint8_t raw[8];
		double x;

		value_make(v, r, i, raw);
		x = value_read(v->dtype, raw);
		if (v->op == REDOP_PREMUL_SUM) {
			x *= value_scalar(r);
		}
		magnitude += fabs(x);
		acc = r == 0 ? x : float_step(v->op, acc, x);
	}
	if (v->op == REDOP_AVG) {
		/* The division rounds once, in f32 for the narrow types. */
		acc = v->dtype == DTYPE_F64 ? acc / v->size : (double)((float)acc / (float)v->size);
	}
	*ret_magnitude = magnitude;
	return acc;
}

static uint64_t int_reduce(const struct value_spec *v, uint64_t i)
{
	bool sign = is_signed(v->dtype);
	bool logical = v->op >= REDOP_LAND && v->op <= REDOP_LXOR;
	uint64_t acc = 0;

	for (unsigned int r = 0; r < v->size; r++) {
		uint8_t raw[8];
		uint64_t x;

		value_make(v, r, i, raw);
		x = int_read(v->dtype, raw);
		if (v->op == REDOP_PREMUL_SUM) {
			x *= (uint64_t)value_scalar(r);
		}
		if (logical) {
			x = x != 0;
		}
		acc = r == 0 ? x : int_step(v->op, sign, acc, x);
	}
	if (v->op == REDOP_AVG) {
		acc = sign ? (uint64_t)((int64_t)acc / (int64_t)v->size) : acc / v->size;
	}
	return acc;
}

void value_reduce(const struct value_spec *v, uint64_t i, void *out)
{
	unsigned int size = dtype_size((unsigned int)v->dtype);
	double magnitude;
	uint64_t x;

	if (dtype_is_float((unsigned int)v->dtype)) {
		float_write(v->dtype, float_reduce(v, i, &magnitude), out);
		return;
	}
	x = int_reduce(v, i);
	memcpy(out, &x, size);
}

bool value_close(const struct value_spec *v, uint64_t i, const void *got)
{
	double magnitude, want = float_reduce(v, i, &magnitude);
	double error = fabs(value_read(v->dtype, got) - want);
	/* One rounding of the result a hop for the narrow types, one an addition for the others. */
	double bound = magnitude * float_unit(v->dtype) * v->size;

	if (v->op == REDOP_MIN || v->op == REDOP_MAX) {
		return error == 0;
	}
	return error <= bound;
}
