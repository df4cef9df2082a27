/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: writing granted fragments
 *
 * Messages take turns, fragment by fragment. A queue pair takes the next one when it has less than
 * bulk_depth under way, so each rail gets as much as it delivers. Towards the end of what there is
 * to write, a slow rail is left out when the fast ones would be through before it.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <arpa/inet.h>
#include <string.h>

#include "transport/verbs/verbs_impl.h"

#define RATE_PERIOD_NS (200 * CLOCK_NS_PER_US)
#define LATE 1.25 /* how much later than all together a rail may be through */

static uint32_t in_flight(const struct verbs_qp *qp)
{
	return qp->sq_tail - qp->sq_head;
}

/*
 * The bulk queue pair that has carried the least so far; NULL: all have enough to do. Equal ones so
 * carry the same, and one that is slower has room less often.
 */
static struct verbs_qp *pick_qp(struct verbs_rail *rail)
{
	const struct verbs_peer *peer = rail->peer;
	/* After losses one at a time: what overtakes, or is behind what was lost, is sent again. */
	uint32_t depth = peer->grant_size < peer->fragment ? 1 : peer->v->options.bulk_depth;
	uint32_t n = rail->nqps - 1;
	struct verbs_qp *best = NULL;

	for (uint32_t i = 0; i < n; i++) {
		struct verbs_qp *qp = rail->qps[1 + i];

		if (in_flight(qp) < depth && (!best || qp->posted < best->posted)) {
			best = qp;
		}
	}
	return best;
}

/* When the rail would be through with this too, in ns; unknown rates count as endless. */
static double through(const struct verbs_rail *rail, uint32_t size)
{
	return rail->rate > 0 ? ((double)rail->inflight + size) / rail->rate : 0;
}

static double all_through(const struct verbs_peer *peer)
{
	double rate = 0, bytes = (double)peer->backlog;

	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		if (peer->up & 1u << i) {
			rate += peer->rails[i]->rate;
			bytes += (double)peer->rails[i]->inflight;
		}
	}
	return rate > 0 ? bytes / rate : 0;
}

static struct verbs_qp *pick(struct verbs_peer *peer, const struct verbs_fragment *f)
{
	uint32_t rails = peer->up & f->grant.rails;
	struct verbs_qp *best = NULL;
	double first = -1, limit;

	if ((rails & (rails - 1)) == 0) {
		return rails ? pick_qp(peer->rails[__builtin_ctz(rails)]) : NULL;
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		double t = rails & 1u << i ? through(peer->rails[i], f->grant.size) : -1;

		first = t >= 0 && (first < 0 || t < first) ? t : first;
	}
	limit = MAX(first, LATE * all_through(peer));
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_qp *qp;
		double t;

		if (!(rails & 1u << i)) {
			continue;
		}
		t = through(peer->rails[i], f->grant.size);
		qp = t <= limit ? pick_qp(peer->rails[i]) : NULL;
		if (qp && (!best || t < through(best->rail, f->grant.size))) {
			best = qp;
		}
	}
	return best;
}

/* Describes the memory of the fragment. Return: false when it is not all registered there. */
static bool map(const struct verbs *v, struct verbs_tx *tx, const struct verbs_fragment *f,
		const struct rdma_device *d, struct ibv_sge *sges, int *ret_n)
{
	const struct iovec *iov = tx->send->iov;
	uint64_t offset = f->grant.offset, left = f->grant.size;
	int max = MIN(VERBS_SGE, MAX(d->attr.max_sge, 1)), n = 0;

	if (offset < tx->piece_at) {
		tx->piece = 0;
		tx->piece_at = 0;
	}
	while (offset - tx->piece_at >= iov[tx->piece].iov_len) {
		tx->piece_at += iov[tx->piece++].iov_len;
	}
	offset -= tx->piece_at;
	for (uint32_t i = tx->piece; left > 0; i++, offset = 0) {
		uint8_t *at = (uint8_t *)iov[i].iov_base + offset;
		uint64_t size = MIN(left, iov[i].iov_len - offset);
		const struct rdma_mem *m;

		if (size == 0) {
			continue;
		}
		m = n < max ? verbs_mem_find(v, at, size) : NULL;
		if (!m || !m->mr[d->index]) {
			return false;
		}
		sges[n++] = (struct ibv_sge){(uintptr_t)at, (uint32_t)size, m->mr[d->index]->lkey};
		left -= size;
	}
	*ret_n = n;
	return true;
}

