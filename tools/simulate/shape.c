/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fleet, see shape.h
 *
 * Thread: any, one user at a time      Owns: shapes      Locks: none
 */
#include "tools/simulate/shape.h"

#include <string.h>

#include "proto/base.h"

/* Of plans that are built one after the other: half a minute or so. */
#define MOST_PLAN_BYTES (4ull << 30)

static bool power_of_two(uint32_t n)
{
	return (n & (n - 1)) == 0;
}

/**
 * fleet_mirror() - can one host stand for all?
 *
 * Direct, ring and pairwise plans, and doubling without reduction, are the same on every host but
 * for an offset; halving and doubling on a power of two of hosts are but for flipped bits. Trees,
 * chains and folded hosts differ from each other.
 *
 * Return: FLEET_FULL when not.
 */
enum fleet_mirror fleet_mirror(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts)
{
	bool rooted = coll_kind_has_root(kind);

	switch (algo) {
	case COLL_ALGO_DIRECT:
		return FLEET_SHIFT;
	case COLL_ALGO_RING:
	case COLL_ALGO_PAIRWISE:
		return rooted ? FLEET_FULL : FLEET_SHIFT;
	case COLL_ALGO_DOUBLING:
		if (kind != COLL_ALLREDUCE) {
			return FLEET_SHIFT;
		}
		return power_of_two(nhosts) ? FLEET_XOR : FLEET_FULL;
	case COLL_ALGO_HALVING:
		return power_of_two(nhosts) ? FLEET_XOR : FLEET_FULL;
	default:
		return FLEET_FULL;
	}
}

/* ---- one host ----------------------------------------------------------------------------- */

/* Return: 0, or -EINVAL when the pieces of a step are not alike. */
static int condense_step(const struct plan *p, const struct plan_step *from, struct shape_step *to)
{
	*to = (struct shape_step){
		.kind = from->kind,
		.peer = from->peer,
		.tag = from->tag,
		.npieces = from->npieces,
		.span = 1,
		.parts = 1,
		.ndeps = from->ndeps,
		.first_succ = from->first_succ,
		.nsucc = from->nsucc,
	};
	for (uint32_t i = 0; i < from->npieces; i++) {
		const struct plan_piece *piece = &p->pieces[from->first_piece + i];

		if (i == 0) {
			to->part = piece->part;
			to->span = piece->span;
			to->parts = piece->parts;
		} else if (to->part != piece->part || to->span != piece->span ||
			   to->parts != piece->parts) {
			return -EINVAL;
		}
		if (from->kind == PLAN_SEND) {
			continue;
		}
		to->reduces += piece->nsrc > 1 ? piece->nsrc - 1u : 0;
		/* What arrives, or is combined, is in its first place by then. */
		to->copies += piece->ndst - (from->kind == PLAN_LOCAL && piece->nsrc == 1 ? 0 : 1);
	}
	return 0;
}

static uint32_t count_recv_only(const struct plan *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0, k = 0; i < p->nrecv_peers; i++) {
		while (k < p->nsend_peers && p->send_peers[k] < p->recv_peers[i]) {
			k++;
		}
		n += k == p->nsend_peers || p->send_peers[k] != p->recv_peers[i];
	}
	return n;
}

static int condense(struct plan *p, struct shape *s)
{
	*s = (struct shape){
		.nsteps = p->nsteps,
		.nsucc = p->nsucc,
		.ntemp = p->ntemp,
		.nrecv = p->nrecv,
		.nsend_peers = p->nsend_peers,
		.nrecv_peers = p->nrecv_peers,
		.nrecv_only = count_recv_only(p),
		.succ = take_ptr(p->succ),
		.recv = take_ptr(p->recv),
	};
	s->steps = calloc((size_t)s->nsteps + 1, sizeof(*s->steps));
	if (!s->steps) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < s->nsteps; i++) {
		int r = condense_step(p, &p->steps[i], &s->steps[i]);

		if (r) {
			return r;
		}
	}
	return 0;
}

static uint64_t plan_bytes(const struct plan *p)
{
	return sizeof(*p) + (uint64_t)p->nsteps * (sizeof(*p->steps) + 3 * sizeof(uint32_t)) +
	       (uint64_t)p->npieces * sizeof(*p->pieces) + (uint64_t)p->nrefs * sizeof(*p->refs) +
	       (uint64_t)p->nsucc * sizeof(*p->succ);
}

