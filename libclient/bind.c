/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Bind: gives each side of an operation a place in shared memory
 *
 * Memory from roce_mem_alloc() is that place. Registered memory has a mirror at the same offset;
 * of memory that is shared in place the mirror is the same pages, but for its first and last bytes.
 * Anything else gets a staging block. For the latter two, copy lists say what to move in before
 * the post and out after completion; blocks of v-variants are moved one by one, so that gaps
 * between them are neither read nor written.
 *
 * Memory of a GPU that the daemon has is such a place too; but what is small and posted by a stream
 * is staged all the same, see place_small().
 *
 * Thread: any      Owns: nothing (blocks go to the request)      Locks: the client's lock, inside
 */
#include "libclient/post.h"

#include <string.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/group.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

/* Where one side lies. */
struct place {
	uint32_t buffer;
	uint64_t off;
	uint8_t *stage; /* shared address that stands for region->ptr; NULL: region->ptr itself */
	struct roce_buffer *mirror;
	const struct roce_buffer *alias; /* whose pages are not to be copied to the stage */
	bool block;			 /* needs a staging block */
	bool pinned;			 /* the driver knows the user's memory */
	bool exported;			 /* of a device, and the daemon has it */
	unsigned int gpu;		 /* 1 + device, if the memory is a device's */
};

/* Looks a region up. Lock held. */
static int place_find(struct roce_client *client, const struct post_args *args,
		      const struct post_region *region, const char *side, struct place *p)
{
	struct roce_buffer *buffer;
	enum mem_hit hit;

	if (region->size == 0) {
		return 0;
	}
	hit = mem_find(&client->mem, region->ptr, region->size, &buffer);
	if (hit == MEM_PARTIAL && buffer->shared) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: %s [%p, +%zu) is only partly inside the memory [%p, +%zu) "
				 "from roce_mem_alloc()",
				 coll_kind_name(args->kind), side, (void *)region->ptr,
				 region->size, (void *)buffer->ptr, buffer->size);
	}
	if (hit != MEM_INSIDE) {
		p->block = true;
		return 0;
	}
	p->buffer = buffer->shm.id;
	p->off = (uint64_t)(region->ptr - buffer->ptr) + buffer->head;
	if (!buffer->shared) {
		p->mirror = buffer;
		p->alias = buffer->alias.range.base ? buffer : NULL;
		p->stage = buffer->shm.base + p->off;
	}
	return 0;
}

/* Asks the GPU's driver about what is not in the table. Lock not held. */
static int place_gpu(struct op *op, const struct post_region *region, unsigned int which,
		     struct place *p)
{
	struct gpu_place g;
	int r;

	if (!p->block) {
		return 0;
	}
	r = gpu_find(op->comm->client, region->ptr, region->size, &g);
	if (r != 0) {
		return r;
	}
	op->used[which] = g.used;
	p->pinned = g.kind == GPU_HOST ? g.pinned : true;
	p->gpu = g.kind == GPU_HOST ? 0 : (unsigned int)g.device + 1;
	if (g.kind == GPU_EXPORTED) {
		p->block = false;
		p->exported = true;
		p->buffer = g.buffer;
		p->off = g.off;
	}
	return 0;
}

/* A stream copies only memory that the driver knows. */
static int place_stream(const struct op *op, const struct post_region *region, const char *side,
			const struct place *p)
{
	if (!op->streamed || p->pinned || !(p->block || p->mirror)) {
		return 0;
	}
	return error_set(ROCE_ERR_UNSUPPORTED,
			 "%s: %s [%p, +%zu) is plain host memory, which a stream cannot copy: use "
			 "device memory, pinned memory (cudaHostAlloc) or roce_mem_alloc()",
			 coll_kind_name(op->desc.kind), side, (void *)region->ptr, region->size);
}

/*
 * The blocks of a v-variant may, for all the daemon knows when it is posted, reach to the end of
 * their buffer: they get one of their own, lest the daemon see conflicts with other operations.
 */
static int place_stage(struct op *op, const struct post_region *region, unsigned int which,
		       struct place *p)
{
	struct staging_block **block = &op->request->blocks[which];
	struct roce_client *client = op->comm->client;
	bool alone = coll_kind_is_v(op->desc.kind);
	size_t size = alone ? MAX(region->size, STAGING_SLAB / 2) : region->size;
	int r = staging_get(client, size, block);

	if (r == 0 && (op->streamed || p->gpu)) {
		r = gpu_pin(client, (int)p->gpu - 1, &(*block)->slab->shm);
	}
	if (r == 0) {
		p->buffer = (*block)->buffer;
		p->off = (*block)->off;
		p->stage = (*block)->ptr;
		p->alias = NULL;
	}
	return r;
}

/*
 * Staging blocks for the sides that need one. Both share the larger one's when they are in place,
 * and also when they could be: what is staged is ours, and half the memory is half the cache.
 */
