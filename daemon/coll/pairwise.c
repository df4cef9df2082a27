/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Pairwise: blocks that differ for every pair of ranks (all-to-all, gather, scatter)
 *
 * One message a pair of hosts carries all blocks from the ranks of the one to the ranks of the
 * other, by source rank, then by destination rank. Everybody begins with another host.
 *
 * An all-to-all in place overwrites the block for a rank with the block from that rank. What is to
 * leave is copied out of the way first, because an arriving block may not wait for a send whose
 * other end waits in the same way. With PLAN_DISTINCT nothing is copied. Gather and scatter move
 * every block between its two final places and run as one segment, because only the root knows
 * all counts.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"

static void out_piece(struct coll_build *c, uint32_t from_local, uint32_t to_rank)
{
	plan_add_piece(c->b, PLAN_LEN_IN, from_local, to_rank, 0, 1, 1, false);
}

/* Blocks for the ranks of another host. @temp: where they are put out of the way. */
static void exchange_send(struct coll_build *c, uint32_t peer, uint32_t temp)
{
	const uint32_t *to = c->layout->by_host + c->layout->host_first[peer];
	uint32_t n = coll_nlocal(c->layout, peer);

	if (!(c->want & PLAN_DISTINCT)) {
		plan_add_step(c->b, PLAN_LOCAL, 0, 0);
		for (uint32_t i = 0; i < c->nlocal * n; i++) {
			out_piece(c, i / n, to[i % n]);
			plan_add_src(c->b, PLAN_IN, i / n, to[i % n], false);
			plan_add_dst(c->b, PLAN_TEMP, 0, temp + i);
		}
	}
	plan_add_step(c->b, PLAN_SEND, peer, 0);
	for (uint32_t i = 0; i < c->nlocal * n; i++) {
		out_piece(c, i / n, to[i % n]);
		if (c->want & PLAN_DISTINCT) {
			plan_add_src(c->b, PLAN_IN, i / n, to[i % n], false);
		} else {
			plan_add_src(c->b, PLAN_TEMP, 0, temp + i, false);
		}
	}
}

static void exchange_receive(struct coll_build *c, uint32_t peer)
{
	const uint32_t *from = c->layout->by_host + c->layout->host_first[peer];
	uint32_t n = coll_nlocal(c->layout, peer);

	plan_add_step(c->b, PLAN_RECV, peer, 0);
	for (uint32_t i = 0; i < n * c->nlocal; i++) {
		uint32_t local = i % c->nlocal;

		plan_add_piece(c->b, PLAN_LEN_OUT, local, from[i / c->nlocal], 0, 1, 1, false);
		plan_add_dst(c->b, PLAN_OUT, local, from[i / c->nlocal]);
	}
}

static void local_block(struct coll_build *c, uint32_t from, uint32_t to)
{
	out_piece(c, from, c->ranks[to]);
	plan_add_src(c->b, PLAN_IN, from, c->ranks[to], false);
	plan_add_dst(c->b, PLAN_OUT, to, c->ranks[from]);
}

/* From and to each pair of local ranks, with the lower or the higher one as the source. */
static void local_blocks(struct coll_build *c, bool upward)
{
	for (uint32_t a = 0; a < c->nlocal; a++) {
		for (uint32_t b = a + 1; b < c->nlocal; b++) {
			local_block(c, upward ? a : b, upward ? b : a);
		}
	}
}

/* In place two local ranks swap: the upward blocks are put out of the way, from @temp on. */
static void local_exchange(struct coll_build *c, uint32_t temp)
{
	bool distinct = c->want & PLAN_DISTINCT;
	uint32_t next = temp;

	if (!distinct && c->nlocal > 1) {
		plan_add_step(c->b, PLAN_LOCAL, 0, 0);
		for (uint32_t a = 0; a < c->nlocal; a++) {
			for (uint32_t b = a + 1; b < c->nlocal; b++) {
				out_piece(c, a, c->ranks[b]);
				plan_add_src(c->b, PLAN_IN, a, c->ranks[b], false);
				plan_add_dst(c->b, PLAN_TEMP, 0, next++);
			}
		}
	}
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	for (uint32_t l = 0; l < c->nlocal; l++) {
		local_block(c, l, l);
	}
	local_blocks(c, false);
	if (distinct) {
		local_blocks(c, true);
	} else if (c->nlocal > 1) {
		next = temp;
		plan_add_step(c->b, PLAN_LOCAL, 0, 0);
		for (uint32_t a = 0; a < c->nlocal; a++) {
			for (uint32_t b = a + 1; b < c->nlocal; b++) {
				out_piece(c, a, c->ranks[b]);
				plan_add_src(c->b, PLAN_TEMP, 0, next++, false);
				plan_add_dst(c->b, PLAN_OUT, b, c->ranks[a]);
			}
		}
	}
}

