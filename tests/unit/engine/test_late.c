/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * The engine and those who come too late, or never, or are too far away
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <string.h>

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

/* Four hosts in a ring: what needs neighbours only works, anything else says why it cannot. */
static struct lab *far_away(const struct shm_desc *d, enum status want, enum status failure)
{
	static const uint32_t four_by_one[] = {0, 1, 2, 3};
	struct lab *lab = lab_new_ring(four_by_one, 4, 4, 1 << 20, "allreduce:ring");
	uint32_t tickets[4];

	for (uint32_t r = 0; r < 4; r++) {
		struct shm_desc mine = *d;

		tickets[r] = lab_post(lab, r, &mine);
	}
	if (failure != STATUS_OK) {
		expect_failure(lab, failure);
		cr_assert_eq(lab->failure.cause, ENGINE_FAIL_INVALID);
		cr_assert_not_null(strstr(lab->failure.reason, "link"));
	}
	for (uint32_t r = 0; r < 4; r++) {
		cr_assert_eq(lab_wait(lab, r, tickets[r]), (int)want, "rank %u", r);
	}
	return lab;
}

Test(engine_late, ring_on_a_ring, .timeout = 60)
{
	struct shm_desc d = {.kind = COLL_ALLREDUCE,
			     .dtype = DTYPE_I64,
			     .count = 1000,
			     .send_buf = 1,
			     .recv_buf = 1};

	lab_free(far_away(&d, STATUS_OK, STATUS_OK));
}

Test(engine_late, all_to_all_on_a_ring, .timeout = 60)
{
	struct shm_desc d = {.kind = COLL_ALLTOALL,
			     .dtype = DTYPE_I64,
			     .count = 100,
			     .send_buf = 1,
			     .recv_buf = 1,
			     .recv_off = 1 << 19};

	lab_free(far_away(&d, STATUS_UNSUPPORTED, STATUS_UNSUPPORTED));
}

Test(engine_late, send_across_a_ring, .timeout = 60)
{
	static const uint32_t four_by_one[] = {0, 1, 2, 3};
	struct lab *lab = lab_new_ring(four_by_one, 4, 4, 1 << 20, NULL);
	struct shm_desc d = {
		.kind = COLL_SEND, .dtype = DTYPE_I64, .count = 5, .root = 2, .send_buf = 1};

	cr_assert_eq(lab_wait(lab, 0, lab_post(lab, 0, &d)), STATUS_INVALID);
	expect_failure(lab, STATUS_INVALID);
	cr_assert_not_null(strstr(lab->failure.reason, "link"));
	lab_free(lab);
}

/* Fixes: a rank that posts while a stopping daemon lets it go was told of no such communicator. */
Test(engine_late, post_after_failure_and_detach, .timeout = 60)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, 1 << 20, NULL);
	struct shm_desc d = {.kind = COLL_BARRIER};

	engine_comm_fail(lab->engines[0], lab->comms[0], STATUS_SHUTDOWN);
	engine_comm_detach(lab->engines[0], lab->comms[0], 0, NULL, NULL);
	cr_assert_eq(lab_wait(lab, 0, lab_post(lab, 0, &d)), STATUS_SHUTDOWN);
	lab_free(lab);
}