static int place_blocks(struct op *op, const struct post_shape *shape, struct place *send,
			struct place *recv)
{
	const struct post_region *s = &shape->send, *r = &shape->recv;
	int e = 0;

	if (send->block && recv->block && (shape->in_place || shape->nests) && !shape->copy_send) {
		bool send_larger = s->size >= r->size;
		const struct post_region *large = send_larger ? s : r;
		const struct post_region *small = send_larger ? r : s;
		struct place *l = send_larger ? send : recv;
		struct place *m = send_larger ? recv : send;
		size_t delta = shape->in_place ? (size_t)(small->ptr - large->ptr) : shape->nest;

		e = place_stage(op, large, REQUEST_SEND, l);
		if (e == 0) {
			m->buffer = l->buffer;
			m->off = l->off + delta;
			m->stage = l->stage + delta;
		}
		return e;
	}
	if (send->block || shape->copy_send) {
		e = place_stage(op, s, REQUEST_SEND, send);
	}
	if (e == 0 && recv->block) {
		e = place_stage(op, r, REQUEST_RECV, recv);
	}
	return e;
}

static size_t small_size(const struct op *op, const struct post_region *region,
			 const struct place *p)
{
	size_t size = coll_kind_is_v(op->desc.kind) ? STAGING_SLAB / 2 : region->size;

	return p->exported ? staging_class_size(staging_class(size)) : 0;
}

/*
 * Small operations on memory that the daemon has: the stream copies them to staging and back by
 * itself, which spares the daemon's copies and two hand-overs between its threads. Not in a group,
 * where inputs would be copied before the operations ahead of them have ended. Return: 0, or the
 * status of a lost daemon; *send and *recv are as before when the small path is not to be had.
 */
static int place_small(struct op *op, const struct post_shape *shape, struct place *send,
		       struct place *recv)
{
	size_t size = small_size(op, &shape->send, send) + small_size(op, &shape->recv, recv);
	struct roce_client *client = op->comm->client;
	struct place s = *send, r = *recv;
	bool room;
	int e;

	if (!op->streamed || size == 0 || group_current() ||
	    MAX(shape->send.size, shape->recv.size) > GPU_SMALL) {
		return 0;
	}
	pthread_mutex_lock(&client->lock);
	room = client->gpu.small + size <= GPU_SMALL_ROOM;
	if (room) {
		client->gpu.small += size;
		op->request->small = size;
	}
	pthread_mutex_unlock(&client->lock);
	if (!room) {
		return 0;
	}
	s.block |= s.exported;
	r.block |= r.exported;
	e = place_blocks(op, shape, &s, &r);
	if (e == 0) {
		*send = s;
		*recv = r;
		return 0;
	}
	pthread_mutex_lock(&client->lock);
	request_release(op->request);
	pthread_mutex_unlock(&client->lock);
	return conn_dead(&client->conn) ? e : 0;
}

/* What of a piece is not in pages that both sides have. Return: number of pieces, at most two. */
static size_t seg_outside(struct copy_seg seg, const struct roce_buffer *alias,
			  struct copy_seg *ret)
{
	const uint8_t *begin, *end;
	size_t n = 0;

	if (!alias) {
		*ret = seg;
		return 1;
	}
	begin = alias->alias.range.base;
	end = begin + alias->alias.range.size;
	if (seg.user < begin) {
		ret[n++] = (struct copy_seg){seg.user, seg.stage,
					     MIN(seg.size, (size_t)(begin - seg.user))};
	}
	if (seg.user + seg.size > end) {
		size_t skip = seg.user < end ? (size_t)(end - seg.user) : 0;

		ret[n++] = (struct copy_seg){seg.user + skip, seg.stage + skip, seg.size - skip};
	}
	return n;
}

static int copy_list_many(struct copy_list *list, size_t n)
{
	list->many = malloc(n * sizeof(*list->many));
	return list->many ? 0
			  : error_set(ROCE_ERR_NO_MEMORY, "no memory for a list of %zu pieces", n);
}

/* One piece. The list is never empty: what has one waits for earlier operations, see post.c. */
static int copy_list_one(struct copy_seg seg, const struct roce_buffer *alias,
			 struct copy_list *ret)
{
	struct copy_seg outside[2];
	size_t n = seg_outside(seg, alias, outside);

	ret->n = 1;
	if (n == 2) {
		int r = copy_list_many(ret, 2);

		if (r != 0) {
			return r;
		}
		memcpy(ret->many, outside, sizeof(outside));
		ret->n = 2;
	} else if (n == 1) {
		ret->one = outside[0];
	} else {
		ret->one = (struct copy_seg){seg.user, seg.stage, 0};
	}
	return 0;
}

