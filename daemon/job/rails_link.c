/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails: one peer
 *
 * Both ends tell their ports. The initiator pairs them, opens its half of each pair and proposes
 * it; the other end opens its half, connects it, answers; then the initiator connects. From there
 * on the transports of both ends keep the rail: they try it, leave it, open it again. Control only
 * comes back when ports or addresses change.
 *
 * Thread: control      Owns: struct rails_link      Locks: none      See: PROTOCOL.md §8b
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/comm.h"
#include "job/peer_wire.h"
#include "job/rails_impl.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

#define GID_SIZE 16

static void start(struct rails_link *k);
static void propose(struct rails_link *k);

static bool is_gone(const struct rails_link *k)
{
	return !k->l->peer || k->rails->jobs->stopped;
}

static bool is_open(const struct rails_pair *p)
{
	return p->state != RAILS_PAIR_FREE && p->state != RAILS_PAIR_FAILED;
}

/* ---- settling ----------------------------------------------------------------------------- */

static bool undecided(const struct rails_link *k)
{
	uint32_t known = 0;

	if (!k->heard || !k->planned) {
		return true;
	}
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		enum rails_pair_state state = k->pairs[i].state;

		known += state != RAILS_PAIR_FREE;
		if (state == RAILS_PAIR_OPENING || state == RAILS_PAIR_PROPOSED ||
		    state == RAILS_PAIR_CONNECTING || state == RAILS_PAIR_DROPPING) {
			return true;
		}
	}
	return known < k->nplanned;
}

/* Those who wait for it go on. */
static void settle(struct rails_link *k)
{
	if (!k->settled && !is_gone(k)) {
		k->settled = true;
		communicators_link_up(k->rails->jobs, k->l);
	}
}

static void check_settled(struct rails_link *k)
{
	if (!undecided(k)) {
		settle(k);
	}
}

void rails_tick(struct rails *rails, uint64_t now)
{
	bool waiting = false;

	if (!rails) {
		return;
	}
	/* What settles one may fail a communicator, but frees no link. */
	list_for_each_safe (at, &rails->links) {
		struct rails_link *k = container_of(at, struct rails_link, link);

		if (!k->settled && k->deadline <= now) {
			log_info("host %s: RDMA is not there after %u ms; data goes %s",
				 peer_name(k->l->peer), rails->options.wait_ms,
				 rails_tcp_allowed(rails) ? "by TCP until it is" : "nowhere");
			settle(k);
		}
		waiting |= !k->settled;
	}
	if (waiting) {
		jobs_tick(rails->jobs);
	}
}

/* ---- what is told ------------------------------------------------------------------------- */

static size_t fill_ports(const struct rails *rails, Rocecomm__Peer__RailPort *ports,
			 Rocecomm__Peer__RailPort **list, size_t max)
{
	size_t n = 0;

	for (uint32_t i = 0; rails->list && i < rails->list->count; i++) {
		struct rdma_device *d = rails->list->devices[i];

		for (uint32_t p = 0; p < d->nports && rails_device_ready(rails, d); p++) {
			struct rdma_port *port = &d->ports[p];

			for (uint32_t g = 0; port->usable && g < port->ngids && n < max; g++) {
				if (port->gids[g].reason) {
					continue;
				}
				rocecomm__peer__rail_port__init(&ports[n]);
				ports[n].gid.data = port->gids[g].gid.raw;
				ports[n].gid.len = GID_SIZE;
				ports[n].device = d->name;
				ports[n].port = port->number;
				ports[n].mtu = port->mtu;
				ports[n].mbps = port->mbps;
				list[n] = &ports[n];
				n++;
			}
		}
	}
	return n;
}

/* Return: how many. */
static size_t send_ports(struct rails_link *k)
{
	Rocecomm__Peer__RailPorts msg = ROCECOMM__PEER__RAIL_PORTS__INIT;
	Rocecomm__Peer__RailPort ports[RAILS_REMOTE_MAX], *list[RAILS_REMOTE_MAX];
	char reason[VERBS_REASON] = "";

	msg.n_ports = fill_ports(k->rails, ports, list, RAILS_REMOTE_MAX);
	msg.ports = list;
	if (msg.n_ports == 0) {
		rails_no_port(k->rails, reason, sizeof(reason));
	}
	msg.reason = reason;
	msg.only = !rails_tcp_allowed(k->rails);
	hostlink_send(k->l, PEER_MSG_RAIL_PORTS, &msg.base);
	if (msg.n_ports == 0 && !is_open(&k->pairs[0])) {
		snprintf(k->reason, sizeof(k->reason), "host %s has no port for RDMA (%.300s)",
			 jobs_host(k->rails->jobs), reason);
	}
	return msg.n_ports;
}

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
	msg.from.len = GID_SIZE;
	msg.to.data = (uint8_t *)(uintptr_t)p->remote.raw;
	msg.to.len = GID_SIZE;
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
	check_settled(k);
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
	if (is_gone(p->link)) {
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
	if (is_gone(p->link)) {
		return;
	}
	if (p->work.result < 0 && p->state == RAILS_PAIR_CONNECTING) {
		p->state = RAILS_PAIR_DOWN;
		snprintf(p->text, sizeof(p->text), "%s", p->work.why);
		check_settled(p->link);
	}
}

