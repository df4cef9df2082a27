/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: messages to send
 *
 * A short message is copied into a frame and done at once. A long one asks first (RTS), and is
 * written where the peer's grants say (write.c).
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <string.h>

#include "transport/verbs/verbs_impl.h"

#define DIRECT_MAX (8u << 20) /* of any write; some devices take no more */

struct cursor {
	uint32_t piece;
	uint64_t offset; /* in it */
};

static struct cursor iov_seek(const struct iovec *iov, uint32_t niov, uint64_t offset)
{
	struct cursor c = {0, offset};

	while (c.piece < niov && c.offset >= iov[c.piece].iov_len) {
		c.offset -= iov[c.piece++].iov_len;
	}
	return c;
}

uint8_t *verbs_iov_at(const struct iovec *iov, uint32_t niov, uint64_t offset)
{
	struct cursor c = iov_seek(iov, niov, offset);

	assert(c.piece < niov);
	return (uint8_t *)iov[c.piece].iov_base + c.offset;
}

void verbs_iov_gather(uint8_t *to, const struct iovec *iov, uint32_t niov, uint64_t offset,
		      uint64_t size)
{
	struct cursor c = iov_seek(iov, niov, offset);

	for (; size > 0; c.piece++, c.offset = 0) {
		uint64_t n;

		assert(c.piece < niov);
		n = MIN(size, iov[c.piece].iov_len - c.offset);
		memcpy(to, (const uint8_t *)iov[c.piece].iov_base + c.offset, n);
		to += n;
		size -= n;
	}
}

void verbs_iov_scatter(const struct iovec *iov, uint32_t niov, uint64_t offset, const uint8_t *from,
		       uint64_t size)
{
	struct cursor c = iov_seek(iov, niov, offset);

	for (; size > 0; c.piece++, c.offset = 0) {
		uint64_t n;

		assert(c.piece < niov);
		n = MIN(size, iov[c.piece].iov_len - c.offset);
		memcpy((uint8_t *)iov[c.piece].iov_base + c.offset, from, n);
		from += n;
		size -= n;
	}
}

static void wire_header(const struct transport_send *send, uint8_t *to, uint32_t fragment)
{
	struct wire_header h = send->header;

	h.magic = WIRE_MAGIC;
	h.length = send->length;
	h.offset = 0;
	h.fragment = fragment;
	memcpy(to, &h, sizeof(h));
	if (send->account) {
		counter_add(&send->account->bytes_wire_sent, WIRE_SIZE + fragment);
		counter_add(&send->account->bytes_rdma_sent, WIRE_SIZE + fragment);
	}
}

/* Return: false when it must wait; else it is done. */
static bool try_eager(struct verbs_peer *peer, struct transport_send *send)
{
	struct verbs *v = peer->v;
	struct verbs_rail *rail = verbs_frame_rail(peer);
	struct verbs_frame *f = rail ? verbs_frame_get(v, false) : NULL;
	uint8_t *body;

	if (!f) {
		return false;
	}
	verbs_frame_start(f, VERBS_EAGER, WIRE_SIZE + (uint32_t)send->length);
	body = verbs_frame_body(f);
	wire_header(send, body, (uint32_t)send->length);
	verbs_iov_gather(body + WIRE_SIZE, send->iov, send->niov, 0, send->length);
	v->stats.bytes_gathered += send->length;
	verbs_frame_post(rail, f);
	send->done(send, 0);
	return true;
}

static bool try_start(struct verbs_peer *peer, struct transport_send *send)
{
	struct list *l = list_first(&peer->free_tx);
	struct verbs_rail *rail = l ? verbs_frame_rail(peer) : NULL;
	struct verbs_frame *f = rail ? verbs_frame_get(peer->v, false) : NULL;
	struct verbs_frame_header *h;
	struct verbs_tx *tx;

	if (!f) {
		return false;
	}
	list_remove(l);
	tx = container_of(l, struct verbs_tx, link);
	tx->send = send;
	tx->handle += 1u << 16;
	tx->granted = tx->acked = 0;
	tx->piece = 0;
	tx->piece_at = 0;
	peer->ntx++;
	tx->large = send->niov == 1 &&
		    verbs_mem_usable(peer, send->iov[0].iov_base, send->iov[0].iov_len);
	h = verbs_frame_start(f, VERBS_RTS, WIRE_SIZE);
	h->from = tx->handle;
	h->count = tx->large;
	wire_header(send, verbs_frame_body(f), 0);
	verbs_frame_post(rail, f);
	return true;
}

static bool is_short(const struct verbs_peer *peer, const struct transport_send *send)
{
	return send->length + WIRE_SIZE <= peer->body_max;
}

/**
 * verbs_send() - queue a message and prepare what can be sent now
 * @peer: borrowed
 * @send: borrowed until its done()
 *
 * What is prepared goes with the next verbs_flush(), verbs_poll() or verbs_arm(), all in one.
 */
