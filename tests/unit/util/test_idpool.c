/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of util/idpool
 */
#include <criterion/criterion.h>

#include "util/idpool.h"

Test(idpool, lowest_first_up_to_max)
{
	struct idpool p;
	uint32_t id;

	idpool_init(&p, 200);
	for (uint32_t i = 1; i <= 200; i++) {
		cr_assert_eq(idpool_take(&p, &id), 0);
		cr_assert_eq(id, i);
	}
	cr_assert_eq(idpool_take(&p, &id), IDPOOL_E_FULL);
	idpool_release(&p, 131);
	idpool_release(&p, 3);
	cr_assert_not(idpool_taken(&p, 3));
	cr_assert_eq(idpool_take(&p, &id), 0);
	cr_assert_eq(id, 3);
	cr_assert_eq(idpool_take(&p, &id), 0);
	cr_assert_eq(id, 131);
	cr_assert_eq(idpool_take(&p, &id), IDPOOL_E_FULL);
	idpool_deinit(&p);
}

Test(idpool, answers_for_any_id)
{
	struct idpool p;

	idpool_init(&p, 10);
	cr_assert_not(idpool_taken(&p, 0));
	cr_assert_not(idpool_taken(&p, 1));
	cr_assert_not(idpool_taken(&p, UINT32_MAX));
	idpool_deinit(&p);
}
