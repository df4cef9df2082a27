/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Connection to a peer host: see conn.h
 *
 * Thread: progress (conn_new and conn_free: control)      Owns: eager buffers      Locks: none
 */
#include "engine/conn.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/gauge.h"
#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/progress.h"
#include "engine/relay.h"

/* Messages without payload may be eager, even if no others may: then there is a place for them. */
static size_t slab_size(const struct progress *p)
{
	return MAX((size_t)p->options.eager_credits * p->options.eager, 1);
}

int conn_new(struct progress *p, void *user, struct engine_peer **ret)
{
	struct engine_peer *peer = calloc(1, sizeof(*peer));
	uint32_t n = p->options.eager_credits;

	if (!peer) {
		return err_origin(-ENOMEM);
	}
	peer->progress = p;
	peer->user = user;
	peer->credits = n;
	list_init(&peer->link);
	list_init(&peer->free_slots);
	list_init(&peer->arriving);
	list_init(&peer->free_discards);
	peer->control_target.kind = RECV_CONTROL;
	peer->control_recv.user = &peer->control_target;
	peer->slots = calloc(n, sizeof(*peer->slots));
	peer->discards = calloc(CONN_DISCARDS, sizeof(*peer->discards));
	peer->slab = mmap(NULL, slab_size(p), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (peer->slab == MAP_FAILED) {
		peer->slab = NULL;
	}
	if (!peer->slots || !peer->discards || !peer->slab || gauge_new(peer, &peer->gauge) < 0) {
		conn_free(peer);
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct eager_slot *s = &peer->slots[i];

		s->peer = peer;
		s->data = peer->slab + (size_t)i * p->options.eager;
		s->target.kind = RECV_EAGER;
		s->target.object = s;
		list_append(&peer->free_slots, &s->link);
	}
	for (uint32_t i = 0; i < CONN_DISCARDS; i++) {
		struct discard *d = &peer->discards[i];

		d->peer = peer;
		d->target.kind = RECV_DISCARD;
		d->target.object = d;
		list_append(&peer->free_discards, &d->link);
	}
	*ret = peer;
	return 0;
}

struct engine_peer *conn_free(struct engine_peer *peer)
{
	if (peer) {
		if (peer->slab) {
			munmap(peer->slab, slab_size(peer->progress));
		}
		relay_free(peer->relay);
		gauge_free(peer->gauge);
		free(peer->slots);
		free(peer->discards);
		free(peer);
	}
	return NULL;
}

/* ---- signature, sending, credits ---------------------------------------------------------- */

void conn_put_signature(struct wire_header *h, const struct engine_signature *sig)
{
	h->kind = sig->kind;
	h->dtype = sig->dtype;
	h->op = sig->op;
	h->root = sig->root;
	h->count = sig->count;
}

struct engine_signature conn_get_signature(const struct wire_header *h)
{
	struct engine_signature sig = {
		.kind = h->kind,
		.dtype = h->dtype,
		.op = h->op,
		.root = h->root,
		.count = h->count,
	};

	return sig;
}

void conn_send(struct engine_peer *peer, struct transport_send *send)
{
	if (!peer || peer->down) {
		send->done(send, -ECONNRESET);
		return;
	}
	/* Not with bulk: that may wait in the queue while somebody waits for the credits. */
	send->header.credits =
		send->length <= TRANSPORT_URGENT ? (uint16_t)MIN(peer->owed, UINT16_MAX) : 0;
	peer->owed -= send->header.credits;
	if (relay_takes(peer)) {
		verbs_send(peer->relay->verbs, send);
	} else {
		transport_send(peer->transport, send);
	}
}

bool conn_drop(struct engine_peer *peer, struct transport_recv *recv)
{
	if (recv->rdma) {
		return verbs_drop(peer && peer->relay ? peer->relay->verbs : NULL, recv);
	}
	transport_drop(peer ? peer->transport : NULL, recv);
	return true;
}

bool conn_take_credit(struct engine_peer *peer, uint64_t length)
{
	if (!peer || length > peer->progress->options.eager) {
		return false;
	}
	if (peer->credits == 0) {
		peer->starved = true;
		return false;
	}
	peer->credits--;
	return true;
}

static void credit_send(struct engine_peer *peer);

/* More may be owed by now. */
static void credit_done(struct transport_send *send, int status)
{
	struct engine_peer *peer = send->user;

	peer->credit_busy = false;
	if (status == 0) {
		credit_send(peer);
	}
}

static void credit_send(struct engine_peer *peer)
{
	if (peer->owed == 0 || peer->owed * 2 < peer->progress->options.eager_credits ||
	    peer->credit_busy || peer->down) {
		return;
	}
	memset(&peer->credit_send, 0, sizeof(peer->credit_send));
	peer->credit_send.header.type = WIRE_CREDIT;
	peer->credit_send.done = credit_done;
	peer->credit_send.user = peer;
	peer->credit_busy = true;
	conn_send(peer, &peer->credit_send);
}

void conn_owe_credit(struct engine_peer *peer)
{
	peer->owed++;
	credit_send(peer);
}

static void take_credits(struct engine_peer *peer, uint32_t n)
{
	if (n) {
		peer->credits = MIN(peer->credits + n, peer->progress->options.eager_credits);
		/* To look at all that is blocked takes time: only when somebody is. */
		peer->progress->rescan |= peer->starved;
		peer->starved = false;
	}
}

/* ---- early messages ----------------------------------------------------------------------- */

void conn_release_slot(struct eager_slot *slot)
{
	struct engine_peer *peer = slot->peer;

	list_remove(&slot->link);
	list_append(&peer->free_slots, &slot->link);
	conn_owe_credit(peer);
}

struct eager_slot *conn_find_early(struct engine_comm *c, uint8_t type, uint32_t host, uint32_t seq,
				   uint32_t segment, uint32_t tag, uint32_t root)
{
	list_for_each (e, &c->unexpected) {
		struct eager_slot *s = container_of(e, struct eager_slot, link);
		const struct wire_header *h = &s->header;

		if (h->type == type && s->host == host && h->seq == seq && h->tag == tag &&
		    h->segment == segment && (type == WIRE_DATA || h->root == root)) {
			return s;
		}
	}
	return NULL;
}

struct eager_slot *conn_find_stray(struct engine_comm *c, uint32_t seq)
{
	list_for_each (e, &c->unexpected) {
		struct eager_slot *s = container_of(e, struct eager_slot, link);

		if (s->header.type == WIRE_DATA && s->header.seq == seq) {
			return s;
		}
	}
	return NULL;
}

void conn_drop_early(struct engine_comm *c)
{
	list_for_each_safe (e, &c->unexpected) {
		conn_release_slot(container_of(e, struct eager_slot, link));
	}
}

void conn_forget(struct engine_comm *c)
{
	struct progress *p = c->progress;

	list_for_each (e, &p->peers) {
		struct engine_peer *peer = container_of(e, struct engine_peer, link);

		/* A lane may not have said yet that it is through with it. */
		if (peer->control_recv.account == c->params.view) {
			peer->control_recv.account = NULL;
		}
		list_for_each (l, &peer->arriving) {
			struct eager_slot *s = container_of(l, struct eager_slot, link);

			if (s->recv.account == c->params.view) {
				s->recv.account = NULL;
			}
		}
	}
	transport_forget(p->transport, c->params.view);
}

static struct transport_recv *early_begin(struct engine_peer *peer, struct engine_comm *c,
					  uint32_t host, const struct wire_header *h)
{
	struct list *first = list_first(&peer->free_slots);
	struct eager_slot *s;

	if (!first || h->length > peer->progress->options.eager) {
		return NULL; /* more than the credits we gave */
	}
	s = container_of(first, struct eager_slot, link);
	list_remove(&s->link);
	list_append(&peer->arriving, &s->link);
	s->header = *h;
	s->host = host;
	s->comm = h->comm;
	s->iov.iov_base = s->data;
	s->iov.iov_len = h->length;
	memset(&s->recv, 0, sizeof(s->recv));
	s->recv.user = &s->target;
	s->recv.account = c->params.view;
	s->recv.iov = h->length ? &s->iov : NULL;
	s->recv.niov = h->length ? 1 : 0;
	return &s->recv;
}

/* The whole of it is here: now it may have a taker. */
static void early_done(struct eager_slot *s)
{
	struct engine_comm *c = comm_find(s->peer->progress, s->comm);
	struct op *op;

	list_remove(&s->link);
	if (!c || c->failed) {
		list_append(&s->peer->free_slots, &s->link);
		conn_owe_credit(s->peer);
		return;
	}
	list_append(&c->unexpected, &s->link);
	if (s->header.type == WIRE_P2P) {
		p2p_advance(c);
		return;
	}
	op = comm_op(c, s->header.seq);
	if (op && op->state == OP_ACTIVE) {
		op_take_early(op);
	}
}

static struct transport_recv *discard_begin(struct engine_peer *peer, const struct wire_header *h)
{
	struct list *first = list_first(&peer->free_discards);
	struct discard *d;

	if (h->flags & WIRE_EAGER) {
		conn_owe_credit(peer);
	}
	if (!first) {
		return NULL;
	}
	d = container_of(first, struct discard, link);
	list_remove(&d->link);
	memset(&d->recv, 0, sizeof(d->recv));
	d->recv.discard = true;
	d->recv.user = &d->target;
	return &d->recv;
}

/* ---- what arrives ------------------------------------------------------------------------- */

static int host_of_peer(const struct engine_comm *c, const struct engine_peer *peer)
{
	uint32_t at = comm_peer_slot(c, peer);

	while (c->peer_hosts[at] && c->params.peers[c->peer_hosts[at] - 1] != peer) {
		at = (at + 1) & c->peer_mask;
	}
	return (int)c->peer_hosts[at] - 1;
}

/* Raises *@lost, the number below which something may have been dropped, to cover @seq. */
static void note_lost(uint64_t *lost, uint32_t seq)
{
	if (*lost == 0 || (int32_t)(seq + 1 - (uint32_t)*lost) > 0) {
		*lost = (uint64_t)seq + 1;
	}
}

static void take_grant(struct engine_comm *c, uint32_t host, const struct wire_header *h)
{
	struct op *op = comm_op(c, h->seq);
	uint32_t *grant, before;

	if (!op) {
		if ((int32_t)(h->seq - c->done) > 0) {
			note_lost(&c->grant_lost[host], h->seq);
		}
		return;
	}
	grant = &c->grants[(size_t)(h->seq % LIMIT_COMM_WINDOW) * c->nhosts + host];
	before = *grant;
	*grant = MAX(before, h->segment);
	if (op->state == OP_ACTIVE) {
		op->last_progress = c->progress->now;
		op_granted(op, host, before, *grant);
	}
}

static void take_rts(struct engine_comm *c, const struct wire_header *h)
{
	struct op *op = comm_op(c, h->seq);

	if (!op) {
		if ((int32_t)(h->seq - c->done) > 0) {
			note_lost(&c->rts_lost, h->seq);
		}
		return;
	}
	op->grant_all = true;
	if (op->state == OP_ACTIVE) {
		op_send_grants(op->ctx, true);
	}
}

static struct transport_recv *take_control(struct engine_peer *peer, struct engine_comm *c,
					   int host, const struct wire_header *h)
{
	struct engine_signature sig = conn_get_signature(h);
	struct op *op;

	peer->control_recv.account = NULL;
	if (h->length != 0) {
		return NULL;
	}
	if (!c || c->failed || host < 0) {
		return &peer->control_recv;
	}
	peer->control_recv.account = c->params.view;
	if (h->type == WIRE_P2P_GRANT) {
		p2p_granted(c, h);
		return &peer->control_recv;
	}
	op = comm_op(c, h->seq);
	if (!op) {
		comm_check_past(c, h->seq, (uint32_t)host, &sig);
	}
	if (c->failed || (op && !comm_check_signature(op, (uint32_t)host, &sig))) {
		return &peer->control_recv;
	}
	if (h->type == WIRE_GRANT) {
		take_grant(c, (uint32_t)host, h);
	} else {
		take_rts(c, h);
	}
	return &peer->control_recv;
}

/* Whoever wants the message has it (@recv); an early one goes into a buffer; others break rules. */
static struct transport_recv *placed(struct engine_peer *peer, struct engine_comm *c, int host,
				     const struct wire_header *h, struct transport_recv *recv)
{
	if (recv && (h->flags & WIRE_EAGER)) {
		conn_owe_credit(peer);
	}
	if (!recv && (h->flags & WIRE_EAGER)) {
		recv = early_begin(peer, c, (uint32_t)host, h);
	}
	return recv;
}

static struct transport_recv *take_data(struct engine_peer *peer, struct engine_comm *c, int host,
					const struct wire_header *h)
{
	struct engine_signature sig = conn_get_signature(h);
	struct transport_recv *recv = NULL;
	struct op *op = comm_op(c, h->seq);

	/* Of an operation that is over here: it came too late to matter. */
	if ((int32_t)(h->seq - c->done) < 0 || (op == NULL && c->over[h->seq % LIMIT_COMM_WINDOW] &&
						h->seq - c->done < LIMIT_COMM_WINDOW)) {
		comm_check_past(c, h->seq, (uint32_t)host, &sig);
		return discard_begin(peer, h);
	}
	if (op && !comm_check_signature(op, (uint32_t)host, &sig)) {
		return discard_begin(peer, h);
	}
	if (op && op->state == OP_ACTIVE) {
		recv = op_recv_begin(op, (uint32_t)host, h);
	}
	return c->failed ? discard_begin(peer, h) : placed(peer, c, host, h, recv);
}

static struct transport_recv *take_p2p(struct engine_peer *peer, struct engine_comm *c, int host,
				       const struct wire_header *h)
{
	struct transport_recv *recv = p2p_recv_begin(c, (uint32_t)host, h);

	return c->failed ? discard_begin(peer, h) : placed(peer, c, host, h, recv);
}

int conn_recv_begin(struct engine_peer *peer, const struct wire_header *h,
		    struct transport_recv **ret)
{
	struct engine_comm *c = comm_find(peer->progress, h->comm);
	int host = c ? host_of_peer(c, peer) : -1;
	struct transport_recv *recv;

	atomic_store_explicit(&peer->heard, peer->progress->now, memory_order_relaxed);
	take_credits(peer, h->credits);
	if (h->type == WIRE_GAUGE || h->type == WIRE_GAUGE_ACK) {
		recv = gauge_recv_begin(peer, h);
	} else if (h->type != WIRE_DATA && h->type != WIRE_P2P) {
		recv = take_control(peer, h->type == WIRE_CREDIT ? NULL : c, host, h);
	} else if (!c || c->failed || host < 0) {
		recv = discard_begin(peer, h);
	} else if (h->type == WIRE_DATA) {
		recv = take_data(peer, c, host, h);
	} else {
		recv = take_p2p(peer, c, host, h);
	}
	if (!recv) {
		return -EPROTO;
	}
	recv->rdma = false;
	*ret = recv;
	return 0;
}

static int conn_stream_begin(void *arg, struct transport_peer *tp, const struct wire_header *h,
			     struct transport_recv **ret)
{
	struct engine_peer *peer = transport_peer_user(tp);

	return h->type == WIRE_RAIL_FRAME || h->type == WIRE_RAIL_WRITE
		       ? relay_recv_begin(peer, h, ret)
		       : conn_recv_begin(peer, h, ret);
}

void conn_fragment(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
		   uint64_t size)
{
	struct recv_target *t = recv->user;

	if (t->kind == RECV_STEP) {
		op_recv_fragment(t->object, data, offset, size);
	}
}

void conn_recv_done(void *arg, struct transport_recv *recv)
{
	struct recv_target *t = recv->user;

	switch (t->kind) {
	case RECV_STEP:
		op_recv_done(t->object);
		break;
	case RECV_EAGER:
		early_done(t->object);
		break;
	case RECV_DISCARD: {
		struct discard *d = t->object;

		list_append(&d->peer->free_discards, &d->link);
		break;
	}
	case RECV_P2P:
		p2p_recv_done(t->object);
		break;
	case RECV_RAIL_FRAME:
		relay_frame_done(t->object);
		break;
	case RECV_GAUGE:
		gauge_recv_done(t->object);
		break;
	case RECV_RAIL_WRITE:
		relay_write_done(t->object);
		break;
	default:
		break;
	}
}

/* ---- loss --------------------------------------------------------------------------------- */

static void conn_down_run(void *ctx, struct mailbox_msg *msg)
{
	struct engine_peer *peer = container_of(msg, struct engine_peer, down_msg);

	engine_tell_peer_down(ctx, peer->user, peer->lost ? peer->lost : "data connections",
			      peer->error, peer->reason);
}

/*
 * Everything that was arriving from this peer will never end: communicators with it fail, so that
 * their operations let go of what the transport has abandoned.
 */
static void conn_abandon(struct engine_peer *peer)
{
	struct progress *p = peer->progress;

	peer->down = true;
	for (struct engine_comm *c = comm_walk(p); c; c = comm_walk_next(p)) {
		if (host_of_peer(c, peer) >= 0) {
			c->pins++;
			comm_fail(c, STATUS_PEER_DIED);
			op_abandon(c, peer);
			p2p_abandon(c, peer);
			c->pins--;
			comm_try_remove(c);
		}
	}
	list_for_each_safe (e, &peer->arriving) {
		list_remove(e);
		list_append(&peer->free_slots, e);
	}
	gauge_abandon(peer->gauge);
}

static void conn_peer_down(void *arg, struct transport_peer *tp, int error, const char *reason)
{
	struct engine_peer *peer = transport_peer_user(tp);

	if (peer->down) {
		return;
	}
	peer->error = error;
	peer->reason = reason;
	peer->down_msg.run = conn_down_run;
	progress_tell(peer->progress, &peer->down_msg);
	peer->down = true;
	relay_stop(peer->relay);
	conn_abandon(peer);
}

void conn_lose(struct engine_peer *peer, int error, const char *reason)
{
	if (peer->down) {
		return;
	}
	peer->error = error;
	peer->reason = reason;
	peer->down_msg.run = conn_down_run;
	progress_tell(peer->progress, &peer->down_msg);
	conn_shut(peer);
}

void conn_shut(struct engine_peer *peer)
{
	bool told = peer->down;

	peer->down = true; /* no event: it was asked for */
	/* In this order: the data connections may be bringing what a rail had begun. */
	peer->transport = transport_peer_free(peer->transport);
	relay_stop(peer->relay);
	if (!told) {
		conn_abandon(peer);
	}
}

const struct transport_handler conn_handler = {
	.recv_begin = conn_stream_begin,
	.fragment = conn_fragment,
	.recv_done = conn_recv_done,
	.peer_down = conn_peer_down,
};
