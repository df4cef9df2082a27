/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan cache of a communicator
 *
 * Plans are built by the control thread on request, since building allocates: the first operation
 * of a kind pays one round trip through the mailbox, all others find the plan here.
 *
 * Thread: plan_cache_get: progress; plan_entry_new/free: control      Owns: entries      Locks:
 * none
 */
#include <stdlib.h>

#include "engine/op.h"
#include "engine/progress.h"

/* Contexts of an entry: as many as may run side by side, fewer of large plans. */
#define SMALL_STEPS 64
#define LARGE_CONTEXTS 2
#define DEVICE_CONTEXTS 8 /* with more runs each, and staging memory for no more */

static void carve_run(struct op_run *run, struct op_ctx *ctx, uint8_t **at)
{
	const struct plan *plan = ctx->entry->plan;

	list_init(&run->link);
	run->ctx = ctx;
	run->steps = (struct step_state *)*at;
	*at += plan->nsteps * sizeof(struct step_state);
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		run->steps[i].run = run;
		run->steps[i].index = i;
		run->steps[i].iov = (struct iovec *)*at;
		*at += plan->steps[i].npieces * sizeof(struct iovec);
	}
}

static void carve_notes(struct op_note *notes, uint32_t n, struct op_ctx *ctx,
			const uint32_t *hosts)
{
	for (uint32_t i = 0; i < n; i++) {
		notes[i].ctx = ctx;
		notes[i].host = hosts[i];
	}
}

/* Divides the storage: what is aligned to 8 bytes first, then the ready stacks, then the gates. */
static void carve(struct plan_entry *e)
{
	const struct plan *plan = e->plan;
	uint8_t *at = e->storage;

	e->ctxs = (struct op_ctx *)at;
	at += e->nctx * sizeof(struct op_ctx);
	for (uint32_t i = 0; i < e->nctx; i++) {
		struct op_ctx *ctx = &e->ctxs[i];

		ctx->entry = e;
		ctx->grants = (struct op_note *)at;
		at += plan->nrecv_peers * sizeof(struct op_note);
		carve_notes(ctx->grants, plan->nrecv_peers, ctx, plan->recv_peers);
		ctx->rts = (struct op_note *)at;
		at += plan->nsend_peers * sizeof(struct op_note);
		carve_notes(ctx->rts, plan->nsend_peers, ctx, plan->send_peers);
		ctx->runs = (struct op_run *)at;
		at += e->nruns * sizeof(struct op_run);
		for (uint32_t r = 0; r < e->nruns; r++) {
			carve_run(&ctx->runs[r], ctx, &at);
		}
	}
	for (uint32_t i = 0; i < e->nctx * e->nruns; i++) {
		struct op_run *run = &e->ctxs[i / e->nruns].runs[i % e->nruns];

		run->ready = (uint32_t *)at;
		at += plan->nsteps * sizeof(uint32_t);
	}
	e->gate = at;
}

static bool is_receive(const struct plan_step *step)
{
	return step->kind == PLAN_RECV || step->kind == PLAN_RECV_REDUCE;
}

/*
 * Successors have higher numbers: one walk from the end finds who is waited for, one from the
 * beginning who waits for a message.
 */
static void find_gates(struct plan_entry *e)
{
	const struct plan *plan = e->plan;

	for (uint32_t i = plan->nsteps; i-- > 0;) {
		const struct plan_step *step = &plan->steps[i];

		for (uint32_t s = 0; step->kind == PLAN_LOCAL && s < step->nsucc; s++) {
			uint32_t next = plan->succ[step->first_succ + s];

			if (is_receive(&plan->steps[next]) || e->gate[next] == GATE_GRANT) {
				e->gate[i] = GATE_GRANT;
			}
		}
	}
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		const struct plan_step *step = &plan->steps[i];
		bool waits = step->kind != PLAN_LOCAL || e->gate[i] == GATE_INLINE;

		for (uint32_t s = 0; waits && s < step->nsucc; s++) {
			uint32_t next = plan->succ[step->first_succ + s];

			if (e->gate[next] == GATE_GRANT) {
				e->gate[next] = GATE_INLINE;
			}
		}
		e->ngates += e->gate[i] == GATE_GRANT;
	}
}

static bool is_out(const struct plan_ref *ref)
{
	return ref->space == PLAN_OUT;
}

