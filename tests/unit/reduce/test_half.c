/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of half.h: every f16 and bf16 pattern, and the rounding of f32 against a slow model
 *
 * The model knows a format by its exponent and fraction widths only and rounds in double with
 * nearbyint(), so it shares nothing with the bit manipulation under test.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <math.h>

#include "daemon/reduce/half.h"

struct format {
	const char *name;
	int exponent_bits;
	int fraction_bits;
	float (*widen)(uint16_t h);
	uint16_t (*narrow)(float f);
};

static const struct format formats[] = {
	{"f16", 5, 10, half_f16_to_f32, half_f16_from_f32},
	{"bf16", 8, 7, half_bf16_to_f32, half_bf16_from_f32},
};

static int format_bias(const struct format *f)
{
	return (1 << (f->exponent_bits - 1)) - 1;
}

static double model_widen(const struct format *f, uint16_t h)
{
	int exponent = h >> f->fraction_bits & ((1 << f->exponent_bits) - 1);
	int fraction = h & ((1 << f->fraction_bits) - 1);
	double v;

	if (exponent == (1 << f->exponent_bits) - 1) {
		v = fraction ? NAN : INFINITY;
	} else if (exponent == 0) {
		v = ldexp(fraction, 1 - format_bias(f) - f->fraction_bits);
	} else {
		v = ldexp(fraction + (1 << f->fraction_bits),
			  exponent - format_bias(f) - f->fraction_bits);
	}
	return h >> 15 ? -v : v;
}

/* Not for NaN. */
static uint16_t model_narrow(const struct format *f, float x)
{
	const uint16_t sign = signbit(x) ? 0x8000 : 0;
	const int bias = format_bias(f);
	const int inf = ((1 << f->exponent_bits) - 1) << f->fraction_bits;
	double v = fabs((double)x);
	double units;
	int exponent;

	if (isinf(v)) {
		return (uint16_t)(sign | inf);
	}
	if (v == 0) {
		return sign;
	}
	exponent = ilogb(v);
	if (exponent < 1 - bias) {
		exponent = 1 - bias;
	}
	/* nearbyint() rounds halves to even; a carry into the exponent is the next number up. */
	units = nearbyint(ldexp(v, f->fraction_bits - exponent));
	units += ldexp(exponent + bias - 1, f->fraction_bits);
	return (uint16_t)(sign | (units >= inf ? inf : (int)units));
}

static void check_narrow(const struct format *f, uint32_t bits)
{
	float x = half_f32_from_bits(bits);
	uint16_t got = f->narrow(x);

	if (isnan(x)) {
		cr_assert(isnan(f->widen(got)) && got >> 15 == bits >> 31,
			  "%s: NaN %08x became %04x", f->name, bits, got);
		return;
	}
	if (got != model_narrow(f, x)) {
		cr_assert_fail("%s: %08x became %04x instead of %04x", f->name, bits, got,
			       model_narrow(f, x));
	}
}

Test(half, every_pattern_widens_and_comes_back)
{
	for (size_t k = 0; k < sizeof(formats) / sizeof(formats[0]); k++) {
		const struct format *f = &formats[k];

		for (uint32_t h = 0; h <= 0xffff; h++) {
			double want = model_widen(f, (uint16_t)h);
			float got = f->widen((uint16_t)h);
			uint16_t back = f->narrow(got);

			if (isnan(want)) {
				/* Quietened at most: sign and payload stay. */
				cr_assert(isnan(got), "%s %04x", f->name, h);
				cr_assert_eq(back, h | 1u << (f->fraction_bits - 1), "%s %04x",
					     f->name, h);
				continue;
			}
			cr_assert(got == want && !signbit(got) == !signbit(want), "%s %04x",
				  f->name, h);
			cr_assert_eq(back, h, "%s %04x", f->name, h);
		}
	}
}

/* Every value, its neighbours in f32, and the half-way points between it and the next one. */
Test(half, rounding_next_to_every_value)
{
	for (size_t k = 0; k < sizeof(formats) / sizeof(formats[0]); k++) {
		const struct format *f = &formats[k];

		for (uint32_t h = 0; h <= 0xffff; h++) {
			uint32_t at = half_f32_bits(f->widen((uint16_t)h));
			uint32_t next = half_f32_bits(f->widen((uint16_t)(h + 1)));
			uint32_t middle = at / 2 + next / 2;

			for (uint32_t d = 0; d < 7; d++) {
				check_narrow(f, at + d - 3);
				check_narrow(f, middle + d - 3);
			}
		}
	}
}

Test(half, rounding_of_random_floats)
{
	uint64_t state = 42;

	for (size_t k = 0; k < sizeof(formats) / sizeof(formats[0]); k++) {
		for (int i = 0; i < 2000000; i++) {
			uint32_t bits;

			state = state * 6364136223846793005u + 1442695040888963407u;
			bits = (uint32_t)(state >> 32);
			check_narrow(&formats[k], bits);
			/* Once more in the narrow range of f16. */
			bits = (bits & 0x80ffffffu) | (0x33u + (bits >> 24) % 0x15u) << 24;
			check_narrow(&formats[k], bits);
		}
	}
}

Test(half, edges)
{
	cr_assert_eq(half_f16_from_f32(65519.996f), 0x7bff);
	cr_assert_eq(half_f16_from_f32(65520.0f), 0x7c00);
	cr_assert_eq(half_f16_from_f32(-65520.0f), 0xfc00);
	cr_assert_eq(half_f16_from_f32(0x1p-25f), 0x0000, "half of the smallest goes to even");
	cr_assert_eq(half_f16_from_f32(0x1.000002p-25f), 0x0001);
	cr_assert_eq(half_f16_from_f32(-0x1p-30f), 0x8000);
	cr_assert_eq(half_bf16_from_f32(0x1.fffffep127f), 0x7f80);
	cr_assert_eq(half_bf16_from_f32(0x1p-149f), 0x0000);
	cr_assert_eq(half_bf16_from_f32(half_f32_from_bits(0x7f800001u)), 0x7fc0);
	cr_assert_eq(half_bf16_from_f32(half_f32_from_bits(0xffffffffu)), 0xffff);
}
