/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: implementation
 *
 * Thread: main      Owns: see memory.h      Locks: none
 */
#include "tools/rocebench/memory.h"

#include <string.h>

#include "proto/base.h"
#include "proto/types.h"

#define PAGE 4096u

/* Does the sent side hold the received one, rather than the other way round? */
static bool send_is_outer(const struct plan_op *op)
{
	return op->kind == COLL_REDUCE_SCATTER || op->kind == COLL_SCATTER;
}

/* Where the inner buffer begins in the outer one, in elements. */
static size_t inner_at(const struct plan *plan, const struct plan_op *op)
{
	switch (op->kind) {
	case COLL_ALLGATHER:
	case COLL_GATHER:
	case COLL_REDUCE_SCATTER:
	case COLL_SCATTER:
		return (size_t)plan->rank * op->count;
	default:
		return 0;
	}
}

static bool is_in_place(const struct plan_op *op)
{
	return op->in_place && op->send_count > 0 && op->recv_count > 0;
}

static size_t part(const struct plan *plan, size_t count)
{
	return ALIGN_UP(count * plan->elem, PAGE);
}

static int area_init(struct memory *memory, size_t size, uint8_t **ret)
{
	void *ptr = NULL;

	if (size == 0) {
		return ROCE_OK;
	}
	if (!memory->plain) {
		int r = roce_mem_alloc(memory->client, size, 0, &ptr);

		if (r != ROCE_OK) {
			return r;
		}
	} else if (posix_memalign(&ptr, PAGE, size) != 0) {
		return ROCE_ERR_NO_MEMORY;
	}
	*ret = ptr;
	return ROCE_OK;
}

int memory_init(struct memory *memory, struct roce_client *client, bool plain, struct plan *plan)
{
	size_t send_size = 0, recv_size = 0, send_at = 0, recv_at = 0;
	int r;

	*memory = (struct memory){.client = client, .plain = plain};
	for (size_t i = 0; i < plan->n_ops; i++) {
		const struct plan_op *op = &plan->ops[i];
		bool one = is_in_place(op);

		send_size += one && !send_is_outer(op) ? 0 : part(plan, op->send_count);
		recv_size += one && send_is_outer(op) ? 0 : part(plan, op->recv_count);
	}
	r = area_init(memory, send_size, &memory->send);
	if (r == ROCE_OK) {
		r = area_init(memory, recv_size, &memory->recv);
	}
	if (r != ROCE_OK) {
		return r;
	}
	for (size_t i = 0; i < plan->n_ops; i++) {
		struct plan_op *op = &plan->ops[i];
		size_t inner = inner_at(plan, op) * plan->elem;
		bool one = is_in_place(op);

		if (op->send_count > 0 && !(one && !send_is_outer(op))) {
			op->send = memory->send + send_at;
			send_at += part(plan, op->send_count);
		}
		if (op->recv_count > 0 && !(one && send_is_outer(op))) {
			op->recv = memory->recv + recv_at;
			recv_at += part(plan, op->recv_count);
		}
		if (one && send_is_outer(op)) {
			op->recv = op->send + inner;
		} else if (one) {
			op->send = op->recv + inner;
		}
	}
	return ROCE_OK;
}

static void area_deinit(struct memory *memory, uint8_t *area)
{
	if (memory->plain) {
		free(area);
	} else {
		roce_mem_free(memory->client, area);
	}
}

void memory_deinit(struct memory *memory)
{
	area_deinit(memory, take_ptr(memory->send));
	area_deinit(memory, take_ptr(memory->recv));
}
