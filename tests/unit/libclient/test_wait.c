/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Waiting: what a condition that does something is asked, and how often
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/wait.h"

static struct fake fake;
static struct roce_client *client;

static void setup(void)
{
	fake_start(&fake);
	client = test_connect(&fake);
}

static void teardown(void)
{
	roce_disconnect(client);
	fake_stop(&fake);
}

TestSuite(wait, .init = setup, .fini = teardown, .timeout = 60);

enum moment { SPINNING, BEFORE_SLEEP, AFTER_SLEEP };

struct asked {
	enum moment moment; /* when it becomes true */
	bool slept;
	unsigned int done; /* how often it has become true */
};

/* Stands for one that posts: it must not be asked again. */
static bool becomes_true(void *arg)
{
	struct asked *a = arg;
	bool asleep = atomic_load(&client->shm->waiters) > 0, now;

	now = a->moment == SPINNING	  ? !asleep
	      : a->moment == BEFORE_SLEEP ? asleep
					  : a->slept && !asleep;
	a->slept |= asleep;
	a->done += now;
	return now;
}

Test(wait, what_is_done_is_done_once)
{
	for (enum moment m = SPINNING; m <= AFTER_SLEEP; m++) {
		struct asked a = {.moment = m};

		cr_assert_eq(wait_until(client, becomes_true, &a, 5000, WAIT_SLICE_SHORT_NS), 0);
		cr_assert_eq(a.done, 1, "moment %d: %u times", (int)m, a.done);
		cr_assert_eq(atomic_load(&client->shm->waiters), 0);
	}
}

/* A window that opens at any moment takes one operation, not two. */
Test(wait, a_full_window_takes_one_at_a_time)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	uint64_t n = 4 * LIMIT_COMM_WINDOW;
	float *shared;

	fake_set(&fake, run, true);
	ok(roce_mem_alloc(client, 4096, 0, (void **)&shared));
	for (uint64_t i = 0; i < n; i++) {
		struct roce_request *request;

		ok(roce_iallreduce(shared, shared, 1, ROCE_F32, ROCE_SUM, comm, &request));
		cr_assert_eq(comm->seq, i + 1);
	}
}
