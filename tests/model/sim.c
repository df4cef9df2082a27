/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Simulator, see sim.h
 *
 * All that can happen next is an action in one pool, from which a random one (or, in other runs,
 * the newest or the oldest one) is taken. When the pool is empty everything must have ended.
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#include "sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reduce/reduce.h"
#include "sim_impl.h"

void sim_fail(struct sim *s, const char *format, ...)
{
	va_list args;

	if (s->failed) {
		return;
	}
	s->failed = true;
	va_start(args, format);
	vsnprintf(s->why, s->why_size, format, args);
	va_end(args);
}

uint64_t sim_random(struct sim *s)
{
	s->random = s->random * 6364136223846793005u + 1442695040888963407u;
	return s->random >> 33;
}

void *sim_need(void *p)
{
	if (!p) {
		abort();
	}
	return p;
}

static void add_action(struct sim *s, struct action action)
{
	if (s->npool == s->cap_pool) {
		s->cap_pool = s->cap_pool ? s->cap_pool * 2 : 256;
		s->pool = sim_need(reallocarray(s->pool, s->cap_pool, sizeof(*s->pool)));
	}
	s->pool[s->npool++] = action;
}

static struct action take_action(struct sim *s)
{
	size_t at = sim_random(s) % s->npool;
	struct action taken;

	/* Not always: a strict order could run one host to its end. */
	if (s->order == ORDER_NEWEST && sim_random(s) % 8) {
		at = s->npool - 1;
	} else if (s->order == ORDER_OLDEST && sim_random(s) % 8) {
		at = sim_random(s) % MIN(s->npool, 4);
	}
	taken = s->pool[at];
	s->pool[at] = s->pool[--s->npool];
	return taken;
}

/* ---- memory ------------------------------------------------------------------------------- */

uint64_t sim_piece_elems(const struct sim_data *d, uint32_t host, const struct plan_piece *piece,
			 uint64_t seg, uint64_t index, uint64_t *ret_first)
{
	const struct coll_layout *l = d->config.layout;
	const uint32_t *ranks = l->by_host + l->host_first[host];
	uint64_t n, first;

	if (piece->len_kind == PLAN_LEN_IN) {
		n = sim_count(d, ranks[piece->len_a], piece->len_b);
	} else if (piece->len_kind == PLAN_LEN_OUT) {
		n = sim_count_from(d, ranks[piece->len_a], piece->len_b);
	} else {
		n = d->is_v ? d->counts[piece->len_a] : d->config.count;
	}
	n -= MIN(n, index * seg);
	n = MIN(n, seg);
	first = plan_part(n, piece->part, piece->parts);
	*ret_first = first;
	return plan_part(n, piece->part + piece->span, piece->parts) - first;
}

uint8_t *sim_resolve(const struct sim_data *d, uint32_t host, const struct plan_ref *ref,
		     uint8_t *temp, uint64_t seg, uint64_t index, uint64_t first)
{
	const struct coll_layout *l = d->config.layout;

	if (ref->space == PLAN_TEMP) {
		return temp + (ref->block * seg + first) * d->esize;
	}
	return sim_block(d, l->by_host[l->host_first[host] + ref->lrank], ref->space == PLAN_OUT,
			 ref->block) +
	       (index * seg + first) * d->esize;
}

static uint64_t message_elems(struct sim *s, uint32_t host, uint32_t step, uint64_t index)
{
	const struct plan *p = s->hosts[host].plan;
	uint64_t total = 0;
	uint64_t first;

	for (uint32_t i = 0; i < p->steps[step].npieces; i++) {
		total += sim_piece_elems(s->data, host, &p->pieces[p->steps[step].first_piece + i],
					 s->seg, index, &first);
	}
	return total;
}

/* Is there a message at all? (rule 3) */
static bool has_message(struct sim *s, uint32_t host, uint32_t step, uint64_t index)
{
	return (index == 0 && (s->hosts[host].plan->flags & PLAN_EMPTY_MESSAGES)) ||
	       message_elems(s, host, step, index) > 0;
}

/* Copies what a send step sends to @to, or compares it. */
static bool read_message(struct sim *s, uint32_t host, uint32_t step, uint64_t index, uint8_t *to,
			 bool compare)
{
	const struct plan *p = s->hosts[host].plan;
	uint32_t esize = s->data->esize;

	for (uint32_t i = 0; i < p->steps[step].npieces; i++) {
		const struct plan_piece *piece = &p->pieces[p->steps[step].first_piece + i];
		uint64_t first;
		uint64_t n = sim_piece_elems(s->data, host, piece, s->seg, index, &first);
		const uint8_t *from;

		if (n == 0) {
			continue;
		}
		from = sim_resolve(s->data, host, &p->refs[piece->first_ref],
				   s->hosts[host].segs[index].temp, s->seg, index, first);
		if (!compare) {
			memcpy(to, from, n * esize);
		} else if (memcmp(to, from, n * esize) != 0) {
			return false;
		}
		to += n * esize;
	}
	return true;
}

