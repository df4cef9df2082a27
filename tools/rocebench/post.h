/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Post: runs a plan once
 *
 * Thread: main      Owns: the requests      Locks: none
 */
#ifndef ROCEBENCH_POST_H
#define ROCEBENCH_POST_H

#include "libclient/roceclient.h"
#include "tools/rocebench/compute.h"
#include "tools/rocebench/plan.h"

struct post {
	const struct plan *plan; /* borrowed, as are the next two */
	struct roce_comm *comm;
	struct compute *compute;
	struct roce_request **requests; /* two an operation: a send and a receive */
};

/* Return: 0 or -ENOMEM; release in either case. */
int post_init(struct post *post, const struct plan *plan, struct roce_comm *comm,
	      struct compute *compute);
void post_deinit(struct post *post);
/* Posts all and waits for all. Return: a roce status. */
int post_run(struct post *post);

#endif