/* Places of a piece in OUT; *ret_first: of the rank @first among them. -1: of several blocks. */
static int count_outs(const struct plan *plan, const struct plan_piece *piece, uint32_t first,
		      bool *ret_first)
{
	const struct plan_ref *to = &plan->refs[piece->first_ref + piece->nsrc];
	const struct plan_ref *out = NULL;
	int n = 0;

	*ret_first = false;
	for (uint32_t i = 0; i < piece->ndst; i++) {
		if (!is_out(&to[i])) {
			continue;
		}
		if (out && to[i].block != out->block) {
			return -1;
		}
		out = &to[i];
		*ret_first |= out->lrank == first;
		n++;
	}
	return n;
}

/*
 * May the OUTs of all local ranks be one place? When each access to one of them is an access to
 * that of the first one, too: what the plan waits for before it overwrites that is then enough.
 */
static bool shares_out(const struct plan *plan)
{
	uint32_t first = UINT32_MAX;
	int most = 0;

	if (plan->kind != COLL_ALLREDUCE && plan->kind != COLL_ALLGATHER &&
	    plan->kind != COLL_ALLGATHERV && plan->kind != COLL_BROADCAST) {
		return false;
	}
	for (uint32_t i = 0; i < plan->npieces; i++) {
		const struct plan_piece *piece = &plan->pieces[i];
		const struct plan_ref *to = &plan->refs[piece->first_ref + piece->nsrc];
		int outs = 0;

		for (uint32_t k = 0; k < piece->ndst; k++) {
			first = is_out(&to[k]) ? MIN(first, to[k].lrank) : first;
			outs += is_out(&to[k]);
		}
		most = MAX(most, outs);
	}
	for (uint32_t i = 0; i < plan->npieces; i++) {
		const struct plan_piece *piece = &plan->pieces[i];
		bool has_first;
		int n = count_outs(plan, piece, first, &has_first);

		if (n < 0 || (n > 0 && !has_first) || (n > 1 && n < most)) {
			return false;
		}
		for (uint32_t k = 0; k < piece->nsrc; k++) {
			const struct plan_ref *from = &plan->refs[piece->first_ref + k];

			if (is_out(from) && from->lrank != first) {
				return false;
			}
		}
	}
	return true;
}

static size_t storage_size(const struct plan_entry *e)
{
	const struct plan *plan = e->plan;
	size_t run = sizeof(struct op_run) + plan->nsteps * sizeof(struct step_state) +
		     plan->npieces * sizeof(struct iovec) + plan->nsteps * sizeof(uint32_t);
	size_t ctx = sizeof(struct op_ctx) +
		     ((size_t)plan->nrecv_peers + plan->nsend_peers) * sizeof(struct op_note) +
		     e->nruns * run;

	return e->nctx * ctx + plan->nsteps * sizeof(uint8_t);
}

int plan_entry_new(const struct coll_layout *layout, uint32_t host, uint8_t kind, uint8_t algo,
		   uint32_t root, uint32_t want, struct plan_entry **ret)
{
	struct plan_entry *e = calloc(1, sizeof(*e));
	int r;

	if (!e) {
		return err_origin(-ENOMEM);
	}
	r = coll_plan(kind, algo, root, want & ~OP_WANT_DEVICE, layout, host, &e->plan);
	if (r < 0) {
		plan_entry_free(e);
		return err_trace(r);
	}
	e->want = want;
	e->nruns = want & OP_WANT_DEVICE ? OP_DEVICE_RUNS : OP_RUNS;
	if (e->plan->flags & PLAN_WHOLE) {
		e->nruns = 1;
	}
	e->nctx = e->plan->nsteps <= SMALL_STEPS ? COMM_ACTIVE : LARGE_CONTEXTS;
	if (want & OP_WANT_DEVICE) {
		e->nctx = MIN(e->nctx, DEVICE_CONTEXTS);
	}
	e->storage = calloc(1, storage_size(e));
	if (!e->storage) {
		plan_entry_free(e);
		return err_origin(-ENOMEM);
	}
	carve(e);
	find_gates(e);
	e->shared_out = want & OP_WANT_DEVICE && shares_out(e->plan);
	*ret = e;
	return 0;
}

