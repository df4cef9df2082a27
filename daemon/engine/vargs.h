/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Argument arrays of v-variants
 *
 * Counts and displacements lie in memory that the client can write. They are copied once, into the
 * communicator's own arrays, and everything after works on the copy.
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_VARGS_H
#define ROCECOMM_ENGINE_VARGS_H

#include <stdint.h>

#include "engine/op.h"

enum { VARGS_E_LATER = 1, VARGS_E_INVALID = 2 };

/*
 * Copies and validates the arrays of all local ranks.
 * Return: 0; VARGS_E_LATER: all sets are taken; VARGS_E_INVALID with the rank and the reason.
 */
int vargs_load(struct op *op, struct vargs **ret, uint32_t *ret_local, const char **ret_reason);

/*
 * Narrows in_len and out_len of a v-variant's post to what its arrays say, so that it conflicts
 * with nothing else. Reads the client's memory: a client that changes it later only disorders
 * itself, since vargs_load() validates its own copy.
 */
void vargs_extent(struct post *post, const struct engine_signature *sig, uint32_t rank,
		  uint32_t nranks);

/* Elements of the block that a piece lies in, and where block @block of a side begins. */
uint64_t vargs_length(const struct op_ctx *ctx, const struct plan_piece *piece);
/* Does this side of the collective consist of one block a rank? */
bool vargs_blocked(uint8_t kind, uint8_t space);
uint64_t vargs_displacement(const struct op_ctx *ctx, uint8_t space, uint32_t lrank,
			    uint32_t block);
/* Longest block, mean block, in elements, as far as this host knows all of them. */
uint64_t vargs_longest(const struct op *op, const struct vargs *v);
uint64_t vargs_mean(const struct op *op, const struct vargs *v);

#endif
