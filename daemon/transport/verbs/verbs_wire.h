/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs wire: what two daemons send each other over queue pairs
 *
 * A rail has one message queue pair (number 0) and some for bulk. On the message queue pair go
 * frames: a header of 32 bytes and a body, sent with SEND into posted buffers. On the others go
 * RDMA writes with immediate data, which is the ticket of the fragment; a ticket is good once.
 *
 *   short message    EAGER ->
 *   long message     RTS ->   <- CTS (tickets, addresses, keys)   writes ->   <- more CTS ...
 *   a rail fails     DOWN <-> (via another)   both: queue pairs to error, drained   DRAINED <->
 *                    RESUME (tickets that were not acknowledged) ->   <- STATE (those not arrived)
 *   it comes back    OPEN (new queue pairs) ->   <- OPENED   PROBE <->   PROBE_ACK <->
 *
 * Sequenced frames are sent again via another rail when theirs fails, and dropped when they arrive
 * a second time. Each frame hands credits of its own rail back: buffers posted anew. What is sent
 * in one turn shares a SEND, and with it a credit and a completion.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_VERBS_WIRE_H
#define ROCECOMM_VERBS_WIRE_H

#include <assert.h>
#include <stdint.h>

#define VERBS_MAGIC 0x5646	    /* "FV" */
#define VERBS_BLOB_MAGIC 0x31425652 /* "RVB1" */
#define VERBS_BLOB_VERSION 2
#define VERBS_RAILS_MAX 8
#define VERBS_QPS_MAX 9 /* of a rail: the message queue pair and the bulk ones */

enum verbs_frame_type {
	VERBS_EAGER = 1, /* body: wire header, payload */
	VERBS_RTS,	 /* from: the sender's message; count 1: any grant; body: wire header */
	VERBS_CTS,	 /* to: that message; body: count grants */
	VERBS_DOWN,	 /* rail, epoch; body: the reason, as text */
	VERBS_DRAINED, /* rail, epoch: nothing arrives there any more; body: how much did (uint64_t)
			*/
	VERBS_RESUME,  /* rail, epoch; body: count tickets (uint32_t) */
	VERBS_STATE,   /* rail, epoch; body: those that did not arrive; answers RESUME */
	VERBS_OPEN,    /* rail; body: blob */
	VERBS_OPENED,  /* rail; body: blob */
	/* Not sequenced; they belong to the rail that they come on. */
	VERBS_CREDIT,
	VERBS_PROBE, /* epoch; body: padding */
	VERBS_PROBE_ACK,
	VERBS_CHECK, /* body: writes acknowledged so far by each bulk queue pair (uint64_t) */
	VERBS_FRAME_COUNT_
};

struct verbs_frame_header {
	uint16_t magic;
	uint8_t type;
	uint8_t rail; /* that the frame is about */
	uint16_t credits;
	uint16_t count;
	uint32_t seq;	 /* of sequenced frames, from 1 */
	uint32_t length; /* of the body */
	uint32_t to, from;
	uint32_t epoch;
	uint32_t reserved;
};

/* One fragment that may be written. */
struct verbs_grant {
	uint64_t addr;
	uint64_t offset; /* in the message */
	uint32_t size;
	uint32_t ticket;
	uint32_t rails; /* bits of those that key[] is good for */
	uint32_t reserved;
	uint32_t key[VERBS_RAILS_MAX];
};

/* One end of a rail, for the other end. Carried by the daemons' connection. */
struct verbs_blob {
	uint32_t magic;
	uint16_t version;
	uint8_t rail;
	uint8_t nqps;
	uint8_t gid[16];
	uint32_t qpn[VERBS_QPS_MAX];
	uint32_t psn[VERBS_QPS_MAX];
	uint32_t epoch;
	uint16_t lid;
	uint16_t mtu;	   /* active, bytes */
	uint16_t credits;  /* receive buffers for frames */
	uint16_t tickets;  /* that it hands out at most at a time */
	uint32_t frame;	   /* largest body of a frame */
	uint32_t fragment; /* largest */
	uint8_t traffic_class;
	uint8_t port;
	uint8_t device_index; /* another one than in the blob before: keys of this rail are void */
	uint8_t reserved;
	char device[32];
};

/* Frames up to CTS may follow each other in one SEND, each at a multiple of so many bytes. */
#define VERBS_FRAME_ALIGN 64u

/* What is told of a ticket: its place in the receiver's table, and how often that was used. */
#define VERBS_TICKET_BITS 12
#define VERBS_TICKET_MAX 1024u
#define VERBS_TICKET_INDEX(t) ((t) & ((1u << VERBS_TICKET_BITS) - 1))
/* The immediate of a write that only tries the way: no ticket. */
#define VERBS_IMM_PROBE UINT32_MAX

static_assert(sizeof(struct verbs_frame_header) == 32, "fixed");
static_assert(sizeof(struct verbs_grant) == 64, "fixed");
static_assert(sizeof(struct verbs_blob) == 152, "fixed");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little endian");

#endif
