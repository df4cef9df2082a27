/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Half: f16 (IEEE binary16) and bf16 to and from f32, one value at a time
 *
 * Widening is exact. Narrowing rounds to nearest even, overflows to infinity, keeps subnormals and
 * keeps NaN a (quiet) NaN with its sign. The results equal those of F16C bit for bit, so vector
 * kernels may use the instructions and the tails these functions. They rely on the default
 * rounding mode, which nothing in the daemon changes.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_REDUCE_HALF_H
#define ROCECOMM_REDUCE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_f32_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float half_f32_from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline float half_f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
	uint32_t exponent = (h >> 10) & 0x1fu;
	uint32_t fraction = h & 0x3ffu;

	if (exponent == 0x1f) {
		uint32_t quiet = fraction ? 0x00400000u : 0;

		return half_f32_from_bits(sign | 0x7f800000u | quiet | fraction << 13);
	}
	if (exponent == 0) {
		/* Zero or subnormal: a multiple of 2^-24, a normal f32 unless zero. */
		return half_f32_from_bits(sign | half_f32_bits((float)fraction * 0x1p-24f));
	}
	return half_f32_from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

static inline uint16_t half_f16_from_f32(float f)
{
	uint32_t u = half_f32_bits(f);
	uint32_t sign = u >> 16 & 0x8000u;
	uint32_t mag = u & 0x7fffffffu;

	if (mag > 0x7f800000u) {
		return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
	}
	if (mag >= 0x47800000u) { /* 2^16 and above; 65520 .. 65536 round up to it below */
		return (uint16_t)(sign | 0x7c00u);
	}
	if (mag >= 0x38800000u) { /* 2^-14, the smallest normal f16 */
		mag += 0xfffu + (mag >> 13 & 1u);
		return (uint16_t)(sign | ((mag - ((127u - 15u) << 23)) >> 13));
	}
	/* The spacing of f32 in [0.5, 1) is 2^-24, that of f16 subnormals: the addition rounds. */
	mag = half_f32_bits(half_f32_from_bits(mag) + 0.5f) - 0x3f000000u;
	return (uint16_t)(sign | mag);
}

static inline float half_bf16_to_f32(uint16_t h)
{
	return half_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t half_bf16_from_f32(float f)
{
	uint32_t u = half_f32_bits(f);

	if ((u & 0x7fffffffu) > 0x7f800000u) {
		return (uint16_t)(u >> 16 |
				  0x40u); /* quiet: the payload may be all in the low bits */
	}
	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
