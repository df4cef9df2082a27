/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Vector kernels: the one template from which every instruction set makes its table
 *
 * Written with the vector types of gcc and clang, whose operators act lane by lane, rounding
 * and ordering operands as the scalar ones do; only f16 and bf16 conversions are intrinsics.
 * Explicit vectors rather than the auto-vectoriser, as an output may be equal to an input, where
 * its overlap check falls back to one element at a time. The last, partial vector goes through a
 * local one filled up with zeros, so that there is one expression for an operation, not two.
 *
 * To be included once by a .c file that has defined
 *   VEC_BYTES    size of a vector
 *   VEC_FN       attributes of every function (the target)
 *   VEC_KERNELS  name of the table
 * and has the functions, for VEC_BYTES / 4 values at a possibly unaligned address,
 *   vec_widen_f16(p), vec_widen_bf16(p)             load, return a vector of f32
 *   vec_narrow_f16(p, v), vec_narrow_bf16(p, v)     round, store
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/reduce/reduce_impl.h"

/* s_x: one element, v_x: a vector of them; both may be read and written at any address. */
#define VEC_TYPES(suffix, type)                                         \
	typedef type s_##suffix __attribute__((aligned(1), may_alias)); \
	typedef type v_##suffix __attribute__((vector_size(VEC_BYTES), aligned(1), may_alias));

VEC_TYPES(i8, int8_t)
VEC_TYPES(u8, uint8_t)
VEC_TYPES(i16, int16_t)
VEC_TYPES(u16, uint16_t)
VEC_TYPES(i32, int32_t)
VEC_TYPES(u32, uint32_t)
VEC_TYPES(i64, int64_t)
VEC_TYPES(u64, uint64_t)
VEC_TYPES(f32, float)
VEC_TYPES(f64, double)

/*
 * Operations on the vectors x and y of type V; U is the unsigned integer vector of the same shape.
 * A comparison yields all ones or all zeros in a lane.
 */
#define VEC_SUM(V, U) (x + y)
#define VEC_PROD(V, U) (x * y)
#define VEC_BAND(V, U) (x & y)
#define VEC_BOR(V, U) (x | y)
#define VEC_BXOR(V, U) (x ^ y)
#define VEC_LAND(V, U) ((V)(x != 0) & (V)(y != 0) & 1)
#define VEC_LOR(V, U) (((V)(x != 0) | (V)(y != 0)) & 1)
#define VEC_LXOR(V, U) (((V)(x != 0) ^ (V)(y != 0)) & 1)
#define VEC_MIN(V, U) ((x & (V)(x < y)) | (y & ~(V)(x < y)))
#define VEC_MAX(V, U) ((x & (V)(x > y)) | (y & ~(V)(x > y)))
/*
 * The smaller of two ordered floats; where neither is smaller, the bits of both or-ed: equal values
 * stay what they are, a zero is negative if one is, and a NaN stays a NaN whatever is or-ed to it.
 * max(x, y) is -min(-x, -y).
 */
#define VEC_FMIN_OF(V, U, x, y) ((V)(((U)(x) & ~(U)((x) > (y))) | ((U)(y) & ~(U)((x) < (y)))))
#define VEC_FMIN(V, U) VEC_FMIN_OF(V, U, x, y)
#define VEC_FMAX(V, U) (-VEC_FMIN_OF(V, U, -x, -y))

