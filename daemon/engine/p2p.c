/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Point to point: see p2p.h
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/p2p.h"

#include <string.h>

#include "engine/op.h"
#include "engine/progress.h"

static uint32_t host_of(const struct engine_comm *c, uint32_t rank)
{
	return c->params.layout->host_of[rank];
}

static struct p2p *p2p_take(struct engine_comm *c)
{
	struct list *first = list_first(&c->p2p_free);
	struct p2p *x;

	if (first) {
		x = container_of(first, struct p2p, link);
		list_remove(&x->link);
	} else {
		x = &c->p2ps[c->p2p_used++];
	}
	memset(x, 0, sizeof(*x));
	list_init(&x->link);
	return x;
}

static void p2p_put(struct p2p *x)
{
	struct engine_comm *c = x->comm;

	device_p2p_release(x);
	post_release(&x->post);
	list_remove(&x->link);
	list_append(&c->p2p_free, &x->link);
	c->ranks[x->local].p2p->in_flight--;
	comm_try_remove(c);
}

/*
 * The object stays while its grant is on its way, and while p2p_advance() walks over the list: a
 * step may end two operations, one of which is the next to be looked at.
 */
static void p2p_put_over(struct p2p *x)
{
	if (!x->note_busy && !x->comm->p2p_advancing) {
		p2p_put(x);
	}
}

static void p2p_sweep(struct engine_comm *c)
{
	c->pins++;
	list_for_each_safe (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->state == P2P_OVER) {
			p2p_put_over(x);
		}
	}
	c->pins--;
	comm_try_remove(c);
}

/* Tells the client. */
static void p2p_finish(struct p2p *x, enum status status)
{
	struct engine_comm *c = x->comm;

	if (!x->post.completed) {
		post_complete(c, x->local, &x->post, status,
			      x->kind == COLL_RECV && status == STATUS_OK ? x->bytes : 0);
		c->progress->busy--;
		if (status == STATUS_OK) {
			counter_add(&c->params.view->ops, 1);
		}
	}
	x->state = P2P_OVER;
	p2p_put_over(x);
}

static void p2p_mismatch(struct p2p *x, uint64_t theirs)
{
	struct engine_comm *c = x->comm;
	struct engine_failure f = {
		.cause = ENGINE_FAIL_LENGTH,
		.status = STATUS_MISMATCH,
		.seq = x->seq,
		.rank_a = (int32_t)c->ranks[x->local].rank,
		.rank_b = (int32_t)x->peer,
		.host_b = -1,
		.a = {.kind = x->kind, .dtype = x->dtype, .root = x->peer},
		.b = {.kind = x->kind == COLL_SEND ? COLL_RECV : COLL_SEND, .dtype = x->dtype},
		.length_a = x->bytes,
		.length_b = theirs,
	};

	comm_fail_event(c, &f);
}

/* ---- memory of GPUs ----------------------------------------------------------------------- */

/* Where the bytes are that are sent, or arrive. */
static uint8_t *p2p_place(const struct p2p *x)
{
	if (device_p2p(x)) {
		return x->stage;
	}
	return x->kind == COLL_SEND ? x->post.in : x->post.out;
}

/* A send's bytes are in memory of the host. Return: false: they will be, or it cannot be now. */
static bool p2p_fetched(struct p2p *x)
{
	if (x->fetched || !device_p2p(x)) {
		return true;
	}
	if (device_p2p_stage(x)) {
		device_p2p_copy(x);
	}
	return false;
}

/* All bytes of a receive are here. */
static void p2p_received(struct p2p *x)
{
	if (device_p2p(x)) {
		device_p2p_copy(x);
	} else {
		p2p_finish(x, STATUS_OK);
	}
}

void p2p_copied(struct p2p *x)
{
	struct progress *p = x->comm->progress;

	x->copying = false;
	x->state = P2P_WAITING;
	if (x->comm->failed) {
		p2p_finish(x, x->comm->failed);
	} else if (x->kind == COLL_SEND) {
		x->fetched = true;
	} else {
		p2p_finish(x, STATUS_OK);
	}
	p->rescan = true;
}

void p2p_moved(struct p2p *x, bool ok)
{
	struct progress *p = x->comm->progress;
	enum status status = x->comm->failed;
	struct p2p *y = x->partner;

	x->partner = NULL;
	x->copying = y->copying = false;
	x->state = y->state = P2P_WAITING;
	x->indirect = !ok;
	if (status != STATUS_OK || ok) {
		p2p_finish(x, status);
		p2p_finish(y, status); /* the communicator may be gone by now */
	}
	p->rescan = true;
}

