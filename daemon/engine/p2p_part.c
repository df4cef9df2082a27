/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Point to point, parts: places, staging, what goes to another host and comes from one
 *
 * Everything here that sends runs inside p2p_advance(): the ends of parts only note what has
 * changed and ask for it. So no object goes away under a loop, and nothing recurses.
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include <string.h>

#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/progress.h"

static bool is_over(const struct p2p *x)
{
	return x->state == P2P_OVER || x->error || x->comm->failed;
}

/* ---- places ------------------------------------------------------------------------------- */

uint8_t *p2p_part_place(const struct p2p_part *part)
{
	const struct p2p *x = part->op;
	uint8_t *base = x->kind == COLL_SEND ? x->post.in : x->post.out;

	if (device_p2p(x)) {
		return part->stage;
	}
	/* A message of no bytes has one part and need not have a buffer. */
	return base ? base + part->index * x->part : NULL;
}

/* The next part has a place. NULL: not now, or there is no more. */
static struct p2p_part *next_part(struct p2p *x)
{
	struct p2p_part *part = p2p_part(x, x->next);

	if (x->next == x->nparts || part->state != PART_FREE ||
	    (device_p2p(x) && !device_part_stage(x, part))) {
		return NULL;
	}
	part->op = x;
	part->index = x->next++;
	return part;
}

void p2p_prepare(struct p2p *x, uint32_t limit)
{
	while (x->next < limit) {
		struct p2p_part *part = next_part(x);

		if (!part) {
			return;
		}
		part->state = PART_READY;
		if (device_p2p(x)) {
			device_part_copy(part);
		}
	}
}

/* More than one only when the sender is there: who is late holds no more than one of them. */
void p2p_open(struct p2p *x)
{
	while (x->next == 0 || x->begun) {
		struct p2p_part *part = next_part(x);

		if (!part) {
			return;
		}
		part->state = PART_OPEN;
	}
}

void p2p_part_done(struct p2p *x)
{
	x->since = x->comm->progress->now;
	if (++x->done == x->nparts) {
		p2p_finish(x, STATUS_OK);
	}
}

void p2p_part_here(struct p2p_part *part)
{
	if (device_p2p(part->op)) {
		device_part_copy(part);
	} else {
		part->state = PART_FREE;
		p2p_part_done(part->op);
	}
}

void p2p_copied(struct p2p_part *part)
{
	struct p2p *x = part->op;
	struct progress *p = x->comm->progress;

	x->held--;
	part->state = PART_FREE;
	if (is_over(x)) {
		p2p_settle(x);
	} else if (x->kind == COLL_SEND) {
		part->state = PART_READY;
	} else {
		p2p_part_done(x);
	}
	p->rescan = true; /* the communicator may be gone by now */
}

/* ---- to another host ---------------------------------------------------------------------- */

static void header_fill(const struct p2p *x, struct transport_send *send, uint8_t type,
			uint32_t from, uint32_t to)
{
	struct wire_header *h = &send->header;

	memset(send, 0, sizeof(*send));
	send->account = x->comm->params.view;
	h->type = type;
	h->comm = x->comm->params.uid;
	h->tag = from;
	h->root = to;
	h->kind = COLL_SEND;
	h->dtype = x->dtype;
	h->count = x->bytes;
}

static void part_sent(struct transport_send *send, int status)
{
	struct p2p_part *part = send->user;
	struct p2p *x = part->op;
	struct progress *p = x->comm->progress;

	part->state = PART_FREE;
	x->sending--;
	x->held--;
	if (status == 0 && !is_over(x)) {
		counter_add(&x->comm->params.view->bytes_sent, send->length);
		p2p_part_done(x);
	} else {
		x->error = STATUS_PEER_DIED; /* if not the communicator has failed */
		p2p_settle(x);
	}
	p->rescan = true; /* conflicts may be over; @x may be gone by now */
}

