/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan: the operations of one repetition of one row
 *
 * Everything that is measured is a list of operations: one collective is a list of one, D in flight
 * are D of them, a training step is its buckets. They are posted in order; one with .after_all
 * first waits for all before it.
 *
 * Thread: any      Owns: its arrays      Locks: none
 */
#ifndef ROCEBENCH_PLAN_H
#define ROCEBENCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/rocebench/options.h"

struct plan_op {
	int kind;      /* enum coll_kind; COLL_SEND: to the next rank, and from the one before */
	size_t count;  /* elements of one block, as the library takes it; v: unused */
	uint32_t seed; /* of its values */
	bool after_all;
	bool in_place;
	bool back;		       /* alltoallv: what went out by plan.out comes back */
	size_t send_count, recv_count; /* elements that this rank has on each side, 0: none */
	uint8_t *send, *recv;
};

/* Blocks in a buffer, an entry a rank, in elements. */
struct plan_blocks {
	size_t *counts, *displs;
};

struct plan {
	const struct bench *bench;
	int dtype, redop, root;
	unsigned int elem; /* bytes of an element */
	int rank, size;
	struct plan_op *ops;
	size_t n_ops;
	size_t bytes; /* of one operation or step, as reported */
	size_t count; /* likewise, in elements */

	/* alltoallv: what this rank sends to each, and gets from each; skewed and even */
	struct plan_blocks out, in;
};

/*
 * @bytes: asked for; what is done is in .bytes: whole elements, the same number a block, at least
 * one. Return: 0 or -ENOMEM.
 */
int plan_init(struct plan *plan, const struct options *o, enum bench_id id, size_t bytes, int rank,
	      int size);
void plan_deinit(struct plan *plan);
/* Does this rank hold the result of such an operation? */
bool plan_has_result(const struct plan *plan, const struct plan_op *op);
/* Elements of @total that go to rank @to of @size: more to the first, see rocebench(1). */
size_t plan_skewed(size_t total, int to, int size);

#endif
