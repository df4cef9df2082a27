/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails: pairs of ports with one peer
 *
 * The initiator pairs the ports of both ends, opens its half of each pair and proposes it; the
 * other end opens its half, connects it, answers; then the initiator connects. A pair goes on
 * under another address of its port when its own is gone.
 *
 * Thread: control      Owns: nothing      Locks: none      See: PROTOCOL.md §8b
 */
#include <stdio.h>
#include <string.h>

#include "job/peer_wire.h"
#include "job/rails_impl.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

/* ---- what is told ------------------------------------------------------------------------- */

static void send_plan(struct rails_link *k)
{
	Rocecomm__Peer__RailPlan msg = ROCECOMM__PEER__RAIL_PLAN__INIT;

	msg.rails = k->nplanned;
	msg.reason = (char *)(uintptr_t)(k->nplanned ? "" : k->reason);
	hostlink_send(k->l, PEER_MSG_RAIL_PLAN, &msg.base);
}

static void send_open(const struct rails_pair *p)
{
	Rocecomm__Peer__RailOpen msg = ROCECOMM__PEER__RAIL_OPEN__INIT;

	msg.rail = p->rail;
	msg.from.data = (uint8_t *)(uintptr_t)p->local.raw;
	msg.from.len = RAILS_GID_SIZE;
	msg.to.data = (uint8_t *)(uintptr_t)p->remote.raw;
	msg.to.len = RAILS_GID_SIZE;
	msg.blob.data = (uint8_t *)(uintptr_t)&p->work.local;
	msg.blob.len = sizeof(p->work.local);
	hostlink_send(p->link->l, PEER_MSG_RAIL_OPEN, &msg.base);
}

static void send_opened(struct rails_link *k, uint32_t rail, const struct verbs_blob *blob,
			const char *refused)
{
	Rocecomm__Peer__RailOpened msg = ROCECOMM__PEER__RAIL_OPENED__INIT;

	msg.rail = rail;
	if (blob) {
		msg.blob.data = (uint8_t *)(uintptr_t)blob;
		msg.blob.len = sizeof(*blob);
	}
	msg.refused = (char *)(uintptr_t)refused;
	hostlink_send(k->l, PEER_MSG_RAIL_OPENED, &msg.base);
}

/* ---- pairs -------------------------------------------------------------------------------- */

static void pair_failed(struct rails_pair *p, const char *text)
{
	struct rails_link *k = p->link;

	p->state = RAILS_PAIR_FAILED;
	p->retry_at = jobs_now(k->rails->jobs) + ((uint64_t)RAILS_RETRY_MS << MIN(p->failures, 5u));
	p->failures++;
	snprintf(p->text, sizeof(p->text), "%s", text);
	log_warn("host %s: rail %u (%s port %u) cannot be made: %s", peer_name(k->l->peer), p->rail,
		 p->device_name, p->port, text);
	rails_link_check(k);
}

static void pair_work(struct rails_pair *p, unsigned int act, engine_done_fn done)
{
	p->busy = true;
	p->work.act = act;
	p->work.rail = p->rail;
	engine_peer_rail(p->link->rails->jobs->engine, p->link->l->engine, &p->work, done, p);
}

static void pair_params(struct rails_pair *p, struct rdma_device *d, const struct rdma_gid *gid)
{
	p->work.params = (struct verbs_rail_params){
		.device = d,
		.port = p->port,
		.gid = gid->gid,
		.gid_index = gid->index,
	};
}

static void pair_init(struct rails_link *k, struct rails_pair *p, uint32_t rail,
		      const struct rdma_port *port, const struct rdma_gid *gid,
		      const union ibv_gid *remote)
{
	uint32_t failures = p->failures;

	memset(p, 0, sizeof(*p));
	p->link = k;
	p->rail = rail;
	p->failures = failures;
	p->device = port->device->index;
	p->port = port->number;
	p->local = gid->gid;
	p->remote = *remote;
	memcpy(p->device_name, port->device->name, sizeof(p->device_name));
	snprintf(p->text, sizeof(p->text), "it is being tried");
	pair_params(p, port->device, gid);
}

