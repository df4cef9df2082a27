/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Flow: one operation of a fleet on virtual time
 *
 * Does what the engine does: a window of segments, grants before messages that are not eager,
 * messages before local work, one progress thread a host. All hosts begin at time 0.
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_FLOW_H
#define ROCECOMM_SIMULATE_FLOW_H

#include "tools/simulate/link.h"
#include "tools/simulate/shape.h"

#define FLOW_ESIZE 4 /* bytes of an element */

struct flow_result {
	double us;	    /* until the last host has ended */
	double sent;	    /* bytes of data that leave a host, the most of all */
	double messages;    /* of data that leave a host, the most of all */
	double us_more;	    /* what one more segment costs in the long run; 0: too few ran */
	uint64_t nseg;	    /* segments of the operation */
	uint64_t simulated; /* of them; fewer: the rest is a steady state */
	uint64_t events;
};

/* Bytes of every block that a segment covers. */
uint64_t flow_segment(const struct fleet *f, const struct link_model *m);

/*
 * @bytes: of one rank's message, as coll_select() counts them. @nseg: at most so many segments
 * run, the others are left out; UINT64_MAX: all.
 * Return: 0, -EDEADLK (a plan that does not end) or -ENOMEM.
 */
int flow_run(const struct fleet *f, const struct link_model *m, uint64_t bytes, uint64_t nseg,
	     struct flow_result *ret);

#endif
