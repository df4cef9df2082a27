/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Base kernels: 16-byte vectors, for every CPU (SSE2, NEON, or what the compiler makes of them)
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "daemon/reduce/half.h"

#define VEC_BYTES 16
#define VEC_FN
#define VEC_KERNELS reduce_kernels_base
#define BASE_LANES 4

typedef float base_f32 __attribute__((vector_size(VEC_BYTES)));

#define BASE_HALF(half)                                                                    \
	static inline base_f32 vec_widen_##half(const void *p)                             \
	{                                                                                  \
		uint16_t h[BASE_LANES];                                                    \
                                                                                           \
		memcpy(h, p, sizeof(h));                                                   \
		return (base_f32){half_##half##_to_f32(h[0]), half_##half##_to_f32(h[1]),  \
				  half_##half##_to_f32(h[2]), half_##half##_to_f32(h[3])}; \
	}                                                                                  \
                                                                                           \
	static inline void vec_narrow_##half(void *p, base_f32 v)                          \
	{                                                                                  \
		uint16_t h[BASE_LANES];                                                    \
                                                                                           \
		for (int i = 0; i < BASE_LANES; i++) {                                     \
			h[i] = half_##half##_from_f32(v[i]);                               \
		}                                                                          \
		memcpy(p, h, sizeof(h));                                                   \
	}

BASE_HALF(f16)
BASE_HALF(bf16)

#include "daemon/reduce/reduce_vec.h"
