/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Barrier: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocebench/barrier.h"

#include <poll.h>
#include <stdio.h>

#define LOOKS 5
#define PAUSE_MS 1

/* The last rank: hears from all others, then enters. */
static int enter_last(struct roce_comm *comm)
{
	unsigned char told;
	int r = ROCE_OK;

	for (int rank = 0; rank < roce_comm_size(comm) - 1 && r == ROCE_OK; rank++) {
		r = roce_recv(&told, 1, ROCE_U8, rank, comm);
	}
	return r == ROCE_OK ? roce_barrier(comm) : r;
}

int barrier_check(struct roce_comm *comm, int64_t *ret_wrong)
{
	int last = roce_comm_size(comm) - 1;
	struct roce_request *request = NULL;
	unsigned char told = 1;
	int64_t wrong = 0;
	int r, look = ROCE_IN_PROGRESS;

	if (roce_comm_rank(comm) == last) {
		r = enter_last(comm);
		if (r == ROCE_OK) {
			*ret_wrong = 0;
		}
		return r;
	}
	r = roce_ibarrier(comm, &request);
	if (r != ROCE_OK) {
		return r;
	}
	for (int i = 0; i < LOOKS && look == ROCE_IN_PROGRESS; i++) {
		poll(NULL, 0, PAUSE_MS);
		look = roce_test(&request);
	}
	if (look != ROCE_IN_PROGRESS && look != ROCE_OK) {
		return look;
	}
	if (look == ROCE_OK) {
		fprintf(stderr, "rocebench: rank %d: the barrier let it through before rank %d\n",
			roce_comm_rank(comm), last);
		wrong = 1;
	}
	r = roce_send(&told, 1, ROCE_U8, last, comm);
	if (r == ROCE_OK) {
		r = roce_wait(&request, -1);
	}
	if (r == ROCE_OK) {
		*ret_wrong = wrong;
	}
	return r;
}
