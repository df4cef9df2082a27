/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan: what one host does in one segment of one collective, as pure data
 *
 * A plan depends on (collective, algorithm, root, layout, host) and on nothing else: no sizes, no
 * addresses, no clock. Sizes enter when it is interpreted: an operation is cut into segments of
 * `seg` bytes of every block; each segment runs the whole plan once, several segments are in
 * flight. Inside a segment a piece covers parts [part, part + span) of `parts` equal parts (see
 * plan_part()), so one plan serves every count, also the v-variants, where every block has a length
 * of its own and a segment is clamped to it.
 *
 * Steps form a directed acyclic graph. The rules that keep it free of deadlock and races, all
 * checked by the simulator:
 *  1. A RECV or RECV_REDUCE may depend on local work only, never (directly or through others) on
 *     another receive: whatever arrives for a started segment has a place to go. Data that can be
 *     combined only after other data has arrived is received into TEMP and combined by a LOCAL
 * step. Exception: a dependency on an own SEND whose completion is implied by the arrival.
 *  2. In place (IN and OUT of a rank being the same memory, see roceclient.h) must be right with
 *     every order that the dependencies admit: whoever overwrites waits for whoever still reads.
 *     Not asked for with PLAN_DISTINCT.
 *  3. (sender, receiver, tag) is unique within a plan, and both sides agree on tag, piece order and
 *     lengths. A message whose total length is 0 is not sent and not awaited; with
 *     PLAN_EMPTY_MESSAGES it is, in segment 0. So hosts that know different counts (alltoallv) may
 *     run different numbers of segments: those beyond the own longest block would be empty.
 *  4. An element that several hosts compute is computed from the same rounded partials in the same
 *     order (lower host first) by all of them, so results are bit-identical everywhere.
 *  5. OUT of a rank that has no receive buffer in this collective (reduce, gather on non-roots) is
 *     never named, nor IN of a rank that has no send buffer (broadcast, scatter on non-roots). The
 *     one buffer of a broadcast is IN on the root and OUT elsewhere.
 *
 * Dependencies are derived: the builder reads the steps in the order in which they were added as a
 * sequential program and makes every later access wait for the earlier ones that it conflicts with
 * (hazard.c), so algorithms only say what moves where. A barrier moves nothing and adds its own.
 *
 * Thread: built by control, read by anyone      Owns: its arrays      Locks: none (immutable)
 */
#ifndef ROCECOMM_COLL_PLAN_H
#define ROCECOMM_COLL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plan_space {
	PLAN_IN = 0,   /* send buffer of local rank `lrank`, block `block` */
	PLAN_OUT = 1,  /* receive buffer of local rank `lrank`, block `block` */
	PLAN_TEMP = 2, /* scratch of the segment: block `block` of `seg` bytes */
	PLAN_WIRE = 3, /* the data that is arriving; a source of RECV_REDUCE only */
};

struct plan_ref {
	uint8_t space;
	uint8_t raw; /* 1: a rank's own input (premul-sum scales it), 0: a partial result */
	uint16_t lrank;
	uint32_t block;
};

/* Whose count gives the length of the block that a piece lies in. */
enum plan_len {
	PLAN_LEN_RANK = 0, /* the block of global rank `len_a` (uniform collectives: count) */
	PLAN_LEN_IN = 1, /* alltoall(v): send count of local rank `len_a` for global rank `len_b` */
	PLAN_LEN_OUT = 2, /* alltoall(v): receive count of local rank `len_a` from rank `len_b` */
};

struct plan_piece {
	uint32_t first_ref; /* nsrc sources, then ndst destinations */
	uint16_t nsrc;
	uint16_t ndst;
	uint8_t len_kind; /* enum plan_len */
	uint8_t final;	  /* 1: yields the final value (avg divides here) */
	uint32_t len_a;
	uint32_t len_b;
	uint32_t part;
	uint32_t span;
	uint32_t parts; /* >= 1 */
};

enum plan_step_kind {
	PLAN_SEND = 0,	      /* message of all pieces in order; each 1 source */
	PLAN_RECV = 1,	      /* message of all pieces in order; each >= 1 destinations */
	PLAN_RECV_REDUCE = 2, /* the same; sources (one of them PLAN_WIRE) are combined in order */
	PLAN_LOCAL = 3,	      /* combine sources into destinations; 1 source: a copy */
};

/*
 * Destinations: the first one receives or is computed, the others are copies of it, made while it
 * is in cache.
 */
