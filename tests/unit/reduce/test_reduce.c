/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of reduce: every dtype x op x number of sources x count x misalignment x aliasing
 *
 * Two steps: reduce_run_scalar() is compared with a model in this file (128-bit integers, floats
 * rounded from double), then every kernel level that this CPU has is compared with
 * reduce_run_scalar(), bit for bit except that any NaN equals any NaN. Canaries surround the
 * destination, and the sources must come out as they went in.
 *
 * Thread: any      Owns: its buffers      Locks: none
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "daemon/reduce/half.h"
#include "daemon/reduce/reduce_impl.h"
#include "proto/base.h"

#define MAX_SRC 9
#define MAX_COUNT 4099
#define MAX_BYTES (MAX_COUNT * 8)
#define MARGIN 64
#define CANARY 0xa5

static const unsigned int nsrcs[] = {1, 2, 3, 5, 9};
static const size_t counts[] = {0, 1, 3, 17, 1000, MAX_COUNT};
static const size_t shifts[] = {0, 1, 7};

/* Sources, each with room for a shift, what they are made from, and destinations. */
struct bench {
	uint64_t random;
	uint8_t original[MAX_SRC][MAX_BYTES];
	uint8_t work[MAX_SRC][MAX_BYTES + 3 * MARGIN];
	uint8_t dst[MAX_BYTES + 3 * MARGIN];
	uint8_t want[MAX_BYTES];
	struct reduce_src src[MAX_SRC];
	struct reduce_args args;
};

static struct bench *bench_new(void)
{
	struct bench *b = calloc(1, sizeof(*b));

	cr_assert_not_null(b);
	b->random = 1;
	b->args.src = b->src;
	return b;
}

static void bench_free_p(struct bench **b)
{
	free(*b);
}

static uint64_t bench_random(struct bench *b)
{
	b->random ^= b->random << 13;
	b->random ^= b->random >> 7;
	b->random ^= b->random << 17;
	return b->random * 0x2545f4914f6cdd1du;
}

/* A value that matters: zeros, ones, extremes, infinities, NaN, subnormals. */
static uint64_t special_bits(unsigned int dtype, unsigned int pick)
{
	static const uint64_t ints[] = {
		0,	     1,		  UINT64_MAX,	     0x80,	0x7f, 0x8000, 0x7fff,
		0x80000000u, 0x7fffffffu, (uint64_t)1 << 63, INT64_MAX, 2};
	static const uint64_t f16[] = {0, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0xfd00,
				       1, 0x83ff, 0x7bff, 0xfbff, 0x3c00, 0xbc00};
	static const uint64_t bf16[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0xff81,
					1, 0x807f, 0x7f7f, 0xff7f, 0x3f80, 0xbf80};
	static const uint64_t f32[] = {0,	    0x80000000u, 0x7f800000u, 0xff800000u,
				       0x7fc00001u, 0xff800001u, 1,	      0x807fffffu,
				       0x7f7fffffu, 0xff7fffffu, 0x3f800000u, 0xbf800000u};
	static const uint64_t f64[] = {0,
				       0x8000000000000000u,
				       0x7ff0000000000000u,
				       0xfff0000000000000u,
				       0x7ff8000000000001u,
				       0xfff0000000000001u,
				       1,
				       0x800fffffffffffffu,
				       0x7fefffffffffffffu,
				       0xffefffffffffffffu,
				       0x3ff0000000000000u,
				       0xbff0000000000000u};

	switch (dtype) {
	case DTYPE_F16:
		return f16[pick % ARRAY_SIZE(f16)];
	case DTYPE_BF16:
		return bf16[pick % ARRAY_SIZE(bf16)];
	case DTYPE_F32:
		return f32[pick % ARRAY_SIZE(f32)];
	case DTYPE_F64:
		return f64[pick % ARRAY_SIZE(f64)];
	default:
		return ints[pick % ARRAY_SIZE(ints)];
	}
}

/* An ordinary number, so that sums and products of several do round and do not overflow. */
static uint64_t ordinary_bits(unsigned int dtype, uint64_t r)
{
	double d = ldexp((double)(int32_t)r, (int)(r >> 32 & 7) - 34);
	uint64_t u = 0;
	float f = (float)d;

	switch (dtype) {
	case DTYPE_F16:
		return half_f16_from_f32(f);
	case DTYPE_BF16:
		return half_bf16_from_f32(f);
	case DTYPE_F32:
		return half_f32_bits(f);
	case DTYPE_F64:
		memcpy(&u, &d, sizeof(u));
		return u;
	default:
		return r & 0xff;
	}
}

