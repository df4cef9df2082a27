/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Failure of a communicator, as the progress thread handles it
 *
 * Clients are told as soon as nobody writes to their memory any more: at once, or when workers have
 * finished what they hold of it. Memory stays in use until the transport has let go of it, too
 * (OP_ZOMBIE), because a message that has begun must be finished on a stream that all jobs share.
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/comm.h"

#include "engine/client_ring.h"
#include "engine/conn.h"
#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/progress.h"
#include "util/clock.h"

#define WINDOW LIMIT_COMM_WINDOW

static void op_release_posts(struct op *op)
{
	for (uint32_t l = 0; l < op->comm->nlocal; l++) {
		post_release(&op->posts[l]);
	}
}

void comm_op_tell(struct op *op, enum status status)
{
	for (uint32_t l = 0; l < op->comm->nlocal; l++) {
		post_complete(op->comm, l, &op->posts[l], status, 0);
	}
}

/* Those whose memory nobody writes to; of some nothing is held, so that they may be gone later. */
static void op_tell_others(struct op *op, enum status status)
{
	for (uint32_t l = 0; l < op->comm->nlocal; l++) {
		if (!op->posts[l].out_region) {
			post_complete(op->comm, l, &op->posts[l], status, 0);
		}
	}
}

static void op_fail(struct op *op, enum status status)
{
	struct engine_comm *c = op->comm;
	bool held = op->state == OP_ACTIVE && !op_cancel(op);

	if (held && op->ctx->slices) {
		op_tell_others(op, status);
	} else {
		comm_op_tell(op, status);
	}
	c->progress->busy--;
	if (held) {
		op->state = OP_ZOMBIE;
		c->zombies++;
		return;
	}
	if (op->ctx) {
		op_release(op);
	}
	op_release_posts(op);
	op->state = OP_FREE;
}

void comm_op_drained(struct op *op)
{
	struct engine_comm *c = op->comm;

	op_release(op);
	op_release_posts(op);
	op->state = OP_FREE;
	c->zombies--;
	comm_try_remove(c);
}

/**
 * comm_fail() - complete everything, now and in future, with @status
 */
void comm_fail(struct engine_comm *c, enum status status)
{
	if (c->failed) {
		return;
	}
	c->failed = status;
	for (uint32_t seq = c->done; seq != c->tail; seq++) {
		struct op *op = &c->ops[seq % WINDOW];

		if (op->state != OP_FREE && op->state != OP_ZOMBIE) {
			op_fail(op, status);
		}
	}
	counter_set(&c->params.view->wait_since_ns, 0);
	p2p_fail(c);
	conn_drop_early(c);
	comm_try_remove(c);
}

static void comm_fail_run(void *ctx, struct mailbox_msg *msg)
{
	struct engine_comm *c = container_of(msg, struct engine_comm, fail_msg);

	engine_tell_comm_failed(ctx, c->params.user, &c->failure);
}

void comm_fail_event(struct engine_comm *c, const struct engine_failure *failure)
{
	if (c->failed) {
		return;
	}
	if (!c->fail_told) {
		c->fail_told = true;
		c->failure = *failure;
		c->fail_msg.run = comm_fail_run;
		/* Before the clients are told: who then asks for the sentence finds it. */
		progress_tell(c->progress, &c->fail_msg);
	}
	comm_fail(c, failure->status);
}

/* A rank gives its handle up: what it still has in flight cannot end well for the others either. */
void comm_detach(struct engine_comm *c, uint32_t local)
{
	struct engine_rank *rank = &c->ranks[local];
	struct engine_handle *handle = &rank->session->handles[rank->handle];

	rank->detached = true;
	if (!list_empty(&rank->posts)) {
		comm_fail(c, STATUS_ABORTED);
	}
	handle->comm = NULL;
	handle->failed = c->failed;
}

bool comm_idle(const struct engine_comm *c)
{
	return c->zombies == 0 && c->pins == 0 && list_empty((struct list *)&c->p2p_active) &&
	       !c->plan_pending && list_empty((struct list *)&c->unexpected);
}

/* Nobody counts for it any more: its view is freed with it. */
static void comm_forget(struct engine_comm *c)
{
	list_for_each (e, &c->progress->dirty) {
		struct engine_session *s = container_of(e, struct engine_session, dirty);

		if (s->told == c->params.view) {
			s->told = NULL;
		}
	}
	conn_forget(c);
}

void comm_try_remove(struct engine_comm *c)
{
	if (c->removing && c->remove_msg && comm_idle(c)) {
		struct mailbox_msg *msg = c->remove_msg;

		c->remove_msg = NULL;
		comm_unlink(c);
		comm_forget(c);
		progress_tell(c->progress, msg);
	}
}

static void comm_timeout(struct engine_comm *c, const struct op *op, enum engine_fail_cause cause)
{
	struct engine_failure f = {
		.cause = cause,
		.status = STATUS_TIMEOUT,
		.seq = comm_number(c, op->seq),
		.rank_a = -1,
		.rank_b = -1,
		.host_b = -1,
		.a = op->sig,
	};

	comm_fail_event(c, &f);
}

/* A send without its receive, or the reverse, is somebody who has not posted, too. */
static void p2p_check_timeouts(struct engine_comm *c, uint64_t arrival)
{
	const struct p2p *x = arrival && c->progress->now > arrival
				      ? p2p_overdue(c, c->progress->now - arrival)
				      : NULL;
	struct engine_failure f = {
		.cause = ENGINE_FAIL_PARTNER,
		.status = STATUS_TIMEOUT,
		.host_b = -1,
	};

	if (x) {
		f.seq = x->seq;
		f.rank_a = (int32_t)c->ranks[x->local].rank;
		f.rank_b = (int32_t)x->peer;
		f.a.kind = x->kind;
		f.length_a = x->bytes;
		comm_fail_event(c, &f);
	}
}

/*
 * Two clocks. Transfer: a message has begun and its bytes have stopped. Arrival: nothing is on its
 * way, so somebody has not posted.
 */
void comm_check_timeouts(struct engine_comm *c)
{
	const struct op *op = &c->ops[c->done % WINDOW];
	uint64_t now = c->progress->now;
	uint64_t arrival = c->params.arrival_timeout_ms * CLOCK_NS_PER_MS;
	uint64_t transfer = c->params.transfer_timeout_ms * CLOCK_NS_PER_MS;
	uint64_t still;

	if (!c->failed) {
		p2p_check_timeouts(c, arrival);
	}
	if (c->failed || c->done == c->tail || op->state == OP_FREE) {
		return;
	}
	/* Whoever posts far ahead does not shorten the others' time: it counts for the oldest. */
	still = clock_elapsed(now, MAX(op->last_progress, c->oldest_since));
	if (op->state == OP_ACTIVE && op->ctx->held) {
		if (transfer && still > transfer) {
			comm_timeout(c, op, ENGINE_FAIL_TRANSFER);
		}
	} else if (arrival && still > arrival) {
		comm_timeout(c, op, ENGINE_FAIL_ARRIVAL);
	}
}
