/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: peers
 *
 * Thread: the progress thread that owns the context      Owns: peers      Locks: none
 */
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs_impl.h"

/* Ends all work, then completes the sends; calls out. */
static void peer_close(struct verbs_peer *peer, int status)
{
	struct list *l;

	peer->state = VERBS_PEER_DEAD;
	peer->up = 0;
	list_remove(&peer->dirty);
	list_remove(&peer->failed);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_rail *rail = peer->rails[i];

		for (uint32_t k = 0; rail && k < VERBS_QPS_MAX; k++) {
			if (rail->qps[k]) {
				verbs_qp_close(rail->qps[k]);
				verbs_resume_entries(rail->qps[k]);
			}
		}
		if (rail) {
			rail->state = VERBS_RAIL_DOWN;
		}
	}
	while ((l = list_first(&peer->ready))) {
		verbs_frame_put(peer->v, container_of(l, struct verbs_frame, link));
	}
	verbs_recv_cancel(peer);
	verbs_send_cancel(peer, status);
}

void verbs_peer_destroy(struct verbs_peer *peer)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		verbs_rail_free(peer->rails[i]);
	}
	free(peer->tx);
	free(peer->rx);
	free(peer->fragments);
	free(peer->tickets);
	free(peer);
}

void verbs_peer_fail(struct verbs_peer *peer, int error, const char *reason)
{
	if (peer->state != VERBS_PEER_OPEN) {
		return;
	}
	peer->state = VERBS_PEER_FAILED;
	peer->up = 0;
	peer->error = error;
	snprintf(peer->reason, sizeof(peer->reason), "%s", reason);
	list_append(&peer->v->failed, &peer->failed);
}

void verbs_peer_violation(struct verbs_peer *peer, const char *what)
{
	char text[VERBS_REASON];

	snprintf(text, sizeof(text), "%s broke the protocol: %s", peer->name, what);
	verbs_peer_fail(peer, -EPROTO, text);
}

void verbs_peer_dirty(struct verbs_peer *peer)
{
	if (list_empty(&peer->dirty) && peer->state == VERBS_PEER_OPEN) {
		list_append(&peer->v->dirty, &peer->dirty);
	}
}

void verbs_tell_failed(struct verbs *v)
{
	struct list *l;

	while ((l = list_first(&v->failed))) {
		struct verbs_peer *peer = container_of(l, struct verbs_peer, failed);

		list_remove(&peer->failed);
		/* First, for another transport may still be writing to what this lets go. */
		v->handler.peer_down(v->arg, peer, peer->error, peer->reason);
		if (peer->state != VERBS_PEER_DEAD) {
			peer_close(peer, peer->error);
		}
	}
}

static int make_tables(struct verbs_peer *peer)
{
	uint32_t n = peer->v->options.tickets;

	peer->tx = calloc(VERBS_TX_MAX, sizeof(*peer->tx));
	peer->rx = calloc(VERBS_TX_MAX, sizeof(*peer->rx));
	peer->tickets = calloc(n, sizeof(*peer->tickets));
	if (!peer->tx || !peer->rx || !peer->tickets) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < VERBS_TX_MAX; i++) {
		peer->tx[i].handle = i;
		list_init(&peer->tx[i].unposted);
		list_append(&peer->free_tx, &peer->tx[i].link);
		list_append(&peer->free_rx, &peer->rx[i].link);
	}
	for (uint32_t i = 0; i < n; i++) {
		peer->tickets[i].ticket = i;
		peer->tickets[i].next = (uint16_t)(i + 1 < n ? i + 2 : 0);
	}
	peer->free_ticket = 1;
	return 0;
}

/**
 * verbs_peer_new() - make a peer without rails
 * @v:         borrowed by the peer
 * @user:      for verbs_peer_user()
 * @name:      of the host, for texts; copied
 * @initiator: one end of each pair is
 * @ret:       new peer, set on success only
 *
 * Return: 0, or -ENOMEM.
 */
int verbs_peer_new(struct verbs *v, void *user, const char *name, bool initiator,
		   struct verbs_peer **ret)
{
	struct verbs_peer *peer = calloc(1, sizeof(*peer));

	if (!peer) {
		return err_origin(-ENOMEM);
	}
	peer->v = v;
	peer->user = user;
	peer->initiator = initiator;
	peer->tx_seq = 1;
	peer->rx_low = 1;
	peer->progress = v->now;
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	list_init(&peer->dirty);
	list_init(&peer->failed);
	list_init(&peer->ready);
	list_init(&peer->eager);
	list_init(&peer->waiting);
	list_init(&peer->free_tx);
	list_init(&peer->active);
	list_init(&peer->free_fragments);
	list_init(&peer->free_rx);
	list_init(&peer->wanting);
	if (make_tables(peer) < 0) {
		verbs_peer_destroy(peer);
		return err_origin(-ENOMEM);
	}
	list_append(&v->peers, &peer->link);
	v->npeers++;
	*ret = peer;
	return 0;
}