/* ---- the initiator ------------------------------------------------------------------------ */

static void on_opened_half(void *arg)
{
	struct rails_pair *p = arg;

	p->busy = false;
	if (rails_link_is_gone(p->link)) {
		return;
	}
	if (p->work.result < 0) {
		pair_failed(p, p->work.why);
		return;
	}
	p->state = RAILS_PAIR_PROPOSED;
	send_open(p);
}

static void on_connected(void *arg)
{
	struct rails_pair *p = arg;

	p->busy = false;
	if (rails_link_is_gone(p->link)) {
		return;
	}
	if (p->work.result < 0 && p->state == RAILS_PAIR_CONNECTING) {
		p->state = RAILS_PAIR_DOWN;
		snprintf(p->text, sizeof(p->text), "%s", p->work.why);
		rails_link_check(p->link);
	}
}

static void on_dropped(void *arg)
{
	struct rails_pair *p = arg;
	char text[VERBS_REASON];

	p->busy = false;
	if (!rails_link_is_gone(p->link)) {
		memcpy(text, p->text, sizeof(text));
		pair_failed(p, text);
	}
}

/* Where the peer's port of this pair is in what the peer told last; nremote: nowhere. */
static uint32_t remote_index(const struct rails_link *k, const union ibv_gid *gid)
{
	uint32_t i = 0;

	while (i < k->nremote && memcmp(&k->remote[i].gid, gid, sizeof(*gid)) != 0) {
		i++;
	}
	return i;
}

/* Those that are open, as rdma_pair_rails() wants them. */
static uint32_t open_pairs(const struct rails_link *k, struct rdma_pair *ret)
{
	const struct rdma *list = k->rails->list;
	uint32_t n = 0;

	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct rails_pair *p = &k->pairs[i];
		bool wait = p->state == RAILS_PAIR_FAILED && p->retry_at > jobs_now(k->rails->jobs);

		if (rails_pair_is_open(p) || wait) {
			ret[n++] = (struct rdma_pair){
				.port = rdma_device_port(list->devices[p->device], p->port),
				.remote = remote_index(k, &p->remote),
			};
		}
	}
	return n;
}

static struct rails_pair *free_pair(struct rails_link *k)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		if (!rails_pair_is_open(&k->pairs[i]) && !k->pairs[i].busy) {
			return &k->pairs[i];
		}
	}
	return NULL;
}

static void count_planned(struct rails_link *k)
{
	k->nplanned = 0;
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		k->nplanned += rails_pair_is_open(&k->pairs[i]);
	}
	k->planned = true;
	/* Without a port to offer the reason is that of the ports. */
	if (k->nplanned == 0 && k->nremote > 0 && k->noffered > 0) {
		snprintf(k->reason, sizeof(k->reason),
			 "no RDMA port of host %s has a route to one of host %s",
			 jobs_host(k->rails->jobs), peer_name(k->l->peer));
	}
}

/* Makes the pairs that can be made and are not there. */
void rails_pairs_propose(struct rails_link *k)
{
	struct rdma_pair pairs[VERBS_RAILS_MAX];
	struct rails *rails = k->rails;
	uint32_t have, n;

	if (!k->initiator || !k->heard || !k->started) {
		return;
	}
	have = open_pairs(k, pairs);
	n = rdma_pair_rails(rails->list, k->remote, k->nremote, rdma_route_system, NULL, pairs,
			    have, VERBS_RAILS_MAX);
	for (uint32_t i = have; i < n; i++) {
		struct rails_pair *p = free_pair(k);

		if (!p || !rails_device_ready(rails, pairs[i].port->device)) {
			continue;
		}
		pair_init(k, p, (uint32_t)(p - k->pairs), pairs[i].port, pairs[i].gid,
			  &k->remote[pairs[i].remote].gid);
		p->state = RAILS_PAIR_OPENING;
		pair_work(p, ENGINE_RAIL_OPEN, on_opened_half);
	}
	count_planned(k);
	send_plan(k);
	rails_link_check(k);
}

