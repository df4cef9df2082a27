/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Recursive halving and doubling
 *
 * Reduce-scatter by halving: a host and its partner split the range of units that both still work
 * on, each sends the half that the other keeps and combines the half that it keeps; after log2
 * rounds every unit is complete on one host. Allreduce doubles back: the same partners in reverse
 * order swap what is complete. Bytes as few as in a ring, with logarithmically many messages.
 *
 * When the number of hosts is no power of two, the first few are folded into pairs: the odd one
 * hands its partial to the even one, which works for both, and gets the result. Data that arrives
 * after the first round is combined only when the rounds before are done, so it is received into
 * scratch of its own (rule 1 of plan.h).
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"

/* Tags: halving rounds count from 2 on, doubling rounds from 32 on. */
enum { TAG_FOLD = 0, TAG_UNFOLD = 1, TAG_HALVE = 2, TAG_DOUBLE = 32 };

/* Scratch of a whole set of blocks. */
static uint32_t area(const struct coll_build *c)
{
	return c->vector ? 1 : c->layout->nranks;
}

/* The half of [first, first + 2n) that @unit keeps; the other one begins at the result ^ n. */
static uint32_t kept(uint32_t unit, uint32_t first, uint32_t n)
{
	return first + (unit & n);
}

/* Where data for the units from @unit on is, in scratch that has room for just them. */
static uint32_t compact_temp(const struct coll_build *c, uint32_t base, uint32_t unit)
{
	return c->vector ? base : base - c->layout->host_first[coll_unit_host(c, unit)];
}

/* Scratch blocks behind the first area that @unit needs for what arrives. */
static uint32_t arriving_blocks(const struct coll_build *c, uint32_t unit)
{
	uint32_t first = 0;
	uint32_t blocks = 0;

	for (uint32_t n = c->units / 2; n; n /= 2) {
		first = kept(unit, first, n);
		blocks += coll_pieces(c, first, n);
	}
	return blocks;
}

static void halving_bounds(struct coll_build *c)
{
	uint32_t half = c->units / 2;
	uint32_t most = 0;

	/* Of one vector all units need the same; blocks differ with the ranks of a host. */
	for (uint32_t unit = 0; unit < (c->vector ? 1 : c->units); unit++) {
		most = MAX(most, arriving_blocks(c, unit));
	}
	most += area(c);
	if (c->vector) {
		coll_message_bound(c, 1, c->folds ? 1 : 2, most);
	} else if (c->folds) {
		coll_message_bound(c, area(c), 1, most);
	} else {
		coll_message_bound(c, MAX(coll_pieces(c, 0, half), coll_pieces(c, half, half)), 1,
				   most);
	}
}

/* The odd host of a folded pair. */
static void halving_folded(struct coll_build *c)
{
	coll_send_partial(c, c->host - 1, TAG_FOLD, 0, c->units, 0);
	plan_add_step(c->b, PLAN_RECV, c->host - 1, TAG_UNFOLD);
	if (c->vector) {
		coll_add_piece(c, 0, c->units, 0, false);
		coll_add_outputs(c, 0);
		return;
	}
	for (uint32_t l = 0; l < c->nlocal; l++) {
		coll_add_rank_piece(c, c->ranks[l], false);
		coll_add_outputs(c, c->ranks[l]);
	}
}

/* Takes the partial of the odd host in. */
static void halving_fold(struct coll_build *c)
{
	plan_add_step(c->b, PLAN_RECV_REDUCE, c->host + 1, TAG_FOLD);
	for (uint32_t i = 0; i < coll_pieces(c, 0, c->units); i++) {
		uint32_t block = coll_add_piece(c, 0, c->units, i, false);

		coll_add_inputs(c, block);
		plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
		plan_add_dst(c->b, PLAN_TEMP, 0, coll_temp(c, 0, block));
	}
}

/* Where a combined block goes: final ones to the outputs, unless they are of the odd host. */
static void add_combined(struct coll_build *c, uint32_t block, bool last)
{
	if (last && (c->vector || c->layout->host_of[block] == c->host)) {
		coll_add_outputs(c, block);
	} else {
		plan_add_dst(c->b, PLAN_TEMP, 0, coll_temp(c, 0, block));
	}
}

/* First round without a fold: nothing but the inputs is needed, so what arrives is combined at
 * once. */
