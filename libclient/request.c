/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Request: implementation
 *
 * Thread: any      Owns: see request.h      Locks: the client's lock where said
 */
#include "libclient/request.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/gpu.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/gpu.h"

#define CHUNK_MORE 1024

void request_count_staged(struct roce_client *client, uint64_t bytes)
{
	if (bytes) {
		/* relaxed: for people to look at, see status_json.c */
		atomic_fetch_add_explicit(&client->shm->staged, bytes, memory_order_relaxed);
	}
}

static int copy_any(struct roce_client *client, const struct copy_list *list, bool out)
{
	const struct copy_seg *segs = list->many ? list->many : &list->one;
	uint64_t bytes = 0;
	int r = list->gpu > 0 && list->n > 0 ? gpu_copy(client, list, out) : 0;

	for (size_t i = 0; i < list->n; i++) {
		if (list->gpu == 0) {
			memcpy(out ? segs[i].user : segs[i].stage,
			       out ? segs[i].stage : segs[i].user, segs[i].size);
		}
		bytes += segs[i].size;
	}
	request_count_staged(client, bytes);
	return r;
}

int copy_in(struct roce_client *client, const struct copy_list *list)
{
	return copy_any(client, list, false);
}

int copy_out(struct roce_client *client, const struct copy_list *list)
{
	return copy_any(client, list, true);
}

void copy_list_deinit(struct copy_list *list)
{
	free(take_ptr(list->many));
	list->n = 0;
}

static int chunk_new(struct request_pool *pool, size_t room)
{
	struct request_chunk *chunk;

	/* calloc: pages of requests that are never used are never touched. */
	chunk = calloc(1, sizeof(*chunk) + room * sizeof(chunk->requests[0]));
	if (!chunk) {
		return -ENOMEM;
	}
	chunk->room = room;
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	return 0;
}

int request_pool_init(struct request_pool *pool)
{
	pool->tickets = calloc(LIMIT_TICKETS, sizeof(*pool->tickets));
	if (!pool->tickets) {
		return -ENOMEM;
	}
	return chunk_new(pool, LIMIT_TICKETS);
}

void request_pool_deinit(struct request_pool *pool)
{
	struct request_chunk *chunk = pool->chunks;

	while (chunk) {
		struct request_chunk *next = chunk->next;

		for (size_t i = 0; i < chunk->used; i++) {
			copy_list_deinit(&chunk->requests[i].out);
		}
		free(chunk);
		chunk = next;
	}
	pool->chunks = NULL;
	free(take_ptr(pool->tickets));
}

struct roce_request *request_new(struct roce_client *client, struct roce_comm *comm, uint8_t kind)
{
	struct request_pool *pool = &client->requests;
	struct roce_request *request = pool->free;

	if (request) {
		pool->free = request->next;
	} else {
		if (pool->chunks->used == pool->chunks->room && chunk_new(pool, CHUNK_MORE) != 0) {
			return NULL;
		}
		request = &pool->chunks->requests[pool->chunks->used++];
	}
	*request = (struct roce_request){
		.client = client,
		.comm = comm,
		.comm_id = comm->id,
		.kind = kind,
		.state = REQUEST_GROUPED,
	};
	return request;
}

void request_release(struct roce_request *request)
{
	for (unsigned int i = 0; i < REQUEST_BLOCKS; i++) {
		if (request->blocks[i]) {
			staging_put(request->client, take_ptr(request->blocks[i]));
		}
	}
	request->client->gpu.small -= request->small;
	request->small = 0;
	copy_list_deinit(&request->out);
	request->mirror = NULL;
}

void request_free(struct roce_request *request)
{
	struct request_pool *pool = &request->client->requests;

	request_release(request);
	atomic_store_explicit(&request->state, REQUEST_FREE, memory_order_relaxed);
	request->next = pool->free;
	pool->free = request;
}

bool request_ticket(struct roce_request *request)
{
	struct request_pool *pool = &request->client->requests;
	struct ticket *ticket;
	uint32_t index;

	if (pool->free_ticket > 0) {
		index = pool->free_ticket - 1;
		pool->free_ticket = pool->tickets[index].next_free;
	} else if (pool->tickets_used < LIMIT_TICKETS) {
		index = pool->tickets_used++;
	} else {
		return false;
	}
	ticket = &pool->tickets[index];
	ticket->request = request;
	ticket->generation++;
	request->ticket = index;
	request->generation = ticket->generation;
	return true;
}

