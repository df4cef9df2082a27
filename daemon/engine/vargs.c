/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Argument arrays of v-variants: see vargs.h
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/vargs.h"

#include <string.h>

#include "engine/progress.h"

/* Bytes behind a post's pointer on one side. */
static uint64_t room(const struct engine_region *r, const uint8_t *at)
{
	return r ? r->size - (uint64_t)(at - r->base) : 0;
}

/* Is every block of (counts, displs) inside @bytes? */
static bool blocks_fit(const uint64_t *counts, const uint64_t *displs, uint32_t n, uint64_t bytes,
		       unsigned int esize)
{
	uint64_t limit = bytes / esize;

	for (uint32_t i = 0; i < n; i++) {
		if (counts[i] && (counts[i] > limit || displs[i] > limit - counts[i])) {
			return false;
		}
	}
	return true;
}

static const char *load_alltoallv(struct op *op, struct vargs *v, uint32_t l, unsigned int esize)
{
	uint32_t n = op->comm->nranks;
	struct post *post = &op->posts[l];
	size_t size = n * sizeof(uint64_t);
	uint64_t *to[4] = {v->in_counts + (size_t)l * n, v->in_displs + (size_t)l * n,
			   v->out_counts + (size_t)l * n, v->out_displs + (size_t)l * n};

	for (int i = 0; i < 4; i++) {
		memcpy(to[i], post->args + i * size, size);
	}
	if (!blocks_fit(to[0], to[1], n, room(post->in_region, post->in), esize)) {
		return "a block of its send buffer lies outside the registered memory";
	}
	if (!blocks_fit(to[2], to[3], n, room(post->out_region, post->out), esize)) {
		return "a block of its receive buffer lies outside the registered memory";
	}
	return NULL;
}

/* Counts that all ranks must give alike; the first local rank's copy is the one used. */
static const char *load_shared(struct op *op, struct vargs *v, uint32_t l, unsigned int esize)
{
	struct engine_comm *c = op->comm;
	uint32_t n = c->nranks;
	struct post *post = &op->posts[l];
	size_t size = n * sizeof(uint64_t);
	uint64_t *counts = v->in_counts + (size_t)l * n;
	uint64_t *displs = v->in_displs + (size_t)l * n;
	uint64_t own;
	bool gather = op->sig.kind == COLL_ALLGATHERV;
	uint64_t sum = 0;

	memcpy(counts, post->args, size);
	memcpy(displs, post->args + size, size);
	if (l == 0) {
		memcpy(v->counts, counts, size);
	} else if (memcmp(v->counts, counts, size) != 0) {
		return "its counts differ from those of another rank of its host";
	}
	for (uint32_t i = 0; !gather && i < n; i++) {
		displs[i] = sum;
		if (__builtin_add_overflow(sum, counts[i], &sum)) {
			return "its counts overflow";
		}
	}
	own = counts[c->ranks[l].rank];
	if (!blocks_fit(counts, displs, n,
			gather ? room(post->out_region, post->out)
			       : room(post->in_region, post->in),
			esize)) {
		return "a block lies outside the registered memory";
	}
	if (own > (gather ? room(post->in_region, post->in) : room(post->out_region, post->out)) /
			  esize) {
		return "its own block lies outside the registered memory";
	}
	return NULL;
}

/* gatherv, scatterv: the root knows all counts, the others their own. */
static const char *load_rooted(struct op *op, struct vargs *v, uint32_t l, unsigned int esize)
{
	struct engine_comm *c = op->comm;
	uint32_t n = c->nranks;
	struct post *post = &op->posts[l];
	size_t size = n * sizeof(uint64_t);
	uint32_t rank = c->ranks[l].rank;
	bool gather = op->sig.kind == COLL_GATHERV;
	uint64_t own_room =
		gather ? room(post->in_region, post->in) : room(post->out_region, post->out);

	if (post->count > own_room / esize) {
		return "its own block lies outside the registered memory";
	}
	if (rank != op->sig.root) {
		return NULL;
	}
	memcpy(v->counts, post->args, size);
	memcpy(v->displs, post->args + size, size);
	if (!blocks_fit(v->counts, v->displs, n,
			gather ? room(post->out_region, post->out)
			       : room(post->in_region, post->in),
			esize)) {
		return "a block lies outside the registered memory";
	}
	return NULL;
}

