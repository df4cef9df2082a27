/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Steps: executes the steps of a run whose dependencies are done
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include <string.h>

#include "engine/conn.h"
#include "engine/op.h"
#include "engine/progress.h"
#include "engine/step.h"

static void run_enqueue(struct op_run *run)
{
	if (list_empty(&run->link)) {
		list_append(&run->ctx->comm->progress->runnable, &run->link);
	}
}

void step_done(struct step_state *st)
{
	struct op_run *run = st->run;
	const struct plan *plan = run->ctx->entry->plan;
	const struct plan_step *step = step_of(st);

	st->state = STEP_DONE;
	run->left--;
	run->ctx->op->last_progress = run->ctx->comm->progress->now;
	if (run->gates && run->ctx->entry->gate[st->index] == GATE_GRANT && --run->gates == 0) {
		op_gates_open(run->ctx);
	}
	for (uint32_t i = 0; i < step->nsucc; i++) {
		struct step_state *next = &run->steps[plan->succ[step->first_succ + i]];

		if (--next->deps == 0 && next->state == STEP_WAITING) {
			next->state = STEP_READY;
			run->ready[run->nready++] = next->index;
		}
	}
	run_enqueue(run);
}

/* ---- messages ----------------------------------------------------------------------------- */

uint32_t step_iov(struct step_state *st, uint64_t *ret_length)
{
	struct op_run *run = st->run;
	const struct op_ctx *ctx = run->ctx;
	const struct plan *plan = ctx->entry->plan;
	const struct plan_step *step = step_of(st);
	uint64_t length = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < step->npieces; i++) {
		const struct plan_piece *piece = &plan->pieces[step->first_piece + i];
		const struct plan_ref *ref = &plan->refs[piece->first_ref];
		uint64_t first, lo, count;

		op_piece(ctx, run, piece, &first, &lo, &count);
		length += count * ctx->esize;
		if (!count || step->kind == PLAN_RECV_REDUCE) {
			continue;
		}
		/* A SEND's only source or a RECV's first destination: both are refs[0]. */
		st->iov[n].iov_base = op_ref(ctx, run, ref, first, lo);
		st->iov[n].iov_len = count * ctx->esize;
		n++;
	}
	*ret_length = length;
	return n;
}

/* A zero-length message is sent and awaited only where the plan says so, in segment 0. */
static bool step_is_void(const struct op_run *run, uint64_t length)
{
	return length == 0 &&
	       (!(run->ctx->entry->plan->flags & PLAN_EMPTY_MESSAGES) || run->segment != 0);
}

static void send_done(struct transport_send *send, int status)
{
	struct step_state *st = send->user;
	struct op_ctx *ctx = st->run->ctx;

	if (status == 0 && ctx->op->state == OP_ACTIVE) {
		counter_add(&ctx->comm->params.view->bytes_sent, st->length);
		step_done(st);
	}
	op_unhold(ctx);
}

/* May it go? By the peer's grant, or as an eager message. */
static bool send_admitted(struct step_state *st, struct engine_peer *peer, uint32_t host,
			  uint8_t *ret_flags)
{
	struct op_ctx *ctx = st->run->ctx;
	struct engine_comm *c = ctx->comm;
	uint32_t granted = c->grants[(size_t)(ctx->op->seq % LIMIT_COMM_WINDOW) * c->nhosts + host];

	*ret_flags = 0;
	if (granted > st->run->segment) {
		return true;
	}
	if (conn_take_credit(peer, st->length)) {
		*ret_flags = WIRE_EAGER;
		return true;
	}
	return false;
}

/* An eager operation's receivers do not grant by themselves: out of credits, ask them. */
static void send_blocked(struct step_state *st, uint32_t host)
{
	struct op_ctx *ctx = st->run->ctx;

	st->state = STEP_BLOCKED;
	if (ctx->eager) {
		op_request_grant(ctx, host);
	}
}