/* Copies the fragment into a chunk. Return: NULL when there is none now. */
static uint8_t *stage(struct verbs *v, struct verbs_fragment *f)
{
	struct transport_send *send = f->tx->send;
	uint8_t *data;

	f->chunk = verbs_chunk_get(v, false);
	if (f->chunk < 0) {
		return NULL;
	}
	data = verbs_chunk_data(v, f->chunk);
	verbs_iov_gather(data, send->iov, send->niov, f->grant.offset, f->grant.size);
	v->stats.bytes_copied += f->grant.size;
	if (send->account) {
		counter_add(&send->account->bytes_copied, f->grant.size);
	}
	return data;
}

static bool post(struct verbs_qp *qp, struct verbs_fragment *f)
{
	struct verbs_rail *rail = qp->rail;
	const struct rdma_device *d = rail->dev->device;
	struct verbs *v = rail->peer->v;
	struct ibv_sge sges[VERBS_SGE];
	struct ibv_send_wr *wr;
	int n = 1;

	if (!map(v, f->tx, f, d, sges, &n)) {
		uint8_t *data;

		if (f->grant.size > v->options.fragment) {
			/* A rail that came later, on a device that does not know the memory. */
			f->grant.rails &= ~(1u << rail->index);
			return false;
		}
		data = stage(v, f);
		if (!data) {
			return false;
		}
		*sges = (struct ibv_sge){(uintptr_t)data, f->grant.size,
					 v->buffers->mr[d->index]->lkey};
	}
	wr = verbs_qp_push(qp, VERBS_ENTRY_WRITE, f, true);
	memcpy(wr->sg_list, sges, (size_t)n * sizeof(*sges));
	wr->num_sge = n;
	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->imm_data = htonl(f->grant.ticket);
	wr->wr.rdma.remote_addr = f->grant.addr;
	wr->wr.rdma.rkey = f->grant.key[rail->index];
	if (rail->inflight == 0) {
		rail->rate_since = v->now;
		rail->rate_bytes = 0;
	}
	rail->inflight += f->grant.size;
	rail->bytes_sent += f->grant.size;
	qp->posted += f->grant.size;
	v->stats.writes_sent++;
	v->stats.bytes_sent += f->grant.size;
	if (f->tx->send->account) {
		counter_add(&f->tx->send->account->bytes_wire_sent, f->grant.size);
		counter_add(&f->tx->send->account->bytes_rdma_sent, f->grant.size);
	}
	return true;
}

/* Can any rail that exists, or may come back, write it? */
static bool possible(const struct verbs_peer *peer, const struct verbs_fragment *f)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct verbs_rail *rail = peer->rails[i];

		if (rail && f->grant.rails & 1u << i &&
		    (rail->state != VERBS_RAIL_DOWN || !rail->dev->lost)) {
			return true;
		}
	}
	return false;
}

/* Hands it to the other transport. Return: false: not now. */
static bool post_outside(struct verbs_peer *peer, struct verbs_fragment *f)
{
	struct transport_send *send = f->tx->send;
	struct verbs *v = peer->v;
	uint8_t *data;

	/* What is too long for a chunk is of one piece: see verbs_tx.large. */
	data = send->niov == 1 ? (uint8_t *)send->iov[0].iov_base + f->grant.offset : stage(v, f);
	if (!data) {
		return false;
	}
	if (!v->handler.write(v->arg, peer, f->grant.ticket, data, f->grant.size, f)) {
		verbs_fragment_unstage(peer, f);
		return false;
	}
	v->stats.outside_writes++;
	if (send->account) {
		counter_add(&send->account->bytes_wire_sent, WIRE_SIZE + f->grant.size);
	}
	return true;
}

