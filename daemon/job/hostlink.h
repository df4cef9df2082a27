/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Host link: what this layer keeps of a peer, and its data connections in the engine
 *
 * Lives exactly as long as its struct peer is known; when the peer goes, whoever holds the link is
 * told first (jobs.c) and lets go of it.
 *
 * Thread: control      Owns: the engine's peer      Locks: none
 */
#ifndef ROCECOMM_JOB_HOSTLINK_H
#define ROCECOMM_JOB_HOSTLINK_H

#include <stdbool.h>
#include <stdint.h>

#include "job/jobs.h"

struct rails_link;

struct hostlink {
	struct list link; /* jobs.links */
	struct jobs *jobs;
	struct peer *peer;
	struct engine_peer *engine; /* NULL until the first data connection */
	struct rails_link *rails;   /* RDMA; NULL: none, or not up yet */
	bool reached;		    /* it was up */
	bool broken;		    /* its data connections are lost */
	bool visit;		    /* we make it, and end it: see join.h */
};

/* The link of a peer, made when there is none. NULL: no memory. */
struct hostlink *hostlink_of(struct jobs *jobs, struct peer *peer);
/* The peer goes. */
void hostlink_drop(struct hostlink *l);
/* Return: 0 or negative errno; the stream's fd is consumed. */
int hostlink_stream(struct hostlink *l, int fd, unsigned int index);
/*
 * Connects to a host, or finds the link to it. jobs_telling() was called. @visit: a link without
 * data connections will do; it ends by itself when no rank waits there. Return: 0, negative errno.
 */
int hostlink_connect(struct jobs *jobs, const Rocecomm__Peer__Host *host, bool visit,
		     struct hostlink **ret);
/* Sends; a link that cannot take it goes down by itself. @l: NULL allowed: nothing is sent. */
void hostlink_send(struct hostlink *l, uint16_t type, const ProtobufCMessage *msg);
/* The same with a packed message (proto/frame.h), for many. */
void hostlink_send_frame(struct hostlink *l, const uint8_t *frame, size_t size);
bool hostlink_is_up(const struct hostlink *l);
/* And it is known what carries data, or that was waited for long enough. */
bool hostlink_is_ready(const struct hostlink *l);

#endif
