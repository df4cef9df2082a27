/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan under construction: what plan.c and hazard.c share
 *
 * Thread: any, one user at a time      Owns: its arrays and the unfinished plan      Locks: none
 */
#ifndef ROCECOMM_COLL_PLAN_BUILD_H
#define ROCECOMM_COLL_PLAN_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/plan.h"

#define PLAN_NONE UINT32_MAX

/* A growing array of uint32_t. */
struct plan_list {
	uint32_t *items;
	size_t n;
	size_t cap;
};

struct plan_builder {
	struct plan *plan;
	size_t cap_steps;
	size_t cap_pieces;
	size_t cap_refs;
	struct plan_list explicit_deps; /* pairs: step, on */
	const uint32_t *ranks;		/* NULL: IN and OUT are distinct */
	int error;			/* first failure of an add function */
};

/* What a step waits for: deps.items[first[step] .. first[step + 1]). */
struct plan_deps {
	uint32_t *first;
	struct plan_list deps;
};

int plan_list_add(struct plan_list *list, uint32_t item);
void plan_list_deinit(struct plan_list *list);

/*
 * Derives what each step waits for, explicit dependencies included, without duplicates.
 * @ret: initialised on success, to be freed by plan_deps_deinit().
 */
int plan_deps_init(struct plan_deps *ret, const struct plan_builder *b);
void plan_deps_deinit(struct plan_deps *deps);

#endif
