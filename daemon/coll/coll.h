/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Collectives: layout of ranks on hosts, algorithms, selection
 *
 * Always hierarchical: the ranks of a host are combined in shared memory, one flow a host goes on
 * the wire, the result is spread locally. Any number of hosts and of ranks a host, also unequal.
 *
 * Thread: any (pure functions)      Owns: what it returns      Locks: none
 */
#ifndef ROCECOMM_COLL_H
#define ROCECOMM_COLL_H

#include <stddef.h>
#include <stdint.h>

#include "coll/plan.h"
#include "proto/types.h"

enum coll_algo {
	COLL_ALGO_AUTO = 0,	/* let coll_select() decide */
	COLL_ALGO_LOCAL = 1,	/* one host: no wire */
	COLL_ALGO_DIRECT = 2,	/* everybody exchanges with everybody; one step */
	COLL_ALGO_DOUBLING = 3, /* recursive doubling, folded for other than powers of two */
	COLL_ALGO_HALVING = 4,	/* recursive halving-doubling */
	COLL_ALGO_RING = 5,
	COLL_ALGO_TREE = 6, /* binomial tree, pipelined over segments */
	COLL_ALGO_PAIRWISE = 7,
	COLL_ALGO_COUNT_
};

const char *coll_algo_name(unsigned int algo);

struct coll_layout {
	uint32_t nranks;
	uint32_t nhosts;
	uint32_t *host_of;    /* [nranks] */
	uint32_t *local_of;   /* [nranks] position among the ranks of its host, by rank */
	uint32_t *host_first; /* [nhosts + 1] into by_host */
	uint32_t *by_host;    /* [nranks] ranks grouped by host, ascending within one */
};

/*
 * @host_of: borrowed, [nranks], host indexes 0 .. nhosts-1, each host at least once, at most
 * LIMIT_LOCAL_RANKS ranks a host. Return: 0, -EINVAL, -ENOMEM.
 */
int coll_layout_new(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts,
		    struct coll_layout **ret);
struct coll_layout *coll_layout_free(struct coll_layout *layout);
static inline uint32_t coll_nlocal(const struct coll_layout *l, uint32_t host)
{
	return l->host_first[host + 1] - l->host_first[host];
}

/*
 * Builds the plan of @host. @algo: an algorithm that coll_supports(). @root: a rank, ignored by
 * collectives without one. @want: PLAN_PRESCALE (needed by premul-sum, the same on all hosts),
 * PLAN_DISTINCT (allowed when IN and OUT of no local rank overlap; a host's own choice).
 * Return: 0, -EOPNOTSUPP, -EINVAL (root or host out of range), -ENOMEM.
 */
int coll_plan(enum coll_kind kind, enum coll_algo algo, uint32_t root, uint32_t want,
	      const struct coll_layout *layout, uint32_t host, struct plan **ret);
bool coll_supports(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts);

/*
 * Selection. A rule says: for this collective, up to this many bytes (of one rank's message: count
 * x size for allreduce, reduce, broadcast; one block for block collectives; the mean block for
 * v-variants) use this algorithm. The first rule that fits wins; then the built-in table.
 */
#define COLL_MAX_RULES 64
struct coll_rule {
	uint8_t kind;
	uint8_t algo;
	uint32_t min_hosts; /* applies from this many hosts on */
	uint64_t max_bytes; /* UINT64_MAX: no limit */
};
struct coll_tuning {
	uint32_t nrules;
	struct coll_rule rules[COLL_MAX_RULES];
};

/*
 * Parses rules, separated by blanks or commas: "allreduce:doubling<=32K", "broadcast:tree",
 * "allreduce:ring@4" (from 4 hosts on). Appends to @tuning.
 * Return: 0, or -EINVAL with a sentence in @err.
 */
int coll_tuning_parse(struct coll_tuning *tuning, const char *text, char *err, size_t err_size);

/* Always yields an algorithm that coll_supports(); the same on every host. */
enum coll_algo coll_select(const struct coll_tuning *tuning, enum coll_kind kind, uint64_t bytes,
			   const struct coll_layout *layout);

/*
 * Segment of an operation: bytes of every block that one run of the plan covers.
 * @chunk: target size of a message in bytes; @max_temp: target for the scratch of a segment.
 * A multiple of 64 bytes, at least 64; UINT64_MAX for PLAN_WHOLE. A run takes plan->ntemp segments
 * of scratch, with thousands of ranks more than @max_temp: 64 bytes a block are the least.
 */
uint64_t coll_segment(const struct plan *plan, uint64_t chunk, uint64_t max_temp);

#endif
