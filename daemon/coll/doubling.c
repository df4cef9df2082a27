/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Recursive doubling: everything everybody knows, exchanged at distances 1, 2, 4, ...
 *
 * Allreduce: in round k a host and its partner at distance 2^k swap the sums of their groups of 2^k
 * hosts and combine them, lower group first, so all hosts of the joined group hold the same bits.
 * When the number of hosts is no power of two, the first few are folded into pairs: the odd one of
 * a pair hands its partial over and gets the result.
 *
 * Allgather: in round k a host passes on the blocks of the 2^k hosts from itself on to the host 2^k
 * below; any number of hosts, nothing travels twice. Barrier: the same with empty messages.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"

/* Tags: rounds count from 2 on. */
enum { TAG_FOLD = 0, TAG_UNFOLD = 1, TAG_ROUND = 2 };

static void dissemination_barrier(struct coll_build *c)
{
	uint32_t round = 0;

	c->flags = PLAN_EMPTY_MESSAGES;
	coll_message_bound(c, 1, 1, 0);
	for (uint32_t d = 1; d < c->nhosts; d *= 2, round++) {
		uint32_t send = plan_add_step(c->b, PLAN_SEND, (c->host + d) % c->nhosts, round);

		/* Steps alternate: sends at 0, 2, 4, ..., receives at 1, 3, 5, ... */
		for (uint32_t k = 0; k < round; k++) {
			plan_add_dep(c->b, send, 2 * k + 1);
		}
		plan_add_step(c->b, PLAN_RECV, (c->host + c->nhosts - d) % c->nhosts, round);
	}
}

/* ---- allgather ---------------------------------------------------------------------------- */

static void gather_send(struct coll_build *c, uint32_t d, uint32_t n, uint32_t round)
{
	plan_add_step(c->b, PLAN_SEND, (c->host + c->nhosts - d) % c->nhosts, round);
	for (uint32_t k = 0; k < n; k++) {
		uint32_t h = (c->host + k) % c->nhosts;

		for (uint32_t i = 0; i < coll_pieces(c, h, 1); i++) {
			uint32_t block = coll_add_piece(c, h, 1, i, false);

			if (k == 0) {
				plan_add_src(c->b, PLAN_IN, i, 0, false);
			} else {
				plan_add_src(c->b, PLAN_OUT, 0, block, false);
			}
		}
	}
}

static void doubling_allgather(struct coll_build *c)
{
	uint32_t round = 0;
	uint32_t most = 1;

	c->units = c->nhosts;
	for (uint32_t d = 1; d < c->nhosts; d *= 2, round++) {
		uint32_t n = MIN(d, c->nhosts - d);

		gather_send(c, d, n, round);
		plan_add_step(c->b, PLAN_RECV, (c->host + d) % c->nhosts, round);
		for (uint32_t k = 0; k < n; k++) {
			uint32_t h = (c->host + d + k) % c->nhosts;

			for (uint32_t i = 0; i < coll_pieces(c, h, 1); i++) {
				coll_add_outputs(c, coll_add_piece(c, h, 1, i, false));
			}
		}
		most = MAX(most, n);
	}
	coll_add_spread(c);
	coll_message_bound(c, most * c->max_local, 1, 0);
}

/* ---- allreduce ---------------------------------------------------------------------------- */

/* The odd host of a folded pair. */
static void doubling_folded(struct coll_build *c)
{
	coll_send_partial(c, c->host - 1, TAG_FOLD, 0, 1, 0);
	plan_add_step(c->b, PLAN_RECV, c->host - 1, TAG_UNFOLD);
	coll_add_whole(c, false);
	coll_add_outputs(c, 0);
}

/* Takes the partial of the odd host in, into scratch 0. */
static void doubling_fold(struct coll_build *c)
{
	plan_add_step(c->b, PLAN_RECV_REDUCE, c->host + 1, TAG_FOLD);
	coll_add_whole(c, false);
	coll_add_inputs(c, 0);
	plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
	plan_add_dst(c->b, PLAN_TEMP, 0, 0);
}

/* What is known before a round: scratch, or the input itself as long as nobody overwrites it. */
static void add_known(struct coll_build *c, bool in_input, uint32_t temp)
{
	if (in_input) {
		plan_add_src(c->b, PLAN_IN, 0, 0, true);
	} else {
		plan_add_src(c->b, PLAN_TEMP, 0, temp, false);
	}
}

/*
 * One round: scratch @temp holds what is known; the arriving half goes to @temp + 1, the new sum to
 * @temp + 2 or to the outputs. Without receives before it, arriving data is combined at once.
 */
static void doubling_round(struct coll_build *c, uint32_t partner, uint32_t round, uint32_t temp,
			   bool in_input, bool at_once, bool last)
{
	plan_add_step(c->b, PLAN_SEND, partner, TAG_ROUND + round);
	coll_add_whole(c, false);
	add_known(c, in_input, temp);
	if (at_once) {
		plan_add_step(c->b, PLAN_RECV_REDUCE, partner, TAG_ROUND + round);
	} else {
		plan_add_step(c->b, PLAN_RECV, partner, TAG_ROUND + round);
		coll_add_whole(c, false);
		plan_add_dst(c->b, PLAN_TEMP, 0, temp + 1);
		plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	}
	coll_add_whole(c, last);
	if (c->host < partner) {
		add_known(c, in_input, temp);
	}
	plan_add_src(c->b, at_once ? PLAN_WIRE : PLAN_TEMP, 0, at_once ? 0 : temp + 1, false);
	if (c->host > partner) {
		add_known(c, in_input, temp);
	}
	if (last) {
		coll_add_outputs(c, 0);
	} else {
		plan_add_dst(c->b, PLAN_TEMP, 0, temp + 2);
	}
}

static void doubling_allreduce(struct coll_build *c)
{
	uint32_t units = 1u << (31 - __builtin_clz(c->nhosts));
	uint32_t rounds = 31 - (uint32_t)__builtin_clz(c->nhosts);
	bool folded;
	bool in_input;
	uint32_t unit;

	c->folds = c->nhosts - units;
	c->units = 1;
	coll_message_bound(c, 1, 1, 2 * rounds);
	folded = c->host < 2 * c->folds;
	if (folded && c->host % 2) {
		doubling_folded(c);
		return;
	}
	in_input = !folded && coll_may_send_input(c) && (c->want & PLAN_DISTINCT);
	if (folded) {
		doubling_fold(c);
	} else if (!in_input) {
		coll_add_partial(c, 0, 1, 0);
	}
	unit = folded ? c->host / 2 : c->host - c->folds;
	for (uint32_t k = 0; k < rounds; k++) {
		doubling_round(c, coll_unit_host(c, unit ^ 1u << k), k, 2 * k, in_input && k == 0,
			       !folded && k == 0, k + 1 == rounds);
	}
	if (folded) {
		plan_add_step(c->b, PLAN_SEND, c->host + 1, TAG_UNFOLD);
		coll_add_whole(c, false);
		plan_add_src(c->b, PLAN_OUT, 0, 0, false);
	}
}

void coll_build_doubling(struct coll_build *c)
{
	if (c->kind == COLL_BARRIER) {
		dissemination_barrier(c);
	} else if (c->kind == COLL_ALLREDUCE) {
		doubling_allreduce(c);
	} else {
		doubling_allgather(c);
	}
}
