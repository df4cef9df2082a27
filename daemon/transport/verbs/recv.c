/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: messages that arrive
 *
 * A long message is granted fragment by fragment, each with a ticket: in its final place when that
 * is registered, else in a chunk (landing). The peer writes only granted fragments, so the tickets
 * outstanding bound its writes, and through them the receives that must be posted.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <string.h>

#include "transport/verbs/verbs_impl.h"

#define GRANTS_A_TURN 32
#define LANDING_MIN 2
#define LANDING_MAX 16
#define LENGTH_MAX (UINT64_C(1) << 48)

static void count_received(const struct transport_recv *recv, uint64_t bytes, bool rdma)
{
	if (recv->account) {
		counter_add(&recv->account->bytes_wire_received, bytes);
		counter_add(&recv->account->bytes_rdma_received, rdma ? bytes : 0);
	}
}

static void count_copied(struct verbs *v, const struct transport_recv *recv, uint64_t bytes)
{
	v->stats.bytes_copied += bytes;
	if (recv->account) {
		counter_add(&recv->account->bytes_copied, bytes);
	}
}

/* Asks the handler for the destination. Return: NULL when the peer is no more. */
static struct transport_recv *begin(struct verbs_peer *peer, const struct wire_header *h)
{
	struct verbs *v = peer->v;
	struct transport_recv *recv = NULL;
	int r = v->handler.recv_begin(v->arg, peer, h, &recv);

	if (peer->state != VERBS_PEER_OPEN) {
		return NULL;
	}
	if (r < 0) {
		verbs_peer_fail(peer, r, "the peer sent a message that was refused");
		return NULL;
	}
	recv->received = 0;
	return recv;
}

/* Hands bytes that lie in a buffer of ours to where they belong; calls out. */
static void deliver(struct verbs *v, struct transport_recv *recv, const uint8_t *data,
		    uint64_t offset, uint64_t size)
{
	recv->received += size;
	if (recv->discard || size == 0) {
		return;
	}
	if (recv->iov) {
		verbs_iov_scatter(recv->iov, recv->niov, offset, data, size);
		count_copied(v, recv, size);
		v->handler.fragment(v->arg, recv, NULL, offset, size);
	} else {
		v->handler.fragment(v->arg, recv, data, offset, size);
	}
}

void verbs_recv_eager(struct verbs_peer *peer, const struct verbs_frame_header *h,
		      const uint8_t *body)
{
	struct verbs *v = peer->v;
	struct transport_recv *recv;
	struct wire_header w;

	if (h->length < WIRE_SIZE) {
		verbs_peer_violation(peer, "a message without a header");
		return;
	}
	memcpy(&w, body, sizeof(w));
	if (w.magic != WIRE_MAGIC || w.offset != 0 || w.length != h->length - WIRE_SIZE ||
	    w.fragment != w.length) {
		verbs_peer_violation(peer, "a message header that cannot be");
		return;
	}
	recv = begin(peer, &w);
	if (!recv) {
		return;
	}
	count_received(recv, h->length, peer->up != 0);
	deliver(v, recv, body + WIRE_SIZE, 0, w.length);
	if (peer->state == VERBS_PEER_OPEN) {
		v->handler.recv_done(v->arg, recv);
	}
}

/* Is all of it registered with every device that the peer may use? */
static bool is_direct(const struct verbs_peer *peer, const struct transport_recv *recv,
		      uint64_t length)
{
	if (recv->discard || !recv->iov || recv->niov > VERBS_IOV_DIRECT ||
	    (recv->niov > 1 && length / recv->niov < VERBS_PIECE_MIN)) {
		return false;
	}
	for (uint32_t i = 0; i < recv->niov; i++) {
		if (!verbs_mem_usable(peer, recv->iov[i].iov_base, recv->iov[i].iov_len)) {
			return false;
		}
	}
	return true;
}

static uint32_t ways_of(const struct verbs_peer *peer)
{
	return (uint32_t)MAX(__builtin_popcount(peer->up), 1) * peer->v->options.bulk_qps;
}

