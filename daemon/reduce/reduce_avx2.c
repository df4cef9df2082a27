/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * AVX2 kernels: 32-byte vectors, F16C conversions
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <immintrin.h>

#define VEC_BYTES 32
#define VEC_FN __attribute__((target("avx2,f16c")))
#define VEC_KERNELS reduce_kernels_avx2

static inline VEC_FN __m256 vec_widen_f16(const void *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

static inline VEC_FN void vec_narrow_f16(void *p, __m256 v)
{
	_mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline VEC_FN __m256 vec_widen_bf16(const void *p)
{
	__m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

/* As half_bf16_from_f32(): add half a last place, less one if that place is even; NaN apart. */
static inline VEC_FN void vec_narrow_bf16(void *p, __m256 v)
{
	__m256i u = _mm256_castps_si256(v);
	__m256i high = _mm256_srli_epi32(u, 16);
	__m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
	__m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
	__m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
	__m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
	__m256i r = _mm256_blendv_epi8(rounded, quiet, nan);

	_mm_storeu_si128(
		p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}

#include "daemon/reduce/reduce_vec.h"
