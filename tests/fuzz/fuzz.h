/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz: what libFuzzer (or replay.c) calls in every target
 *
 * A target aborts through fuzz_check() when a property does not hold; sanitizers find the rest.
 * It must give the same result for the same bytes, and free what it allocates.
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TESTS_FUZZ_H
#define ROCECOMM_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Unlike assert(), also there with NDEBUG. */
#define fuzz_check(condition)                                                             \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, \
				#condition);                                              \
			abort();                                                          \
		}                                                                         \
	} while (0)

#endif
