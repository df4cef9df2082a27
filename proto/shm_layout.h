/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Shared-memory layout of a session: header, submission ring, completion cells, gates
 *
 * One memfd a session, created and sealed (shrink, grow, seal) by the daemon and mapped by both
 * sides. The client writes descriptors into the ring and reads completion cells; the daemon does
 * the reverse. Neither side trusts a word the other may write: the daemon copies a descriptor once
 * and validates the copy; indexes are masked; a tail that is more than the ring ahead of the
 * head is a protocol error. Offsets only, never pointers.
 *
 * Every cache line has one writer. The ring indexes run free (no wrap at the ring size).
 *
 * Thread: see each field      Owns: nothing      Locks: none      See: PROTOCOL.md §5
 */
#ifndef ROCECOMM_PROTO_SHM_LAYOUT_H
#define ROCECOMM_PROTO_SHM_LAYOUT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define SHM_MAGIC 0x314d4d4f43434f52ull /* "ROCCOMM1" little endian */
#define SHM_VERSION 1u
#define SHM_LINE 64

enum shm_daemon_state {
	SHM_DAEMON_RUNNING = 0,
	SHM_DAEMON_STOPPING = 1, /* clean stop: every operation fails with STATUS_SHUTDOWN */
};

/* Page 0. The first 64 bytes never change after the page is handed over. */
struct shm_header {
	uint64_t magic;
	uint32_t version;
	uint32_t size;	     /* bytes, without the gates */
	uint32_t ring_off;   /* first descriptor */
	uint32_t ring_slots; /* power of two */
	uint32_t slot_size;  /* sizeof(struct shm_desc) of the daemon */
	uint32_t cell_off;   /* first completion cell */
	uint32_t cell_count;
	uint32_t gate_off;   /* first gate; outside `size` (see gates) */
	uint32_t gate_count; /* 0: the daemon has none */
	uint32_t reserved0[5];

	/* line 1, writer: daemon */
	_Atomic uint32_t completions;  /* futex word: +1 for every batch of completions */
	_Atomic uint32_t daemon_state; /* enum shm_daemon_state */
	_Atomic uint32_t sleeping;     /* 1: the progress thread needs the bell (see ring.h) */
	uint32_t reserved1[13];

	/* line 2, writer: daemon */
	_Atomic uint32_t head; /* descriptors consumed, free running */
	uint32_t reserved2[15];

	/* line 3, writer: client */
	_Atomic uint32_t tail; /* descriptors published, free running */
	uint32_t reserved3[15];

	/* line 4, writer: client */
	_Atomic uint32_t waiters;    /* threads in or entering FUTEX_WAIT on `completions` */
	_Atomic uint32_t want_event; /* 1: also write the completion eventfd */
	uint32_t reserved4[14];

	/* line 5, writer: client; nothing depends on it */
	_Atomic uint64_t staged; /* bytes copied to and from memory that is not shared */
	uint32_t reserved5[14];
};

enum shm_desc_flags {
	SHM_DESC_BATCH =
		1u << 0, /* more of the same batch follow (a hint: no wake-up needed yet) */
	/*
	 * The operation is posted, and counts as such, only when gate number `ticket` is equal to
	 * `generation`: a GPU stream writes it there. Only in a page that has gates.
	 */
	SHM_DESC_GATED = 1u << 1,
};

/*
 * One posted operation; fields that an operation does not use are 0.
 *
 * Block collectives (allgather, reduce-scatter, gather, scatter, alltoall): `count` is the number
 * of elements of one rank's block. v-variants: args names count and displacement arrays in a
 * registered buffer, each `size of communicator` u64, in elements:
 *   allgatherv, reduce-scatterv: counts[size], displs[size]      (same on every rank)
 *   gatherv: on the root counts[size], displs[size]; elsewhere none, count = own block
 *   scatterv: the same
 *   alltoallv: send counts, send displs, recv counts, recv displs
 * reduce-scatterv ignores displs: block r of the send buffer begins at the sum of counts[0..r-1].
 */
struct shm_desc {
	uint32_t ticket;     /* completion cell */
	uint32_t generation; /* value that the cell takes when done; never the cell's current one */
	uint32_t comm;	     /* handle of this session */
	uint8_t kind;	     /* enum coll_kind */
	uint8_t dtype;	     /* enum dtype */
	uint8_t op;	     /* enum redop */
	uint8_t flags;	     /* enum shm_desc_flags */
	uint32_t root;	     /* root, or the other rank of a send or receive */
	uint32_t send_buf;   /* buffer id, 0: none */
	uint32_t recv_buf;
	uint32_t args_buf;
	uint64_t count;	   /* elements */
	uint64_t send_off; /* bytes */
	uint64_t recv_off;
	uint64_t args_off;
	uint64_t seq;	 /* how many collectives (or sends to / receives from that rank) of this
			  * communicator this rank posted before this one */
	uint64_t scalar; /* premul-sum: the bits of a double (floats) or of an int64 (integers) */
	uint64_t reserved[6];
};

/*
 * Completion cell: writer daemon. `status` and `bytes` are stored first, then `generation` with
 * release order; the client reads `generation` with acquire order.
 */
struct shm_cell {
	_Atomic uint32_t generation;
	uint32_t status; /* enum status */
	uint64_t bytes;	 /* received payload, for receives */
};

static_assert(sizeof(struct shm_desc) == 128, "two cache lines");
static_assert(sizeof(struct shm_cell) == 16, "four to a cache line");
static_assert(sizeof(struct shm_header) == 6 * SHM_LINE, "six lines");
static_assert(offsetof(struct shm_header, completions) == 1 * SHM_LINE, "line 1");
static_assert(offsetof(struct shm_header, head) == 2 * SHM_LINE, "line 2");
static_assert(offsetof(struct shm_header, tail) == 3 * SHM_LINE, "line 3");
static_assert(offsetof(struct shm_header, waiters) == 4 * SHM_LINE, "line 4");
static_assert(offsetof(struct shm_header, staged) == 5 * SHM_LINE, "line 5");
static_assert(offsetof(struct shm_desc, root) == 16, "fixed");
static_assert(offsetof(struct shm_desc, count) == 32, "fixed");
static_assert(offsetof(struct shm_desc, scalar) == 72, "fixed");

#define SHM_RING_OFF 4096u
#define SHM_CELL_OFF (SHM_RING_OFF + LIMIT_RING_SLOTS * (uint32_t)sizeof(struct shm_desc))
#define SHM_SIZE (SHM_CELL_OFF + LIMIT_TICKETS * (uint32_t)sizeof(struct shm_cell))
static_assert(SHM_SIZE % 4096 == 0, "whole pages");

/*
 * Gates: one u32 a ticket, behind the rest, in files of SHM_FULL_SIZE bytes. Writer: the client, or
 * rather a stream of its GPU, which thereby says that all its earlier work is done. The daemon
 * reads (acquire) those that it waits for, and nothing rings a bell for it. The other direction
 * needs no word of its own: a stream waits for the cell's `generation`.
 */
#define SHM_GATE_OFF SHM_SIZE
#define SHM_FULL_SIZE (SHM_GATE_OFF + LIMIT_TICKETS * (uint32_t)sizeof(uint32_t))
static_assert(SHM_FULL_SIZE % 4096 == 0, "whole pages");

#endif