static void send_part(struct p2p_part *part, bool eager)
{
	struct p2p *x = part->op;
	struct engine_comm *c = x->comm;
	uint64_t size = p2p_part_size(x, part->index);

	header_fill(x, &part->send, WIRE_P2P, c->ranks[x->local].rank, x->peer);
	part->send.header.seq = x->seq;
	part->send.header.segment = part->index;
	part->send.header.flags = eager ? WIRE_EAGER : 0;
	part->iov.iov_base = p2p_part_place(part);
	part->iov.iov_len = size;
	part->send.iov = &part->iov;
	part->send.niov = size ? 1 : 0;
	part->send.length = size;
	part->send.done = part_sent;
	part->send.user = part;
	part->state = PART_MOVING;
	x->begun = true;
	x->sent++;
	x->sending++;
	x->held++;
	conn_send(c->params.peers[p2p_host(x)], &part->send);
}

/* Nothing has to be copied at either end: what is in one piece costs less. */
static void join_parts(struct p2p *x)
{
	x->part = x->bytes;
	x->nparts = 1;
}

/* Has the receiver granted the first part of it? */
static void look_for_grant(struct p2p *x)
{
	const struct p2p_rank *rank = x->comm->ranks[x->local].p2p;
	uint32_t back = rank->granted[x->peer] - 1 - x->seq;

	if (x->granted || (int32_t)back < 0) {
		return;
	}
	x->granted = 1;
	if (x->nparts > 1 && !device_p2p(x) && back < 64 && (rank->whole[x->peer] >> back & 1)) {
		join_parts(x);
	}
}

void p2p_send(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	bool early;

	look_for_grant(x);
	early = x->granted == 0;
	/* Not before it may go: staging memory would be held for a receiver that is late. */
	if (early && (x->nparts > 1 || x->bytes > c->progress->options.eager)) {
		return;
	}
	p2p_prepare(x, early ? 1 : x->granted);
	while (x->sent < x->next && x->sending < P2P_SENDING && !is_over(x)) {
		struct p2p_part *part = p2p_part(x, x->sent);

		if (part->state != PART_READY ||
		    (early && !conn_take_credit(c->params.peers[p2p_host(x)], x->bytes))) {
			return;
		}
		send_part(part, early);
	}
}

/* More than the first part of a send: then it is here, since that has arrived. */
static void grant_parts(struct engine_comm *c, const struct wire_header *h)
{
	if (h->segment <= 1) {
		return;
	}
	list_for_each (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->kind == COLL_SEND && x->seq + 1 == h->seq && x->peer == h->root &&
		    c->ranks[x->local].rank == h->tag) {
			x->granted = MAX(x->granted, MIN(h->segment, x->nparts));
			return;
		}
	}
}

void p2p_granted(struct engine_comm *c, const struct wire_header *h)
{
	const struct coll_layout *l = c->params.layout;
	struct p2p_rank *rank;
	uint32_t back;

	if (h->tag >= c->nranks || h->root >= c->nranks || l->host_of[h->tag] != c->params.host) {
		return;
	}
	rank = c->ranks[l->local_of[h->tag]].p2p;
	back = rank->granted[h->root] - h->seq;
	if ((int32_t)back < 0) {
		rank->whole[h->root] = -back < 64 ? rank->whole[h->root] << -back : 0;
		rank->granted[h->root] = h->seq;
		back = 0;
	}
	if ((h->flags & WIRE_WHOLE) && back < 64) {
		rank->whole[h->root] |= UINT64_C(1) << back;
	}
	grant_parts(c, h);
	p2p_advance(c);
}

/* ---- from another host -------------------------------------------------------------------- */

static void note_sent(struct transport_send *send, int status)
{
	struct p2p *x = send->user;

	(void)status;
	x->note_busy = false;
	if (x->state == P2P_OVER) {
		p2p_settle(x);
	} else if (x->next > x->granted) {
		x->comm->progress->rescan = true;
	}
}

