/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: what was on a rail when it failed
 *
 * Frames are sent again; their numbers tell the peer which it has. Fragments that were not
 * acknowledged may have arrived or not: when both ends are drained the peer is asked, by ticket.
 * Only those that did not arrive are written again, so a message is never written to after it was
 * complete and its memory was given back.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <string.h>

#include "transport/verbs/verbs_impl.h"

void verbs_resume_entries(struct verbs_qp *qp)
{
	struct verbs_rail *rail = qp->rail;
	struct verbs_peer *peer = rail->peer;

	/* From the last to the first, so that frames keep their order at the head of the queue. */
	while (qp->sq_tail != qp->sq_head) {
		struct verbs_entry *e = &qp->sq[--qp->sq_tail % qp->sq_size];
		struct verbs_fragment *fragment = e->object;
		struct verbs_frame *frame = e->object;

		switch (e->kind) {
		case VERBS_ENTRY_FRAME:
			if (frame->sequenced) {
				list_prepend(&peer->ready, &frame->link);
				peer->v->stats.resent_frames++;
			} else {
				verbs_frame_put(peer->v, frame);
			}
			break;
		case VERBS_ENTRY_WRITE:
			rail->inflight -= fragment->grant.size;
			list_prepend(&rail->unsure, &fragment->link);
			break;
		case VERBS_ENTRY_PROBE:
			break;
		}
	}
	qp->sq_asked = qp->sq_head;
}

void verbs_forget_keys(struct verbs_peer *peer, uint32_t rail)
{
	for (uint32_t i = 0; i < peer->nfragments; i++) {
		peer->fragments[i].grant.rails &= ~(1u << rail);
	}
}

static void withdraw(struct verbs_frame_header *h, uint32_t rail)
{
	for (uint32_t i = 0; h->type == VERBS_CTS && i < h->count; i++) {
		uint8_t *at = (uint8_t *)(h + 1) + i * sizeof(struct verbs_grant);
		struct verbs_grant g;

		memcpy(&g, at, sizeof(g));
		g.rails &= ~(1u << rail);
		memcpy(at, &g, sizeof(g));
	}
}

void verbs_withdraw_keys(struct verbs_peer *peer, uint32_t rail)
{
	list_for_each (l, &peer->ready) {
		struct verbs_frame *f = container_of(l, struct verbs_frame, link);

		for (uint32_t at = 0; at < f->size; at = verbs_frame_next(f->data, at)) {
			withdraw((void *)(f->data + at), rail);
		}
	}
}

/* Both ends are drained. */
void verbs_resume_ask(struct verbs_rail *rail)
{
	struct verbs_peer *peer = rail->peer;
	uint32_t max = MIN(peer->body_max, 4096u) / (uint32_t)sizeof(uint32_t), n = 0;
	struct verbs_frame *f = verbs_frame_get(peer->v, true);
	struct verbs_frame_header *h;
	struct list *l;

	if (!f) {
		verbs_peer_dirty(peer);
		return;
	}
	h = verbs_frame_start(f, VERBS_RESUME, 0);
	while (n < max && (l = list_first(&rail->unsure))) {
		struct verbs_fragment *fragment = container_of(l, struct verbs_fragment, link);

		memcpy(verbs_frame_body(f) + n++ * sizeof(uint32_t), &fragment->grant.ticket,
		       sizeof(uint32_t));
		list_remove(l);
		list_append(&rail->asked, l);
	}
	h->rail = (uint8_t)rail->index;
	h->count = (uint16_t)n;
	h->length = n * (uint32_t)sizeof(uint32_t);
	f->size += h->length;
	verbs_frame_send(peer, f);
}

/* RESUME: says which of these did not arrive. */
void verbs_resume_asked(struct verbs_peer *peer, const struct verbs_frame_header *h,
			const uint8_t *body)
{
	struct verbs_frame *f = verbs_frame_get(peer->v, true);
	struct verbs_frame_header *answer;
	uint32_t n = 0;

	if (!f) {
		verbs_peer_fail(peer, -ENOBUFS, "no buffer to answer what a lost rail had brought");
		return;
	}
	answer = verbs_frame_start(f, VERBS_STATE, 0);
	if (h->length != h->count * sizeof(uint32_t) || h->length > 4096) {
		verbs_frame_put(peer->v, f);
		verbs_peer_violation(peer, "a question that cannot be");
		return;
	}
	for (uint32_t i = 0; i < h->count; i++) {
		const struct verbs_ticket *t;
		uint32_t ticket;

		memcpy(&ticket, body + i * sizeof(ticket), sizeof(ticket));
		if (VERBS_TICKET_INDEX(ticket) >= peer->v->options.tickets) {
			continue;
		}
		t = &peer->tickets[VERBS_TICKET_INDEX(ticket)];
		if (t->rx && t->ticket == ticket) {
			memcpy(verbs_frame_body(f) + n++ * sizeof(ticket), &ticket, sizeof(ticket));
		}
	}
	answer->rail = h->rail;
	answer->count = (uint16_t)n;
	answer->length = n * (uint32_t)sizeof(uint32_t);
	f->size += answer->length;
	verbs_frame_send(peer, f);
}

static void write_again(struct verbs_peer *peer, struct verbs_fragment *f)
{
	struct verbs_tx *tx = f->tx;

	verbs_fragment_unstage(peer, f);
	peer->backlog += f->grant.size;
	peer->v->stats.resent_writes++;
	list_prepend(&tx->unposted, &f->link);
	if (list_empty(&tx->link)) {
		list_append(&peer->active, &tx->link);
	}
}

static bool is_missing(const struct verbs_frame_header *h, const uint8_t *body, uint32_t ticket)
{
	for (uint32_t i = 0; i < h->count; i++) {
		if (memcmp(body + i * sizeof(ticket), &ticket, sizeof(ticket)) == 0) {
			return true;
		}
	}
	return false;
}

/* STATE: the rest has arrived. Calls out. */
void verbs_resume_answered(struct verbs_peer *peer, const struct verbs_frame_header *h,
			   const uint8_t *body)
{
	struct verbs_rail *rail = h->rail < VERBS_RAILS_MAX ? peer->rails[h->rail] : NULL;
	struct list *l;

	if (!rail || h->length != h->count * sizeof(uint32_t)) {
		verbs_peer_violation(peer, "an answer that cannot be");
		return;
	}
	while (peer->state == VERBS_PEER_OPEN && (l = list_first(&rail->asked))) {
		struct verbs_fragment *f = container_of(l, struct verbs_fragment, link);

		list_remove(l);
		if (is_missing(h, body, f->grant.ticket)) {
			write_again(peer, f);
		} else {
			verbs_fragment_acked(peer, f);
		}
	}
}
