/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Point to point: send, receive, both at once
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/group.h"
#include "libclient/post.h"
#include "libclient/roceclient.h"
#include "proto/types.h"

static struct post_args send_args(const void *buf, size_t count, int dtype, int dest)
{
	struct post_args args = {
		.kind = COLL_SEND,
		.send = buf,
		.count = count,
		.dtype = dtype,
		.root = dest,
	};

	return args;
}

static struct post_args recv_args(void *buf, size_t count, int dtype, int source)
{
	struct post_args args = {
		.kind = COLL_RECV,
		.recv = buf,
		.count = count,
		.dtype = dtype,
		.root = source,
	};

	return args;
}

int roce_isend(const void *buf, size_t count, int dtype, int dest, struct roce_comm *comm,
	       struct roce_request **ret_request)
{
	struct post_args args = send_args(buf, count, dtype, dest);

	return post_async(&args, comm, ret_request);
}

int roce_send(const void *buf, size_t count, int dtype, int dest, struct roce_comm *comm)
{
	struct post_args args = send_args(buf, count, dtype, dest);

	return post_blocking(&args, comm);
}

int roce_irecv(void *buf, size_t count, int dtype, int source, struct roce_comm *comm,
	       struct roce_request **ret_request)
{
	struct post_args args = recv_args(buf, count, dtype, source);

	return post_async(&args, comm, ret_request);
}

int roce_recv(void *buf, size_t count, int dtype, int source, struct roce_comm *comm)
{
	struct post_args args = recv_args(buf, count, dtype, source);

	return post_blocking(&args, comm);
}

int roce_sendrecv(const void *send, size_t send_count, int dest, void *recv, size_t recv_count,
		  int source, int dtype, struct roce_comm *comm)
{
	struct post_args out = send_args(send, send_count, dtype, dest);
	struct post_args in = recv_args(recv, recv_count, dtype, source);
	size_t elem = dtype_size((unsigned int)dtype);
	int r, end;

	r = comm_enter(comm);
	/* Counts that overflow are refused by the calls below. */
	if (r == 0 && elem > 0 && send_count <= PTRDIFF_MAX / elem &&
	    recv_count <= PTRDIFF_MAX / elem &&
	    ranges_overlap(send, send_count * elem, recv, recv_count * elem)) {
		r = error_set(ROCE_ERR_INVALID,
			      "sendrecv: send [%p, +%zu) and recv [%p, +%zu) overlap", send,
			      send_count * elem, recv, recv_count * elem);
	}
	if (r != 0) {
		group_failed(group_current(), r);
		return r;
	}
	/* Both halves blocking: the end of the outermost group completes them. */
	r = roce_group_start(comm->client);
	if (r != 0) {
		return r;
	}
	r = post_blocking(&in, comm);
	if (r == 0) {
		r = post_blocking(&out, comm);
	}
	end = roce_group_end(comm->client);
	return r != 0 ? r : end;
}

int roce_send_stream(const void *buf, size_t count, int dtype, int dest, struct roce_comm *comm,
		     void *stream, struct roce_request **ret_request)
{
	struct post_args args = send_args(buf, count, dtype, dest);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_recv_stream(void *buf, size_t count, int dtype, int source, struct roce_comm *comm,
		     void *stream, struct roce_request **ret_request)
{
	struct post_args args = recv_args(buf, count, dtype, source);

	return post_stream(&args, comm, stream, ret_request);
}
