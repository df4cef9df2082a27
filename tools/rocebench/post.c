/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Post: implementation
 *
 * Thread: main      Owns: see post.h      Locks: none
 */
#include "tools/rocebench/post.h"

#include "proto/base.h"
#include "proto/types.h"

#define REQUESTS 2 /* of an operation */

int post_init(struct post *post, const struct plan *plan, struct roce_comm *comm,
	      struct compute *compute)
{
	*post = (struct post){.plan = plan, .comm = comm, .compute = compute};
	post->requests = calloc(REQUESTS * plan->n_ops, sizeof(struct roce_request *));
	return post->requests ? 0 : -ENOMEM;
}

void post_deinit(struct post *post)
{
	free(take_ptr(post->requests));
}

static int post_ring(struct post *post, const struct plan_op *op, struct roce_request **requests)
{
	const struct plan *plan = post->plan;
	int next = (plan->rank + 1) % plan->size;
	int before = (plan->rank + plan->size - 1) % plan->size;
	int r;

	r = roce_irecv(op->recv, op->count, plan->dtype, before, post->comm, &requests[0]);
	if (r != ROCE_OK) {
		return r;
	}
	return roce_isend(op->send, op->count, plan->dtype, next, post->comm, &requests[1]);
}

static int post_alltoallv(struct post *post, const struct plan_op *op, struct roce_request **ret)
{
	const struct plan *plan = post->plan;
	const struct plan_blocks *send = op->back ? &plan->in : &plan->out;
	const struct plan_blocks *recv = op->back ? &plan->out : &plan->in;

	return roce_ialltoallv(op->send, send->counts, send->displs, op->recv, recv->counts,
			       recv->displs, plan->dtype, post->comm, ret);
}

static int post_one(struct post *post, const struct plan_op *op, struct roce_request **ret)
{
	const struct plan *plan = post->plan;
	struct roce_comm *comm = post->comm;
	int dtype = plan->dtype;

	switch (op->kind) {
	case COLL_ALLREDUCE:
		return roce_iallreduce(op->send, op->recv, op->count, dtype, plan->redop, comm,
				       ret);
	case COLL_REDUCE:
		return roce_ireduce(op->send, op->recv, op->count, dtype, plan->redop, plan->root,
				    comm, ret);
	case COLL_BROADCAST:
		return roce_ibroadcast(op->recv, op->count, dtype, plan->root, comm, ret);
	case COLL_ALLGATHER:
		return roce_iallgather(op->send, op->recv, op->count, dtype, comm, ret);
	case COLL_REDUCE_SCATTER:
		return roce_ireduce_scatter(op->send, op->recv, op->count, dtype, plan->redop, comm,
					    ret);
	case COLL_GATHER:
		return roce_igather(op->send, op->recv, op->count, dtype, plan->root, comm, ret);
	case COLL_SCATTER:
		return roce_iscatter(op->send, op->recv, op->count, dtype, plan->root, comm, ret);
	case COLL_ALLTOALL:
		return roce_ialltoall(op->send, op->recv, op->count, dtype, comm, ret);
	case COLL_ALLTOALLV:
		return post_alltoallv(post, op, ret);
	case COLL_SEND:
		return post_ring(post, op, ret);
	default:
		return roce_ibarrier(comm, ret);
	}
}

int post_run(struct post *post)
{
	const struct plan *plan = post->plan;
	int r;

	for (size_t i = 0; i < plan->n_ops; i++) {
		if (plan->ops[i].after_all) {
			r = roce_wait_all(post->requests, REQUESTS * i, -1);
			if (r != ROCE_OK) {
				return r;
			}
		}
		compute_run(post->compute);
		r = post_one(post, &plan->ops[i], &post->requests[REQUESTS * i]);
		if (r != ROCE_OK) {
			return r;
		}
	}
	return roce_wait_all(post->requests, REQUESTS * plan->n_ops, -1);
}
