/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Device, from GPU to GPU: see device.h
 *
 * The plan of a communicator that is all on this host consists of local steps, and that of an
 * operation that only moves data of copies. Where each of these leads from one GPU to another that
 * it may copy to, the copies are handed to the GPUs as they stand, all at once: each GPU pushes
 * what leaves it, no CPU touches a byte. What stays on its GPU takes the way through the
 * operation's staging memory there.
 *
 * The operation holds staging memory as any other, so that it can still go through the host when a
 * copy fails: its input is as it was, since no output may lie in it.
 *
 * Thread: progress, but for direct_piece(), p2p_piece(): copying threads      Owns: nothing
 * Locks: none
 */
#include <string.h>

#include "engine/device.h"
#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/progress.h"
#include "engine/vargs.h"
#include "mem/region.h"

/* A plan with more of them is not looked at: that would keep the thread from others. */
#define DIRECT_PIECES 1024

/* One copy of a plan. */
struct direct_copy {
	const struct engine_region *from, *to;
	uint64_t source, target, size;
	uint32_t lrank; /* whose output it is */
};

static void copy_side(const struct op_ctx *ctx, const struct plan_ref *ref, uint64_t first,
		      const struct engine_region **ret_region, uint64_t *ret_at)
{
	const struct post *post = &ctx->op->posts[ref->lrank];
	bool in = ref->space == PLAN_IN;
	const uint8_t *base = in ? post->in : post->out;

	first += vargs_displacement(ctx, ref->space, ref->lrank, ref->block);
	*ret_region = in ? post->in_region : post->out_region;
	*ret_at = (uint64_t)(uintptr_t)base + first * ctx->esize;
}

/* The copy of @piece to its @dst-th place. */
static struct direct_copy copy_of(const struct op_ctx *ctx, const struct plan_piece *piece,
				  uint32_t dst)
{
	const struct plan_ref *refs = &ctx->entry->plan->refs[piece->first_ref];
	const struct plan_ref *to = &refs[piece->nsrc + dst];
	uint64_t len = vargs_length(ctx, piece);
	uint64_t lo = plan_part(len, piece->part, piece->parts);
	struct direct_copy c = {.lrank = to->lrank};

	c.size = (plan_part(len, piece->part + piece->span, piece->parts) - lo) * ctx->esize;
	copy_side(ctx, &refs[0], lo, &c.from, &c.source);
	copy_side(ctx, to, lo, &c.to, &c.target);
	if (c.from == c.to && c.source == c.target) {
		c.size = 0; /* in place */
	}
	return c;
}

/* ---- may it? ------------------------------------------------------------------------------- */

static bool moves_only(const struct op_ctx *ctx)
{
	const struct plan *plan = ctx->entry->plan;

	if (ctx->comm->nhosts != 1 || ctx->comm->nlocal < 2 || plan->ntemp ||
	    plan->npieces > DIRECT_PIECES || coll_kind_reduces(plan->kind)) {
		return false;
	}
	for (uint32_t i = 0; i < plan->npieces; i++) {
		if (plan->pieces[i].nsrc != 1) {
			return false;
		}
	}
	return true;
}

/* Would it overwrite what its rank gives? Only all-to-all in place does, and what is not allowed.
 */
static bool overwrites(const struct op_ctx *ctx, const struct direct_copy *c)
{
	const struct post *post = &ctx->op->posts[c->lrank];
	uint64_t in = (uint64_t)(uintptr_t)post->in;

	return post->in_len && c->target < in + post->in_len && in < c->target + c->size;
}

/* Return: false: it must go through the host. */
static bool copy_allowed(const struct op_ctx *ctx, const struct direct_copy *c, bool *ready,
			 bool *crosses)
{
	if (c->size == 0) {
		return true;
	}
	if (!c->from || !c->to || !c->from->gpu || !c->to->gpu || overwrites(ctx, c)) {
		return false;
	}
	if (c->from->gpu != c->to->gpu) {
		*crosses = true;
		/* Also when another is not: each is asked for once. */
		*ready &= gpu_peer_ready(c->from->region->gpu, c->to->region->gpu);
	}
	return true;
}

