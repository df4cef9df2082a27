/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Work: what a trainer computes between two collectives
 *
 * A matrix product whose operands stay in the L2 cache, counted in products rather than in time, so
 * that every system under test has the same amount of it beside its communication. It is a shared
 * library: the same machine code runs beside rocecomm, Open MPI and Gloo (through ctypes),
 * whichever compiler built the rest.
 *
 * Thread: any, each with its own struct work      Owns: its matrices      Locks: none
 */
#ifndef ROCECOMM_TOOLS_BENCHMARK_WORK_H
#define ROCECOMM_TOOLS_BENCHMARK_WORK_H

#include <stddef.h>

#define WORK_API __attribute__((visibility("default")))

struct work;

/* NULL without memory. */
WORK_API struct work *work_new(void);
WORK_API struct work *work_free(struct work *work);
/* Computes @products matrix products; returns a value that depends on all of them. */
WORK_API float work_run(struct work *work, size_t products);

#endif
