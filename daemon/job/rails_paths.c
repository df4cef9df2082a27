/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails: all paths to peers, with the reason for each that is not used
 *
 * What the progress thread knows is asked for, one answer a peer; the rows are put together when
 * all are there.
 *
 * Thread: control      Owns: the collection under way      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/rails_impl.h"
#include "proto/base.h"

struct item {
	struct collection *collection;
	struct hostlink *l; /* until the engine has answered */
	struct engine_rails_view view;
	uint32_t first, n; /* its rows */
};

struct collection {
	struct rails *rails;
	rails_paths_fn done;
	void *arg;
	uint32_t pending;
	struct rails_path *paths;
	uint32_t npaths, room;
	uint32_t nitems;
	struct item items[];
};

static struct rails_path *row(struct item *item)
{
	struct collection *c = item->collection;
	struct rails_path *p;

	if (c->npaths == c->room) {
		uint32_t room = MAX(16u, 2 * c->room);
		struct rails_path *grown = realloc(c->paths, room * sizeof(*grown));

		if (!grown) {
			return NULL;
		}
		c->paths = grown;
		c->room = room;
	}
	p = &c->paths[c->npaths++];
	memset(p, 0, sizeof(*p));
	memcpy(p->host_id, peer_host_id(item->l->peer), PEER_HOST_ID);
	snprintf(p->peer, sizeof(p->peer), "%s", peer_name(item->l->peer));
	p->rail = -1;
	return p;
}

static void row_tcp(struct item *item)
{
	const struct rails *rails = item->collection->rails;
	struct rails_path *p = row(item);
	char why[VERBS_REASON];

	if (!p) {
		return;
	}
	p->tcp = true;
	snprintf(p->address, sizeof(p->address), "%s", peer_address(item->l->peer));
	p->live.bytes_sent = item->view.tcp_sent;
	p->live.bytes_received = item->view.tcp_received;
	p->chosen = !item->view.up && rails_tcp_allowed(rails);
	if (item->view.up) {
		snprintf(p->reason, sizeof(p->reason), "RDMA works");
	} else if (!rails_tcp_allowed(rails)) {
		snprintf(p->reason, sizeof(p->reason), "TCP is not allowed (transport = rdma)");
	} else {
		rails_link_uses(item->l, why, sizeof(why));
		snprintf(p->reason, sizeof(p->reason), "no rail is in use: %.400s", why);
	}
}

static void row_port(const struct rails *rails, struct rails_path *p, uint32_t device,
		     uint8_t number, const union ibv_gid *gid)
{
	const struct rdma_device *d = rails->list->devices[device];

	snprintf(p->device, sizeof(p->device), "%s", d->name);
	p->port = number;
	for (uint32_t i = 0; i < d->nports; i++) {
		const struct rdma_port *port = &d->ports[i];

		if (port->number != number) {
			continue;
		}
		p->mbps = port->mbps;
		p->live.local_mtu = port->mtu;
		for (uint32_t g = 0; gid && g < port->ngids; g++) {
			if (memcmp(&port->gids[g].gid, gid, sizeof(*gid)) == 0) {
				p->live.gid_index = port->gids[g].index;
				memcpy(p->interface, port->gids[g].interface, sizeof(p->interface));
			}
		}
	}
	if (gid) {
		rdma_gid_text(gid, p->gid);
	}
}

/* What the progress thread says of it. */
static void row_live(struct rails_path *p, const struct verbs_rail_info *v)
{
	if (v->state == VERBS_RAIL_NONE) {
		return;
	}
	p->live = *v;
	if (v->remote_mtu) {
		rdma_gid_text(&v->remote, p->remote_gid);
	}
}

static void row_pair(struct item *item, const struct rails_pair *pair)
{
	const struct rails_link *k = pair->link;
	struct rails_path *p = row(item);

	if (!p) {
		return;
	}
	p->rail = (int)pair->rail;
	row_port(k->rails, p, pair->device, pair->port, &pair->local);
	rdma_gid_text(&pair->remote, p->remote_gid);
	for (uint32_t i = 0; i < k->nremote; i++) {
		if (memcmp(&k->remote[i].gid, &pair->remote, sizeof(pair->remote)) == 0) {
			memcpy(p->remote_device, k->info[i].device, sizeof(p->remote_device));
			p->remote_port = k->info[i].port;
			p->live.remote_mtu = k->info[i].mtu;
		}
	}
	row_live(p, &item->view.rails[pair->rail]);
	p->chosen = p->live.state == VERBS_RAIL_UP;
	if (p->chosen) {
		snprintf(p->reason, sizeof(p->reason), "a trial transfer succeeded");
	} else {
		snprintf(p->reason, sizeof(p->reason), "%s", pair->text);
	}
}

