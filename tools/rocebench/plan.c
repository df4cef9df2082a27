/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan: implementation
 *
 * Thread: any      Owns: see plan.h      Locks: none
 */
#include "tools/rocebench/plan.h"

#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tools/model/buckets.h"
#include "tools/model/gpt2.h"
#include "tools/model/resnet50.h"

#define SKEW_ONE 1000000u

/* Mixture of experts: what a rank has in one layer. */
#define MOE_TOKENS 2048u
#define MOE_HIDDEN 1024u

static size_t skew_weight(int to)
{
	return SKEW_ONE / ((unsigned int)to + 1);
}

size_t plan_skewed(size_t total, int to, int size)
{
	size_t sum = 0, count, given = 0;

	for (int i = 0; i < size; i++) {
		sum += skew_weight(i);
	}
	if (to > 0) {
		/* 128 bits: a tebibyte times a million does not fit in 64. */
		return (size_t)((unsigned __int128)total * skew_weight(to) / sum);
	}
	for (int i = 1; i < size; i++) {
		count = (size_t)((unsigned __int128)total * skew_weight(i) / sum);
		given += count;
	}
	return total - given;
}

static int blocks_init(struct plan_blocks *blocks, int size)
{
	blocks->counts = calloc((size_t)size, sizeof(size_t));
	blocks->displs = calloc((size_t)size, sizeof(size_t));
	return blocks->counts && blocks->displs ? 0 : -ENOMEM;
}

static void blocks_deinit(struct plan_blocks *blocks)
{
	free(take_ptr(blocks->counts));
	free(take_ptr(blocks->displs));
}

/* Shares @total among the ranks, in units of @unit elements. */
static int plan_blocks(struct plan *plan, size_t total, size_t unit)
{
	size_t at_out = 0, at_in = 0;
	size_t own = plan_skewed(total, plan->rank, plan->size) * unit;

	if (blocks_init(&plan->out, plan->size) < 0 || blocks_init(&plan->in, plan->size) < 0) {
		return -ENOMEM;
	}
	for (int i = 0; i < plan->size; i++) {
		plan->out.counts[i] = plan_skewed(total, i, plan->size) * unit;
		plan->out.displs[i] = at_out;
		plan->in.counts[i] = own;
		plan->in.displs[i] = at_in;
		at_out += plan->out.counts[i];
		at_in += own;
	}
	return 0;
}

/* How many elements this rank has on each side. */
static void op_extents(const struct plan *plan, struct plan_op *op)
{
	size_t n = (size_t)plan->size, all = op->count * n;
	bool root = plan->rank == plan->root;

	switch (op->kind) {
	case COLL_BARRIER:
		break;
	case COLL_BROADCAST:
		op->recv_count = op->count;
		break;
	case COLL_REDUCE:
		op->send_count = op->count;
		op->recv_count = root ? op->count : 0;
		break;
	case COLL_ALLGATHER:
		op->send_count = op->count;
		op->recv_count = all;
		break;
	case COLL_GATHER:
		op->send_count = op->count;
		op->recv_count = root ? all : 0;
		break;
	case COLL_REDUCE_SCATTER:
		op->send_count = all;
		op->recv_count = op->count;
		break;
	case COLL_SCATTER:
		op->send_count = root ? all : 0;
		op->recv_count = op->count;
		break;
	case COLL_ALLTOALL:
		op->send_count = all;
		op->recv_count = all;
		break;
	case COLL_ALLTOALLV:
		op->send_count = plan->out.displs[n - 1] + plan->out.counts[n - 1];
		op->recv_count = plan->in.displs[n - 1] + plan->in.counts[n - 1];
		if (op->back) {
			size_t out = op->send_count;

			op->send_count = op->recv_count;
			op->recv_count = out;
		}
		break;
	default: /* allreduce, send and receive */
		op->send_count = op->count;
		op->recv_count = op->count;
		break;
	}
}

bool plan_has_result(const struct plan *plan, const struct plan_op *op)
{
	return op->recv_count > 0;
}