static void step_send(struct step_state *st)
{
	struct op_ctx *ctx = st->run->ctx;
	const struct plan_step *step = step_of(st);
	struct engine_peer *peer = ctx->comm->params.peers[step->peer];
	struct wire_header *h = &st->send.header;
	uint64_t length;
	uint32_t niov = step_iov(st, &length);
	uint8_t flags;

	st->length = length;
	if (step_is_void(st->run, length)) {
		step_done(st);
		return;
	}
	if (!send_admitted(st, peer, step->peer, &flags)) {
		send_blocked(st, step->peer);
		return;
	}
	memset(&st->send, 0, sizeof(st->send));
	h->type = WIRE_DATA;
	h->flags = flags;
	h->comm = ctx->comm->params.uid;
	h->seq = ctx->op->seq;
	h->segment = st->run->segment;
	h->tag = step->tag;
	h->algo = ctx->entry->plan->algo;
	conn_put_signature(h, &ctx->op->sig);
	st->send.iov = st->iov;
	st->send.niov = niov;
	st->send.length = length;
	st->send.account = ctx->comm->params.view;
	st->send.done = send_done;
	st->send.user = st;
	st->state = STEP_POSTED;
	ctx->held++;
	conn_send(peer, &st->send);
}

/* The message of a receive has come early and lies in a buffer. */
static void step_take(struct step_state *st, struct eager_slot *slot)
{
	struct op_ctx *ctx = st->run->ctx;
	struct engine_signature sig = conn_get_signature(&slot->header);

	/* When it came there may have been nothing to compare it with. */
	if (!comm_check_signature(ctx->op, slot->host, &sig)) {
		return;
	}
	if (slot->header.length != st->length) {
		op_wrong_length(ctx->op, step_of(st)->peer, st->length, slot->header.length);
		return;
	}
	op_recv_fragment(st, slot->data, 0, st->length);
	conn_release_slot(slot);
	counter_add(&ctx->comm->params.view->bytes_received, st->length);
	step_done(st);
}

/* A receive whose turn has come: it may have arrived before. */
static void step_receive(struct step_state *st)
{
	struct op_ctx *ctx = st->run->ctx;
	const struct plan_step *step = step_of(st);
	struct eager_slot *slot;
	uint64_t length;

	step_iov(st, &length);
	st->length = length;
	if (step_is_void(st->run, length)) {
		step_done(st);
		return;
	}
	st->state = STEP_POSTED;
	slot = conn_find_early(ctx->comm, WIRE_DATA, step->peer, ctx->op->seq, st->run->segment,
			       step->tag, 0);
	if (slot) {
		step_take(st, slot);
	}
}

void op_run_steps(struct op_run *run)
{
	struct op *op = run->ctx->op;

	/* Messages first, so that the wire works while local steps compute. */
	for (uint32_t turn = 0; turn < run->ctx->entry->plan->nsteps + 1 && run->nready; turn++) {
		uint32_t at = run->nready - 1;
		struct step_state *st;

		for (uint32_t i = 0; i < run->nready; i++) {
			if (run->ctx->entry->plan->steps[run->ready[i]].kind != PLAN_LOCAL) {
				at = i;
				break;
			}
		}
		st = &run->steps[run->ready[at]];
		if (step_of(st)->kind == PLAN_LOCAL) {
			if (step_work(st)) {
				run->ready[at] = run->ready[--run->nready];
				step_settle(st);
			}
			break; /* one slice a turn: others get theirs */
		}
		run->ready[at] = run->ready[--run->nready];
		if (step_of(st)->kind == PLAN_SEND) {
			step_send(st);
		} else {
			step_receive(st);
		}
		if (op->state != OP_ACTIVE || !run->active) {
			return; /* it failed on the way */
		}
	}
	if (run->nready) {
		run_enqueue(run);
	} else if (run->left == 0) {
		op_run_finished(run);
	}
}

/* @host: of those who are sent to; -1: all. */
static void run_retry(struct op_run *run, int64_t host)
{
	const struct plan *plan = run->ctx->entry->plan;

	for (uint32_t i = 0; run->active && i < plan->nsteps; i++) {
		if (run->steps[i].state == STEP_BLOCKED &&
		    (host < 0 || plan->steps[i].peer == host)) {
			run->steps[i].state = STEP_READY;
			run->ready[run->nready++] = i;
			run_enqueue(run);
		}
	}
}

