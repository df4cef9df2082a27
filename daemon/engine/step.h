/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Step: what the files that execute steps (step.c, offload.c) have in common
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_STEP_H
#define ROCECOMM_ENGINE_STEP_H

#include "engine/op.h"

static inline const struct plan_step *step_of(const struct step_state *st)
{
	return &st->run->ctx->entry->plan->steps[st->index];
}

/* step.c */

/* Marks a step done and readies those that waited for it. */
void step_done(struct step_state *st);
/* Describes the memory of a message in st->iov. Return: how many pieces are not empty. */
uint32_t step_iov(struct step_state *st, uint64_t *ret_length);

/* offload.c */

/* Adds to the counters of the communicator and the thread. */
void step_account(struct engine_comm *c, const struct slice_moved *moved);
/*
 * A turn of a local step: a few slices for workers, or one done here.
 * Return: true when nothing of the step is left to hand out.
 */
bool step_work(struct step_state *st);
/* Nothing of the step is left to hand out: it is done now, or when the workers are. */
void step_settle(struct step_state *st);
/*
 * Where an arriving message goes. Large ones of large operations are worked on when all of them is
 * here (st->deferred); those to be combined need a stage until then, and are combined while they
 * arrive when there is none.
 */
void step_place(struct step_state *st);
/* All bytes of a deferred receive are here. */
void step_work_received(struct step_state *st);
/* Its message has been worked on, or never will be: gives the stage back. */
void step_unstage(struct step_state *st);

#endif
