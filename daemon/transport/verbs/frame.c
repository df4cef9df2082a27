/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: frames, credits and sequence numbers
 *
 * A frame is sent only against a credit: a buffer that the peer has posted on this rail. Credits
 * come back in the header of any frame of the rail; when half of them are owed and nothing else
 * goes that way, in a CREDIT frame, for which the last two credits are kept. Each end answers
 * CREDIT frames with others only after half a round of buffers, so they do not keep each other
 * busy.
 *
 * Messages, requests and grants that are prepared in the same turn travel in one SEND.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <string.h>

#include "transport/verbs/verbs_impl.h"

struct verbs_frame *verbs_frame_get(struct verbs *v, bool control)
{
	struct list *l = list_first(&v->free_frames);

	if (!l || (!control && v->nframes_free <= VERBS_FRAMES_KEPT)) {
		return NULL;
	}
	list_remove(l);
	v->nframes_free--;
	return container_of(l, struct verbs_frame, link);
}

void verbs_frame_put(struct verbs *v, struct verbs_frame *f)
{
	list_remove(&f->link);
	/* The one used last is still in the cache. */
	list_prepend(&v->free_frames, &f->link);
	v->nframes_free++;
}

struct verbs_frame_header *verbs_frame_start(struct verbs_frame *f, enum verbs_frame_type type,
					     uint32_t length)
{
	struct verbs_frame_header *h = (struct verbs_frame_header *)f->data;

	memset(h, 0, sizeof(*h));
	h->magic = VERBS_MAGIC;
	h->type = (uint8_t)type;
	h->length = length;
	f->size = (uint32_t)sizeof(*h) + length;
	f->sequenced = type < VERBS_CREDIT;
	return h;
}

/*
 * May another sequence number be used? With one rail frames arrive in order. With several, one that
 * is lost with its rail must come again before the others are too far ahead. What was sent without
 * asking for a completion is from the time when there was only one.
 */
static bool window_open(const struct verbs_peer *peer)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct verbs_qp *qp = peer->rails[i] ? peer->rails[i]->qps[0] : NULL;

		for (uint32_t s = qp ? qp->sq_head : 0; qp && (int32_t)(qp->sq_asked - s) > 0;
		     s++) {
			const struct verbs_entry *e = &qp->sq[s % qp->sq_size];
			const struct verbs_frame *f = e->object;

			if (e->kind == VERBS_ENTRY_FRAME && f->sequenced) {
				const struct verbs_frame_header *h = (const void *)f->data;

				if (peer->tx_seq - h->seq >= VERBS_AHEAD) {
					return false;
				}
				break;
			}
		}
	}
	return true;
}

struct verbs_rail *verbs_frame_rail(struct verbs_peer *peer)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_rail *rail = peer->rails[i];

		if (peer->up & 1u << i && rail->credits > VERBS_RESERVE &&
		    verbs_qp_room(rail->qps[0]) > VERBS_RESERVE) {
			return peer->nrails == 1 || window_open(peer) ? rail : NULL;
		}
	}
	return NULL;
}

/* Unasked completions are implied by later ones; a frame's buffer stays busy until then. */
static bool wants_signal(const struct verbs *v, const struct verbs_rail *rail)
{
	const struct verbs_qp *qp = rail->qps[0];

	return qp->sq_tail + 1 - qp->sq_asked >= MIN(VERBS_SIGNAL, qp->sq_size / 4) ||
	       rail->peer->nrails > 1 || v->nframes_free < v->options.frames / 2 ||
	       rail->state != VERBS_RAIL_UP;
}

/* Gives a frame its number, when it has none. */
static void number(struct verbs_peer *peer, struct verbs_frame_header *h)
{
	if (h->seq == 0) {
		h->seq = peer->tx_seq++;
		if (peer->tx_seq == 0) {
			peer->tx_seq = 1;
		}
	}
}

uint32_t verbs_frame_next(const uint8_t *data, uint32_t at)
{
	struct verbs_frame_header h;

	memcpy(&h, data + at, sizeof(h));
	return at + ALIGN_UP((uint32_t)sizeof(h) + h.length, VERBS_FRAME_ALIGN);
}

static bool may_share(const struct verbs_frame_header *h)
{
	return h->type <= VERBS_CTS;
}

