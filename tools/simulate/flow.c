/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Flow: steps and progress threads, see flow.h
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#include "tools/simulate/flow.h"

#include "engine/op.h"
#include "tools/simulate/flow_impl.h"

static int cpu_next(struct flow *f, uint32_t host);

/* ---- sizes -------------------------------------------------------------------------------- */

uint64_t flow_segment(const struct fleet *f, const struct link_model *m)
{
	return coll_segment(&f->bounds, (uint64_t)(m->chunk_kib * 1024),
			    (uint64_t)(m->scratch_kib * 1024));
}

/* Bytes of one piece of a step. A host that stands for all rounds parts up, so that all are alike.
 */
uint64_t flow_piece(const struct flow *f, const struct shape_step *step, uint64_t segment)
{
	uint64_t n = f->count - MIN(f->count, segment * f->seg_elems);

	n = MIN(n, f->seg_elems);
	if (step->parts == 1) {
		return n * FLOW_ESIZE;
	}
	if (f->fleet->mirror != FLEET_FULL) {
		return DIV_UP(n, step->parts) * step->span * FLOW_ESIZE;
	}
	return (plan_part(n, step->part + step->span, step->parts) -
		plan_part(n, step->part, step->parts)) *
	       FLOW_ESIZE;
}

static bool is_void(const struct flow *f, uint64_t bytes, uint64_t segment)
{
	return bytes == 0 && (!(f->fleet->bounds.flags & PLAN_EMPTY_MESSAGES) || segment != 0);
}

/* ---- tasks -------------------------------------------------------------------------------- */

void flow_add_event(struct flow *f, uint64_t at, enum flow_event kind, uint32_t host, uint32_t step,
		    uint64_t segment, uint32_t rail)
{
	int r = queue_add(&f->queue, (struct event){.at = at,
						    .kind = (uint16_t)kind,
						    .host = host,
						    .step = step,
						    .segment = (uint32_t)segment,
						    .rail = (uint16_t)rail});

	f->error = f->error ? f->error : r;
}

static void fifo_add(struct flow *f, struct flow_fifo *q, uint32_t task)
{
	f->tasks[task].next = FLOW_NONE;
	if (q->head == FLOW_NONE) {
		q->head = task;
	} else {
		f->tasks[q->tail].next = task;
	}
	q->tail = task;
}

static uint32_t fifo_take(struct flow *f, struct flow_fifo *q)
{
	uint32_t task = q->head;

	q->head = f->tasks[task].next;
	return task;
}

void flow_add_task(struct flow *f, uint32_t host, uint32_t task, bool local)
{
	struct flow_host *h = &f->hosts[host];

	fifo_add(f, local ? &h->local : &h->messages, task);
	if (h->running == FLOW_NONE) {
		f->error = f->error ? f->error : cpu_next(f, host);
	}
}

/* ---- steps -------------------------------------------------------------------------------- */

static void begin_segment(struct flow *f, uint32_t host, uint32_t run);

static void push_ready(struct flow *f, uint32_t task)
{
	struct flow_stack *s = &f->ready;

	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 256;
		uint32_t *items = reallocarray(s->items, cap, sizeof(*items));

		if (!items) {
			f->error = err_origin(-ENOMEM);
			return;
		}
		s->items = items;
		s->cap = cap;
	}
	s->items[s->n++] = task;
}

/* Its dependencies are done. Return: true when it has nothing to do and is done, too. */
static bool step_ready(struct flow *f, uint32_t host, uint32_t task)
{
	struct flow_host *h = &f->hosts[host];
	const struct shape_step *step = &h->shape->steps[flow_step_of(h, task)];
	uint64_t segment = f->runs[h->first_run + flow_run_of(h, task)].segment;
	uint64_t bytes = flow_piece(f, step, segment);

	if (step->kind == PLAN_LOCAL) {
		f->tasks[task].left = link_bytes_ps(bytes * step->copies, f->m->copy_GBps) +
				      link_bytes_ps(bytes * step->reduces, f->m->reduce_GBps);
		flow_add_task(f, host, task, true);
		return false;
	}
	if (is_void(f, bytes * step->npieces, segment)) {
		return true;
	}
	if (step->kind == PLAN_SEND) {
		flow_send_ready(f, host, task, segment);
	} else if (f->tasks[task].arrived) {
		flow_add_task(f, host, task, false);
	}
	return false;
}

static void ready_steps(struct flow *f, uint32_t host);

static void segment_done(struct flow *f, struct flow_host *h)
{
	h->finished++;
	h->ended = f->now;
	if (h->finished == f->pace_from) {
		h->pace_began = f->now;
	} else if (h->finished == f->pace_to) {
		h->pace_ended = f->now;
	}
}

