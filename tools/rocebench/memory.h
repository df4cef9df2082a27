/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: the buffers of a plan
 *
 * One area for what is sent and one for what is received, every operation's part on its own page.
 * In place, an operation has one buffer for both, as roceclient.h lays down.
 *
 * Thread: main      Owns: the areas      Locks: none
 */
#ifndef ROCEBENCH_MEMORY_H
#define ROCEBENCH_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/roceclient.h"
#include "tools/rocebench/plan.h"

struct memory {
	struct roce_client *client; /* borrowed */
	bool plain;		    /* malloc() instead of roce_mem_alloc() */
	uint8_t *send, *recv;
};

/*
 * Is there memory for this plan on every host? At most half of what is available, since several
 * "hosts" may be one machine, and plain memory is staged besides. Collective, before anything is
 * allocated: a host that runs out of memory kills what has nothing to do with it. Says what is
 * missing on standard error. Return: a roce status; *ret_fits is the same on all ranks.
 */
int memory_fits(const struct plan *plan, struct roce_comm *comm, bool *ret_fits);
/* Sets the plan's .send and .recv. Return: 0 or a roce status; release in either case. */
int memory_init(struct memory *memory, struct roce_client *client, bool plain, struct plan *plan);
void memory_deinit(struct memory *memory);

#endif
