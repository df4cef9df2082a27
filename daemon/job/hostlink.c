/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Host link: implementation
 *
 * Thread: control      Owns: see hostlink.h      Locks: none
 */
#include "job/hostlink.h"

#include <stdlib.h>
#include <string.h>

#include "job/rails.h"
#include "proto/base.h"
#include "util/log.h"

struct hostlink *hostlink_of(struct jobs *jobs, struct peer *peer)
{
	struct hostlink *l = peer_user(peer);

	if (l) {
		return l;
	}
	l = calloc(1, sizeof(*l));
	if (!l) {
		return NULL;
	}
	l->jobs = jobs;
	l->peer = peer;
	list_append(&jobs->links, &l->link);
	peer_set_user(peer, l);
	return l;
}

static void hostlink_engine_gone(void *arg)
{
	rails_link_gone(arg);
	free(arg);
}

void hostlink_drop(struct hostlink *l)
{
	peer_set_user(l->peer, NULL);
	rails_link_down(l);
	l->peer = NULL;
	list_remove(&l->link);
	if (l->engine && !l->jobs->stopped) {
		engine_peer_remove(l->jobs->engine, l->engine, hostlink_engine_gone, l);
	} else {
		hostlink_engine_gone(l);
	}
}

int hostlink_stream(struct hostlink *l, int fd, unsigned int index)
{
	int r;

	if (!l->engine) {
		r = engine_peer_add(l->jobs->engine, l, &l->engine);
		if (r < 0) {
			base_close(fd);
			return err_trace(r);
		}
	}
	return err_trace(engine_peer_stream(l->jobs->engine, l->engine, fd, index));
}

/* See hostlink.h. */
int hostlink_connect(struct jobs *jobs, const Rocecomm__Peer__Host *host, bool visit,
		     struct hostlink **ret)
{
	struct peer_host where = {
		.visit = visit,
		.name = host->name[0] ? host->name : NULL,
		.addresses = (const char *const *)host->addresses,
		.naddresses = MIN(host->n_addresses, (size_t)PEER_MAX_ADDRESSES),
		.port = (uint16_t)host->port,
	};
	struct peer *peer;
	int r;

	if (host->host_id.len == PEER_HOST_ID) {
		memcpy(where.host_id, host->host_id.data, PEER_HOST_ID);
	}
	r = peers_connect(jobs->peers, &where, &peer);
	if (r < 0) {
		return r;
	}
	*ret = hostlink_of(jobs, peer);
	if (!*ret) {
		return err_origin(-ENOMEM);
	}
	(*ret)->visit = peer_is_visit(peer);
	return 0;
}

void hostlink_send(struct hostlink *l, uint16_t type, const ProtobufCMessage *msg)
{
	int r;

	if (!l || !l->peer) {
		return;
	}
	r = peer_send(l->peer, type, msg);
	if (r < 0) {
		log_warn("message %u to host %s is not sent: %s", type, peer_name(l->peer),
			 strerror(-r));
	}
}

void hostlink_send_frame(struct hostlink *l, const uint8_t *frame, size_t size)
{
	int r;

	if (!l || !l->peer) {
		return;
	}
	r = peer_send_frame(l->peer, frame, size);
	if (r < 0) {
		log_warn("a message to host %s is not sent: %s", peer_name(l->peer), strerror(-r));
	}
}

bool hostlink_is_up(const struct hostlink *l)
{
	return l->peer && peer_is_up(l->peer) && l->engine && !l->broken;
}

bool hostlink_is_ready(const struct hostlink *l)
{
	return hostlink_is_up(l) && rails_link_settled(l);
}
