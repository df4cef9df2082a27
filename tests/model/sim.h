/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Simulator: runs the plans of all hosts of a communicator in one process
 *
 * Ready steps, messages and the ends of sends take place in random order, several segments are in
 * flight, and work happens in fragments between which everything else goes on. It checks the rules
 * of plan.h: that what arrives has a place, that memory is not changed while it is being sent, that
 * both sides agree on messages, that everything ends, and that the result and all other memory are
 * right.
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#ifndef ROCECOMM_TESTS_SIM_H
#define ROCECOMM_TESTS_SIM_H

#include "sim_data.h"

struct sim_result {
	uint64_t wire_bytes; /* of all hosts */
	uint64_t most_sent;  /* by one host */
	uint64_t least_sent;
	uint64_t messages; /* of all hosts */
	uint64_t segments; /* of host 0 */
	uint64_t seg;	   /* elements of one */
	uint64_t digest;   /* of all results */
	/* Elements of one block of every rank; of those on other hosts than the root's. */
	uint64_t elems_total;
	uint64_t elems_remote;
	uint64_t elems_crossing; /* that an all-to-all moves between hosts */
	uint64_t elems_folded;	 /* of the odd hosts of folded pairs */
};

/*
 * @order_seed: decides what happens when, and nothing else.
 * Return: 0, or -1 with the reason in @why.
 */
int sim_run(const struct sim_config *config, uint64_t order_seed, struct sim_result *ret, char *why,
	    size_t why_size);

/*
 * Are all accesses of one host's steps that conflict ordered by dependencies, with the addresses of
 * @d? Quadratic. Return: NULL or a reason.
 */
const char *sim_check_races(const struct sim_data *d, const struct plan *plan, uint32_t host,
			    uint64_t seg);

/*
 * Elements of a piece in segment @index; @ret_first: where they begin, counted from the beginning
 * of the segment.
 */
uint64_t sim_piece_elems(const struct sim_data *d, uint32_t host, const struct plan_piece *piece,
			 uint64_t seg, uint64_t index, uint64_t *ret_first);
/* Address of a reference's first element; @temp: scratch of the segment. */
uint8_t *sim_resolve(const struct sim_data *d, uint32_t host, const struct plan_ref *ref,
		     uint8_t *temp, uint64_t seg, uint64_t index, uint64_t first);

#endif
