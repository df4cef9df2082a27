/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails: one peer
 *
 * Both ends tell their ports, then pairs are made of them (rails_pair.c). From there on the
 * transports of both ends keep the rails: they try them, leave them, open them again. Control only
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

static void start(struct rails_link *k);

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
	if (!k->settled && !rails_link_is_gone(k)) {
		k->settled = true;
		communicators_link_up(k->rails->jobs, k->l);
	}
}

void rails_link_check(struct rails_link *k)
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
				ports[n].gid.len = RAILS_GID_SIZE;
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
	k->noffered = (uint32_t)msg.n_ports;
	if (msg.n_ports == 0 && !rails_pair_is_open(&k->pairs[0])) {
		snprintf(k->reason, sizeof(k->reason), "host %s has no port for RDMA (%.300s)",
			 jobs_host(k->rails->jobs), reason);
	}
	return msg.n_ports;
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

		if (port->gid.len != RAILS_GID_SIZE || port->port > UINT8_MAX) {
			continue;
		}
		memset(info, 0, sizeof(*info));
		memcpy(remote->gid.raw, port->gid.data, RAILS_GID_SIZE);
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
		rails_link_check(k);
		return false;
	}
	rails_pairs_propose(k);
	return false;
}

/* ---- changes ------------------------------------------------------------------------------ */

void rails_links_changed(struct rails *rails)
{
	list_for_each_safe (at, &rails->links) {
		struct rails_link *k = container_of(at, struct rails_link, link);

		start(k);
		rails_pairs_follow(k);
		if (send_ports(k) == 0 && !rails_adding(rails)) {
			settle(k);
		}
		rails_pairs_propose(k);
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

	if (!p || rails_link_is_gone(k) || !rails_pair_is_open(p)) {
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
	rails_link_check(k);
}

/* ---- life --------------------------------------------------------------------------------- */

/* When there is a device. */
static void start(struct rails_link *k)
{
	if (k->started || !k->rails->started || !k->l->engine || rails_link_is_gone(k)) {
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
	/* Without a port, now or in a moment, nothing is waited for. */
	k->settled = send_ports(k) == 0 && !rails_adding(rails);
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
