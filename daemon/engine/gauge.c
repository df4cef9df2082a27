/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Gauge: implementation
 *
 * Thread: see gauge.h      Owns: see gauge.h      Locks: none
 */
#include "engine/gauge.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/engine_impl.h"
#include "engine/progress.h"
#include "util/clock.h"

#define ANSWERS (4 * GAUGE_WINDOW) /* the transport may keep one for a while after it is sent */

/* A message that arrives, and its answer. */
struct answer {
	struct gauge *gauge;
	bool busy; /* from the first byte until the answer is sent */
	struct transport_recv recv;
	struct recv_target target;
	struct iovec iov;
	struct transport_send send;
};

struct probe {
	struct gauge *gauge;
	bool sending; /* the transport has it */
	bool waiting; /* for its acknowledgement */
	uint64_t since;
	struct iovec iov;
	struct transport_send send;
};

struct gauge {
	struct engine_peer *peer;
	struct answer answers[ANSWERS];
	struct transport_recv ack_recv;
	struct recv_target ack_target;

	/* the measurement that is under way */
	struct engine_gauge *work; /* NULL: none */
	struct hand *hand;
	void *data; /* what is sent; its contents are zeros */
	uint32_t number;
	bool over; /* only what the transport has is waited for */
	uint64_t begin, last;
	struct probe probes[GAUGE_WINDOW];
};

int gauge_new(struct engine_peer *peer, struct gauge **ret)
{
	struct gauge *g = calloc(1, sizeof(*g));

	if (!g) {
		return err_origin(-ENOMEM);
	}
	g->peer = peer;
	g->ack_target.kind = RECV_CONTROL;
	g->ack_recv.user = &g->ack_target;
	for (uint32_t i = 0; i < ANSWERS; i++) {
		g->answers[i].gauge = g;
		g->answers[i].target.kind = RECV_GAUGE;
		g->answers[i].target.object = &g->answers[i];
	}
	for (uint32_t i = 0; i < GAUGE_WINDOW; i++) {
		g->probes[i].gauge = g;
	}
	*ret = g;
	return 0;
}

struct gauge *gauge_free(struct gauge *g)
{
	free(g);
	return NULL;
}

/* ---- who is asked ------------------------------------------------------------------------- */

static void place(const struct gauge *g, struct answer *a, uint64_t length)
{
	uint8_t *memory = g->peer->progress->gauge;

	if (!memory || length == 0 || length > GAUGE_DIRECT) {
		a->recv.discard = true;
		return;
	}
	a->iov.iov_base = memory + GAUGE_DIRECT;
	a->iov.iov_len = length;
	a->recv.iov = &a->iov;
	a->recv.niov = 1;
}

static struct transport_recv *question_begin(struct gauge *g, const struct wire_header *h)
{
	if (h->length > GAUGE_MESSAGE_MAX) {
		return NULL;
	}
	for (uint32_t i = 0; i < ANSWERS; i++) {
		struct answer *a = &g->answers[i];

		if (a->busy) {
			continue;
		}
		a->busy = true;
		memset(&a->recv, 0, sizeof(a->recv));
		place(g, a, h->length);
		a->recv.user = &a->target;
		memset(&a->send, 0, sizeof(a->send));
		a->send.header.type = WIRE_GAUGE_ACK;
		a->send.header.seq = h->seq;
		a->send.header.segment = h->segment;
		return &a->recv;
	}
	return NULL;
}

static void answered(struct transport_send *send, int status)
{
	struct answer *a = send->user;

	a->busy = false;
}

void gauge_recv_done(void *object)
{
	struct answer *a = object;

	a->send.done = answered;
	a->send.user = a;
	conn_send(a->gauge->peer, &a->send);
}

/* ---- who asks ----------------------------------------------------------------------------- */

static void gauge_return(struct gauge *g)
{
	struct engine_gauge *w = g->work;

	w->elapsed = g->last > g->begin ? g->last - g->begin : 0;
	if (w->messages == 0 && w->result == 0) {
		w->result = -ETIMEDOUT;
	}
	g->work = NULL;
	g->peer->progress->busy--;
	hand_return(g->peer->progress, g->hand);
}

/* Gives the measurement back when the transport has let go of all of it. */
static void gauge_settle(struct gauge *g)
{
	if (!g->work || !g->over) {
		return;
	}
	for (uint32_t i = 0; i < GAUGE_WINDOW; i++) {
		if (g->probes[i].sending) {
			return;
		}
	}
	gauge_return(g);
}

static void gauge_end(struct gauge *g, int result)
{
	if (g->work && !g->over) {
		g->work->result = result;
		g->over = true;
		for (uint32_t i = 0; i < GAUGE_WINDOW; i++) {
			g->probes[i].waiting = false;
		}
	}
}

static void probe_send(struct gauge *g, uint32_t i);

