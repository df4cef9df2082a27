/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Post: implementation
 *
 * The daemon orders operations of one communicator that touch the same shared memory. Staged
 * memory is copied by us, so that we must keep that order: an input is copied in only after every
 * earlier operation of the communicator that writes there has ended and was copied out. A result
 * that is copied to memory shared in place also waits for the earlier ones that read there.
 *
 * Room: a full ring, no ticket or a full window is waited for. None of them needs this thread to
 * go on: the daemon drains the ring, and ended operations are harvested here.
 *
 * Thread: any      Owns: see post.h      Locks: the client's lock, inside
 */
#include "libclient/post.h"

#include <string.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/group.h"
#include "libclient/roceclient.h"
#include "libclient/wait.h"
#include "proto/base.h"

int op_make(const struct post_args *args, struct roce_comm *comm, struct op *ret)
{
	struct post_shape shape;
	struct op op = {.comm = comm, .streamed = args->streamed, .stream = args->stream};
	int r;

	r = check_args(args, comm, &shape);
	if (r == 0) {
		r = check_redop(args, comm, &op.desc.op, &op.desc.scalar);
	}
	if (r != 0) {
		return r;
	}
	pthread_mutex_lock(&comm->client->lock);
	op.request = request_new(comm->client, comm, (uint8_t)args->kind);
	pthread_mutex_unlock(&comm->client->lock);
	if (!op.request) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a request");
	}
	op.desc.comm = comm->id;
	op.desc.kind = (uint8_t)args->kind;
	op.desc.dtype = (uint8_t)args->dtype;
	op.desc.root = coll_kind_has_root(args->kind) || coll_kind_is_p2p(args->kind)
			       ? (uint32_t)args->root
			       : 0;
	op.desc.count = args->kind == COLL_ALLTOALLV ? 0 : args->count;
	r = op_bind(&op, args, &shape);
	if (r != 0) {
		op_deinit(&op);
		return r;
	}
	*ret = op;
	return 0;
}

void op_drop(struct op *op)
{
	for (size_t i = 0; i < ARRAY_SIZE(op->used); i++) {
		gpu_drop(take_ptr(op->used[i]));
	}
}

void op_deinit(struct op *op)
{
	op_drop(op);
	copy_list_deinit(&op->in);
	copy_list_deinit(&op->out);
	if (op->request) {
		struct roce_client *client = op->request->client;

		pthread_mutex_lock(&client->lock);
		request_free(take_ptr(op->request));
		pthread_mutex_unlock(&client->lock);
	}
}

/* Must this op's copies wait for an earlier operation? Lock held. */
static bool op_conflicts(const struct op *op)
{
	const struct roce_request *request = op->request;

	if (!op->copy_send && op->comm->staged_open == 0) {
		return false;
	}
	if (op->read_size > 0 && request_writes(op->comm, op->read, op->read_size)) {
		return true;
	}
	if (request->out.n == 0) {
		return false;
	}
	/* What is copied out of a mirror the daemon orders after those that read the mirror. */
	return request_writes(op->comm, request->write, request->write_size) ||
	       (!request->mirror && request_reads(op->comm, request->write, request->write_size));
}

static bool op_clear(void *arg)
{
	const struct op *op = arg;
	struct roce_client *client = op->comm->client;
	bool clear;

	pthread_mutex_lock(&client->lock);
	clear = !op_conflicts(op);
	if (!clear && request_harvest(client) > 0) {
		clear = !op_conflicts(op);
	}
	pthread_mutex_unlock(&client->lock);
	return clear;
}

/* May one more operation of this kind be in flight on the communicator? Lock held. */
static bool window_open(const struct op *op)
{
	const struct roce_comm *comm = op->comm;
	const struct roce_client *client = comm->client;
	const struct comm_slot *slot;

	if (coll_kind_is_p2p(op->desc.kind)) {
		return comm->p2p_open < LIMIT_P2P_WINDOW;
	}
	slot = &comm->window[comm->seq % LIMIT_COMM_WINDOW];
	/* A ticket is reused only after its operation has ended. */
	return !slot->used ||
	       client->requests.tickets[slot->ticket].generation != slot->generation ||
	       request_ticket_done(client, slot->ticket, slot->generation);
}

static bool ring_room(const struct roce_client *client)
{
	/* acquire: pairs with the release store of head in ring_pop() */
	uint32_t head = atomic_load_explicit(&client->shm->head, memory_order_acquire);

	return client->ring.tail - head <= client->ring.mask;
}

