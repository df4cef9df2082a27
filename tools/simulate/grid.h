/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Grid: collectives x hosts x sizes x algorithms, predicted and printed
 *
 * Sizes are buffers as rocebench and nccl-tests count them: what a rank contributes to an
 * allreduce, the whole result of an allgather, all that a rank sends in an all-to-all.
 *
 * Thread: main      Owns: nothing beyond a call      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_GRID_H
#define ROCECOMM_SIMULATE_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/simulate/predict.h"

#define GRID_MAX 64

struct grid {
	struct link_model model;
	bool full; /* neither symmetry nor steady state */
	bool json;
	uint32_t colls; /* bit (1 << kind) */
	uint32_t algos; /* bit (1 << algo) */
	uint64_t hosts[GRID_MAX];
	uint64_t ranks[GRID_MAX]; /* a host */
	uint64_t sizes[GRID_MAX];
	size_t nhosts, nranks, nsizes;
};

/* Collectives and sizes that fill the tables unless others are asked for. */
void grid_defaults(struct grid *g);
/* Prints to stdout. Return: 0 or a negative errno. */
int grid_run(const struct grid *g);

/* Bytes of a rank's message, which selection goes by; 0: less than one element each. */
uint64_t grid_message(enum coll_kind kind, uint64_t size, uint64_t nranks);

#endif
