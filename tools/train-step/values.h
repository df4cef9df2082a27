/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Values: gradients whose average is known, so that every element can be checked
 *
 * Two kinds. Exact: integers that differ from element to element and rank to rank, so small that
 * any sum of them is exact in f32; the average must then be equal to the reference to the last bit,
 * whatever the order of additions, and a misplaced byte shows. Arbitrary: floats of mixed size and
 * sign; the average must be within the rounding error of n additions.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef TRAIN_STEP_VALUES_H
#define TRAIN_STEP_VALUES_H

#include <stdbool.h>
#include <stddef.h>

struct values {
	unsigned int size; /* ranks */
	unsigned int step;
	bool exact;
};

/* Writes the gradients of @rank for elements first .. first + n - 1 of the model. */
void values_fill(const struct values *v, unsigned int rank, size_t first, size_t n, float *out);
/*
 * Compares averages with the reference. Return: number of wrong elements; *ret_where is the first
 * of them (relative to @first) and *ret_want what it should be, set when there is one.
 */
size_t values_check(const struct values *v, size_t first, size_t n, const float *got,
		    size_t *ret_where, double *ret_want);

#endif