/* Adds the frame to the one prepared before it, which is not posted yet. Return: false: alone. */
static bool share(struct verbs_rail *rail, struct verbs_frame *f)
{
	struct verbs_qp *qp = rail->qps[0];
	const struct verbs_entry *e = &qp->sq[(qp->sq_tail - 1) % qp->sq_size];
	struct verbs_frame_header *first, *h = (struct verbs_frame_header *)f->data;
	struct verbs_frame *to = e->object;
	struct ibv_send_wr *wr;
	uint32_t at, add;

	if (qp->nwrs == 0 || e->kind != VERBS_ENTRY_FRAME || f->size > VERBS_SHARED_MAX) {
		return false;
	}
	first = (struct verbs_frame_header *)to->data;
	at = ALIGN_UP(to->size, VERBS_FRAME_ALIGN);
	/* The oldest is first: see window_open(). */
	if (!may_share(first) || !may_share(h) || (int32_t)(h->seq - first->seq) < 0 ||
	    at + f->size > sizeof(*h) + rail->peer->body_max) {
		return false;
	}
	h->credits = 0;
	memset(to->data + to->size, 0, at - to->size);
	memcpy(to->data + at, f->data, f->size);
	to->size = at + f->size;
	add = MIN(rail->owed, (uint32_t)(UINT16_MAX - first->credits));
	first->credits = (uint16_t)(first->credits + add);
	rail->owed -= add;
	wr = &qp->wrs[qp->nwrs - 1];
	wr->sg_list[0].length = to->size;
	if (to->size > qp->inline_max) {
		wr->send_flags &= ~(unsigned int)IBV_SEND_INLINE;
	}
	return true;
}

static void count_sent(struct verbs_rail *rail, uint32_t size)
{
	struct verbs *v = rail->peer->v;

	v->stats.frames_sent++;
	v->stats.bytes_sent += size;
	rail->bytes_sent += size;
}

void verbs_frame_post(struct verbs_rail *rail, struct verbs_frame *f)
{
	struct verbs_frame_header *h = (struct verbs_frame_header *)f->data;
	struct verbs_peer *peer = rail->peer;
	struct verbs *v = peer->v;
	struct verbs_qp *qp = rail->qps[0];
	struct ibv_send_wr *wr;

	assert(rail->credits > 0);
	if (f->sequenced) {
		number(peer, h);
	}
	count_sent(rail, f->size);
	if (share(rail, f)) {
		verbs_frame_put(v, f);
		return;
	}
	h->credits = (uint16_t)MIN(rail->owed, UINT16_MAX);
	rail->owed -= h->credits;
	rail->credits--;
	wr = verbs_qp_push(qp, VERBS_ENTRY_FRAME, f, wants_signal(v, rail));
	wr->opcode = IBV_WR_SEND;
	wr->num_sge = 1;
	wr->sg_list[0].addr = (uintptr_t)f->data;
	wr->sg_list[0].length = f->size;
	wr->sg_list[0].lkey = v->buffers->mr[rail->dev->device->index]->lkey;
	if (f->size <= qp->inline_max) {
		wr->send_flags |= IBV_SEND_INLINE;
	}
}

/* Of those without another transport, only what brings a rail back. */
static bool goes_outside(const struct verbs *v, uint8_t type)
{
	return verbs_has_outside(v) ? type < VERBS_CREDIT
				    : type >= VERBS_DOWN && type <= VERBS_OPENED;
}

/* No rail is up: frames have another way. */
static bool send_outside(struct verbs_peer *peer, struct verbs_frame *f)
{
	struct verbs_frame_header *h = (struct verbs_frame_header *)f->data;
	struct verbs *v = peer->v;

	if (peer->up || !v->handler.control || !goes_outside(v, h->type)) {
		return false;
	}
	number(peer, h);
	h->credits = 0;
	if (!v->handler.control(v->arg, peer, f->data, f->size)) {
		verbs_peer_dirty(peer);
		return false;
	}
	v->stats.outside_frames++;
	verbs_frame_put(v, f);
	return true;
}

void verbs_frame_send(struct verbs_peer *peer, struct verbs_frame *f)
{
	struct verbs_rail *rail = list_empty(&peer->ready) ? verbs_frame_rail(peer) : NULL;

	if (rail) {
		verbs_frame_post(rail, f);
	} else if (!send_outside(peer, f)) {
		list_append(&peer->ready, &f->link);
	}
}

