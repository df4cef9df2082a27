/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Two hosts of the lab with rails between them, over fake devices
 *
 * A thread is the network; it and both progress threads take turns at the fake by a lock, for the
 * fake has none. Sockets between the hosts are there, too, so what can be moved to them must be.
 *
 * Thread: the test's, the engines' and the network's      Owns: nothing
 * Locks: of lab_rails.c: the fake, and pause and stop
 */
#ifndef ROCECOMM_TESTS_ENGINE_LAB_RAILS_H
#define ROCECOMM_TESTS_ENGINE_LAB_RAILS_H

#include <pthread.h>

#include "engine/engine_rdma.h"
#include "tests/fake/verbs/fake_verbs.h"
#include "tests/unit/engine/lab.h"

#define HOSTS 2
#define RAILS 2
#define MEM (8u << 20) /* buffer 1 of each rank */

struct lab_rails {
	struct lab *lab;
	struct fake_net *fake;
	struct fake_device *devices[HOSTS][RAILS];
	struct verbs_api api[HOSTS];
	struct rdma *list[HOSTS];
	struct engine_device added[HOSTS][RAILS];
	struct engine_rail rail[HOSTS][RAILS];
	uint32_t rails;
	struct rdma_bounds bounds; /* of each host */
	int pending;
	pthread_t thread;
	bool pause, stop; /* lock */
};

/* Up on both hosts. @rails: 1 .. RAILS */
void lab_rails_init(struct lab_rails *n, uint64_t seed, uint32_t rails);
/* The same, with what of the ranks' memory may be registered at a time. */
void lab_rails_init_bounded(struct lab_rails *n, uint64_t seed, uint32_t rails,
			    const struct rdma_bounds *bounds);
/* Checks that no receiver was overrun and that all was given back. */
void lab_rails_fini(struct lab_rails *n);
/* A done callback; @arg: struct lab_rails *, whose `pending` was raised before. */
void lab_rails_done(void *arg);
/* Waits until nothing is pending. */
void lab_rails_settle(struct lab_rails *n);
void lab_rails_wait_up(struct lab_rails *n);
void lab_rails_link(struct lab_rails *n, uint32_t rail, bool up);
/* Nothing moves in the network meanwhile. */
void lab_rails_pause(struct lab_rails *n, bool pause);
/* Of the completions of the host's first device; see fake_verbs_mangle(). */
void lab_rails_mangle(struct lab_rails *n, uint32_t host, bool receive, uint32_t nth,
		      enum fake_mangle what);
/* Queue pairs that there are, or registrations that were ever asked for. */
int lab_rails_made(struct lab_rails *n, bool qps);
/* Bytes that devices delivered. */
uint64_t lab_rails_delivered(struct lab_rails *n);

#endif
