/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of util/quota
 */
#include <criterion/criterion.h>
#include <string.h>

#include "util/quota.h"

Test(quota, charge_and_release)
{
	struct quota_charge a = {0}, b = {0};
	struct quota q;

	quota_init(&q, "max_bytes", 100);
	cr_assert_eq(quota_charge(&q, 60, &a), 0);
	cr_assert_eq(quota_charge(&q, 41, &b), QUOTA_E_EXCEEDED);
	cr_assert_null(b.quota);
	cr_assert_eq(quota_charge(&q, UINT64_MAX, &b), QUOTA_E_EXCEEDED);
	cr_assert_eq(quota_charge(&q, 40, &b), 0);
	cr_assert_eq(quota_used(&q), 100);
	quota_release(&a);
	quota_release(&a);
	cr_assert_eq(quota_used(&q), 40);
	quota_release(&b);
	quota_deinit(&q);
}

Test(quota, limit_lowered_below_use)
{
	struct quota_charge a = {0}, b = {0};
	struct quota q;

	quota_init(&q, "max_bytes", 100);
	cr_assert_eq(quota_charge(&q, 60, &a), 0);
	quota_set_limit(&q, 50);
	cr_assert_eq(quota_charge(&q, 0, &b), QUOTA_E_EXCEEDED);
	quota_set_limit(&q, QUOTA_UNLIMITED);
	cr_assert_eq(quota_charge(&q, UINT64_MAX - 60, &b), 0);
	quota_release(&b);
	quota_release(&a);
	quota_deinit(&q);
}

Test(quota, says_used_limit_and_key)
{
	char text[256];
	struct quota q;

	quota_init(&q, "max_buffers", 4);
	quota_describe(&q, "alice", 9, text, sizeof(text));
	cr_assert_str_eq(text, "max_buffers of tenant alice: 0 of 4 used, 9 more asked for; free "
			       "some, or raise max_buffers in [tenant alice]");
}
