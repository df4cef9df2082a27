/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verify: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocebench/verify.h"

#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tools/rocebench/values.h"

#define CANARY 0xa5 /* what is received lies on it */
#define CHUNK_BYTES (VALUES_CHUNK * sizeof(uint64_t))

/* A check under way. */
struct check {
	const struct plan *plan;
	const struct plan_op *op;
	struct values values;
	FILE *say;
	size_t wrong;
};

static struct values op_values(const struct plan *plan, const struct plan_op *op)
{
	return (struct values){
		.dtype = plan->dtype, .redop = plan->redop, .size = plan->size, .seed = op->seed};
}

static void fill_one(const struct plan *plan, const struct plan_op *op)
{
	struct values v = op_values(plan, op);

	if (op->recv) {
		memset(op->recv, CANARY, op->recv_count * plan->elem);
	}
	if (op->kind == COLL_BROADCAST && plan->rank == plan->root) {
		values_moved(&v, plan->rank, 0, op->count * plan->elem, op->recv);
	}
	if (!op->send) {
		return;
	}
	if (coll_kind_reduces((unsigned int)op->kind)) {
		values_given(&v, plan->rank, 0, op->send_count, op->send);
	} else {
		values_moved(&v, plan->rank, 0, op->send_count * plan->elem, op->send);
	}
}

void verify_fill(const struct plan *plan)
{
	for (size_t i = 0; i < plan->n_ops; i++) {
		fill_one(plan, &plan->ops[i]);
	}
}

static void tell(const struct check *c, size_t at, const uint8_t *want)
{
	unsigned int elem = c->plan->elem;

	fprintf(c->say, "rocebench: rank %d: %s: operation %td, element %zu of %zu is wrong: bytes",
		c->plan->rank, c->plan->bench->name, c->op - c->plan->ops, at / elem,
		c->op->recv_count);
	for (unsigned int k = 0; k < elem; k++) {
		fprintf(c->say, " %02x", c->op->recv[at + k]);
	}
	fputs(", must be", c->say);
	for (unsigned int k = 0; k < elem; k++) {
		fprintf(c->say, " %02x", want[k]);
	}
	fputc('\n', c->say);
}

/* Counts differing elements of a piece that begins at byte @at of the receive buffer. */
static void compare(struct check *c, size_t at, const uint8_t *want, size_t n)
{
	unsigned int elem = c->plan->elem;
	const uint8_t *got = c->op->recv + at;

	if (memcmp(got, want, n) == 0) {
		return;
	}
	for (size_t i = 0; i < n; i += elem) {
		if (memcmp(got + i, want + i, elem) == 0) {
			continue;
		}
		if (c->wrong++ == 0 && c->say) {
			tell(c, at + i, want + i);
		}
	}
}

/* @n elements at @to came from element @from of what @rank sent. */
static void check_moved(struct check *c, int rank, size_t from, size_t to, size_t n)
{
	uint8_t want[CHUNK_BYTES];
	unsigned int elem = c->plan->elem;

	for (size_t at = 0; at < n * elem; at += sizeof(want)) {
		size_t now = MIN(n * elem - at, sizeof(want));

		values_moved(&c->values, rank, from * elem + at, now, want);
		compare(c, to * elem + at, want, now);
	}
}

/* All received elements are the reduction of elements @from ... */
static void check_reduced(struct check *c, size_t from)
{
	uint8_t want[CHUNK_BYTES];
	unsigned int elem = c->plan->elem;

	for (size_t at = 0; at < c->op->recv_count; at += VALUES_CHUNK) {
		size_t now = MIN(c->op->recv_count - at, (size_t)VALUES_CHUNK);

		values_reduced(&c->values, from + at, now, want);
		compare(c, at * elem, want, now * elem);
	}
}

static void check_alltoallv(struct check *c)
{
	const struct plan *plan = c->plan;
	const struct plan_blocks *in = c->op->back ? &plan->out : &plan->in;

	for (int k = 0; k < plan->size; k++) {
		/* Out: all send alike, so my block lies where mine does. Back: an even one. */
		size_t from = c->op->back ? plan->out.counts[k] * (size_t)plan->rank
					  : plan->out.displs[plan->rank];

		check_moved(c, k, from, in->displs[k], in->counts[k]);
	}
}

static size_t check_one(const struct plan *plan, const struct plan_op *op, FILE *say)
{
	struct check c = {.plan = plan, .op = op, .values = op_values(plan, op), .say = say};
	size_t rank = (size_t)plan->rank;

	if (!plan_has_result(plan, op)) {
		return 0;
	}
	switch (op->kind) {
	case COLL_ALLREDUCE:
	case COLL_REDUCE:
		check_reduced(&c, 0);
		break;
	case COLL_REDUCE_SCATTER:
		check_reduced(&c, rank * op->count);
		break;
	case COLL_BROADCAST:
		check_moved(&c, plan->root, 0, 0, op->count);
		break;
	case COLL_SCATTER:
		check_moved(&c, plan->root, rank * op->count, 0, op->count);
		break;
	case COLL_SEND:
		check_moved(&c, (plan->rank + plan->size - 1) % plan->size, 0, 0, op->count);
		break;
	case COLL_ALLTOALLV:
		check_alltoallv(&c);
		break;
	default: /* allgather, gather, alltoall: a block of each */
		for (int k = 0; k < plan->size; k++) {
			size_t from = op->kind == COLL_ALLTOALL ? rank * op->count : 0;

			check_moved(&c, k, from, (size_t)k * op->count, op->count);
		}
		break;
	}
	return c.wrong;
}

size_t verify_check(const struct plan *plan, FILE *say)
{
	size_t wrong = 0;

	for (size_t i = 0; i < plan->n_ops; i++) {
		wrong += check_one(plan, &plan->ops[i], say);
	}
	return wrong;
}

/* The last rank that has a result of the first operation. */
static int last_with_result(const struct plan *plan)
{
	const struct plan_op *op = &plan->ops[0];
	int rank = plan->size - 1;

	if (op->kind == COLL_REDUCE || op->kind == COLL_GATHER) {
		return plan->root;
	}
	/* Skewed: the last ranks may get nothing, the first one never does. */
	while (op->kind == COLL_ALLTOALLV && rank > 0 && plan->out.counts[rank] == 0) {
		rank--;
	}
	return rank;
}

void verify_corrupt(const struct plan *plan)
{
	const struct plan_op *op = &plan->ops[0];

	if (plan->rank == last_with_result(plan) && op->recv) {
		op->recv[op->recv_count * plan->elem / 2] ^= 0x10;
	}
}
