/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Clock: the system's
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "util/clock.h"

#include <assert.h>
#include <time.h>

/**
 * clock_monotonic() - nanoseconds of CLOCK_MONOTONIC
 *
 * Return: the time; this clock cannot fail
 */
uint64_t clock_monotonic(void)
{
	struct timespec ts;
	int r;

	r = clock_gettime(CLOCK_MONOTONIC, &ts);
	assert(r == 0);
	(void)r;
	return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static uint64_t system_now(void *arg)
{
	return clock_monotonic();
}

const struct clock_source clock_system = {.now = system_now};
