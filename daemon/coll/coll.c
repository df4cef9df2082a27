/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Collectives: which algorithm plans which collective
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll.h"

#include "coll/coll_build.h"
#include "proto/base.h"
#include "proto/limits.h"

#define KIND(name) (1u << COLL_##name)
#define KINDS_ALLGATHER (KIND(ALLGATHER) | KIND(ALLGATHERV))
#define KINDS_REDUCE_SCATTER (KIND(REDUCE_SCATTER) | KIND(REDUCE_SCATTERV))
#define KINDS_ROOTED (KIND(GATHER) | KIND(GATHERV) | KIND(SCATTER) | KIND(SCATTERV))
#define KINDS_ALLTOALL (KIND(ALLTOALL) | KIND(ALLTOALLV))
#define KINDS_VECTOR (KIND(ALLREDUCE) | KIND(REDUCE) | KIND(BROADCAST))

static const struct {
	const char *name;
	void (*build)(struct coll_build *c);
	uint32_t kinds;
	uint32_t min_hosts;
	uint32_t max_hosts;
} algos[COLL_ALGO_COUNT_] = {
	[COLL_ALGO_AUTO] = {"auto", NULL, 0, 0, 0},
	[COLL_ALGO_LOCAL] = {"local", coll_build_local,
			     KINDS_VECTOR | KINDS_ALLGATHER | KINDS_REDUCE_SCATTER | KINDS_ROOTED |
				     KINDS_ALLTOALL | KIND(BARRIER),
			     1, 1},
	[COLL_ALGO_DIRECT] = {"direct", coll_build_direct,
			      KIND(ALLREDUCE) | KINDS_ALLGATHER | KINDS_REDUCE_SCATTER |
				      KIND(BARRIER),
			      2, COLL_DIRECT_MAX_HOSTS},
	[COLL_ALGO_DOUBLING] = {"doubling", coll_build_doubling,
				KIND(ALLREDUCE) | KINDS_ALLGATHER | KIND(BARRIER), 2,
				LIMIT_COMM_HOSTS},
	[COLL_ALGO_HALVING] = {"halving", coll_build_halving,
			       KIND(ALLREDUCE) | KINDS_REDUCE_SCATTER, 2, LIMIT_COMM_HOSTS},
	[COLL_ALGO_RING] = {"ring", coll_build_ring,
			    KINDS_VECTOR | KINDS_ALLGATHER | KINDS_REDUCE_SCATTER, 2,
			    LIMIT_COMM_HOSTS},
	[COLL_ALGO_TREE] = {"tree", coll_build_tree, KINDS_VECTOR | KIND(BARRIER), 2,
			    LIMIT_COMM_HOSTS},
	[COLL_ALGO_PAIRWISE] = {"pairwise", coll_build_pairwise, KINDS_ROOTED | KINDS_ALLTOALL, 2,
				LIMIT_COMM_HOSTS},
};

const char *coll_algo_name(unsigned int algo)
{
	return algo < COLL_ALGO_COUNT_ ? algos[algo].name : "unknown algorithm";
}

bool coll_supports(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts)
{
	return (unsigned int)kind < COLL_COUNT_ && (unsigned int)algo < COLL_ALGO_COUNT_ &&
	       (algos[algo].kinds >> kind & 1) && nhosts >= algos[algo].min_hosts &&
	       nhosts <= algos[algo].max_hosts;
}

/**
 * coll_plan() - build the plan of one host
 * @kind, @algo:  must be a pair that coll_supports()
 * @root:         rank; ignored by collectives without a root
 * @want:         PLAN_PRESCALE, PLAN_DISTINCT or 0
 * @layout:       borrowed
 * @host:         whose plan
 * @ret:          new plan
 *
 * Return: 0, -EOPNOTSUPP, -EINVAL (root or host out of range), -ENOMEM.
 */
int coll_plan(enum coll_kind kind, enum coll_algo algo, uint32_t root, uint32_t want,
	      const struct coll_layout *layout, uint32_t host, struct plan **ret)
{
	struct coll_build c = {
		.layout = layout,
		.kind = kind,
		.want = want,
		.host = host,
		.nhosts = layout->nhosts,
		.units = 1,
	};
	int r;

	if (!coll_supports(kind, algo, layout->nhosts)) {
		return -EOPNOTSUPP;
	}
	if (host >= layout->nhosts || (coll_kind_has_root(kind) && root >= layout->nranks)) {
		return -EINVAL;
	}
	c.root = coll_kind_has_root(kind) ? root : 0;
	c.root_host = layout->host_of[c.root];
	c.nlocal = coll_nlocal(layout, host);
	c.ranks = layout->by_host + layout->host_first[host];
	c.vector = kind == COLL_ALLREDUCE || kind == COLL_REDUCE || kind == COLL_BROADCAST;
	c.reduces = coll_kind_reduces(kind);
	for (uint32_t h = 0; h < layout->nhosts; h++) {
		c.max_local = MAX(c.max_local, coll_nlocal(layout, h));
	}
	r = plan_builder_new((uint8_t)kind, (uint8_t)algo, c.root, &c.b);
	if (r) {
		return err_trace(r);
	}
	if (!(want & PLAN_DISTINCT)) {
		plan_builder_in_place(c.b, c.ranks);
	}
	/* In the v-variants an empty message tells a peer that expects data that there is none. */
	if (kind == COLL_ALLGATHERV || kind == COLL_REDUCE_SCATTERV) {
		c.flags = PLAN_EMPTY_MESSAGES;
	}
	algos[algo].build(&c);
	r = plan_builder_finish(c.b, c.flags | (want & (PLAN_PRESCALE | PLAN_DISTINCT)),
				c.msg_blocks, c.msg_parts, c.max_temp, ret);
	plan_builder_free(c.b);
	return err_trace(r);
}

/**
 * coll_segment() - how many bytes of every block one run of a plan covers
 * @plan:      borrowed
 * @chunk:     target size of a message in bytes
 * @max_temp:  target for the scratch of a segment in bytes
 *
 * Equal on all hosts that use the same two numbers.
 *
 * Return: a multiple of 64, at least 64; UINT64_MAX for PLAN_WHOLE.
 */
uint64_t coll_segment(const struct plan *plan, uint64_t chunk, uint64_t max_temp)
{
	uint64_t seg;

	if (plan->flags & PLAN_WHOLE) {
		return UINT64_MAX;
	}
	if (__builtin_mul_overflow(chunk, plan->msg_parts, &seg)) {
		seg = UINT64_MAX;
	}
	seg /= MAX(plan->msg_blocks, 1);
	if (plan->max_temp) {
		seg = MIN(seg, max_temp / plan->max_temp);
	}
	return MAX(seg - seg % 64, 64);
}
