/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan check: what can be said about the plan of one host without the others'
 *
 * An independent reading of the rules of plan.h, for tests and for debug builds. What needs all
 * hosts (matching messages, absence of deadlock, the right result) is the simulator's.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "coll/coll.h"
#include "proto/base.h"
#include "reduce/reduce.h"

struct check {
	const struct plan *plan;
	const struct coll_layout *layout;
	uint32_t host;
	uint32_t nlocal;
	const char *why;
};

static bool fail(struct check *c, const char *why)
{
	c->why = why;
	return false;
}

static bool is_receive(const struct plan_step *step)
{
	return step->kind == PLAN_RECV || step->kind == PLAN_RECV_REDUCE;
}

static bool is_whole_buffer(unsigned int kind)
{
	return kind == COLL_ALLREDUCE || kind == COLL_REDUCE || kind == COLL_BROADCAST;
}

/* How many blocks a buffer of local rank @lrank has in this collective, 0: it has none. */
static uint32_t blocks_of(const struct check *c, enum plan_space space, uint32_t lrank)
{
	bool at_root = c->layout->by_host[c->layout->host_first[c->host] + lrank] == c->plan->root;
	uint32_t n = c->layout->nranks;

	switch (c->plan->kind) {
	case COLL_ALLREDUCE:
		return 1;
	case COLL_REDUCE:
		return space == PLAN_IN || at_root;
	case COLL_BROADCAST:
		return (space == PLAN_IN) == at_root;
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
		return space == PLAN_IN ? 1 : n;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
		return space == PLAN_IN ? n : 1;
	case COLL_GATHER:
	case COLL_GATHERV:
		return space == PLAN_IN ? 1 : at_root ? n : 0;
	case COLL_SCATTER:
	case COLL_SCATTERV:
		return space == PLAN_OUT ? 1 : at_root ? n : 0;
	case COLL_ALLTOALL:
	case COLL_ALLTOALLV:
		return n;
	default:
		return 0;
	}
}

static bool check_ref(struct check *c, const struct plan_step *step, const struct plan_ref *ref,
		      bool is_src)
{
	if (ref->space == PLAN_WIRE) {
		if (step->kind != PLAN_RECV_REDUCE || !is_src || ref->raw) {
			return fail(c, "WIRE is a partial source of a RECV_REDUCE only");
		}
		return true;
	}
	if (ref->space == PLAN_TEMP) {
		if (ref->raw || ref->lrank) {
			return fail(c, "TEMP is neither raw nor of a rank");
		}
		return ref->block < c->plan->ntemp || fail(c, "TEMP block out of range");
	}
	if (ref->space != PLAN_IN && ref->space != PLAN_OUT) {
		return fail(c, "unknown space");
	}
	if (ref->lrank >= c->nlocal) {
		return fail(c, "no such local rank");
	}
	if (is_src && ref->raw != (ref->space == PLAN_IN && coll_kind_reduces(c->plan->kind))) {
		return fail(c, "raw is IN of a reduction, and only that");
	}
	if (!is_src && ref->space == PLAN_IN) {
		return fail(c, "IN is written");
	}
	if (ref->raw && step->kind == PLAN_SEND && (c->plan->flags & PLAN_PRESCALE)) {
		return fail(c, "raw input sent in spite of PLAN_PRESCALE");
	}
	return ref->block < blocks_of(c, ref->space, ref->lrank) ||
	       fail(c, "the rank has no such buffer or block (rule 5)");
}

static bool check_length(struct check *c, const struct plan_piece *piece)
{
	bool is_alltoall = c->plan->kind == COLL_ALLTOALL || c->plan->kind == COLL_ALLTOALLV;

	if (piece->parts == 0 || piece->span == 0 || piece->part >= piece->parts ||
	    piece->span > piece->parts - piece->part) {
		return fail(c, "part out of range");
	}
	if (is_alltoall) {
		return ((piece->len_kind == PLAN_LEN_IN || piece->len_kind == PLAN_LEN_OUT) &&
			piece->len_a < c->nlocal && piece->len_b < c->layout->nranks) ||
		       fail(c, "length is none of an all-to-all");
	}
	if (piece->len_kind != PLAN_LEN_RANK || piece->len_a >= c->layout->nranks ||
	    (is_whole_buffer(c->plan->kind) && piece->len_a != 0)) {
		return fail(c, "length of an unknown rank");
	}
	return true;
}

static bool check_piece(struct check *c, const struct plan_step *step,
			const struct plan_piece *piece)
{
	const struct plan *p = c->plan;
	uint32_t nwire = 0;
	static const struct {
		uint16_t min_src, max_src, min_dst, max_dst;
	} counts[] = {
		[PLAN_SEND] = {1, 1, 0, 0},
		[PLAN_RECV] = {0, 0, 1, UINT16_MAX},
		[PLAN_RECV_REDUCE] = {2, REDUCE_MAX_SRC, 1, UINT16_MAX},
		[PLAN_LOCAL] = {1, REDUCE_MAX_SRC, 1, UINT16_MAX},
	};

	if (piece->nsrc < counts[step->kind].min_src || piece->nsrc > counts[step->kind].max_src ||
	    piece->ndst < counts[step->kind].min_dst || piece->ndst > counts[step->kind].max_dst) {
		return fail(c, "number of sources or destinations");
	}
	if (piece->first_ref > p->nrefs ||
	    (uint32_t)piece->nsrc + piece->ndst > p->nrefs - piece->first_ref) {
		return fail(c, "refs out of range");
	}
	if (piece->nsrc > 1 && !coll_kind_reduces(p->kind)) {
		return fail(c, "combination in a collective that does not reduce");
	}
	if (piece->final && (!coll_kind_reduces(p->kind) || piece->nsrc == 0)) {
		return fail(c, "final without a computation");
	}
	for (uint32_t i = 0; i < (uint32_t)piece->nsrc + piece->ndst; i++) {
		const struct plan_ref *ref = &p->refs[piece->first_ref + i];

		if (!check_ref(c, step, ref, i < piece->nsrc)) {
			return false;
		}
		nwire += ref->space == PLAN_WIRE;
	}
	if (nwire != (step->kind == PLAN_RECV_REDUCE)) {
		return fail(c, "a RECV_REDUCE has exactly one WIRE");
	}
	return check_length(c, piece);
}

