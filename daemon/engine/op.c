/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Operation: start, geometry, grants, end
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/op.h"

#include <string.h>

#include "engine/conn.h"
#include "engine/progress.h"
#include "engine/vargs.h"

/* Elements [first, first + n) of the piece's block that this run covers; lo: from the segment. */
void op_piece(const struct op_ctx *ctx, const struct op_run *run, const struct plan_piece *piece,
	      uint64_t *ret_first, uint64_t *ret_lo, uint64_t *ret_n)
{
	uint64_t len = vargs_length(ctx, piece);
	uint64_t start = 0;
	uint64_t n = len;
	uint64_t lo, hi;

	if (ctx->seg != UINT64_MAX) {
		start = (uint64_t)run->segment * ctx->seg_elems;
		n = start >= len ? 0 : MIN(len - start, ctx->seg_elems);
	}
	lo = plan_part(n, piece->part, piece->parts);
	hi = plan_part(n, piece->part + piece->span, piece->parts);
	*ret_first = start + lo;
	*ret_lo = lo;
	*ret_n = hi - lo;
}

uint8_t *op_ref(const struct op_ctx *ctx, const struct op_run *run, const struct plan_ref *ref,
		uint64_t first, uint64_t lo)
{
	const struct post *post;

	if (ref->space == PLAN_TEMP) {
		return run->temp + ref->block * ctx->seg + lo * ctx->esize;
	}
	if (ctx->device) {
		uint8_t *staged = device_ref(ctx, run, ref, first, lo);

		if (staged) {
			return staged;
		}
	}
	post = &ctx->op->posts[ref->lrank];
	first += vargs_displacement(ctx, ref->space, ref->lrank, ref->block);
	return (ref->space == PLAN_IN ? post->in : post->out) + first * ctx->esize;
}

/* ---- notes: grants to those who send to us, requests to those who receive ----------------- */

static void note_done(struct transport_send *send, int status);

/*
 * Segments below may come: they have begun, their input is there, and no worker has what their
 * receives wait for.
 */
static uint32_t op_open(const struct op_ctx *ctx)
{
	uint32_t open = ctx->started;

	for (uint32_t i = 0; (ctx->offload || ctx->device) && i < ctx->nruns; i++) {
		const struct op_run *run = &ctx->runs[i];

		if (run->active && (run->gates || run->phase == DEVICE_FILL)) {
			open = MIN(open, run->segment);
		}
	}
	return open;
}

static void note_send(struct op_note *note, uint8_t type, uint32_t segment)
{
	struct op_ctx *ctx = note->ctx;
	struct engine_peer *peer = ctx->comm->params.peers[note->host];
	struct wire_header *h = &note->send.header;

	memset(&note->send, 0, sizeof(note->send));
	h->type = type;
	h->comm = ctx->comm->params.uid;
	h->seq = ctx->op->seq;
	h->segment = segment;
	h->algo = ctx->entry->plan->algo;
	conn_put_signature(h, &ctx->op->sig);
	note->limit = segment;
	note->busy = true;
	note->again = false;
	note->send.account = ctx->comm->params.view;
	note->send.done = note_done;
	note->send.user = note;
	ctx->held++;
	conn_send(peer, &note->send);
}

/*
 * All is done here. An early message that no step took is one that its sender should not have had
 * to send: counts disagree, though every length that was compared was right.
 */
static void op_end(struct op *op)
{
	struct eager_slot *slot = conn_find_stray(op->comm, op->seq);

	if (slot) {
		struct engine_signature sig = conn_get_signature(&slot->header);

		if (comm_check_signature(op, slot->host, &sig)) {
			op_wrong_length(op, slot->host, 0, slot->header.length);
		}
		return;
	}
	op_release(op);
	comm_op_finished(op);
}

void op_unhold(struct op_ctx *ctx)
{
	struct op *op = ctx->op;

	ctx->held--;
	if (op->state == OP_ZOMBIE && ctx->held == 0) {
		comm_op_drained(op);
	} else if (op->state == OP_ACTIVE && ctx->held == 0 && ctx->finished == ctx->nseg) {
		op_end(op);
	}
}

static void note_done(struct transport_send *send, int status)
{
	struct op_note *note = send->user;

	note->busy = false;
	if (note->again && status == 0 && note->ctx->op->state == OP_ACTIVE) {
		note_send(note, WIRE_GRANT, op_open(note->ctx));
	}
	op_unhold(note->ctx);
}

static bool sends_to(const struct plan *plan, uint32_t host)
{
	for (uint32_t i = 0; i < plan->nsend_peers; i++) {
		if (plan->send_peers[i] == host) {
			return true;
		}
	}
	return false;
}

