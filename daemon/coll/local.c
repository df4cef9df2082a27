/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * All ranks on one host: every collective in shared memory, nothing on the wire
 *
 * Every element is read once from each input and written once to each output, in one step; only an
 * all-to-all needs scratch, because two ranks that work in place swap their blocks.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll_build.h"
#include "proto/base.h"

static void local_reduction(struct coll_build *c)
{
	plan_add_step(c->b, PLAN_LOCAL, 0, 0);
	c->units = 1;
	for (uint32_t i = 0; i < coll_pieces(c, 0, 1); i++) {
		uint32_t block = coll_add_piece(c, 0, 1, i, true);

		coll_add_inputs(c, block);
		coll_add_outputs(c, block);
	}
}

void coll_build_local(struct coll_build *c)
{
	coll_message_bound(c, 1, 1, 0);
	switch (c->kind) {
	case COLL_ALLREDUCE:
	case COLL_REDUCE:
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		local_reduction(c);
		break;
	case COLL_BROADCAST:
		coll_add_root_copies(c);
		break;
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
		coll_add_spread(c);
		break;
	case COLL_BARRIER:
		/* The operation starts when all local ranks have posted it: nothing is left to do.
		 */
		break;
	default:
		/* With one host the pairwise plans are local copies only. */
		coll_build_pairwise(c);
		break;
	}
}