void verbs_frames_pump(struct verbs_peer *peer)
{
	struct verbs_rail *rail;
	struct list *l;

	list_for_each_safe (e, &peer->ready) {
		if (peer->up) {
			break;
		}
		send_outside(peer, container_of(e, struct verbs_frame, link));
	}
	while ((l = list_first(&peer->ready)) && (rail = verbs_frame_rail(peer))) {
		list_remove(l);
		verbs_frame_post(rail, container_of(l, struct verbs_frame, link));
	}
}

void verbs_credits_return(struct verbs_rail *rail)
{
	struct verbs *v = rail->peer->v;
	struct verbs_frame *f;

	if ((rail->state != VERBS_RAIL_UP && rail->state != VERBS_RAIL_PROBING) ||
	    rail->owed < v->options.credits / 2 || rail->credits == 0 ||
	    verbs_qp_room(rail->qps[0]) == 0) {
		return;
	}
	f = verbs_frame_get(v, true);
	if (!f) {
		verbs_peer_dirty(rail->peer);
		return;
	}
	verbs_frame_start(f, VERBS_CREDIT, 0);
	verbs_frame_post(rail, f);
}

/* Return: whether it is the first with this number; a number too far ahead breaks the rules. */
static bool is_new(struct verbs_peer *peer, uint32_t seq)
{
	uint32_t ahead = seq - peer->rx_low;
	uint64_t *word = &peer->rx_bits[seq % VERBS_WINDOW / 64];
	uint64_t bit = UINT64_C(1) << (seq % 64);

	if (seq == 0 || (ahead >= VERBS_WINDOW && ahead < UINT32_MAX / 2)) {
		verbs_peer_violation(peer, "a sequence number that cannot be");
		return false;
	}
	if (ahead >= UINT32_MAX / 2 || *word & bit) {
		peer->v->stats.strays++;
		return false;
	}
	*word |= bit;
	for (;;) {
		word = &peer->rx_bits[peer->rx_low % VERBS_WINDOW / 64];
		bit = UINT64_C(1) << (peer->rx_low % 64);
		if (peer->rx_low != 0 && !(*word & bit)) {
			return true;
		}
		*word &= ~bit;
		peer->rx_low++;
	}
}

static void answer_probe(struct verbs_rail *rail, const struct verbs_frame_header *h)
{
	struct verbs *v = rail->peer->v;
	struct verbs_frame *f;

	if (rail->credits == 0 || !rail->qps[0]->qp || verbs_qp_room(rail->qps[0]) == 0 ||
	    (rail->state != VERBS_RAIL_UP && rail->state != VERBS_RAIL_PROBING)) {
		return;
	}
	f = verbs_frame_get(v, true);
	if (f) {
		verbs_frame_start(f, VERBS_PROBE_ACK, MIN(h->length, v->options.eager + WIRE_SIZE))
			->epoch = h->epoch;
		memset(verbs_frame_body(f), 0, f->size - sizeof(*h));
		verbs_frame_post(rail, f);
	}
}

static void dispatch_rail(struct verbs_rail *rail, const struct verbs_frame_header *h,
			  const uint8_t *body)
{
	switch (h->type) {
	case VERBS_CREDIT:
		break;
	case VERBS_PROBE:
		answer_probe(rail, h);
		break;
	case VERBS_PROBE_ACK:
		if (h->epoch == rail->epoch) {
			rail->probe_acked = true;
			verbs_rail_probe_done(rail);
		}
		break;
	case VERBS_CHECK:
		verbs_check_arrived(rail, h, body);
		break;
	}
}

static void dispatch(struct verbs_peer *peer, const struct verbs_frame_header *h,
		     const uint8_t *body)
{
	switch (h->type) {
	case VERBS_EAGER:
		verbs_recv_eager(peer, h, body);
		break;
	case VERBS_RTS:
		verbs_recv_rts(peer, h, body);
		break;
	case VERBS_CTS:
		verbs_send_granted(peer, h, body);
		break;
	case VERBS_DOWN:
		verbs_rail_down(peer, h, body);
		break;
	case VERBS_DRAINED:
		verbs_rail_drained(peer, h, body);
		break;
	case VERBS_RESUME:
		verbs_resume_asked(peer, h, body);
		break;
	case VERBS_STATE:
		verbs_resume_answered(peer, h, body);
		break;
	case VERBS_OPEN:
	case VERBS_OPENED:
		if (h->length != sizeof(struct verbs_blob)) {
			verbs_peer_violation(peer, "a blob of a wrong size");
		} else if (h->type == VERBS_OPEN) {
			verbs_rail_offered(peer, (const struct verbs_blob *)body);
		} else {
			verbs_rail_accepted(peer, (const struct verbs_blob *)body);
		}
		break;
	}
}