static void halve_inputs(struct coll_build *c, uint32_t partner, uint32_t keep, uint32_t n)
{
	coll_send_partial(c, partner, TAG_HALVE, keep ^ n, n, 0);
	plan_add_step(c->b, PLAN_RECV_REDUCE, partner, TAG_HALVE);
	for (uint32_t i = 0; i < coll_pieces(c, keep, n); i++) {
		uint32_t block = coll_add_piece(c, keep, n, i, n == 1);

		if (c->host > partner) {
			plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
		}
		coll_add_inputs(c, block);
		if (c->host < partner) {
			plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
		}
		add_combined(c, block, n == 1);
	}
}

/* A later round: scratch at @temp takes what arrives. */
static void halve_partials(struct coll_build *c, uint32_t partner, uint32_t tag, uint32_t keep,
			   uint32_t n, uint32_t temp)
{
	uint32_t base = compact_temp(c, temp, keep);

	plan_add_step(c->b, PLAN_SEND, partner, tag);
	coll_add_temp_pieces(c, keep ^ n, n, 0);
	plan_add_step(c->b, PLAN_RECV, partner, tag);
	for (uint32_t i = 0; i < coll_pieces(c, keep, n); i++) {
		uint32_t block = coll_add_piece(c, keep, n, i, false);

		plan_add_dst(c->b, PLAN_TEMP, 0, coll_temp(c, base, block));
	}
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	for (uint32_t i = 0; i < coll_pieces(c, keep, n); i++) {
		uint32_t block = coll_add_piece(c, keep, n, i, n == 1);
		uint32_t arrived = coll_temp(c, base, block);
		uint32_t own = coll_temp(c, 0, block);

		plan_add_src(c->b, PLAN_TEMP, 0, c->host < partner ? own : arrived, false);
		plan_add_src(c->b, PLAN_TEMP, 0, c->host < partner ? arrived : own, false);
		add_combined(c, block, n == 1);
	}
}

/* Allreduce: back along the same partners. */
static void double_back(struct coll_build *c, uint32_t unit)
{
	uint32_t round = 0;

	for (uint32_t n = 1; n < c->units; n *= 2, round++) {
		uint32_t have = unit & ~(n - 1);
		uint32_t partner = coll_unit_host(c, unit ^ n);

		plan_add_step(c->b, PLAN_SEND, partner, TAG_DOUBLE + round);
		coll_add_piece(c, have, n, 0, false);
		plan_add_src(c->b, PLAN_OUT, 0, 0, false);
		plan_add_step(c->b, PLAN_RECV, partner, TAG_DOUBLE + round);
		coll_add_piece(c, have ^ n, n, 0, false);
		coll_add_outputs(c, 0);
	}
}

/* The even host of a folded pair gives the odd one its result. */
static void halving_unfold(struct coll_build *c)
{
	uint32_t odd = c->host + 1;

	plan_add_step(c->b, PLAN_SEND, odd, TAG_UNFOLD);
	if (c->vector) {
		coll_add_piece(c, 0, c->units, 0, false);
		plan_add_src(c->b, PLAN_OUT, 0, 0, false);
		return;
	}
	for (uint32_t i = c->layout->host_first[odd]; i < c->layout->host_first[odd + 1]; i++) {
		uint32_t block = c->layout->by_host[i];

		coll_add_rank_piece(c, block, false);
		plan_add_src(c->b, PLAN_TEMP, 0, coll_temp(c, 0, block), false);
	}
}

void coll_build_halving(struct coll_build *c)
{
	bool folded;
	uint32_t unit;
	uint32_t first = 0;
	uint32_t round = 0;
	uint32_t temp = area(c);

	c->units = 1u << (31 - __builtin_clz(c->nhosts));
	c->folds = c->nhosts - c->units;
	halving_bounds(c);
	folded = c->host < 2 * c->folds;
	if (folded && c->host % 2) {
		halving_folded(c);
		return;
	}
	if (folded) {
		halving_fold(c);
	}
	unit = folded ? c->host / 2 : c->host - c->folds;
	for (uint32_t n = c->units / 2; n; n /= 2, round++) {
		uint32_t partner = coll_unit_host(c, unit ^ n);

		first = kept(unit, first, n);
		if (round == 0 && !folded) {
			halve_inputs(c, partner, first, n);
		} else {
			halve_partials(c, partner, TAG_HALVE + round, first, n, temp);
			temp += coll_pieces(c, first, n);
		}
	}
	if (c->vector) {
		double_back(c, unit);
	}
	if (folded) {
		halving_unfold(c);
	}
}