/* What to copy between a region and its stage. */
static int copy_list_make(const struct post_region *region, uint8_t *stage,
			  const struct roce_buffer *alias, struct copy_list *ret)
{
	size_t running = 0, used = 0;
	int r;

	if (region->n == 0) {
		return copy_list_one((struct copy_seg){region->ptr, stage, region->size}, alias,
				     ret);
	}
	r = copy_list_many(ret, region->n * 2);
	if (r != 0) {
		return r;
	}
	for (size_t i = 0; i < region->n; i++) {
		size_t at = region->displs ? region->displs[i] : running;

		running += region->counts[i];
		if (region->counts[i] > 0) {
			used += seg_outside(
				(struct copy_seg){region->base + at * region->elem,
						  stage + (at - region->skip) * region->elem,
						  region->counts[i] * region->elem},
				alias, &ret->many[used]);
		}
	}
	if (used == 0 && alias) {
		ret->many[used++] = (struct copy_seg){region->ptr, stage, 0};
	}
	ret->n = used;
	return 0;
}

/* Counts and displacements, relative to region->ptr, as the daemon reads them. */
static void args_fill(const struct post_region *region, uint64_t *out)
{
	size_t running = 0;

	for (size_t i = 0; i < region->n; i++) {
		size_t at = region->displs ? region->displs[i] : running;

		running += region->counts[i];
		out[i] = region->counts[i];
		out[region->n + i] = region->counts[i] > 0 ? at - region->skip : 0;
	}
}

static int bind_arrays(struct op *op, const struct post_shape *shape)
{
	size_t n = 2 * (shape->send.n + shape->recv.n) * sizeof(uint64_t);
	struct staging_block **block = &op->request->blocks[REQUEST_ARGS];
	uint64_t *out;
	int r;

	if (n == 0) {
		return 0;
	}
	r = staging_get(op->comm->client, n, block);
	if (r != 0) {
		return r;
	}
	out = (uint64_t *)(*block)->ptr;
	args_fill(&shape->send, out);
	args_fill(&shape->recv, out + 2 * shape->send.n);
	op->desc.args_buf = (*block)->buffer;
	op->desc.args_off = (*block)->off;
	return 0;
}

/* Where both sides are, and a place for what is nowhere. */
static int place_both(struct op *op, const struct post_args *args, const struct post_shape *shape,
		      struct place *send, struct place *recv)
{
	struct roce_client *client = op->comm->client;
	int r;

	pthread_mutex_lock(&client->lock);
	r = place_find(client, args, &shape->send, "send", send);
	if (r == 0) {
		r = place_find(client, args, &shape->recv, "recv", recv);
	}
	pthread_mutex_unlock(&client->lock);
	if (r == 0) {
		r = place_gpu(op, &shape->send, REQUEST_SEND, send);
	}
	if (r == 0) {
		r = place_gpu(op, &shape->recv, REQUEST_RECV, recv);
	}
	if (r == 0) {
		r = place_stream(op, &shape->send, "send", send);
	}
	if (r == 0) {
		r = place_stream(op, &shape->recv, "recv", recv);
	}
	if (r == 0) {
		r = place_small(op, shape, send, recv);
	}
	if (r == 0 && op->request->small == 0 && (send->block || recv->block || shape->copy_send)) {
		r = place_blocks(op, shape, send, recv);
	}
	return r;
}

int op_bind(struct op *op, const struct post_args *args, const struct post_shape *shape)
{
	struct roce_request *request = op->request;
	/* Of a broadcast each rank uses one side, though both are named. */
	bool reads = args->kind != COLL_BROADCAST || args->root == op->comm->rank;
	bool writes = args->kind != COLL_BROADCAST || args->root != op->comm->rank;
	struct place send = {.buffer = 0}, recv = {.buffer = 0};
	int r = place_both(op, args, shape, &send, &recv);

	if (r == 0) {
		r = bind_arrays(op, shape);
	}
	if (r == 0 && send.stage && reads) {
		op->read = shape->send.ptr;
		op->read_size = shape->send.size;
		op->in.gpu = send.gpu;
		r = copy_list_make(&shape->send, send.stage, send.alias, &op->in);
	}
	if (r == 0 && recv.stage && writes) {
		struct copy_list *out = op->streamed ? &op->out : &request->out;

		out->gpu = recv.gpu;
		r = copy_list_make(&shape->recv, recv.stage, recv.alias, out);
	}
	if (r != 0) {
		return r;
	}
	if (send.alias && reads) {
		request->read = shape->send.ptr;
		request->read_size = shape->send.size;
	}
	request->mirror = recv.mirror;
	if (writes) {
		request->write = shape->recv.ptr;
		request->write_size = shape->recv.size;
	}
	op->copy_send = shape->copy_send;
	op->desc.send_buf = send.buffer;
	op->desc.send_off = send.off;
	op->desc.recv_buf = recv.buffer;
	op->desc.recv_off = recv.off;
	return 0;
}