void op_retry(struct op *op)
{
	for (uint32_t r = 0; r < op->ctx->nruns; r++) {
		run_retry(&op->ctx->runs[r], -1);
	}
}

void op_granted(struct op *op, uint32_t host, uint32_t from, uint32_t to)
{
	for (uint32_t r = 0; r < op->ctx->nruns; r++) {
		struct op_run *run = &op->ctx->runs[r];

		if (run->segment >= from && run->segment < to) {
			run_retry(run, host);
		}
	}
}

/* ---- arrival ------------------------------------------------------------------------------ */

static struct op_run *find_run(struct op_ctx *ctx, uint32_t segment)
{
	for (uint32_t i = 0; i < ctx->nruns; i++) {
		if (ctx->runs[i].active && ctx->runs[i].segment == segment) {
			return &ctx->runs[i];
		}
	}
	return NULL;
}

void op_wrong_length(struct op *op, uint32_t host, uint64_t ours, uint64_t theirs)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_LENGTH,
		.status = STATUS_MISMATCH,
		.seq = comm_number(op->comm, op->seq),
		.rank_a = -1,
		.rank_b = -1,
		.host_b = (int32_t)host,
		.a = op->sig,
		.b = op->sig,
		.length_a = ours,
		.length_b = theirs,
	};

	comm_fail_event(op->comm, &f);
}

/*
 * In place a receive waits for a send from the same memory. The message answers what was sent
 * there, so its bytes have left that memory, though whoever sent them may not have said so yet: an
 * I/O thread that lost its CPU on the return from sendmsg(), or another completion queue.
 */
static bool sends_are_over(const struct op_run *run, uint32_t at)
{
	const struct plan *plan = run->ctx->entry->plan;

	for (uint32_t i = 0; i < plan->nsteps; i++) {
		const struct plan_step *step = &plan->steps[i];

		if (run->steps[i].state == STEP_DONE ||
		    (step->kind == PLAN_SEND && run->steps[i].state == STEP_POSTED)) {
			continue;
		}
		for (uint32_t k = 0; k < step->nsucc; k++) {
			if (plan->succ[step->first_succ + k] == at) {
				return false;
			}
		}
	}
	return true;
}

/* Begins a receive that waits for such sends; step_done() of these leaves it alone. */
static bool claim_answer(struct op_run *run, uint32_t at)
{
	struct step_state *st = &run->steps[at];

	/* deps: 0 while the run's input is still being copied */
	if (!run->active || st->state != STEP_WAITING || st->deps == 0 ||
	    !sends_are_over(run, at)) {
		return false;
	}
	step_iov(st, &st->length);
	st->state = STEP_POSTED;
	return true;
}

/*
 * The rules of plans say that a receive waits only for local work and for sends that it answers, so
 * at worst that work is done here and now. Return: the step, ready for the message; NULL when it
 * has not begun.
 */
static struct step_state *claim(struct op *op, uint32_t host, const struct wire_header *h)
{
	struct op_run *run = find_run(op->ctx, h->segment);
	int at = run ? plan_find_recv(op->ctx->entry->plan, host, h->tag) : -1;

	if (at < 0) {
		return NULL;
	}
	while (run->active && run->nready &&
	       (run->steps[at].state == STEP_WAITING || run->steps[at].state == STEP_READY)) {
		op_run_steps(run);
		if (op->state != OP_ACTIVE) {
			return NULL;
		}
	}
	if (run->active && run->steps[at].state == STEP_POSTED) {
		return &run->steps[at];
	}
	return claim_answer(run, (uint32_t)at) ? &run->steps[at] : NULL;
}

struct transport_recv *op_recv_begin(struct op *op, uint32_t host, const struct wire_header *h)
{
	struct step_state *st = claim(op, host, h);

