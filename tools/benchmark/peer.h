/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer: one way of timing collectives, whoever carries them
 *
 * A peer is a library under test behind a few functions. peer_main() runs the cases of the command
 * line on it: warm-up, a barrier, then repetitions back to back; a repetition posts its operations
 * and waits for all of them, and its time is that of the slowest rank. The results of every case
 * are checked element by element, outside the timed part. Rank 0 prints a JSON line a case, in the
 * form of rocebench.
 *
 * Thread: main      Owns: nothing between the calls      Locks: none
 */
#ifndef ROCECOMM_TOOLS_BENCHMARK_PEER_H
#define ROCECOMM_TOOLS_BENCHMARK_PEER_H

#include <stddef.h>

enum coll {
	COLL_ALLREDUCE,
	COLL_ALLGATHER,
	COLL_REDUCE_SCATTER,
	COLL_BROADCAST,
	COLL_REDUCE,
	COLL_GATHER,
	COLL_SCATTER,
	COLL_ALLTOALL,
	COLL_BARRIER,
	COLL_SENDRECV, /* ranks 2n and 2n + 1 send to each other at once */
	COLL_BESIDE,   /* allreduces with a trainer's work between them */
	COLL_COMM,     /* make a communicator of all ranks and free it */
	COLL_MAX
};

struct peer {
	const char *system;
	int rank;
	int size;
	/*
	 * post: begins an operation on @count elements (f32; of a block where there are blocks);
	 * root is 0. @slot: its number among those in flight. @alone: the only one, so that it may
	 * be finished on return. wait: for slots 0 .. @n - 1. poll: gives the library a chance to
	 * get on with them. All return 0, or non-zero after saying why on standard error.
	 */
	int (*post)(struct peer *peer, enum coll coll, const void *send, void *recv, size_t count,
		    unsigned int slot, int alone);
	int (*wait)(struct peer *peer, unsigned int n);
	int (*poll)(struct peer *peer, unsigned int n);
	int (*max)(struct peer *peer, double *values, size_t n);
	int (*barrier)(struct peer *peer);
	int (*new_comm)(struct peer *peer);
	void *(*alloc)(struct peer *peer, size_t size);
	void (*free)(struct peer *peer, void *ptr);
};

#define PEER_INFLIGHT_MAX 256

/*
 * Arguments: [--hosts=H] [--variant=TEXT] [--memory=TEXT] [--work=PRODUCTS] CASE..., a case being
 * COLL:BYTES:INFLIGHT:REPS:WARMUP. Returns the exit status.
 */
int peer_main(struct peer *peer, int argc, char **argv);

#endif
