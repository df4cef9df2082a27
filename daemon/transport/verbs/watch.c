/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: time-outs, and completions that do not come
 *
 * A send without completion is the rail's failure: what it carried is asked about and sent again. A
 * receive without completion cannot be made good, since nobody knows what it brought; it shows as a
 * gap that later completions leave, or, when nothing follows, by asking: while nothing moves, the
 * ends tell each other how many writes were acknowledged (CHECK). Either takes the peer down, with
 * the state of the queue pair, rather than let somebody wait for ever.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs_impl.h"

#define GROW_NS (10 * CLOCK_NS_PER_S)
#define QUIET_NS CLOCK_NS_PER_S /* nothing moved for so long: ask */

static bool overdue(const struct verbs *v, uint64_t since, uint32_t ms)
{
	return clock_elapsed(v->now, since) > ms * CLOCK_NS_PER_MS;
}

static void lost(struct verbs_qp *qp, const char *what)
{
	char where[240], text[VERBS_REASON];

	verbs_rail_describe(qp->rail, where, sizeof(where));
	snprintf(text, sizeof(text), "%s: a completion of queue pair %u was lost (%s; state %s)",
		 where, qp->index, what, verbs_qp_state_text(verbs_qp_state(qp)));
	verbs_peer_fail(qp->rail->peer, -EIO, text);
}

static void watch_qp(struct verbs *v, struct verbs_qp *qp)
{
	const struct verbs_options *o = &v->options;

	if (qp->rail->state != VERBS_RAIL_UP && qp->rail->state != VERBS_RAIL_PROBING) {
		return;
	}
	if ((int32_t)(qp->sq_asked - qp->sq_head) > 0 &&
	    overdue(v, qp->sq_since, o->wr_timeout_ms)) {
		verbs_rail_fail(qp->rail, -ETIMEDOUT,
				"queue pair %u (state %s) completed nothing for %u ms", qp->index,
				verbs_qp_state_text(verbs_qp_state(qp)), o->wr_timeout_ms);
	} else if (qp->rq_late > 0 && overdue(v, qp->gap_since, o->gap_ms)) {
		lost(qp, "later ones came");
	} else if (qp->writes_told > qp->writes_arrived && overdue(v, qp->told_since, o->gap_ms)) {
		lost(qp, "the peer's write was acknowledged");
	}
}

static bool pending(const struct verbs_peer *peer)
{
	return peer->ntx > 0 || peer->nrx > 0 || !list_empty(&peer->eager) ||
	       !list_empty(&peer->waiting) || !list_empty(&peer->ready);
}

static void send_check(struct verbs_rail *rail, bool answer)
{
	struct verbs *v = rail->peer->v;
	struct verbs_frame *f;
	uint8_t *at;

	if (rail->state != VERBS_RAIL_UP || rail->credits <= VERBS_RESERVE ||
	    verbs_qp_room(rail->qps[0]) <= VERBS_RESERVE) {
		return;
	}
	f = verbs_frame_get(v, true);
	if (!f) {
		return;
	}
	verbs_frame_start(f, VERBS_CHECK, rail->nqps * (uint32_t)sizeof(uint64_t))->count = answer;
	at = verbs_frame_body(f);
	for (uint32_t i = 0; i < rail->nqps; i++, at += sizeof(uint64_t)) {
		memcpy(at, &rail->qps[i]->writes_acked, sizeof(uint64_t));
	}
	verbs_frame_post(rail, f);
}

void verbs_check_arrived(struct verbs_rail *rail, const struct verbs_frame_header *h,
			 const uint8_t *body)
{
	struct verbs *v = rail->peer->v;

	if (rail->state != VERBS_RAIL_UP) {
		return;
	}
	if (h->length != rail->nqps * sizeof(uint64_t)) {
		verbs_peer_violation(rail->peer, "a check that cannot be");
		return;
	}
	for (uint32_t i = 0; i < rail->nqps; i++, body += sizeof(uint64_t)) {
		struct verbs_qp *qp = rail->qps[i];
		uint64_t told;

		memcpy(&told, body, sizeof(told));
		if (told > qp->writes_arrived && qp->writes_told <= qp->writes_arrived) {
			qp->told_since = v->now;
		}
		qp->writes_told = told;
	}
	if (h->count == 0) {
		send_check(rail, true);
	}
}

/* The reason of the rail that failed last is the peer's. */
static void watch_loss(struct verbs *v, struct verbs_peer *peer)
{
	const struct verbs_rail *last = NULL;
	char text[VERBS_REASON];

	if (peer->grant_size < peer->fragment &&
	    clock_elapsed(v->now, peer->grant_since) > GROW_NS) {
		peer->grant_size = MIN(2 * peer->grant_size, peer->fragment);
		peer->grant_since = v->now;
	}
	if (peer->lost_since == 0 || verbs_has_outside(v) ||
	    !overdue(v, peer->lost_since, v->options.recover_ms)) {
		return;
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct verbs_rail *rail = peer->rails[i];

		if (rail && rail->reason[0] && (!last || rail->error == -ETIMEDOUT)) {
			last = rail;
		}
	}
	snprintf(text, sizeof(text), "no rail came back within %u ms; %.380s",
		 v->options.recover_ms, last ? last->reason : "");
	verbs_peer_fail(peer, last && last->error ? last->error : -ETIMEDOUT, text);
}

static void watch_peer(struct verbs *v, struct verbs_peer *peer)
{
	bool ask = pending(peer) && clock_elapsed(v->now, peer->progress) > QUIET_NS &&
		   clock_elapsed(v->now, peer->checked) > QUIET_NS;

	watch_loss(v, peer);
	for (uint32_t i = 0; i < VERBS_RAILS_MAX && peer->state == VERBS_PEER_OPEN; i++) {
		struct verbs_rail *rail = peer->rails[i];

		if (!rail) {
			continue;
		}
		verbs_rail_tick(rail);
		for (uint32_t k = 0; k < rail->nqps && peer->state == VERBS_PEER_OPEN; k++) {
			if (rail->qps[k]) {
				watch_qp(v, rail->qps[k]);
			}
		}
		if (ask && peer->state == VERBS_PEER_OPEN) {
			peer->checked = v->now;
			send_check(rail, false);
		}
	}
}

void verbs_watch(struct verbs *v)
{
	list_for_each_safe (l, &v->peers) {
		watch_peer(v, container_of(l, struct verbs_peer, link));
	}
}

static bool rail_needs(const struct verbs_rail *rail)
{
	if (rail->state != VERBS_RAIL_UP) {
		return true;
	}
	for (uint32_t k = 0; k < rail->nqps; k++) {
		const struct verbs_qp *qp = rail->qps[k];

		if ((int32_t)(qp->sq_asked - qp->sq_head) > 0 || qp->rq_late > 0 ||
		    qp->writes_told > qp->writes_arrived) {
			return true;
		}
	}
	return false;
}

bool verbs_watch_needed(const struct verbs *v)
{
	if (!list_empty(&v->dirty)) {
		return true;
	}
	list_for_each (l, &v->peers) {
		const struct verbs_peer *peer = container_of(l, struct verbs_peer, link);

		if (peer->state != VERBS_PEER_OPEN) {
			continue;
		}
		if (pending(peer)) {
			return true;
		}
		for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
			if (peer->rails[i] && rail_needs(peer->rails[i])) {
				return true;
			}
		}
	}
	return false;
}
