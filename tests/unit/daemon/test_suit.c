/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of what "auto" means on machines of several sizes
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>

#include "suit.h"

Test(suit, by_cpus)
{
	static const struct {
		unsigned int cpus, io;
		uint32_t spin;
	} rows[] = {
		{1, 0, 50},   {4, 0, 50},    {5, 2, 50},     {8, 4, 50},
		{16, 8, 300}, {32, 12, 300}, {256, 12, 300},
	};
	const struct config auto_ = {
		.io_threads = VALUE_IS_AUTO,
		.streams = VALUE_IS_AUTO,
		.progress_spin_us = VALUE_IS_AUTO,
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		cr_assert_eq(suit_io_threads(&auto_, rows[i].cpus), rows[i].io);
		cr_assert_eq(suit_streams(&auto_, rows[i].cpus), 1 + rows[i].io);
		cr_assert_eq(suit_spin_us(&auto_, rows[i].cpus), rows[i].spin);
	}
}

Test(suit, what_is_said_counts)
{
	const struct config said = {.io_threads = 0, .streams = 4, .progress_spin_us = 0};
	const struct config threads = {.io_threads = 2, .streams = VALUE_IS_AUTO};

	cr_assert_eq(suit_io_threads(&said, 64), 0);
	cr_assert_eq(suit_streams(&said, 64), 4);
	cr_assert_eq(suit_spin_us(&said, 64), 0);
	cr_assert_eq(suit_streams(&threads, 64), 3);
}
