/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ring: every host sends to the next one only, the fewest bytes for large data
 *
 * Reduce-scatter: the unit of host p (its part of the vector, or the blocks of its ranks) starts as
 * the partial of host p + 1 and goes around; every host combines its own inputs with what arrives,
 * while it arrives, and passes it on; host p completes it. Allgather: complete units go around
 * once. Allreduce is the one after the other: 2 (H - 1) / H of the vector leave a host, the
 * optimum. With two hosts that is: swap halves, add, swap results.
 *
 * Broadcast and reduce use the ring as a chain that ends before it closes: one copy of the data
 * leaves a host, and with many segments all links are busy.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"

/* Up to so many hosts an allreduce keeps what it passes on in scratch. */
#define RING_SCRATCH_HOSTS 4

static uint32_t next_host(const struct coll_build *c)
{
	return (c->host + 1) % c->nhosts;
}

static uint32_t previous_host(const struct coll_build *c)
{
	return (c->host + c->nhosts - 1) % c->nhosts;
}

/* The unit that this host handles in step @step, if it is at @start in step 0. */
static uint32_t unit_at(const struct coll_build *c, uint32_t start, uint32_t step)
{
	return (start + c->nhosts - step) % c->nhosts;
}

/*
 * May what is passed on lie in an output? In an allreduce every part of it is overwritten with the
 * result in the end, and nothing else reads the input of a part that has been combined, so this is
 * right in place, too. Scratch stays in the cache but bounds the segment, so that messages become
 * the shorter the more hosts there are.
 */
static bool passes_in_output(const struct coll_build *c)
{
	return c->kind == COLL_ALLREDUCE && c->nhosts > RING_SCRATCH_HOSTS;
}

static void add_passing_dst(struct coll_build *c, uint32_t block)
{
	if (passes_in_output(c)) {
		plan_add_dst(c->b, PLAN_OUT, 0, block);
	} else {
		plan_add_dst(c->b, PLAN_TEMP, 0, coll_temp(c, 0, block));
	}
}

/* Sends what is passed on of @unit. */
static void send_passing(struct coll_build *c, uint32_t tag, uint32_t unit)
{
	plan_add_step(c->b, PLAN_SEND, next_host(c), tag);
	if (passes_in_output(c)) {
		plan_add_src(c->b, PLAN_OUT, 0, coll_add_piece(c, unit, 1, 0, false), false);
	} else {
		coll_add_temp_pieces(c, unit, 1, 0);
	}
}

/* The unit that this host is the first to handle. */
static void send_first(struct coll_build *c)
{
	uint32_t unit = previous_host(c);
	uint32_t block;

	if (!passes_in_output(c) || coll_may_send_input(c)) {
		coll_send_partial(c, next_host(c), 0, unit, 1, 0);
		return;
	}
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	block = coll_add_piece(c, unit, 1, 0, false);
	coll_add_inputs(c, block);
	add_passing_dst(c, block);
	send_passing(c, 0, unit);
}

/* Scratch 0 (vector), one block a rank, or an output holds what is passed on. */
static void ring_reduce_scatter(struct coll_build *c)
{
	send_first(c);
	for (uint32_t step = 0; step + 1 < c->nhosts; step++) {
		uint32_t unit = unit_at(c, previous_host(c), step + 1);
		bool own = unit == c->host;

		plan_add_step(c->b, PLAN_RECV_REDUCE, previous_host(c), step);
		for (uint32_t i = 0; i < coll_pieces(c, unit, 1); i++) {
			uint32_t block = coll_add_piece(c, unit, 1, i, own);

			plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
			coll_add_inputs(c, block);
			if (own) {
				coll_add_outputs(c, block);
			} else {
				add_passing_dst(c, block);
			}
		}
		if (!own) {
			send_passing(c, step + 1, unit);
		}
	}
}

/* @tag: of the first step. Own blocks leave from the inputs in an allgather, else from an output.
 */
static void ring_allgather(struct coll_build *c, uint32_t tag)
{
	for (uint32_t step = 0; step + 1 < c->nhosts; step++) {
		uint32_t out = unit_at(c, c->host, step);
		uint32_t in = unit_at(c, previous_host(c), step);

		plan_add_step(c->b, PLAN_SEND, next_host(c), tag + step);
		for (uint32_t i = 0; i < coll_pieces(c, out, 1); i++) {
			uint32_t block = coll_add_piece(c, out, 1, i, false);

			if (step == 0 && !c->vector) {
				plan_add_src(c->b, PLAN_IN, i, 0, false);
			} else {
				plan_add_src(c->b, PLAN_OUT, 0, block, false);
			}
		}
		plan_add_step(c->b, PLAN_RECV, previous_host(c), tag + step);
		for (uint32_t i = 0; i < coll_pieces(c, in, 1); i++) {
			coll_add_outputs(c, coll_add_piece(c, in, 1, i, false));
		}
	}
}

/* From the root on to the host before it. */
static void chain_broadcast(struct coll_build *c)
{
	coll_message_bound(c, 1, 1, 0);
	if (c->host != c->root_host) {
		plan_add_step(c->b, PLAN_RECV, previous_host(c), 0);
		coll_add_whole(c, false);
		coll_add_outputs(c, 0);
	}
	if (next_host(c) != c->root_host) {
		plan_add_step(c->b, PLAN_SEND, next_host(c), 0);
		coll_add_whole(c, false);
		if (c->host == c->root_host) {
			plan_add_src(c->b, PLAN_IN, c->layout->local_of[c->root], 0, false);
		} else {
			plan_add_src(c->b, PLAN_OUT, 0, 0, false);
		}
	}
	if (c->host == c->root_host) {
		coll_add_root_copies(c);
	}
}

/* From the host behind the root around to the root. */
static void chain_reduce(struct coll_build *c)
{
	c->units = 1;
	coll_message_bound(c, 1, 1, 1);
	if (previous_host(c) == c->root_host) {
		coll_send_partial(c, next_host(c), 0, 0, 1, 0);
		return;
	}
	plan_add_step(c->b, PLAN_RECV_REDUCE, previous_host(c), 0);
	coll_add_whole(c, c->host == c->root_host);
	plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
	coll_add_inputs(c, 0);
	if (c->host == c->root_host) {
		coll_add_outputs(c, 0);
		return;
	}
	plan_add_dst(c->b, PLAN_TEMP, 0, 0);
	plan_add_step(c->b, PLAN_SEND, next_host(c), 0);
	coll_add_temp_pieces(c, 0, 1, 0);
}

void coll_build_ring(struct coll_build *c)
{
	c->units = c->nhosts;
	switch (c->kind) {
	case COLL_ALLREDUCE:
		coll_message_bound(c, 1, c->nhosts, passes_in_output(c) ? 0 : 1);
		ring_reduce_scatter(c);
		ring_allgather(c, c->nhosts - 1);
		break;
	case COLL_BROADCAST:
		chain_broadcast(c);
		break;
	case COLL_REDUCE:
		chain_reduce(c);
		break;
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
		coll_message_bound(c, c->max_local, 1, 0);
		ring_allgather(c, 0);
		coll_add_spread(c);
		break;
	default:
		coll_message_bound(c, c->max_local, 1, c->layout->nranks);
		ring_reduce_scatter(c);
		break;
	}
}