static bool is_paired(const struct rails_link *k, const struct rdma_port *port)
{
	for (uint32_t i = 0; i < VERBS_RAILS_MAX; i++) {
		const struct rails_pair *p = &k->pairs[i];

		if (p->state != RAILS_PAIR_FREE && p->device == port->device->index &&
		    p->port == port->number) {
			return true;
		}
	}
	return false;
}

/* A port of ours that has no partner there, and why. */
static void row_alone(struct item *item, const struct rdma_device *d, const struct rdma_port *port)
{
	const struct rails_link *k = item->l->rails;
	struct rails_path *p = row(item);
	const char *why = d->reason;

	if (!p) {
		return;
	}
	snprintf(p->device, sizeof(p->device), "%s", d->name);
	if (port) {
		row_port(k->rails, p, d->index, port->number, NULL);
		why = !port->usable && port->reason[0] ? port->reason : why;
	}
	if (!why[0]) {
		why = !k->heard	     ? "the other end has said nothing about RDMA yet"
		      : k->reason[0] ? k->reason
				     : "no port of the other end is left that it has a route to";
	}
	snprintf(p->reason, sizeof(p->reason), "%s", why);
}

static void rows_alone(struct item *item)
{
	const struct rails *rails = item->collection->rails;
	const struct rails_link *k = item->l->rails;
	struct rails_path *p;

	if (!rails->list || rails->list->count == 0) {
		p = row(item);
		if (p) {
			rails_no_port(rails, p->reason, sizeof(p->reason));
		}
		return;
	}
	for (uint32_t i = 0; i < rails->list->count; i++) {
		const struct rdma_device *d = rails->list->devices[i];

		if (d->nports == 0 || d->gone) {
			row_alone(item, d, NULL);
			continue;
		}
		for (uint32_t n = 0; n < d->nports; n++) {
			if (!is_paired(k, &d->ports[n])) {
				row_alone(item, d, &d->ports[n]);
			}
		}
	}
}

static void rows(struct item *item)
{
	const struct rails_link *k = item->l->rails;

	row_tcp(item);
	for (uint32_t i = 0; k && i < VERBS_RAILS_MAX; i++) {
		if (k->pairs[i].state != RAILS_PAIR_FREE) {
			row_pair(item, &k->pairs[i]);
		}
	}
	if (k) {
		rows_alone(item);
	}
}

static void finish(struct collection *c)
{
	if (c->pending == 0) {
		c->done(c->arg, c->paths, c->npaths);
		free(c->paths);
		free(c);
	}
}

static void on_look(void *arg)
{
	struct item *item = arg;
	struct collection *c = item->collection;

	if (item->l->peer) {
		rows(item);
	}
	c->pending--;
	finish(c);
}

static bool is_meant(const struct hostlink *l, const char *peer)
{
	const char *address = peer_address(l->peer);
	char id[2 * PEER_HOST_ID + 1];
	size_t n;

	if (!peer || strcmp(peer, peer_name(l->peer)) == 0) {
		return true;
	}
	for (int i = 0; i < PEER_HOST_ID; i++) {
		snprintf(id + 2 * i, 3, "%02x", peer_host_id(l->peer)[i]);
	}
	if (strcmp(peer, id) == 0) {
		return true;
	}
	n = strlen(peer);
	/* "10.1.0.2:7470 via eth0", "[fd00::2]:7470 via eth0" */
	return (strncmp(address, peer, n) == 0 && address[n] == ':') ||
	       (address[0] == '[' && strncmp(address + 1, peer, n) == 0 && address[n + 1] == ']');
}

/**
 * rails_paths() - collect all ways to the peers that are linked now
 * @rails: borrowed
 * @peer:  of this name, host_id or address only; NULL: all
 * @done:  called once, from the loop or at once
 * @arg:   for done
 *
 * Return: 0, or -ENOMEM.
 */
int rails_paths(struct rails *rails, const char *peer, rails_paths_fn done, void *arg)
{
	struct jobs *jobs = rails->jobs;
	struct collection *c;
	uint32_t n = 0;

	list_for_each (at, &jobs->links) {
		n++;
	}
	c = calloc(1, sizeof(*c) + n * sizeof(c->items[0]));
	if (!c) {
		return err_origin(-ENOMEM);
	}
	c->rails = rails;
	c->done = done;
	c->arg = arg;
	c->pending = 1;
	list_for_each (at, &jobs->links) {
		struct hostlink *l = container_of(at, struct hostlink, link);
		struct item *item = &c->items[c->nitems];

		if (!hostlink_is_up(l) || jobs->stopped || !is_meant(l, peer)) {
			continue;
		}
		item->collection = c;
		item->l = l;
		c->nitems++;
		c->pending++;
		engine_peer_look(jobs->engine, l->engine, &item->view, on_look, item);
	}
	c->pending--;
	finish(c);
	return 0;
}
