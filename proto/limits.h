/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Limits: every maximum that one side may rely on
 *
 * A value here is part of the protocol: growing one needs a new protocol version or a field that
 * announces it. What an operator may lower for a tenant is in the configuration instead.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §9
 */
#ifndef ROCECOMM_PROTO_LIMITS_H
#define ROCECOMM_PROTO_LIMITS_H

/* Socket framing (client and peer control links). */
#define LIMIT_FRAME_BODY (1u << 20) /* bytes of one message behind its header */
#define LIMIT_FRAME_FDS 8	    /* descriptors with one message */
/* Of a message between daemons that have agreed on their link. */
#define LIMIT_PEER_BODY (16u << 20)

/* Session page. */
#define LIMIT_RING_SLOTS 1024 /* submission ring, power of two */
#define LIMIT_TICKETS 4096    /* operations of one session that may be in flight */

/* Communicators. */
#define LIMIT_COMM_WINDOW 512	/* collectives of one rank in flight on one communicator */
#define LIMIT_P2P_WINDOW 512	/* sends plus receives of one rank in flight on one communicator */
#define LIMIT_COMM_RANKS 131072 /* ranks of one communicator */
#define LIMIT_COMM_HOSTS 16384	/* hosts of one communicator */
#define LIMIT_LOCAL_RANKS 64	/* ranks of one communicator on one host */
#define LIMIT_SESSION_BUFFERS 65535    /* buffer ids of one session: 1 .. this */
#define LIMIT_SESSION_COMMS 4096       /* communicator handles of one session: 1 .. this */
#define LIMIT_SESSION_GPU_ALLOCS 65535 /* GPU allocation ids of one session: 1 .. this */
#define LIMIT_GPU_PIECES 16384	       /* pieces of one GPU buffer */
#define LIMIT_UNIQUE_ID 256	       /* bytes of a unique id */
#define LIMIT_NAME 64		       /* bytes of a host, job or client name, with the final 0 */
#define LIMIT_ERROR_TEXT 1024	       /* bytes of an error sentence, with the final 0 */

#endif
