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
 * The object stays while its grant or a part is on its way, and while p2p_advance() walks over the
 * list: a step may end two operations, one of which is the next to be looked at.
 */
static void p2p_put_over(struct p2p *x)
{
	if (!x->note_busy && !x->held && !x->comm->p2p_advancing) {
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

void p2p_finish(struct p2p *x, enum status status)
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

/*
 * Of a send the transport still reads: its memory is kept until that is over. What copy engines and
 * some network devices write they may write for some time yet.
 */
void p2p_settle(struct p2p *x)
{
	bool receives = x->kind == COLL_RECV;

	for (uint32_t i = 0; i < P2P_PLACES && x->state != P2P_OVER; i++) {
		const struct p2p_part *part = &x->parts[i];

		if (part->state == PART_COPYING ||
		    (part->state == PART_MOVING && receives && !part->dropped)) {
			return;
		}
	}
	if (x->state != P2P_DIRECT) {
		p2p_finish(x, x->comm->failed ? x->comm->failed : x->error);
	}
}

void p2p_mismatch(struct p2p *x, uint64_t theirs)
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

void p2p_moved(struct p2p *x, bool ok)
{
	struct progress *p = x->comm->progress;
	enum status status = x->comm->failed;
	struct p2p *y = x->partner;

	x->partner = NULL;
	x->held--;
	y->held--;
	x->state = y->state = P2P_WAITING;
	x->indirect = !ok;
	if (status != STATUS_OK || ok) {
		p2p_finish(x, status);
		p2p_finish(y, status); /* the communicator may be gone by now */
	}
	p->rescan = true;
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

/* Of the part whose turn it is, if both have it in memory of the host. */
static void local_slice(struct p2p *x, struct p2p *y)
{
	uint32_t index = (uint32_t)(x->cursor / WIRE_P2P_PART);
	uint64_t off = x->cursor % WIRE_P2P_PART;
	struct p2p_part *from = p2p_part(x, index), *to = p2p_part(y, index);
	uint64_t n;

	if (x->next <= index || from->state != PART_READY || y->next <= index ||
	    to->state != PART_OPEN) {
		return;
	}
	n = MIN(p2p_part_size(x, index) - off, OP_SLICE);
	if (n) {
		memmove(p2p_part_place(to) + off, p2p_part_place(from) + off, n);
		COMM_COUNT(x->comm, bytes_local, n);
		x->cursor += n;
	}
	x->comm->progress->rescan = true;
	if (off + n == p2p_part_size(x, index)) {
		from->state = PART_FREE;
		p2p_part_done(x);
		p2p_part_here(to);
	}
}

/* Copies a slice; large ones take several turns of the loop. */
static void local_copy(struct p2p *x)
{
	struct p2p *y = local_partner(x);

	if (!y) {
		return;
	}
	if (x->bytes != y->bytes || x->dtype != y->dtype) {
		p2p_mismatch(x, y->bytes);
		return;
	}
	if (x->next == 0 && device_p2p_direct(x, y)) {
		return;
	}
	x->begun = y->begun = true;
	p2p_prepare(x, x->nparts);
	p2p_open(y);
	local_slice(x, y);
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
	if (x->kind == COLL_RECV) {
		p2p_open(x);
		if (x->next == 0) {
			return;
		}
		rank->p2p->opened[x->peer]++;
	}
	x->started = true;
	x->since = c->progress->now;
}

static void p2p_step(struct p2p *x)
{
	struct engine_comm *c = x->comm;
	bool local = p2p_host(x) == c->params.host;

	if (!x->started) {
		p2p_try_start(x);
	}
	if (!x->started || x->state != P2P_WAITING || x->error) {
		return;
	}
	if (x->kind == COLL_SEND && local) {
		local_copy(x);
	} else if (x->kind == COLL_SEND) {
		p2p_send(x);
	} else if (!local) {
		p2p_receive(x);
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
	x->part = WIRE_P2P_PART;
	x->nparts = MAX((uint32_t)DIV_UP(bytes, WIRE_P2P_PART), 1);
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

		if (x->state == P2P_WAITING && x->started && !x->begun && !x->held &&
		    x->since < limit) {
			return x;
		}
	}
	return NULL;
}

/* ---- failure ------------------------------------------------------------------------------ */

void p2p_fail(struct engine_comm *c)
{
	list_for_each_safe (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->state == P2P_OVER) {
			continue;
		}
		for (uint32_t i = 0; i < P2P_PLACES && x->kind == COLL_RECV; i++) {
			struct p2p_part *part = &x->parts[i];

			if (part->state == PART_MOVING) {
				part->dropped =
					conn_drop(c->params.peers[p2p_host(x)], &part->recv);
			}
		}
		p2p_settle(x); /* else it is told when the last writer is through */
	}
}

void p2p_abandon(struct engine_comm *c, struct engine_peer *peer)
{
	list_for_each_safe (e, &c->p2p_active) {
		struct p2p *x = container_of(e, struct p2p, link);

		if (x->kind != COLL_RECV || c->params.peers[p2p_host(x)] != peer) {
			continue;
		}
		for (uint32_t i = 0; i < P2P_PLACES; i++) {
			if (x->parts[i].state == PART_MOVING) {
				x->parts[i].state = PART_FREE;
				x->held--;
			}
		}
		p2p_settle(x);
	}
}