static void step_done(struct flow *f, uint32_t host, uint32_t task)
{
	struct flow_host *h = &f->hosts[host];
	const struct shape_step *step = &h->shape->steps[flow_step_of(h, task)];
	uint32_t run = flow_run_of(h, task);

	for (uint32_t i = 0; i < step->nsucc; i++) {
		uint32_t next = flow_task_of(h, run, h->shape->succ[step->first_succ + i]);

		if (--f->tasks[next].pending == 0) {
			push_ready(f, next);
		}
	}
	if (--f->runs[h->first_run + run].left == 0) {
		segment_done(f, h);
		f->runs[h->first_run + run].segment = UINT64_MAX;
		if (h->next_segment < f->nseg) {
			begin_segment(f, host, run);
		}
	}
}

/* Works off what step_done() has made ready; steps that are done at once make others ready. */
static void ready_steps(struct flow *f, uint32_t host)
{
	size_t at = 0;

	/* In the order in which they became ready. */
	while (at < f->ready.n && !f->error) {
		uint32_t task = f->ready.items[at++];

		if (step_ready(f, host, task)) {
			step_done(f, host, task);
		}
	}
	f->ready.n = 0;
}

/* Only resets the run and lists its first steps in f->ready. */
static void begin_segment(struct flow *f, uint32_t host, uint32_t run)
{
	struct flow_host *h = &f->hosts[host];
	struct flow_run_state *r = &f->runs[h->first_run + run];

	r->segment = h->next_segment++;
	r->left = h->shape->nsteps;
	for (uint32_t i = 0; i < h->shape->nsteps; i++) {
		f->tasks[flow_task_of(h, run, i)] =
			(struct flow_task){.pending = h->shape->steps[i].ndeps};
		if (h->shape->steps[i].ndeps == 0) {
			push_ready(f, flow_task_of(h, run, i));
		}
	}
	/* One grant covers all segments that begin together. */
	if (r->segment == 0 || (!f->eager && r->segment >= h->nruns)) {
		uint32_t grants = flow_task_of(h, run, h->shape->nsteps);

		/* Those of a segment in which nothing came may still wait for their turn. */
		if (!f->tasks[grants].arrived) {
			f->tasks[grants].arrived = true;
			flow_add_task(f, host, grants, false);
		}
	}
}

/* ---- progress thread ---------------------------------------------------------------------- */

static uint64_t grant_cost(const struct flow *f, const struct flow_host *h)
{
	const struct shape *s = h->shape;

	if (f->eager) {
		/* Only those hear that nothing else is sent to; about as many tell us. */
		return link_us_ps(s->nrecv_only * (f->m->send_us + f->m->recv_us));
	}
	return link_us_ps(s->nrecv_peers * f->m->send_us + s->nsend_peers * f->m->recv_us);
}

static uint64_t message_cost(const struct flow *f, const struct flow_host *h, uint32_t task)
{
	const struct shape_step *step = &h->shape->steps[flow_step_of(h, task)];
	uint64_t bytes = flow_piece(f, step, f->runs[h->first_run + flow_run_of(h, task)].segment);
	uint64_t cost = link_bytes_ps(bytes * step->npieces, f->m->stack_GBps);

	if (step->kind == PLAN_SEND) {
		return cost + link_us_ps(f->m->send_us);
	}
	return cost + link_us_ps(f->m->recv_us) +
	       link_bytes_ps(bytes * step->copies, f->m->copy_GBps) +
	       link_bytes_ps(bytes * step->reduces, f->m->reduce_GBps);
}

/* Takes a core for @host, or lets it wait for one. */
static bool take_core(struct flow *f, uint32_t host)
{
	struct flow_host *h = &f->hosts[host];

	if (f->idle_cores == FLOW_NONE) {
		return true;
	}
	if (f->idle_cores > 0) {
		f->idle_cores--;
		return true;
	}
	if (!h->waiting) {
		h->waiting = true;
		h->next_waiting = FLOW_NONE;
		if (f->first_waiting == FLOW_NONE) {
			f->first_waiting = host;
		} else {
			f->hosts[f->last_waiting].next_waiting = host;
		}
		f->last_waiting = host;
	}
	return false;
}

/* The core that a host leaves goes to the one that has waited longest. */
static void leave_core(struct flow *f)
{
	uint32_t host = f->first_waiting;

	if (f->idle_cores == FLOW_NONE) {
		return;
	}
	f->idle_cores++;
	if (host != FLOW_NONE) {
		f->first_waiting = f->hosts[host].next_waiting;
		f->hosts[host].waiting = false;
		f->error = f->error ? f->error : cpu_next(f, host);
	}
}

