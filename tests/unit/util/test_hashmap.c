/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of util/hashmap: against a plain array as the model
 */
#include <criterion/criterion.h>

#include "util/hashmap.h"

#define KEYS 512

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

Test(hashmap, empty)
{
	struct hashmap m;
	size_t iter = 0;

	hashmap_init(&m);
	cr_assert_null(hashmap_get(&m, 7));
	cr_assert_null(hashmap_remove(&m, 7));
	cr_assert_null(hashmap_next(&m, &iter));
	cr_assert_null(hashmap_any(&m));
	hashmap_deinit(&m);
	hashmap_deinit(&m);
}

Test(hashmap, like_a_model)
{
	static int values[KEYS];
	void *model[KEYS] = {0};
	struct hashmap m;
	uint32_t state = 42;
	size_t count = 0, iter = 0, seen = 0;

	hashmap_init(&m);
	for (int i = 0; i < 200000; i++) {
		size_t k = next_random(&state) % KEYS;

		switch (next_random(&state) % 3) {
		case 0:
			cr_assert_eq(hashmap_put(&m, k, &values[k]),
				     model[k] ? HASHMAP_E_EXISTS : 0);
			count += model[k] ? 0 : 1;
			model[k] = &values[k];
			break;
		case 1:
			cr_assert_eq(hashmap_remove(&m, k), model[k]);
			count -= model[k] ? 1 : 0;
			model[k] = NULL;
			break;
		default:
			cr_assert_eq(hashmap_get(&m, k), model[k]);
		}
		cr_assert_eq(hashmap_count(&m), count);
	}
	while (hashmap_next(&m, &iter)) {
		seen++;
	}
	cr_assert_eq(seen, count);
	hashmap_deinit(&m);
}

Test(hashmap, bytes16)
{
	uint8_t a[16] = {1, 2, 3}, b[16] = {1, 2, 3};
	struct hashmap m;
	int x, y;

	b[15] = 1;
	hashmap_init(&m);
	cr_assert_eq(hashmap_put16(&m, a, &x), 0);
	cr_assert_eq(hashmap_put16(&m, b, &y), 0);
	cr_assert_eq(hashmap_put16(&m, b, &x), HASHMAP_E_EXISTS);
	cr_assert_eq(hashmap_get16(&m, a), &x);
	cr_assert_eq(hashmap_remove16(&m, b), &y);
	cr_assert_null(hashmap_get16(&m, b));
	cr_assert_eq(hashmap_any(&m), &x);
	hashmap_deinit(&m);
}
