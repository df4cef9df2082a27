/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Request: an operation in flight, and the ticket that it travels on
 *
 * A ticket names a completion cell; there are LIMIT_TICKETS. A request is what the user holds.
 * They are separate, so that a user who never waits cannot run out of tickets: harvesting moves
 * the results of finished operations into their requests and frees the tickets. Requests come from
 * chunks, the first of which holds LIMIT_TICKETS and is made with the client.
 *
 * States: FREE -> GROUPED (inside an open group) -> POSTED -> [FINISHING: a thread copies the
 * result out of staging without the lock] -> DONE (status known) -> FREE.
 *
 * A gated request (gpu_stream.c) has ended when its cell shows it and the stream has been past: it
 * has written the gate, and made its copies. Only then is the ticket free again.
 *
 * Thread: any, under the client's lock where said      Owns: requests, their copy lists
 * Locks: none of its own
 */
#ifndef ROCECLIENT_REQUEST_H
#define ROCECLIENT_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

struct roce_client;
struct roce_comm;
struct roce_buffer;
struct staging_block;

enum request_state {
	REQUEST_FREE,
	REQUEST_GROUPED,
	REQUEST_POSTED,
	REQUEST_FINISHING,
	REQUEST_DONE,
	REQUEST_STATE_COUNT_
};

/* One piece to copy between the user's memory and staging. */
struct copy_seg {
	uint8_t *user;
	uint8_t *stage;
	size_t size;
};

/* One piece in place, several in an owned array. */
struct copy_list {
	struct copy_seg one;
	struct copy_seg *many;
	size_t n;
	unsigned int gpu; /* 1 + device whose driver copies; 0: the CPU */
};

static inline bool ranges_overlap(const void *a, size_t a_size, const void *b, size_t b_size)
{
	return a_size > 0 && b_size > 0 && (uintptr_t)a < (uintptr_t)b + b_size &&
	       (uintptr_t)b < (uintptr_t)a + a_size;
}

/* Both count what they copy for rocectl. Return: 0, or the status of a driver that failed. */
int copy_in(struct roce_client *client, const struct copy_list *list);
int copy_out(struct roce_client *client, const struct copy_list *list);
void copy_list_deinit(struct copy_list *list);
/* For rocectl: bytes copied between staging and the user's memory. */
void request_count_staged(struct roce_client *client, uint64_t bytes);

enum { REQUEST_SEND, REQUEST_RECV, REQUEST_ARGS, REQUEST_BLOCKS };

struct roce_request {
	struct roce_client *client;
	struct roce_comm *comm; /* NULL once the communicator is destroyed or the request done */
	_Atomic uint32_t state; /* enum request_state */
	uint32_t ticket;
	uint32_t generation;
	uint32_t comm_id;
	int status; /* once DONE */
	uint8_t kind;
	bool gated;				      /* a stream posts it and waits for it */
	bool copies;				      /* gated: the stream also copies */
	size_t small;				      /* of gpu.small */
	bool detached;				      /* nobody holds it: freed when it has ended */
	struct staging_block *blocks[REQUEST_BLOCKS]; /* returned when finished */
	struct roce_buffer *mirror;		      /* that the result is copied out of */
	struct copy_list out;
	const uint8_t
		*write; /* user memory that the operation writes, for the order of staged ones */
	size_t write_size;
	const uint8_t *read; /* memory shared in place that it reads there */
	size_t read_size;
	struct roce_request *next; /* free list */
};

struct ticket {
	struct roce_request *request; /* NULL: free */
	uint32_t generation;	      /* of the last operation on it */
	uint32_t next_free;
};

struct request_chunk {
	struct request_chunk *next;
	size_t used;
	size_t room;
	struct roce_request requests[];
};

struct request_pool {
	struct request_chunk *chunks; /* the newest first */
	struct roce_request *free;
	struct ticket *tickets;
	uint32_t tickets_used; /* tickets below this were used at least once */
	uint32_t free_ticket;  /* index + 1 of the first on the free list */
};

int request_pool_init(struct request_pool *pool);
void request_pool_deinit(struct request_pool *pool);

/* Takes a request. Lock held. Return: NULL without memory. */
struct roce_request *request_new(struct roce_client *client, struct roce_comm *comm, uint8_t kind);
/* Gives back what an operation needed while it ran. Lock held. */
void request_release(struct roce_request *request);
/* Returns blocks and copy list, whatever the state. Lock held. */
void request_free(struct roce_request *request);

/* Takes a ticket for @request. Lock held. Return: false when all are in flight. */
bool request_ticket(struct roce_request *request);
/* Has the operation of that ticket ended? Lock-free. */
bool request_ticket_done(const struct roce_client *client, uint32_t ticket, uint32_t generation);

/* May request_finish() be called? Lock-free. */
bool request_ready(const struct roce_request *request);
/* Ends a ready request: copies results out. Lock not held. Return: its status (no sentence). */
int request_finish(struct roce_request *request);
/* Is an operation of @comm in flight that writes into [ptr, ptr + size)? Lock held. */
bool request_writes(const struct roce_comm *comm, const uint8_t *ptr, size_t size);
/* The same of one that reads there, from memory shared in place. */
bool request_reads(const struct roce_comm *comm, const uint8_t *ptr, size_t size);
/* Has the order of copies to regard it? */
static inline bool request_ordered(const struct roce_request *request)
{
	return request->out.n > 0 || request->read_size > 0;
}
/* Is an operation of any communicator in flight that writes there? Lock held. */
bool request_writes_any(const struct roce_client *client, const void *ptr, size_t size);
/* Ends all ready requests under the lock. Return: number of tickets freed. */
unsigned int request_harvest(struct roce_client *client);
/* The same for those that streams wait for; calls no driver. Lock held. */
void request_harvest_gated(struct roce_client *client);
/* Ends all requests that cannot end otherwise because the daemon is lost. Lock held. */
void request_fail_all(struct roce_client *client, int status);
/* Those that streams wait for: writes their cells, for nobody else will. Lock held. */
void request_fail_gated(struct roce_client *client, int status);
/*
 * A stream does no more for the operation, if it is still under way: it ends by its cell alone.
 * Lock held.
 */
void request_let_go(struct roce_client *client, uint32_t ticket, uint32_t generation);
/* Waits until no thread copies out of @buffer's mirror; forgets copies of a lost daemon. */
void request_quiesce_mirror(struct roce_client *client, struct roce_buffer *buffer);
/* Detaches a communicator that is being destroyed from its requests. Lock held. */
void request_detach(struct roce_client *client, struct roce_comm *comm);

#endif