static void exchange_bounds(struct coll_build *c)
{
	uint32_t temp = 0;
	uint32_t first = 0;
	uint32_t second = 0;

	for (uint32_t h = 0; h < c->nhosts; h++) {
		uint32_t n = coll_nlocal(c->layout, h);

		temp = MAX(temp, n * (c->layout->nranks - n) + n * (n - 1) / 2);
		second = MAX(second, MIN(n, first));
		first = MAX(first, n);
	}
	coll_message_bound(c, c->nhosts > 1 ? first * second : 1, 1, temp);
}

static void exchange(struct coll_build *c)
{
	uint32_t temp = 0;

	exchange_bounds(c);
	c->flags = c->kind == COLL_ALLTOALLV ? PLAN_EMPTY_MESSAGES : 0;
	for (uint32_t i = 1; i < c->nhosts; i++) {
		uint32_t peer = (c->host + i) % c->nhosts;

		exchange_send(c, peer, temp);
		temp += c->nlocal * coll_nlocal(c->layout, peer);
	}
	for (uint32_t i = 1; i < c->nhosts; i++) {
		exchange_receive(c, (c->host + c->nhosts - i) % c->nhosts);
	}
	local_exchange(c, temp);
}

/* ---- gather, scatter ---------------------------------------------------------------------- */

/* The message of one host to or from the root's, on either side. */
static void rooted_message(struct coll_build *c, uint32_t host, bool sends, enum plan_space space)
{
	uint32_t root = c->layout->local_of[c->root];

	for (uint32_t i = c->layout->host_first[host]; i < c->layout->host_first[host + 1]; i++) {
		uint32_t rank = c->layout->by_host[i];
		/* On the root's host: the root's block of that rank; elsewhere that rank's only
		 * one. */
		bool at_root = c->host == c->root_host;
		uint32_t local = at_root ? root : c->layout->local_of[rank];
		uint32_t block = at_root ? rank : 0;

		coll_add_rank_piece(c, rank, false);
		if (sends) {
			plan_add_src(c->b, space, local, block, false);
		} else {
			plan_add_dst(c->b, space, local, block);
		}
	}
}

/* Between the root and the other ranks of its host, and itself. */
static void rooted_local(struct coll_build *c, bool gathers)
{
	uint32_t root = c->layout->local_of[c->root];

	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	for (uint32_t l = 0; l < c->nlocal; l++) {
		coll_add_rank_piece(c, c->ranks[l], false);
		if (gathers) {
			plan_add_src(c->b, PLAN_IN, l, 0, false);
			plan_add_dst(c->b, PLAN_OUT, root, c->ranks[l]);
		} else {
			plan_add_src(c->b, PLAN_IN, root, c->ranks[l], false);
			plan_add_dst(c->b, PLAN_OUT, l, 0);
		}
	}
}

static void rooted(struct coll_build *c)
{
	bool gathers = c->kind == COLL_GATHER || c->kind == COLL_GATHERV;
	bool at_root = c->host == c->root_host;
	/* In a gather the root receives, in a scatter all others do. */
	bool sends = gathers != at_root;

	coll_message_bound(c, c->max_local, 1, 0);
	c->flags = PLAN_WHOLE | (coll_kind_is_v(c->kind) ? PLAN_EMPTY_MESSAGES : 0);
	for (uint32_t i = 1; i < c->nhosts; i++) {
		uint32_t peer = (c->root_host + i) % c->nhosts;

		if (!at_root && peer != c->host) {
			continue;
		}
		plan_add_step(c->b, sends ? PLAN_SEND : PLAN_RECV, at_root ? peer : c->root_host,
			      0);
		rooted_message(c, peer, sends, sends ? PLAN_IN : PLAN_OUT);
	}
	if (at_root) {
		rooted_local(c, gathers);
	}
}

void coll_build_pairwise(struct coll_build *c)
{
	if (c->kind == COLL_ALLTOALL || c->kind == COLL_ALLTOALLV) {
		exchange(c);
	} else {
		rooted(c);
	}
}