bool request_ticket_done(const struct roce_client *client, uint32_t ticket, uint32_t generation)
{
	/* acquire: pairs with the daemon's release; status and payload are then visible */
	return atomic_load_explicit(&client->cells[ticket].generation, memory_order_acquire) ==
	       generation;
}

/* Has the stream been past everything of this operation? Lock-free. */
static bool request_passed(const struct roce_request *request)
{
	const struct gpu *gpu = &request->client->gpu;

	/* acquire: what the stream did before is then visible, its reads of staging are over */
	return !request->gated ||
	       (gate_open(atomic_load_explicit(&gpu->gates[request->ticket], memory_order_acquire),
			  request->generation) &&
		(!request->copies ||
		 gate_open(atomic_load_explicit(&gpu->moved[request->ticket], memory_order_acquire),
			   request->generation)));
}

bool request_ready(const struct roce_request *request)
{
	/*
	 * The cell first: another thread may settle the request and reuse its ticket meanwhile, and
	 * the state tells then.
	 */
	bool ended = request_ticket_done(request->client, request->ticket, request->generation) &&
		     request_passed(request);
	/* acquire: pairs with the release in request_settle() */
	uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);

	return state == REQUEST_DONE || (ended && state == REQUEST_POSTED);
}

static int request_cell_status(const struct roce_request *request)
{
	uint32_t status = request->client->cells[request->ticket].status;

	if (status == ROCE_IN_PROGRESS || status > ROCE_ERR_INTERNAL) {
		return ROCE_ERR_INTERNAL;
	}
	return (int)status;
}

/* POSTED or FINISHING -> DONE, ticket free again. Lock held. */
static void request_settle(struct roce_request *request, int status)
{
	struct request_pool *pool = &request->client->requests;
	struct ticket *ticket = &pool->tickets[request->ticket];

	if (request->comm) {
		comm_op_ended(request->comm, request->kind, request_ordered(request));
		if (request->gated && status != ROCE_OK && request->comm->gpu_failed == 0) {
			request->comm->gpu_failed_kind = request->kind;
			request->comm->gpu_failed = status;
		}
		request->comm = NULL;
	}
	if (request->gated) {
		/* relaxed: only says whether there is something to watch */
		atomic_fetch_sub_explicit(&request->client->gpu.open, 1, memory_order_relaxed);
	}
	request_release(request);
	ticket->request = NULL;
	ticket->next_free = pool->free_ticket;
	pool->free_ticket = request->ticket + 1;
	request->status = status;
	/* release: pairs with the acquire in request_ready() */
	atomic_store_explicit(&request->state, REQUEST_DONE, memory_order_release);
	if (request->detached) {
		request_free(request);
	}
}

int request_finish(struct roce_request *request)
{
	struct roce_client *client = request->client;
	bool trim;
	int status;

	pthread_mutex_lock(&client->lock);
	if (atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_POSTED) {
		status = request_cell_status(request);
		if (status == ROCE_OK && request->out.n > 0) {
			atomic_store_explicit(&request->state, REQUEST_FINISHING,
					      memory_order_relaxed);
			pthread_mutex_unlock(&client->lock);
			status = copy_out(client, &request->out);
			pthread_mutex_lock(&client->lock);
		}
		request_settle(request, status);
	}
	status = request->status;
	request_free(request);
	trim = client->staging.idle > STAGING_IDLE_MAX;
	pthread_mutex_unlock(&client->lock);
	if (trim) {
		staging_trim(client, STAGING_IDLE_MAX);
	}
	return status;
}

/* Does an operation of @comm, NULL: of any, read (or write) in [ptr, ptr + size)? */
static bool request_touches(const struct request_pool *pool, const struct roce_comm *comm,
			    bool reads, const uint8_t *ptr, size_t size)
{
	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		const struct roce_request *r = pool->tickets[i].request;

		if (r && (!comm || r->comm == comm) &&
		    ranges_overlap(reads ? r->read : r->write, reads ? r->read_size : r->write_size,
				   ptr, size)) {
			return true;
		}
	}
	return false;
}