/* The ranks' own counts, held against the root's where it is here. */
static const char *join_rooted(struct op *op, struct vargs *v, uint32_t *ret_local)
{
	struct engine_comm *c = op->comm;
	bool root_here = c->params.layout->host_of[op->sig.root] == c->params.host;

	for (uint32_t l = 0; l < c->nlocal; l++) {
		uint32_t rank = c->ranks[l].rank;

		if (root_here && v->counts[rank] != op->posts[l].count) {
			*ret_local = l;
			return "its count differs from what the root gives for it";
		}
		v->counts[rank] = op->posts[l].count;
	}
	return NULL;
}

/* Between two ranks of this host both sides are known. */
static const char *join_alltoallv(struct op *op, struct vargs *v, uint32_t *ret_local)
{
	struct engine_comm *c = op->comm;
	size_t n = c->nranks;

	for (uint32_t l = 0; l < c->nlocal; l++) {
		for (uint32_t k = 0; k < c->nlocal; k++) {
			if (v->in_counts[l * n + c->ranks[k].rank] !=
			    v->out_counts[k * n + c->ranks[l].rank]) {
				*ret_local = l;
				return "a send count differs from what the receiver expects";
			}
		}
	}
	return NULL;
}

int vargs_load(struct op *op, struct vargs **ret, uint32_t *ret_local, const char **ret_reason)
{
	struct engine_comm *c = op->comm;
	unsigned int esize = dtype_size(op->sig.dtype);
	struct vargs *v = NULL;
	const char *why = NULL;

	for (uint32_t i = 0; i < COMM_VARGS && !v; i++) {
		v = c->vargs[i].used ? NULL : &c->vargs[i];
	}
	if (!v) {
		return VARGS_E_LATER;
	}
	for (uint32_t l = 0; l < c->nlocal && !why; l++) {
		*ret_local = l;
		if (op->sig.kind == COLL_ALLTOALLV) {
			why = load_alltoallv(op, v, l, esize);
		} else if (op->sig.kind == COLL_GATHERV || op->sig.kind == COLL_SCATTERV) {
			why = load_rooted(op, v, l, esize);
		} else {
			why = load_shared(op, v, l, esize);
		}
	}
	if (!why && op->sig.kind == COLL_ALLTOALLV) {
		why = join_alltoallv(op, v, ret_local);
	} else if (!why && coll_kind_has_root(op->sig.kind)) {
		why = join_rooted(op, v, ret_local);
	}
	if (why) {
		*ret_reason = why;
		return VARGS_E_INVALID;
	}
	v->used = true;
	*ret = v;
	return 0;
}

/* Where the last of the blocks ends, in elements. @displs: NULL: one behind the other. */
static uint64_t blocks_end(const uint8_t *counts, const uint8_t *displs, uint32_t n)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t count, at = end;

		memcpy(&count, counts + i * sizeof(count), sizeof(count));
		if (displs) {
			memcpy(&at, displs + i * sizeof(at), sizeof(at));
		}
		if (__builtin_add_overflow(at, count, &at)) {
			return UINT64_MAX;
		}
		end = count ? MAX(end, at) : end;
	}
	return end;
}

