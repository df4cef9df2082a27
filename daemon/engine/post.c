/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Posts: one rank's part of an operation - its memory, its conflicts, its completion
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/comm.h"

#include <string.h>

#include "engine/progress.h"
#include "engine/vargs.h"

static bool ranges_overlap(const uint8_t *a, uint64_t a_len, const uint8_t *b, uint64_t b_len)
{
	return a_len && b_len && a < b + b_len && b < a + a_len;
}

/**
 * post_conflicts() - does an earlier, incomplete operation of this rank touch the same memory?
 *
 * Two readers do not conflict. Only what stands before @post in the rank's posting order counts, so
 * waiting for conflicts cannot form a cycle.
 */
bool post_conflicts(const struct engine_rank *rank, const struct post *post)
{
	list_for_each (e, &rank->posts) {
		const struct post *o = container_of(e, struct post, link);

		if (o == post) {
			break;
		}
		if (ranges_overlap(o->out, o->out_len, post->in, post->in_len) ||
		    ranges_overlap(o->out, o->out_len, post->out, post->out_len) ||
		    ranges_overlap(o->in, o->in_len, post->out, post->out_len)) {
			return true;
		}
	}
	return false;
}

/* Tells the client, once. */
void post_complete(struct engine_comm *c, uint32_t local, struct post *post, enum status status,
		   uint64_t bytes)
{
	if (!post->posted || post->completed) {
		return;
	}
	post->completed = true;
	list_remove(&post->link);
	client_ring_complete(c->ranks[local].session, c->params.view, post->ticket,
			     post->generation, status, bytes);
}

/* Gives the memory back; after this no transport may touch it. */
void post_release(struct post *post)
{
	struct engine_region *in = post->in_region;
	struct engine_region *out = post->out_region;
	struct engine_region *args = post->args_region;

	post->in_region = NULL;
	post->out_region = NULL;
	post->args_region = NULL;
	post->posted = false;
	engine_region_release(in);
	engine_region_release(out);
	engine_region_release(args);
}

/* How many blocks of `count` elements each side of a rank's operation spans. */
static void post_blocks(const struct engine_comm *c, const struct shm_desc *d, bool is_root,
			uint64_t *ret_in, uint64_t *ret_out)
{
	uint64_t n = c->nranks;

	*ret_in = 1;
	*ret_out = 1;
	switch (d->kind) {
	case COLL_REDUCE:
		*ret_out = is_root;
		break;
	case COLL_BROADCAST:
		*ret_in = is_root;
		*ret_out = !is_root;
		break;
	case COLL_ALLGATHER:
		*ret_out = n;
		break;
	case COLL_REDUCE_SCATTER:
		*ret_in = n;
		break;
	case COLL_GATHER:
		*ret_out = is_root ? n : 0;
		break;
	case COLL_SCATTER:
		*ret_in = is_root ? n : 0;
		break;
	case COLL_ALLTOALL:
		*ret_in = n;
		*ret_out = n;
		break;
	case COLL_GATHERV:
		*ret_out = is_root;
		break;
	case COLL_SCATTERV:
		*ret_in = is_root;
		break;
	case COLL_BARRIER:
		*ret_in = 0;
		*ret_out = 0;
		break;
	default:
		break;
	}
}

/*
 * Resolves one side. A v-variant may reach to the end of the buffer; vargs_extent() narrows that.
 */
static bool post_side(struct engine_session *s, const struct shm_desc *d, uint32_t buf,
		      uint64_t off, uint64_t blocks, uint8_t **ret_ptr, uint64_t *ret_len,
		      struct engine_region **ret_region)
{
	uint64_t bytes;

	*ret_ptr = NULL;
	*ret_len = 0;
	*ret_region = NULL;
	if (blocks == 0) {
		return true;
	}
	if (coll_kind_is_v(d->kind)) {
		if (!client_ring_resolve(s, buf, off, 0, ret_ptr, ret_region)) {
			return false;
		}
		*ret_len = *ret_region ? (*ret_region)->size - off : 0;
		return true;
	}
	if (__builtin_mul_overflow(d->count, (uint64_t)dtype_size(d->dtype), &bytes) ||
	    __builtin_mul_overflow(bytes, blocks, &bytes)) {
		return false;
	}
	*ret_len = bytes;
	return client_ring_resolve(s, buf, off, bytes, ret_ptr, ret_region);
}

const char *post_fill(struct engine_comm *c, uint32_t local, const struct shm_desc *d,
		      struct post *post)
{
	struct engine_session *s = c->ranks[local].session;
	bool is_root = coll_kind_has_root(d->kind) && d->root == c->ranks[local].rank;
	uint64_t in, out;
	uint64_t args = 0;

	memset(post, 0, sizeof(*post));
	post->ticket = d->ticket;
	post->generation = d->generation;
	post->count = d->count;
	post->scalar = d->scalar;
	post->posted = true;
	list_init(&post->link);
	post_blocks(c, d, is_root, &in, &out);
	if (d->kind == COLL_ALLGATHERV || d->kind == COLL_REDUCE_SCATTERV ||
	    ((d->kind == COLL_GATHERV || d->kind == COLL_SCATTERV) && is_root)) {
		args = 2;
	} else if (d->kind == COLL_ALLTOALLV) {
		args = 4;
	}
	if (!post_side(s, d, d->send_buf ? d->send_buf : d->recv_buf,
		       d->send_buf ? d->send_off : d->recv_off, in, &post->in, &post->in_len,
		       &post->in_region)) {
		return "its send buffer is not inside memory that it registered";
	}
	if (!post_side(s, d, d->recv_buf ? d->recv_buf : d->send_buf,
		       d->recv_buf ? d->recv_off : d->send_off, out, &post->out, &post->out_len,
		       &post->out_region)) {
		return "its receive buffer is not inside memory that it registered";
	}
	if (args) {
		uint8_t *p;

		if (!client_ring_resolve(s, d->args_buf, d->args_off,
					 args * c->nranks * sizeof(uint64_t), &p,
					 &post->args_region)) {
			return "its count arrays are not inside memory that it registered";
		}
		if (post->args_region && post->args_region->gpu) {
			return "its count arrays are in memory of a GPU";
		}
		post->args = p;
	}
	if (coll_kind_is_v(d->kind)) {
		struct engine_signature sig = {.kind = d->kind, .dtype = d->dtype};

		vargs_extent(post, &sig, c->ranks[local].rank, c->nranks);
	}
	return NULL;
}