bool request_writes(const struct roce_comm *comm, const uint8_t *ptr, size_t size)
{
	return request_touches(&comm->client->requests, comm, false, ptr, size);
}

bool request_reads(const struct roce_comm *comm, const uint8_t *ptr, size_t size)
{
	return request_touches(&comm->client->requests, comm, true, ptr, size);
}

bool request_writes_any(const struct roce_client *client, const void *ptr, size_t size)
{
	return request_touches(&client->requests, NULL, false, ptr, size);
}

static bool request_posted(const struct roce_request *request)
{
	return request &&
	       atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_POSTED;
}

unsigned int request_harvest(struct roce_client *client)
{
	struct request_pool *pool = &client->requests;
	unsigned int n = 0;

	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		struct roce_request *request = pool->tickets[i].request;
		int status;

		if (!request_posted(request) ||
		    !request_ticket_done(client, i, request->generation) ||
		    !request_passed(request)) {
			continue;
		}
		status = request_cell_status(request);
		if (status == ROCE_OK) {
			status = copy_out(client, &request->out);
		}
		request_settle(request, status);
		n++;
	}
	return n;
}

void request_harvest_gated(struct roce_client *client)
{
	struct request_pool *pool = &client->requests;

	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		struct roce_request *request = pool->tickets[i].request;

		if (request_posted(request) && request->gated &&
		    request_ticket_done(client, i, request->generation) &&
		    request_passed(request)) {
			request_settle(request, request_cell_status(request));
		}
	}
}

void request_fail_gated(struct roce_client *client, int status)
{
	struct request_pool *pool = &client->requests;

	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		struct roce_request *request = pool->tickets[i].request;
		struct shm_cell *cell = &client->cells[i];

		if (!request_posted(request) || !request->gated) {
			continue;
		}
		if (!request_ticket_done(client, i, request->generation)) {
			cell->status = (uint32_t)status;
			/* release: the stream that waits for it goes on */
			atomic_store_explicit(&cell->generation, request->generation,
					      memory_order_release);
		}
		/* No ticket is used again, so a stream that comes late does no harm. */
		request_settle(request, request_cell_status(request));
	}
}

void request_let_go(struct roce_client *client, uint32_t ticket, uint32_t generation)
{
	struct roce_request *request = client->requests.tickets[ticket].request;

	if (!request || !request->gated || request->generation != generation) {
		return;
	}
	request->gated = false;
	/* relaxed: only says whether there is something to watch */
	atomic_fetch_sub_explicit(&client->gpu.open, 1, memory_order_relaxed);
	/* A copy of the stream may still be under way: the staging is nobody else's from now on. */
	memset(request->blocks, 0, sizeof(request->blocks));
}

void request_fail_all(struct roce_client *client, int status)
{
	struct request_pool *pool = &client->requests;

	request_harvest(client);
	request_fail_gated(client, status);
	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		struct roce_request *request = pool->tickets[i].request;

		if (request_posted(request)) {
			request_settle(request, status);
		}
	}
}

static bool request_mirror_used(struct roce_client *client, const struct roce_buffer *buffer)
{
	struct request_pool *pool = &client->requests;

	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		if (pool->tickets[i].request && pool->tickets[i].request->mirror == buffer) {
			return true;
		}
	}
	return false;
}

void request_quiesce_mirror(struct roce_client *client, struct roce_buffer *buffer)
{
	bool used = true;

	while (used) {
		pthread_mutex_lock(&client->lock);
		if (conn_dead(&client->conn) != 0) {
			request_fail_all(client, conn_dead(&client->conn));
		} else {
			request_harvest(client);
		}
		used = request_mirror_used(client, buffer);
		pthread_mutex_unlock(&client->lock);
		if (used) {
			sched_yield();
		}
	}
}

void request_detach(struct roce_client *client, struct roce_comm *comm)
{
	struct request_pool *pool = &client->requests;

	for (uint32_t i = 0; i < pool->tickets_used; i++) {
		struct roce_request *request = pool->tickets[i].request;

		if (request && request->comm == comm) {
			request->comm = NULL;
		}
	}
}