/* out = a . b */
#define VEC_FOLD(name, suffix, unsigned_suffix, OP)                                             \
	static VEC_FN void name##_##suffix(void *out, const void *a, const void *b, size_t n)   \
	{                                                                                       \
		const size_t bytes = n * sizeof(s_##suffix);                                    \
		const size_t whole = bytes - bytes % VEC_BYTES;                                 \
		const size_t rest = bytes - whole;                                              \
                                                                                                \
		for (size_t i = 0; i < whole; i += VEC_BYTES) {                                 \
			v_##suffix x = *(const v_##suffix *)((const char *)a + i);              \
			v_##suffix y = *(const v_##suffix *)((const char *)b + i);              \
                                                                                                \
			*(v_##suffix *)((char *)out + i) = OP(v_##suffix, v_##unsigned_suffix); \
		}                                                                               \
		if (rest) {                                                                     \
			v_##suffix x = {0};                                                     \
			v_##suffix y = {0};                                                     \
                                                                                                \
			memcpy(&x, (const char *)a + whole, rest);                              \
			memcpy(&y, (const char *)b + whole, rest);                              \
			x = OP(v_##suffix, v_##unsigned_suffix);                                \
			memcpy((char *)out + whole, &x, rest);                                  \
		}                                                                               \
	}

/* The same for f16 and bf16: widened, combined in f32, rounded. */
#define VEC_FOLD_HALF(name, half, OP)                                                       \
	static VEC_FN void name##_##half(void *out, const void *a, const void *b, size_t n) \
	{                                                                                   \
		const size_t bytes = n * sizeof(uint16_t);                                  \
		const size_t whole = bytes - bytes % (VEC_BYTES / 2);                       \
		const size_t rest = bytes - whole;                                          \
                                                                                            \
		for (size_t i = 0; i < whole; i += VEC_BYTES / 2) {                         \
			v_f32 x = (v_f32)vec_widen_##half((const char *)a + i);             \
			v_f32 y = (v_f32)vec_widen_##half((const char *)b + i);             \
                                                                                            \
			vec_narrow_##half((char *)out + i, OP(v_f32, v_u32));               \
		}                                                                           \
		if (rest) {                                                                 \
			uint16_t p[VEC_BYTES / 4] = {0};                                    \
			uint16_t q[VEC_BYTES / 4] = {0};                                    \
			v_f32 x;                                                            \
			v_f32 y;                                                            \
                                                                                            \
			memcpy(p, (const char *)a + whole, rest);                           \
			memcpy(q, (const char *)b + whole, rest);                           \
			x = (v_f32)vec_widen_##half(p);                                     \
			y = (v_f32)vec_widen_##half(q);                                     \
			vec_narrow_##half(p, OP(v_f32, v_u32));                             \
			memcpy((char *)out + whole, p, rest);                               \
		}                                                                           \
	}

#define VEC_FOLD_INT(name, OP)       \
	VEC_FOLD(name, u8, u8, OP)   \
	VEC_FOLD(name, u16, u16, OP) \
	VEC_FOLD(name, u32, u32, OP) \
	VEC_FOLD(name, u64, u64, OP)
#define VEC_FOLD_SIGNED(name, OP)    \
	VEC_FOLD(name, i8, u8, OP)   \
	VEC_FOLD(name, i16, u16, OP) \
	VEC_FOLD(name, i32, u32, OP) \
	VEC_FOLD(name, i64, u64, OP)
#define VEC_FOLD_FLOAT(name, OP)     \
	VEC_FOLD(name, f32, u32, OP) \
	VEC_FOLD(name, f64, u64, OP) \
	VEC_FOLD_HALF(name, f16, OP) \
	VEC_FOLD_HALF(name, bf16, OP)

VEC_FOLD_INT(sum, VEC_SUM)
VEC_FOLD_INT(prod, VEC_PROD)
VEC_FOLD_INT(min, VEC_MIN)
VEC_FOLD_INT(max, VEC_MAX)
VEC_FOLD_INT(band, VEC_BAND)
VEC_FOLD_INT(bor, VEC_BOR)
VEC_FOLD_INT(bxor, VEC_BXOR)
VEC_FOLD_INT(land, VEC_LAND)
VEC_FOLD_INT(lor, VEC_LOR)
VEC_FOLD_INT(lxor, VEC_LXOR)
VEC_FOLD_SIGNED(min, VEC_MIN)
VEC_FOLD_SIGNED(max, VEC_MAX)
VEC_FOLD_FLOAT(sum, VEC_SUM)
VEC_FOLD_FLOAT(prod, VEC_PROD)
VEC_FOLD_FLOAT(min, VEC_FMIN)
VEC_FOLD_FLOAT(max, VEC_FMAX)

/* out = in . c, where c is the operand converted to one element by CONVERT */
#define VEC_UNARY(name, suffix, CONVERT, operator)                                                \
	static VEC_FN void name##_##suffix(void *out, const void *in, size_t n, uint64_t operand) \
	{                                                                                         \
		const size_t bytes = n * sizeof(s_##suffix);                                      \
		const size_t whole = bytes - bytes % VEC_BYTES;                                   \
		const size_t rest = bytes - whole;                                                \
		const s_##suffix c = (s_##suffix)CONVERT(operand);                                \
                                                                                                  \
		for (size_t i = 0; i < whole; i += VEC_BYTES) {                                   \
			v_##suffix x = *(const v_##suffix *)((const char *)in + i);               \
                                                                                                  \
			*(v_##suffix *)((char *)out + i) = x operator c;                          \
		}                                                                                 \
		if (rest) {                                                                       \
			v_##suffix x = {0};                                                       \
                                                                                                  \
			memcpy(&x, (const char *)in + whole, rest);                               \
			x = x operator c;                                                         \
			memcpy((char *)out + whole, &x, rest);                                    \
		}                                                                                 \
	}

static inline double vec_double_from_bits(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

VEC_UNARY(scale, u8, , *)
VEC_UNARY(scale, u16, , *)
VEC_UNARY(scale, u32, , *)
VEC_UNARY(scale, u64, , *)
VEC_UNARY(scale, f32, vec_double_from_bits, *)
VEC_UNARY(scale, f64, vec_double_from_bits, *)
VEC_UNARY(divide, f32, , /)
VEC_UNARY(divide, f64, , /)

/*
 * Integers of up to 32 bits are divided as doubles, which the auto-vectoriser can do: the quotient
 * is off by less than 2^-20 / divisor, but at least 1 / divisor away from the next integer unless
 * it is one, so truncation finds the right one. wide_type: what a double is converted to first.
 */
#define VEC_DIVIDE_NARROW(suffix, wide_type)                                                      \
	static VEC_FN void divide_##suffix(void *out, const void *in, size_t n, uint64_t operand) \
	{                                                                                         \
		const s_##suffix *from = in;                                                      \
		s_##suffix *to = out;                                                             \
		const double divisor = (double)operand;                                           \
                                                                                                  \
		for (size_t i = 0; i < n; i++) {                                                  \
			to[i] = (s_##suffix)(wide_type)((double)from[i] / divisor);               \
		}                                                                                 \
	}

VEC_DIVIDE_NARROW(i8, int32_t)
VEC_DIVIDE_NARROW(u8, int32_t)
VEC_DIVIDE_NARROW(i16, int32_t)
VEC_DIVIDE_NARROW(u16, int32_t)
VEC_DIVIDE_NARROW(i32, int32_t)
VEC_DIVIDE_NARROW(u32, uint32_t)

static VEC_FN void divide_u64(void *out, const void *in, size_t n, uint64_t operand)
{
	const s_u64 *from = in;
	s_u64 *to = out;

	for (size_t i = 0; i < n; i++) {
		to[i] = from[i] / operand;
	}
}

static VEC_FN void divide_i64(void *out, const void *in, size_t n, uint64_t operand)
{
	const s_u64 *from = in;
	s_u64 *to = out;

	/* By magnitude: right for the smallest value and for divisors of 2^63 and above too. */
	for (size_t i = 0; i < n; i++) {
		uint64_t sign = from[i] >> 63;
		uint64_t quotient = (sign ? -from[i] : from[i]) / operand;

		to[i] = sign ? -quotient : quotient;
	}
}

#define VEC_HALF(half)                                                                       \
	static VEC_FN void widen_##half(void *out, const void *in, size_t n)                 \
	{                                                                                    \
		const size_t lanes = VEC_BYTES / sizeof(float);                              \
		const uint8_t *from = in;                                                    \
		uint8_t *to = out;                                                           \
		uint16_t last[VEC_BYTES / 4] = {0};                                          \
		v_f32 x;                                                                     \
                                                                                             \
		for (; n >= lanes; n -= lanes) {                                             \
			*(v_f32 *)to = (v_f32)vec_widen_##half(from);                        \
			from += VEC_BYTES / 2;                                               \
			to += VEC_BYTES;                                                     \
		}                                                                            \
		if (n) {                                                                     \
			memcpy(last, from, n * sizeof(uint16_t));                            \
			x = (v_f32)vec_widen_##half(last);                                   \
			memcpy(to, &x, n * sizeof(float));                                   \
		}                                                                            \
	}                                                                                    \
                                                                                             \
	static VEC_FN void narrow_##half(void *out, const void *in, size_t n)                \
	{                                                                                    \
		const size_t lanes = VEC_BYTES / sizeof(float);                              \
		const uint8_t *from = in;                                                    \
		uint8_t *to = out;                                                           \
		uint16_t last[VEC_BYTES / 4];                                                \
		v_f32 x = {0};                                                               \
                                                                                             \
		for (; n >= lanes; n -= lanes) {                                             \
			vec_narrow_##half(to, *(const v_f32 *)from);                         \
			from += VEC_BYTES;                                                   \
			to += VEC_BYTES / 2;                                                 \
		}                                                                            \
		if (n) {                                                                     \
			memcpy(&x, from, n * sizeof(float));                                 \
			vec_narrow_##half(last, x);                                          \
			memcpy(to, last, n * sizeof(uint16_t));                              \
		}                                                                            \
	}                                                                                    \
                                                                                             \
	static VEC_FN void add_##half(void *out, const void *a, const void *b, size_t n)     \
	{                                                                                    \
		const size_t lanes = VEC_BYTES / sizeof(float);                              \
		const uint8_t *from = a;                                                     \
		const uint8_t *term = b;                                                     \
		uint8_t *to = out;                                                           \
		uint16_t last[VEC_BYTES / 4] = {0};                                          \
		v_f32 x = {0};                                                               \
                                                                                             \
		for (; n >= lanes; n -= lanes) {                                             \
			*(v_f32 *)to = *(const v_f32 *)from + (v_f32)vec_widen_##half(term); \
			from += VEC_BYTES;                                                   \
			term += VEC_BYTES / 2;                                               \
			to += VEC_BYTES;                                                     \
		}                                                                            \
		if (n) {                                                                     \
			memcpy(&x, from, n * sizeof(float));                                 \
			memcpy(last, term, n * sizeof(uint16_t));                            \
			x = x + (v_f32)vec_widen_##half(last);                               \
			memcpy(to, &x, n * sizeof(float));                                   \
		}                                                                            \
	}

VEC_HALF(f16)
VEC_HALF(bf16)

/* A row of the table: operations that ignore the sign, those that do not, floats. */
#define VEC_ROW_INT(name)                                                             \
	[DTYPE_I8] = name##_u8, [DTYPE_U8] = name##_u8, [DTYPE_I16] = name##_u16,     \
	[DTYPE_U16] = name##_u16, [DTYPE_I32] = name##_u32, [DTYPE_U32] = name##_u32, \
	[DTYPE_I64] = name##_u64, [DTYPE_U64] = name##_u64
#define VEC_ROW_SIGNED(name)                                                          \
	[DTYPE_I8] = name##_i8, [DTYPE_U8] = name##_u8, [DTYPE_I16] = name##_i16,     \
	[DTYPE_U16] = name##_u16, [DTYPE_I32] = name##_i32, [DTYPE_U32] = name##_u32, \
	[DTYPE_I64] = name##_i64, [DTYPE_U64] = name##_u64
#define VEC_ROW_WIDE(name) [DTYPE_F32] = name##_f32, [DTYPE_F64] = name##_f64
#define VEC_ROW_HALF(name) [DTYPE_F16] = name##_f16, [DTYPE_BF16] = name##_bf16

const struct reduce_kernels VEC_KERNELS = {
	.fold =
		{
			[REDOP_SUM] = {VEC_ROW_INT(sum), VEC_ROW_HALF(sum), VEC_ROW_WIDE(sum)},
			[REDOP_PROD] = {VEC_ROW_INT(prod), VEC_ROW_HALF(prod), VEC_ROW_WIDE(prod)},
			[REDOP_MIN] = {VEC_ROW_SIGNED(min), VEC_ROW_HALF(min), VEC_ROW_WIDE(min)},
			[REDOP_MAX] = {VEC_ROW_SIGNED(max), VEC_ROW_HALF(max), VEC_ROW_WIDE(max)},
			[REDOP_BAND] = {VEC_ROW_INT(band)},
			[REDOP_BOR] = {VEC_ROW_INT(bor)},
			[REDOP_BXOR] = {VEC_ROW_INT(bxor)},
			[REDOP_LAND] = {VEC_ROW_INT(land)},
			[REDOP_LOR] = {VEC_ROW_INT(lor)},
			[REDOP_LXOR] = {VEC_ROW_INT(lxor)},
		},
	.scale = {VEC_ROW_INT(scale), VEC_ROW_WIDE(scale)},
	.divide = {VEC_ROW_SIGNED(divide), VEC_ROW_WIDE(divide)},
	.widen = {VEC_ROW_HALF(widen)},
	.narrow = {VEC_ROW_HALF(narrow)},
	.add = {VEC_ROW_HALF(add)},
};
