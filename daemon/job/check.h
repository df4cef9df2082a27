/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Check: can this host reach that one, over which ways, and how fast
 *
 * Finds the link to the peer or makes one, waits until every pair of RDMA ports has had its trial,
 * then measures with messages that go the way of all others (engine/engine_gauge.h). Nothing of the
 * peer is needed but its daemon. One after the other for each peer; jobs go on meanwhile and slow
 * it down.
 *
 * Thread: control      Owns: struct check      Locks: none
 */
#ifndef ROCECOMM_JOB_CHECK_H
#define ROCECOMM_JOB_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine_gauge.h"
#include "job/rails.h"
#include "proto/limits.h"

#define CHECK_TEST_MS 2000
#define CHECK_TEST_MS_MAX 60000
#define CHECK_MESSAGE (1u << 20)
#define CHECK_WINDOW 8
#define CHECKS_MAX 4 /* at a time */

enum {
	CHECK_E_UNKNOWN = 1, /* not linked, and no address to connect to */
	CHECK_E_SELF,
	CHECK_E_BUSY, /* CHECKS_MAX are under way */
};

struct check_speed {
	bool measured;
	char reason[256];	/* when it was not */
	uint64_t bytes;		/* of a message */
	uint64_t messages;	/* acknowledged */
	uint64_t elapsed;	/* ns */
	uint64_t min, mid, p99; /* ns a message, there and back */
};

/* Valid during the call of check_fn only. */
struct check_result {
	bool linked;
	char peer[RAILS_NAME];
	char address[RAILS_NAME];     /* "" when not linked */
	uint64_t connect_ms;	      /* 0: it was linked before */
	char error[LIMIT_ERROR_TEXT]; /* why it is not linked, or not any more; "" */
	const struct rails_path *paths;
	size_t npaths;
	struct check_speed latency, bandwidth;
};

typedef void (*check_fn)(void *arg, const struct check_result *result);

/*
 * @peer: name, host_id or address of a linked host, or a numeric address, with a port if it is not
 * ours: 10.1.0.2, 10.1.0.2:4870, [fd00::2]:4870. @test_ms: 0: CHECK_TEST_MS. @done: called once,
 * from the loop. Return: 0, CHECK_E_*, negative errno.
 */
int check_start(struct jobs *jobs, const char *peer, uint32_t test_ms, check_fn done, void *arg);

/* ---- for jobs.c --------------------------------------------------------------------------- */

void checks_tick(struct jobs *jobs, uint64_t now);
void checks_link_down(struct jobs *jobs, struct hostlink *l, const char *reason);
void checks_link_merged(struct jobs *jobs, struct hostlink *from, struct hostlink *into);
/* The daemon stops: all are answered. */
void checks_shutdown(struct jobs *jobs, const char *reason);

#endif