static int add_host(struct fleet *f, const struct coll_layout *layout, uint32_t host)
{
	struct plan *p;
	/* Benchmarks and most trainers receive elsewhere than they send from, or in place in an
	 * allreduce, whose plans differ in one copy. */
	int r = coll_plan(f->kind, f->algo, 0, PLAN_DISTINCT, layout, host, &p);

	if (r) {
		return r;
	}
	if (host == 0) {
		f->bounds = *p;
		f->bounds.steps = NULL;
		f->bounds.pieces = NULL;
		f->bounds.refs = NULL;
		f->bounds.succ = NULL;
		f->bounds.recv = NULL;
		f->bounds.send_peers = NULL;
		f->bounds.recv_peers = NULL;
	}
	f->plan_bytes = MAX(f->plan_bytes, plan_bytes(p));
	r = condense(p, &f->shapes[host]);
	plan_free(p);
	return r;
}

/* ---- who receives what -------------------------------------------------------------------- */

static const struct shape_step *find_recv(const struct shape *s, uint32_t peer, uint32_t tag,
					  uint32_t *ret)
{
	uint32_t low = 0;
	uint32_t high = s->nrecv;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		const struct shape_step *step = &s->steps[s->recv[mid]];

		if (step->peer < peer || (step->peer == peer && step->tag < tag)) {
			low = mid + 1;
		} else {
			high = mid;
		}
	}
	if (low == s->nrecv || s->steps[s->recv[low]].peer != peer ||
	    s->steps[s->recv[low]].tag != tag) {
		return NULL;
	}
	*ret = s->recv[low];
	return &s->steps[*ret];
}

static int resolve(struct fleet *f, uint32_t host)
{
	struct shape *s = &f->shapes[host];

	for (uint32_t i = 0; i < s->nsteps; i++) {
		struct shape_step *step = &s->steps[i];
		const struct shape_step *there;
		uint32_t from = host;

		if (step->kind != PLAN_SEND) {
			continue;
		}
		if (f->mirror == FLEET_SHIFT) {
			from = (f->nhosts - step->peer) % f->nhosts;
		} else if (f->mirror == FLEET_XOR) {
			from = step->peer;
		}
		there = find_recv(fleet_shape(f, step->peer), from, step->tag, &step->target);
		if (!there || there->npieces != step->npieces || there->span != step->span ||
		    there->parts != step->parts) {
			return -EINVAL;
		}
	}
	return 0;
}

static int build(struct fleet *f)
{
	cleanup_free uint32_t *host_of = calloc((size_t)f->nhosts * f->ranks, sizeof(*host_of));
	struct coll_layout *layout;
	int r;

	f->shapes = calloc(f->nshapes, sizeof(*f->shapes));
	if (!host_of || !f->shapes) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t i = 0; i < f->nhosts * f->ranks; i++) {
		host_of[i] = i / f->ranks;
	}
	r = coll_layout_new(host_of, f->nhosts * f->ranks, f->nhosts, &layout);
	if (r) {
		return r;
	}
	for (uint32_t h = 0; !r && h < f->nshapes; h++) {
		r = add_host(f, layout, h);
		if (!r && f->plan_bytes * f->nshapes > MOST_PLAN_BYTES) {
			r = -E2BIG;
		}
	}
	coll_layout_free(layout);
	for (uint32_t h = 0; !r && h < f->nshapes; h++) {
		r = resolve(f, h);
	}
	return r;
}

/**
 * fleet_new() - condense the plans of a communicator
 * @kind, @algo:  a pair that coll_supports(); uniform counts only
 * @nhosts:       at least 2
 * @ranks:        of each host
 * @mirror:       what fleet_mirror() says, or FLEET_FULL
 * @ret:          new fleet
 *
 * Return: 0, -EOPNOTSUPP, -E2BIG, -EINVAL or -ENOMEM.
 */
int fleet_new(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts, uint32_t ranks,
	      enum fleet_mirror mirror, struct fleet **ret)
{
	struct fleet *f = calloc(1, sizeof(*f));
	int r;

	if (!f) {
		return err_origin(-ENOMEM);
	}
	f->kind = kind;
	f->algo = algo;
	f->mirror = mirror;
	f->nhosts = nhosts;
	f->ranks = ranks;
	f->nshapes = mirror == FLEET_FULL ? nhosts : 1;
	r = build(f);
	if (r) {
		fleet_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

struct fleet *fleet_free(struct fleet *f)
{
	if (!f) {
		return NULL;
	}
	for (uint32_t i = 0; f->shapes && i < f->nshapes; i++) {
		free(f->shapes[i].steps);
		free(f->shapes[i].succ);
		free(f->shapes[i].recv);
	}
	free(f->shapes);
	free(f);
	return NULL;
}