/* Of a header behind which there are @left bytes, others' among them unless it is @alone. */
static bool makes_sense(const struct verbs_frame_header *h, uint32_t left, bool alone)
{
	uint32_t size = (uint32_t)sizeof(*h) + left;

	if (h->magic != VERBS_MAGIC || h->type == 0 || h->type >= VERBS_FRAME_COUNT_ ||
	    h->length > left) {
		return false;
	}
	if (!may_share(h)) {
		return alone && h->length == left;
	}
	return h->length == left ||
	       ALIGN_UP((uint32_t)sizeof(*h) + h->length, VERBS_FRAME_ALIGN) < size;
}

static void one_arrived(struct verbs_rail *rail, const struct verbs_frame_header *h,
			const uint8_t *body)
{
	struct verbs_peer *peer = rail->peer;

	peer->v->stats.frames_received++;
	rail->credits += h->credits;
	if (rail->credits > rail->remote.credits) {
		verbs_peer_violation(peer, "more credits than there are");
		return;
	}
	if (h->type >= VERBS_CREDIT) {
		dispatch_rail(rail, h, body);
	} else if (is_new(peer, h->seq)) {
		dispatch(peer, h, body);
	}
}

/* A frame is in the buffer, or several; what is wrong with it is the peer's fault. */
void verbs_frame_arrived(struct verbs_rail *rail, uint8_t *data, uint32_t size)
{
	struct verbs_peer *peer = rail->peer;
	uint32_t at = 0;

	peer->v->stats.bytes_received += size;
	rail->bytes_received += size;
	do {
		const struct verbs_frame_header *h = (const void *)(data + at);

		if (size - at < sizeof(*h) ||
		    !makes_sense(h, size - at - (uint32_t)sizeof(*h), at == 0)) {
			verbs_peer_violation(peer, "a frame that cannot be");
			return;
		}
		one_arrived(rail, h, (const uint8_t *)(h + 1));
		at = verbs_frame_next(data, at);
	} while (at < size && peer->state == VERBS_PEER_OPEN);
}

/* Return: false when it breaks the rules. */
static bool one_outside(struct verbs_peer *peer, const uint8_t *data, uint32_t left, bool alone)
{
	struct verbs_frame_header h;

	if (left < sizeof(h)) {
		return false;
	}
	memcpy(&h, data, sizeof(h));
	if (!makes_sense(&h, left - (uint32_t)sizeof(h), alone) || h.type >= VERBS_CREDIT ||
	    (!peer->fragments && h.type != VERBS_DOWN && h.type != VERBS_DRAINED)) {
		return false;
	}
	if (is_new(peer, h.seq)) {
		dispatch(peer, &h, data + sizeof(h));
	}
	return true;
}

/**
 * verbs_control() - take what came another way
 * @peer: borrowed
 * @data: borrowed, from the network
 * @size: bytes
 */
void verbs_control(struct verbs_peer *peer, const void *data, size_t size)
{
	struct verbs *v = peer->v;
	uint32_t at = 0;

	if (peer->state != VERBS_PEER_OPEN) {
		return;
	}
	verbs_enter(v);
	do {
		if (size > v->frame_size ||
		    !one_outside(peer, (const uint8_t *)data + at, (uint32_t)size - at, at == 0)) {
			verbs_peer_violation(peer, "a control message that cannot be");
			break;
		}
		at = verbs_frame_next(data, at);
	} while (at < size && peer->state == VERBS_PEER_OPEN);
	verbs_peer_dirty(peer);
	verbs_leave(v);
}

size_t verbs_control_max(const struct verbs *v)
{
	return v->frame_size;
}

uint32_t verbs_tickets(const struct verbs *v)
{
	return v->options.tickets;
}