/* Sequence number, ticket, ring. Lock held. Return: false when there is no room. */
static bool op_push(struct op *op)
{
	struct roce_comm *comm = op->comm;
	struct roce_client *client = comm->client;
	struct roce_request *request = op->request;
	struct comm_slot *slot;

	if (!window_open(op) || !ring_room(client) || !request_ticket(request)) {
		return false;
	}
	if (op->desc.kind == COLL_SEND) {
		op->desc.seq = comm->sent[op->desc.root]++;
		comm->p2p_open++;
	} else if (op->desc.kind == COLL_RECV) {
		op->desc.seq = comm->received[op->desc.root]++;
		comm->p2p_open++;
	} else {
		slot = &comm->window[comm->seq % LIMIT_COMM_WINDOW];
		slot->ticket = request->ticket;
		slot->generation = request->generation;
		slot->used = true;
		op->desc.seq = comm->seq++;
	}
	comm->staged_open += request_ordered(request);
	op->desc.ticket = request->ticket;
	op->desc.generation = request->generation;
	op->desc.flags = op->next ? SHM_DESC_BATCH : 0;
	if (op->streamed) {
		op->desc.flags |= SHM_DESC_GATED;
		op->copies = op->in.n + op->out.n > 0;
		request->gated = true;
		request->copies = op->copies;
		/* relaxed: only says whether there is something to watch */
		atomic_fetch_add_explicit(&client->gpu.open, 1, memory_order_relaxed);
		gpu_watch_more(client);
	}
	op->posted = true;
	atomic_store_explicit(&request->state, REQUEST_POSTED, memory_order_relaxed);
	ring_push(&client->ring, &op->desc);
	return true;
}

/* Publishes what was pushed; rings the bell. */
static void post_flush(struct roce_client *client)
{
	bool bell;

	pthread_mutex_lock(&client->lock);
	bell = ring_publish(&client->ring);
	pthread_mutex_unlock(&client->lock);
	if (bell) {
		client_bell(client);
	}
}

static bool op_push_waiting(void *arg)
{
	struct op *op = arg;
	struct roce_client *client = op->comm->client;
	bool pushed;

	pthread_mutex_lock(&client->lock);
	pushed = op_push(op);
	if (!pushed && request_harvest(client) > 0) {
		pushed = op_push(op);
	}
	pthread_mutex_unlock(&client->lock);
	return pushed;
}

/* Copies in and pushes one op; the last of a batch also publishes. Return: 0 or a lost status. */
static int post_one(struct roce_client *client, struct op *op)
{
	bool pushed, bell = false;
	int r;

	/* What a stream copies, it copies in its own order. */
	if (!op->streamed && (op->in.n > 0 || op->request->out.n > 0)) {
		if (!op_clear(op)) {
			post_flush(client);
			r = wait_until(client, op_clear, op, -1, WAIT_SLICE_NS);
			if (r != 0) {
				return r;
			}
		}
		r = copy_in(client, &op->in);
		if (r != 0) {
			return r;
		}
	}
	pthread_mutex_lock(&client->lock);
	pushed = op_push(op);
	if (pushed && !op->next) {
		bell = ring_publish(&client->ring);
	}
	pthread_mutex_unlock(&client->lock);
	if (!pushed) {
		post_flush(client);
		r = wait_until(client, op_push_waiting, op, -1, WAIT_SLICE_SHORT_NS);
		if (r != 0) {
			return r;
		}
		post_flush(client);
	}
	if (bell) {
		client_bell(client);
	}
	return 0;
}

/*
 * The requests of ops that were not posted end here. @status: of the lost daemon, or of the GPU's
 * driver, sentence set. Return: @status.
 */
static int post_fail(struct roce_client *client, struct op *ops, int status)
{
	bool lost = conn_dead(&client->conn) != 0;

	pthread_mutex_lock(&client->lock);
	for (struct op *op = ops; op; op = op->next) {
		op->request->comm = NULL;
		op->request->status = status;
		copy_list_deinit(&op->in);
		if (op->request->detached) {
			copy_list_deinit(&op->out);
			request_free(op->request);
			continue;
		}
		copy_list_deinit(&op->out);
		copy_list_deinit(&op->request->out);
		/* release: pairs with the acquire in request_ready() */
		atomic_store_explicit(&op->request->state, REQUEST_DONE, memory_order_release);
	}
	if (lost) {
		request_fail_all(client, status);
	}
	pthread_mutex_unlock(&client->lock);
	return lost ? conn_dead_error(&client->conn) : status;
}

/*
 * The driver refused something of a posted operation, so its stream will not open the gate: the
 * communicator cannot go on. The operation then ends by its cell alone.
 */
static int post_stream_failed(struct op *op, int status)
{
	struct roce_client *client = op->comm->client;
	char text[LIMIT_ERROR_TEXT];

	error_copy(text, error_last());
	op->let_go = true;
	pthread_mutex_lock(&client->lock);
	request_let_go(client, op->desc.ticket, op->desc.generation);
	pthread_mutex_unlock(&client->lock);
	post_flush(client);
	if (comm_failed_error(op->comm) == 0) {
		comm_abort(op->comm, text);
	}
	return error_set(status, "%s", text);
}

