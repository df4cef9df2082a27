/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Wire header: 64 bytes in front of every fragment between two daemons
 *
 * Little endian. A fragment carries bytes [offset, offset + fragment) of a message of `length`
 * bytes; all fragments of a message repeat the same other fields. Every message carries the
 * signature of its operation, so that ranks that disagree find out at the first byte.
 *
 * A message is identified by (comm, seq, segment, tag, type) between two hosts; it is sent once.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §8
 */
#ifndef ROCECOMM_WIRE_H
#define ROCECOMM_WIRE_H

#include <assert.h>
#include <stdint.h>

#define WIRE_MAGIC 0x5257 /* "WR" */
#define WIRE_SIZE 64
#define WIRE_P2P_PART (UINT64_C(4) << 20) /* a longer send is several messages, by segment */

enum wire_type {
	WIRE_DATA = 1,	    /* payload of a plan's SEND step */
	WIRE_GRANT = 2,	    /* receiver to sender: segments below `segment` may come */
	WIRE_CREDIT = 3,    /* only returns eager credits */
	WIRE_RTS = 4,	    /* sender to receiver: grant me (seq), please */
	WIRE_P2P = 5,	    /* payload of a send: tag = source rank, root = destination rank */
	WIRE_P2P_GRANT = 6, /* sends below seq may come; of the last of them parts below segment */
	WIRE_P2P_RTS = 7,
	WIRE_RAIL_FRAME = 8, /* payload: a frame of the verbs transport, while no rail is up */
	WIRE_RAIL_WRITE = 9, /* payload: a fragment of it; tag = its ticket */
	WIRE_GAUGE = 10,     /* payload: nothing; to be answered, with the same seq and segment */
	WIRE_GAUGE_ACK = 11,
	WIRE_TYPE_COUNT_
};

enum wire_flags {
	WIRE_EAGER = 1u << 0, /* uses one eager credit of the sender */
	WIRE_WHOLE = 1u << 1, /* a P2P_GRANT: the last of them may come as one message, too */
};

struct wire_header {
	uint16_t magic;
	uint8_t type;
	uint8_t flags;
	uint32_t fragment; /* payload bytes behind this header */
	uint64_t length;   /* of the whole message */
	uint64_t offset;   /* of this fragment in it */
	uint64_t comm;	   /* uid of the communicator */
	uint32_t seq;	   /* number of the collective, or of the send from tag to root */
	uint32_t segment;
	uint32_t tag;
	uint16_t credits; /* eager credits handed back to the receiver of this header */
	uint8_t kind;	  /* signature: enum coll_kind */
	uint8_t dtype;	  /* enum dtype */
	uint64_t count;	  /* signature: elements */
	uint32_t root;	  /* signature: root, or destination */
	uint8_t op;	  /* signature: enum redop */
	uint8_t algo;	  /* enum coll_algo that the sender chose */
	uint16_t reserved;
};

static_assert(sizeof(struct wire_header) == WIRE_SIZE, "fixed");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little endian");

#endif
