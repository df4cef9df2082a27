/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Relay: a peer's rails, and the data connections that stand in for them
 *
 * While no rail is up the verbs backend talks to the other end over the data connections: frames
 * that bring a rail back, and, where TCP is allowed, all that it had begun. Frames travel as
 * messages of type WIRE_RAIL_FRAME, fragments as WIRE_RAIL_WRITE, which lands where the ticket
 * says. Everything that this takes is allocated with the relay.
 *
 * What becomes of a rail is told to control; its latest state only, if control is slow.
 *
 * Thread: progress (allocated and freed by control)      Owns: its buffers      Locks: none
 * See: PROTOCOL.md §8b
 */
#ifndef ROCECOMM_ENGINE_RELAY_H
#define ROCECOMM_ENGINE_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/conn.h"
#include "engine/mailbox.h"
#include "transport/verbs/verbs.h"

#define RELAY_FRAMES 16 /* to send, at a time */
#define RELAY_WRITES 8
#define RELAY_ARRIVING 64 /* frames: more than a peer has data connections */

struct relay_frame {
	struct list link;
	struct relay *relay;
	struct transport_send send;
	struct transport_recv recv;
	struct recv_target target;
	struct iovec iov;
	uint8_t *data;
};

struct relay_write {
	struct list link;
	struct relay *relay;
	struct transport_send send;
	struct iovec iov;
	struct verbs_fragment *fragment;
};

/* A fragment that is arriving, in the place of its ticket. */
struct relay_landing {
	struct relay *relay;
	struct transport_recv recv;
	struct recv_target target;
	struct iovec iov;
	uint32_t ticket;
	bool busy;
};

struct relay_note {
	struct mailbox_msg msg;
	struct relay *relay;
	_Atomic bool busy; /* control has it */
	bool due;
	enum verbs_rail_state state, next_state;
	char text[VERBS_REASON], next_text[VERBS_REASON];
};

struct relay {
	struct engine_peer *peer;
	struct verbs_peer *verbs;
	char name[64];		   /* of the peer */
	char reason[VERBS_REASON]; /* of its end */
	bool initiator;
	size_t frame_max;
	struct relay_frame frames[RELAY_FRAMES], arriving[RELAY_ARRIVING];
	struct relay_write writes[RELAY_WRITES];
	struct list free_frames, free_arriving, free_writes;
	uint32_t ntickets;
	struct relay_landing *landings; /* [ntickets] */
	struct relay_note notes[VERBS_RAILS_MAX];
	uint8_t *slab;
};

extern const struct verbs_handler relay_handler_only; /* no message goes by TCP */
extern const struct verbs_handler relay_handler;

/* Control. */
int relay_new(struct engine_peer *peer, const char *name, bool initiator, size_t frame_max,
	      uint32_t ntickets, struct relay **ret);
struct relay *relay_free(struct relay *r);

/* Progress: its rails may be opened from now on. Return: 0, -ENOMEM. */
int relay_start(struct relay *r);
/* The data connections are closed; queue pairs are gone when this returns. NULL allowed. */
void relay_stop(struct relay *r);
/* Do new messages to the peer go by RDMA? */
bool relay_takes(const struct engine_peer *peer);
/* A message for the relay begins. Return: 0, or -EPROTO. */
int relay_recv_begin(struct engine_peer *peer, const struct wire_header *h,
		     struct transport_recv **ret);
void relay_frame_done(struct relay_frame *f);
void relay_write_done(struct relay_landing *l);
/* Tells control what it could not be told before. Return: true when some is left. */
bool relay_tell(struct relay *r);

#endif