void verbs_send(struct verbs_peer *peer, struct transport_send *send)
{
	struct verbs *v = peer->v;
	bool first;

	if (peer->state == VERBS_PEER_DEAD) {
		send->done(send, peer->error ? peer->error : -ENOTCONN);
		return;
	}
	list_init(&send->link);
	verbs_enter(v);
	if (peer->ntx + peer->nrx == 0) {
		peer->progress = v->now;
	}
	if (peer->state != VERBS_PEER_OPEN || !peer->up) {
		list_append(&peer->waiting, &send->link);
	} else if (is_short(peer, send)) {
		first = list_empty(&peer->eager) && list_empty(&peer->ready);
		if (!first || !try_eager(peer, send)) {
			list_append(&peer->eager, &send->link);
			verbs_peer_dirty(peer);
		}
	} else {
		first = list_empty(&peer->waiting) && list_empty(&peer->ready);
		if (!first || !try_start(peer, send)) {
			list_append(&peer->waiting, &send->link);
			verbs_peer_dirty(peer);
		}
	}
	verbs_leave_later(v);
}

/* Return: false when the first of the list cannot go now, or nothing can any more. */
static bool pump_one(struct verbs_peer *peer, struct list *head)
{
	struct list *l = list_first(head);
	struct transport_send *send;
	bool gone;

	if (!l || peer->state != VERBS_PEER_OPEN || !list_empty(&peer->ready)) {
		return false;
	}
	list_remove(l);
	send = container_of(l, struct transport_send, link);
	gone = is_short(peer, send) ? try_eager(peer, send) : try_start(peer, send);
	if (!gone) {
		list_prepend(head, l);
	}
	return gone;
}

/* No rail is up: what has not begun goes with the other transport. */
static void pass_on(struct verbs_peer *peer, struct list *head)
{
	struct verbs *v = peer->v;
	struct list *l;

	while (peer->state == VERBS_PEER_OPEN && !peer->up && (l = list_first(head))) {
		list_remove(l);
		v->handler.pass_on(v->arg, peer, container_of(l, struct transport_send, link));
	}
}

/* Sends what waits; callbacks may add to it and may free the peer. */
void verbs_send_pump(struct verbs_peer *peer)
{
	verbs_frames_pump(peer);
	if (!peer->up && verbs_has_outside(peer->v)) {
		pass_on(peer, &peer->eager);
		pass_on(peer, &peer->waiting);
	}
	if (!peer->up) {
		return;
	}
	while (pump_one(peer, &peer->eager)) {
		/* short messages */
	}
	while (pump_one(peer, &peer->waiting)) {
		/* long ones, and what was sent before any rail was up */
	}
	/* Frames come free with completions of any peer: look again at each poll. */
	if (peer->state == VERBS_PEER_OPEN &&
	    (!list_empty(&peer->eager) || !list_empty(&peer->waiting))) {
		verbs_peer_dirty(peer);
	}
}

static bool grant_valid(const struct verbs_peer *peer, const struct verbs_tx *tx,
			const struct verbs_grant *g)
{
	return g->size > 0 && (g->size <= peer->fragment || tx->large) && g->size <= DIRECT_MAX &&
	       g->offset < tx->send->length && g->size <= tx->send->length - g->offset &&
	       g->size <= tx->send->length - tx->granted;
}

/* CTS: fragments of a message may be written. */
void verbs_send_granted(struct verbs_peer *peer, const struct verbs_frame_header *h,
			const uint8_t *body)
{
	uint32_t index = h->to & 0xffff;
	struct verbs_tx *tx = index < VERBS_TX_MAX ? &peer->tx[index] : NULL;

	if (!tx || !tx->send || tx->handle != h->to || h->count == 0 ||
	    h->length != h->count * sizeof(struct verbs_grant)) {
		verbs_peer_violation(peer, "grants for no message");
		return;
	}
	for (uint32_t i = 0; i < h->count; i++) {
		struct list *l = list_first(&peer->free_fragments);
		struct verbs_fragment *f;
		struct verbs_grant g;

		memcpy(&g, body + i * sizeof(g), sizeof(g));
		if (!l || !grant_valid(peer, tx, &g)) {
			verbs_peer_violation(peer, "a grant that cannot be");
			return;
		}
		list_remove(l);
		f = container_of(l, struct verbs_fragment, link);
		f->tx = tx;
		f->grant = g;
		f->chunk = -1;
		tx->granted += g.size;
		peer->backlog += g.size;
		list_append(&tx->unposted, &f->link);
	}
	if (list_empty(&tx->link)) {
		list_append(&peer->active, &tx->link);
	}
}

static void cancel_list(struct list *head, int status)
{
	struct list *l;

	while ((l = list_first(head))) {
		struct transport_send *send = container_of(l, struct transport_send, link);

		list_remove(l);
		send->done(send, status);
	}
}

/* Completes all sends; the queue pairs are gone. Calls out. */
void verbs_send_cancel(struct verbs_peer *peer, int status)
{
	for (uint32_t i = 0; i < peer->nfragments; i++) {
		verbs_fragment_unstage(peer, &peer->fragments[i]);
	}
	for (uint32_t i = 0; i < VERBS_TX_MAX; i++) {
		struct transport_send *send = peer->tx[i].send;

		if (send) {
			peer->tx[i].send = NULL;
			peer->ntx--;
			send->done(send, status);
		}
	}
	cancel_list(&peer->eager, status);
	cancel_list(&peer->waiting, status);
}
