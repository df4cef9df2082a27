/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Case: layout and expectation
 *
 * Thread: main      Owns: see case.h      Locks: none
 */
#include "tests/integration/collcheck/case.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"

#define CANARY 0xa5
#define GAP 3 /* canary elements between the blocks of v-variants */

int arena_init(struct arena *arena, struct roce_client *client, enum arena_memory memory,
	       size_t size)
{
	void *ptr;
	int r;

	*arena = (struct arena){.size = size, .memory = memory};
	if (memory == ARENA_SHARED) {
		r = roce_mem_alloc(client, size, 0, &ptr);
		if (r == ROCE_OK) {
			arena->base = ptr;
		}
		return r;
	}
	arena->base = malloc(size);
	if (!arena->base) {
		return ROCE_ERR_NO_MEMORY;
	}
	return memory == ARENA_PLAIN ? ROCE_OK
				     : roce_mem_register(client, arena->base, size, &arena->buffer);
}

void arena_deinit(struct arena *arena, struct roce_client *client)
{
	if (arena->memory == ARENA_SHARED) {
		roce_mem_free(client, arena->base);
		return;
	}
	if (arena->buffer) {
		roce_mem_deregister(arena->buffer);
	}
	free(arena->base);
}

bool case_has_in_place(int kind)
{
	return kind != COLL_BROADCAST && kind != COLL_BARRIER && kind != COLL_SEND;
}

/* Count of a rank's block in v-variants: differs by rank, 0 for some. */
static size_t count_of(const struct one_case *c, unsigned int rank)
{
	if (!coll_kind_is_v((unsigned int)c->value.kind)) {
		return c->count;
	}
	return c->count * ((rank * 7 + 3) % 5) / 2;
}

/* From a to b in alltoallv; symmetric, so that it can be done in place. */
static size_t count_between(const struct one_case *c, unsigned int a, unsigned int b)
{
	return c->value.kind == COLL_ALLTOALLV ? c->count * ((a + b) % 3) / 2 : c->count;
}

/* Displacement of block @b in the buffer of rank @a; b == size: the end. */
static size_t displ_of(const struct one_case *c, unsigned int a, unsigned int b)
{
	bool gaps = coll_kind_is_v((unsigned int)c->value.kind) &&
		    c->value.kind != COLL_REDUCE_SCATTERV;
	bool between = c->value.kind == COLL_ALLTOALLV;
	size_t at = 0;

	for (unsigned int k = 0; k < b; k++) {
		at += (between ? count_between(c, a, k) : count_of(c, k)) + (gaps ? GAP : 0);
	}
	return at;
}

static bool is_root(const struct one_case *c)
{
	return !coll_kind_has_root((unsigned int)c->value.kind) || (int)c->rank == c->root;
}

/* Elements of the send and of the receive buffer, 0: none. */
static void extents(const struct one_case *c, size_t *ret_send, size_t *ret_recv)
{
	size_t own = count_of(c, c->rank), all = displ_of(c, c->rank, c->value.size);
	bool root = is_root(c);

	switch (c->value.kind) {
	case COLL_REDUCE:
		*ret_send = own;
		*ret_recv = own; /* elsewhere than on the root: must stay as it is */
		break;
	case COLL_BROADCAST:
		*ret_send = 0;
		*ret_recv = own;
		break;
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
		*ret_send = own;
		*ret_recv = all;
		break;
	case COLL_GATHER:
	case COLL_GATHERV:
		*ret_send = own;
		*ret_recv = root ? all : 0;
		break;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		*ret_send = all;
		*ret_recv = own;
		break;
	case COLL_SCATTER:
	case COLL_SCATTERV:
		*ret_send = root ? all : 0;
		*ret_recv = own;
		break;
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		*ret_send = all;
		*ret_recv = all;
		break;
	case COLL_BARRIER:
		*ret_send = 0;
		*ret_recv = 0;
		break;
	default: /* allreduce, a ring of send and receive */
		*ret_send = own;
		*ret_recv = own;
		break;
	}
}

size_t case_room(const struct one_case *c)
{
	struct one_case any = *c;
	size_t send, recv, most = 0;

	for (unsigned int r = 0; r < c->value.size; r++) {
		any.rank = r;
		extents(&any, &send, &recv);
		most = MAX(most, MAX(send, recv));
	}
	return most * dtype_size((unsigned int)c->value.dtype) + c->misalign + 2 * CASE_GUARD;
}

/* In place: which side holds the other, and where. */
static bool send_is_larger(int kind)
{
	return kind == COLL_REDUCE_SCATTER || kind == COLL_REDUCE_SCATTERV ||
	       kind == COLL_SCATTER || kind == COLL_SCATTERV;
}

static size_t in_place_at(const struct one_case *c)
{
	switch (c->value.kind) {
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
	case COLL_GATHER:
	case COLL_GATHERV:
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
	case COLL_SCATTER:
	case COLL_SCATTERV:
		return displ_of(c, c->rank, c->rank);
	default:
		return 0;
	}
}

static int side_init(struct side *side, const struct one_case *c, const struct arena *arena,
		     size_t count)
{
	size_t bytes = count * dtype_size((unsigned int)c->value.dtype);

	side->zone = arena->base;
	side->zone_size = bytes + c->misalign + 2 * CASE_GUARD;
	assert(side->zone_size <= arena->size);
	side->data = side->zone + CASE_GUARD + c->misalign;
	side->expect = malloc(side->zone_size);
	if (!side->expect) {
		return -ENOMEM;
	}
	memset(side->zone, CANARY, side->zone_size);
	return 0;
}