/*
 * Has the streams wait for what is posted of a batch, up to @end; after a failure, too: their work
 * behind it must not begin before the daemon is done with the memory, and an operation that copies
 * ends only when they have been past. Return: 0, or the first status, sentence set.
 */
static int post_stream_waits(struct op *ops, const struct op *end)
{
	char text[LIMIT_ERROR_TEXT];
	int first = 0;

	for (struct op *op = ops; op != end; op = op->next) {
		int r = op->streamed && !op->let_go ? gpu_stream_wait(op) : 0;

		copy_list_deinit(&op->out);
		if (r != 0) {
			r = post_stream_failed(op, r);
		}
		if (r != 0 && first == 0) {
			first = r;
			error_copy(text, error_last());
		}
	}
	return first != 0 ? error_set(first, "%s", text) : 0;
}

int post_ops(struct roce_client *client, struct op *ops)
{
	char text[LIMIT_ERROR_TEXT];
	struct op *first = ops;
	int r = client_glance(client);

	for (struct op *op = ops; r == 0 && op; op = op->next) {
		r = post_one(client, op);
		if (r == 0) {
			ops = op->next;
			if (op->streamed) {
				r = gpu_stream_post(op);
				r = r != 0 ? post_stream_failed(op, r) : 0;
			}
			copy_list_deinit(&op->in);
		}
	}
	if (r != 0) {
		error_copy(text, error_last());
		post_flush(client);
	}
	for (struct op *op = first; op; op = op->next) {
		op_drop(op);
	}
	if (r == 0) {
		return post_stream_waits(first, NULL);
	}
	post_stream_waits(first, ops);
	error_set(r, "%s", text);
	return post_fail(client, ops, r);
}

/* After a failure: what is in the ring ends by itself, the rest is given back. */
static void post_drop(struct op *op)
{
	struct roce_client *client = op->comm->client;

	if (!op->posted) {
		op_deinit(op);
		return;
	}
	pthread_mutex_lock(&client->lock);
	if (atomic_load_explicit(&op->request->state, memory_order_relaxed) == REQUEST_DONE) {
		request_free(op->request);
	} else {
		op->request->detached = true;
	}
	pthread_mutex_unlock(&client->lock);
}

/* Makes an op and posts or collects it. */
static int post_start(const struct post_args *args, struct roce_comm *comm, bool blocking,
		      struct roce_request **ret)
{
	struct group *group = group_current();
	struct op op;
	int r;

	r = comm_enter(comm);
	if (r == 0 && group) {
		r = group_admit(group, comm, args->kind);
	}
	if (r == 0 && args->streamed) {
		r = gpu_stream_check(comm->client, args->stream, coll_kind_name(args->kind));
	}
	if (r == 0) {
		r = op_make(args, comm, &op);
	}
	if (r != 0) {
		group_failed(group, r);
		return r;
	}
	op.blocking = blocking;
	if (group) {
		r = group_add(group, &op);
		if (r != 0) {
			op_deinit(&op);
			group_failed(group, r);
			return r;
		}
	} else {
		r = post_ops(comm->client, &op);
		if (r != 0) {
			post_drop(&op);
			return r;
		}
	}
	*ret = op.request;
	return 0;
}

int post_async(const struct post_args *args, struct roce_comm *comm,
	       struct roce_request **ret_request)
{
	if (!ret_request) {
		int r = error_set(ROCE_ERR_INVALID,
				  "%s: ret_request is NULL; the blocking call "
				  "needs none",
				  coll_kind_name(args->kind));

		group_failed(group_current(), r);
		return r;
	}
	return post_start(args, comm, false, ret_request);
}

int post_blocking(const struct post_args *args, struct roce_comm *comm)
{
	struct roce_request *request;
	int r;

	r = post_start(args, comm, true, &request);
	if (r != 0 || group_current()) {
		return r;
	}
	return roce_wait(&request, -1);
}

/* The request of an operation that the caller does not want to hear of again. */
static void post_detach(struct roce_request *request)
{
	struct roce_client *client = request->client;

	pthread_mutex_lock(&client->lock);
	if (atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_DONE) {
		request_free(request);
	} else {
		request->detached = true;
	}
	pthread_mutex_unlock(&client->lock);
}

int post_stream(const struct post_args *args, struct roce_comm *comm, void *stream,
		struct roce_request **ret_request)
{
	struct post_args on_stream = *args;
	struct roce_request *request;
	int r;

	on_stream.streamed = true;
	on_stream.stream = stream;
	r = post_start(&on_stream, comm, false, &request);
	if (r != 0) {
		return r;
	}
	if (ret_request) {
		*ret_request = request;
	} else {
		post_detach(request);
	}
	return 0;
}
