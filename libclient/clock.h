/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Clock: monotonic time and deadlines
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECLIENT_CLOCK_H
#define ROCECLIENT_CLOCK_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

#define CLOCK_NEVER INT64_MAX

static inline int64_t clock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

/* @timeout_ms: negative: never. */
static inline int64_t clock_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? CLOCK_NEVER : clock_now_ns() + timeout_ms * INT64_C(1000000);
}

/* For poll(): milliseconds left, rounded up; -1 for never, 0 when passed. */
static inline int clock_left_ms(int64_t deadline)
{
	int64_t left;

	if (deadline == CLOCK_NEVER) {
		return -1;
	}
	left = deadline - clock_now_ns();
	if (left <= 0) {
		return 0;
	}
	left = (left + 999999) / 1000000;
	return left > INT_MAX ? INT_MAX : (int)left;
}

static inline struct timespec clock_timespec(int64_t ns)
{
	struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

	return ts;
}

#endif
