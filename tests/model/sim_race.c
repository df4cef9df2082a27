/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Races of one host's plan: conflicting accesses that no dependency orders
 *
 * Compares real address ranges, so it does not share any reasoning with the builder of the plan.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "sim.h"

#define MOST_STEPS 64

struct access {
	const uint8_t *from;
	const uint8_t *to;
	uint32_t step;
	bool write;
};

static bool conflict(const struct access *a, const struct access *b)
{
	return a->step != b->step && (a->write || b->write) && a->from < b->to && b->from < a->to;
}

/* reach[a] has bit b when step b comes after step a. */
static void close_order(const struct plan *p, uint64_t *reach)
{
	for (uint32_t s = p->nsteps; s-- > 0;) {
		for (uint32_t i = 0; i < p->steps[s].nsucc; i++) {
			uint32_t next = p->succ[p->steps[s].first_succ + i];

			reach[s] |= 1ull << next | reach[next];
		}
	}
}

static uint32_t list_accesses(const struct sim_data *d, const struct plan *p, uint32_t host,
			      uint64_t seg, uint8_t *temp, struct access *ret)
{
	uint32_t n = 0;

	for (uint32_t s = 0; s < p->nsteps; s++) {
		for (uint32_t i = 0; i < p->steps[s].npieces; i++) {
			const struct plan_piece *piece = &p->pieces[p->steps[s].first_piece + i];
			uint64_t first;
			uint64_t elems = sim_piece_elems(d, host, piece, seg, 0, &first);

			for (uint32_t k = 0; k < (uint32_t)piece->nsrc + piece->ndst; k++) {
				const struct plan_ref *ref = &p->refs[piece->first_ref + k];
				const uint8_t *at;

				if (ref->space == PLAN_WIRE || elems == 0) {
					continue;
				}
				at = sim_resolve(d, host, ref, temp, seg, 0, first);
				ret[n++] = (struct access){at, at + elems * d->esize, s,
							   k >= piece->nsrc};
			}
		}
	}
	return n;
}

const char *sim_check_races(const struct sim_data *d, const struct plan *plan, uint32_t host,
			    uint64_t seg)
{
	uint64_t reach[MOST_STEPS] = {0};
	cleanup_free struct access *list = calloc(plan->nrefs + 1, sizeof(*list));
	cleanup_free uint8_t *temp = malloc((size_t)plan->ntemp * seg * d->esize + 1);
	uint32_t n;

	if (!list || !temp || plan->nsteps > MOST_STEPS) {
		return "no memory, or too many steps";
	}
	close_order(plan, reach);
	n = list_accesses(d, plan, host, seg, temp, list);
	for (uint32_t a = 0; a < n; a++) {
		for (uint32_t b = a + 1; b < n; b++) {
			uint32_t low = MIN(list[a].step, list[b].step);
			uint32_t high = MAX(list[a].step, list[b].step);

			if (conflict(&list[a], &list[b]) && !(reach[low] >> high & 1)) {
				return "two steps touch the same memory in no order";
			}
		}
	}
	return NULL;
}