static int plan_ops(struct plan *plan, size_t n)
{
	plan->ops = calloc(n, sizeof(*plan->ops));
	if (!plan->ops) {
		return -ENOMEM;
	}
	plan->n_ops = n;
	for (size_t i = 0; i < n; i++) {
		plan->ops[i].kind = plan->bench->kind;
		plan->ops[i].seed = (uint32_t)i;
	}
	return 0;
}

/* @n operations of the same size. */
static int plan_same(struct plan *plan, size_t n, size_t bytes)
{
	size_t blocks = plan->bench->blocks ? (size_t)plan->size : 1;
	size_t count = MAX(bytes / plan->elem / blocks, 1);
	int r;

	r = plan_ops(plan, n);
	if (r < 0) {
		return r;
	}
	if (plan->bench->one_row) {
		return 0;
	}
	if (plan->bench->kind == COLL_ALLTOALLV) {
		plan->count = MAX(bytes / plan->elem, 1);
		plan->bytes = plan->count * plan->elem;
		return plan_blocks(plan, plan->count, 1);
	}
	for (size_t i = 0; i < n; i++) {
		plan->ops[i].count = count;
	}
	plan->count = count;
	plan->bytes = count * blocks * plan->elem;
	return 0;
}

/* All tokens go to their experts, and come back when all have arrived. */
static int plan_moe(struct plan *plan, size_t steps)
{
	int r;

	r = plan_ops(plan, 2 * steps);
	if (r == 0) {
		r = plan_blocks(plan, MOE_TOKENS, MOE_HIDDEN);
	}
	if (r < 0) {
		return r;
	}
	plan->ops[steps].after_all = true;
	for (size_t i = steps; i < 2 * steps; i++) {
		plan->ops[i].back = true;
	}
	plan->count = 2 * MOE_TOKENS * MOE_HIDDEN;
	plan->bytes = plan->count * plan->elem;
	return 0;
}

/* Gradients come from the last tensor to the first. */
static size_t model_buckets(enum bench_id id, struct bucket *buckets)
{
	struct tensor tensors[TENSORS_MAX];
	size_t counts[TENSORS_MAX];
	size_t n = id == BENCH_GPT2 ? GPT2_TENSORS : RESNET50_TENSORS;

	if (id == BENCH_GPT2) {
		gpt2_tensors(tensors);
	} else {
		resnet50_tensors(tensors);
	}
	for (size_t i = 0; i < n; i++) {
		counts[i] = tensors[n - 1 - i].count;
	}
	return buckets_assign(counts, n, buckets);
}

/* The buckets of a model, @steps times. */
static int plan_model(struct plan *plan, enum bench_id id, size_t steps)
{
	struct bucket buckets[BUCKETS_MAX];
	size_t n = model_buckets(id, buckets);
	int r;

	r = plan_ops(plan, n * steps);
	if (r < 0) {
		return r;
	}
	for (size_t i = 0; i < n * steps; i++) {
		plan->ops[i].count = buckets[i % n].count;
	}
	plan->count = buckets[n - 1].base + buckets[n - 1].count;
	plan->bytes = plan->count * plan->elem;
	return 0;
}

int plan_init(struct plan *plan, const struct options *o, enum bench_id id, size_t bytes, int rank,
	      int size)
{
	int r;

	memset(plan, 0, sizeof(*plan));
	plan->bench = bench_get(id);
	plan->dtype = o->dtype;
	plan->redop = o->redop;
	plan->root = o->root_rank;
	plan->elem = dtype_size((unsigned int)o->dtype);
	plan->rank = rank;
	plan->size = size;
	switch (id) {
	case BENCH_RESNET50:
	case BENCH_GPT2:
		r = plan_model(plan, id, o->inflight);
		break;
	case BENCH_MOE:
		r = plan_moe(plan, o->inflight);
		break;
	default:
		r = plan_same(plan, o->inflight, bytes);
		break;
	}
	for (size_t i = 0; i < plan->n_ops && r == 0; i++) {
		op_extents(plan, &plan->ops[i]);
		plan->ops[i].in_place =
			plan->bench->always || (o->in_place && plan->bench->in_place);
	}
	return r;
}

void plan_deinit(struct plan *plan)
{
	free(take_ptr(plan->ops));
	blocks_deinit(&plan->out);
	blocks_deinit(&plan->in);
	plan->n_ops = 0;
}