bool rails_on_opened(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *m)
{
	const Rocecomm__Peer__RailOpened *msg = (const Rocecomm__Peer__RailOpened *)m;
	struct rails_link *k = l->rails;
	struct rails_pair *p = k && msg->rail < VERBS_RAILS_MAX ? &k->pairs[msg->rail] : NULL;

	if (!p || !k->initiator || p->state != RAILS_PAIR_PROPOSED || p->busy) {
		log_debug("host %s answers for a rail that it was not asked for",
			  peer_name(l->peer));
		return false;
	}
	if (msg->blob.len != sizeof(p->work.remote)) {
		char cause[VERBS_REASON / 2];

		peer_text_copy(cause, sizeof(cause),
			       msg->refused[0] ? msg->refused : "without saying why");
		snprintf(p->text, sizeof(p->text), "host %s refuses it: %s", peer_name(l->peer),
			 cause);
		p->state = RAILS_PAIR_DROPPING;
		pair_work(p, ENGINE_RAIL_DROP, on_dropped);
		return false;
	}
	memcpy(&p->work.remote, msg->blob.data, sizeof(p->work.remote));
	p->state = RAILS_PAIR_CONNECTING;
	pair_work(p, ENGINE_RAIL_CONNECT, on_connected);
	return false;
}

/* ---- the other end ------------------------------------------------------------------------ */

static const struct rdma_gid *find_local(const struct rails *rails, const union ibv_gid *gid,
					 struct rdma_port **ret, char *why, size_t size)
{
	snprintf(why, size, "no port of host %s is ready for RDMA", jobs_host(rails->jobs));
	for (uint32_t i = 0; rails->list && i < rails->list->count; i++) {
		struct rdma_device *d = rails->list->devices[i];

		for (uint32_t n = 0; n < d->nports && rails_device_ready(rails, d); n++) {
			const struct rdma_gid *found = NULL;

			if (d->ports[n].usable) {
				found = rdma_port_find_gid(&d->ports[n], gid, why, size);
			}
			if (found) {
				*ret = &d->ports[n];
				return found;
			}
		}
	}
	return NULL;
}

static void on_accepted(void *arg)
{
	struct rails_pair *p = arg;
	struct rails_link *k = p->link;

	p->busy = false;
	if (rails_link_is_gone(k)) {
		return;
	}
	if (p->work.result < 0 && p->work.local.magic == 0) {
		send_opened(k, p->rail, NULL, p->work.why);
		pair_failed(p, p->work.why);
		return;
	}
	send_opened(k, p->rail, &p->work.local, "");
	if (p->work.result < 0 && p->state == RAILS_PAIR_CONNECTING) {
		p->state = RAILS_PAIR_DOWN;
		snprintf(p->text, sizeof(p->text), "%s", p->work.why);
		rails_link_check(k);
	}
}

