/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Prediction, see predict.h
 *
 * Thread: any, one user at a time      Owns: nothing      Locks: none
 */
#include "tools/simulate/predict.h"

#include "proto/base.h"

void predictor_deinit(struct predictor *p)
{
	p->fleet = fleet_free(p->fleet);
}

/* Racks tell hosts apart, unless their uplinks never are short; so does waiting for a core. */
static enum fleet_mirror choose_mirror(const struct predictor *p, enum coll_kind kind,
				       enum coll_algo algo, uint32_t nhosts)
{
	if (p->full || p->model.cores > 0 || (p->model.rack > 0 && p->model.oversub > 1)) {
		return FLEET_FULL;
	}
	return fleet_mirror(kind, algo, nhosts);
}

static int take_fleet(struct predictor *p, enum coll_kind kind, enum coll_algo algo,
		      uint32_t nhosts, uint32_t ranks)
{
	struct fleet *f = p->fleet;

	if (f && f->kind == kind && f->algo == algo && f->nhosts == nhosts && f->ranks == ranks) {
		return 0;
	}
	p->fleet = fleet_free(f);
	p->steady_known = false;
	return fleet_new(kind, algo, nhosts, ranks, choose_mirror(p, kind, algo, nhosts),
			 &p->fleet);
}

static int run(struct predictor *p, uint64_t bytes, uint64_t nseg, struct flow_result *ret)
{
	int r = flow_run(p->fleet, &p->model, bytes, nseg, ret);

	p->events += r ? 0 : ret->events;
	return r;
}

/*
 * The first segments, then as many more as @bytes have, each for what one costs in the long run.
 * How often a segment holds up the next one along a chain depends on how many there are until they
 * are as many as it has hosts, so there the difference of two runs is not what one more costs.
 */
static int run_steady(struct predictor *p, uint64_t bytes, struct prediction *ret)
{
	const struct fleet *f = p->fleet;
	bool chain =
		f->algo == COLL_ALGO_RING && (f->kind == COLL_BROADCAST || f->kind == COLL_REDUCE);
	double segments = (double)bytes / (double)flow_segment(f, &p->model);
	double more = segments - PREDICT_LONG;
	struct flow_result shorter;
	int r = 0;

	if (!p->steady_known) {
		r = run(p, bytes, PREDICT_LONG, &p->longer);
		p->us_more = p->longer.us_more;
		if (!r && !chain) {
			r = run(p, bytes, PREDICT_SHORT, &shorter);
			if (!r) {
				p->us_more = (p->longer.us - shorter.us) /
					     (PREDICT_LONG - PREDICT_SHORT);
			}
		}
		if (r) {
			return r;
		}
		p->steady_known = true;
	}
	ret->us = p->longer.us + more * p->us_more;
	ret->sent = p->longer.sent * segments / PREDICT_LONG;
	ret->messages = p->longer.messages * segments / PREDICT_LONG;
	ret->steady = more > 0;
	return 0;
}

/**
 * predict() - time and bytes of one operation
 * @p:      model set, the rest zero before the first call
 * @bytes:  of one rank's message, as coll_select() counts them
 * @ret:    set on success only
 *
 * Return: 0, -EOPNOTSUPP, -E2BIG, or another negative errno.
 */
int predict(struct predictor *p, enum coll_kind kind, enum coll_algo algo, uint32_t nhosts,
	    uint32_t ranks, uint64_t bytes, struct prediction *ret)
{
	struct prediction result = {0};
	struct flow_result whole;
	uint64_t seg;
	int r = take_fleet(p, kind, algo, nhosts, ranks);

	if (r) {
		return r;
	}
	seg = flow_segment(p->fleet, &p->model);
	/* In whole ones: the last segment of all may be a short one. */
	if (!p->full && seg != UINT64_MAX && bytes / seg >= PREDICT_LONG) {
		r = run_steady(p, bytes, &result);
	} else {
		r = run(p, bytes, UINT64_MAX, &whole);
		if (!r) {
			result.us = whole.us;
			result.sent = whole.sent;
			result.messages = whole.messages;
		}
	}
	if (r) {
		return r;
	}
	result.symmetry = p->fleet->mirror != FLEET_FULL;
	*ret = result;
	return 0;
}

const char *prediction_how(const struct prediction *p)
{
	if (p->symmetry) {
		return p->steady ? "symmetry, steady" : "symmetry";
	}
	return p->steady ? "steady" : "full";
}
