/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Post: from checked arguments to descriptors in the ring
 *
 * An op is one operation on its way: op_make() checks the arguments, finds or stages the memory
 * and takes a request; post_ops() copies inputs into staging, gives sequence numbers and tickets
 * and pushes a batch with one bell. Nothing is visible to the daemon before post_ops().
 *
 * Thread: any, one op at a time      Owns: what an unposted op holds
 * Locks: the client's lock, taken inside
 */
#ifndef ROCECLIENT_POST_H
#define ROCECLIENT_POST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/request.h"
#include "proto/shm_layout.h"
#include "proto/types.h"

/* What the user passed. Block lists (v-variants) are in elements. */
struct post_args {
	enum coll_kind kind;
	const void *send;
	void *recv;
	size_t count; /* elements: all, a block's, or the own block's of a v-variant */
	int dtype;
	int op;
	int root;
	const size_t *send_counts;
	const size_t *send_displs;
	const size_t *recv_counts;
	const size_t *recv_displs;
	bool streamed; /* posted and waited for by a stream of the GPU */
	void *stream;
};

/* One side's memory. */
struct post_region {
	uint8_t *base; /* as passed */
	uint8_t *ptr;  /* first byte used */
	size_t size;   /* bytes from there to the last one used; 0: this rank does not use it */
	size_t skip;   /* elements between base and ptr */
	size_t elem;   /* bytes an element */
	size_t n;      /* blocks; 0: one contiguous piece */
	const size_t *counts;
	const size_t *displs; /* NULL with blocks: one after the other */
};

struct post_shape {
	struct post_region send;
	struct post_region recv;
	bool in_place;
	bool copy_send; /* in place, but the daemon wants the sides apart */
	bool nests;	/* could be in place: the smaller side at `nest` in the larger one */
	size_t nest;	/* bytes */
};

struct gpu_buffer;

struct op {
	struct op *next; /* in a group */
	struct roce_comm *comm;
	struct roce_request *request;
	struct shm_desc desc;
	struct copy_list in;
	const uint8_t *read; /* user memory that `in` reads */
	size_t read_size;
	bool copy_send;
	bool blocking; /* group: end waits for it */
	bool streamed;
	bool posted; /* its descriptor is in the ring */
	bool copies; /* streamed: the stream also copies */
	bool let_go; /* streamed: its stream does no more for it */
	void *stream;
	struct copy_list out;	    /* streamed: what the stream copies back */
	struct gpu_buffer *used[2]; /* of the sides, until the ring is published; or NULL */
};

/* Pure: checks arguments, computes both sides. Return: 0 or a status with its sentence. */
int check_args(const struct post_args *args, const struct roce_comm *comm, struct post_shape *ret);
/* The descriptor's op and scalar of a public reduction. Return: 0 or a status. */
int check_redop(const struct post_args *args, const struct roce_comm *comm, uint8_t *ret_op,
		uint64_t *ret_scalar);

/* Return: 0 or a status with its sentence; *ret is then empty. */
int op_make(const struct post_args *args, struct roce_comm *comm, struct op *ret);
/* Finds or stages the memory of both sides (bind.c). */
int op_bind(struct op *op, const struct post_args *args, const struct post_shape *shape);
/* No descriptor of it is on its way any more: the GPU memory it names may be given up. */
void op_drop(struct op *op);
/* Releases what was not posted, the request included. */
void op_deinit(struct op *op);

/*
 * Posts a chain of ops as one batch, waiting for room where needed. Return: 0; or the status of a
 * lost daemon, with its sentence: the requests that were not posted are then done with it.
 */
int post_ops(struct roce_client *client, struct op *ops);

/* Entries of the public calls: check, then post or collect into this thread's group. */
int post_async(const struct post_args *args, struct roce_comm *comm,
	       struct roce_request **ret_request);
int post_blocking(const struct post_args *args, struct roce_comm *comm);
/* On a stream; @ret_request may be NULL. @args: borrowed, without a stream. */
int post_stream(const struct post_args *args, struct roce_comm *comm, void *stream,
		struct roce_request **ret_request);

#endif
