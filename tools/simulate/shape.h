/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fleet: the plans of all hosts of a communicator, reduced to what takes time
 *
 * The real plan of every host is built, one at a time, and condensed: a step keeps its order, its
 * partner and how many bytes it moves, copies and reduces; where the bytes lie does not matter
 * here. So the plans of 10,000 hosts fit into memory.
 *
 * Where all hosts do the same at the same time, one host stands for all (FLEET_SHIFT, FLEET_XOR):
 * what it sends to the host at some distance is what it gets from the host at the same distance on
 * the other side, or from that very host. fleet_mirror() says for which plans that is exact.
 *
 * Thread: any, one user at a time      Owns: its shapes      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_SHAPE_H
#define ROCECOMM_SIMULATE_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "coll/coll.h"

enum fleet_mirror {
	FLEET_FULL = 0,	 /* every host has a shape of its own */
	FLEET_SHIFT = 1, /* host h is host 0 moved by h */
	FLEET_XOR = 2,	 /* partners differ in one bit */
};

struct shape_step {
	uint8_t kind;
	uint32_t peer;
	uint32_t tag;
	uint32_t target; /* SEND: the step that receives it, there */
	uint32_t npieces;
	uint32_t part, span, parts; /* the same for all pieces */
	uint32_t copies;	    /* of a piece's length */
	uint32_t reduces;
	uint32_t ndeps;
	uint32_t first_succ;
	uint32_t nsucc;
};

struct shape {
	uint32_t nsteps;
	uint32_t nsucc;
	uint32_t ntemp;
	uint32_t nrecv;
	uint32_t nsend_peers;
	uint32_t nrecv_peers;
	uint32_t nrecv_only; /* peers that send here and get nothing from here */
	struct shape_step *steps;
	uint32_t *succ;
	uint32_t *recv; /* receive steps by (peer, tag) */
};

struct fleet {
	enum coll_kind kind;
	enum coll_algo algo;
	enum fleet_mirror mirror;
	uint32_t nhosts;
	uint32_t ranks; /* a host */
	uint32_t nshapes;
	struct shape *shapes;
	struct plan bounds;  /* flags and bounds of messages and scratch; no steps */
	uint64_t plan_bytes; /* memory of the largest plan */
};

/* How a plan may be represented by one host, exactly. */
enum fleet_mirror fleet_mirror(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts);

/*
 * Return: 0, -EOPNOTSUPP (no such plan), -E2BIG (too many large plans), -EINVAL (not a plan that
 * can be condensed or mirrored), -ENOMEM.
 */
int fleet_new(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts, uint32_t ranks,
	      enum fleet_mirror mirror, struct fleet **ret);
struct fleet *fleet_free(struct fleet *f);

static inline const struct shape *fleet_shape(const struct fleet *f, uint32_t host)
{
	return &f->shapes[f->mirror == FLEET_FULL ? host : 0];
}

#endif