static void on_dropped(void *arg)
{
	struct rails_pair *p = arg;
	char text[VERBS_REASON];

	p->busy = false;
	if (!is_gone(p->link)) {
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

		if (is_open(p) || wait) {
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
		if (!is_open(&k->pairs[i]) && !k->pairs[i].busy) {
			return &k->pairs[i];
		}
	}
	return NULL;
}

static void count_planned(struct rails_link *k)
{
	k->nplanned = 0;
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		k->nplanned += is_open(&k->pairs[i]);
	}
	k->planned = true;
	if (k->nplanned == 0 && k->nremote > 0) {
		snprintf(k->reason, sizeof(k->reason),
			 "no RDMA port of host %s has a route to one of host %s",
			 jobs_host(k->rails->jobs), peer_name(k->l->peer));
	}
}

/* Makes the pairs that can be made and are not there. */
static void propose(struct rails_link *k)
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
	check_settled(k);
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
	if (is_gone(k)) {
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
		check_settled(k);
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

	if (!k || k->initiator || msg->rail >= VERBS_RAILS_MAX || msg->from.len != GID_SIZE ||
	    msg->to.len != GID_SIZE || msg->blob.len != sizeof(p->work.remote)) {
		log_warn("host %s proposes a rail that cannot be", peer_name(l->peer));
		return false;
	}
	p = &k->pairs[msg->rail];
	memcpy(from.raw, msg->from.data, GID_SIZE);
	memcpy(to.raw, msg->to.data, GID_SIZE);
	if (is_open(p) || p->busy) {
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
	check_settled(k);
	return false;
}

/* ---- ports of the peer -------------------------------------------------------------------- */

static bool same_port(const struct rails_remote *a, const struct rails_remote *b)
{
	return a->port == b->port && strcmp(a->device, b->device) == 0;
}

static void take_ports(struct rails_link *k, const Rocecomm__Peer__RailPorts *msg)
{
	k->nremote = 0;
	for (size_t i = 0; i < msg->n_ports && k->nremote < RAILS_REMOTE_MAX; i++) {
		const Rocecomm__Peer__RailPort *port = msg->ports[i];
		struct rails_remote *info = &k->info[k->nremote];
		struct rdma_remote *remote = &k->remote[k->nremote];
		uint32_t same = 0;

		if (port->gid.len != GID_SIZE || port->port > UINT8_MAX) {
			continue;
		}
		memset(info, 0, sizeof(*info));
		memcpy(remote->gid.raw, port->gid.data, GID_SIZE);
		peer_text_copy(info->device, sizeof(info->device), port->device);
		info->port = (uint8_t)port->port;
		info->mtu = port->mtu;
		info->mbps = port->mbps;
		while (same < k->nremote && !same_port(&k->info[same], info)) {
			same++;
		}
		remote->port = same;
		k->nremote++;
	}
}

bool rails_on_ports(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *m)
{
	const Rocecomm__Peer__RailPorts *msg = (const Rocecomm__Peer__RailPorts *)m;
	struct rails_link *k = l->rails;
	char reason[VERBS_REASON / 2];

	if (!k) {
		return false;
	}
	take_ports(k, msg);
	k->heard = true;
	k->only = msg->only;
	if (k->nremote == 0) {
		peer_text_copy(reason, sizeof(reason), msg->reason);
		snprintf(k->reason, sizeof(k->reason), "host %s has no port for RDMA (%s)",
			 peer_name(l->peer), reason);
		k->planned = true;
		k->nplanned = 0;
		check_settled(k);
		return false;
	}
	propose(k);
	return false;
}

/* ---- changes ------------------------------------------------------------------------------ */

static void on_moved(void *arg)
{
	struct rails_pair *p = arg;

	p->busy = false;
	p->moving = false;
	if (!is_gone(p->link) && p->work.result < 0) {
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

void rails_links_changed(struct rails *rails)
{
	list_for_each_safe (at, &rails->links) {
		struct rails_link *k = container_of(at, struct rails_link, link);

		start(k);
		for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
			pair_follow(rails, &k->pairs[i]);
		}
		send_ports(k);
		propose(k);
	}
}

/* ---- events ------------------------------------------------------------------------------- */

static bool any_up(const struct rails_link *k)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		if (k->pairs[i].state == RAILS_PAIR_UP) {
			return true;
		}
	}
	return false;
}

