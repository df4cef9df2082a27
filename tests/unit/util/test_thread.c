/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of util/thread, util/clock, util/ref and util/log's rate limit
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>

#include "util/clock.h"
#include "util/log.h"
#include "util/ref.h"
#include "util/thread.h"

struct seen {
	bool blocked;
	char name[16];
	int cpus;
};

static void look_around(void *arg)
{
	struct seen *seen = arg;
	cpu_set_t set;
	sigset_t mask;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	seen->blocked = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGHUP);
	pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
	sched_getaffinity(0, sizeof(set), &set);
	seen->cpus = CPU_COUNT(&set);
}

static int first_cpu(void)
{
	cpu_set_t set;
	int cpu = 0;

	sched_getaffinity(0, sizeof(set), &set);
	while (!CPU_ISSET(cpu, &set)) {
		cpu++;
	}
	return cpu;
}

Test(thread, starts_with_signals_blocked_and_pinned)
{
	struct thread t = {0};
	struct seen seen = {0};
	sigset_t mask;

	cr_assert_eq(thread_start(&t, "a name that is too long", first_cpu(), look_around, &seen),
		     0);
	thread_join(&t);
	thread_join(&t);
	cr_assert(seen.blocked);
	cr_assert_eq(seen.cpus, 1);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	cr_assert_not(sigismember(&mask, SIGTERM));
}

Test(thread, refuses_a_cpu_that_is_not_there)
{
	struct thread t = {0};
	struct seen seen = {0};

	cr_assert_eq(thread_start(&t, "x", 100000, look_around, &seen), THREAD_E_CPU);
	thread_join(&t);
}

Test(clock, goes_forward)
{
	uint64_t a = clock_now(&clock_system);

	cr_assert_geq(clock_monotonic(), a);
	cr_assert_eq(clock_elapsed(5, 7), 0);
	cr_assert_eq(clock_elapsed(7, 5), 2);
}

Test(ref, last_put_is_told)
{
	struct ref r;

	ref_init(&r);
	ref_get(&r);
	cr_assert_eq(ref_count(&r), 2);
	cr_assert_not(ref_put(&r));
	cr_assert(ref_put(&r));
}

Test(log, rate)
{
	uint64_t state = 0;

	cr_assert(log_rate(&state, 60000));
	cr_assert_not(log_rate(&state, 60000));
	cr_assert(log_rate(&state, 0));
}