/* ---- across hosts ------------------------------------------------------------------------- */

static void note_done(struct transport_send *send, int status)
{
	struct p2p *x = send->user;

	(void)status;
	x->note_busy = false;
	if (x->state == P2P_OVER) {
		p2p_put_over(x);
	}
}

static void header_fill(struct p2p *x, struct wire_header *h, uint8_t type, uint32_t from,
			uint32_t to)
{
	x->send.account = x->comm->params.view;
	h->type = type;
	h->comm = x->comm->params.uid;
	h->tag = from;
	h->root = to;
	h->kind = COLL_SEND;
	h->dtype = x->dtype;
	h->count = x->bytes;
}

static void send_grant(struct p2p *x)
{
	struct engine_comm *c = x->comm;

	header_fill(x, &x->send.header, WIRE_P2P_GRANT, x->peer, c->ranks[x->local].rank);
	x->send.header.seq = c->ranks[x->local].p2p->opened[x->peer];
	x->send.done = note_done;
	x->send.user = x;
	x->note_busy = true;
	conn_send(c->params.peers[host_of(c, x->peer)], &x->send);
}

static void payload_done(struct transport_send *send, int status)
{
	struct p2p *x = send->user;

	if (status == 0 && !x->comm->failed) {
		counter_add(&x->comm->params.view->bytes_sent, x->bytes);
		p2p_finish(x, STATUS_OK);
		x->comm->progress->rescan = true; /* conflicts may be over */
		return;
	}
	p2p_finish(x, x->comm->failed ? x->comm->failed : STATUS_PEER_DIED);
}

static void send_payload(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	struct engine_peer *peer = c->params.peers[host_of(c, x->peer)];
	bool granted = (int32_t)(c->ranks[x->local].p2p->granted[x->peer] - x->seq) > 0;
	bool eager = false;

	/* Not before it may go: staging memory would be held for a receiver that is late. */
	if ((!granted && x->bytes > c->progress->options.eager) || !p2p_fetched(x)) {
		return;
	}
	if (!granted) {
		eager = conn_take_credit(peer, x->bytes);
		if (!eager) {
			return;
		}
	}
	header_fill(x, &x->send.header, WIRE_P2P, c->ranks[x->local].rank, x->peer);
	x->send.header.seq = x->seq;
	x->send.header.flags = eager ? WIRE_EAGER : 0;
	x->iov.iov_base = p2p_place(x);
	x->iov.iov_len = x->bytes;
	x->send.iov = &x->iov;
	x->send.niov = x->bytes ? 1 : 0;
	x->send.length = x->bytes;
	x->send.done = payload_done;
	x->send.user = x;
	x->state = P2P_HELD;
	conn_send(peer, &x->send);
}

static void take_early(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	struct eager_slot *slot = conn_find_early(c, WIRE_P2P, host_of(c, x->peer), x->seq, 0,
						  x->peer, c->ranks[x->local].rank);

	if (!slot) {
		return;
	}
	if (slot->header.length != x->bytes || slot->header.dtype != x->dtype) {
		p2p_mismatch(x, slot->header.length);
		return;
	}
	if (x->bytes) {
		memcpy(p2p_place(x), slot->data, x->bytes);
	}
	COMM_COUNT(c, bytes_copied, x->bytes);
	counter_add(&c->params.view->bytes_received, x->bytes);
	conn_release_slot(slot);
	p2p_received(x);
	c->progress->rescan = true;
}

struct transport_recv *p2p_recv_begin(struct engine_comm *c, uint32_t host,
				      const struct wire_header *h)
{
	list_for_each (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->kind != COLL_RECV || x->state != P2P_WAITING || !x->started ||
		    x->seq != h->seq || x->peer != h->tag || c->ranks[x->local].rank != h->root ||
		    host_of(c, x->peer) != host) {
			continue;
		}
		if (h->length != x->bytes || h->dtype != x->dtype) {
			p2p_mismatch(x, h->length);
			return NULL;
		}
		memset(&x->recv, 0, sizeof(x->recv));
		x->target.kind = RECV_P2P;
		x->target.object = x;
		x->iov.iov_base = p2p_place(x);
		x->iov.iov_len = x->bytes;
		x->recv.iov = x->bytes ? &x->iov : NULL;
		x->recv.niov = x->bytes ? 1 : 0;
		x->recv.user = &x->target;
		x->recv.account = c->params.view;
		x->state = P2P_HELD;
		return &x->recv;
	}
	return NULL;
}

