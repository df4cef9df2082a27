/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Suit: see suit.h
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "suit.h"

#include "proto/base.h"

#define IO_THREADS_MAX 12
/*
 * A message passes through up to four threads, each of which takes up to 40 us to wake. A few CPUs
 * are better left to the ranks.
 */
#define SPIN_FEW_US 50
#define SPIN_MANY_US 300
#define SPIN_MANY_CPUS 8 /* more than these */

/* System calls of TCP take more time than sums do. */
unsigned int suit_io_threads(const struct config *c, unsigned int cpus)
{
	if (c->io_threads != VALUE_IS_AUTO) {
		return (unsigned int)c->io_threads;
	}
	return cpus <= 4 ? 0 : MIN(cpus / 2, IO_THREADS_MAX);
}

/* The first is for what is short, the others are a thread's each. */
unsigned int suit_streams(const struct config *c, unsigned int cpus)
{
	if (c->streams != VALUE_IS_AUTO) {
		return (unsigned int)c->streams;
	}
	return 1 + suit_io_threads(c, cpus);
}

uint32_t suit_spin_us(const struct config *c, unsigned int cpus)
{
	if (c->progress_spin_us != VALUE_IS_AUTO) {
		return (uint32_t)c->progress_spin_us;
	}
	return cpus > SPIN_MANY_CPUS ? SPIN_MANY_US : SPIN_FEW_US;
}