/* Takes the next task: messages first, so that the wire works while local steps compute. */
static int cpu_next(struct flow *f, uint32_t host)
{
	struct flow_host *h = &f->hosts[host];
	double slowest = MIN(f->m->copy_GBps, f->m->reduce_GBps);

	if ((h->messages.head == FLOW_NONE && h->local.head == FLOW_NONE) || !take_core(f, host)) {
		return 0;
	}
	if (h->messages.head != FLOW_NONE) {
		h->running = fifo_take(f, &h->messages);
		h->slice = flow_step_of(h, h->running) == h->shape->nsteps
				   ? grant_cost(f, h)
				   : message_cost(f, h, h->running);
	} else {
		uint64_t most = slowest > 0 ? link_bytes_ps(OP_SLICE, slowest) : UINT64_MAX;

		h->running = fifo_take(f, &h->local);
		h->slice = MIN(f->tasks[h->running].left, most);
	}
	flow_add_event(f, f->now + h->slice, EV_CPU, host, 0, 0, 0);
	return f->error;
}

static void cpu_done(struct flow *f, uint32_t host)
{
	struct flow_host *h = &f->hosts[host];
	uint32_t task = h->running;
	uint32_t step = flow_step_of(h, task);
	uint64_t segment = f->runs[h->first_run + flow_run_of(h, task)].segment;

	h->running = FLOW_NONE;
	h->busy += h->slice;
	leave_core(f);
	if (step == h->shape->nsteps) {
		f->tasks[task].arrived = false;
		if (segment != UINT64_MAX && !f->eager) {
			flow_grants_sent(f, host, segment);
		}
	} else if (h->shape->steps[step].kind == PLAN_SEND) {
		flow_transmit(f, host, task, segment);
	} else if (h->shape->steps[step].kind == PLAN_LOCAL && f->tasks[task].left > h->slice) {
		f->tasks[task].left -= h->slice;
		fifo_add(f, &h->local, task);
	} else {
		step_done(f, host, task);
		ready_steps(f, host);
	}
	if (h->running == FLOW_NONE && !f->error) {
		f->error = cpu_next(f, host);
	}
}

/* ---- events ------------------------------------------------------------------------------- */

/* A message is complete at its receiver, where @e->step is a step, not a task. */
static void landed(struct flow *f, const struct event *e)
{
	struct flow_host *h = &f->hosts[e->host];

	for (uint32_t run = 0; run < h->nruns; run++) {
		if (f->runs[h->first_run + run].segment == e->segment) {
			uint32_t task = flow_task_of(h, run, e->step);

			f->tasks[task].arrived = true;
			if (f->tasks[task].pending == 0) {
				flow_add_task(f, e->host, task, false);
			}
			return;
		}
	}
	f->error = -EDEADLK; /* it was not granted */
}

static void handle(struct flow *f, const struct event *e)
{
	switch ((enum flow_event)e->kind) {
	case EV_CPU:
		cpu_done(f, e->host);
		break;
	case EV_POST:
		flow_add_task(f, e->host, e->step, false);
		break;
	case EV_SENT:
		step_done(f, e->host, e->step);
		ready_steps(f, e->host);
		break;
	case EV_UPLINK:
		flow_pass_uplink(f, e);
		break;
	case EV_WIRE:
		flow_reserve_rx(f, e);
		break;
	case EV_LANDED:
		landed(f, e);
		break;
	}
}

/* ---- beginning and end -------------------------------------------------------------------- */

static int allocate(struct flow *f)
{
	uint32_t n = f->fleet->nshapes;
	uint32_t rack = (uint32_t)f->m->rack;
	uint64_t seg = f->seg_elems * FLOW_ESIZE;
	uint32_t nruns = 0;

	f->hosts = calloc(n, sizeof(*f->hosts));
	if (!f->hosts) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct flow_host *h = &f->hosts[i];

		*h = (struct flow_host){
			.shape = &f->fleet->shapes[i],
			.first_task = (uint32_t)f->ntasks,
			.first_run = nruns,
			.messages = {FLOW_NONE, FLOW_NONE},
			.local = {FLOW_NONE, FLOW_NONE},
			.running = FLOW_NONE,
			.parked = FLOW_NONE,
			.nruns = (uint32_t)MIN(link_runs(), f->nseg),
		};
		if (f->fleet->bounds.flags & PLAN_WHOLE ||
		    (double)(seg * h->shape->ntemp) > f->m->scratch_kib * 1024) {
			h->nruns = 1;
		}
		nruns += h->nruns;
		f->ntasks += (uint64_t)h->nruns * (h->shape->nsteps + 1);
		if (f->ntasks >= FLOW_NONE) {
			return err_origin(-ENOMEM);
		}
	}
	f->tasks = calloc(f->ntasks, sizeof(*f->tasks));
	f->runs = calloc(nruns, sizeof(*f->runs));
	f->granted = calloc(n * f->nseg, sizeof(*f->granted));
	f->tx = calloc((size_t)n * f->rails, sizeof(*f->tx));
	f->rx = calloc((size_t)n * f->rails, sizeof(*f->rx));
	if (rack && f->m->oversub > 1 && f->fleet->mirror == FLEET_FULL) {
		f->up = calloc(n / rack + 1, sizeof(*f->up));
		f->down = calloc(n / rack + 1, sizeof(*f->down));
		if (!f->up || !f->down) {
			return err_origin(-ENOMEM);
		}
	}
	return f->tasks && f->runs && f->granted && f->tx && f->rx ? 0 : err_origin(-ENOMEM);
}

