/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Relay: implementation
 *
 * Thread: progress, but for relay_new() and relay_free()      Owns: see relay.h      Locks: none
 */
#include "engine/relay.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/progress.h"

/* ---- control ------------------------------------------------------------------------------ */

static size_t slab_size(const struct relay *r)
{
	return (RELAY_FRAMES + RELAY_ARRIVING) * r->frame_max;
}

static void frames_init(struct relay *r, struct relay_frame *frames, uint32_t n, uint8_t *data,
			struct list *list)
{
	list_init(list);
	for (uint32_t i = 0; i < n; i++) {
		struct relay_frame *f = &frames[i];

		f->relay = r;
		f->data = data + i * r->frame_max;
		f->target.kind = RECV_RAIL_FRAME;
		f->target.object = f;
		list_append(list, &f->link);
	}
}

/**
 * relay_new() - make what a peer with rails needs
 * @peer:      borrowed for the relay's life
 * @name:      of its host; copied
 * @initiator: one end of each pair is
 * @frame_max: bytes of a frame
 * @ntickets:  fragments that may be under way to us
 * @ret:       new relay, set on success only
 *
 * Return: 0, or -ENOMEM.
 */
int relay_new(struct engine_peer *peer, const char *name, bool initiator, size_t frame_max,
	      uint32_t ntickets, struct relay **ret)
{
	struct relay *r = calloc(1, sizeof(*r));

	if (!r) {
		return err_origin(-ENOMEM);
	}
	r->peer = peer;
	r->initiator = initiator;
	r->frame_max = ALIGN_UP(frame_max, 64);
	r->ntickets = ntickets;
	snprintf(r->name, sizeof(r->name), "%s", name);
	r->landings = calloc(ntickets, sizeof(*r->landings));
	r->slab = mmap(NULL, slab_size(r), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->slab == MAP_FAILED) {
		r->slab = NULL;
	}
	if (!r->landings || !r->slab) {
		relay_free(r);
		return err_origin(-ENOMEM);
	}
	frames_init(r, r->frames, RELAY_FRAMES, r->slab, &r->free_frames);
	frames_init(r, r->arriving, RELAY_ARRIVING, r->slab + RELAY_FRAMES * r->frame_max,
		    &r->free_arriving);
	list_init(&r->free_writes);
	for (uint32_t i = 0; i < RELAY_WRITES; i++) {
		r->writes[i].relay = r;
		list_append(&r->free_writes, &r->writes[i].link);
	}
	for (uint32_t i = 0; i < ntickets; i++) {
		r->landings[i].relay = r;
		r->landings[i].target.kind = RECV_RAIL_WRITE;
		r->landings[i].target.object = &r->landings[i];
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		r->notes[i].relay = r;
	}
	*ret = r;
	return 0;
}

struct relay *relay_free(struct relay *r)
{
	if (r) {
		if (r->slab) {
			munmap(r->slab, slab_size(r));
		}
		free(r->landings);
		free(r);
	}
	return NULL;
}

/* ---- progress ----------------------------------------------------------------------------- */

int relay_start(struct relay *r)
{
	return err_trace(
		verbs_peer_new(r->peer->progress->verbs, r, r->name, r->initiator, &r->verbs));
}

void relay_stop(struct relay *r)
{
	if (r) {
		r->verbs = verbs_peer_free(r->verbs);
	}
}

bool relay_takes(const struct engine_peer *peer)
{
	const struct relay *r = peer->relay;

	return r && r->verbs && (peer->progress->rdma_only || verbs_peer_ready(r->verbs));
}

static struct engine_peer *peer_of(const struct verbs_peer *vp)
{
	const struct relay *r = verbs_peer_user(vp);

	return r->peer;
}

/* ---- sending ------------------------------------------------------------------------------ */

static void frame_sent(struct transport_send *send, int status)
{
	struct relay_frame *f = send->user;

	list_append(&f->relay->free_frames, &f->link);
}

static bool send_frame(void *arg, struct verbs_peer *vp, const void *data, size_t size)
{
	struct relay *r = verbs_peer_user(vp);
	struct list *first = list_first(&r->free_frames);
	struct relay_frame *f;

	if (!first || !r->peer->transport || r->peer->down || size > r->frame_max) {
		return false;
	}
	list_remove(first);
	f = container_of(first, struct relay_frame, link);
	memcpy(f->data, data, size);
	f->iov = (struct iovec){f->data, size};
	f->send = (struct transport_send){
		.header.type = WIRE_RAIL_FRAME,
		.iov = &f->iov,
		.niov = 1,
		.length = size,
		.done = frame_sent,
		.user = f,
	};
	transport_send(r->peer->transport, &f->send);
	return true;
}

static void pass_on(void *arg, struct verbs_peer *vp, struct transport_send *send)
{
	struct engine_peer *peer = peer_of(vp);

	if (!peer->transport || peer->down) {
		send->done(send, -ECONNRESET);
		return;
	}
	transport_send(peer->transport, send);
}

static void write_sent(struct transport_send *send, int status)
{
	struct relay_write *w = send->user;
	struct relay *r = w->relay;

	list_append(&r->free_writes, &w->link);
	if (r->verbs) {
		verbs_outside_sent(r->verbs, w->fragment, status);
	}
}

static bool send_write(void *arg, struct verbs_peer *vp, uint32_t ticket, void *data, uint32_t size,
		       struct verbs_fragment *fragment)
{
	struct relay *r = verbs_peer_user(vp);
	struct list *first = list_first(&r->free_writes);
	struct relay_write *w;