	if (!st) {
		return NULL;
	}
	if (h->length != st->length) {
		op_wrong_length(op, host, st->length, h->length);
		return NULL;
	}
	memset(&st->recv, 0, sizeof(st->recv));
	st->target.kind = RECV_STEP;
	st->target.object = st;
	st->recv.user = &st->target;
	st->recv.account = op->comm->params.view;
	step_place(st);
	st->state = STEP_ARRIVING;
	op->ctx->held++;
	op->last_progress = op->comm->progress->now;
	return &st->recv;
}

void op_recv_fragment(struct step_state *st, const void *data, uint64_t offset, uint64_t size)
{
	struct op_run *run = st->run;
	const struct op_ctx *ctx = run->ctx;
	const struct plan_step *step = step_of(st);
	struct slice_moved moved = {0};
	const uint8_t *at = data;
	uint64_t begin = 0;

	if (ctx->op->state != OP_ACTIVE) {
		return;
	}
	ctx->op->last_progress = ctx->comm->progress->now;
	if (st->deferred) {
		return;
	}
	for (uint32_t i = 0; i < step->npieces && size; i++) {
		const struct plan_piece *piece = &ctx->entry->plan->pieces[step->first_piece + i];
		uint64_t first, lo, n, bytes, skip, now;

		op_piece(ctx, run, piece, &first, &lo, &n);
		bytes = n * ctx->esize;
		if (offset >= begin + bytes) {
			begin += bytes;
			continue;
		}
		skip = offset - begin;
		now = MIN(bytes - skip, size);
		if (step->kind == PLAN_RECV_REDUCE) {
			slice_combine(run, piece, first, lo, skip / ctx->esize, now / ctx->esize,
				      at, &moved);
		} else {
			slice_spread(run, piece, first, lo, skip, now, at, &moved);
		}
		at = at ? at + now : NULL;
		offset += now;
		size -= now;
		begin += bytes;
	}
	step_account(ctx->comm, &moved);
}

/* Receives that are not yet posted look for themselves when their turn comes. */
void op_take_early(struct op *op)
{
	struct engine_comm *c = op->comm;

	list_for_each_safe (e, &c->unexpected) {
		struct eager_slot *slot = container_of(e, struct eager_slot, link);
		const struct wire_header *h = &slot->header;
		struct op_run *run;
		int at;

		if (h->type != WIRE_DATA || h->seq != op->seq) {
			continue;
		}
		run = find_run(op->ctx, h->segment);
		at = run ? plan_find_recv(op->ctx->entry->plan, slot->host, h->tag) : -1;
		if (at >= 0 && run->steps[at].state == STEP_POSTED) {
			step_take(&run->steps[at], slot);
			if (op->state != OP_ACTIVE) {
				return;
			}
		}
	}
}

void op_abandon(struct engine_comm *c, struct engine_peer *peer)
{
	for (uint32_t i = 0; i < LIMIT_COMM_WINDOW; i++) {
		struct op *op = &c->ops[i];
		struct op_ctx *ctx = op->ctx;

		for (uint32_t r = 0; op->state == OP_ZOMBIE && r < ctx->nruns; r++) {
			struct op_run *run = &ctx->runs[r];

			for (uint32_t s = 0; run->active && s < ctx->entry->plan->nsteps; s++) {
				struct step_state *st = &run->steps[s];

				if (st->state == STEP_ARRIVING &&
				    c->params.peers[step_of(st)->peer] == peer) {
					st->state = STEP_DONE;
					step_unstage(st);
					op_dropped(st);
					op_unhold(ctx);
				}
				if (op->state != OP_ZOMBIE) {
					break;
				}
			}
		}
	}
}

void op_recv_done(struct step_state *st)
{
	struct op_ctx *ctx = st->run->ctx;

	if (ctx->op->state == OP_ACTIVE) {
		counter_add(&ctx->comm->params.view->bytes_received, st->length);
		if (st->deferred) {
			step_work_received(st);
		}
		step_settle(st);
	} else {
		step_unstage(st);
		op_dropped(st);
	}
	op_unhold(ctx);
}
