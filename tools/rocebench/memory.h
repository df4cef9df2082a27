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

/* Sets the plan's .send and .recv. Return: 0 or a roce status; release in either case. */
int memory_init(struct memory *memory, struct roce_client *client, bool plain, struct plan *plan);
void memory_deinit(struct memory *memory);

#endif