/* Large writes complete less often; but all queue pairs of all rails should have some. */
static uint32_t direct_size(const struct verbs_peer *peer, uint64_t length)
{
	const struct verbs_options *o = &peer->v->options;
	uint64_t part = length / (2 * ways_of(peer)) / 64 * 64;

	return (uint32_t)MIN(MAX(part, peer->fragment), MAX(o->direct, peer->fragment));
}

void verbs_recv_rts(struct verbs_peer *peer, const struct verbs_frame_header *h,
		    const uint8_t *body)
{
	struct transport_recv *recv;
	struct wire_header w;
	struct verbs_rx *rx;
	struct list *l;

	if (h->length != WIRE_SIZE || list_empty(&peer->free_rx)) {
		verbs_peer_violation(peer, "more messages than there may be");
		return;
	}
	memcpy(&w, body, sizeof(w));
	if (w.magic != WIRE_MAGIC || w.offset != 0 || w.fragment != 0 || w.length == 0 ||
	    w.length > LENGTH_MAX) {
		verbs_peer_violation(peer, "a message header that cannot be");
		return;
	}
	recv = begin(peer, &w);
	l = recv ? list_first(&peer->free_rx) : NULL;
	if (!l) {
		return;
	}
	count_received(recv, WIRE_SIZE, peer->up != 0);
	list_remove(l);
	rx = container_of(l, struct verbs_rx, link);
	*rx = (struct verbs_rx){
		.recv = recv,
		.sender = h->from,
		.used = true,
		.direct = is_direct(peer, recv, w.length),
		.length = w.length,
		.grant_size = h->count ? direct_size(peer, w.length) : peer->fragment,
		.grant_max =
			h->count ? MAX(peer->v->options.direct, peer->fragment) : peer->fragment,
	};
	peer->nrx++;
	list_init(&rx->link);
	list_append(&peer->wanting, &rx->link);
}

/* ---- grants ------------------------------------------------------------------------------ */

static uint32_t landing_limit(const struct verbs *v)
{
	uint32_t share = (v->options.chunks - v->options.chunks / 4) / MAX(v->npeers, 1);

	return MIN(MAX(share, LANDING_MIN), LANDING_MAX);
}

static void put_keys(const struct verbs_peer *peer, const struct rdma_mem *m, struct verbs_grant *g)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct verbs_rail *rail = peer->rails[i];
		const struct ibv_mr *mr =
			rail && !rail->dev->lost ? m->mr[rail->dev->device->index] : NULL;

		if (mr) {
			g->rails |= 1u << i;
			g->key[i] = mr->rkey;
		}
	}
}

/* Behind fragments for all queue pairs nothing is gained by dividing what comes next. */
static uint32_t direct_grant(const struct verbs_peer *peer, const struct verbs_rx *rx)
{
	if (peer->grant_size < peer->fragment) {
		return peer->grant_size;
	}
	return peer->outstanding >= 2 * ways_of(peer) ? rx->grant_max : rx->grant_size;
}

/* The next part of a direct message. */
static bool grant_direct(struct verbs_peer *peer, struct verbs_rx *rx, struct verbs_grant *g)
{
	const struct iovec *iov = rx->recv->iov;
	const struct rdma_mem *m;
	uint8_t *at;

	while (rx->piece_offset == iov[rx->piece].iov_len) {
		rx->piece++;
		rx->piece_offset = 0;
	}
	at = (uint8_t *)iov[rx->piece].iov_base + rx->piece_offset;
	g->size = (uint32_t)MIN(direct_grant(peer, rx), iov[rx->piece].iov_len - rx->piece_offset);
	m = verbs_mem_find(peer->v, at, g->size);
	if (m) {
		put_keys(peer, m, g);
	}
	if (!g->rails) {
		return false;
	}
	g->addr = (uintptr_t)at;
	rx->piece_offset += g->size;
	return true;
}

static bool grant_landing(struct verbs_peer *peer, struct verbs_rx *rx, struct verbs_grant *g,
			  int32_t *ret_chunk)
{
	struct verbs *v = peer->v;
	int32_t chunk = -1;

	if (peer->landing < landing_limit(v)) {
		chunk = verbs_chunk_get(v, true);
	}
	if (chunk < 0) {
		return false;
	}
	peer->landing++;
	g->addr = (uintptr_t)verbs_chunk_data(v, chunk);
	g->size = (uint32_t)MIN(peer->grant_size, rx->length - rx->granted);
	put_keys(peer, v->buffers, g);
	*ret_chunk = chunk;
	return true;
}

