/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Pieces that several algorithms write in the same way
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"

bool coll_is_allgather(enum coll_kind kind)
{
	return kind == COLL_ALLGATHER || kind == COLL_ALLGATHERV;
}

bool coll_is_reduce_scatter(enum coll_kind kind)
{
	return kind == COLL_REDUCE_SCATTER || kind == COLL_REDUCE_SCATTERV;
}

/* The longest message of any host is @blocks / @parts of a block; TEMP is @max_temp at most. */
void coll_message_bound(struct coll_build *c, uint32_t blocks, uint32_t parts, uint32_t max_temp)
{
	c->msg_blocks = blocks;
	c->msg_parts = parts;
	c->max_temp = max_temp;
}

/* First host of a unit; also of the end, one past the last unit. */
uint32_t coll_unit_host(const struct coll_build *c, uint32_t unit)
{
	return unit < c->folds ? 2 * unit : unit + c->folds;
}

/* How many pieces the units [unit, unit + n) are. */
uint32_t coll_pieces(const struct coll_build *c, uint32_t unit, uint32_t n)
{
	if (c->vector) {
		return 1;
	}
	return c->layout->host_first[coll_unit_host(c, unit + n)] -
	       c->layout->host_first[coll_unit_host(c, unit)];
}

void coll_add_rank_piece(struct coll_build *c, uint32_t rank, bool final)
{
	plan_add_piece(c->b, PLAN_LEN_RANK, rank, 0, 0, 1, 1, final && c->reduces);
}

/* The only block of a vector collective, undivided. */
void coll_add_whole(struct coll_build *c, bool final)
{
	coll_add_rank_piece(c, 0, final);
}

/* Adds piece @i of the units [unit, unit + n). Return: the block that it lies in. */
uint32_t coll_add_piece(struct coll_build *c, uint32_t unit, uint32_t n, uint32_t i, bool final)
{
	uint32_t rank;

	if (c->vector) {
		plan_add_piece(c->b, PLAN_LEN_RANK, 0, 0, unit, n, c->units, final && c->reduces);
		return 0;
	}
	rank = c->layout->by_host[c->layout->host_first[coll_unit_host(c, unit)] + i];
	coll_add_rank_piece(c, rank, final);
	return rank;
}

/* Where scratch for a block is, in an area that has room for all of them from @base on. */
uint32_t coll_temp(const struct coll_build *c, uint32_t base, uint32_t block)
{
	if (c->vector) {
		return base;
	}
	return base + c->layout->host_first[c->layout->host_of[block]] + c->layout->local_of[block];
}

/* Sources: the inputs of all local ranks, in the order of ranks. */
void coll_add_inputs(struct coll_build *c, uint32_t block)
{
	for (uint32_t l = 0; l < c->nlocal; l++) {
		plan_add_src(c->b, PLAN_IN, l, block, c->reduces);
	}
}

/* Destinations of a finished block: every local rank that gets it. */
void coll_add_outputs(struct coll_build *c, uint32_t block)
{
	if (c->kind == COLL_REDUCE) {
		plan_add_dst(c->b, PLAN_OUT, c->layout->local_of[c->root], 0);
	} else if (coll_is_reduce_scatter(c->kind)) {
		plan_add_dst(c->b, PLAN_OUT, c->layout->local_of[block], 0);
	} else {
		for (uint32_t l = 0; l < c->nlocal; l++) {
			plan_add_dst(c->b, PLAN_OUT, l, block);
		}
	}
}

/* May a partial result go out straight from an input? One local rank, and nothing to scale. */
bool coll_may_send_input(const struct coll_build *c)
{
	return c->nlocal == 1 && !(c->want & PLAN_PRESCALE);
}

/* Combines the local inputs of some units into scratch. */
void coll_add_partial(struct coll_build *c, uint32_t unit, uint32_t n, uint32_t temp)
{
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	for (uint32_t i = 0; i < coll_pieces(c, unit, n); i++) {
		uint32_t block = coll_add_piece(c, unit, n, i, false);

		coll_add_inputs(c, block);
		plan_add_dst(c->b, PLAN_TEMP, 0, coll_temp(c, temp, block));
	}
}

/* Allgather: every local block to every local rank. */
void coll_add_spread(struct coll_build *c)
{
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	for (uint32_t l = 0; l < c->nlocal; l++) {
		coll_add_rank_piece(c, c->ranks[l], false);
		plan_add_src(c->b, PLAN_IN, l, 0, false);
		coll_add_outputs(c, c->ranks[l]);
	}
}

/* Broadcast on the host of the root: the root's buffer to the other local ranks. */
void coll_add_root_copies(struct coll_build *c)
{
	uint32_t root = c->layout->local_of[c->root];

	if (c->nlocal == 1) {
		return;
	}
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	coll_add_whole(c, false);
	plan_add_src(c->b, PLAN_IN, root, 0, false);
	for (uint32_t l = 0; l < c->nlocal; l++) {
		if (l != root) {
			plan_add_dst(c->b, PLAN_OUT, l, 0);
		}
	}
}

/* The pieces of a message that leaves from scratch. */
void coll_add_temp_pieces(struct coll_build *c, uint32_t unit, uint32_t n, uint32_t temp)
{
	for (uint32_t i = 0; i < coll_pieces(c, unit, n); i++) {
		uint32_t block = coll_add_piece(c, unit, n, i, false);

		plan_add_src(c->b, PLAN_TEMP, 0, coll_temp(c, temp, block), false);
	}
}

/*
 * Sends the local partial of some units: from the input if that is it, else combined into scratch
 * first. For plans in which the part that is sent comes back later, or never is written.
 */
void coll_send_partial(struct coll_build *c, uint32_t peer, uint32_t tag, uint32_t unit, uint32_t n,
		       uint32_t temp)
{
	if (!coll_may_send_input(c)) {
		coll_add_partial(c, unit, n, temp);
		plan_add_step(c->b, PLAN_SEND, peer, tag);
		coll_add_temp_pieces(c, unit, n, temp);
		return;
	}
	plan_add_step(c->b, PLAN_SEND, peer, tag);
	for (uint32_t i = 0; i < coll_pieces(c, unit, n); i++) {
		plan_add_src(c->b, PLAN_IN, 0, coll_add_piece(c, unit, n, i, false), true);
	}
}