bool device_direct(const struct op_ctx *ctx)
{
	const struct plan *plan = ctx->entry->plan;
	bool ready = true, crosses = false;

	if (!moves_only(ctx)) {
		return false;
	}
	for (uint32_t i = 0; i < plan->npieces; i++) {
		const struct plan_piece *piece = &plan->pieces[i];

		for (uint32_t k = 0; k < piece->ndst; k++) {
			struct direct_copy c = copy_of(ctx, piece, k);

			if (!copy_allowed(ctx, &c, &ready, &crosses)) {
				return false;
			}
		}
	}
	return ready && crosses;
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Copying thread: the next copy that leaves its GPU, from where the one before was. */
static void direct_piece(const struct gpu_job *job, uint32_t index, struct gpu_copy *ret)
{
	struct device_job *j = container_of((struct gpu_job *)job, struct device_job, job);
	const struct op_ctx *ctx = j->ctx;
	const struct plan *plan = ctx->entry->plan;
	const struct device_group *g = &ctx->device->groups[j->group];

	(void)index;
	for (; j->piece < plan->npieces; j->piece++, j->dst = 0) {
		const struct plan_piece *piece = &plan->pieces[j->piece];

		while (j->dst < piece->ndst) {
			struct direct_copy c = copy_of(ctx, piece, j->dst++);

			if (c.size == 0 || c.from->gpu != g->gpu) {
				continue;
			}
			ret->device = c.source;
			ret->size = c.size;
			ret->to = c.to->gpu;
			ret->to_address = c.target;
			ret->host = g->base;
			ret->room = g->size;
			return;
		}
	}
	ret->size = 0;
}

/*
 * Copies that leave a GPU, added up; @broken: of them those to other GPUs are no longer to be made.
 */
static uint32_t count_copies(const struct op_ctx *ctx, const struct gpu_device *gpu, int broken)
{
	const struct plan *plan = ctx->entry->plan;
	uint32_t n = 0;

	for (uint32_t i = 0; i < plan->npieces; i++) {
		for (uint32_t k = 0; k < plan->pieces[i].ndst; k++) {
			struct direct_copy c = copy_of(ctx, &plan->pieces[i], k);

			if (c.size == 0 || c.from->gpu != gpu) {
				continue;
			}
			n++;
			ctx->device->direct_bytes += c.size;
			if (broken && c.to->gpu != gpu) {
				gpu_peer_broken(c.from->gpu, c.to->gpu, broken);
			}
		}
	}
	return n;
}

/* All jobs are back. */
static void direct_over(struct op_ctx *ctx)
{
	struct device_op *d = ctx->device;

	ctx->op->last_progress = ctx->comm->progress->now;
	d->direct = false;
	if (d->direct_failed) {
		op_go(ctx); /* through the host, then */
	} else {
		COMM_COUNT(ctx->comm, bytes_local, d->direct_bytes);
		ctx->finished = ctx->nseg;
	}
}

static void direct_copied(struct device_job *j)
{
	struct op_ctx *ctx = j->ctx;
	struct device_op *d = ctx->device;
	struct op *op = ctx->op;

	ctx->slices--;
	if (j->job.error) {
		d->direct_failed = true;
		count_copies(ctx, d->groups[j->group].gpu, j->job.error);
	}
	if (--d->direct_jobs == 0 && op->state == OP_ACTIVE) {
		direct_over(ctx);
	}
	if (op->state == OP_ZOMBIE && !ctx->slices) {
		comm_op_tell(op, ctx->comm->failed);
	}
	op_unhold(ctx);
}

void device_direct_start(struct op_ctx *ctx)
{
	struct device_op *d = ctx->device;

	d->direct_failed = false;
	d->direct_jobs = 0;
	d->direct_bytes = 0;
	for (uint32_t g = 0; g < d->ngroups; g++) {
		struct device_job *j = &d->jobs[g];

		memset(j, 0, sizeof(*j));
		j->job.npieces = count_copies(ctx, d->groups[g].gpu, 0);
		if (!j->job.npieces) {
			continue;
		}
		j->end = direct_copied;
		j->ctx = ctx;
		j->group = g;
		j->job.peer = true;
		j->job.piece = direct_piece;
		d->direct_jobs++;
		ctx->held++;
		ctx->slices++;
		device_job_go(ctx->comm->progress, d->groups[g].gpu, j);
	}
}

/* ---- sends and receives -------------------------------------------------------------------- */

/* Copying thread. */
static void p2p_piece(const struct gpu_job *job, uint32_t index, struct gpu_copy *ret)
{
	struct device_job *j = container_of((struct gpu_job *)job, struct device_job, job);
	const struct p2p *x = container_of(j, struct p2p_part, copy)->op;

	(void)index;
	ret->device = (uint64_t)(uintptr_t)x->post.in;
	ret->size = x->bytes;
	ret->to = x->partner->post.out_region->gpu;
	ret->to_address = (uint64_t)(uintptr_t)x->partner->post.out;
}

static void p2p_job_end(struct device_job *j)
{
	struct p2p *x = container_of(j, struct p2p_part, copy)->op;

	if (j->job.error) {
		gpu_peer_broken(x->post.in_region->gpu, x->partner->post.out_region->gpu,
				j->job.error);
	} else {
		COMM_COUNT(x->comm, bytes_local, x->bytes);
	}
	p2p_moved(x, !j->job.error);
}

bool device_p2p_direct(struct p2p *x, struct p2p *y)
{
	const struct engine_region *from = x->post.in_region, *to = y->post.out_region;
	struct device_job *j = &x->parts[0].copy; /* of the whole */

	if (x->indirect || !device_p2p(x) || !device_p2p(y) || from->gpu == to->gpu ||
	    !gpu_peer_ready(from->region->gpu, to->region->gpu)) {
		return false;
	}
	memset(j, 0, sizeof(*j));
	j->end = p2p_job_end;
	j->job.peer = true;
	j->job.npieces = 1;
	j->job.piece = p2p_piece;
	x->parts[0].op = x;
	x->partner = y;
	x->state = y->state = P2P_DIRECT;
	x->held++;
	y->held++;
	device_job_go(x->comm->progress, from->gpu, j);
	return true;
}
