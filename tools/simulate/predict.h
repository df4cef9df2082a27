/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Prediction: time and bytes of one operation, in the cheapest way that is exact
 *
 * "full": every host and every segment ran. "symmetry": one host stood for all, which gives the
 * same times (fleet_mirror()). "steady": only the first segments ran, once the pipeline is full
 * each further one costs the same. Both together: "symmetry, steady".
 *
 * Thread: any, one user at a time      Owns: the fleet used last      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_PREDICT_H
#define ROCECOMM_SIMULATE_PREDICT_H

#include "engine/op.h"
#include "tools/simulate/flow.h"

/*
 * Segments of the two runs whose difference is the steady state: so many times those in flight.
 * Chains of hosts need only the longer one, see run_steady().
 */
#define PREDICT_SHORT (6 * OP_RUNS)
#define PREDICT_LONG (16 * OP_RUNS)

struct predictor {
	struct link_model model;
	bool full; /* neither symmetry nor steady state */
	struct fleet *fleet;
	bool steady_known; /* of the fleet: */
	double us_more;	   /* a segment */
	struct flow_result longer;
	uint64_t events; /* of all runs */
};

struct prediction {
	double us;
	double sent;
	double messages;
	bool symmetry;
	bool steady;
};

void predictor_deinit(struct predictor *p);

/*
 * Calls for one (kind, algo, hosts, ranks) in a row are cheap: the plans are kept.
 * Return: 0, -EOPNOTSUPP (no such plan), -E2BIG (too much work to run), or another negative errno.
 */
int predict(struct predictor *p, enum coll_kind kind, enum coll_algo algo, uint32_t nhosts,
	    uint32_t ranks, uint64_t bytes, struct prediction *ret);

/* In words. */
const char *prediction_how(const struct prediction *p);

#endif
