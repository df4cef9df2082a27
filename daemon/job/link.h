/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Link: one TCP connection with TLS, the hello and frames inside it
 *
 * Knows nothing of hosts: who is at the other end, which of two links is kept and when one is dead
 * is decided in peer.c. A link is used from link_new_*() until its closed() event or link_close();
 * its memory goes when the loop has let go of it, so that both may be called from inside its
 * events.
 *
 * Thread: control      Owns: socket, TLS, decoder      Locks: none      See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_LINK_H
#define ROCECOMM_JOB_LINK_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "job/tls.h"
#include "proto/frame.h"
#include "proto/status.h"

#define LINK_BUFFER 16384		/* bytes read, or decrypted, at a time */
#define LINK_QUEUE_MAX (64u << 20)	/* bytes that may wait for a peer that does not read */
#define LINK_BODY_MAX_FIRST (64u << 10) /* bytes of a message before the link is agreed on */

struct link;

/* What all links of a loop share; borrowed by each for its life. */
struct link_host {
	uv_loop_t *loop;
	struct tls_context *tls;
	void (*opened)(struct link_host *host); /* a link lives in the loop ... */
	void (*gone)(struct link_host *host);	/* ... until here */
	uint8_t cipher[LINK_BUFFER], plain[LINK_BUFFER];
};

struct link_events {
	/* TLS and hello are done: frames may be sent. */
	void (*ready)(void *arg, struct link *link);
	void (*frame)(void *arg, struct link *link, const struct frame *frame);
	/*
	 * Failed, or ended by the other side. No event follows, the link must not be used again.
	 * @cause: "connection refused", without the address
	 */
	void (*closed)(void *arg, struct link *link, enum status status, const char *cause);
};

/* Failure to connect comes through closed(). Return: 0, -ENOMEM. */
int link_new_connect(struct link_host *host, const struct sockaddr_storage *address,
		     const struct link_events *events, void *arg, struct link **ret);
/* @fd: connected; consumed on success. Return: 0, -ENOMEM, another negative errno. */
int link_new_accepted(struct link_host *host, int fd, const struct link_events *events, void *arg,
		      struct link **ret);
/* Whose events are called from now on. */
void link_set_events(struct link *link, const struct link_events *events, void *arg);
/* Messages up to LIMIT_PEER_BODY may come: the other side is known. */
void link_trust(struct link *link);
/*
 * Sends a message; ready() must have been called. Never calls an event.
 * Return: 0, -EMSGSIZE, -ENOBUFS (LINK_QUEUE_MAX bytes wait already), -ENOMEM, -EPIPE.
 */
int link_send(struct link *link, uint16_t type, const ProtobufCMessage *msg);
/* Sends a packed frame (header and body). */
int link_send_frame(struct link *link, const uint8_t *frame, size_t size);
/* No event follows. @flush: what was sent still goes out, within half a second. NULL allowed. */
struct link *link_close(struct link *link, bool flush);

/* When bytes came last, in uv_now() of the loop. */
uint64_t link_heard(const struct link *link);
void link_get_addresses(const struct link *link, struct sockaddr_storage *ret_local,
			struct sockaddr_storage *ret_remote);

#endif
