/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * AVX-512 kernels: 64-byte vectors (F, BW, DQ, VL)
 *
 * Not the conversions of AVX512-BF16: they flush subnormals to zero.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <immintrin.h>

#define VEC_BYTES 64
#define VEC_FN __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define VEC_KERNELS reduce_kernels_avx512

static inline VEC_FN __m512 vec_widen_f16(const void *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

static inline VEC_FN void vec_narrow_f16(void *p, __m512 v)
{
	_mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline VEC_FN __m512 vec_widen_bf16(const void *p)
{
	__m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));

	return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

/* As half_bf16_from_f32(): add half a last place, less one if that place is even; NaN apart. */
static inline VEC_FN void vec_narrow_bf16(void *p, __m512 v)
{
	__m512i u = _mm512_castps_si512(v);
	__m512i high = _mm512_srli_epi32(u, 16);
	__m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
	__m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
	__m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, bias), 16);
	__mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
	__m512i r = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));

	_mm256_storeu_si256(p, _mm512_cvtepi32_epi16(r));
}

#include "daemon/reduce/reduce_vec.h"