/* Posts a fragment on whatever can carry it. Return: false: not now, or never. */
static bool post_any(struct verbs_peer *peer, struct verbs_fragment *f)
{
	struct verbs_qp *qp = pick(peer, f);
	bool outside = verbs_has_outside(peer->v) && !(peer->up & f->grant.rails);

	if (!qp && !outside) {
		if (peer->up && !possible(peer, f)) {
			verbs_peer_fail(peer, -ENETDOWN,
					"the rails that a message was begun on are down");
		}
		return false;
	}
	if (qp ? post(qp, f) : post_outside(peer, f)) {
		return true;
	}
	/* Chunks come free with completions of any peer. */
	verbs_peer_dirty(peer);
	return false;
}

void verbs_write_pump(struct verbs_peer *peer)
{
	struct list *l;

	while (peer->state == VERBS_PEER_OPEN && (peer->up || verbs_has_outside(peer->v)) &&
	       (l = list_first(&peer->active))) {
		struct verbs_tx *tx = container_of(l, struct verbs_tx, link);
		struct verbs_fragment *f =
			container_of(list_first(&tx->unposted), struct verbs_fragment, link);
		uint32_t size = f->grant.size;

		/* Another transport may be through with it at once, and with the message, too. */
		list_remove(&f->link);
		list_remove(&tx->link);
		if (!post_any(peer, f)) {
			list_prepend(&tx->unposted, &f->link);
			list_prepend(&peer->active, &tx->link);
			return;
		}
		peer->backlog -= size;
		if (!list_empty(&tx->unposted)) {
			list_append(&peer->active, &tx->link);
		}
	}
}

void verbs_fragment_unstage(struct verbs_peer *peer, struct verbs_fragment *f)
{
	if (f->chunk >= 0) {
		verbs_chunk_put(peer->v, f->chunk, false);
		f->chunk = -1;
	}
}

static void measure(struct verbs_rail *rail, uint32_t size)
{
	uint64_t now = rail->peer->v->now, elapsed = clock_elapsed(now, rail->rate_since);
	double sample;

	rail->rate_bytes += size;
	if (elapsed < RATE_PERIOD_NS && (rail->inflight > 0 || elapsed == 0)) {
		return;
	}
	sample = (double)rail->rate_bytes / (double)elapsed;
	rail->rate = rail->rate > 0 ? 0.75 * rail->rate + 0.25 * sample : sample;
	rail->rate_bytes = 0;
	rail->rate_since = now;
}

void verbs_fragment_acked(struct verbs_peer *peer, struct verbs_fragment *f)
{
	struct verbs_tx *tx = f->tx;
	struct transport_send *send = tx->send;

	verbs_fragment_unstage(peer, f);
	peer->moved++;
	tx->acked += f->grant.size;
	list_remove(&f->link);
	list_append(&peer->free_fragments, &f->link);
	if (tx->acked < send->length) {
		return;
	}
	tx->send = NULL;
	peer->ntx--;
	list_remove(&tx->link);
	list_append(&peer->free_tx, &tx->link);
	send->done(send, 0);
}

/* The device says that the peer has it. */
void verbs_write_done(struct verbs_rail *rail, struct verbs_fragment *f)
{
	rail->inflight -= f->grant.size;
	measure(rail, f->grant.size);
	verbs_fragment_acked(rail->peer, f);
}

/* The other transport has taken the bytes. */
void verbs_outside_sent(struct verbs_peer *peer, struct verbs_fragment *fragment, int status)
{
	struct verbs *v = peer->v;

	if (status < 0 || peer->state != VERBS_PEER_OPEN) {
		return; /* the end of the peer takes care of it */
	}
	verbs_enter(v);
	peer->progress = v->now;
	verbs_fragment_acked(peer, fragment);
	verbs_peer_dirty(peer);
	verbs_leave(v);
}
