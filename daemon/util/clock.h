/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Clock: monotonic time, behind an interface so that tests can own it
 *
 * Modules with time-outs borrow a `const struct clock_source *` and never ask the system; the
 * daemon hands them &clock_system, a test hands them its own. Both count nanoseconds from an
 * arbitrary start. clock_monotonic() is for the progress path, where a call through a pointer a
 * loop would be the dearest part of it (vDSO: no system call).
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_UTIL_CLOCK_H
#define ROCECOMM_UTIL_CLOCK_H

#include <stdint.h>

#define CLOCK_NS_PER_US UINT64_C(1000)
#define CLOCK_NS_PER_MS UINT64_C(1000000)
#define CLOCK_NS_PER_S UINT64_C(1000000000)

struct clock_source {
	uint64_t (*now)(void *arg); /* ns, never goes back */
	void *arg;
};

/* CLOCK_MONOTONIC */
extern const struct clock_source clock_system;

uint64_t clock_monotonic(void);

static inline uint64_t clock_now(const struct clock_source *c)
{
	return c->now(c->arg);
}

/* ns from @since to @now; 0 when @since is later (stamped by another thread meanwhile). */
static inline uint64_t clock_elapsed(uint64_t now, uint64_t since)
{
	return now > since ? now - since : 0;
}

#endif
