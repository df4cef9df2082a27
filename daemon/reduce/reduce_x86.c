/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Kernel levels of x86-64: AVX-512, AVX2, SSE2
 *
 * __builtin_cpu_supports() asks the operating system's part (XCR0) too; it has no name for F16C in
 * every compiler, so that comes from cpuid.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <cpuid.h>

#include "daemon/reduce/reduce_impl.h"
#include "proto/base.h"

static bool x86_has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool x86_has_avx2(void)
{
	unsigned int eax;
	unsigned int ebx;
	unsigned int ecx;
	unsigned int edx;

	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
	       (ecx & bit_F16C);
}

static bool x86_has_sse2(void)
{
	return true;
}

const struct reduce_level reduce_levels[] = {
	{"avx512", &reduce_kernels_avx512, x86_has_avx512},
	{"avx2", &reduce_kernels_avx2, x86_has_avx2},
	{"sse2", &reduce_kernels_base, x86_has_sse2},
};
const size_t reduce_nlevels = ARRAY_SIZE(reduce_levels);