void *verbs_peer_user(const struct verbs_peer *peer)
{
	return peer->user;
}

bool verbs_peer_ready(const struct verbs_peer *peer)
{
	return peer->up != 0;
}

/**
 * verbs_peer_free() - close a peer
 * @peer: consumed; NULL allowed; also from inside any callback
 *
 * Return: NULL
 */
struct verbs_peer *verbs_peer_free(struct verbs_peer *peer)
{
	struct verbs *v;

	if (!peer) {
		return NULL;
	}
	assert(!peer->freed);
	v = peer->v;
	verbs_enter(v);
	peer->freed = true;
	list_remove(&peer->link);
	v->npeers--;
	list_append(&v->garbage, &peer->link);
	if (peer->state != VERBS_PEER_DEAD) {
		peer_close(peer, -ECANCELED);
	}
	verbs_leave(v);
	return NULL;
}

int verbs_peer_prepare(struct verbs_peer *peer, const struct verbs_blob *b)
{
	const struct verbs_options *o = &peer->v->options;
	uint32_t body = MIN(o->eager + WIRE_SIZE, b->frame);
	uint32_t fragment = MIN(o->fragment, b->fragment);
	/* A ticket may come again before our own completion of its last use was seen. */
	uint32_t n = b->tickets + VERBS_RAILS_MAX * o->bulk_qps * o->bulk_depth;

	if (peer->fragments) {
		return body == peer->body_max && fragment == peer->fragment && n == peer->nfragments
			       ? 0
			       : -EPROTO;
	}
	peer->fragments = calloc(n, sizeof(*peer->fragments));
	if (!peer->fragments) {
		return err_origin(-ENOMEM);
	}
	peer->nfragments = n;
	for (uint32_t i = 0; i < peer->nfragments; i++) {
		peer->fragments[i].chunk = -1;
		list_append(&peer->free_fragments, &peer->fragments[i].link);
	}
	peer->body_max = body;
	peer->fragment = peer->grant_size = fragment;
	return 0;
}

/**
 * verbs_rail_open() - first half of a rail: our queue pairs
 * @peer:   borrowed
 * @index:  of the rail, the same on both ends
 * @params: borrowed for the call
 * @ret:    for the other end, set on success only
 * @why:    a sentence when it fails
 * @size:   of why
 *
 * Return: 0, or negative errno.
 */
int verbs_rail_open(struct verbs_peer *peer, uint32_t index, const struct verbs_rail_params *params,
		    struct verbs_blob *ret, char *why, size_t size)
{
	struct verbs *v = peer->v;
	struct verbs_dev *dev = &v->devs[params->device->index];
	struct verbs_rail *rail;
	int r;

	if (index >= VERBS_RAILS_MAX || peer->rails[index] || peer->state != VERBS_PEER_OPEN ||
	    !dev->device || dev->lost) {
		snprintf(why, size, "rail %u of %s cannot be opened: %s", index, peer->name,
			 index >= VERBS_RAILS_MAX	  ? "there are not so many"
			 : peer->rails[index]		  ? "it is there already"
			 : peer->state != VERBS_PEER_OPEN ? "the peer is lost"
							  : "its device is not in use");
		return -EINVAL;
	}
	rail = calloc(1, sizeof(*rail));
	if (!rail) {
		snprintf(why, size, "out of memory");
		return err_origin(-ENOMEM);
	}
	verbs_enter(v);
	rail->peer = peer;
	rail->dev = dev;
	rail->index = index;
	rail->port = params->port;
	rail->gid = params->gid;
	rail->gid_index = params->gid_index;
	rail->epoch = 1;
	list_init(&rail->unsure);
	list_init(&rail->asked);
	r = verbs_rail_prepare(rail, why, size);
	verbs_leave(v);
	if (r < 0) {
		verbs_rail_free(rail);
		return r;
	}
	rail->state = VERBS_RAIL_INIT;
	rail->deadline = v->now + 2 * v->options.probe_ms * CLOCK_NS_PER_MS;
	peer->rails[index] = rail;
	peer->nrails++;
	*ret = rail->local;
	return 0;
}

/**
 * verbs_rail_connect() - second half of a rail: the other end's queue pairs
 * @peer:   borrowed
 * @index:  of a rail that was opened
 * @remote: borrowed; from the network
 * @why:    a sentence when it fails
 * @size:   of why
 *
 * When it fails the rail is DOWN, and the peer too if it has no other.
 *
 * Return: 0, -EPROTO when the blob makes no sense, or negative errno.
 */
