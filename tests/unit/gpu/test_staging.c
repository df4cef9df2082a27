/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Staging memory: taken, given back, bounded by what it is for
 *
 * Thread: the test's      Owns: the memory      Locks: none
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/staging.h"
#include "proto/base.h"

#define MIB (UINT64_C(1) << 20)

Test(staging, lowest_first_and_all_of_it)
{
	struct staging s;
	uint8_t *a, *b, *c;

	cr_assert_eq(staging_init(&s, 64 * MIB, 0), 0);
	cr_assert_eq(s.size, 64 * MIB);
	a = staging_take(&s, 1, GPU_STAGING_SEND);
	b = staging_take(&s, STAGING_UNIT + 1, GPU_STAGING_SEND);
	c = staging_take(&s, 16 * MIB, GPU_STAGING_SEND);
	cr_assert_eq(a, s.base);
	cr_assert_eq(b, a + STAGING_UNIT);
	cr_assert_eq(c, b + 2 * STAGING_UNIT);
	memset(c, 1, 16 * MIB);
	staging_put(&s, b, STAGING_UNIT + 1, GPU_STAGING_SEND);
	cr_assert_eq(staging_take(&s, 2 * STAGING_UNIT, GPU_STAGING_SEND), b, "the hole");
	staging_put(&s, a, 1, GPU_STAGING_SEND);
	cr_assert_eq(staging_take(&s, 2 * STAGING_UNIT, GPU_STAGING_SEND), c + 16 * MIB,
		     "too small a hole");
	cr_assert_null(staging_take(&s, 64 * MIB, GPU_STAGING_SEND));
	cr_assert_eq(atomic_load(&s.used), 16 * MIB + 4 * STAGING_UNIT);
	staging_deinit(&s);
}

/* Receives that wait leave room for collectives, both for sends. */
Test(staging, nobody_takes_it_all)
{
	struct staging s;
	uint8_t *at[16];
	int n = 0;

	cr_assert_eq(staging_init(&s, 64 * MIB, -1), 0);
	cr_assert_eq(staging_limit(&s, GPU_STAGING_RECV), 32 * MIB);
	cr_assert_eq(staging_limit(&s, GPU_STAGING_SEND), 64 * MIB);
	while ((at[n] = staging_take(&s, 8 * MIB, GPU_STAGING_RECV))) {
		n++;
	}
	cr_assert_eq(n, 4, "a half");
	cr_assert_null(staging_take(&s, MIB, GPU_STAGING_MORE));
	at[4] = staging_take(&s, 16 * MIB, GPU_STAGING_RUN);
	cr_assert(at[4]);
	cr_assert_null(staging_take(&s, MIB, GPU_STAGING_RUN));
	at[5] = staging_take(&s, 16 * MIB, GPU_STAGING_SEND);
	cr_assert(at[5], "a send of the largest size");
	cr_assert_null(staging_take(&s, 1, GPU_STAGING_SEND));
	staging_put(&s, at[5], 16 * MIB, GPU_STAGING_SEND);
	staging_put(&s, at[4], 16 * MIB, GPU_STAGING_RUN);
	for (int i = 0; i < 4; i++) {
		staging_put(&s, at[i], 8 * MIB, GPU_STAGING_RECV);
	}
	cr_assert_eq(s.recv + s.run, 0);
	cr_assert_eq(atomic_load(&s.used), 0);
	cr_assert_eq(atomic_load(&s.peak), 64 * MIB);
	staging_deinit(&s);
}

/* Any order; no two pieces overlap, and everything comes back. */
Test(staging, at_random)
{
	struct {
		uint8_t *at;
		uint64_t size;
	} held[200] = {{0}};
	struct staging s;
	unsigned int seed = 7;

	cr_assert_eq(staging_init(&s, 32 * MIB, -1), 0);
	for (int i = 0; i < 100000; i++) {
		int k = rand_r(&seed) % (int)ARRAY_SIZE(held);
		uint64_t size = (uint64_t)(rand_r(&seed) % 20) * 30000 + 1;

		if (held[k].at) {
			cr_assert_eq(held[k].at[0], k & 255);
			cr_assert_eq(held[k].at[held[k].size - 1], k & 255);
			staging_put(&s, held[k].at, held[k].size, GPU_STAGING_SEND);
			held[k].at = NULL;
			continue;
		}
		held[k].at = staging_take(&s, size, GPU_STAGING_SEND);
		held[k].size = size;
		if (held[k].at) {
			held[k].at[0] = (uint8_t)k;
			held[k].at[size - 1] = (uint8_t)k;
		}
	}
	for (size_t k = 0; k < ARRAY_SIZE(held); k++) {
		if (held[k].at) {
			staging_put(&s, held[k].at, held[k].size, GPU_STAGING_SEND);
		}
	}
	cr_assert_eq(atomic_load(&s.used), 0);
	cr_assert_eq(staging_take(&s, 32 * MIB, GPU_STAGING_SEND), s.base, "nothing is in pieces");
	staging_deinit(&s);
}