/* Elements [from, to) of one piece; @wire: where the piece begins in what arrived. */
static void compute_piece(struct sim *s, uint32_t host, uint64_t index,
			  const struct plan_piece *piece, uint64_t first, uint64_t n,
			  const uint8_t *wire)
{
	const struct coll_layout *l = s->layout;
	const struct plan_ref *refs = &s->hosts[host].plan->refs[piece->first_ref];
	const uint8_t *src[REDUCE_MAX_SRC + 1];
	uint32_t raw[REDUCE_MAX_SRC + 1];
	uint8_t *temp = s->hosts[host].segs[index].temp;
	uint8_t *dst = NULL;
	uint32_t nsrc = piece->nsrc ? piece->nsrc : 1;

	for (uint32_t i = 0; i < nsrc; i++) {
		bool is_wire = piece->nsrc == 0 || refs[i].space == PLAN_WIRE;

		src[i] = is_wire ? wire
				 : sim_resolve(s->data, host, &refs[i], temp, s->seg, index, first);
		raw[i] = !is_wire && refs[i].raw ? l->by_host[l->host_first[host] + refs[i].lrank]
						 : UINT32_MAX;
	}
	for (uint32_t i = 0; i < piece->ndst; i++) {
		uint8_t *to = sim_resolve(s->data, host, &refs[piece->nsrc + i], temp, s->seg,
					  index, first);

		if (i > 0) {
			memmove(to, dst, n * s->data->esize);
		} else if (nsrc == 1 && !piece->final && raw[0] == UINT32_MAX) {
			memmove(to, src[0], n * s->data->esize);
			dst = to;
		} else {
			sim_combine(s->data, to, src, raw, nsrc, n, piece->final);
			dst = to;
		}
	}
}

/* One half of a local step or of the arrival of a message. */
static void run_fragment(struct sim *s, uint32_t host, uint64_t index, uint32_t step, int fragment)
{
	const struct plan *p = s->hosts[host].plan;
	struct message *msg = s->hosts[host].segs[index].arrived[step];
	const uint8_t *wire = msg ? msg->data : NULL;

	for (uint32_t i = 0; i < p->steps[step].npieces; i++) {
		const struct plan_piece *piece = &p->pieces[p->steps[step].first_piece + i];
		uint64_t first;
		uint64_t n = sim_piece_elems(s->data, host, piece, s->seg, index, &first);
		uint64_t from = fragment ? n / 2 : 0;
		uint64_t to = fragment ? n : n / 2;

		if (to > from) {
			compute_piece(s, host, index, piece, first + from, to - from,
				      wire ? wire + from * s->data->esize : NULL);
		}
		if (wire) {
			wire += n * s->data->esize;
		}
	}
}

/* ---- steps -------------------------------------------------------------------------------- */

void sim_start_segments(struct sim *s, uint32_t host)
{
	struct host *h = &s->hosts[host];

	while (h->next_seg < h->nseg && h->in_flight < s->data->config.window) {
		h->in_flight++;
		add_action(s, (struct action){
				      .kind = START_SEGMENT, .host = host, .seg = h->next_seg++});
	}
}

static void step_done(struct sim *s, uint32_t host, uint64_t index, uint32_t step);

static void run_both_halves(struct sim *s, uint32_t host, uint64_t index, uint32_t step)
{
	struct segment *seg = &s->hosts[host].segs[index];

	seg->state[step] = RUNNING;
	seg->fragments[step] = 2;
	for (uint8_t f = 0; f < 2; f++) {
		add_action(s, (struct action){.kind = RUN_FRAGMENT,
					      .fragment = f,
					      .host = host,
					      .seg = index,
					      .step = step});
	}
}

static void step_ready(struct sim *s, uint32_t host, uint64_t index, uint32_t step)
{
	struct segment *seg = &s->hosts[host].segs[index];
	const struct plan_step *st = &s->hosts[host].plan->steps[step];

	seg->state[step] = READY;
	if (st->kind == PLAN_LOCAL || seg->arrived[step]) {
		run_both_halves(s, host, index, step);
	} else if (!has_message(s, host, step, index)) {
		step_done(s, host, index, step);
	} else if (st->kind == PLAN_SEND) {
		add_action(s,
			   (struct action){
				   .kind = START_SEND, .host = host, .seg = index, .step = step});
	}
}

