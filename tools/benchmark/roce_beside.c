/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * roce_beside: rocecomm's allreduces beside a trainer's work, as tools/bench times them
 *
 * rocebench has all the other rows. These come from the program that runs Open MPI's too (peer.c),
 * so that both have the same machine code to compute between their operations. Buffers are those of
 * roce_mem_alloc(), the communicator that of the environment.
 *
 * Thread: main      Owns: its requests      Locks: none
 */
#include <stdio.h>

#include "libclient/roceclient.h"
#include "proto/base.h"
#include "tools/benchmark/peer.h"

struct beside {
	struct peer peer;
	struct roce_client *client;
	struct roce_comm *comm;
	struct roce_request *requests[PEER_INFLIGHT_MAX];
};

static struct beside *beside_of(struct peer *peer)
{
	return container_of(peer, struct beside, peer);
}

static int said(int r)
{
	if (r != ROCE_OK) {
		fprintf(stderr, "roce_beside: %s: %s\n", roce_status_name(r), roce_last_error());
	}
	return r;
}

static int beside_post(struct peer *peer, enum coll coll, const void *send, void *recv,
		       size_t count, unsigned int slot, int alone)
{
	struct beside *b = beside_of(peer);

	if (coll != COLL_ALLREDUCE) {
		fprintf(stderr, "roce_beside: allreduces only; rocebench has the rest\n");
		return ROCE_ERR_UNSUPPORTED;
	}
	(void)alone;
	return said(roce_iallreduce(send, recv, count, ROCE_F32, ROCE_SUM, b->comm,
				    &b->requests[slot]));
}

static int beside_wait(struct peer *peer, unsigned int n)
{
	return said(roce_wait_all(beside_of(peer)->requests, n, -1));
}

/* The daemon gets on with them by itself. */
static int beside_poll(struct peer *peer, unsigned int n)
{
	(void)peer;
	(void)n;
	return 0;
}

static int beside_max(struct peer *peer, double *values, size_t n)
{
	return said(roce_allreduce(values, values, n, ROCE_F64, ROCE_MAX, beside_of(peer)->comm));
}

static int beside_barrier(struct peer *peer)
{
	return said(roce_barrier(beside_of(peer)->comm));
}

static int beside_new_comm(struct peer *peer)
{
	struct roce_comm *comm;
	int r = roce_comm_split(beside_of(peer)->comm, 0, peer->rank, NULL, &comm);

	return said(r != ROCE_OK ? r : roce_comm_destroy(comm));
}

static void *beside_alloc(struct peer *peer, size_t size)
{
	void *ptr;

	return said(roce_mem_alloc(beside_of(peer)->client, size, 0, &ptr)) ? NULL : ptr;
}

static void beside_free(struct peer *peer, void *ptr)
{
	roce_mem_free(beside_of(peer)->client, ptr);
}

int main(int argc, char **argv)
{
	struct beside beside = {
		.peer =
			{
				.system = "rocecomm",
				.post = beside_post,
				.wait = beside_wait,
				.poll = beside_poll,
				.max = beside_max,
				.barrier = beside_barrier,
				.new_comm = beside_new_comm,
				.alloc = beside_alloc,
				.free = beside_free,
			},
	};
	int r;

	r = said(roce_connect(NULL, NULL, &beside.client));
	if (r != ROCE_OK) {
		return 1;
	}
	r = said(roce_comm_init_env(beside.client, NULL, &beside.comm));
	if (r == ROCE_OK) {
		beside.peer.rank = roce_comm_rank(beside.comm);
		beside.peer.size = roce_comm_size(beside.comm);
		r = peer_main(&beside.peer, argc, argv);
		roce_comm_destroy(beside.comm);
	}
	roce_disconnect(beside.client);
	return r == 0 ? 0 : 1;
}
