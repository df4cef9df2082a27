/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Device: see device.h
 *
 * Thread: progress (device_comm_*: control, run_piece, part_piece: copying threads)
 * Owns: nothing      Locks: none
 */
#include "engine/device.h"

#include <string.h>
#include <sys/mman.h>

#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/progress.h"
#include "engine/vargs.h"

/* Staging memory that an operation likes to have on a GPU: more runs would not help it. */
#define DEVICE_OP_STAGING (32u << 20)
#define DEVICE_MIN_RUNS                                                          \
	2 /* as long as there is room: one copies while the other is on the wire \
	   */

/* Of a run on each GPU: copies from GPU to GPU go through it where they stay on theirs. */
#define DEVICE_LEAST (64u << 10)

enum { SIDE_IN = 0, SIDE_OUT = 1 };

/* ---- storage ------------------------------------------------------------------------------ */

/* Each side of each rank may be on a GPU of its own. */
static size_t max_groups(const struct engine_comm *c)
{
	return 2 * (size_t)c->nlocal;
}

static size_t slot_size(const struct engine_comm *c)
{
	size_t group = sizeof(struct device_group) + sizeof(struct device_side) +
		       OP_DEVICE_RUNS * sizeof(struct device_job);

	return sizeof(struct device_op) + max_groups(c) * group;
}

int device_comm_init(struct engine_comm *c)
{
	c->devices = mmap(NULL, COMM_ACTIVE * slot_size(c), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->devices == MAP_FAILED) {
		c->devices = NULL;
		return -ENOMEM;
	}
	return 0;
}

void device_comm_deinit(struct engine_comm *c)
{
	if (c->devices) {
		munmap(c->devices, COMM_ACTIVE * slot_size(c));
	}
}

static struct device_op *device_slot(struct engine_comm *c, uint32_t slot)
{
	struct device_op *d = (struct device_op *)(c->devices + slot * slot_size(c));

	d->groups = (struct device_group *)(d + 1);
	d->sides = (struct device_side *)(d->groups + max_groups(c));
	d->jobs = (struct device_job *)(d->sides + 2 * (size_t)c->nlocal);
	d->ngroups = 0;
	return d;
}

/* ---- geometry ----------------------------------------------------------------------------- */

static uint8_t side_space(uint32_t side)
{
	return side == SIDE_IN ? PLAN_IN : PLAN_OUT;
}

/* Elements of block @b of a rank's buffer. */
static uint64_t side_length(const struct op_ctx *ctx, uint32_t local, uint32_t side, uint32_t b)
{
	const struct vargs *v = ctx->vargs;
	size_t n = ctx->comm->nranks;

	if (!v) {
		return ctx->op->sig.count;
	}
	if (ctx->op->sig.kind == COLL_ALLTOALLV) {
		return (side == SIDE_IN ? v->in_counts : v->out_counts)[local * n + b];
	}
	return v->counts[vargs_blocked(ctx->op->sig.kind, side_space(side))
				 ? b
				 : ctx->comm->ranks[local].rank];
}

/* Bytes from a buffer's first to its last byte. */
static uint64_t side_extent(const struct op_ctx *ctx, uint32_t local, uint32_t side,
			    uint32_t nblocks)
{
	uint64_t end = 0;

	for (uint32_t b = 0; b < nblocks; b++) {
		uint64_t n = side_length(ctx, local, side, b);

		if (n) {
			end = MAX(end, n + vargs_displacement(ctx, side_space(side), local, b));
		}
	}
	return end * ctx->esize;
}

static uint8_t *side_place(const struct op_ctx *ctx, const struct op_run *run,
			   const struct device_side *s)
{
	const struct device_group *g = &ctx->device->groups[s->place];

	return g->base + (uint64_t)(run - ctx->runs) * g->run_size + s->off;
}

uint8_t *device_ref(const struct op_ctx *ctx, const struct op_run *run, const struct plan_ref *ref,
		    uint64_t first, uint64_t lo)
{
	uint32_t side = ref->space == PLAN_IN ? SIDE_IN : SIDE_OUT;
	const struct device_side *s = &ctx->device->sides[2 * ref->lrank + side];
	uint64_t block = s->nblocks > 1 ? ref->block : 0;

	if (!s->staged) {
		return NULL;
	}
	if (ctx->seg == UINT64_MAX) {
		first += vargs_displacement(ctx, ref->space, ref->lrank, ref->block);
		return side_place(ctx, run, s) + first * ctx->esize;
	}
	return side_place(ctx, run, s) + block * ctx->device->stride + lo * ctx->esize;
}

