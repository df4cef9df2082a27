/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Connection to a peer host: credits, grants, messages that came early
 *
 * A message may be sent when the receiver has granted its segment (the operation has started there,
 * so the message has a place to go) or, if it is small, against an eager credit: the receiver keeps
 * `eager_credits` buffers of `eager` bytes for this sender. Credits come back in the header of any
 * message, or in one of their own when half of them are owed. So no stream ever stops for a message
 * that nobody waits for, and one job cannot block another.
 *
 * Thread: progress (allocated and freed by control)      Owns: eager buffers      Locks: none
 * See: PROTOCOL.md §8
 */
#ifndef ROCECOMM_ENGINE_CONN_H
#define ROCECOMM_ENGINE_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/comm.h"
#include "engine/mailbox.h"
#include "transport/transport.h"

#define CONN_DISCARDS 1024 /* messages of failed operations that may arrive at a time */

enum recv_kind {
	RECV_CONTROL = 0,
	RECV_STEP = 1,	     /* user: struct step_state */
	RECV_EAGER = 2,	     /* user: struct eager_slot */
	RECV_DISCARD = 3,    /* user: struct discard */
	RECV_P2P = 4,	     /* user: struct p2p_part */
	RECV_RAIL_FRAME = 5, /* user: struct relay_frame */
	RECV_RAIL_WRITE = 6, /* user: struct relay_landing */
	RECV_GAUGE = 7,	     /* user: struct answer (gauge.c) */
};

/* What transport_recv.user points to begins with the kind. */
struct recv_target {
	uint8_t kind;
	void *object;
};

struct eager_slot {
	struct list link; /* engine_conn.free or engine_comm.unexpected */
	struct transport_recv recv;
	struct recv_target target;
	struct iovec iov;
	struct wire_header header;
	struct engine_peer *peer;
	uint32_t host; /* in the communicator of the message */
	uint64_t comm;
	uint8_t *data;
	bool complete;
};

struct discard {
	struct list link;
	struct transport_recv recv;
	struct recv_target target;
	struct engine_peer *peer;
};

struct gauge;
struct relay;

struct engine_peer {
	struct list link;
	struct progress *progress;
	struct transport_peer *transport;
	struct relay *relay; /* its rails; NULL: none */
	struct gauge *gauge;
	_Atomic uint64_t heard; /* ns: a message began; relaxed, read by control */
	void *user;
	uint32_t credits; /* eager messages we may send */
	bool starved;	  /* somebody waits for credits */
	uint32_t owed;	  /* credits that we owe */
	bool credit_busy;
	struct transport_send credit_send;
	struct transport_recv control_recv;
	struct recv_target control_target;
	struct eager_slot *slots;
	struct list free_slots;
	struct list arriving; /* slots being filled */
	struct discard *discards;
	struct list free_discards;
	uint8_t *slab;
	bool down;
	int error;
	const char *reason;
	const char *lost; /* what went; NULL: the data connections */
	struct mailbox_msg down_msg;
	struct mailbox_msg *remove_msg;
};

extern const struct transport_handler conn_handler;

/* Control thread. */
int conn_new(struct progress *p, void *user, struct engine_peer **ret);
struct engine_peer *conn_free(struct engine_peer *peer);

/* Sends a message, with the credits that we owe; a lost peer fails it at once. */
void conn_send(struct engine_peer *peer, struct transport_send *send);
/*
 * Gives up a message that is arriving. Return: true when nothing is written to its memory from now
 * on; false when that is so at its recv_done() only, or when the peer is lost.
 */
bool conn_drop(struct engine_peer *peer, struct transport_recv *recv);
/* For the transports: see struct transport_handler. */
int conn_recv_begin(struct engine_peer *peer, const struct wire_header *h,
		    struct transport_recv **ret);
void conn_fragment(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
		   uint64_t size);
void conn_recv_done(void *arg, struct transport_recv *recv);
/* A message of this length may go without a grant: takes a credit. */
bool conn_take_credit(struct engine_peer *peer, uint64_t length);
void conn_owe_credit(struct engine_peer *peer);
/* Gives the buffer of an early message back, with its credit. */
void conn_release_slot(struct eager_slot *slot);
/* Looks for an early message; NULL if none is complete. */
struct eager_slot *conn_find_early(struct engine_comm *c, uint8_t type, uint32_t host, uint32_t seq,
				   uint32_t segment, uint32_t tag, uint32_t root);
/* Any early message of a collective; NULL if there is none. */
struct eager_slot *conn_find_stray(struct engine_comm *c, uint32_t seq);
/* The communicator is about to go: messages that still arrive for it count for nobody. */
void conn_forget(struct engine_comm *c);
/* Drops all early messages of a communicator. */
void conn_drop_early(struct engine_comm *c);
/* The engine gives it up: as conn_shut(), and control is told. */
void conn_lose(struct engine_peer *peer, int error, const char *reason);
/* Takes it out of service: streams closed, everything of it abandoned. */
void conn_shut(struct engine_peer *peer);

/* Signature fields <-> header. */
void conn_put_signature(struct wire_header *h, const struct engine_signature *sig);
struct engine_signature conn_get_signature(const struct wire_header *h);

#endif