/* It works all the same, but not as well as it could, or not as somebody meant it. */
static void tell_differences(struct rails_pair *p)
{
	const struct verbs_blob *here = &p->work.local, *there = &p->work.remote;
	const struct rails_link *k = p->link;

	if (p->told || here->magic == 0 || there->magic == 0) {
		return;
	}
	p->told = true;
	if (here->mtu != there->mtu) {
		log_warn("host %s: rail %u (%s): its MTU is %u bytes on %s and %u on %s, so that "
			 "%u is used; set the same MTU on both interfaces",
			 peer_name(k->l->peer), p->rail, p->device_name, here->mtu,
			 jobs_host(k->rails->jobs), there->mtu, peer_name(k->l->peer),
			 MIN(here->mtu, there->mtu));
	}
	if (here->traffic_class != there->traffic_class) {
		log_warn("host %s: rail %u (%s): traffic class %u (DSCP %u) on %s and %u (DSCP %u) "
			 "on %s; set traffic_class to the same on all hosts",
			 peer_name(k->l->peer), p->rail, p->device_name, here->traffic_class,
			 here->traffic_class >> 2, jobs_host(k->rails->jobs), there->traffic_class,
			 there->traffic_class >> 2, peer_name(k->l->peer));
	}
}

void rails_event(struct hostlink *l, uint32_t rail, enum verbs_rail_state state, const char *text)
{
	struct rails_link *k = l->rails;
	struct rails_pair *p = k && rail < VERBS_RAILS_MAX ? &k->pairs[rail] : NULL;
	bool was_up = k && any_up(k);

	if (!p || is_gone(k) || !is_open(p)) {
		return;
	}
	p->state = state == VERBS_RAIL_UP ? RAILS_PAIR_UP : RAILS_PAIR_DOWN;
	snprintf(p->text, sizeof(p->text), "%s", text);
	if (state == VERBS_RAIL_UP) {
		p->failures = 0;
		log_info("host %s: data goes by RDMA, %s", peer_name(l->peer), text);
		tell_differences(p);
	} else {
		log_warn("host %s: %s%s", peer_name(l->peer), text,
			 any_up(k)				 ? "; other rails carry on"
			 : was_up && rails_tcp_allowed(k->rails) ? "; data goes by TCP now"
								 : "");
	}
	check_settled(k);
}

/* ---- life --------------------------------------------------------------------------------- */

/* When there is a device. */
static void start(struct rails_link *k)
{
	if (k->started || !k->rails->started || !k->l->engine || is_gone(k)) {
		return;
	}
	k->started = engine_peer_rails(k->rails->jobs->engine, k->l->engine, peer_name(k->l->peer),
				       k->initiator) == 0;
}

int rails_link_up(struct rails *rails, struct hostlink *l)
{
	struct jobs *jobs = l->jobs;
	struct rails_link *k;

	if (!rails || l->rails) {
		return 0;
	}
	k = calloc(1, sizeof(*k));
	if (!k) {
		return err_origin(-ENOMEM);
	}
	k->rails = rails;
	k->l = l;
	k->initiator = memcmp(jobs->self.host_id.data, peer_host_id(l->peer), PEER_HOST_ID) < 0;
	k->deadline = jobs_now(jobs) + rails->options.wait_ms;
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		k->pairs[i].link = k;
	}
	l->rails = k;
	list_append(&rails->links, &k->link);
	start(k);
	/* Without a port, nothing is waited for. */
	k->settled = send_ports(k) == 0;
	if (!k->settled) {
		jobs_tick(jobs);
	}
	return 0;
}

void rails_link_down(struct hostlink *l)
{
	if (l->rails) {
		list_remove(&l->rails->link);
	}
}

void rails_link_gone(struct hostlink *l)
{
	free(take_ptr(l->rails));
}

bool rails_link_settled(const struct hostlink *l)
{
	return !l->rails || l->rails->settled;
}

bool rails_link_uses(const struct hostlink *l, char *why, size_t size)
{
	const struct rails_link *k = l->rails;
	const struct rails_pair *tried = NULL;

	if (k && any_up(k)) {
		return true;
	}
	for (uint32_t i = 0; k && i < VERBS_RAILS_MAX && !tried; i++) {
		tried = k->pairs[i].state != RAILS_PAIR_FREE ? &k->pairs[i] : NULL;
	}
	if (why) {
		snprintf(why, size, "%s",
			 !k		? "this host does not use RDMA"
			 : tried	? tried->text
			 : k->reason[0] ? k->reason
					: "the other end has said nothing about RDMA yet");
	}
	return false;
}

void rails_link_text(const struct hostlink *l, char *buf, size_t size)
{
	const struct rails_link *k = l->rails;
	size_t n = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; k && i < VERBS_RAILS_MAX && n < size; i++) {
		const struct rails_pair *p = &k->pairs[i];
		char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];

		if (p->state != RAILS_PAIR_UP) {
			continue;
		}
		rdma_gid_text(&p->local, from);
		rdma_gid_text(&p->remote, to);
		n += (size_t)snprintf(buf + n, size - n, "%s%s port %u, %s to %s", n ? "; " : "",
				      p->device_name, p->port, from, to);
	}
}