int verbs_rail_connect(struct verbs_peer *peer, uint32_t index, const struct verbs_blob *remote,
		       char *why, size_t size)
{
	struct verbs_rail *rail = index < VERBS_RAILS_MAX ? peer->rails[index] : NULL;
	struct verbs *v = peer->v;
	int r;

	if (!rail || rail->remote.magic || peer->state != VERBS_PEER_OPEN) {
		snprintf(why, size, "rail %u of %s was not opened", index, peer->name);
		return -EINVAL;
	}
	verbs_enter(v);
	r = verbs_rail_check_blob(rail, remote, why, size);
	if (r == 0) {
		rail->remote = *remote;
		r = rail->state == VERBS_RAIL_INIT ? verbs_rail_start(rail, why, size)
						   : verbs_rail_left(rail, why, size);
	}
	if (r < 0) {
		verbs_rail_fail(rail, r, "%s", why);
	}
	verbs_leave(v);
	return r;
}

/**
 * verbs_rail_drop() - forget a rail that the other end does not want
 * @peer:  borrowed
 * @index: of a rail that was opened and never connected; of any other nothing happens
 */
void verbs_rail_drop(struct verbs_peer *peer, uint32_t index)
{
	struct verbs_rail *rail = index < VERBS_RAILS_MAX ? peer->rails[index] : NULL;

	if (rail && !rail->remote.magic) {
		peer->rails[index] = verbs_rail_free(rail);
		peer->nrails--;
	}
}

/**
 * verbs_rail_move() - use another port or GID of ours from the rail's next life on
 * @peer:   borrowed
 * @index:  of a rail that was opened
 * @params: borrowed for the call
 * @why:    a sentence when it fails
 * @size:   of why
 *
 * Return: 0, or -EINVAL.
 */
int verbs_rail_move(struct verbs_peer *peer, uint32_t index, const struct verbs_rail_params *params,
		    char *why, size_t size)
{
	struct verbs_rail *rail = index < VERBS_RAILS_MAX ? peer->rails[index] : NULL;
	const struct verbs_dev *dev = &peer->v->devs[params->device->index];

	if (!rail || peer->state != VERBS_PEER_OPEN || !dev->device || dev->lost) {
		snprintf(why, size, "rail %u of %s cannot be moved", index, peer->name);
		return -EINVAL;
	}
	verbs_enter(peer->v);
	if (rail->dev != dev || rail->port != params->port ||
	    memcmp(&rail->gid, &params->gid, sizeof(rail->gid)) != 0) {
		rail->next = *params;
		rail->moving = true;
		rail->reopen_at = peer->v->now;
		verbs_rail_fail(rail, -EADDRNOTAVAIL, "its address has changed");
		verbs_peer_dirty(peer);
	}
	verbs_leave(peer->v);
	return 0;
}

void verbs_rail_info(const struct verbs_peer *peer, uint32_t index, struct verbs_rail_info *ret)
{
	const struct verbs_rail *rail = index < VERBS_RAILS_MAX ? peer->rails[index] : NULL;

	memset(ret, 0, sizeof(*ret));
	if (!rail) {
		return;
	}
	ret->state = rail->state;
	ret->device = rail->dev->device->name;
	ret->port = rail->port;
	ret->local = rail->gid;
	ret->gid_index = rail->gid_index;
	ret->mtu = rail->mtu;
	ret->local_mtu = rail->local.mtu;
	ret->remote_mtu = rail->remote.mtu;
	ret->traffic_class = rail->local.traffic_class;
	ret->remote_traffic_class = rail->remote.traffic_class;
	memcpy(ret->remote.raw, rail->remote.gid, sizeof(ret->remote.raw));
	ret->nqps = rail->nqps;
	for (uint32_t i = 0; i < rail->nqps; i++) {
		ret->udp_ports[i] = ibv_flow_label_to_udp_sport(verbs_qp_flow_label(rail, i));
	}
	ret->bytes_sent = rail->bytes_sent;
	ret->bytes_received = rail->bytes_received;
	ret->work_requests = rail->work_requests;
	ret->completions = rail->completions;
	ret->failures = rail->failures;
	ret->bytes_per_second = (uint64_t)(rail->rate * 1e9);
	memcpy(ret->reason, rail->reason, sizeof(ret->reason));
}

/*
 * What completions made possible. Receives first: a fragment is granted, and a credit given, only
 * when its receive is posted.
 */
void verbs_peer_work(struct verbs_peer *peer)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		struct verbs_rail *rail = peer->rails[i];
		bool live =
			rail && (rail->state == VERBS_RAIL_UP || rail->state == VERBS_RAIL_PROBING);

		for (uint32_t k = 0; live && k < rail->nqps; k++) {
			if (rail->qps[k]) {
				verbs_qp_refill(rail->qps[k]);
			}
		}
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX && peer->state == VERBS_PEER_OPEN; i++) {
		if (peer->rails[i]) {
			verbs_rail_work(peer->rails[i]);
		}
	}
	if (peer->state == VERBS_PEER_OPEN) {
		verbs_send_pump(peer);
	}
	if (peer->state == VERBS_PEER_OPEN) {
		verbs_recv_pump(peer);
		verbs_write_pump(peer);
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX && peer->state == VERBS_PEER_OPEN; i++) {
		if (peer->rails[i]) {
			verbs_credits_return(peer->rails[i]);
		}
	}
}