	if (!first || !r->peer->transport || r->peer->down) {
		return false;
	}
	list_remove(first);
	w = container_of(first, struct relay_write, link);
	w->fragment = fragment;
	w->iov = (struct iovec){data, size};
	w->send = (struct transport_send){
		.header = {.type = WIRE_RAIL_WRITE, .tag = ticket},
		.iov = &w->iov,
		.niov = 1,
		.length = size,
		.done = write_sent,
		.user = w,
	};
	transport_send(r->peer->transport, &w->send);
	return true;
}

/* ---- what arrives over the data connections ------------------------------------------------ */

static struct transport_recv *frame_begin(struct relay *r, const struct wire_header *h)
{
	struct list *first = list_first(&r->free_arriving);
	struct relay_frame *f;

	if (!first || h->length == 0 || h->length > r->frame_max) {
		return NULL;
	}
	list_remove(first);
	f = container_of(first, struct relay_frame, link);
	f->iov = (struct iovec){f->data, h->length};
	f->recv = (struct transport_recv){.iov = &f->iov, .niov = 1, .user = &f->target};
	return &f->recv;
}

void relay_frame_done(struct relay_frame *f)
{
	struct relay *r = f->relay;

	if (r->verbs) {
		verbs_control(r->verbs, f->data, f->iov.iov_len);
	}
	list_append(&r->free_arriving, &f->link);
}

static struct transport_recv *write_begin(struct relay *r, const struct wire_header *h)
{
	uint32_t index = VERBS_TICKET_INDEX(h->tag);
	struct relay_landing *l = index < r->ntickets ? &r->landings[index] : NULL;

	if (!l || l->busy || h->length == 0) {
		return NULL;
	}
	l->iov.iov_len = h->length;
	l->iov.iov_base = verbs_outside_begin(r->verbs, h->tag, h->length);
	if (!l->iov.iov_base) {
		return NULL;
	}
	l->busy = true;
	l->ticket = h->tag;
	l->recv = (struct transport_recv){.iov = &l->iov, .niov = 1, .user = &l->target};
	return &l->recv;
}

void relay_write_done(struct relay_landing *l)
{
	l->busy = false;
	if (l->relay->verbs) {
		verbs_outside_done(l->relay->verbs, l->ticket);
	}
}

/**
 * relay_recv_begin() - give a message for the relay a place
 * @peer: borrowed
 * @h:    borrowed, from the network
 * @ret:  set on success only
 *
 * Return: 0, or -EPROTO.
 */
int relay_recv_begin(struct engine_peer *peer, const struct wire_header *h,
		     struct transport_recv **ret)
{
	struct transport_recv *recv = NULL;
	struct relay *r = peer->relay;

	if (r && r->verbs) {
		recv = h->type == WIRE_RAIL_FRAME ? frame_begin(r, h) : write_begin(r, h);
	}
	if (!recv) {
		return -EPROTO;
	}
	*ret = recv;
	return 0;
}

/* ---- what arrives over rails ---------------------------------------------------------------- */

static int rail_recv_begin(void *arg, struct verbs_peer *vp, const struct wire_header *h,
			   struct transport_recv **ret)
{
	int r = conn_recv_begin(peer_of(vp), h, ret);

	if (r == 0) {
		(*ret)->rdma = true;
	}
	return r;
}

static void rail_peer_down(void *arg, struct verbs_peer *vp, int error, const char *reason)
{
	struct relay *r = verbs_peer_user(vp);

	snprintf(r->reason, sizeof(r->reason), "%s", reason);
	if (!r->peer->down) {
		r->peer->lost = "rails";
	}
	/* The data connections first: they may be bringing what a rail had begun. */
	conn_lose(r->peer, error, r->reason);
}

/* ---- what control hears --------------------------------------------------------------------- */

static void note_run(void *ctx, struct mailbox_msg *msg)
{
	struct relay_note *n = container_of(msg, struct relay_note, msg);
	struct relay *r = n->relay;

	engine_tell_rail(ctx, r->peer->user, (uint32_t)(n - r->notes), n->state, n->text);
	/* Pairs with the acquire in note_send(). */
	atomic_store_explicit(&n->busy, false, memory_order_release);
}

/* Return: false: control still has the last one. */
static bool note_send(struct relay_note *n)
{
	if (atomic_load_explicit(&n->busy, memory_order_acquire)) {
		return false;
	}
	n->due = false;
	n->state = n->next_state;
	memcpy(n->text, n->next_text, sizeof(n->text));
	n->msg.run = note_run;
	atomic_store_explicit(&n->busy, true, memory_order_relaxed);
	progress_tell(n->relay->peer->progress, &n->msg);
	return true;
}

bool relay_tell(struct relay *r)
{
	bool left = false;

	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		left |= r->notes[i].due && !note_send(&r->notes[i]);
	}
	return left;
}

static void rail_event(void *arg, struct verbs_peer *vp, uint32_t rail, enum verbs_rail_state state,
		       const char *text)
{
	struct relay *r = verbs_peer_user(vp);
	struct relay_note *n = &r->notes[rail];

	n->next_state = state;
	snprintf(n->next_text, sizeof(n->next_text), "%s", text);
	n->due = true;
	if (!note_send(n)) {
		r->peer->progress->notes_due = true;
	}
}

const struct verbs_handler relay_handler_only = {
	.recv_begin = rail_recv_begin,
	.fragment = conn_fragment,
	.recv_done = conn_recv_done,
	.peer_down = rail_peer_down,
	.rail_event = rail_event,
	.control = send_frame,
};

const struct verbs_handler relay_handler = {
	.recv_begin = rail_recv_begin,
	.fragment = conn_fragment,
	.recv_done = conn_recv_done,
	.peer_down = rail_peer_down,
	.rail_event = rail_event,
	.control = send_frame,
	.pass_on = pass_on,
	.write = send_write,
};
