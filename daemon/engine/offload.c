/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Offload: the arithmetic and copies of steps, here or by workers
 *
 * Large operations are cut in slices that workers do, as long as their queue has room. A slice
 * holds its operation as a message on a stream does (op_ctx.held). A receive of such an operation
 * lands first, in its place or in a stage, and is worked on then. What is small, or finds the queue
 * or the stages full, is done here.
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/step.h"

#include "engine/progress.h"
#include "engine/workers.h"

void step_unstage(struct step_state *st)
{
	if (st->stage) {
		workers_stage_put(st->run->ctx->comm->progress->workers, st->stage);
		st->stage = NULL;
	}
}

void step_account(struct engine_comm *c, const struct slice_moved *moved)
{
	if (moved->copied) {
		COMM_COUNT(c, bytes_copied, moved->copied);
	}
	if (moved->local) {
		COMM_COUNT(c, bytes_local, moved->local);
	}
	if (moved->reduced) {
		COMM_COUNT(c, bytes_reduced, moved->reduced);
	}
}

/* One slice of a local step, here. Return: true when the step is done. */
static bool local_slice(struct step_state *st)
{
	struct slice s = {
		.st = st,
		.piece = st->piece,
		.offset = st->offset,
		.count = OP_SLICE / st->run->ctx->esize,
	};

	slice_run(&s);
	st->piece = s.piece;
	st->offset = s.offset;
	step_account(st->run->ctx->comm, &s.moved);
	return st->piece == step_of(st)->npieces;
}

/* A slice goes to the workers or, small or without a place in their queue, is done at once. */
static bool hand_out(struct step_state *st, struct slice *s, unsigned int spare)
{
	struct op_ctx *ctx = st->run->ctx;
	struct progress *p = ctx->comm->progress;
	bool large = s->count * ctx->esize >= p->options.reduce_min;

	if (large && workers_push(p->workers, s, spare)) {
		ctx->held++;
		ctx->slices++;
		st->slices++;
		return true;
	}
	slice_run(s);
	step_account(ctx->comm, &s->moved);
	return !large;
}

static uint64_t worker_slice(const struct op_ctx *ctx)
{
	uint64_t bytes = OP_WORKER_SLICE * (uint64_t)ctx->comm->progress->options.reduce_min;

	return MAX(bytes - bytes % 64, 64) / ctx->esize;
}

bool step_work(struct step_state *st)
{
	const struct op_ctx *ctx = st->run->ctx;
	uint64_t max;
	struct slice s;

	if (!ctx->offload || ctx->entry->gate[st->index] == GATE_INLINE) {
		return local_slice(st);
	}
	max = worker_slice(ctx);
	for (int i = 0; i < WORKERS_QUEUE / 8; i++) {
		if (slice_cut(st, max, &s) == 0) {
			return true;
		}
		if (!hand_out(st, &s, WORKERS_QUEUE / 4)) {
			break;
		}
	}
	return st->piece == step_of(st)->npieces;
}

void step_settle(struct step_state *st)
{
	if (st->slices) {
		st->state = STEP_WORKING;
		return;
	}
	step_unstage(st);
	step_done(st);
}

void step_work_received(struct step_state *st)
{
	const struct op_ctx *ctx = st->run->ctx;
	uint64_t max = worker_slice(ctx);
	const uint8_t *wire = st->stage;
	struct slice s;
	uint64_t n;

	while ((n = slice_cut(st, max, &s))) {
		s.wire = wire;
		wire = wire ? wire + n * ctx->esize : NULL;
		hand_out(st, &s, 0);
	}
}

int op_reap(struct progress *p)
{
	struct slice s;
	int n = 0;

	while (p->workers && workers_pop(p->workers, &s)) {
		struct step_state *st = s.st;
		struct op_ctx *ctx = st->run->ctx;
		struct op *op = ctx->op;

		n++;
		st->slices--;
		ctx->slices--;
		step_account(ctx->comm, &s.moved);
		if (op->state == OP_ACTIVE && st->state == STEP_WORKING && !st->slices) {
			step_settle(st);
		} else if (op->state == OP_ZOMBIE && !st->slices) {
			step_unstage(st);
		}
		if (op->state == OP_ZOMBIE && !ctx->slices) {
			comm_op_tell(op, ctx->comm->failed);
		}
		op_unhold(ctx);
	}
	return n;
}

void step_place(struct step_state *st)
{
	const struct op_ctx *ctx = st->run->ctx;
	struct progress *p = ctx->comm->progress;
	const struct plan_step *step = step_of(st);
	bool large = ctx->offload && st->length >= p->options.reduce_min;
	uint64_t length;

	if (step->kind == PLAN_RECV) {
		st->recv.niov = step_iov(st, &length);
		st->recv.iov = st->recv.niov ? st->iov : NULL;
		st->deferred = large && ctx->entry->plan->pieces[step->first_piece].ndst > 1;
		return;
	}
	if (large && st->length <= p->options.chunk) {
		st->stage = workers_stage_take(p->workers);
	}
	if (st->stage) {
		st->deferred = true;
		st->iov[0].iov_base = st->stage;
		st->iov[0].iov_len = st->length;
		st->recv.iov = st->iov;
		st->recv.niov = 1;
	}
}
