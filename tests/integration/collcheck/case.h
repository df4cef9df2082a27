/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Case: one operation with everything round it: buffers, canaries, expectation
 *
 * case_prepare() lays send and receive buffer out in two arenas, each filled with a canary pattern
 * before, between and behind the blocks, and computes what both must look like afterwards, to the
 * last byte. case_post() posts it; case_verify() compares both. In place the two share one arena.
 *
 * Thread: main      Owns: its expectations      Locks: none
 */
#ifndef COLLCHECK_CASE_H
#define COLLCHECK_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/roceclient.h"
#include "tests/integration/collcheck/value.h"

#define CASE_RANKS_MAX 64
#define CASE_GUARD 64 /* canary bytes before and behind */

enum arena_memory {
	ARENA_SHARED, /* roce_mem_alloc() */
	ARENA_REGISTERED,
	ARENA_PLAIN,
	ARENA_MEMORY_COUNT_
};

struct arena {
	uint8_t *base;
	size_t size;
	enum arena_memory memory;
	struct roce_buffer *buffer;
};

/* One side of an operation. */
struct side {
	uint8_t *zone; /* canary, buffer, canary */
	size_t zone_size;
	uint8_t *data;
	uint8_t *expect; /* of the zone; owned */
};

struct one_case {
	struct value_spec value; /* kind, dtype, op, size, seed */
	size_t count;
	int root; /* for send and receive: distance of the ring */
	bool in_place;
	unsigned int misalign; /* bytes */

	/* private */
	unsigned int rank;
	struct side send, recv; /* in place: send.zone is NULL, or recv.zone is */
	size_t send_counts[CASE_RANKS_MAX], send_displs[CASE_RANKS_MAX];
	size_t recv_counts[CASE_RANKS_MAX], recv_displs[CASE_RANKS_MAX];
	struct roce_request *requests[2]; /* two for a ring of send and receive */
};

/* Return: 0 or a roce status. */
int arena_init(struct arena *arena, struct roce_client *client, enum arena_memory memory,
	       size_t size);
void arena_deinit(struct arena *arena, struct roce_client *client);

/* Does the operation come in place as well? */
bool case_has_in_place(int kind);
/* How many bytes an arena needs for it. */
size_t case_room(const struct one_case *c);
/* Return: 0, or -ENOMEM. Fails an assertion when the arenas are too small. */
int case_prepare(struct one_case *c, unsigned int rank, const struct arena *send,
		 const struct arena *recv);
void case_deinit(struct one_case *c);
/* @op: what to pass for REDOP_PREMUL_SUM. Return: roce status. */
int case_post(struct one_case *c, struct roce_comm *comm, int premul);
int case_wait(struct one_case *c, int timeout_ms);
/*
 * Compares; says what is wrong on standard error. *digest takes in the received bytes.
 * Return: true when all is right.
 */
bool case_verify(const struct one_case *c, uint64_t *digest);
/* "allreduce sum f32 x 7 in place" */
const char *case_text(const struct one_case *c, char *buf, size_t size);

#endif
