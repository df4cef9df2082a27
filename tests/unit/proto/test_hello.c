/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of hello: any two version ranges agree on one version or both learn why not
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>

#include "proto/base.h"
#include "proto/hello.h"

static int meet(struct hello ours, struct hello theirs, uint16_t *ret_version)
{
	uint8_t buf[HELLO_SIZE];
	struct hello seen;
	int r;

	hello_encode(buf, HELLO_MAGIC_CLIENT, &theirs);
	r = hello_decode(buf, HELLO_MAGIC_CLIENT, &ours, &seen, ret_version);
	cr_assert_eq(seen.min, theirs.min);
	cr_assert_eq(seen.max, theirs.max);
	cr_assert_eq(seen.flags, theirs.flags);
	return r;
}

Test(hello, layout)
{
	static const uint8_t expect[HELLO_SIZE] = {'R',	 'O',  'C',  'E',  'C',	 'O',  'M',  'M',
						   0x02, 0x01, 0x04, 0x03, 0x08, 0x07, 0x06, 0x05};
	const struct hello hello = {.min = 0x0102, .max = 0x0304, .flags = 0x05060708};
	uint8_t buf[HELLO_SIZE];

	memset(buf, 0xff, sizeof(buf));
	hello_encode(buf, HELLO_MAGIC_CLIENT, &hello);
	cr_assert_arr_eq(buf, expect, HELLO_SIZE);
}

Test(hello, ranges)
{
	static const int shifts[] = {-100, -2, -1, 0, 1, 2, 100};
	const struct hello ours = {.min = 200, .max = 201};

	for (size_t i = 0; i < ARRAY_SIZE(shifts); i++) {
		for (unsigned int width = 0; width <= 150; width++) {
			struct hello theirs = {.min = (uint16_t)(200 + shifts[i])};
			uint16_t a = 0, b = 0;
			int r;

			theirs.max = (uint16_t)(theirs.min + width);
			r = meet(ours, theirs, &a);
			/* Both ends come to the same end. */
			cr_assert_eq(meet(theirs, ours, &b), r);
			cr_assert_eq(a, b);
			if (theirs.min > ours.max || theirs.max < ours.min) {
				cr_assert_eq(r, HELLO_E_VERSION);
				cr_assert_eq(a, 0, "version written on failure");
			} else {
				cr_assert_eq(r, 0);
				cr_assert_eq(a, MIN(ours.max, theirs.max));
			}
		}
	}
}

Test(hello, extremes)
{
	uint16_t v = 0;

	cr_assert_eq(meet((struct hello){1, 1}, (struct hello){0, UINT16_MAX}, &v), 0);
	cr_assert_eq(v, 1);
	cr_assert_eq(meet((struct hello){1, 1}, (struct hello){0, 0}, &v), HELLO_E_VERSION);
	cr_assert_eq(meet((struct hello){1, 9}, (struct hello){7, 3}, &v), HELLO_E_VERSION);
	cr_assert_eq(meet((struct hello){UINT16_MAX, UINT16_MAX},
			  (struct hello){UINT16_MAX, UINT16_MAX}, &v),
		     0);
	cr_assert_eq(v, UINT16_MAX);
}

Test(hello, wrong_magic)
{
	const struct hello hello = {.min = 1, .max = 1};
	uint8_t buf[HELLO_SIZE];
	struct hello theirs;
	uint16_t v;

	hello_encode(buf, HELLO_MAGIC_PEER, &hello);
	cr_assert_eq(hello_decode(buf, HELLO_MAGIC_CLIENT, &hello, &theirs, &v), HELLO_E_MAGIC);
	cr_assert_eq(hello_decode(buf, HELLO_MAGIC_PEER, &hello, &theirs, &v), 0);
	for (unsigned int i = 0; i < 8; i++) {
		hello_encode(buf, HELLO_MAGIC_CLIENT, &hello);
		buf[i] ^= 0x20;
		cr_assert_eq(hello_decode(buf, HELLO_MAGIC_CLIENT, &hello, &theirs, &v),
			     HELLO_E_MAGIC);
	}
}

Test(hello, unknown_is_ignored)
{
	const struct hello hello = {.min = 1, .max = 1, .flags = UINT32_MAX};
	uint8_t buf[HELLO_SIZE];
	struct hello theirs;
	uint16_t v = 0;

	hello_encode(buf, HELLO_MAGIC_CLIENT, &hello);
	memset(buf + 16, 0xff, 16);
	cr_assert_eq(hello_decode(buf, HELLO_MAGIC_CLIENT, &hello, &theirs, &v), 0);
	cr_assert_eq(v, 1);
	cr_assert_eq(theirs.flags, UINT32_MAX);
}
