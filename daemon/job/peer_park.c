/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer: a connection that the other end made while we were making ours
 *
 * It waits here until it is settled which of the two is used.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "job/peers_impl.h"
#include "proto/base.h"

static void on_parked_ready(void *arg, struct link *link)
{
}

static void on_parked_frame(void *arg, struct link *link, const struct frame *frame)
{
	/* A Goodbye is followed by the end; nothing else is of interest before it is settled. */
}

static void on_parked_closed(void *arg, struct link *link, enum status status, const char *cause)
{
	struct peer *peer = arg;

	peer->parked = NULL;
	peer_hello_deinit(&peer->parked_hello);
}

static const struct link_events parked_events = {
	.ready = on_parked_ready,
	.frame = on_parked_frame,
	.closed = on_parked_closed,
};

/* See peers_impl.h. */
void peer_park(struct peer *peer, struct link *link, struct peer_hello *hello)
{
	peer->parked = link_close(peer->parked, false);
	peer_hello_deinit(&peer->parked_hello);
	peer->parked = link;
	peer->parked_hello = *hello;
	hello->msg = NULL;
	link_set_events(link, &parked_events, peer);
	if (peer->tls) {
		peer_beat(peer); /* a dead link answers with a reset */
	}
}

/**
 * peer_adopt_parked() - our own connection failed: take the one that waits
 *
 * Return: false if none waits.
 */
bool peer_adopt_parked(struct peer *peer)
{
	struct link *parked = take_ptr(peer->parked);

	if (!parked) {
		return false;
	}
	peer_hello_deinit(&peer->parked_hello);
	peer_adopt(peer, parked, false);
	return true;
}