static void bench_fill(struct bench *b, unsigned int dtype)
{
	const size_t size = dtype_size(dtype);

	for (size_t i = 0; i < MAX_SRC; i++) {
		for (size_t e = 0; e < MAX_COUNT; e++) {
			uint64_t r = bench_random(b);
			uint64_t u = r;

			if ((r >> 60) == 0) {
				u = special_bits(dtype, (unsigned int)(r & 0xffff));
			} else if (r >> 63) {
				u = ordinary_bits(dtype, r);
			}
			memcpy(b->original[i] + e * size, &u,
			       size); /* little-endian as all we run on */
		}
	}
}

static bool is_signed(unsigned int dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

static __int128 model_extend(unsigned int dtype, uint64_t u)
{
	const unsigned int bits = 8 * dtype_size(dtype);
	__int128 v = u & (UINT64_MAX >> (64 - bits));

	return is_signed(dtype) && v >> (bits - 1) ? v - ((__int128)1 << bits) : v;
}

static __int128 model_int(unsigned int op, __int128 a, __int128 b)
{
	switch (op) {
	case REDOP_PROD:
		return (__int128)((unsigned __int128)a * (unsigned __int128)b);
	case REDOP_MIN:
		return MIN(a, b);
	case REDOP_MAX:
		return MAX(a, b);
	case REDOP_BAND:
		return a & b;
	case REDOP_BOR:
		return a | b;
	case REDOP_BXOR:
		return a ^ b;
	case REDOP_LAND:
		return a != 0 && b != 0;
	case REDOP_LOR:
		return a != 0 || b != 0;
	case REDOP_LXOR:
		return (a != 0) != (b != 0);
	default:
		return (__int128)((unsigned __int128)a + (unsigned __int128)b);
	}
}

static uint64_t model_run_int(const struct reduce_args *args, const uint64_t *in)
{
	__int128 acc = 0;

	for (unsigned int i = 0; i < args->nsrc; i++) {
		__int128 v = model_extend(args->dtype, in[i]);

		if (args->op == REDOP_PREMUL_SUM && args->src[i].scaled) {
			v *= (int64_t)args->src[i].scalar;
		}
		acc = i ? model_int(args->op, acc, v) : v;
	}
	if (args->op == REDOP_AVG && args->divisor) {
		acc = model_extend(args->dtype, (uint64_t)acc) / (__int128)args->divisor;
	}
	return (uint64_t)acc;
}

/* A double that holds an f32, f16 or bf16 value exactly, or an f64. */
static double model_decode(unsigned int dtype, uint64_t u)
{
	double d;

	switch (dtype) {
	case DTYPE_F16:
		return (double)half_f16_to_f32((uint16_t)u);
	case DTYPE_BF16:
		return (double)half_bf16_to_f32((uint16_t)u);
	case DTYPE_F32:
		return (double)half_f32_from_bits((uint32_t)u);
	default:
		memcpy(&d, &u, sizeof(d));
		return d;
	}
}

/* Rounding a double sum, product or quotient of floats gives the correctly rounded float. */
static double model_round(unsigned int dtype, double d)
{
	return dtype == DTYPE_F64 ? d : (double)(float)d;
}

static double model_float(unsigned int op, double a, double b)
{
	bool first;

	switch (op) {
	case REDOP_PROD:
		return a * b;
	case REDOP_MIN:
	case REDOP_MAX:
		if (isnan(a) || isnan(b)) {
			return NAN;
		}
		first = a == b ? signbit(a) != 0 : a < b; /* a is the smaller */
		return first == (op == REDOP_MIN) ? a : b;
	default:
		return a + b;
	}
}

static uint64_t model_run_float(const struct reduce_args *args, const uint64_t *in)
{
	const unsigned int dtype = args->dtype;
	double acc = 0;
	uint64_t u;

	for (unsigned int i = 0; i < args->nsrc; i++) {
		double v = model_decode(dtype, in[i]);

		if (args->op == REDOP_PREMUL_SUM && args->src[i].scaled) {
			double factor = model_decode(DTYPE_F64, args->src[i].scalar);

			v = model_round(dtype, v * model_round(dtype, factor));
		}
		acc = i ? model_round(dtype, model_float(args->op, acc, v)) : v;
	}
	if (args->op == REDOP_AVG && args->divisor) {
		acc = model_round(dtype, acc / model_round(dtype, (double)args->divisor));
	}
	switch (dtype) {
	case DTYPE_F16:
		return half_f16_from_f32((float)acc);
	case DTYPE_BF16:
		return half_bf16_from_f32((float)acc);
	case DTYPE_F32:
		return half_f32_bits((float)acc);
	default:
		memcpy(&u, &acc, sizeof(u));
		return u;
	}
}

/* Equal bits, or NaN both. */
static bool same_value(unsigned int dtype, uint64_t a, uint64_t b)
{
	if (a == b) {
		return true;
	}
	return dtype_is_float(dtype) && isnan(model_decode(dtype, a)) &&
	       isnan(model_decode(dtype, b));
}

static void bench_compare(const struct bench *b, const char *level, const uint8_t *got, int alias)
{
	const struct reduce_args *args = &b->args;
	const size_t size = dtype_size(args->dtype);

	if (memcmp(got, b->want, args->count * size) == 0) {
		return;
	}
	for (size_t e = 0; e < args->count; e++) {
		uint64_t u = 0;
		uint64_t v = 0;

		memcpy(&u, got + e * size, size);
		memcpy(&v, b->want + e * size, size);
		if (!same_value(args->dtype, u, v)) {
			cr_assert_fail("%s %s %s nsrc %u count %zu divisor %llu alias %d element "
				       "%zu: %llx instead of %llx",
				       level, dtype_name(args->dtype), redop_name(args->op),
				       args->nsrc, args->count, (unsigned long long)args->divisor,
				       alias, e, (unsigned long long)u, (unsigned long long)v);
		}
	}
}

/* Runs with kernels (the scalar ones if NULL); alias: the source that dst is equal to, or -1. */
static void bench_run(struct bench *b, const char *level, const struct reduce_kernels *kernels,
		      size_t shift, int alias)
{
	const size_t bytes = b->args.count * dtype_size(b->args.dtype);
	uint8_t *area = b->dst;
	uint8_t *dst = area + MARGIN + shift * 5;

	for (unsigned int i = 0; i < b->args.nsrc; i++) {
		uint8_t *to = b->work[i] + MARGIN + shift * i % MARGIN;

		if ((int)i == alias) {
			area = b->work[i];
			dst = to;
		}
		memset(b->work[i], CANARY, sizeof(b->work[i]));
		memcpy(to, b->original[i], bytes);
		b->src[i].ptr = to;
	}
	if (alias < 0) {
		memset(area, CANARY, sizeof(b->dst));
	}
	b->args.dst = dst;
	if (kernels) {
		reduce_run_with(kernels, &b->args);
	} else {
		reduce_run_scalar(&b->args);
	}
	bench_compare(b, level, dst, alias);
	for (size_t i = 0; i < sizeof(b->dst); i++) {
		if ((area + i < dst || area + i >= dst + bytes) && area[i] != CANARY) {
			cr_assert_fail("%s wrote outside", level);
		}
	}
	for (unsigned int i = 0; i < b->args.nsrc; i++) {
		cr_assert((int)i == alias || memcmp(b->src[i].ptr, b->original[i], bytes) == 0,
			  "%s changed source %u", level, i);
	}
}

/* The model is not asked for plain copies: those keep even the payload of a NaN. */
static void bench_model(struct bench *b)
{
	const struct reduce_args *args = &b->args;
	const size_t size = dtype_size(args->dtype);

	for (size_t e = 0; e < args->count; e++) {
		uint64_t in[MAX_SRC] = {0};
		uint64_t out;

		for (unsigned int i = 0; i < args->nsrc; i++) {
			memcpy(&in[i], b->original[i] + e * size, size);
		}
		out = dtype_is_float(args->dtype) ? model_run_float(args, in)
						  : model_run_int(args, in);
		memcpy(b->want + e * size, &out, size);
	}
}

/* One cell at one number of sources and count: scalar against model, all levels against scalar. */
static void bench_cell(struct bench *b)
{
	const int nsrc = (int)b->args.nsrc;

	bench_model(b);
	for (int alias = -1; alias < nsrc; alias++) {
		bench_run(b, "scalar", NULL, 1, alias);
	}
	bench_run(b, "scalar", NULL, 0, -1);
	memcpy(b->want, b->args.dst, b->args.count * dtype_size(b->args.dtype));
	for (size_t k = 0; k < reduce_nlevels; k++) {
		const struct reduce_level *level = &reduce_levels[k];

		if (!level->usable()) {
			continue;
		}
		for (size_t s = 0; s < ARRAY_SIZE(shifts); s++) {
			for (int alias = -1; alias < nsrc; alias++) {
				bench_run(b, level->name, level->kernels, shifts[s], alias);
			}
		}
	}
}

static void bench_counts(struct bench *b)
{
	for (size_t n = 0; n < ARRAY_SIZE(nsrcs); n++) {
		for (size_t c = 0; c < ARRAY_SIZE(counts); c++) {
			b->args.nsrc = nsrcs[n];
			b->args.count = counts[c];
			bench_cell(b);
		}
	}
}

static void test_dtype(unsigned int dtype)
{
	attr_cleanup(bench_free_p) struct bench *b = bench_new();

	bench_fill(b, dtype);
	b->args.dtype = (uint8_t)dtype;
	for (unsigned int op = 0; op < REDOP_COUNT_; op++) {
		if (redop_supports(op, dtype)) {
			b->args.op = (uint8_t)op;
			bench_counts(b);
		}
	}
}

/* One test a type, so that they run side by side. */
#define DTYPE_TEST(name, dtype)    \
	Test(reduce, name)         \
	{                          \
		test_dtype(dtype); \
	}

DTYPE_TEST(i8, DTYPE_I8)
DTYPE_TEST(u8, DTYPE_U8)
DTYPE_TEST(i16, DTYPE_I16)
DTYPE_TEST(u16, DTYPE_U16)
DTYPE_TEST(i32, DTYPE_I32)
DTYPE_TEST(u32, DTYPE_U32)
DTYPE_TEST(i64, DTYPE_I64)
DTYPE_TEST(u64, DTYPE_U64)
DTYPE_TEST(f16, DTYPE_F16)
DTYPE_TEST(bf16, DTYPE_BF16)
DTYPE_TEST(f32, DTYPE_F32)
DTYPE_TEST(f64, DTYPE_F64)

Test(reduce, average_with_every_kind_of_divisor)
{
	static const uint64_t divisors[] = {
		1,
		2,
		3,
		7,
		10,
		127,
		128,
		129,
		32768,
		65535,
		65537,
		0x7fffffffu,
		0x80000000u,
		0xffffffffu,
		0x100000001u,
		INT64_MAX,
		(uint64_t)1 << 63,
		((uint64_t)1 << 63) + 1,
		UINT64_MAX,
	};
	attr_cleanup(bench_free_p) struct bench *b = bench_new();

	b->args.op = REDOP_AVG;
	b->args.count = 1000;
	for (unsigned int dtype = 0; dtype < REDUCE_DTYPES; dtype++) {
		bench_fill(b, dtype);
		b->args.dtype = (uint8_t)dtype;
		for (size_t i = 0; i < ARRAY_SIZE(divisors); i++) {
			b->args.divisor = divisors[i];
			for (b->args.nsrc = 1; b->args.nsrc <= 3; b->args.nsrc++) {
				bench_cell(b);
			}
		}
	}
}

/* All quotients of 16 bits, where vectors divide as doubles. */
Test(reduce, average_of_16_bits_is_exact)
{
	uint16_t in[4096];
	uint16_t got[4096];
	uint16_t want[4096];
	struct reduce_src src = {.ptr = in};
	struct reduce_args args = {.src = &src, .nsrc = 1, .count = 4096, .op = REDOP_AVG};

	for (uint32_t first = 0; first < 0x10000; first += 4096) {
		for (uint32_t i = 0; i < 4096; i++) {
			in[i] = (uint16_t)(first + i);
		}
		for (args.divisor = 2; args.divisor < 600; args.divisor++) {
			for (unsigned int dtype = DTYPE_I16; dtype <= DTYPE_U16; dtype++) {
				args.dtype = (uint8_t)dtype;
				for (int i = 0; i < 4096; i++) {
					want[i] = dtype == DTYPE_U16
							  ? (uint16_t)(in[i] / args.divisor)
							  : (uint16_t)((int16_t)in[i] /
								       (int)args.divisor);
				}
				args.dst = got;
				reduce_run(&args);
				cr_assert_arr_eq(got, want, sizeof(got));
			}
		}
	}
}

Test(reduce, premultiplied_sum_with_every_pattern_of_scaled_sources)
{
	static const double factors[] = {0.125, -3.3, 1e-3, 1.0, 0.0, -0.0, INFINITY, 1e300, 7.0};
	attr_cleanup(bench_free_p) struct bench *b = bench_new();

	b->args.op = REDOP_PREMUL_SUM;
	for (unsigned int dtype = 0; dtype < REDUCE_DTYPES; dtype++) {
		bench_fill(b, dtype);
		b->args.dtype = (uint8_t)dtype;
		for (unsigned int pattern = 0; pattern < 32; pattern++) {
			for (unsigned int i = 0; i < MAX_SRC; i++) {
				b->src[i].scaled = pattern >> i % 5 & 1;
				b->src[i].scalar = bench_random(b);
				if (dtype_is_float(dtype)) {
					memcpy(&b->src[i].scalar, &factors[(i + pattern) % 9], 8);
				}
			}
			for (size_t n = 0; n < ARRAY_SIZE(nsrcs); n++) {
				b->args.nsrc = nsrcs[n];
				b->args.count = 1 + pattern * 71;
				bench_cell(b);
			}
		}
	}
}

/* Scalars of other ops are ignored. */
Test(reduce, scalar_only_counts_for_premultiplied_sum)
{
	float a = 3;
	float b = 4;
	float r = 0;
	struct reduce_src src[] = {{&a, UINT64_MAX, 1}, {&b, UINT64_MAX, 1}};
	struct reduce_args args = {
		.dst = &r, .src = src, .nsrc = 2, .count = 1, .dtype = DTYPE_F32, .op = REDOP_SUM};

	reduce_run(&args);
	cr_assert(r == 7.0f);
	reduce_run_scalar(&args);
	cr_assert(r == 7.0f);
}

/* 2^-9 added to 1 is lost in bf16 each time, kept in f32. */
Test(reduce, half_types_round_once)
{
	uint16_t one = half_bf16_from_f32(1.0f);
	uint16_t tiny = half_bf16_from_f32(0x1p-9f);
	uint16_t r = 0;
	struct reduce_src src[REDUCE_MAX_SRC];
	struct reduce_args args = {.dst = &r,
				   .src = src,
				   .nsrc = REDUCE_MAX_SRC,
				   .count = 1,
				   .dtype = DTYPE_BF16,
				   .op = REDOP_SUM};

	for (unsigned int i = 0; i < REDUCE_MAX_SRC; i++) {
		src[i] = (struct reduce_src){.ptr = i ? &tiny : &one};
	}
	reduce_run(&args);
	cr_assert_eq(r, half_bf16_from_f32(1.0f + (float)(REDUCE_MAX_SRC - 1) * 0x1p-9f));
	cr_assert_neq(r, one);
}

/* fp8 and every other type are copied bit for bit, signalling NaN included, whatever the op. */
Test(reduce, one_source_is_a_copy)
{
	attr_cleanup(bench_free_p) struct bench *b = bench_new();

	for (unsigned int dtype = 0; dtype < DTYPE_COUNT_; dtype++) {
		struct reduce_src src = {.ptr = b->original[0] + 1};
		struct reduce_args args = {.dst = b->want + 3,
					   .src = &src,
					   .nsrc = 1,
					   .count = MAX_COUNT - 1,
					   .dtype = (uint8_t)dtype};
		const size_t bytes = args.count * dtype_size(dtype);

		for (size_t i = 0; i < MAX_BYTES; i++) {
			b->original[0][i] = (uint8_t)bench_random(b);
		}
		for (unsigned int op = 0; op < REDOP_COUNT_; op++) {
			args.op = (uint8_t)op;
			args.divisor = op == REDOP_AVG;
			memset(b->want, 0, sizeof(b->want));
			reduce_run(&args);
			cr_assert_arr_eq(b->want + 3, src.ptr, bytes);
			memset(b->want, 0, sizeof(b->want));
			reduce_run_scalar(&args);
			cr_assert_arr_eq(b->want + 3, src.ptr, bytes);
		}
		args.dst = b->original[0] + 1;
		memcpy(b->want, args.dst, bytes);
		reduce_run(&args);
		cr_assert_arr_eq(b->want, args.dst, bytes);
	}
}

Test(reduce, nothing_to_do_touches_nothing)
{
	struct reduce_src src[2] = {{0}};
	struct reduce_args args = {.src = src, .nsrc = 2, .dtype = DTYPE_F32};

	reduce_run(&args);
	reduce_run_scalar(&args);
}

Test(reduce, isa_is_the_best_usable_level)
{
	size_t k = 0;

	while (!reduce_levels[k].usable()) {
		k++;
	}
	cr_assert_str_eq(reduce_isa(), reduce_levels[k].name);
	cr_assert(reduce_levels[reduce_nlevels - 1].usable());
}