static void segment_done(struct sim *s, uint32_t host, uint64_t index)
{
	struct segment *seg = &s->hosts[host].segs[index];

	free(seg->pending);
	free(seg->state);
	free(seg->fragments);
	free(seg->arrived);
	free(seg->temp);
	*seg = (struct segment){.started = true};
	s->hosts[host].in_flight--;
	sim_start_segments(s, host);
}

static void step_done(struct sim *s, uint32_t host, uint64_t index, uint32_t step)
{
	struct segment *seg = &s->hosts[host].segs[index];
	const struct plan *p = s->hosts[host].plan;

	seg->state[step] = DONE;
	if (seg->arrived[step]) {
		free(seg->arrived[step]->data);
		free(seg->arrived[step]);
		seg->arrived[step] = NULL;
	}
	/* The segment must not end below while successors are walked. */
	for (uint32_t i = 0; i < p->steps[step].nsucc; i++) {
		uint32_t next = p->succ[p->steps[step].first_succ + i];

		if (--seg->pending[next] == 0) {
			step_ready(s, host, index, next);
		}
	}
	if (--seg->left == 0) {
		segment_done(s, host, index);
	}
}

static void start_segment(struct sim *s, uint32_t host, uint64_t index)
{
	struct host *h = &s->hosts[host];
	struct segment *seg = &h->segs[index];
	const struct plan *p = h->plan;
	size_t temp = (size_t)p->ntemp * s->seg * s->data->esize;

	seg->started = true;
	seg->pending = sim_need(calloc(p->nsteps + 1, sizeof(*seg->pending)));
	seg->state = sim_need(calloc(p->nsteps + 1, 1));
	seg->fragments = sim_need(calloc(p->nsteps + 1, 1));
	seg->arrived = sim_need(calloc(p->nsteps + 1, sizeof(struct message *)));
	seg->temp = sim_need(malloc(temp + 1));
	memset(seg->temp, 0xee, temp + 1);
	/* One more than there are, so that it cannot end while its first steps are made ready. */
	seg->left = p->nsteps + 1;
	for (uint32_t i = 0; i < p->nsteps; i++) {
		seg->pending[i] = p->steps[i].ndeps;
	}
	for (uint32_t i = 0; i < p->nsteps; i++) {
		if (p->steps[i].ndeps == 0) {
			step_ready(s, host, index, i);
		}
	}
	for (size_t i = 0; i < h->nparked;) {
		if (h->parked[i]->seg != index) {
			i++;
			continue;
		}
		add_action(s, (struct action){.kind = DELIVER, .msg = h->parked[i]});
		h->parked[i] = h->parked[--h->nparked];
	}
	if (--seg->left == 0) {
		segment_done(s, host, index);
	}
}

/* ---- messages ----------------------------------------------------------------------------- */

static void start_send(struct sim *s, uint32_t host, uint64_t index, uint32_t step)
{
	const struct plan_step *st = &s->hosts[host].plan->steps[step];
	struct message *msg = sim_need(calloc(1, sizeof(*msg)));
	uint64_t elems = message_elems(s, host, step, index);
	const struct plan *p = s->hosts[host].plan;

	*msg = (struct message){
		.from = host,
		.to = st->peer,
		.tag = st->tag,
		.seg = index,
		.sender_step = step,
		.size = elems * s->data->esize,
	};
	/* One element more: a part that does not divide evenly is rounded up. */
	if (!(p->flags & PLAN_WHOLE) &&
	    elems > (p->msg_blocks * s->seg + p->msg_parts - 1) / p->msg_parts) {
		sim_fail(s, "host %u step %u: message longer than announced", host, step);
	}
	msg->data = sim_need(malloc(msg->size + 1));
	read_message(s, host, step, index, msg->data, false);
	s->hosts[host].segs[index].state[step] = RUNNING;
	s->hosts[host].sent += msg->size;
	s->messages++;
	add_action(s, (struct action){.kind = DELIVER, .msg = msg});
	/* Sometimes the kernel takes it early, sometimes only when the peer reads. */
	if (sim_random(s) % 2) {
		add_action(s, (struct action){.kind = END_SEND,
					      .host = host,
					      .seg = index,
					      .step = step,
					      .msg = msg});
	}
}