static void probe_sent(struct transport_send *send, int status)
{
	struct probe *p = send->user;

	p->sending = false;
	if (status != 0) {
		gauge_end(p->gauge, status);
	}
	if (p->gauge->work && !p->gauge->over && !p->waiting) {
		/* Its acknowledgement was here before. */
		probe_send(p->gauge, (uint32_t)(p - p->gauge->probes));
		return;
	}
	gauge_settle(p->gauge);
}

static void probe_send(struct gauge *g, uint32_t i)
{
	struct probe *p = &g->probes[i];

	memset(&p->send, 0, sizeof(p->send));
	p->send.header.type = WIRE_GAUGE;
	p->send.header.seq = g->number;
	p->send.header.segment = i;
	p->send.length = g->work->message;
	p->iov.iov_base = g->data;
	p->iov.iov_len = g->work->message;
	p->send.iov = &p->iov;
	p->send.niov = 1;
	p->send.done = probe_sent;
	p->send.user = p;
	p->since = clock_monotonic();
	p->sending = p->waiting = true;
	conn_send(g->peer, &p->send);
}

/* It may overtake what tells that the message is sent. */
static void take_ack(struct gauge *g, const struct wire_header *h)
{
	struct engine_gauge *w = g->work;
	struct probe *p = h->segment < GAUGE_WINDOW ? &g->probes[h->segment] : NULL;

	if (!w || g->over || h->seq != g->number || !p || !p->waiting) {
		return;
	}
	p->waiting = false;
	g->last = clock_monotonic();
	w->times[w->messages % GAUGE_TIMES] = g->last - p->since;
	w->messages++;
	w->ntimes = (uint32_t)MIN(w->messages, (uint64_t)GAUGE_TIMES);
	if (g->last - g->begin >= w->ns) {
		gauge_end(g, 0);
		gauge_settle(g);
	} else if (!p->sending) {
		probe_send(g, h->segment);
	}
}

struct transport_recv *gauge_recv_begin(struct engine_peer *peer, const struct wire_header *h)
{
	if (h->type == WIRE_GAUGE) {
		return question_begin(peer->gauge, h);
	}
	if (h->length != 0) {
		return NULL;
	}
	take_ack(peer->gauge, h);
	return &peer->gauge->ack_recv;
}

void gauge_abandon(struct gauge *g)
{
	gauge_end(g, -ECONNRESET);
	gauge_settle(g);
	/* What was arriving never will. */
	for (uint32_t i = 0; i < ANSWERS; i++) {
		g->answers[i].busy = false;
	}
}

void gauge_stop(struct gauge *g)
{
	gauge_end(g, -ESHUTDOWN);
	if (g->work) {
		gauge_return(g);
	}
}

void gauge_check(struct gauge *g)
{
	uint64_t now = g->peer->progress->now;

	if (!g->work || g->over) {
		return;
	}
	if (now - MIN(g->last, now) > g->work->give_up) {
		gauge_end(g, -ETIMEDOUT);
		gauge_settle(g);
	}
}

/* ---- control ------------------------------------------------------------------------------ */

static void on_gauge(struct progress *p, struct hand *h)
{
	struct engine_peer *peer = h->object;
	struct gauge *g = peer->gauge;
	struct engine_gauge *w = h->more;

	if (g->work || peer->down || p->stop) {
		w->result = p->stop ? -ESHUTDOWN : peer->down ? -ECONNRESET : -EBUSY;
		hand_return(p, h);
		return;
	}
	g->work = w;
	g->hand = h;
	g->data = p->gauge && w->message <= GAUGE_DIRECT ? p->gauge : (void *)(uintptr_t)h->value;
	g->number++;
	g->over = false;
	g->begin = g->last = clock_monotonic();
	p->busy++; /* so that the loop looks at the time */
	for (uint32_t i = 0; i < w->window && g->work == w && !g->over; i++) {
		probe_send(g, i);
	}
}

static void gauge_unmap(struct hand *h)
{
	if (h->value) {
		munmap((void *)(uintptr_t)h->value, GAUGE_MESSAGE_MAX);
	}
}

void engine_gauge(struct engine *e, struct engine_peer *peer, struct engine_gauge *w,
		  engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_gauge, peer, done, arg);
	void *data = mmap(NULL, GAUGE_MESSAGE_MAX, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	w->window = MAX(1u, MIN(w->window, (uint32_t)GAUGE_WINDOW));
	w->message = MIN(w->message, GAUGE_MESSAGE_MAX);
	w->result = 0;
	w->messages = w->elapsed = w->ntimes = 0;
	h->more = w;
	h->end = gauge_unmap;
	if (data == MAP_FAILED) {
		w->message = 0; /* of nothing; better than no answer */
	} else {
		h->value = (uintptr_t)data;
	}
	hand_go(h);
}
