/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: the life of a rail
 *
 *   INIT -> PROBING -> UP -> DRAINING -> DOWN -> (OPENING) -> PROBING ...
 *
 * Either end may leave a rail. It moves its queue pairs to the error state, tells the other (DOWN),
 * takes what had still arrived, destroys them and says so (DRAINED). When both ends are that far
 * nothing can arrive late, and what was under way is settled (resume.c). The initiator then offers
 * new queue pairs from time to time. An epoch is one life of a rail's queue pairs; only the
 * initiator begins one.
 *
 * Thread: the progress thread that owns the context      Owns: rails      Locks: none
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/verbs/verbs_impl.h"

#define STABLE_NS (10 * CLOCK_NS_PER_S) /* up for so long: the next failure is a new one */
#define DOWN_TEXT 220			/* bytes of a reason that the other end is told */
#define HURRY_MS 50
#define FRUITLESS_MAX 4 /* times that rails come back only to fail again */
#define GRANT_MIN 4096u

void verbs_rail_describe(const struct verbs_rail *rail, char *buf, size_t size)
{
	char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
	union ibv_gid remote;

	rdma_gid_text(&rail->gid, from);
	if (!rail->remote.magic) {
		snprintf(buf, size, "rail %u (%s port %u, GID %s, to %s)", rail->index,
			 rail->dev->device->name, rail->port, from, rail->peer->name);
		return;
	}
	memcpy(remote.raw, rail->remote.gid, sizeof(remote.raw));
	rdma_gid_text(&remote, to);
	snprintf(buf, size, "rail %u (%s port %u, GID %s, to %s port %u, GID %s, of %s)",
		 rail->index, rail->dev->device->name, rail->port, from, rail->remote.device,
		 rail->remote.port, to, rail->peer->name);
}

static bool is_live(const struct verbs_rail *rail)
{
	return rail->state == VERBS_RAIL_INIT || rail->state == VERBS_RAIL_PROBING ||
	       rail->state == VERBS_RAIL_UP || rail->state == VERBS_RAIL_OPENING;
}

/* Is there a rail left that may carry something, now or soon? */
static bool any_left(const struct verbs_peer *peer)
{
	/* Reopening one needs another, or another way to talk. */
	bool reopen = peer->was_up && peer->v->handler.control;

	if (verbs_has_outside(peer->v)) {
		return true;
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct verbs_rail *rail = peer->rails[i];

		if (rail && ((is_live(rail) && rail->state != VERBS_RAIL_OPENING) ||
			     (reopen && !rail->dev->lost))) {
			return true;
		}
	}
	return false;
}

void verbs_peer_shrink(struct verbs_peer *peer)
{
	uint32_t least = MIN(peer->fragment, GRANT_MIN);

	peer->grant_size = MAX(peer->grant_size / 4 / 64 * 64, least);
	peer->grant_since = peer->v->now;
}

static void plan_reopening(struct verbs_rail *rail, bool was_up)
{
	struct verbs *v = rail->peer->v;
	const struct verbs_options *o = &v->options;

	if (rail->backoff_ms == 0 ||
	    (was_up && clock_elapsed(v->now, rail->up_since) > STABLE_NS)) {
		rail->backoff_ms = o->reopen_ms;
	} else {
		rail->backoff_ms = MIN(2 * rail->backoff_ms, o->reopen_max_ms);
	}
	rail->reopen_at = v->now + rail->backoff_ms * CLOCK_NS_PER_MS;
	if (!rail->peer->up && !verbs_has_outside(v)) {
		/* Everybody waits for it. */
		rail->reopen_at = v->now + HURRY_MS * CLOCK_NS_PER_MS;
	}
}

/**
 * verbs_rail_fail() - leave a rail
 * @rail:  borrowed; nothing happens when it is not in use
 * @error: negative errno
 * @fmt:   why
 *
 * Calls nothing back. When no rail is left the peer fails, with this reason.
 */