static void fill_block(const struct one_case *c, unsigned int rank, uint8_t *to, size_t from,
		       size_t n)
{
	unsigned int elem = dtype_size((unsigned int)c->value.dtype);

	for (size_t i = 0; i < n; i++) {
		value_make(&c->value, rank, from + i, to + i * elem);
	}
}

/* Writes this rank's input; gaps keep the canary. */
static void fill_send(const struct one_case *c, uint8_t *data)
{
	unsigned int elem = dtype_size((unsigned int)c->value.dtype);
	int kind = c->value.kind;
	bool blocks = kind == COLL_ALLTOALL || kind == COLL_ALLTOALLV || send_is_larger(kind);

	if (!blocks) {
		fill_block(c, c->rank, data, 0, count_of(c, c->rank));
		return;
	}
	for (unsigned int k = 0; k < c->value.size; k++) {
		size_t at = displ_of(c, c->rank, k);
		size_t n = kind == COLL_ALLTOALLV ? count_between(c, c->rank, k) : count_of(c, k);

		fill_block(c, c->rank, data + at * elem, at, n);
	}
}

/* Writes what this rank must receive to @to, which stands for its receive buffer. */
static void expect_recv(const struct one_case *c, uint8_t *to)
{
	unsigned int elem = dtype_size((unsigned int)c->value.dtype), size = c->value.size;
	size_t own = count_of(c, c->rank), at = displ_of(c, c->rank, c->rank);
	unsigned int from = (c->rank + size - (unsigned int)c->root % size) % size;

	switch (c->value.kind) {
	case COLL_ALLREDUCE:
	case COLL_REDUCE:
		for (size_t i = 0; i < own && is_root(c); i++) {
			value_reduce(&c->value, i, to + i * elem);
		}
		break;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		for (size_t i = 0; i < own; i++) {
			value_reduce(&c->value, at + i, to + i * elem);
		}
		break;
	case COLL_BROADCAST:
		fill_block(c, (unsigned int)c->root, to, 0, own);
		break;
	case COLL_SCATTER:
	case COLL_SCATTERV:
		fill_block(c, (unsigned int)c->root, to, at, own);
		break;
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		for (unsigned int k = 0; k < size; k++) {
			fill_block(c, k, to + displ_of(c, c->rank, k) * elem,
				   displ_of(c, k, c->rank), count_between(c, k, c->rank));
		}
		break;
	case COLL_SEND:
		fill_block(c, from, to, 0, own);
		break;
	case COLL_BARRIER:
		break;
	default: /* the gathers */
		for (unsigned int k = 0; k < size && is_root(c); k++) {
			fill_block(c, k, to + displ_of(c, 0, k) * elem, 0, count_of(c, k));
		}
		break;
	}
}

static int prepare_in_place(struct one_case *c, const struct arena *send, const struct arena *recv,
			    size_t send_count, size_t recv_count)
{
	size_t at = in_place_at(c) * dtype_size((unsigned int)c->value.dtype);
	bool larger = send_is_larger(c->value.kind);
	struct side *outer = larger ? &c->send : &c->recv;
	struct side *inner = larger ? &c->recv : &c->send;
	int r;

	r = side_init(outer, c, larger ? send : recv, larger ? send_count : recv_count);
	if (r < 0) {
		return r;
	}
	inner->data = outer->data + at;
	fill_send(c, c->send.data);
	memcpy(outer->expect, outer->zone, outer->zone_size);
	expect_recv(c, outer->expect + (c->recv.data - outer->zone));
	return 0;
}

static void fill_arrays(struct one_case *c)
{
	bool between = c->value.kind == COLL_ALLTOALLV;

	for (unsigned int k = 0; k < c->value.size; k++) {
		c->send_counts[k] = between ? count_between(c, c->rank, k) : count_of(c, k);
		c->recv_counts[k] = c->send_counts[k];
		c->send_displs[k] = displ_of(c, c->rank, k);
		c->recv_displs[k] = c->send_displs[k];
	}
}

int case_prepare(struct one_case *c, unsigned int rank, const struct arena *send,
		 const struct arena *recv)
{
	size_t send_count, recv_count;
	int r;

	assert(c->value.size <= CASE_RANKS_MAX);
	c->rank = rank;
	memset(&c->send, 0, sizeof(c->send));
	memset(&c->recv, 0, sizeof(c->recv));
	memset(c->requests, 0, sizeof(c->requests));
	/* A rank without one of the two buffers has nothing to be in place with. */
	c->in_place = c->in_place && case_has_in_place(c->value.kind) && is_root(c);
	extents(c, &send_count, &recv_count);
	fill_arrays(c);
	if (c->in_place) {
		return prepare_in_place(c, send, recv, send_count, recv_count);
	}
	r = side_init(&c->send, c, send, send_count);
	if (r == 0) {
		r = side_init(&c->recv, c, recv, recv_count);
	}
	if (r < 0) {
		return r;
	}
	if (send_count > 0) {
		fill_send(c, c->send.data);
	}
	if (c->value.kind == COLL_BROADCAST && is_root(c)) {
		fill_block(c, c->rank, c->recv.data, 0, c->count);
	}
	memcpy(c->send.expect, c->send.zone, c->send.zone_size);
	memcpy(c->recv.expect, c->recv.zone, c->recv.zone_size);
	expect_recv(c, c->recv.expect + (c->recv.data - c->recv.zone));
	return 0;
}

void case_deinit(struct one_case *c)
{
	free(take_ptr(c->send.expect));
	free(take_ptr(c->recv.expect));
}
