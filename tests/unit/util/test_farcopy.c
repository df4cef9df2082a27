/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "util/farcopy.h"

#define ROOM 12288

/* Every alignment of both ends against memcpy(), with what lies around it. */
Test(farcopy, copies_exactly_the_range)
{
	static const size_t sizes[] = {0, 1, 63, 64, 4095, 4096, 4097, 4159, 8191};
	static uint8_t src[ROOM], dst[ROOM], want[ROOM];

	for (size_t i = 0; i < ROOM; i++) {
		src[i] = (uint8_t)(i * 7 + i / 251);
	}
	for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
		for (size_t to = 0; to < 130; to += 3) {
			size_t from = (to * 5 + s) % 97;

			memset(dst, 0xee, ROOM);
			memset(want, 0xee, ROOM);
			memcpy(want + to, src + from, sizes[s]);
			farcopy(dst + to, src + from, sizes[s]);
			cr_assert_arr_eq(dst, want, ROOM, "size %zu, dst %zu, src %zu", sizes[s],
					 to, from);
		}
	}
}

/* A client that lies can make ranges overlap: garbage inside the range is its own affair. */
Test(farcopy, overlap_touches_nothing_else)
{
	static uint8_t buf[ROOM];

	for (size_t off = 1; off < 200; off += 13) {
		memset(buf, 0xee, ROOM);
		memset(buf + 1024, 1, 8192);
		farcopy(buf + 1024 + off, buf + 1024, 8192 - off);
		for (size_t i = 0; i < ROOM; i++) {
			cr_assert_eq(buf[i], i >= 1024 && i < 1024 + 8192 ? 1 : 0xee, "at %zu", i);
		}
	}
}

Test(farcopy, threshold_is_of_a_cache)
{
	cr_assert_geq(farcopy_threshold(), 64u << 10);
	cr_assert_leq(farcopy_threshold(), UINT64_C(4) << 30);
}
