/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reduce, scalar: the reference, one element at a time, written to be read
 *
 * Shares no arithmetic with the vector kernels except the conversions of half.h. An integer of any
 * type is held as 64 bits, sign- or zero-extended, and brought back to its width after every step.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "daemon/reduce/reduce.h"

#include <assert.h>
#include <string.h>

#include "daemon/reduce/half.h"

static bool scalar_is_signed(unsigned int dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

/* Modulo 2^bits of the type, then extended to 64 bits again. */
static uint64_t scalar_wrap(uint64_t v, unsigned int dtype)
{
	unsigned int bits = 8 * dtype_size(dtype);
	uint64_t sign = (uint64_t)1 << (bits - 1);

	if (bits < 64) {
		v &= ((uint64_t)1 << bits) - 1;
	}
	return scalar_is_signed(dtype) ? (v ^ sign) - sign : v;
}

static uint64_t scalar_load_int(const char *p, unsigned int dtype)
{
	uint8_t v8;
	uint16_t v16;
	uint32_t v32;
	uint64_t v64;

	switch (dtype_size(dtype)) {
	case 1:
		memcpy(&v8, p, sizeof(v8));
		return scalar_wrap(v8, dtype);
	case 2:
		memcpy(&v16, p, sizeof(v16));
		return scalar_wrap(v16, dtype);
	case 4:
		memcpy(&v32, p, sizeof(v32));
		return scalar_wrap(v32, dtype);
	default:
		memcpy(&v64, p, sizeof(v64));
		return v64;
	}
}

static void scalar_store_int(char *p, unsigned int dtype, uint64_t v)
{
	uint8_t v8 = (uint8_t)v;
	uint16_t v16 = (uint16_t)v;
	uint32_t v32 = (uint32_t)v;

	switch (dtype_size(dtype)) {
	case 1:
		memcpy(p, &v8, sizeof(v8));
		break;
	case 2:
		memcpy(p, &v16, sizeof(v16));
		break;
	case 4:
		memcpy(p, &v32, sizeof(v32));
		break;
	default:
		memcpy(p, &v, sizeof(v));
	}
}

static bool scalar_int_less(uint64_t a, uint64_t b, unsigned int dtype)
{
	return scalar_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t scalar_int(unsigned int op, unsigned int dtype, uint64_t a, uint64_t b)
{
	switch (op) {
	case REDOP_PROD:
		return a * b;
	case REDOP_MIN:
		return scalar_int_less(a, b, dtype) ? a : b;
	case REDOP_MAX:
		return scalar_int_less(b, a, dtype) ? a : b;
	case REDOP_BAND:
		return a & b;
	case REDOP_BOR:
		return a | b;
	case REDOP_BXOR:
		return a ^ b;
	case REDOP_LAND:
		return a && b;
	case REDOP_LOR:
		return a || b;
	case REDOP_LXOR:
		return !a != !b;
	default:
		return a + b;
	}
}

/* Toward zero; by magnitude, as the divisor may exceed the largest signed value. */
static uint64_t scalar_int_divide(uint64_t v, unsigned int dtype, uint64_t divisor)
{
	if (scalar_is_signed(dtype) && v >> 63) {
		return -(-v / divisor);
	}
	return v / divisor;
}

static float scalar_load_f32(const char *p, unsigned int dtype)
{
	uint16_t h;
	float f;

	if (dtype == DTYPE_F32) {
		memcpy(&f, p, sizeof(f));
		return f;
	}
	memcpy(&h, p, sizeof(h));
	return dtype == DTYPE_F16 ? half_f16_to_f32(h) : half_bf16_to_f32(h);
}

static void scalar_store_f32(char *p, unsigned int dtype, float f)
{
	uint16_t h;

	if (dtype == DTYPE_F32) {
		memcpy(p, &f, sizeof(f));
		return;
	}
	h = dtype == DTYPE_F16 ? half_f16_from_f32(f) : half_bf16_from_f32(f);
	memcpy(p, &h, sizeof(h));
}

/* Where neither is smaller: NaN, or equal, and then only zeros differ (in sign). */
static float scalar_min_f32(float a, float b)
{
	if (a < b) {
		return a;
	}
	if (b < a) {
		return b;
	}
	return half_f32_from_bits(half_f32_bits(a) | half_f32_bits(b));
}

static float scalar_f32(unsigned int op, float a, float b)
{
	switch (op) {
	case REDOP_PROD:
		return a * b;
	case REDOP_MIN:
		return scalar_min_f32(a, b);
	case REDOP_MAX:
		return -scalar_min_f32(-a, -b);
	default:
		return a + b;
	}
}

static double scalar_min_f64(double a, double b)
{
	uint64_t u;
	uint64_t v;

	if (a < b) {
		return a;
	}
	if (b < a) {
		return b;
	}
	memcpy(&u, &a, sizeof(u));
	memcpy(&v, &b, sizeof(v));
	u |= v;
	memcpy(&a, &u, sizeof(a));
	return a;
}

static double scalar_f64(unsigned int op, double a, double b)
{
	switch (op) {
	case REDOP_PROD:
		return a * b;
	case REDOP_MIN:
		return scalar_min_f64(a, b);
	case REDOP_MAX:
		return -scalar_min_f64(-a, -b);
	default:
		return a + b;
	}
}

static double scalar_factor(const struct reduce_src *src)
{
	double d;

	memcpy(&d, &src->scalar, sizeof(d));
	return d;
}

static void scalar_run_int(const struct reduce_args *args, size_t at, bool premul, bool divide)
{
	uint64_t acc = 0;

	for (unsigned int i = 0; i < args->nsrc; i++) {
		const struct reduce_src *src = &args->src[i];
		uint64_t v = scalar_load_int((const char *)src->ptr + at, args->dtype);

		if (premul && src->scaled) {
			v = scalar_wrap(v * src->scalar, args->dtype);
		}
		acc = i ? scalar_wrap(scalar_int(args->op, args->dtype, acc, v), args->dtype) : v;
	}
	if (divide) {
		acc = scalar_int_divide(acc, args->dtype, args->divisor);
	}
	scalar_store_int((char *)args->dst + at, args->dtype, acc);
}

/* f32, and f16 and bf16 in f32. */
static void scalar_run_f32(const struct reduce_args *args, size_t at, bool premul, bool divide)
{
	float acc = 0;

	for (unsigned int i = 0; i < args->nsrc; i++) {
		const struct reduce_src *src = &args->src[i];
		float v = scalar_load_f32((const char *)src->ptr + at, args->dtype);

		if (premul && src->scaled) {
			v = v * (float)scalar_factor(src);
		}
		acc = i ? scalar_f32(args->op, acc, v) : v;
	}
	if (divide) {
		acc = acc / (float)args->divisor;
	}
	scalar_store_f32((char *)args->dst + at, args->dtype, acc);
}

static void scalar_run_f64(const struct reduce_args *args, size_t at, bool premul, bool divide)
{
	double acc = 0;

	for (unsigned int i = 0; i < args->nsrc; i++) {
		const struct reduce_src *src = &args->src[i];
		double v;

		memcpy(&v, (const char *)src->ptr + at, sizeof(v));
		if (premul && src->scaled) {
			v = v * scalar_factor(src);
		}
		acc = i ? scalar_f64(args->op, acc, v) : v;
	}
	if (divide) {
		acc = acc / (double)args->divisor;
	}
	memcpy((char *)args->dst + at, &acc, sizeof(acc));
}

/**
 * reduce_run_scalar() - run a reduction one element at a time
 * @args: borrowed
 */
void reduce_run_scalar(const struct reduce_args *args)
{
	const size_t size = dtype_size(args->dtype);
	const bool premul = args->op == REDOP_PREMUL_SUM;
	const bool divide = args->op == REDOP_AVG && args->divisor > 1;

	assert(args->nsrc >= 1 && args->nsrc <= REDUCE_MAX_SRC);
	if (args->count == 0) {
		return;
	}
	if (args->nsrc == 1 && !divide && !(premul && args->src[0].scaled)) {
		if (args->dst != args->src[0].ptr) {
			memcpy(args->dst, args->src[0].ptr, args->count * size);
		}
		return;
	}
	assert(redop_supports(args->op, args->dtype));
	for (size_t i = 0; i < args->count; i++) {
		if (args->dtype == DTYPE_F64) {
			scalar_run_f64(args, i * size, premul, divide);
		} else if (dtype_is_float(args->dtype)) {
			scalar_run_f32(args, i * size, premul, divide);
		} else {
			scalar_run_int(args, i * size, premul, divide);
		}
	}
}
