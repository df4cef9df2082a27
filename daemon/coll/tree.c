/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Binomial tree: logarithmically many hops from or to the host of the root
 *
 * Hosts are numbered from the root's on. The parent of a host is its number without the lowest set
 * bit; its children are its number plus each lower power of two, so a subtree is a run of hosts and
 * a reduction combines own inputs and children in the order of hosts. Allreduce is a reduction to
 * host 0 and a broadcast from it; segments overlap the two.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"
#include "reduce/reduce.h"

enum { TAG_UP = 0, TAG_DOWN = 1 };

#define MAX_CHILDREN 32

struct tree {
	uint32_t parent; /* host; not for the root */
	bool is_root;
	uint32_t nchildren;
	uint32_t children[MAX_CHILDREN]; /* hosts; the nearest one, with the smallest subtree, first
					  */
};

static struct tree tree_of(const struct coll_build *c)
{
	uint32_t number = (c->host + c->nhosts - c->root_host) % c->nhosts;
	struct tree t = {
		.parent = ((number & (number - 1)) + c->root_host) % c->nhosts,
		.is_root = number == 0,
	};

	for (uint32_t d = 1; !(number & d) && number + d < c->nhosts; d *= 2) {
		t.children[t.nchildren++] = (number + d + c->root_host) % c->nhosts;
	}
	return t;
}

/* The result of a reduction step: to the outputs on the root, else to scratch and upwards. */
static void add_result(struct coll_build *c, const struct tree *t)
{
	if (t->is_root) {
		coll_add_outputs(c, 0);
		return;
	}
	plan_add_dst(c->b, PLAN_TEMP, 0, 0);
	plan_add_step(c->b, PLAN_SEND, t->parent, TAG_UP);
	coll_add_temp_pieces(c, 0, 1, 0);
}

/* Several children: each is received into scratch, then all are combined at once. */
static void combine_children(struct coll_build *c, const struct tree *t)
{
	bool own_in_temp = c->nlocal + t->nchildren > REDUCE_MAX_SRC;

	for (uint32_t i = 0; i < t->nchildren; i++) {
		plan_add_step(c->b, PLAN_RECV, t->children[i], TAG_UP);
		coll_add_whole(c, false);
		plan_add_dst(c->b, PLAN_TEMP, 0, 1 + i);
	}
	if (own_in_temp) {
		coll_add_partial(c, 0, 1, 0);
	}
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	coll_add_whole(c, t->is_root);
	if (own_in_temp) {
		plan_add_src(c->b, PLAN_TEMP, 0, 0, false);
	} else {
		coll_add_inputs(c, 0);
	}
	for (uint32_t i = 0; i < t->nchildren; i++) {
		plan_add_src(c->b, PLAN_TEMP, 0, 1 + i, false);
	}
	add_result(c, t);
}

static void tree_reduce(struct coll_build *c, const struct tree *t)
{
	if (t->nchildren == 0) {
		coll_send_partial(c, t->parent, TAG_UP, 0, 1, 0);
	} else if (t->nchildren == 1) {
		plan_add_step(c->b, PLAN_RECV_REDUCE, t->children[0], TAG_UP);
		coll_add_whole(c, t->is_root);
		coll_add_inputs(c, 0);
		plan_add_src(c->b, PLAN_WIRE, 0, 0, false);
		add_result(c, t);
	} else {
		combine_children(c, t);
	}
}

/* The farthest child first: its subtree is the largest. */
static void tree_broadcast(struct coll_build *c, const struct tree *t)
{
	bool from_input = t->is_root && c->kind == COLL_BROADCAST;

	if (!t->is_root) {
		plan_add_step(c->b, PLAN_RECV, t->parent, TAG_DOWN);
		coll_add_whole(c, false);
		coll_add_outputs(c, 0);
	}
	for (uint32_t i = t->nchildren; i-- > 0;) {
		plan_add_step(c->b, PLAN_SEND, t->children[i], TAG_DOWN);
		coll_add_whole(c, false);
		if (from_input) {
			plan_add_src(c->b, PLAN_IN, c->layout->local_of[c->root], 0, false);
		} else {
			plan_add_src(c->b, PLAN_OUT, 0, 0, false);
		}
	}
	if (from_input) {
		coll_add_root_copies(c);
	}
}

static void tree_barrier(struct coll_build *c, const struct tree *t)
{
	uint32_t received = 0;

	c->flags = PLAN_EMPTY_MESSAGES;
	for (; received < t->nchildren; received++) {
		plan_add_step(c->b, PLAN_RECV, t->children[received], TAG_UP);
	}
	if (!t->is_root) {
		uint32_t up = plan_add_step(c->b, PLAN_SEND, t->parent, TAG_UP);

		for (uint32_t i = 0; i < received; i++) {
			plan_add_dep(c->b, up, i);
		}
		received = plan_add_step(c->b, PLAN_RECV, t->parent, TAG_DOWN) + 1;
	}
	for (uint32_t i = t->nchildren; i-- > 0;) {
		uint32_t down = plan_add_step(c->b, PLAN_SEND, t->children[i], TAG_DOWN);

		for (uint32_t k = t->is_root ? 0 : received - 1; k < received; k++) {
			plan_add_dep(c->b, down, k);
		}
	}
}

void coll_build_tree(struct coll_build *c)
{
	struct tree t;

	c->units = 1;
	if (c->kind == COLL_ALLREDUCE || c->kind == COLL_BARRIER) {
		c->root_host = 0;
	}
	t = tree_of(c);
	/* Children of the root: one for each power of two below the number of hosts. */
	coll_message_bound(c, 1, 1, c->reduces ? 33 - (uint32_t)__builtin_clz(c->nhosts - 1) : 0);
	if (c->kind == COLL_BARRIER) {
		tree_barrier(c, &t);
		return;
	}
	if (c->reduces) {
		tree_reduce(c, &t);
	}
	if (c->kind != COLL_REDUCE) {
		tree_broadcast(c, &t);
	}
}
