/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * The engine and those who come too late, or never
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <sched.h>

#include "lab.h"

static const uint32_t two_by_one[] = {0, 1};

static void expect_failure(struct lab *lab, enum status status)
{
	for (int i = 0; i < 5000000 && !lab->failures; i++) {
		lab_pump(lab);
		sched_yield();
	}
	cr_assert_gt(lab->failures, 0, "nobody notices");
	cr_assert_eq(lab->failure.status, status);
}

/* Fixes: a host whose count was 0 finished at once and dropped what came, the others just waited.
 */
static void count_zero(uint64_t others)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, 1 << 20, NULL);
	struct shm_desc none = {.kind = COLL_ALLREDUCE, .dtype = DTYPE_I64};
	struct shm_desc some = {.kind = COLL_ALLREDUCE,
				.dtype = DTYPE_I64,
				.count = others,
				.send_buf = 1,
				.recv_buf = 1};

	cr_assert_eq(lab_wait(lab, 0, lab_post(lab, 0, &none)), STATUS_OK);
	lab_post(lab, 1, &some);
	expect_failure(lab, STATUS_MISMATCH);
	cr_assert_eq(lab->failure.a.count, 0);
	cr_assert_eq(lab->failure.b.count, others);
	lab_free(lab);
}

Test(engine_late, count_zero_on_one_host_small, .timeout = 60)
{
	count_zero(10);
}

Test(engine_late, count_zero_on_one_host_large, .timeout = 60)
{
	count_zero(100000);
}

/* Fixes: sends and receives had no time-out at all. */
Test(engine_late, receive_without_a_send, .timeout = 60)
{
	struct lab *lab = lab_new_timed(two_by_one, 2, 2, 1 << 20, NULL, 50, 300);
	struct shm_desc d = {
		.kind = COLL_RECV, .dtype = DTYPE_I64, .count = 5, .root = 1, .recv_buf = 1};
	uint32_t t = lab_post(lab, 0, &d);

	cr_assert_eq(lab_wait(lab, 0, t), STATUS_TIMEOUT);
	expect_failure(lab, STATUS_TIMEOUT);
	cr_assert_eq(lab->failure.cause, ENGINE_FAIL_PARTNER);
	cr_assert_eq(lab->failure.rank_a, 0);
	cr_assert_eq(lab->failure.rank_b, 1);
	lab_free(lab);
}
