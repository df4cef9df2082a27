/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verify: input before, and the check of every byte after
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_VERIFY_H
#define ROCEBENCH_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "tools/rocebench/plan.h"

/* Writes the input of all operations, and over what will be received. */
void verify_fill(const struct plan *plan);
/*
 * Compares all that this rank received. @say: where the first wrong element of each operation is
 * told, or NULL. Return: number of wrong elements.
 */
size_t verify_check(const struct plan *plan, FILE *say);
/* Flips a bit in the middle of a result, on the last rank that has one. */
void verify_corrupt(const struct plan *plan);

#endif
