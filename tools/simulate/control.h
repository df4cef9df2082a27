/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Control simulation: from the first rank that asks to the last that may compute
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_CONTROL_H
#define ROCECOMM_SIMULATE_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/simulate/control_net.h"

/* So many hosts all run the real code; of more, three do. */
#define CONTROL_FULL_HOSTS 1000

struct control_result {
	bool full;
	double seconds;		/* all ranks are ready */
	double listed_s;	/* the root knows of all */
	uint64_t messages;	/* of all hosts */
	uint64_t root_bytes;	/* in and out */
	uint64_t most_bytes;	/* of the host that has most */
	uint64_t most_messages; /* in and out, of the host that has most */
	double most_work_s;	/* CPU of the host that has most */
	uint32_t most_links;	/* a host has at a time */
	size_t root_heap;	/* bytes of the root's job layer at the most; 0: not known */
	size_t host_heap; /* of another host's (the mean, or of the largest of the real ones) */
	size_t daemon;	  /* estimate for the largest daemon, with its links */
	uint64_t refused; /* connections that found a backlog full */
	char error[256];
};

extern const struct net_model control_model;

/* @fanout: 0: as the daemon chooses. Return: 0, -ENOMEM, -EIO: it failed, see ret->error. */
int control_run(const struct net_model *model, uint32_t hosts, uint32_t ranks, uint32_t fanout,
		double skew_ms, struct control_result *ret);

#endif