/* Return: false when there is no room for it now. */
static bool grant(struct verbs_peer *peer, struct verbs_rx *rx, struct verbs_grant *g)
{
	struct verbs_ticket *t;
	int32_t chunk = -1;

	memset(g, 0, sizeof(*g));
	if (peer->free_ticket == 0) {
		return false;
	}
	if (rx->direct && !grant_direct(peer, rx, g)) {
		/* Its device went: the rest lands. */
		rx->direct = false;
	}
	if (!rx->direct && !grant_landing(peer, rx, g, &chunk)) {
		return false;
	}
	t = &peer->tickets[peer->free_ticket - 1];
	peer->free_ticket = t->next;
	peer->outstanding++;
	t->rx = rx;
	t->size = g->size;
	t->offset = g->offset = rx->granted;
	t->chunk = chunk;
	g->ticket = t->ticket;
	rx->granted += g->size;
	return true;
}

/*
 * Is it worth a frame now? Not for a few fragments of many while others are under way: their
 * completions make room for more.
 */
static bool worth_it(const struct verbs_peer *peer, const struct verbs_rx *rx)
{
	const struct verbs *v = peer->v;
	uint32_t size = rx->direct ? direct_grant(peer, rx) : peer->grant_size;
	uint64_t wanted = DIV_UP(rx->length - rx->granted, size);
	uint32_t limit = rx->direct ? v->options.tickets : landing_limit(v);
	uint32_t used = rx->direct ? peer->outstanding : peer->landing;
	uint32_t room = limit > used ? limit - used : 0;

	return peer->outstanding < v->options.tickets && room > 0 &&
	       (used == 0 || room >= MIN(wanted, limit / 4));
}

static void send_grants(struct verbs_peer *peer, struct verbs_rx *rx, struct verbs_frame *f)
{
	uint32_t max = MIN(GRANTS_A_TURN, peer->body_max / (uint32_t)sizeof(struct verbs_grant));
	struct verbs_frame_header *h = verbs_frame_start(f, VERBS_CTS, 0);
	uint32_t n = 0;

	while (n < max && rx->granted < rx->length) {
		struct verbs_grant g;

		if (!grant(peer, rx, &g)) {
			break;
		}
		memcpy(verbs_frame_body(f) + n++ * sizeof(g), &g, sizeof(g));
	}
	if (n == 0) {
		/* Chunks are out: they come back with completions of any peer. */
		verbs_frame_put(peer->v, f);
		verbs_peer_dirty(peer);
		return;
	}
	h->to = rx->sender;
	h->count = (uint16_t)n;
	h->length = n * (uint32_t)sizeof(struct verbs_grant);
	f->size += h->length;
	verbs_frame_send(peer, f);
}

void verbs_recv_pump(struct verbs_peer *peer)
{
	uint32_t turns = peer->nrx;

	for (; turns > 0 && !list_empty(&peer->wanting); turns--) {
		struct verbs_rx *rx =
			container_of(list_first(&peer->wanting), struct verbs_rx, link);
		struct verbs_frame *f;

		list_remove(&rx->link);
		list_append(&peer->wanting, &rx->link);
		if (!worth_it(peer, rx)) {
			continue;
		}
		f = verbs_frame_get(peer->v, true);
		if (!f) {
			verbs_peer_dirty(peer);
			return;
		}
		send_grants(peer, rx, f);
		if (rx->granted == rx->length) {
			list_remove(&rx->link);
		}
	}
}

/* ---- arrival of fragments ---------------------------------------------------------------- */

static void ticket_release(struct verbs_peer *peer, struct verbs_ticket *t)
{
	t->rx = NULL;
	t->outside = false;
	t->ticket += 1u << VERBS_TICKET_BITS;
	t->next = peer->free_ticket;
	peer->free_ticket = (uint16_t)(t - peer->tickets + 1);
	peer->outstanding--;
}