/* Copying thread: block @b of a buffer, as much as is in the run's segment. */
static void block_copy(const struct op_run *run, uint32_t local, uint32_t side, uint32_t b,
		       struct gpu_copy *ret)
{
	const struct op_ctx *ctx = run->ctx;
	const struct device_side *s = &ctx->device->sides[2 * local + side];
	const struct post *post = &ctx->op->posts[local];
	uint64_t n = side_length(ctx, local, side, b);
	uint64_t at = vargs_displacement(ctx, side_space(side), local, b);
	uint64_t off = at;
	uint64_t start = 0;

	if (ctx->seg != UINT64_MAX) {
		start = (uint64_t)run->segment * ctx->seg_elems;
		n = start >= n ? 0 : MIN(n - start, ctx->seg_elems);
		off = 0;
	}
	ret->size = n * ctx->esize;
	ret->stage = s->place != s->group ? ctx->device->groups[s->place].gpu : NULL;
	ret->device = (uint64_t)(uintptr_t)(side == SIDE_IN ? post->in : post->out) +
		      (at + start) * ctx->esize;
	ret->host = side_place(ctx, run, s) + off * ctx->esize +
		    (ctx->seg == UINT64_MAX ? 0 : b * ctx->device->stride);
}

/* Copying thread. See gpu.h. Nothing that it reads changes while the operation is held. */
static void run_piece(const struct gpu_job *job, uint32_t piece, struct gpu_copy *ret)
{
	const struct device_job *j = container_of((struct gpu_job *)job, struct device_job, job);
	const struct op_ctx *ctx = j->run->ctx;
	uint32_t side = job->out ? SIDE_OUT : SIDE_IN;

	for (uint32_t l = 0; l < ctx->comm->nlocal; l++) {
		const struct device_side *s = &ctx->device->sides[2 * l + side];

		if (!s->staged || s->group != j->group) {
			continue;
		}
		if (piece < s->nblocks) {
			block_copy(j->run, l, side, piece, ret);
			return;
		}
		piece -= s->nblocks;
	}
	ret->size = 0;
}

/* ---- admission ---------------------------------------------------------------------------- */

static struct engine_region *post_region(const struct post *post, uint32_t side)
{
	return side == SIDE_IN ? post->in_region : post->out_region;
}

static uint32_t group_of(struct device_op *d, struct gpu_device *gpu)
{
	for (uint32_t g = 0; g < d->ngroups; g++) {
		if (d->groups[g].gpu == gpu) {
			return g;
		}
	}
	d->groups[d->ngroups] = (struct device_group){.gpu = gpu};
	return d->ngroups++;
}

/* An earlier rank's place for the same result, near this one's GPU; NULL: none. */
static const struct device_side *shared_place(const struct op_ctx *ctx, const struct device_op *d,
					      uint32_t local, const struct gpu_device *gpu)
{
	for (uint32_t l = 0; ctx->entry->shared_out && l < local; l++) {
		const struct device_side *s = &d->sides[2 * l + SIDE_OUT];

		if (s->staged && gpu_device_node(d->groups[s->place].gpu) == gpu_device_node(gpu)) {
			return s;
		}
	}
	return NULL;
}

/* Enters one buffer. */
static void side_add(const struct op_ctx *ctx, struct device_op *d, uint32_t local, uint32_t side)
{
	const struct engine_region *region = post_region(&ctx->op->posts[local], side);
	struct device_side *s = &d->sides[2 * local + side];
	const struct device_side *shared = NULL;
	struct device_group *g;
	uint64_t size;

	*s = (struct device_side){0};
	if (!region || !region->gpu) {
		return;
	}
	s->staged = true;
	s->nblocks = vargs_blocked(ctx->op->sig.kind, side_space(side)) ? ctx->comm->nranks : 1;
	s->group = group_of(d, region->gpu);
	g = &d->groups[s->group];
	g->npieces[side] += s->nblocks;
	if (side == SIDE_OUT) {
		shared = shared_place(ctx, d, local, region->gpu);
	}
	if (shared) {
		s->place = shared->place;
		s->off = shared->off;
		return;
	}
	s->place = s->group;
	s->off = g->run_size;
	size = ctx->seg == UINT64_MAX ? side_extent(ctx, local, side, s->nblocks)
				      : s->nblocks * d->stride;
	g->run_size += ALIGN_UP(size, 64);
}

/* Return: false: not so much is free; nothing is taken then. */
static bool groups_take(struct device_op *d, uint32_t nruns, enum gpu_staging_use use)
{
	for (uint32_t i = 0; i < d->ngroups; i++) {
		struct device_group *g = &d->groups[i];

		g->size = nruns * g->run_size;
		g->base = gpu_staging_take(g->gpu, g->size, use);
		if (!g->base) {
			while (i-- > 0) {
				gpu_staging_put(d->groups[i].gpu, d->groups[i].base,
						d->groups[i].size, use);
			}
			return false;
		}
	}
	d->nruns = nruns;
	return true;
}

