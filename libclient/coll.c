/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Collectives with equal blocks: the public calls
 *
 * Each only names its arguments; post.c does the rest.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/error.h"
#include "libclient/post.h"
#include "libclient/roceclient.h"

static struct post_args args_make(enum coll_kind kind, const void *send, void *recv, size_t count,
				  int dtype, int op, int root)
{
	struct post_args args = {
		.kind = kind,
		.send = send,
		.recv = recv,
		.count = count,
		.dtype = dtype,
		.op = op,
		.root = root,
	};

	return args;
}

int roce_iallreduce(const void *send, void *recv, size_t count, int dtype, int op,
		    struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_ALLREDUCE, send, recv, count, dtype, op, 0);

	return post_async(&args, comm, ret_request);
}

int roce_allreduce(const void *send, void *recv, size_t count, int dtype, int op,
		   struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_ALLREDUCE, send, recv, count, dtype, op, 0);

	return post_blocking(&args, comm);
}

int roce_allreduce_call(struct roce_allreduce_args *args)
{
	int r;

	if (!args || args->size < sizeof(*args)) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_allreduce_call: the field size is %zu; set it to "
				 "sizeof(struct roce_allreduce_args)",
				 args ? args->size : 0);
	}
	args->request = NULL;
	r = roce_iallreduce(args->send, args->recv, args->count, args->dtype, args->op, args->comm,
			    &args->request);
	return r == ROCE_OK ? roce_wait(&args->request, args->timeout_ms) : r;
}

int roce_ireduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
		 struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_REDUCE, send, recv, count, dtype, op, root);

	return post_async(&args, comm, ret_request);
}

int roce_reduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
		struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_REDUCE, send, recv, count, dtype, op, root);

	return post_blocking(&args, comm);
}

int roce_ibroadcast(void *buf, size_t count, int dtype, int root, struct roce_comm *comm,
		    struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_BROADCAST, buf, buf, count, dtype, 0, root);

	return post_async(&args, comm, ret_request);
}

int roce_broadcast(void *buf, size_t count, int dtype, int root, struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_BROADCAST, buf, buf, count, dtype, 0, root);

	return post_blocking(&args, comm);
}

int roce_iallgather(const void *send, void *recv, size_t count, int dtype, struct roce_comm *comm,
		    struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_ALLGATHER, send, recv, count, dtype, 0, 0);

	return post_async(&args, comm, ret_request);
}

int roce_allgather(const void *send, void *recv, size_t count, int dtype, struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_ALLGATHER, send, recv, count, dtype, 0, 0);

	return post_blocking(&args, comm);
}

int roce_ireduce_scatter(const void *send, void *recv, size_t count, int dtype, int op,
			 struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_REDUCE_SCATTER, send, recv, count, dtype, op, 0);

	return post_async(&args, comm, ret_request);
}

int roce_reduce_scatter(const void *send, void *recv, size_t count, int dtype, int op,
			struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_REDUCE_SCATTER, send, recv, count, dtype, op, 0);

	return post_blocking(&args, comm);
}

int roce_igather(const void *send, void *recv, size_t count, int dtype, int root,
		 struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_GATHER, send, recv, count, dtype, 0, root);

	return post_async(&args, comm, ret_request);
}

int roce_gather(const void *send, void *recv, size_t count, int dtype, int root,
		struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_GATHER, send, recv, count, dtype, 0, root);

	return post_blocking(&args, comm);
}

int roce_iscatter(const void *send, void *recv, size_t count, int dtype, int root,
		  struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_SCATTER, send, recv, count, dtype, 0, root);

	return post_async(&args, comm, ret_request);
}

int roce_scatter(const void *send, void *recv, size_t count, int dtype, int root,
		 struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_SCATTER, send, recv, count, dtype, 0, root);

	return post_blocking(&args, comm);
}

int roce_ialltoall(const void *send, void *recv, size_t count, int dtype, struct roce_comm *comm,
		   struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_ALLTOALL, send, recv, count, dtype, 0, 0);

	return post_async(&args, comm, ret_request);
}

int roce_alltoall(const void *send, void *recv, size_t count, int dtype, struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_ALLTOALL, send, recv, count, dtype, 0, 0);

	return post_blocking(&args, comm);
}

int roce_ibarrier(struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_BARRIER, NULL, NULL, 0, 0, 0, 0);

	return post_async(&args, comm, ret_request);
}

int roce_barrier(struct roce_comm *comm)
{
	struct post_args args = args_make(COLL_BARRIER, NULL, NULL, 0, 0, 0, 0);

	return post_blocking(&args, comm);
}

int roce_allreduce_stream(const void *send, void *recv, size_t count, int dtype, int op,
			  struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_ALLREDUCE, send, recv, count, dtype, op, 0);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_reduce_stream(const void *send, void *recv, size_t count, int dtype, int op, int root,
		       struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_REDUCE, send, recv, count, dtype, op, root);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_broadcast_stream(void *buf, size_t count, int dtype, int root, struct roce_comm *comm,
			  void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_BROADCAST, buf, buf, count, dtype, 0, root);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_allgather_stream(const void *send, void *recv, size_t count, int dtype,
			  struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_ALLGATHER, send, recv, count, dtype, 0, 0);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_reduce_scatter_stream(const void *send, void *recv, size_t count, int dtype, int op,
			       struct roce_comm *comm, void *stream,
			       struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_REDUCE_SCATTER, send, recv, count, dtype, op, 0);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_gather_stream(const void *send, void *recv, size_t count, int dtype, int root,
		       struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_GATHER, send, recv, count, dtype, 0, root);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_scatter_stream(const void *send, void *recv, size_t count, int dtype, int root,
			struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_SCATTER, send, recv, count, dtype, 0, root);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_alltoall_stream(const void *send, void *recv, size_t count, int dtype,
			 struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_ALLTOALL, send, recv, count, dtype, 0, 0);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_barrier_stream(struct roce_comm *comm, void *stream, struct roce_request **ret_request)
{
	struct post_args args = args_make(COLL_BARRIER, NULL, NULL, 0, 0, 0, 0);

	return post_stream(&args, comm, stream, ret_request);
}