void vargs_extent(struct post *post, const struct engine_signature *sig, uint32_t rank,
		  uint32_t nranks)
{
	size_t size = nranks * sizeof(uint64_t);
	uint64_t limit_in = post->in_len, limit_out = post->out_len;
	uint64_t in = post->count, out = post->count;
	uint64_t esize = dtype_size(sig->dtype);
	uint64_t own = 0;

	if (post->args) {
		memcpy(&own, post->args + rank * sizeof(own), sizeof(own));
	}
	switch (sig->kind) {
	case COLL_ALLGATHERV:
		in = own;
		out = blocks_end(post->args, post->args + size, nranks);
		break;
	case COLL_REDUCE_SCATTERV:
		in = blocks_end(post->args, NULL, nranks);
		out = own;
		break;
	case COLL_ALLTOALLV:
		in = blocks_end(post->args, post->args + size, nranks);
		out = blocks_end(post->args + 2 * size, post->args + 3 * size, nranks);
		break;
	case COLL_GATHERV:
		out = post->args ? blocks_end(post->args, post->args + size, nranks) : 0;
		break;
	default: /* COLL_SCATTERV */
		in = post->args ? blocks_end(post->args, post->args + size, nranks) : 0;
		break;
	}
	post->in_len = in > limit_in / esize ? limit_in : in * esize;
	post->out_len = out > limit_out / esize ? limit_out : out * esize;
}

uint64_t vargs_length(const struct op_ctx *ctx, const struct plan_piece *piece)
{
	const struct vargs *v = ctx->vargs;
	size_t n = ctx->comm->nranks;

	if (!v) {
		return ctx->op->sig.count;
	}
	switch (piece->len_kind) {
	case PLAN_LEN_IN:
		return v->in_counts[piece->len_a * n + piece->len_b];
	case PLAN_LEN_OUT:
		return v->out_counts[piece->len_a * n + piece->len_b];
	default:
		return v->counts[piece->len_a];
	}
}

bool vargs_blocked(uint8_t kind, uint8_t space)
{
	switch (kind) {
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
	case COLL_GATHER:
	case COLL_GATHERV:
		return space == PLAN_OUT;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
	case COLL_SCATTER:
	case COLL_SCATTERV:
		return space == PLAN_IN;
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		return true;
	default:
		return false;
	}
}

uint64_t vargs_displacement(const struct op_ctx *ctx, uint8_t space, uint32_t lrank, uint32_t block)
{
	const struct vargs *v = ctx->vargs;
	uint8_t kind = ctx->op->sig.kind;
	size_t n = ctx->comm->nranks;

	if (!vargs_blocked(kind, space)) {
		return 0;
	}
	if (!v) {
		return block * ctx->op->sig.count;
	}
	switch (kind) {
	case COLL_ALLTOALLV:
		return (space == PLAN_IN ? v->in_displs : v->out_displs)[lrank * n + block];
	case COLL_GATHERV:
	case COLL_SCATTERV:
		return v->displs[block];
	default:
		return v->in_displs[lrank * n + block];
	}
}

uint64_t vargs_longest(const struct op *op, const struct vargs *v)
{
	uint64_t longest = 0;

	if (!v) {
		return op->sig.count;
	}
	if (op->sig.kind == COLL_ALLTOALLV) {
		size_t n = (size_t)op->comm->nlocal * op->comm->nranks;

		for (size_t i = 0; i < n; i++) {
			longest = MAX(longest, MAX(v->in_counts[i], v->out_counts[i]));
		}
		return longest;
	}
	if (coll_kind_has_root(op->sig.kind)) {
		return 1; /* PLAN_WHOLE: one segment, whatever the lengths */
	}
	for (uint32_t i = 0; i < op->comm->nranks; i++) {
		longest = MAX(longest, v->counts[i]);
	}
	return longest;
}

uint64_t vargs_mean(const struct op *op, const struct vargs *v)
{
	uint64_t sum = 0;

	if (!v) {
		return op->sig.count;
	}
	if (op->sig.kind != COLL_ALLGATHERV && op->sig.kind != COLL_REDUCE_SCATTERV) {
		return 1;
	}
	for (uint32_t i = 0; i < op->comm->nranks; i++) {
		sum += v->counts[i] / op->comm->nranks;
	}
	return sum;
}