/**
 * op_send_grants() - tell the senders how far they may go
 * @all:  also when the operation is eager. Otherwise an eager operation grants only those that it
 *        sends nothing to: they hear our signature that way, so that two hosts that disagree
 *        about who is the root do not both just wait.
 */
void op_send_grants(struct op_ctx *ctx, bool all)
{
	const struct plan *plan = ctx->entry->plan;
	uint32_t open = op_open(ctx);

	if (open == 0) {
		return; /* op_gates_open() comes */
	}
	ctx->granted = open;
	for (uint32_t i = 0; i < plan->nrecv_peers; i++) {
		struct op_note *note = &ctx->grants[i];

		if (ctx->eager && !all && sends_to(plan, note->host)) {
			continue;
		}
		if (!note->busy) {
			note_send(note, WIRE_GRANT, open);
		} else if (note->limit != open) {
			note->again = true;
		}
	}
}

void op_gates_open(struct op_ctx *ctx)
{
	if (op_open(ctx) != ctx->granted) {
		op_send_grants(ctx, ctx->op->grant_all);
	}
}

/* A grant for this operation may have been dropped while it was beyond the window: ask again. */
static void op_request_grants(struct op_ctx *ctx)
{
	struct engine_comm *c = ctx->comm;

	for (uint32_t i = 0; i < ctx->entry->plan->nsend_peers; i++) {
		struct op_note *note = &ctx->rts[i];
		uint64_t lost = c->grant_lost[note->host];

		if (lost && (int32_t)((uint32_t)lost - ctx->op->seq) > 0) {
			note_send(note, WIRE_RTS, 0);
		} else {
			c->grant_lost[note->host] = 0; /* all of them have started */
		}
	}
}

void op_request_grant(struct op_ctx *ctx, uint32_t host)
{
	for (uint32_t i = 0; i < ctx->entry->plan->nsend_peers; i++) {
		if (ctx->rts[i].host == host && !ctx->rts[i].busy) {
			note_send(&ctx->rts[i], WIRE_RTS, 0);
		}
	}
}

/* ---- runs --------------------------------------------------------------------------------- */

/* The steps that wait for nothing are ready. */
static void run_go(struct op_run *run)
{
	const struct plan *plan = run->ctx->entry->plan;

	run->phase = DEVICE_STEPS;
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		if (run->steps[i].deps == 0) {
			run->steps[i].state = STEP_READY;
			run->ready[run->nready++] = i;
		}
	}
	if (list_empty(&run->link)) {
		list_append(&run->ctx->comm->progress->runnable, &run->link);
	}
}

static void run_begin(struct op_ctx *ctx, struct op_run *run)
{
	const struct plan *plan = ctx->entry->plan;
	struct engine_comm *c = ctx->comm;

	run->segment = ctx->started++;
	run->left = plan->nsteps;
	run->active = true;
	run->nready = 0;
	run->gates = ctx->offload ? ctx->entry->ngates : 0;
	run->temp = c->temp + (size_t)ctx->temp_slot * COMM_TEMP +
		    (size_t)(run - ctx->runs) * (COMM_TEMP / OP_RUNS);
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		struct step_state *st = &run->steps[i];

		st->deps = plan->steps[i].ndeps;
		st->piece = 0;
		st->offset = 0;
		st->slices = 0;
		st->dropped = false;
		st->deferred = false;
		st->stage = NULL;
		st->length = 0;
		st->state = STEP_WAITING;
	}
	if (!ctx->device || !device_fill(run)) {
		run_go(run);
	}
}

/* A run is over: the next segment takes its place. */
static void run_end(struct op_run *run)
{
	struct op_ctx *ctx = run->ctx;

	run->active = false;
	ctx->finished++;
	if (ctx->started < ctx->nseg) {
		run_begin(ctx, run);
		if (!ctx->eager) {
			op_gates_open(ctx);
		}
	} else if (ctx->finished == ctx->nseg && ctx->held == 0) {
		op_end(ctx->op);
	}
}

/* All steps are done: what is to go to a GPU does so first. */
void op_run_finished(struct op_run *run)
{
	list_remove(&run->link);
	if (!run->ctx->device || !device_empty(run)) {
		run_end(run);
	}
}

void op_run_copied(struct op_run *run)
{
	struct op_ctx *ctx = run->ctx;

	if (run->phase == DEVICE_EMPTY) {
		run->phase = DEVICE_STEPS;
		run_end(run);
		return;
	}
	run_go(run);
	op_gates_open(ctx);
}

void op_release(struct op *op)
{
	struct op_ctx *ctx = op->ctx;

	if (!ctx) {
		return;
	}
	ctx->comm->temp_used &= ~(1u << ctx->temp_slot);
	device_release(ctx);
	if (ctx->vargs) {
		ctx->vargs->used = false;
		ctx->vargs = NULL;
	}
	for (uint32_t i = 0; i < ctx->nruns; i++) {
		ctx->runs[i].active = false;
		list_remove(&ctx->runs[i].link);
	}
	ctx->entry->in_use--;
	ctx->op = NULL;
	op->ctx = NULL;
}