static uint32_t wanted_runs(const struct device_op *d, uint32_t max)
{
	uint64_t size = 1;

	for (uint32_t i = 0; i < d->ngroups; i++) {
		size = MAX(size, d->groups[i].run_size);
	}
	return (uint32_t)MIN(MAX(DEVICE_OP_STAGING / size, DEVICE_MIN_RUNS), max);
}

int device_admit(struct op_ctx *ctx, const char **ret_reason)
{
	struct engine_comm *c = ctx->comm;
	struct device_op *d = device_slot(c, ctx->temp_slot);
	uint64_t longest = vargs_longest(ctx->op, ctx->vargs) * ctx->esize;
	uint32_t max;

	ctx->device = NULL;
	d->direct = false;
	d->stride = MIN(ctx->seg, ALIGN_UP(longest, 64));
	for (uint32_t l = 0; l < c->nlocal; l++) {
		side_add(ctx, d, l, SIDE_IN);
		side_add(ctx, d, l, SIDE_OUT);
	}
	for (uint32_t i = 0; i < d->ngroups; i++) {
		d->groups[i].run_size = MAX(d->groups[i].run_size, DEVICE_LEAST);
	}
	if (d->ngroups == 0) {
		return 0;
	}
	max = MIN(ctx->entry->nruns, ctx->nseg);
	if (ctx->entry->plan->ntemp) {
		max = MIN(max, OP_RUNS); /* scratch is for as many */
	}
	for (uint32_t n = wanted_runs(d, max); n > 0; n /= 2) {
		/* For the oldest operation there is always enough for one run. */
		bool oldest = n == 1 && ctx->op->seq == c->done;

		if (groups_take(d, n, oldest ? GPU_STAGING_RUN : GPU_STAGING_MORE)) {
			ctx->device = d;
			ctx->far = false; /* staging memory is what stays in the cache */
			d->direct = device_direct(ctx);
			return 0;
		}
	}
	for (uint32_t i = 0; i < d->ngroups; i++) {
		if (d->groups[i].run_size > gpu_staging_limit(d->groups[i].gpu, GPU_STAGING_RUN)) {
			*ret_reason =
				"its buffers on a GPU need more staging memory at a time than "
				"there is: raise gpu_staging, or use smaller messages";
			return DEVICE_E_REFUSED;
		}
	}
	return DEVICE_E_LATER;
}

void device_release(struct op_ctx *ctx)
{
	struct device_op *d = ctx->device;

	ctx->device = NULL;
	for (uint32_t i = 0; d && i < d->ngroups; i++) {
		gpu_staging_put(d->groups[i].gpu, d->groups[i].base, d->groups[i].size,
				GPU_STAGING_RUN);
		ctx->comm->progress->rescan = true; /* somebody may wait for it */
	}
}

void device_job_go(struct progress *p, struct gpu_device *gpu, struct device_job *j)
{
	j->job.device = gpu;
	j->job.channel = &p->copies;
	p->copying++;
	gpu_copy(&j->job);
}

/* ---- copies of runs ----------------------------------------------------------------------- */

/* @error: the driver's number. */
static void device_failed(struct engine_comm *c, uint64_t seq, uint32_t rank)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_DEVICE,
		.status = STATUS_BAD_MEMORY,
		.seq = seq,
		.rank_a = (int32_t)rank,
		.rank_b = -1,
		.host_b = -1,
		.reason = "copying between its GPU and the host failed, see the log of its daemon",
	};

	comm_fail_event(c, &f);
}

/* The first rank whose memory a job copies. */
static uint32_t job_rank(const struct op_ctx *ctx, uint32_t group)
{
	for (uint32_t i = 0; i < 2 * ctx->comm->nlocal; i++) {
		if (ctx->device->sides[i].staged && ctx->device->sides[i].group == group) {
			return ctx->comm->ranks[i / 2].rank;
		}
	}
	return ctx->comm->ranks[0].rank;
}

static void run_copied(struct device_job *j)
{
	struct op_run *run = j->run;
	struct op_ctx *ctx = run->ctx;
	struct op *op = ctx->op;

	run->copying--;
	ctx->slices--;
	if (op->state == OP_ACTIVE && j->job.error) {
		device_failed(ctx->comm, op->seq, job_rank(ctx, j->group));
	}
	if (op->state == OP_ACTIVE && run->copying == 0) {
		op->last_progress = ctx->comm->progress->now;
		op_run_copied(run);
	}
	if (op->state == OP_ZOMBIE && !ctx->slices) {
		comm_op_tell(op, ctx->comm->failed);
	}
	op_unhold(ctx);
}