static bool check_step(struct check *c, const struct plan_step *step)
{
	const struct plan *p = c->plan;

	if (step->kind > PLAN_LOCAL) {
		return fail(c, "unknown step");
	}
	if (step->kind != PLAN_LOCAL &&
	    (step->peer >= c->layout->nhosts || step->peer == c->host)) {
		return fail(c, "no such peer");
	}
	if (step->first_piece > p->npieces || step->npieces > p->npieces - step->first_piece) {
		return fail(c, "pieces out of range");
	}
	for (uint32_t i = 0; i < step->npieces; i++) {
		if (!check_piece(c, step, &p->pieces[step->first_piece + i])) {
			return false;
		}
	}
	return true;
}

/* Successors are valid and later; counts of dependencies agree; rule 1. */
static bool check_order(struct check *c, uint32_t *ndeps, bool *behind_recv)
{
	const struct plan *p = c->plan;

	for (uint32_t s = 0; s < p->nsteps; s++) {
		const struct plan_step *step = &p->steps[s];

		if (ndeps[s] != step->ndeps) {
			return fail(c, "number of dependencies");
		}
		if (step->first_succ > p->nsucc || step->nsucc > p->nsucc - step->first_succ) {
			return fail(c, "successors out of range");
		}
		for (uint32_t i = 0; i < step->nsucc; i++) {
			uint32_t next = p->succ[step->first_succ + i];

			if (next <= s || next >= p->nsteps) {
				return fail(c, "a successor is not later");
			}
			if (i > 0 && next <= p->succ[step->first_succ + i - 1]) {
				return fail(c, "successors are not ascending");
			}
			ndeps[next]++;
			if ((is_receive(step) || behind_recv[s]) && is_receive(&p->steps[next])) {
				return fail(c, "a receive waits for a receive (rule 1)");
			}
			/* What a send waits for has ended when its completion is implied. */
			if (p->steps[next].kind == PLAN_LOCAL &&
			    (is_receive(step) || behind_recv[s])) {
				behind_recv[next] = true;
			}
		}
	}
	return true;
}

static int compare_keys(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Rule 3, the part of one host: no two messages to or from a peer have the same tag. */
static bool check_tags(struct check *c, uint64_t *keys)
{
	const struct plan *p = c->plan;
	uint32_t nsend = 0;
	uint32_t nrecv = 0;

	for (uint32_t s = 0; s < p->nsteps; s++) {
		if (p->steps[s].kind == PLAN_SEND) {
			keys[nsend++] = (uint64_t)p->steps[s].peer << 32 | p->steps[s].tag;
		}
		if (!is_receive(&p->steps[s])) {
			continue;
		}
		nrecv++;
		if (plan_find_recv(p, p->steps[s].peer, p->steps[s].tag) != (int)s) {
			return fail(c, "a receive is not found, or its tag is not unique (rule 3)");
		}
	}
	qsort(keys, nsend, sizeof(*keys), compare_keys);
	for (uint32_t i = 1; i < nsend; i++) {
		if (keys[i] == keys[i - 1]) {
			return fail(c, "two sends with one tag (rule 3)");
		}
	}
	return nrecv == p->nrecv || fail(c, "number of receives");
}

/**
 * plan_check() - check the plan of one host
 * @plan, @layout:  borrowed
 * @host:           whose plan
 * @ret_why:        set with -EINVAL: static text
 *
 * Return: 0, -EINVAL or -ENOMEM.
 */
int plan_check(const struct plan *plan, const struct coll_layout *layout, uint32_t host,
	       const char **ret_why)
{
	struct check c = {plan, layout, host, coll_nlocal(layout, host), NULL};
	cleanup_free uint32_t *ndeps = calloc(plan->nsteps + 1, sizeof(*ndeps));
	cleanup_free bool *behind_recv = calloc(plan->nsteps + 1, sizeof(*behind_recv));
	cleanup_free uint64_t *keys = calloc(plan->nsteps + 1, sizeof(*keys));
	bool good = true;

	if (!ndeps || !behind_recv || !keys) {
		return err_origin(-ENOMEM);
	}
	if (plan->ntemp > plan->max_temp || (plan->ntemp && (plan->flags & PLAN_WHOLE))) {
		good = fail(&c, "scratch");
	}
	if (plan->msg_blocks == 0 || plan->msg_parts == 0) {
		good = fail(&c, "bound of messages");
	}
	for (uint32_t s = 0; good && s < plan->nsteps; s++) {
		good = check_step(&c, &plan->steps[s]);
	}
	good = good && check_order(&c, ndeps, behind_recv) && check_tags(&c, keys);
	if (!good) {
		*ret_why = c.why;
		return -EINVAL;
	}
	return 0;
}
