/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unit tests: layout of ranks on hosts
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>

#include "coll/coll.h"
#include "proto/base.h"
#include "proto/limits.h"

Test(layout, groups_ranks_by_host_in_order)
{
	static const uint32_t host_of[] = {2, 0, 2, 1, 0, 2};
	static const uint32_t first[] = {0, 2, 3, 6};
	static const uint32_t by_host[] = {1, 4, 3, 0, 2, 5};
	static const uint32_t local_of[] = {0, 0, 1, 0, 1, 2};
	struct coll_layout *l = NULL;

	cr_assert_eq(coll_layout_new(host_of, 6, 3, &l), 0);
	cr_assert_eq(l->nranks, 6);
	cr_assert_eq(l->nhosts, 3);
	cr_assert_arr_eq(l->host_of, host_of, sizeof(host_of));
	cr_assert_arr_eq(l->host_first, first, sizeof(first));
	cr_assert_arr_eq(l->by_host, by_host, sizeof(by_host));
	cr_assert_arr_eq(l->local_of, local_of, sizeof(local_of));
	cr_assert_eq(coll_nlocal(l, 2), 3);
	cr_assert_null(coll_layout_free(l));
}

Test(layout, refuses_what_is_none)
{
	static const uint32_t good[] = {0, 1, 0};
	static const uint32_t gap[] = {0, 2, 2};
	struct coll_layout *l = NULL;

	cr_assert_eq(coll_layout_new(good, 0, 0, &l), -EINVAL);
	cr_assert_eq(coll_layout_new(good, 3, 0, &l), -EINVAL);
	cr_assert_eq(coll_layout_new(good, 3, 4, &l), -EINVAL, "more hosts than ranks");
	cr_assert_eq(coll_layout_new(good, 3, 1, &l), -EINVAL, "host out of range");
	cr_assert_eq(coll_layout_new(gap, 3, 3, &l), -EINVAL, "a host without ranks");
	cr_assert_null(l);
	cr_assert_null(coll_layout_free(NULL));
}

Test(layout, holds_the_limit_of_ranks_a_host)
{
	static uint32_t host_of[LIMIT_LOCAL_RANKS + 1];
	struct coll_layout *l = NULL;

	cr_assert_eq(coll_layout_new(host_of, LIMIT_LOCAL_RANKS, 1, &l), 0);
	coll_layout_free(l);
	l = NULL;
	cr_assert_eq(coll_layout_new(host_of, LIMIT_LOCAL_RANKS + 1, 1, &l), -EINVAL);
	cr_assert_null(l);
}