static struct engine_peer *peer_of(const struct step_state *st)
{
	const struct op_ctx *ctx = st->run->ctx;

	return ctx->comm->params.peers[ctx->entry->plan->steps[st->index].peer];
}

bool op_cancel(struct op *op)
{
	struct op_ctx *ctx = op->ctx;

	for (uint32_t i = 0; i < ctx->nruns; i++) {
		struct op_run *run = &ctx->runs[i];

		list_remove(&run->link);
		run->nready = 0;
		for (uint32_t s = 0; run->active && s < ctx->entry->plan->nsteps; s++) {
			struct step_state *st = &run->steps[s];

			if (st->state == STEP_ARRIVING && !conn_drop(peer_of(st), &st->recv)) {
				st->dropped = true;
				ctx->slices++;
			}
		}
	}
	return ctx->held == 0;
}

/* A message of a failed operation is through: nobody writes to its memory any more. */
void op_dropped(struct step_state *st)
{
	struct op_ctx *ctx = st->run->ctx;

	if (st->dropped) {
		st->dropped = false;
		if (--ctx->slices == 0) {
			comm_op_tell(ctx->op, ctx->comm->failed);
		}
	}
}

/* ---- start -------------------------------------------------------------------------------- */

static struct op_ctx *entry_take(struct plan_entry *e)
{
	for (uint32_t i = 0; i < e->nctx; i++) {
		if (!e->ctxs[i].op) {
			e->in_use++;
			return &e->ctxs[i];
		}
	}
	return NULL;
}

static uint32_t op_want(const struct op *op)
{
	uint32_t want = PLAN_DISTINCT;
	uint32_t device = 0;

	for (uint32_t l = 0; l < op->comm->nlocal; l++) {
		const struct post *p = &op->posts[l];

		if ((p->in_region && p->in_region->gpu) || (p->out_region && p->out_region->gpu)) {
			device = OP_WANT_DEVICE;
			continue; /* it is staged: input and output are apart */
		}
		if (p->in_len && p->out_len && p->in < p->out + p->out_len &&
		    p->out < p->in + p->in_len) {
			want = 0;
		}
	}
	want |= device;
	return op->sig.op == REDOP_PREMUL_SUM && coll_kind_reduces(op->sig.kind)
		       ? want | PLAN_PRESCALE
		       : want;
}

static bool op_has_conflict(const struct op *op)
{
	for (uint32_t l = 0; l < op->comm->nlocal; l++) {
		if (post_conflicts(&op->comm->ranks[l], &op->posts[l])) {
			return true;
		}
	}
	return false;
}

/* Will the ranks find their results in a cache? */
static bool op_is_far(const struct op *op)
{
	uint64_t bytes = 0;

	for (uint32_t l = 0; l < op->comm->nlocal; l++) {
		bytes += op->posts[l].out_len;
	}
	return bytes >= op->comm->progress->far_bytes;
}

static void op_shape(struct op *op, struct op_ctx *ctx, struct vargs *v)
{
	const struct plan *plan = ctx->entry->plan;
	const struct engine_options *o = &ctx->comm->progress->options;
	uint64_t longest = vargs_longest(op, v);
	uint64_t nseg = 1;

	ctx->esize = dtype_size(op->sig.dtype);
	ctx->seg = coll_segment(plan, o->chunk, COMM_TEMP / OP_RUNS);
	ctx->seg_elems = ctx->seg / ctx->esize;
	if (ctx->seg != UINT64_MAX && longest) {
		nseg = DIV_UP(longest, ctx->seg_elems);
	}
	ctx->nseg = (uint32_t)nseg; /* op_start() has refused more */
	ctx->eager = !v && nseg == 1 &&
		     longest * ctx->esize * plan->msg_blocks / plan->msg_parts <= o->eager;
	ctx->far = op_is_far(op);
	/* gatherv and scatterv: what is long is not known, each slice is looked at */
	ctx->offload = ctx->comm->progress->workers && !ctx->eager &&
		       (longest * ctx->esize >= OP_OFFLOAD * (uint64_t)o->reduce_min ||
			(v && coll_kind_has_root(op->sig.kind)));
}

void op_go(struct op_ctx *ctx)
{
	for (uint32_t i = 0; i < ctx->nruns; i++) {
		run_begin(ctx, &ctx->runs[i]);
	}
}