void p2p_recv_done(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	struct progress *p = c->progress;

	if (c->failed) {
		p2p_finish(x, c->failed);
	} else {
		counter_add(&c->params.view->bytes_received, x->bytes);
		p2p_received(x);
	}
	p->rescan = true; /* @c may be gone by now */
}

void p2p_granted(struct engine_comm *c, const struct wire_header *h)
{
	const struct coll_layout *l = c->params.layout;
	uint32_t *granted;

	if (h->tag >= c->nranks || h->root >= c->nranks || l->host_of[h->tag] != c->params.host) {
		return;
	}
	granted = &c->ranks[l->local_of[h->tag]].p2p->granted[h->root];
	if ((int32_t)(h->seq - *granted) > 0) {
		*granted = h->seq;
	}
	p2p_advance(c);
}

/* ---- on one host -------------------------------------------------------------------------- */

static struct p2p *local_partner(const struct p2p *x)
{
	struct engine_comm *c = x->comm;

	list_for_each (e, &c->p2p_active) {
		struct p2p *y = container_of(e, struct p2p, link);

		if (y->kind == COLL_RECV && y->started && y->state == P2P_WAITING &&
		    y->seq == x->seq && c->ranks[y->local].rank == x->peer &&
		    y->peer == c->ranks[x->local].rank) {
			return y;
		}
	}
	return NULL;
}

/* Copies a slice; large ones take several turns of the loop. */
static void local_copy(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	struct p2p *y = local_partner(x);
	uint64_t n;

	if (!y) {
		return;
	}
	if (x->bytes != y->bytes || x->dtype != y->dtype) {
		p2p_mismatch(x, y->bytes);
		return;
	}
	if (device_p2p_direct(x, y) || !p2p_fetched(x)) {
		return;
	}
	n = MIN(x->bytes - x->cursor, OP_SLICE);
	if (n) {
		memmove(p2p_place(y) + x->cursor, p2p_place(x) + x->cursor, n);
		COMM_COUNT(c, bytes_local, n);
		x->cursor += n;
	}
	c->progress->rescan = true;
	if (x->cursor == x->bytes) {
		p2p_finish(x, STATUS_OK);
		p2p_received(y);
	}
}

/* ---- posting and progress ----------------------------------------------------------------- */

/* Memory free and, for receives, its turn among those from the same rank. */
static void p2p_try_start(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	struct engine_rank *rank = &c->ranks[x->local];

	if (x->kind == COLL_RECV && rank->p2p->opened[x->peer] != x->seq) {
		return;
	}
	/* A send and a receive of one rank to itself may name the same memory: nothing to wait for.
	 */
	if (post_conflicts(rank, &x->post)) {
		return;
	}
	if (x->kind == COLL_RECV && device_p2p(x) && !device_p2p_stage(x)) {
		return;
	}
	x->started = true;
	x->since = c->progress->now;
	if (x->kind == COLL_RECV) {
		rank->p2p->opened[x->peer]++;
		if (host_of(c, x->peer) != c->params.host) {
			send_grant(x);
		}
	}
}

static void p2p_step(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	bool local = host_of(c, x->peer) == c->params.host;

	if (!x->started) {
		p2p_try_start(x);
	}
	if (!x->started || x->state != P2P_WAITING) {
		return;
	}
	if (x->kind == COLL_SEND && local) {
		local_copy(x);
	} else if (x->kind == COLL_SEND) {
		send_payload(x);
	} else if (!local) {
		take_early(x);
	}
}

/* Receives are looked at before sends: a local send then finds its partner started. */
void p2p_advance(struct engine_comm *c)
{
	if (c->p2p_advancing) {
		c->progress->rescan = true;
		return;
	}
	c->p2p_advancing = true;
	for (int kind = COLL_RECV; kind >= COLL_SEND && !c->failed; kind--) {
		list_for_each (e, &c->p2p_active) {
			struct p2p *x = container_of(e, struct p2p, link);

			if (c->failed) {
				break;
			}
			if (x->kind == kind && x->state == P2P_WAITING) {
				p2p_step(x);
			}
		}
	}
	c->p2p_advancing = false;
	p2p_sweep(c);
}

