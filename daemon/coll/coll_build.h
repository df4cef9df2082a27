/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * What the algorithms share while they write the plan of one host
 *
 * Two shapes of data occur. "Vector" collectives (allreduce, reduce, broadcast) have one block that
 * is cut into equal parts; "block" collectives have one block a rank. Algorithms that divide the
 * work (ring, halving) do it over units: hosts, or hosts folded into pairs. coll_pieces() and
 * coll_add_piece() map a range of units to the pieces of either shape: one run of parts, or the
 * blocks of all ranks on those hosts.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_COLL_BUILD_H
#define ROCECOMM_COLL_BUILD_H

#include "coll/coll.h"
#include "coll/plan_build.h"

/* Everybody to everybody is quadratic in messages and needs a source a host in one reduction. */
#define COLL_DIRECT_MAX_HOSTS 32

struct coll_build {
	struct plan_builder *b;
	const struct coll_layout *layout;
	enum coll_kind kind;
	uint32_t root;
	uint32_t root_host;
	uint32_t want;
	uint32_t host;
	uint32_t nhosts;
	uint32_t nlocal;
	uint32_t max_local;    /* most ranks on any host */
	const uint32_t *ranks; /* [nlocal] global ranks of the local ones */
	bool vector;	       /* one block in parts, not one a rank */
	bool reduces;
	/* Units: see above. The first `folds` of them are two hosts each, the others one. */
	uint32_t units;
	uint32_t folds;
	/* What the algorithm finds out for plan_builder_finish(). */
	uint32_t flags;
	uint32_t msg_blocks;
	uint32_t msg_parts;
	uint32_t max_temp;
};

/* One function an algorithm; all are called only for what coll_supports(). */
void coll_build_local(struct coll_build *c);
void coll_build_direct(struct coll_build *c);
void coll_build_doubling(struct coll_build *c);
void coll_build_halving(struct coll_build *c);
void coll_build_ring(struct coll_build *c);
void coll_build_tree(struct coll_build *c);
void coll_build_pairwise(struct coll_build *c);

/* Shared pieces of them, in build.c. */
void coll_message_bound(struct coll_build *c, uint32_t blocks, uint32_t parts, uint32_t max_temp);
uint32_t coll_unit_host(const struct coll_build *c, uint32_t unit);
uint32_t coll_pieces(const struct coll_build *c, uint32_t unit, uint32_t n);
uint32_t coll_add_piece(struct coll_build *c, uint32_t unit, uint32_t n, uint32_t i, bool final);
void coll_add_whole(struct coll_build *c, bool final);
void coll_add_rank_piece(struct coll_build *c, uint32_t rank, bool final);
uint32_t coll_temp(const struct coll_build *c, uint32_t base, uint32_t block);
void coll_add_inputs(struct coll_build *c, uint32_t block);
void coll_add_outputs(struct coll_build *c, uint32_t block);
bool coll_may_send_input(const struct coll_build *c);
void coll_add_partial(struct coll_build *c, uint32_t unit, uint32_t n, uint32_t temp);
void coll_add_spread(struct coll_build *c);
void coll_add_root_copies(struct coll_build *c);
void coll_add_temp_pieces(struct coll_build *c, uint32_t unit, uint32_t n, uint32_t temp);
void coll_send_partial(struct coll_build *c, uint32_t peer, uint32_t tag, uint32_t unit, uint32_t n,
		       uint32_t temp);
bool coll_is_allgather(enum coll_kind kind);
bool coll_is_reduce_scatter(enum coll_kind kind);

#endif