static void deallocate(struct flow *f)
{
	queue_deinit(&f->queue);
	free(f->hosts);
	free(f->tasks);
	free(f->runs);
	free(f->granted);
	free(f->tx);
	free(f->rx);
	free(f->up);
	free(f->down);
	free(f->parked);
	free(f->ready.items);
}

static void start_host(struct flow *f, uint32_t host)
{
	struct flow_host *h = &f->hosts[host];

	for (uint32_t run = 0; run < h->nruns; run++) {
		begin_segment(f, host, run);
	}
	ready_steps(f, host);
}

/*
 * Time of a segment in the steady state. All hosts come to the pace of the busiest one, those next
 * to the source of a long chain first: at its end as many segments as it has hosts may have to pass
 * before it shows.
 */
static double pace(const struct flow *f)
{
	const struct flow_host *first = NULL;
	uint64_t most = 0;

	for (uint32_t i = 0; i < f->fleet->nshapes; i++) {
		most = MAX(most, f->hosts[i].busy);
	}
	for (uint32_t i = 0; i < f->fleet->nshapes && f->pace_to; i++) {
		const struct flow_host *h = &f->hosts[i];

		if (h->busy >= most - most / 64 && (!first || h->pace_ended < first->pace_ended)) {
			first = h;
		}
	}
	return first ? (double)(first->pace_ended - first->pace_began) / LINK_PS_US /
			       (double)(f->pace_to - f->pace_from)
		     : 0;
}

static void report(const struct flow *f, struct flow_result *ret)
{
	uint64_t ended = 0;

	for (uint32_t i = 0; i < f->fleet->nshapes; i++) {
		ended = MAX(ended, f->hosts[i].ended);
		ret->sent = MAX(ret->sent, (double)f->hosts[i].sent);
		ret->messages = MAX(ret->messages, (double)f->hosts[i].messages_sent);
	}
	ret->us_more = pace(f);
	ret->us = (double)ended / LINK_PS_US + f->m->op_us + f->m->rank_us * (f->fleet->ranks - 1);
	ret->events = f->events;
}

/**
 * flow_run() - one operation on virtual time
 * @fleet:  borrowed
 * @m:      borrowed
 * @bytes:  of one rank's message
 * @nseg:   segments to run at most
 * @ret:    set on success only
 *
 * Return: 0, -EDEADLK or -ENOMEM.
 */
int flow_run(const struct fleet *fleet, const struct link_model *m, uint64_t bytes, uint64_t nseg,
	     struct flow_result *ret)
{
	uint64_t seg = flow_segment(fleet, m);
	struct flow f = {
		.fleet = fleet,
		.m = m,
		.seg_elems = seg == UINT64_MAX ? seg : seg / FLOW_ESIZE,
		.count = DIV_UP(bytes, FLOW_ESIZE),
		.rails = (uint32_t)m->rails,
		.free_parked = FLOW_NONE,
		.idle_cores = m->cores > 0 ? (uint32_t)m->cores : FLOW_NONE,
		.first_waiting = FLOW_NONE,
	};
	struct flow_result result = {0};
	struct event e;

	result.nseg = MAX(DIV_UP(f.count, f.seg_elems), 1);
	result.simulated = f.nseg = MIN(result.nseg, nseg);
	/* Neither the pipeline's filling nor its end. */
	if (f.nseg >= 8ull * link_runs()) {
		f.pace_from = f.nseg / 2;
		f.pace_to = f.nseg - 2 * link_runs();
	}
	f.eager = result.nseg == 1 &&
		  (double)bytes * fleet->bounds.msg_blocks / fleet->bounds.msg_parts <=
			  m->eager_kib * 1024;
	f.error = allocate(&f);
	for (uint32_t i = 0; i < fleet->nshapes && !f.error; i++) {
		start_host(&f, i);
	}
	while (!f.error && queue_take(&f.queue, &e)) {
		f.now = e.at;
		f.events++;
		handle(&f, &e);
	}
	for (uint32_t i = 0; i < fleet->nshapes && !f.error; i++) {
		f.error = f.hosts[i].finished == f.nseg ? 0 : -EDEADLK;
	}
	if (!f.error) {
		report(&f, &result);
		*ret = result;
	}
	deallocate(&f);
	return f.error;
}