void verbs_rail_fail(struct verbs_rail *rail, int error, const char *fmt, ...)
{
	struct verbs_peer *peer = rail->peer;
	bool was_up = rail->state == VERBS_RAIL_UP;
	char where[240], what[DOWN_TEXT + 80];
	va_list ap;

	if (!is_live(rail) || peer->state != VERBS_PEER_OPEN) {
		return;
	}
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	verbs_rail_describe(rail, where, sizeof(where));
	snprintf(rail->reason, sizeof(rail->reason), "%s: %s", where, what);
	rail->error = error;
	rail->state = VERBS_RAIL_DRAINING;
	rail->deadline = peer->v->now + peer->v->options.drain_ms * CLOCK_NS_PER_MS;
	rail->local_drained = rail->remote_drained = false;
	rail->down_due = true;
	rail->offered = rail->accept_due = false;
	peer->up &= ~(1u << rail->index);
	peer->v->stats.rails_failed++;
	rail->failures++;
	if (was_up && error == -ETIMEDOUT) {
		verbs_peer_shrink(peer);
	}
	if (was_up && !peer->up) {
		peer->lost_since = peer->v->now;
		peer->fruitless = peer->moved > peer->moved_before ? 0 : peer->fruitless + 1;
		peer->moved_before = peer->moved;
	}
	plan_reopening(rail, was_up);
	for (uint32_t i = 0; i < rail->nqps; i++) {
		if (rail->qps[i]) {
			verbs_qp_error(rail->qps[i]);
		}
	}
	verbs_peer_dirty(peer);
	if (!any_left(peer) || (peer->fruitless > FRUITLESS_MAX && !verbs_has_outside(peer->v))) {
		verbs_peer_fail(peer, error, rail->reason);
	}
}