/* Grants the parts that have a place by now. */
static void send_grant(struct p2p *x)
{
	header_fill(x, &x->note, WIRE_P2P_GRANT, x->peer, x->comm->ranks[x->local].rank);
	x->note.header.seq = x->seq + 1;
	x->note.header.segment = x->next;
	x->note.header.flags = device_p2p(x) ? 0 : WIRE_WHOLE;
	x->note.done = note_sent;
	x->note.user = x;
	x->granted = x->next;
	x->note_busy = true;
	conn_send(x->comm->params.peers[p2p_host(x)], &x->note);
}

static void take_early(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	struct eager_slot *slot = conn_find_early(c, WIRE_P2P, p2p_host(x), x->seq, 0, x->peer,
						  c->ranks[x->local].rank);
	struct p2p_part *part = p2p_part(x, 0);

	if (!slot) {
		return;
	}
	if (slot->header.length != x->bytes || slot->header.dtype != x->dtype) {
		p2p_mismatch(x, slot->header.length);
		return;
	}
	x->begun = true;
	if (x->bytes) {
		memcpy(p2p_part_place(part), slot->data, x->bytes);
	}
	COMM_COUNT(c, bytes_copied, x->bytes);
	counter_add(&c->params.view->bytes_received, x->bytes);
	conn_release_slot(slot);
	c->progress->rescan = true;
	p2p_part_here(part);
}

void p2p_receive(struct p2p *x)
{
	if (!x->begun) {
		take_early(x);
	}
	if (!is_over(x)) {
		p2p_open(x);
	}
	if (!is_over(x) && x->next > x->granted && !x->note_busy) {
		send_grant(x);
	}
}

static struct transport_recv *part_begin(struct p2p_part *part)
{
	struct p2p *x = part->op;

	memset(&part->recv, 0, sizeof(part->recv));
	part->target.kind = RECV_P2P;
	part->target.object = part;
	part->iov.iov_base = p2p_part_place(part);
	part->iov.iov_len = p2p_part_size(x, part->index);
	part->recv.iov = x->bytes ? &part->iov : NULL;
	part->recv.niov = x->bytes ? 1 : 0;
	part->recv.user = &part->target;
	part->recv.account = x->comm->params.view;
	part->dropped = false;
	part->state = PART_MOVING;
	x->held++;
	if (!x->begun) {
		x->begun = true;
		x->comm->progress->rescan |= x->nparts > 1; /* other parts may come, too */
	}
	return &part->recv;
}

struct transport_recv *p2p_recv_begin(struct engine_comm *c, uint32_t host,
				      const struct wire_header *h)
{
	list_for_each (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);
		struct p2p_part *part = p2p_part(x, h->segment);

		if (x->kind != COLL_RECV || x->state != P2P_WAITING || !x->started ||
		    x->seq != h->seq || x->peer != h->tag || c->ranks[x->local].rank != h->root ||
		    p2p_host(x) != host) {
			continue;
		}
		if (h->count != x->bytes || h->dtype != x->dtype) {
			p2p_mismatch(x, h->count);
			return NULL;
		}
		if (h->segment == 0 && h->length == x->bytes && !x->begun && !device_p2p(x)) {
			join_parts(x);
		}
		/* Else it has no place, or comes twice: that breaks rules. */
		return part->state == PART_OPEN && part->index == h->segment &&
				       h->length == p2p_part_size(x, h->segment)
			       ? part_begin(part)
			       : NULL;
	}
	return NULL;
}

void p2p_recv_done(struct p2p_part *part)
{
	struct p2p *x = part->op;
	struct progress *p = x->comm->progress;

	x->held--;
	if (is_over(x)) {
		part->state = PART_FREE;
		p2p_settle(x);
	} else {
		counter_add(&x->comm->params.view->bytes_received, p2p_part_size(x, part->index));
		p2p_part_here(part);
	}
	p->rescan = true; /* the communicator may be gone by now */
}