struct plan_step {
	uint8_t kind;
	uint32_t peer; /* host index, for messages */
	uint32_t tag;
	uint32_t first_piece;
	uint32_t npieces;
	uint32_t ndeps;	     /* how many steps must be done before */
	uint32_t first_succ; /* into succ: the steps that wait for this one */
	uint32_t nsucc;
};

enum plan_flags {
	/* Zero-length messages are sent, in segment 0 (barrier, v-variants). */
	PLAN_EMPTY_MESSAGES = 1u << 0,
	PLAN_WHOLE = 1u << 1, /* one segment, whatever the size (messages may be long); no TEMP */
	/*
	 * Asked for (coll_plan's `want`): no SEND reads a raw input, every one is combined or
	 * copied first, which is where premul-sum scales it.
	 */
	PLAN_PRESCALE = 1u << 2,
	/*
	 * Asked for: no local rank works in place, so inputs need not be copied out of the way.
	 * Only local steps differ; hosts with and without it work together.
	 */
	PLAN_DISTINCT = 1u << 3,
};

struct plan {
	uint8_t kind; /* enum coll_kind */
	uint8_t algo; /* enum coll_algo */
	uint32_t root;
	uint32_t flags;
	uint32_t ntemp; /* TEMP blocks of a segment on this host */
	/*
	 * The longest message of any host carries msg_blocks * seg / msg_parts bytes: the same two
	 * numbers on every host, so that all choose the same segment.
	 */
	uint32_t msg_blocks;
	uint32_t msg_parts;
	uint32_t max_temp; /* largest ntemp of all hosts */

	uint32_t nsteps, npieces, nrefs, nsucc;
	struct plan_step *steps;
	struct plan_piece *pieces;
	struct plan_ref *refs;
	uint32_t *succ;

	/* Receive steps sorted by (peer, tag), for look-up; hosts this plan sends to, receives
	 * from. */
	uint32_t nrecv;
	uint32_t *recv;
	uint32_t nsend_peers, nrecv_peers;
	uint32_t *send_peers; /* ascending, unique */
	uint32_t *recv_peers;
};

struct plan *plan_free(struct plan *plan);

/* Index of the receive step for (peer, tag), or -1. */
int plan_find_recv(const struct plan *plan, uint32_t peer, uint32_t tag);

/*
 * Where part @part of @parts of @elems elements begins: floor(elems * part / parts), computed
 * without overflow. Part [p, p+span) is [plan_part(p), plan_part(p + span)).
 */
uint64_t plan_part(uint64_t elems, uint32_t part, uint32_t parts);

struct coll_layout;

/* Checks rules 1, 3 and 5 and every index. Return: 0, -ENOMEM, or -EINVAL with a reason. */
int plan_check(const struct plan *plan, const struct coll_layout *layout, uint32_t host,
	       const char **ret_why);

/* ---- building ----------------------------------------------------------------------------- */

struct plan_builder;

int plan_builder_new(uint8_t kind, uint8_t algo, uint32_t root, struct plan_builder **ret);
struct plan_builder *plan_builder_free(struct plan_builder *b);
/*
 * The add functions remember a failed allocation; plan_builder_finish() reports it, so that the
 * algorithms read as algorithms. Return: index of the new step.
 */
uint32_t plan_add_step(struct plan_builder *b, enum plan_step_kind kind, uint32_t peer,
		       uint32_t tag);
/*
 * IN and OUT of a local rank may be the same memory (see roceclient.h for which block is which).
 * @ranks: borrowed until the plan is finished; local rank l is global rank ranks[l].
 */
void plan_builder_in_place(struct plan_builder *b, const uint32_t *ranks);
/*
 * Step @step waits for @on, beyond what follows from the data; duplicates are merged. @on < @step.
 */
void plan_add_dep(struct plan_builder *b, uint32_t step, uint32_t on);
/*
 * Appends a piece to the newest step; sources, then destinations follow by plan_add_src/dst.
 * @parts: 1 or a number that is the same in all of the plan.
 */
void plan_add_piece(struct plan_builder *b, enum plan_len len_kind, uint32_t len_a, uint32_t len_b,
		    uint32_t part, uint32_t span, uint32_t parts, bool final);
void plan_add_src(struct plan_builder *b, enum plan_space space, uint32_t lrank, uint32_t block,
		  bool raw);
void plan_add_dst(struct plan_builder *b, enum plan_space space, uint32_t lrank, uint32_t block);
/* Return: 0 or -ENOMEM; the builder is empty afterwards. */
int plan_builder_finish(struct plan_builder *b, uint32_t flags, uint32_t msg_blocks,
			uint32_t msg_parts, uint32_t max_temp, struct plan **ret);

#endif