static void op_launch(struct op *op, struct op_ctx *ctx)
{
	struct engine_comm *c = op->comm;

	op->ctx = ctx;
	op->state = OP_ACTIVE;
	op->last_progress = c->progress->now;
	ctx->started = 0;
	ctx->finished = 0;
	ctx->held = 0;
	ctx->slices = 0;
	ctx->granted = 0;
	c->temp_used |= 1u << ctx->temp_slot;
	ctx->nruns = MIN(ctx->entry->nruns, ctx->nseg);
	ctx->nruns = MIN(ctx->nruns, ctx->device ? ctx->device->nruns : OP_RUNS);
	if (ctx->seg != UINT64_MAX && ctx->seg * ctx->entry->plan->ntemp > COMM_TEMP / OP_RUNS) {
		ctx->nruns = 1;
	}
	if (ctx->device && ctx->device->direct) {
		device_direct_start(ctx);
	} else {
		op_go(ctx);
	}
	c->started++;
	if (c->rts_lost && (int32_t)((uint32_t)c->rts_lost - op->seq) > 0) {
		op->grant_all = true;
	} else {
		c->rts_lost = 0; /* all of them have started */
	}
	op_send_grants(ctx, op->grant_all);
	if (op->state == OP_ACTIVE) {
		op_request_grants(ctx);
	}
}

static void op_reject(struct op *op, uint32_t local, const char *reason)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_INVALID,
		.status = STATUS_INVALID,
		.seq = comm_number(op->comm, op->seq),
		.rank_a = (int32_t)op->comm->ranks[local].rank,
		.rank_b = -1,
		.host_b = -1,
		.reason = reason,
	};

	comm_fail_event(op->comm, &f);
}

/* Sizes that no run can have. Segments have at least 64 bytes. */
static const char *plan_refusal(const struct op *op, const struct plan *plan, struct vargs *v)
{
	uint64_t seg = coll_segment(plan, op->comm->progress->options.chunk, COMM_TEMP / OP_RUNS);

	if (plan->flags & PLAN_WHOLE) {
		return NULL;
	}
	if ((uint64_t)plan->ntemp * 64 > COMM_TEMP) {
		return "its plan needs more scratch than an operation may have";
	}
	if (vargs_longest(op, v) / (seg / dtype_size(op->sig.dtype)) >= UINT32_MAX) {
		return "its blocks have more segments than 32 bits can number";
	}
	return NULL;
}

/* Gives it what its shape needs. Return: false: not now, or it is refused; nothing is taken. */
static bool op_admit(struct op *op, struct op_ctx *ctx, struct vargs *v)
{
	const char *reason;
	int r;

	ctx->op = op;
	ctx->comm = op->comm;
	ctx->vargs = v;
	ctx->temp_slot = (uint32_t)__builtin_ctz(~op->comm->temp_used);
	op_shape(op, ctx, v);
	r = device_admit(ctx, &reason);
	if (r == 0) {
		return true;
	}
	ctx->op = NULL;
	ctx->vargs = NULL;
	ctx->entry->in_use--;
	if (v) {
		v->used = false;
	}
	if (r == DEVICE_E_REFUSED) {
		op_reject(op, 0, reason);
	}
	return false;
}

int op_start(struct op *op)
{
	struct engine_comm *c = op->comm;
	struct vargs *v = NULL;
	struct plan_entry *e;
	struct op_ctx *ctx;
	uint64_t bytes;
	uint8_t algo;
	uint32_t local;
	const char *reason;
	int r;

	if (c->temp_used == UINT32_MAX || op_has_conflict(op)) {
		return OP_E_LATER;
	}
	if (!coll_kind_is_v(op->sig.kind) && op->sig.count == 0 && op->sig.kind != COLL_BARRIER) {
		c->started++;
		op_end(op);
		return 0;
	}
	if (coll_kind_is_v(op->sig.kind)) {
		r = vargs_load(op, &v, &local, &reason);
		if (r == VARGS_E_INVALID) {
			op_reject(op, local, reason);
		}
		if (r != 0) {
			return OP_E_LATER;
		}
	}
	if (__builtin_mul_overflow(vargs_mean(op, v), (uint64_t)dtype_size(op->sig.dtype),
				   &bytes)) {
		bytes = UINT64_MAX;
	}
	algo = coll_select(c->params.tuning, op->sig.kind, bytes, c->params.layout);
	e = plan_cache_get(c, op->sig.kind, algo,
			   coll_kind_has_root(op->sig.kind) ? op->sig.root : 0, op_want(op));
	ctx = e ? entry_take(e) : NULL;
	if (!ctx) {
		if (v) {
			v->used = false;
		}
		return OP_E_LATER;
	}
	reason = plan_refusal(op, e->plan, v);
	if (reason) {
		e->in_use--;
		op_reject(op, 0, reason);
		return OP_E_LATER;
	}
	if (!op_admit(op, ctx, v)) {
		return OP_E_LATER;
	}
	op_launch(op, ctx);
	return 0;
}
