/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * comms: what a communicator costs whose daemons are connected already
 *
 * --variant=id: rank 0 makes an id and broadcasts it over the first communicator, all join by it.
 * --variant=split: all split off the first communicator. Either way the new one is destroyed at
 * once. Ranks start together, after a barrier. One line of microseconds:
 *
 *	comms MAKE-MEDIAN MAKE-MAX DESTROY-MEDIAN CYCLE-MEDIAN
 *
 * A cycle is id and broadcast (or nothing), make and destroy, without the barrier.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "tests/integration/collcheck/collcheck.h"

enum { MAKE, DESTROY, CYCLE, TIMES };

static int compare(const void *va, const void *vb)
{
	const double *a = va, *b = vb;

	return *a < *b ? -1 : *a > *b;
}

static double quantile(double *times, unsigned long n, double q)
{
	qsort(times, n, sizeof(*times), compare);
	return times[(unsigned long)(q * (double)(n - 1))] * 1e6;
}

static int make_by_id(struct collcheck *cc, struct roce_unique_id *id, double *begin,
		      struct roce_comm **ret)
{
	struct roce_comm_options options = {.size = sizeof(options), .name = cc->name};
	int r = cc->rank == 0 ? roce_get_unique_id(cc->client, id) : ROCE_OK;

	if (r == ROCE_OK) {
		r = roce_broadcast(id, sizeof(*id), ROCE_U8, 0, cc->comm);
	}
	*begin = collcheck_now();
	return r == ROCE_OK
		       ? roce_comm_init(cc->client, id, (int)cc->rank, (int)cc->size, &options, ret)
		       : r;
}

static int one(struct collcheck *cc, struct roce_unique_id *id, double times[TIMES])
{
	struct roce_comm *comm = NULL;
	double begin, make, made;
	int r = roce_barrier(cc->comm);

	begin = make = collcheck_now();
	if (r == ROCE_OK) {
		r = strcmp(cc->variant, "split") == 0
			    ? roce_comm_split(cc->comm, 0, (int)cc->rank, NULL, &comm)
			    : make_by_id(cc, id, &make, &comm);
	}
	made = collcheck_now();
	if (r == ROCE_OK) {
		r = roce_comm_destroy(comm);
	}
	times[MAKE] = made - make;
	times[DESTROY] = collcheck_now() - made;
	times[CYCLE] = collcheck_now() - begin;
	return r;
}

int mode_comms(struct collcheck *cc)
{
	unsigned long n = MAX(cc->iterations, 1ul);
	cleanup_free double *times = calloc(n * TIMES, sizeof(*times));
	struct roce_unique_id id;
	int r = times ? ROCE_OK : ROCE_ERR_NO_MEMORY;

	/* The first are warm-up. */
	for (unsigned long i = 0; i < n + n / 10 && r == ROCE_OK; i++) {
		double t[TIMES];

		r = one(cc, &id, t);
		for (int k = 0; k < TIMES && r == ROCE_OK; k++) {
			times[k * n + i % n] = t[k];
		}
	}
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "comms", r);
	}
	printf("comms %.0f %.0f %.0f %.0f\n", quantile(&times[MAKE * n], n, 0.5),
	       quantile(&times[MAKE * n], n, 1), quantile(&times[DESTROY * n], n, 0.5),
	       quantile(&times[CYCLE * n], n, 0.5));
	return 0;
}