static int wc_errno(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return -ETIMEDOUT;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

/*
 * What may be the cause when nothing comes through. In the trial the writes are empty: when they
 * came back, and the message of full packets did not, there is no doubt.
 */
static void suspect(const struct verbs_rail *rail, char *buf, size_t size)
{
	if (rail->state == VERBS_RAIL_PROBING && rail->probes == 0 && !rail->probe_acked) {
		snprintf(buf, size,
			 "small packets pass, those of the full MTU (%u) do not: a path MTU below "
			 "that; set the interfaces to what every switch on the way passes",
			 rail->mtu);
	} else {
		snprintf(buf, size, "UDP 4791 blocked, or a path MTU below %u?", rail->mtu);
	}
}

/* A work request failed; the first one says why. */
void verbs_rail_wc_failed(struct verbs_rail *rail, struct verbs_qp *qp, const struct ibv_wc *wc)
{
	const struct verbs_options *o = &rail->peer->v->options;
	char hint[240] = "", cause[200];

	if (wc->vendor_err) {
		snprintf(hint, sizeof(hint), ", vendor error 0x%x", wc->vendor_err);
	}
	if (wc->status == IBV_WC_RETRY_EXC_ERR) {
		suspect(rail, cause, sizeof(cause));
		snprintf(hint, sizeof(hint), " after %u retries; no RoCE path: %s", o->retry,
			 cause);
	}
	verbs_rail_fail(rail, wc_errno(wc->status), "queue pair %u: %s (status %d)%s", qp->index,
			ibv_wc_status_str(wc->status), (int)wc->status, hint);
}

void verbs_rail_probe_done(struct verbs_rail *rail)
{
	struct verbs_peer *peer = rail->peer;

	if (rail->state != VERBS_RAIL_PROBING || rail->probes > 0 || !rail->probe_acked) {
		return;
	}
	rail->state = VERBS_RAIL_UP;
	rail->up_since = peer->v->now;
	rail->tell = true;
	rail->error = 0;
	peer->up |= 1u << rail->index;
	peer->was_up = true;
	peer->lost_since = 0;
	verbs_peer_dirty(peer);
}

/* ---- control frames ---------------------------------------------------------------------- */

static bool send_control(struct verbs_rail *rail, enum verbs_frame_type type, const void *body,
			 uint32_t length)
{
	struct verbs_peer *peer = rail->peer;
	struct verbs_frame *f = verbs_can_talk(peer) ? verbs_frame_get(peer->v, true) : NULL;
	struct verbs_frame_header *h;

	if (!f) {
		return false;
	}
	h = verbs_frame_start(f, type, length);
	h->rail = (uint8_t)rail->index;
	h->epoch = rail->epoch;
	h->count = rail->error == -ETIMEDOUT; /* of DOWN: packets are lost */
	if (length > 0) {
		memcpy(verbs_frame_body(f), body, length);
	}
	verbs_frame_send(peer, f);
	return true;
}

static struct verbs_rail *find_rail(struct verbs_peer *peer, uint32_t index)
{
	struct verbs_rail *rail = index < VERBS_RAILS_MAX ? peer->rails[index] : NULL;

	if (!rail) {
		verbs_peer_violation(peer, "a word about a rail that is not there");
	}
	return rail;
}

/*
 * The peer is in an epoch that never began here: nothing of it can arrive, so it is drained.
 * Return: false when it is not so.
 */
static bool skip_epoch(struct verbs_rail *rail, uint32_t epoch)
{
	if (epoch <= rail->epoch || rail->state != VERBS_RAIL_DOWN) {
		return false;
	}
	rail->epoch = epoch;
	rail->acked = rail->arrived = 0;
	rail->offered = false;
	rail->drained_due = true;
	return true;
}

void verbs_rail_down(struct verbs_peer *peer, const struct verbs_frame_header *h,
		     const uint8_t *body)
{
	struct verbs_rail *rail = find_rail(peer, h->rail);

	if (!rail) {
		return;
	}
	if (skip_epoch(rail, h->epoch)) {
		rail->remote_drained = false;
		verbs_peer_dirty(peer);
	} else if (h->epoch == rail->epoch) {
		verbs_rail_fail(rail, -ENETDOWN, "%s left it: %.*s", peer->name,
				(int)MIN(h->length, DOWN_TEXT), (const char *)body);
		if (h->count && peer->was_up) {
			verbs_peer_shrink(peer);
		}
	}
}

void verbs_rail_drained(struct verbs_peer *peer, const struct verbs_frame_header *h,
			const uint8_t *body)
{
	struct verbs_rail *rail = find_rail(peer, h->rail);

	if (!rail) {
		return;
	}
	if (h->epoch == rail->epoch) {
		/* It may overtake its DOWN, which goes another way. */
		verbs_rail_fail(rail, -ENETDOWN, "%s left it", peer->name);
		rail->remote_drained = true;
		rail->remote_arrived = UINT64_MAX;
		if (h->length == sizeof(rail->remote_arrived)) {
			memcpy(&rail->remote_arrived, body, sizeof(rail->remote_arrived));
		}
	} else if (skip_epoch(rail, h->epoch)) {
		rail->remote_drained = true;
	}
	verbs_peer_dirty(peer);
}

void verbs_rail_offered(struct verbs_peer *peer, const struct verbs_blob *blob)
{
	struct verbs_rail *rail = find_rail(peer, blob->rail);

	if (rail && blob->epoch > rail->epoch && !peer->initiator &&
	    (rail->state == VERBS_RAIL_DOWN || rail->state == VERBS_RAIL_DRAINING)) {
		rail->offer = *blob;
		rail->offered = true;
		verbs_peer_dirty(peer);
	}
}

/* The other end of the rail's next life. */
static void take_remote(struct verbs_rail *rail, const struct verbs_blob *blob)
{
	if (rail->remote.magic && rail->remote.device_index != blob->device_index) {
		verbs_forget_keys(rail->peer, rail->index);
	}
	rail->remote = *blob;
}

void verbs_rail_accepted(struct verbs_peer *peer, const struct verbs_blob *blob)
{
	struct verbs_rail *rail = find_rail(peer, blob->rail);
	char why[VERBS_REASON / 2];
	int r;

	if (!rail || rail->state != VERBS_RAIL_OPENING || blob->epoch != rail->epoch) {
		return;
	}
	r = verbs_rail_check_blob(rail, blob, why, sizeof(why));
	if (r == 0) {
		take_remote(rail, blob);
		r = verbs_rail_start(rail, why, sizeof(why));
	}
	if (r < 0) {
		verbs_rail_fail(rail, r, "%s", why);
	}
}

/* ---- what is due ------------------------------------------------------------------------- */

static bool qps_drained(const struct verbs_rail *rail)
{
	for (uint32_t i = 0; i < rail->nqps; i++) {
		const struct verbs_qp *qp = rail->qps[i];

		if (qp && qp->rq_oldest != qp->rq_posted) {
			return false;
		}
	}
	return true;
}

static bool settled(const struct verbs_rail *rail)
{
	return rail->state == VERBS_RAIL_DOWN && rail->local_drained && rail->remote_drained &&
	       !rail->down_due && !rail->drained_due && list_empty(&rail->unsure) &&
	       list_empty(&rail->asked);
}

static void finish_drain(struct verbs_rail *rail)
{
	if (!qps_drained(rail) && rail->peer->v->now < rail->deadline) {
		return;
	}
	verbs_rail_destroy_qps(rail);
	rail->state = VERBS_RAIL_DOWN;
	rail->local_drained = true;
	rail->drained_due = true;
	rail->tell = true;
}

static void reopen(struct verbs_rail *rail)
{
	struct verbs *v = rail->peer->v;
	char why[VERBS_REASON / 2];

	bool hurry = !rail->peer->up && !verbs_has_outside(v);

	rail->reopen_at = v->now + (hurry ? HURRY_MS : rail->backoff_ms) * CLOCK_NS_PER_MS;
	if (verbs_rail_prepare(rail, why, sizeof(why)) < 0) {
		rail->backoff_ms = MIN(2 * rail->backoff_ms, v->options.reopen_max_ms);
		return;
	}
	rail->epoch++;
	rail->local.epoch = rail->epoch;
	rail->state = VERBS_RAIL_OPENING;
	rail->deadline = v->now + v->options.probe_ms * CLOCK_NS_PER_MS;
	if (!send_control(rail, VERBS_OPEN, &rail->local, sizeof(rail->local))) {
		verbs_rail_fail(rail, -ENOBUFS, "no frame to reopen it");
	}
}

/* New queue pairs that the initiator offered. */
static void accept_offer(struct verbs_rail *rail)
{
	char where[240], why[VERBS_REASON / 2];
	int r = verbs_rail_check_blob(rail, &rail->offer, why, sizeof(why));

	rail->offered = false;
	rail->epoch = rail->offer.epoch;
	if (r == 0) {
		r = verbs_rail_prepare(rail, why, sizeof(why));
	}
	if (r < 0) {
		/* The initiator waits for one of the two answers. */
		verbs_rail_describe(rail, where, sizeof(where));
		snprintf(rail->reason, sizeof(rail->reason), "%s: %.200s", where, why);
		rail->remote_drained = false;
		rail->down_due = rail->drained_due = true;
		return;
	}
	take_remote(rail, &rail->offer);
	rail->state = VERBS_RAIL_INIT;
	rail->local_drained = rail->remote_drained = false;
	rail->accept_due = true;
	r = verbs_rail_start(rail, why, sizeof(why));
	if (r < 0) {
		verbs_rail_fail(rail, r, "%s", why);
	}
}

/* Why we left it, for the other end, which knows the rail by its own names. */
static const char *down_text(const struct verbs_rail *rail)
{
	char where[240];
	size_t n;

	verbs_rail_describe(rail, where, sizeof(where));
	n = strlen(where);
	return strncmp(rail->reason, where, n) == 0 && rail->reason[n] == ':' &&
			       rail->reason[n + 1] == ' '
		       ? rail->reason + n + 2
		       : rail->reason;
}

static void send_due(struct verbs_rail *rail)
{
	const char *reason = down_text(rail);

	if (!rail->remote.magic) {
		return; /* the other end may not know of it yet */
	}
	if (rail->accept_due) {
		rail->accept_due =
			!send_control(rail, VERBS_OPENED, &rail->local, sizeof(rail->local));
	}
	if (rail->down_due) {
		rail->down_due = !send_control(rail, VERBS_DOWN, reason,
					       (uint32_t)MIN(strlen(reason), DOWN_TEXT));
	}
	if (rail->drained_due && !rail->down_due) {
		rail->drained_due =
			!send_control(rail, VERBS_DRAINED, &rail->arrived, sizeof(rail->arrived));
	}
}

static void tell(struct verbs_rail *rail)
{
	struct verbs_peer *peer = rail->peer;
	struct verbs *v = peer->v;
	char text[240];

	rail->tell = false;
	if (!v->handler.rail_event) {
		return;
	}
	verbs_rail_describe(rail, text, sizeof(text));
	v->handler.rail_event(v->arg, peer, rail->index, rail->state,
			      rail->state == VERBS_RAIL_UP ? text : rail->reason);
}

/* Its queue pairs are gone: the next ones may be made elsewhere. */
static void apply_move(struct verbs_rail *rail)
{
	struct verbs_dev *dev = &rail->peer->v->devs[rail->next.device->index];

	rail->moving = false;
	if (rail->dev != dev) {
		verbs_rail_drop_rx(rail);
		verbs_withdraw_keys(rail->peer, rail->index);
	}
	rail->dev = dev;
	rail->port = rail->next.port;
	rail->gid = rail->next.gid;
	rail->gid_index = rail->next.gid_index;
	rail->backoff_ms = 0;
	rail->reopen_at = rail->peer->v->now;
}

/*
 * Both ends are drained: what our device says was acknowledged must have been seen there. What was
 * not is lost with the other end's device, and nobody knows what it was.
 */
static void check_arrived(struct verbs_rail *rail)
{
	struct verbs_peer *peer = rail->peer;
	char where[240], text[VERBS_REASON];

	if (rail->state != VERBS_RAIL_DOWN || !rail->local_drained || !rail->remote_drained ||
	    rail->acked <= rail->remote_arrived || peer->state != VERBS_PEER_OPEN) {
		return;
	}
	verbs_rail_describe(rail, where, sizeof(where));
	snprintf(text, sizeof(text),
		 "%s: %s did not see %u messages that its device had acknowledged", where,
		 peer->name, (uint32_t)(rail->acked - rail->remote_arrived));
	verbs_peer_fail(peer, -EIO, text);
}

void verbs_rail_work(struct verbs_rail *rail)
{
	struct verbs_peer *peer = rail->peer;

	if (rail->state == VERBS_RAIL_DRAINING) {
		finish_drain(rail);
	}
	check_arrived(rail);
	if (rail->moving && rail->state == VERBS_RAIL_DOWN) {
		apply_move(rail);
	}
	if (verbs_can_talk(peer)) {
		send_due(rail);
	}
	if (rail->state == VERBS_RAIL_DOWN && rail->local_drained && rail->remote_drained &&
	    verbs_can_talk(peer) && !list_empty(&rail->unsure)) {
		verbs_resume_ask(rail);
	}
	if (verbs_can_talk(peer) && settled(rail) && !rail->dev->lost) {
		if (rail->offered) {
			accept_offer(rail);
			send_due(rail);
		} else if (peer->initiator && peer->v->now >= rail->reopen_at) {
			reopen(rail);
		}
	}
	if (rail->tell) {
		tell(rail);
	}
}

/* Time-outs. */
void verbs_rail_tick(struct verbs_rail *rail)
{
	struct verbs *v = rail->peer->v;
	char cause[200];

	if (v->now < rail->deadline || rail->state == VERBS_RAIL_UP) {
		return;
	}
	switch (rail->state) {
	case VERBS_RAIL_PROBING:
		suspect(rail, cause, sizeof(cause));
		verbs_rail_fail(rail, -ETIMEDOUT,
				"the trial was not through after %u ms (%s; %u of %u writes did "
				"not come back); %s",
				v->options.probe_ms,
				rail->probe_acked ? "messages passed" : "no message came back",
				rail->probes, rail->nqps - 1, cause);
		break;
	case VERBS_RAIL_OPENING:
		verbs_rail_fail(rail, -ETIMEDOUT, "no answer to new queue pairs after %u ms",
				v->options.probe_ms);
		break;
	case VERBS_RAIL_INIT:
		verbs_rail_fail(rail, -ETIMEDOUT, "the other end did not follow");
		break;
	default:
		verbs_peer_dirty(rail->peer);
		break;
	}
}

struct verbs_rail *verbs_rail_free(struct verbs_rail *rail)
{
	if (!rail) {
		return NULL;
	}
	for (uint32_t i = 0; i < VERBS_QPS_MAX; i++) {
		verbs_qp_free(rail->qps[i]);
	}
	verbs_rail_drop_rx(rail);
	if (rail->rx) {
		munmap(rail->rx, rail->rx_size);
	}
	free(rail);
	return NULL;
}