bool rails_on_open(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *m)
{
	const Rocecomm__Peer__RailOpen *msg = (const Rocecomm__Peer__RailOpen *)m;
	struct rails_link *k = l->rails;
	const struct rdma_gid *gid = NULL;
	struct rdma_port *port = NULL;
	union ibv_gid from, to;
	struct rails_pair *p;
	char why[256] = "";

	if (!k || k->initiator || msg->rail >= VERBS_RAILS_MAX || msg->from.len != RAILS_GID_SIZE ||
	    msg->to.len != RAILS_GID_SIZE || msg->blob.len != sizeof(p->work.remote)) {
		log_warn("host %s proposes a rail that cannot be", peer_name(l->peer));
		return false;
	}
	p = &k->pairs[msg->rail];
	memcpy(from.raw, msg->from.data, RAILS_GID_SIZE);
	memcpy(to.raw, msg->to.data, RAILS_GID_SIZE);
	if (rails_pair_is_open(p) || p->busy) {
		snprintf(why, sizeof(why), "rail %u is there already", msg->rail);
	} else if (!k->started) {
		rails_no_port(k->rails, why, sizeof(why));
	} else {
		gid = find_local(k->rails, &to, &port, why, sizeof(why));
	}
	if (!gid) {
		send_opened(k, msg->rail, NULL, why);
		return false;
	}
	pair_init(k, p, msg->rail, port, gid, &from);
	memcpy(&p->work.remote, msg->blob.data, sizeof(p->work.remote));
	p->state = RAILS_PAIR_CONNECTING;
	pair_work(p, ENGINE_RAIL_OPEN | ENGINE_RAIL_CONNECT, on_accepted);
	return false;
}

bool rails_on_plan(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *m)
{
	const Rocecomm__Peer__RailPlan *msg = (const Rocecomm__Peer__RailPlan *)m;
	struct rails_link *k = l->rails;

	if (!k || k->initiator) {
		return false;
	}
	k->planned = true;
	k->nplanned = MIN(msg->rails, VERBS_RAILS_MAX);
	if (k->nplanned == 0) {
		peer_text_copy(k->reason, sizeof(k->reason),
			       msg->reason[0] ? msg->reason
					      : "the other end made no pair of ports");
	}
	rails_link_check(k);
	return false;
}
/* ---- changes ------------------------------------------------------------------------------ */

static void on_moved(void *arg)
{
	struct rails_pair *p = arg;

	p->busy = false;
	p->moving = false;
	if (!rails_link_is_gone(p->link) && p->work.result < 0) {
		snprintf(p->text, sizeof(p->text), "%s", p->work.why);
	}
}

/* Another GID of this port that reaches the peer's. */
static const struct rdma_gid *other_gid(const struct rails_pair *p, const struct rdma_port *port)
{
	for (uint32_t i = 0; port->usable && i < port->ngids; i++) {
		const struct rdma_gid *g = &port->gids[i];

		if (!g->reason && rdma_route_system(NULL, g->ifindex, &g->gid, &p->remote) == 0) {
			return g;
		}
	}
	return NULL;
}

static bool has_gid(const struct rails *rails, const struct rails_pair *p)
{
	struct rdma_device *d = rails->list->devices[p->device];
	const struct rdma_port *port = rdma_device_port(d, p->port);

	/* While the port is down its addresses may be away for a moment. */
	return rails_device_ready(rails, d) && port &&
	       (!port->up || rdma_port_find_gid(port, &p->local, NULL, 0));
}

/* The address is gone, or the device: on with the same port under another one. */
static void pair_follow(struct rails *rails, struct rails_pair *p)
{
	if (p->busy || (p->state != RAILS_PAIR_UP && p->state != RAILS_PAIR_DOWN) ||
	    has_gid(rails, p)) {
		return;
	}
	for (uint32_t i = 0; i < rails->list->count; i++) {
		struct rdma_device *d = rails->list->devices[i];
		const struct rdma_port *port = rdma_device_port(d, p->port);
		const struct rdma_gid *gid;

		if (!rails_device_ready(rails, d) || strcmp(d->name, p->device_name) != 0 ||
		    !port) {
			continue;
		}
		gid = other_gid(p, port);
		if (gid) {
			log_info("host %s: rail %u goes on at %s port %u, %s",
				 peer_name(p->link->l->peer), p->rail, d->name, p->port, gid->text);
			p->device = i;
			p->local = gid->gid;
			p->moving = true;
			pair_params(p, d, gid);
			pair_work(p, ENGINE_RAIL_MOVE, on_moved);
			return;
		}
	}
}

void rails_pairs_follow(struct rails_link *k)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		pair_follow(k->rails, &k->pairs[i]);
	}
}
