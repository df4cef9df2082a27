/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: implementation
 *
 * Thread: main      Owns: see memory.h      Locks: none
 */
#include "tools/rocebench/memory.h"

#include <inttypes.h>
#include <stdio.h>

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

/* Bytes of both areas. */
static void sizes(const struct plan *plan, size_t *ret_send, size_t *ret_recv)
{
	size_t send = 0, recv = 0;

	for (size_t i = 0; i < plan->n_ops; i++) {
		const struct plan_op *op = &plan->ops[i];
		bool one = is_in_place(op);

		send += one && !send_is_outer(op) ? 0 : part(plan, op->send_count);
		recv += one && send_is_outer(op) ? 0 : part(plan, op->recv_count);
	}
	*ret_send = send;
	*ret_recv = recv;
}

/* What this machine has left, in bytes; INT64_MAX when it does not say. */
static int64_t available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	int64_t kib, bytes = INT64_MAX;
	char line[128];

	if (!f) {
		return bytes;
	}
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %" SCNd64, &kib) == 1) {
			bytes = kib * 1024;
		}
	}
	fclose(f);
	return bytes;
}

/* The ranks on this rank's host, and whether it is the first of them. */
static int64_t neighbours(const struct plan *plan, struct roce_comm *comm, bool *ret_first)
{
	int host = roce_comm_host_of(comm, plan->rank);
	int64_t n = 0;

	*ret_first = true;
	for (int r = 0; r < plan->size; r++) {
		bool here = roce_comm_host_of(comm, r) == host;

		n += here;
		*ret_first = *ret_first && !(here && r < plan->rank);
	}
	return n;
}

int memory_fits(const struct plan *plan, struct roce_comm *comm, bool *ret_fits)
{
	int64_t room = available() / 2, need, here, missing = 0;
	size_t send, recv;
	bool first;
	int r;

	sizes(plan, &send, &recv);
	need = (int64_t)(send + recv);
	here = neighbours(plan, comm, &first);
	r = roce_allreduce(&need, &need, 1, ROCE_I64, ROCE_MAX, comm);
	if (r != ROCE_OK) {
		return r;
	}
	if (need > room / here) {
		missing = 1;
		if (first) {
			fprintf(stderr,
				"rocebench: %s of %zu bytes: up to %" PRId64
				" MiB a rank for %" PRId64
				" ranks here, but half of the available memory is %" PRId64
				" MiB: smaller sizes, less in flight or fewer ranks, or "
				"--inplace\n",
				plan->bench->name, plan->bytes, need >> 20, here, room >> 20);
		}
	}
	r = roce_allreduce(&missing, &missing, 1, ROCE_I64, ROCE_MAX, comm);
	if (r == ROCE_OK) {
		*ret_fits = missing == 0;
	}
	return r;
}

int memory_init(struct memory *memory, struct roce_client *client, bool plain, struct plan *plan)
{
	size_t send_size, recv_size, send_at = 0, recv_at = 0;
	int r;

	*memory = (struct memory){.client = client, .plain = plain};
	sizes(plan, &send_size, &recv_size);
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