static void p2p_invalid(struct engine_comm *c, uint32_t local, const char *reason)
{
	struct engine_failure f = {
		.cause = ENGINE_FAIL_INVALID,
		.status = STATUS_INVALID,
		.rank_a = (int32_t)c->ranks[local].rank,
		.rank_b = -1,
		.host_b = -1,
		.reason = reason,
	};

	comm_fail_event(c, &f);
}

void p2p_post(struct engine_comm *c, uint32_t local, const struct shm_desc *d)
{
	struct engine_rank *rank = &c->ranks[local];
	bool is_send = d->kind == COLL_SEND;
	uint32_t *seq = is_send ? &rank->p2p->sends[d->root] : &rank->p2p->recvs[d->root];
	struct engine_session *s = rank->session;
	uint8_t *ptr = NULL;
	struct engine_region *region = NULL;
	const char *why = NULL;
	uint64_t bytes;
	struct p2p *x;

	if (__builtin_mul_overflow(d->count, (uint64_t)dtype_size(d->dtype), &bytes) ||
	    !client_ring_resolve(s, is_send ? d->send_buf : d->recv_buf,
				 is_send ? d->send_off : d->recv_off, bytes, &ptr, &region)) {
		why = "its buffer is not inside memory that it registered";
	} else if ((uint32_t)d->seq != *seq) {
		why = "its sequence number is not the next one";
	} else if (device_too_large(region, bytes)) {
		why = "its buffer on a GPU is larger than the staging memory: raise gpu_staging, "
		      "or "
		      "send it in parts";
	} else if (rank->p2p->in_flight == COMM_P2PS) {
		why = "it has more sends and receives in flight than the window holds";
	}
	if (why) {
		engine_region_release(region);
		p2p_invalid(c, local, why);
		client_ring_complete(s, c->params.view, d->ticket, d->generation, c->failed, 0);
		return;
	}
	x = p2p_take(c);
	x->comm = c;
	x->local = local;
	x->peer = d->root;
	x->seq = (*seq)++;
	x->kind = d->kind;
	x->dtype = d->dtype;
	x->bytes = bytes;
	x->post.ticket = d->ticket;
	x->post.generation = d->generation;
	x->post.posted = true;
	if (is_send) {
		x->post.in = ptr;
		x->post.in_len = bytes;
		x->post.in_region = region;
	} else {
		x->post.out = ptr;
		x->post.out_len = bytes;
		x->post.out_region = region;
	}
	rank->p2p->in_flight++;
	list_append(&rank->posts, &x->post.link);
	list_append(&c->p2p_active, &x->link);
	c->progress->busy++;
	p2p_advance(c);
}

/*
 * Only what has started and waits for the other side counts: what waits for an earlier operation of
 * its own rank has that one's clock.
 */
const struct p2p *p2p_overdue(struct engine_comm *c, uint64_t limit)
{
	list_for_each (e, &c->p2p_active) {
		const struct p2p *x = container_of(e, struct p2p, link);

		if (x->state == P2P_WAITING && x->started && x->since < limit) {
			return x;
		}
	}
	return NULL;
}

/* ---- failure ------------------------------------------------------------------------------ */

void p2p_fail(struct engine_comm *c, enum status status)
{
	list_for_each_safe (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->state == P2P_OVER) {
			continue;
		}
		if (x->state == P2P_WAITING) {
			p2p_finish(x, status);
			continue;
		}
		if (x->copying) {
			continue; /* p2p_copied() comes */
		}
		/*
		 * The transport has it, but writes to it no longer: the client is told now, the
		 * memory is kept until the transport lets go. A device may write for some time
		 * yet: then the client is told when it is through.
		 */
		if (x->kind == COLL_RECV &&
		    !conn_drop(c->params.peers[host_of(c, x->peer)], &x->recv)) {
			continue;
		}
		post_complete(c, x->local, &x->post, status, 0);
		c->progress->busy--;
	}
}

void p2p_abandon(struct engine_comm *c, struct engine_peer *peer)
{
	list_for_each_safe (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->state == P2P_HELD && !x->copying && x->kind == COLL_RECV &&
		    c->params.peers[host_of(c, x->peer)] == peer) {
			p2p_finish(x, c->failed);
		}
	}
}