static bool run_copy(struct op_run *run, uint8_t phase)
{
	struct op_ctx *ctx = run->ctx;
	struct device_op *d = ctx->device;
	uint32_t side = phase == DEVICE_FILL ? SIDE_IN : SIDE_OUT;
	bool any = false;

	run->copying = 0;
	for (uint32_t g = 0; g < d->ngroups; g++) {
		run->copying += d->groups[g].npieces[side] > 0;
	}
	for (uint32_t g = 0; g < d->ngroups; g++) {
		struct device_job *j =
			&d->jobs[(size_t)(run - ctx->runs) * max_groups(ctx->comm) + g];

		if (!d->groups[g].npieces[side]) {
			continue;
		}
		memset(j, 0, sizeof(*j));
		j->end = run_copied;
		j->run = run;
		j->group = g;
		j->job.out = side == SIDE_OUT;
		j->job.npieces = d->groups[g].npieces[side];
		j->job.piece = run_piece;
		run->phase = phase;
		ctx->held++;
		ctx->slices++;
		device_job_go(ctx->comm->progress, d->groups[g].gpu, j);
		any = true;
	}
	return any;
}

bool device_fill(struct op_run *run)
{
	return run_copy(run, DEVICE_FILL);
}

bool device_empty(struct op_run *run)
{
	return run_copy(run, DEVICE_EMPTY);
}

int device_reap(struct progress *p)
{
	struct gpu_job *job = gpu_channel_take(&p->copies);
	int n = 0;

	while (job) {
		struct device_job *j = container_of(job, struct device_job, job);

		job = (struct gpu_job *)job->item.next; /* end() may use it again */
		p->copying--;
		j->end(j);
		n++;
	}
	return n;
}

/* ---- sends and receives ------------------------------------------------------------------- */

static struct engine_region *p2p_region(const struct p2p *x)
{
	return x->kind == COLL_SEND ? x->post.in_region : x->post.out_region;
}

bool device_p2p(const struct p2p *x)
{
	const struct engine_region *r = p2p_region(x);

	return x->bytes && r && r->gpu;
}

static enum gpu_staging_use p2p_use(const struct p2p *x)
{
	return x->kind == COLL_SEND ? GPU_STAGING_SEND : GPU_STAGING_RECV;
}

/* All parts have the size of the first, so that any of them may use what another one had. */
static uint64_t stage_size(const struct p2p *x)
{
	return p2p_part_size(x, 0);
}

/* What another place has and does not use. */
static uint8_t *idle_stage(struct p2p *x)
{
	for (uint32_t i = 0; i < P2P_PLACES; i++) {
		uint8_t *stage = x->parts[i].stage;

		if (stage && x->parts[i].state == PART_FREE) {
			x->parts[i].stage = NULL;
			return stage;
		}
	}
	return NULL;
}

bool device_part_stage(struct p2p *x, struct p2p_part *part)
{
	if (!part->stage) {
		part->stage = gpu_staging_take(p2p_region(x)->gpu, stage_size(x), p2p_use(x));
	}
	if (!part->stage) {
		part->stage = idle_stage(x);
	}
	return part->stage;
}

void device_p2p_release(struct p2p *x)
{
	for (uint32_t i = 0; i < P2P_PLACES; i++) {
		if (x->parts[i].stage) {
			gpu_staging_put(p2p_region(x)->gpu, x->parts[i].stage, stage_size(x),
					p2p_use(x));
			x->parts[i].stage = NULL;
			x->comm->progress->rescan = true;
		}
	}
}

/* Copying thread. */
static void part_piece(const struct gpu_job *job, uint32_t piece, struct gpu_copy *ret)
{
	struct device_job *j = container_of((struct gpu_job *)job, struct device_job, job);
	const struct p2p_part *part = container_of(j, struct p2p_part, copy);
	const struct p2p *x = part->op;
	const uint8_t *base = x->kind == COLL_SEND ? x->post.in : x->post.out;

	(void)piece;
	ret->device = (uint64_t)(uintptr_t)base + part->index * x->part;
	ret->host = part->stage;
	ret->size = p2p_part_size(x, part->index);
}

static void part_job_end(struct device_job *j)
{
	struct p2p_part *part = container_of(j, struct p2p_part, copy);
	struct p2p *x = part->op;
	struct engine_comm *c = x->comm;

	if (j->job.error && !c->failed) {
		device_failed(c, x->seq, c->ranks[x->local].rank);
	}
	p2p_copied(part);
}

void device_part_copy(struct p2p_part *part)
{
	struct p2p *x = part->op;

	memset(&part->copy, 0, sizeof(part->copy));
	part->copy.end = part_job_end;
	part->copy.job.out = x->kind == COLL_RECV;
	part->copy.job.npieces = 1;
	part->copy.job.piece = part_piece;
	part->state = PART_COPYING;
	x->held++;
	device_job_go(x->comm->progress, p2p_region(x)->gpu, &part->copy);
}