struct plan_entry *plan_entry_free(struct plan_entry *e)
{
	if (e) {
		plan_free(e->plan);
		free(e->storage);
		free(e);
	}
	return NULL;
}

/* ---- progress thread ---------------------------------------------------------------------- */

static void plan_fail(struct engine_comm *c, enum status status, const char *reason)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_INVALID,
		.status = status,
		.seq = c->started,
		.rank_a = (int32_t)c->ranks[0].rank,
		.rank_b = -1,
		.host_b = -1,
		.reason = reason,
	};

	comm_fail_event(c, &f);
}

/* In a communicator of very many hosts not all are linked with each other. */
static bool plan_reaches(const struct engine_comm *c, const struct plan *plan)
{
	for (uint32_t i = 0; i < plan->nsend_peers; i++) {
		if (!c->params.peers[plan->send_peers[i]]) {
			return false;
		}
	}
	for (uint32_t i = 0; i < plan->nrecv_peers; i++) {
		if (!c->params.peers[plan->recv_peers[i]]) {
			return false;
		}
	}
	return true;
}

/* The way back: the plan is here (or memory is out). */
static void plan_arrived(void *ctx, struct mailbox_msg *msg)
{
	struct engine_comm *c = container_of(msg, struct engine_comm, plan_msg);
	const struct plan_entry *arrived = c->plans[c->plan_slot];

	c->plan_pending = false;
	if (c->failed) {
		comm_try_remove(c);
		return;
	}
	for (uint32_t i = 0; i < COMM_PLANS; i++) {
		if (c->plans[i] && c->plans[i]->last_used == 0) {
			c->plans[i]->last_used = ++c->plan_clock;
		}
	}
	if (c->plan_failed) {
		plan_fail(c, STATUS_NO_MEMORY, "no memory for its plan");
		return;
	}
	if (!plan_reaches(c, arrived->plan)) {
		plan_fail(c, STATUS_UNSUPPORTED, ENGINE_NOT_LINKED);
		return;
	}
	comm_advance(c);
}

/* Control thread: builds what is asked for; the progress thread leaves the slot alone meanwhile. */
static void plan_build(void *ctx, struct mailbox_msg *msg)
{
	struct engine_comm *c = container_of(msg, struct engine_comm, plan_msg);
	struct plan_entry *e = NULL;
	int r;

	plan_entry_free(c->plan_evicted);
	c->plan_evicted = NULL;
	r = plan_entry_new(c->params.layout, c->params.host, c->plan_kind, c->plan_algo,
			   c->plan_root, c->plan_want, &e);
	c->plan_failed = r < 0;
	c->plans[c->plan_slot] = e;
	c->plan_msg.run = plan_arrived;
	mailbox_post(&c->progress->inbox, &c->plan_msg);
}

/* The least recently used slot that no operation runs from, or COMM_PLANS. */
static uint32_t plan_slot(struct engine_comm *c)
{
	uint32_t best = COMM_PLANS;

	for (uint32_t i = 0; i < COMM_PLANS; i++) {
		struct plan_entry *e = c->plans[i];

		if (!e) {
			return i;
		}
		if (!e->in_use &&
		    (best == COMM_PLANS || e->last_used < c->plans[best]->last_used)) {
			best = i;
		}
	}
	return best;
}

struct plan_entry *plan_cache_get(struct engine_comm *c, uint8_t kind, uint8_t algo, uint32_t root,
				  uint32_t want)
{
	if (c->plan_pending) {
		return NULL;
	}
	for (uint32_t i = 0; i < COMM_PLANS; i++) {
		struct plan_entry *e = c->plans[i];

		if (e && e->plan->kind == kind && e->plan->algo == algo && e->want == want &&
		    e->plan->root == root) {
			e->last_used = ++c->plan_clock;
			return e;
		}
	}
	c->plan_slot = plan_slot(c);
	if (c->plan_slot == COMM_PLANS) {
		return NULL; /* all are running; the next to finish advances us */
	}
	c->plan_evicted = c->plans[c->plan_slot];
	c->plans[c->plan_slot] = NULL;
	c->plan_kind = kind;
	c->plan_algo = algo;
	c->plan_root = root;
	c->plan_want = want;
	c->plan_pending = true;
	c->plan_msg.run = plan_build;
	progress_tell(c->progress, &c->plan_msg);
	return NULL;
}
