/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Collectives with a count for each rank: the public calls
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/comm.h"
#include "libclient/post.h"
#include "libclient/roceclient.h"

static struct post_args allgatherv_args(const void *send, size_t send_count, void *recv,
					const size_t *counts, const size_t *displs, int dtype)
{
	struct post_args args = {
		.kind = COLL_ALLGATHERV,
		.send = send,
		.recv = recv,
		.count = send_count,
		.dtype = dtype,
		.recv_counts = counts,
		.recv_displs = displs,
	};

	return args;
}

int roce_iallgatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
		     const size_t *displs, int dtype, struct roce_comm *comm,
		     struct roce_request **ret_request)
{
	struct post_args args = allgatherv_args(send, send_count, recv, counts, displs, dtype);

	return post_async(&args, comm, ret_request);
}

int roce_allgatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
		    const size_t *displs, int dtype, struct roce_comm *comm)
{
	struct post_args args = allgatherv_args(send, send_count, recv, counts, displs, dtype);

	return post_blocking(&args, comm);
}

static struct post_args reduce_scatterv_args(const void *send, void *recv, const size_t *counts,
					     int dtype, int op, const struct roce_comm *comm)
{
	struct post_args args = {
		.kind = COLL_REDUCE_SCATTERV,
		.send = send,
		.recv = recv,
		/* NULL arguments are refused later, with a sentence. */
		.count = counts && comm ? counts[comm->rank] : 0,
		.dtype = dtype,
		.op = op,
		.send_counts = counts,
	};

	return args;
}

int roce_ireduce_scatterv(const void *send, void *recv, const size_t *counts, int dtype, int op,
			  struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = reduce_scatterv_args(send, recv, counts, dtype, op, comm);

	return post_async(&args, comm, ret_request);
}

int roce_reduce_scatterv(const void *send, void *recv, const size_t *counts, int dtype, int op,
			 struct roce_comm *comm)
{
	struct post_args args = reduce_scatterv_args(send, recv, counts, dtype, op, comm);

	return post_blocking(&args, comm);
}

static struct post_args gatherv_args(const void *send, size_t send_count, void *recv,
				     const size_t *counts, const size_t *displs, int dtype,
				     int root)
{
	struct post_args args = {
		.kind = COLL_GATHERV,
		.send = send,
		.recv = recv,
		.count = send_count,
		.dtype = dtype,
		.root = root,
		.recv_counts = counts,
		.recv_displs = displs,
	};

	return args;
}

int roce_igatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
		  const size_t *displs, int dtype, int root, struct roce_comm *comm,
		  struct roce_request **ret_request)
{
	struct post_args args = gatherv_args(send, send_count, recv, counts, displs, dtype, root);

	return post_async(&args, comm, ret_request);
}

int roce_gatherv(const void *send, size_t send_count, void *recv, const size_t *counts,
		 const size_t *displs, int dtype, int root, struct roce_comm *comm)
{
	struct post_args args = gatherv_args(send, send_count, recv, counts, displs, dtype, root);

	return post_blocking(&args, comm);
}

static struct post_args scatterv_args(const void *send, const size_t *counts, const size_t *displs,
				      void *recv, size_t recv_count, int dtype, int root)
{
	struct post_args args = {
		.kind = COLL_SCATTERV,
		.send = send,
		.recv = recv,
		.count = recv_count,
		.dtype = dtype,
		.root = root,
		.send_counts = counts,
		.send_displs = displs,
	};

	return args;
}

int roce_iscatterv(const void *send, const size_t *counts, const size_t *displs, void *recv,
		   size_t recv_count, int dtype, int root, struct roce_comm *comm,
		   struct roce_request **ret_request)
{
	struct post_args args = scatterv_args(send, counts, displs, recv, recv_count, dtype, root);

	return post_async(&args, comm, ret_request);
}

int roce_scatterv(const void *send, const size_t *counts, const size_t *displs, void *recv,
		  size_t recv_count, int dtype, int root, struct roce_comm *comm)
{
	struct post_args args = scatterv_args(send, counts, displs, recv, recv_count, dtype, root);

	return post_blocking(&args, comm);
}

static struct post_args alltoallv_args(const void *send, const size_t *send_counts,
				       const size_t *send_displs, void *recv,
				       const size_t *recv_counts, const size_t *recv_displs,
				       int dtype)
{
	struct post_args args = {
		.kind = COLL_ALLTOALLV,
		.send = send,
		.recv = recv,
		.dtype = dtype,
		.send_counts = send_counts,
		.send_displs = send_displs,
		.recv_counts = recv_counts,
		.recv_displs = recv_displs,
	};

	return args;
}

int roce_ialltoallv(const void *send, const size_t *send_counts, const size_t *send_displs,
		    void *recv, const size_t *recv_counts, const size_t *recv_displs, int dtype,
		    struct roce_comm *comm, struct roce_request **ret_request)
{
	struct post_args args = alltoallv_args(send, send_counts, send_displs, recv, recv_counts,
					       recv_displs, dtype);

	return post_async(&args, comm, ret_request);
}

int roce_alltoallv(const void *send, const size_t *send_counts, const size_t *send_displs,
		   void *recv, const size_t *recv_counts, const size_t *recv_displs, int dtype,
		   struct roce_comm *comm)
{
	struct post_args args = alltoallv_args(send, send_counts, send_displs, recv, recv_counts,
					       recv_displs, dtype);

	return post_blocking(&args, comm);
}

int roce_allgatherv_stream(const void *send, size_t send_count, void *recv, const size_t *counts,
			   const size_t *displs, int dtype, struct roce_comm *comm, void *stream,
			   struct roce_request **ret_request)
{
	struct post_args args = allgatherv_args(send, send_count, recv, counts, displs, dtype);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_reduce_scatterv_stream(const void *send, void *recv, const size_t *counts, int dtype,
				int op, struct roce_comm *comm, void *stream,
				struct roce_request **ret_request)
{
	struct post_args args = reduce_scatterv_args(send, recv, counts, dtype, op, comm);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_gatherv_stream(const void *send, size_t send_count, void *recv, const size_t *counts,
			const size_t *displs, int dtype, int root, struct roce_comm *comm,
			void *stream, struct roce_request **ret_request)
{
	struct post_args args = gatherv_args(send, send_count, recv, counts, displs, dtype, root);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_scatterv_stream(const void *send, const size_t *counts, const size_t *displs, void *recv,
			 size_t recv_count, int dtype, int root, struct roce_comm *comm,
			 void *stream, struct roce_request **ret_request)
{
	struct post_args args = scatterv_args(send, counts, displs, recv, recv_count, dtype, root);

	return post_stream(&args, comm, stream, ret_request);
}

int roce_alltoallv_stream(const void *send, const size_t *send_counts, const size_t *send_displs,
			  void *recv, const size_t *recv_counts, const size_t *recv_displs,
			  int dtype, struct roce_comm *comm, void *stream,
			  struct roce_request **ret_request)
{
	struct post_args args = alltoallv_args(send, send_counts, send_displs, recv, recv_counts,
					       recv_displs, dtype);

	return post_stream(&args, comm, stream, ret_request);
}
