/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of telemetry/counters
 */
#include <criterion/criterion.h>
#include <string.h>

#include "telemetry/counters.h"

Test(counters, rows_find_their_values)
{
	struct comm_view *v;
	uint64_t found = 0;

	cr_assert_eq(comm_view_new(3, &v), 0);
	cr_assert_eq(v->nlocal, 3);
	cr_assert_eq(counter_get(&v->ranks[2].posted), 0);
	counter_add(&v->bytes_sent, 5);
	counter_add(&v->bytes_sent, 7);
	counter_set(&v->ranks[2].posted, 9);
	cr_assert_eq(counter_get(&v->ranks[2].posted), 9);
	for (size_t i = 0; i < counter_comm_nrows; i++) {
		cr_assert_gt(strlen(counter_comm_rows[i].help), 10);
		if (strcmp(counter_comm_rows[i].name, "bytes_sent") == 0) {
			found = counter_row_get(&counter_comm_rows[i], v);
		}
	}
	cr_assert_eq(found, 12);
	cr_assert_gt(counter_thread_nrows, 0);
	cr_assert_null(comm_view_free(v));
	comm_view_free(NULL);
}