static struct verbs_ticket *find_ticket(struct verbs_peer *peer, uint32_t ticket)
{
	uint32_t index = VERBS_TICKET_INDEX(ticket);
	struct verbs_ticket *t = index < peer->v->options.tickets ? &peer->tickets[index] : NULL;

	return t && t->rx && t->ticket == ticket ? t : NULL;
}

/* A write is complete here. A ticket that is not out means that it came before. */
void verbs_recv_write(struct verbs_peer *peer, uint32_t ticket, bool rdma)
{
	struct verbs_ticket *t = find_ticket(peer, ticket);
	struct verbs *v = peer->v;
	struct transport_recv *recv;
	struct verbs_ticket was;
	struct verbs_rx *rx;

	/* A late write of what comes over another transport now changes nothing but the same bytes.
	 */
	if (!t || (rdma && t->outside)) {
		v->stats.strays++;
		return;
	}
	was = *t;
	rx = was.rx;
	recv = rx->recv;
	ticket_release(peer, t);
	rx->received += was.size;
	peer->moved++;
	v->stats.writes_received += rdma;
	v->stats.bytes_received += rdma ? was.size : 0;
	count_received(recv, was.size, rdma);
	if (was.chunk >= 0) {
		peer->landing--;
		deliver(v, recv, verbs_chunk_data(v, was.chunk), was.offset, was.size);
		verbs_chunk_put(v, was.chunk, true);
	} else {
		recv->received += was.size;
		if (!recv->discard) {
			v->handler.fragment(v->arg, recv, NULL, was.offset, was.size);
		}
	}
	if (peer->state == VERBS_PEER_OPEN && rx->received == rx->length) {
		rx->used = false;
		rx->recv = NULL;
		peer->nrx--;
		list_append(&peer->free_rx, &rx->link);
		v->handler.recv_done(v->arg, recv);
	}
}

void *verbs_outside_begin(struct verbs_peer *peer, uint32_t ticket, uint64_t size)
{
	struct verbs_ticket *t = find_ticket(peer, ticket);
	const struct transport_recv *recv;

	if (!t || t->outside || t->size != size || peer->state != VERBS_PEER_OPEN) {
		return NULL;
	}
	t->outside = true;
	recv = t->rx->recv;
	/* Where the grant was: a grant lies in one piece. */
	return t->chunk >= 0 ? verbs_chunk_data(peer->v, t->chunk)
			     : verbs_iov_at(recv->iov, recv->niov, t->offset);
}

void verbs_outside_done(struct verbs_peer *peer, uint32_t ticket)
{
	struct verbs *v = peer->v;

	if (peer->state != VERBS_PEER_OPEN) {
		return;
	}
	verbs_enter(v);
	peer->progress = v->now;
	verbs_recv_write(peer, ticket, false);
	verbs_peer_dirty(peer);
	verbs_leave(v);
}

/**
 * verbs_drop() - receive the rest of a message for nobody
 * @peer: borrowed; NULL, or lost: there is no rest
 * @recv: borrowed until its recv_done()
 *
 * Return: whether its memory is left alone from now on.
 */
bool verbs_drop(struct verbs_peer *peer, struct transport_recv *recv)
{
	bool untouched = true;

	recv->discard = true;
	if (!peer || peer->state == VERBS_PEER_DEAD) {
		return true;
	}
	for (uint32_t i = 0; i < peer->v->options.tickets; i++) {
		const struct verbs_ticket *t = &peer->tickets[i];

		if (t->rx && t->rx->recv == recv && t->chunk < 0) {
			untouched = false;
		}
	}
	for (uint32_t i = 0; i < VERBS_TX_MAX; i++) {
		if (peer->rx[i].recv == recv) {
			peer->rx[i].direct = false;
		}
	}
	return untouched;
}

/* The queue pairs are gone: nothing lands any more. */
void verbs_recv_cancel(struct verbs_peer *peer)
{
	for (uint32_t i = 0; i < peer->v->options.tickets; i++) {
		struct verbs_ticket *t = &peer->tickets[i];

		if (t->rx && t->chunk >= 0) {
			verbs_chunk_put(peer->v, t->chunk, true);
			peer->landing--;
		}
		if (t->rx) {
			ticket_release(peer, t);
		}
	}
}
