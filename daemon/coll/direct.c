/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Direct: every host sends to every other that needs its data, one hop
 *
 * The lowest latency for few hosts. Where all hosts compute the same element (allreduce), each
 * rounds its local partial once, sends it, and combines all partials in the order of hosts, so that
 * all get the same bits. In a reduce-scatter one host computes an element, and its own inputs go
 * into the combination unrounded.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"
#include "reduce/reduce.h"

/* The @i-th other host to send to: everybody starts with another one. */
static uint32_t other_host(const struct coll_build *c, uint32_t i)
{
	return (c->host + 1 + i) % c->nhosts;
}

static void direct_barrier(struct coll_build *c)
{
	c->flags = PLAN_EMPTY_MESSAGES;
	coll_message_bound(c, 1, 1, 0);
	for (uint32_t i = 0; i + 1 < c->nhosts; i++) {
		plan_add_step(c->b, PLAN_SEND, other_host(c, i), 0);
		plan_add_step(c->b, PLAN_RECV, other_host(c, i), 0);
	}
}

/*
 * Where the own partial of an allreduce is. It must not be the input itself when a rank may work in
 * place: the result would overwrite it while it is still being sent.
 */
static void add_own(struct coll_build *c, bool in_input)
{
	if (in_input) {
		plan_add_src(c->b, PLAN_IN, 0, 0, true);
	} else {
		plan_add_src(c->b, PLAN_TEMP, 0, 0, false);
	}
}

static void direct_allreduce(struct coll_build *c)
{
	bool in_input = coll_may_send_input(c) && (c->want & PLAN_DISTINCT);

	coll_message_bound(c, 1, 1, c->nhosts + 1);
	c->units = 1;
	if (!in_input) {
		coll_add_partial(c, 0, 1, 0);
	}
	for (uint32_t i = 0; i + 1 < c->nhosts; i++) {
		plan_add_step(c->b, PLAN_SEND, other_host(c, i), 0);
		coll_add_whole(c, false);
		add_own(c, in_input);
	}
	if (c->nhosts > 2) {
		for (uint32_t i = 0; i + 1 < c->nhosts; i++) {
			plan_add_step(c->b, PLAN_RECV, other_host(c, i), 0);
			coll_add_whole(c, false);
			plan_add_dst(c->b, PLAN_TEMP, 0, 1 + other_host(c, i));
		}
		plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	} else {
		plan_add_step(c->b, PLAN_RECV_REDUCE, other_host(c, 0), 0);
	}
	coll_add_whole(c, true);
	for (uint32_t h = 0; h < c->nhosts; h++) {
		if (h == c->host) {
			add_own(c, in_input);
		} else if (c->nhosts == 2) {
			plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
		} else {
			plan_add_src(c->b, PLAN_TEMP, 0, 1 + h, false);
		}
	}
	coll_add_outputs(c, 0);
}

/* Combines the partials of all hosts for this one: its own inputs at their place in the order. */
static void direct_combine(struct coll_build *c, uint32_t temp, bool own_in_temp)
{
	uint32_t n = coll_pieces(c, c->host, 1);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t block = coll_add_piece(c, c->host, 1, i, true);

		for (uint32_t h = 0; h < c->nhosts; h++) {
			if (h == c->host && own_in_temp) {
				plan_add_src(c->b, PLAN_TEMP, 0, coll_temp(c, 0, block), false);
			} else if (h == c->host) {
				coll_add_inputs(c, block);
			} else if (c->nhosts == 2) {
				plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
			} else {
				plan_add_src(c->b, PLAN_TEMP, 0, temp + h * n + i, false);
			}
		}
		coll_add_outputs(c, block);
	}
}

static void direct_receive_partials(struct coll_build *c, uint32_t temp)
{
	uint32_t n = coll_pieces(c, c->host, 1);
	bool own_in_temp = c->nlocal + c->nhosts - 1 > REDUCE_MAX_SRC;

	if (c->nhosts == 2) {
		plan_add_step(c->b, PLAN_RECV_REDUCE, 1 - c->host, 0);
		direct_combine(c, temp, false);
		return;
	}
	if (own_in_temp) {
		coll_add_partial(c, c->host, 1, 0);
	}
	for (uint32_t h = 0; h < c->nhosts; h++) {
		if (h == c->host) {
			continue;
		}
		plan_add_step(c->b, PLAN_RECV, h, 0);
		for (uint32_t i = 0; i < n; i++) {
			coll_add_piece(c, c->host, 1, i, false);
			plan_add_dst(c->b, PLAN_TEMP, 0, temp + h * n + i);
		}
	}
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	direct_combine(c, temp, own_in_temp);
}

static void direct_reduce_scatter(struct coll_build *c)
{
	c->units = c->nhosts;
	coll_message_bound(c, c->max_local, 1, c->layout->nranks + c->nhosts * c->max_local);
	for (uint32_t i = 0; i + 1 < c->nhosts; i++) {
		coll_send_partial(c, other_host(c, i), 0, other_host(c, i), 1, 0);
	}
	direct_receive_partials(c, c->layout->nranks);
}

static void direct_allgather(struct coll_build *c)
{
	coll_message_bound(c, c->max_local, 1, 0);
	c->units = c->nhosts;
	for (uint32_t i = 0; i + 1 < c->nhosts; i++) {
		plan_add_step(c->b, PLAN_SEND, other_host(c, i), 0);
		for (uint32_t l = 0; l < c->nlocal; l++) {
			coll_add_rank_piece(c, c->ranks[l], false);
			plan_add_src(c->b, PLAN_IN, l, 0, false);
		}
	}
	for (uint32_t i = 0; i + 1 < c->nhosts; i++) {
		plan_add_step(c->b, PLAN_RECV, other_host(c, i), 0);
		for (uint32_t k = 0; k < coll_pieces(c, other_host(c, i), 1); k++) {
			coll_add_outputs(c, coll_add_piece(c, other_host(c, i), 1, k, false));
		}
	}
	coll_add_spread(c);
}

void coll_build_direct(struct coll_build *c)
{
	if (c->kind == COLL_BARRIER) {
		direct_barrier(c);
	} else if (c->kind == COLL_ALLREDUCE) {
		direct_allreduce(c);
	} else if (coll_is_allgather(c->kind)) {
		direct_allgather(c);
	} else {
		direct_reduce_scatter(c);
	}
}
