/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * mpi_bench: an MPI library as tools/bench times it
 *
 * Built with mpicc by tools/bench, not by meson. One operation at a time is the blocking call,
 * which is the faster one in Open MPI; several in flight are the non-blocking ones. Memory is page
 * aligned and plain.
 *
 * Thread: main      Owns: its requests      Locks: none
 */
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/base.h"
#include "tools/benchmark/peer.h"

#define PAGE 4096

struct mpi {
	struct peer peer;
	MPI_Request requests[PEER_INFLIGHT_MAX];
	MPI_Request sends[PEER_INFLIGHT_MAX]; /* of COLL_SENDRECV; else null */
};

static struct mpi *mpi_of(struct peer *peer)
{
	return container_of(peer, struct mpi, peer);
}

static int post_alone(struct peer *peer, enum coll coll, const void *send, void *recv, int count)
{
	switch (coll) {
	case COLL_ALLREDUCE:
		return MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	case COLL_ALLGATHER:
		return MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT,
				     MPI_COMM_WORLD);
	case COLL_REDUCE_SCATTER:
		return MPI_Reduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM,
						MPI_COMM_WORLD);
	case COLL_BROADCAST:
		return MPI_Bcast(recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
	case COLL_REDUCE:
		return MPI_Reduce(send, recv, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
	case COLL_GATHER:
		return MPI_Gather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, 0,
				  MPI_COMM_WORLD);
	case COLL_SCATTER:
		return MPI_Scatter(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, 0,
				   MPI_COMM_WORLD);
	case COLL_ALLTOALL:
		return MPI_Alltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
	case COLL_BARRIER:
		return MPI_Barrier(MPI_COMM_WORLD);
	case COLL_SENDRECV:
		return MPI_Sendrecv(send, count, MPI_FLOAT, peer->rank ^ 1, 0, recv, count,
				    MPI_FLOAT, peer->rank ^ 1, 0, MPI_COMM_WORLD,
				    MPI_STATUS_IGNORE);
	default:
		fprintf(stderr, "mpi_bench: rank %d: no such operation\n", peer->rank);
		return MPI_ERR_OTHER;
	}
}

static int post_one_of_many(struct peer *peer, enum coll coll, const void *send, void *recv,
			    int count, MPI_Request *request)
{
	switch (coll) {
	case COLL_ALLREDUCE:
		return MPI_Iallreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
				      request);
	case COLL_ALLGATHER:
		return MPI_Iallgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT,
				      MPI_COMM_WORLD, request);
	case COLL_REDUCE_SCATTER:
		return MPI_Ireduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM,
						 MPI_COMM_WORLD, request);
	case COLL_BROADCAST:
		return MPI_Ibcast(recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD, request);
	case COLL_REDUCE:
		return MPI_Ireduce(send, recv, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD,
				   request);
	case COLL_GATHER:
		return MPI_Igather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, 0,
				   MPI_COMM_WORLD, request);
	case COLL_SCATTER:
		return MPI_Iscatter(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, 0,
				    MPI_COMM_WORLD, request);
	case COLL_ALLTOALL:
		return MPI_Ialltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD,
				     request);
	case COLL_BARRIER:
		return MPI_Ibarrier(MPI_COMM_WORLD, request);
	default:
		fprintf(stderr, "mpi_bench: rank %d: no such operation\n", peer->rank);
		return MPI_ERR_OTHER;
	}
}

static int post_exchange(struct peer *peer, const void *send, void *recv, int count,
			 unsigned int slot)
{
	struct mpi *mpi = mpi_of(peer);
	int r = MPI_Irecv(recv, count, MPI_FLOAT, peer->rank ^ 1, 0, MPI_COMM_WORLD,
			  &mpi->requests[slot]);

	return r != MPI_SUCCESS ? r
				: MPI_Isend(send, count, MPI_FLOAT, peer->rank ^ 1, 0,
					    MPI_COMM_WORLD, &mpi->sends[slot]);
}

static int mpi_post(struct peer *peer, enum coll coll, const void *send, void *recv, size_t count,
		    unsigned int slot, int alone)
{
	MPI_Request *request = &mpi_of(peer)->requests[slot];

	mpi_of(peer)->sends[slot] = MPI_REQUEST_NULL;
	if (alone) {
		*request = MPI_REQUEST_NULL;
		return post_alone(peer, coll, send, recv, (int)count);
	}
	if (coll == COLL_SENDRECV) {
		return post_exchange(peer, send, recv, (int)count, slot);
	}
	return post_one_of_many(peer, coll, send, recv, (int)count, request);
}

static int mpi_wait(struct peer *peer, unsigned int n)
{
	struct mpi *mpi = mpi_of(peer);
	int r;

	if (n == 1 && mpi->requests[0] == MPI_REQUEST_NULL) {
		return 0;
	}
	r = MPI_Waitall((int)n, mpi->requests, MPI_STATUSES_IGNORE);
	if (r == MPI_SUCCESS && mpi->sends[0] != MPI_REQUEST_NULL) {
		r = MPI_Waitall((int)n, mpi->sends, MPI_STATUSES_IGNORE);
	}
	return r;
}

static int mpi_poll(struct peer *peer, unsigned int n)
{
	int done;

	return MPI_Testall((int)n, mpi_of(peer)->requests, &done, MPI_STATUSES_IGNORE);
}

static int mpi_max(struct peer *peer, double *values, size_t n)
{
	(void)peer;
	return MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static int mpi_barrier(struct peer *peer)
{
	(void)peer;
	return MPI_Barrier(MPI_COMM_WORLD);
}

static int mpi_new_comm(struct peer *peer)
{
	MPI_Comm comm;
	int r = MPI_Comm_split(MPI_COMM_WORLD, 0, peer->rank, &comm);

	return r != MPI_SUCCESS ? r : MPI_Comm_free(&comm);
}

static void *mpi_alloc(struct peer *peer, size_t size)
{
	(void)peer;
	return aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);
}

static void mpi_free(struct peer *peer, void *ptr)
{
	(void)peer;
	free(ptr);
}

int main(int argc, char **argv)
{
	struct mpi mpi = {
		.peer =
			{
				.system = "openmpi",
				.post = mpi_post,
				.wait = mpi_wait,
				.poll = mpi_poll,
				.max = mpi_max,
				.barrier = mpi_barrier,
				.new_comm = mpi_new_comm,
				.alloc = mpi_alloc,
				.free = mpi_free,
			},
	};
	int r;

	if (MPI_Init(&argc, &argv) != MPI_SUCCESS) {
		return 1;
	}
	MPI_Comm_rank(MPI_COMM_WORLD, &mpi.peer.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &mpi.peer.size);
	r = peer_main(&mpi.peer, argc, argv);
	if (r != 0) {
		MPI_Abort(MPI_COMM_WORLD, r);
	}
	MPI_Finalize();
	return r;
}