/* Ends the send of a message, unless it has ended: early by itself, or now because it arrives. */
static void end_send(struct sim *s, uint32_t host, uint64_t index, uint32_t step,
		     const struct message *msg)
{
	const uint8_t *state = s->hosts[host].segs[index].state;

	if (!state || state[step] != RUNNING) {
		return;
	}
	if (!read_message(s, host, step, index, msg->data, true)) {
		sim_fail(s, "host %u step %u: memory changed while it was sent", host, step);
	}
	step_done(s, host, index, step);
}

static void make_predecessors(struct host *h)
{
	const struct plan *p = h->plan;

	h->pred_first = sim_need(calloc(p->nsteps + 2, sizeof(*h->pred_first)));
	h->pred = sim_need(calloc(p->nsucc + 1, sizeof(*h->pred)));
	for (uint32_t i = 0; i < p->nsucc; i++) {
		h->pred_first[p->succ[i] + 2]++;
	}
	for (uint32_t i = 2; i < p->nsteps + 2; i++) {
		h->pred_first[i] += h->pred_first[i - 1];
	}
	for (uint32_t i = 0; i < p->nsteps; i++) {
		for (uint32_t k = 0; k < p->steps[i].nsucc; k++) {
			uint32_t next = p->succ[p->steps[i].first_succ + k];

			h->pred[h->pred_first[next + 1]++] = i;
		}
	}
}

/* Rule 1: is all that @step still waits for local work? */
static bool waits_for_local_only(struct host *h, const struct segment *seg, uint32_t step)
{
	if (!h->pred) {
		make_predecessors(h);
	}
	for (uint32_t i = h->pred_first[step]; i < h->pred_first[step + 1]; i++) {
		uint32_t on = h->pred[i];

		if (seg->state[on] == DONE) {
			continue;
		}
		if (h->plan->steps[on].kind != PLAN_LOCAL || !waits_for_local_only(h, seg, on)) {
			return false;
		}
	}
	return true;
}

static void park(struct host *h, struct message *msg)
{
	if (h->nparked == h->cap_parked) {
		h->cap_parked = h->cap_parked ? h->cap_parked * 2 : 16;
		h->parked = sim_need(reallocarray(h->parked, h->cap_parked, sizeof(*h->parked)));
	}
	h->parked[h->nparked++] = msg;
}

static void deliver(struct sim *s, struct message *msg)
{
	struct host *h = &s->hosts[msg->to];
	struct segment *seg;
	int step;

	if (msg->seg >= h->nseg) {
		sim_fail(s, "host %u: message from %u for segment %" PRIu64 " of %" PRIu64, msg->to,
			 msg->from, msg->seg, h->nseg);
		return;
	}
	seg = &h->segs[msg->seg];
	if (!seg->started) {
		park(h, msg);
		return;
	}
	end_send(s, msg->from, msg->seg, msg->sender_step, msg);
	step = plan_find_recv(h->plan, msg->from, msg->tag);
	if (step < 0 || !seg->state || seg->arrived[step] || seg->state[step] == DONE) {
		sim_fail(s, "host %u: nothing waits for tag %u from host %u", msg->to, msg->tag,
			 msg->from);
		return;
	}
	seg->arrived[step] = msg;
	if (message_elems(s, msg->to, (uint32_t)step, msg->seg) * s->data->esize != msg->size) {
		sim_fail(s, "host %u step %d: sender has another length", msg->to, step);
	} else if (seg->state[step] == READY) {
		run_both_halves(s, msg->to, msg->seg, (uint32_t)step);
	} else if (!waits_for_local_only(h, seg, (uint32_t)step)) {
		sim_fail(s, "host %u step %d: arrived with no place to go (rule 1)", msg->to, step);
	}
}

static void act(struct sim *s, struct action a)
{
	switch (a.kind) {
	case START_SEGMENT:
		start_segment(s, a.host, a.seg);
		break;
	case RUN_FRAGMENT:
		run_fragment(s, a.host, a.seg, a.step, a.fragment);
		if (--s->hosts[a.host].segs[a.seg].fragments[a.step] == 0) {
			step_done(s, a.host, a.seg, a.step);
		}
		break;
	case START_SEND:
		start_send(s, a.host, a.seg, a.step);
		break;
	case END_SEND:
		end_send(s, a.host, a.seg, a.step, a.msg);
		break;
	default:
		deliver(s, a.msg);
		break;
	}
}

void sim_events(struct sim *s)
{
	while (s->npool && !s->failed) {
		act(s, take_action(s));
	}
}
