/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unit tests: plans as data; what they do together is for tests/model
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>

#include "coll/coll.h"
#include "proto/base.h"

static struct coll_layout *make_layout(uint32_t nhosts, uint32_t nlocal)
{
	uint32_t *host_of = calloc((size_t)nhosts * nlocal, sizeof(*host_of));
	struct coll_layout *l = NULL;

	for (uint32_t r = 0; r < nhosts * nlocal; r++) {
		host_of[r] = r / nlocal;
	}
	cr_assert_eq(coll_layout_new(host_of, nhosts * nlocal, nhosts, &l), 0);
	free(host_of);
	return l;
}

static struct plan *make_plan(enum coll_kind kind, enum coll_algo algo, uint32_t want,
			      uint32_t nhosts, uint32_t nlocal, uint32_t host)
{
	struct coll_layout *l = make_layout(nhosts, nlocal);
	struct plan *p = NULL;
	const char *why = NULL;

	cr_assert_eq(coll_plan(kind, algo, 0, want, l, host, &p), 0);
	cr_assert_eq(plan_check(p, l, host, &why), 0, "%s", why);
	coll_layout_free(l);
	return p;
}

static bool waits_for(const struct plan *p, uint32_t step, uint32_t on)
{
	for (uint32_t i = 0; i < p->steps[on].nsucc; i++) {
		if (p->succ[p->steps[on].first_succ + i] == step) {
			return true;
		}
	}
	return false;
}

Test(plan, parts_are_even_and_do_not_overflow)
{
	static const uint64_t elems[] = {0, 1, 2, 7, 1000, 1ull << 40, UINT64_MAX};
	static const uint32_t parts[] = {1, 2, 3, 7, 4096, UINT32_MAX};

	for (size_t i = 0; i < ARRAY_SIZE(elems); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(parts); k++) {
			uint32_t some = parts[k] / 3;
			unsigned __int128 exact = (unsigned __int128)elems[i] * some / parts[k];

			cr_assert_eq(plan_part(elems[i], 0, parts[k]), 0);
			cr_assert_eq(plan_part(elems[i], parts[k], parts[k]), elems[i]);
			cr_assert_eq(plan_part(elems[i], some, parts[k]), (uint64_t)exact);
		}
	}
}

Test(plan, ring_of_two_hosts_swaps_halves)
{
	static const uint8_t kinds[] = {PLAN_LOCAL, PLAN_SEND, PLAN_RECV_REDUCE, PLAN_SEND,
					PLAN_RECV};
	struct plan *p = make_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 0, 2, 4, 0);

	cr_assert_eq(p->nsteps, ARRAY_SIZE(kinds));
	for (uint32_t s = 0; s < p->nsteps; s++) {
		cr_assert_eq(p->steps[s].kind, kinds[s], "step %u", s);
	}
	cr_assert_eq(p->pieces[2].nsrc, 5, "what arrives and four inputs in one combination");
	cr_assert_eq(p->pieces[2].ndst, 4);
	cr_assert(p->pieces[2].final);
	cr_assert_eq(p->ntemp, 1);
	cr_assert_eq(p->msg_parts, 2);
	cr_assert_eq(p->steps[0].ndeps, 0);
	cr_assert_eq(p->steps[2].ndeps, 0);
	cr_assert(waits_for(p, 1, 0));
	cr_assert(waits_for(p, 3, 2));
	cr_assert(waits_for(p, 4, 0), "in place: the half that returns is read before");
	plan_free(p);
}

/* Else scratch would make the messages of a ring shorter and shorter with more hosts. */
Test(plan, ring_allreduce_of_many_hosts_needs_no_scratch)
{
	for (uint32_t nhosts = 5; nhosts <= 1000; nhosts += 199) {
		struct plan *p =
			make_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 0, nhosts, 2, nhosts / 2);

		cr_assert_eq(p->ntemp, 0);
		cr_assert_eq(coll_segment(p, 1 << 18, 1 << 19), (uint64_t)nhosts << 18);
		plan_free(p);
	}
}

/* A daemon's memory may grow with the ranks, not with their square. */
Test(plan, grows_with_the_ranks_and_no_faster)
{
	static const struct {
		enum coll_kind kind;
		enum coll_algo algo;
	} longest[] = {
		{COLL_ALLREDUCE, COLL_ALGO_RING},      {COLL_ALLREDUCE, COLL_ALGO_HALVING},
		{COLL_ALLGATHER, COLL_ALGO_RING},      {COLL_ALLGATHER, COLL_ALGO_DOUBLING},
		{COLL_REDUCE_SCATTER, COLL_ALGO_RING}, {COLL_REDUCE_SCATTER, COLL_ALGO_HALVING},
		{COLL_ALLTOALL, COLL_ALGO_PAIRWISE},   {COLL_GATHER, COLL_ALGO_PAIRWISE},
	};

	for (size_t i = 0; i < ARRAY_SIZE(longest); i++) {
		struct plan *few = make_plan(longest[i].kind, longest[i].algo, 0, 500, 2, 7);
		struct plan *many = make_plan(longest[i].kind, longest[i].algo, 0, 4000, 2, 7);

		cr_assert_leq(many->nsteps, few->nsteps * 8 + 64);
		cr_assert_leq(many->npieces, few->npieces * 8 + 64);
		cr_assert_leq(many->nrefs, few->nrefs * 8 + 64);
		cr_assert_leq(many->nsucc, few->nsucc * 8 + 64);
		plan_free(few);
		plan_free(many);
	}
}

Test(plan, one_rank_sends_its_input_without_a_copy)
{
	struct plan *p = make_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 0, 2, 1, 0);

	cr_assert_eq(p->steps[0].kind, PLAN_SEND);
	cr_assert_eq(p->refs[p->pieces[0].first_ref].space, PLAN_IN);
	cr_assert_eq(p->ntemp, 0);
	cr_assert(waits_for(p, 3, 0), "in place: the receive waits for the send");
	plan_free(p);

	p = make_plan(COLL_ALLREDUCE, COLL_ALGO_RING, PLAN_PRESCALE, 2, 1, 0);
	cr_assert_eq(p->steps[0].kind, PLAN_LOCAL, "scaled into scratch first");
	cr_assert_eq(p->ntemp, 1);
	cr_assert(p->flags & PLAN_PRESCALE);
	plan_free(p);

	p = make_plan(COLL_ALLREDUCE, COLL_ALGO_RING, PLAN_DISTINCT, 2, 1, 0);
	cr_assert_eq(p->steps[3].ndeps, 0, "out of place nothing is overwritten");
	plan_free(p);
}

Test(plan, distinct_alltoall_copies_nothing)
{
	struct plan *p = make_plan(COLL_ALLTOALL, COLL_ALGO_PAIRWISE, PLAN_DISTINCT, 3, 2, 1);
	struct plan *q = make_plan(COLL_ALLTOALL, COLL_ALGO_PAIRWISE, 0, 3, 2, 1);

	cr_assert_eq(p->ntemp, 0);
	cr_assert_eq(q->ntemp, 2 * 4 + 1);
	cr_assert_eq(p->max_temp, q->max_temp, "both choose the same segment");
	cr_assert_eq(p->msg_blocks, 4);
	cr_assert_eq(q->msg_blocks, 4);
	plan_free(p);
	plan_free(q);
}

Test(plan, receives_are_found)
{
	struct plan *p = make_plan(COLL_ALLREDUCE, COLL_ALGO_HALVING, 0, 8, 1, 5);
	uint32_t found = 0;

	for (uint32_t peer = 0; peer < 9; peer++) {
		for (uint32_t tag = 0; tag < 64; tag++) {
			int s = plan_find_recv(p, peer, tag);

			if (s >= 0) {
				found++;
				cr_assert_eq(p->steps[s].peer, peer);
				cr_assert_eq(p->steps[s].tag, tag);
			}
		}
	}
	cr_assert_eq(found, 6);
	cr_assert_eq(p->nrecv, 6);
	cr_assert_eq(p->nrecv_peers, 3);
	cr_assert_eq(p->nsend_peers, 3);
	cr_assert_eq(p->recv_peers[0], 1);
	cr_assert_eq(p->recv_peers[1], 4);
	cr_assert_eq(p->recv_peers[2], 7);
	plan_free(p);
}

Test(plan, refuses_what_it_cannot_plan)
{
	struct coll_layout *l = make_layout(2, 2);
	struct plan *p = NULL;

	cr_assert_eq(coll_plan(COLL_ALLTOALL, COLL_ALGO_RING, 0, 0, l, 0, &p), -EOPNOTSUPP);
	cr_assert_eq(coll_plan(COLL_ALLREDUCE, COLL_ALGO_LOCAL, 0, 0, l, 0, &p), -EOPNOTSUPP);
	cr_assert_eq(coll_plan(COLL_SEND, COLL_ALGO_DIRECT, 0, 0, l, 0, &p), -EOPNOTSUPP);
	cr_assert_eq(coll_plan(COLL_BROADCAST, COLL_ALGO_TREE, 4, 0, l, 0, &p), -EINVAL);
	cr_assert_eq(coll_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 4, 0, l, 2, &p), -EINVAL);
	cr_assert_null(p);
	cr_assert_eq(coll_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 99, 0, l, 1, &p), 0,
		     "a root that is not used is not looked at");
	plan_free(p);
	coll_layout_free(l);
}

Test(plan, segments_keep_messages_and_scratch_small)
{
	struct plan *ring = make_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 0, 2, 4, 0);
	struct plan *gather = make_plan(COLL_GATHER, COLL_ALGO_PAIRWISE, 0, 2, 4, 0);

	cr_assert_eq(coll_segment(ring, 1 << 18, 1 << 24), 1 << 19);
	cr_assert_eq(coll_segment(ring, 1 << 18, 1000), 960);
	cr_assert_eq(coll_segment(ring, 0, 0), 64);
	cr_assert_eq(coll_segment(ring, UINT64_MAX, UINT64_MAX), UINT64_MAX - 63);
	cr_assert_eq(coll_segment(gather, 1, 1), UINT64_MAX);
	plan_free(ring);
	plan_free(gather);
}

/* Damages one thing after the other; each must be noticed. */
Test(plan, check_notices_damage)
{
	struct coll_layout *l = make_layout(2, 2);
	const char *why = NULL;

	for (int damage = 0; damage < 12; damage++) {
		struct plan *p = NULL;

		cr_assert_eq(coll_plan(COLL_ALLREDUCE, COLL_ALGO_RING, 0, 0, l, 0, &p), 0);
		switch (damage) {
		case 0:
			p->refs[0].lrank = 2;
			break;
		case 1:
			p->refs[0].block = 1;
			break;
		case 2:
			p->refs[0].space = PLAN_WIRE;
			break;
		case 3:
			p->pieces[0].span = 3;
			break;
		case 4:
			p->pieces[0].nsrc = 200;
			break;
		case 5:
			p->pieces[0].len_a = 1;
			break;
		case 6:
			p->steps[1].peer = 0;
			break;
		case 7:
			p->steps[1].peer = 2;
			break;
		case 8:
			p->steps[3].tag = p->steps[1].tag;
			break;
		case 9:
			p->succ[0] = 0;
			break;
		case 10:
			p->steps[0].ndeps = 1;
			break;
		default:
			p->max_temp = 0;
			break;
		}
		cr_assert_eq(plan_check(p, l, 0, &why), -EINVAL, "damage %d", damage);
		cr_assert_not_null(why);
		plan_free(p);
	}
	coll_layout_free(l);
}

/* ---- the builder -------------------------------------------------------------------------- */

static void add_copy(struct plan_builder *b, enum plan_space from, enum plan_space to)
{
	plan_add_step(b, PLAN_LOCAL, 0, 0);
	plan_add_piece(b, PLAN_LEN_RANK, 0, 0, 0, 1, 1, false);
	plan_add_src(b, from, 0, 0, from == PLAN_IN);
	plan_add_dst(b, to, 0, 0);
}

Test(builder, later_accesses_wait_for_conflicting_ones)
{
	static const uint32_t ranks[] = {0};

	for (int in_place = 0; in_place < 2; in_place++) {
		struct plan_builder *b = NULL;
		struct plan *p = NULL;

		cr_assert_eq(plan_builder_new(COLL_ALLREDUCE, COLL_ALGO_LOCAL, 0, &b), 0);
		if (in_place) {
			plan_builder_in_place(b, ranks);
		}
		add_copy(b, PLAN_IN, PLAN_TEMP);  /* 0 */
		add_copy(b, PLAN_TEMP, PLAN_OUT); /* 1: after 0, what it wrote */
		add_copy(b, PLAN_IN, PLAN_TEMP);  /* 2: after 0 and 1, same memory */
		plan_add_dep(b, 2, 0);
		plan_add_dep(b, 2, 0);
		cr_assert_eq(plan_builder_finish(b, 0, 1, 1, 1, &p), 0);
		plan_builder_free(b);
		cr_assert(waits_for(p, 1, 0));
		cr_assert(waits_for(p, 2, 1));
		cr_assert(waits_for(p, 2, 0));
		cr_assert_eq(p->steps[1].ndeps, 1);
		cr_assert_eq(p->steps[2].ndeps, 2, "duplicates are merged");
		cr_assert_eq(p->ntemp, 1);
		plan_free(p);
	}
}

Test(builder, in_place_output_waits_for_readers_of_the_input)
{
	static const uint32_t ranks[] = {0};

	for (int in_place = 0; in_place < 2; in_place++) {
		struct plan_builder *b = NULL;
		struct plan *p = NULL;

		cr_assert_eq(plan_builder_new(COLL_ALLREDUCE, COLL_ALGO_RING, 0, &b), 0);
		if (in_place) {
			plan_builder_in_place(b, ranks);
		}
		plan_add_step(b, PLAN_SEND, 1, 0);
		plan_add_piece(b, PLAN_LEN_RANK, 0, 0, 0, 1, 2, false);
		plan_add_src(b, PLAN_IN, 0, 0, true);
		for (uint32_t part = 0; part < 2; part++) {
			plan_add_step(b, PLAN_RECV, 1, part);
			plan_add_piece(b, PLAN_LEN_RANK, 0, 0, part, 1, 2, false);
			plan_add_dst(b, PLAN_OUT, 0, 0);
		}
		cr_assert_eq(plan_builder_finish(b, 0, 1, 1, 0, &p), 0);
		plan_builder_free(b);
		cr_assert_eq(waits_for(p, 1, 0), in_place == 1);
		cr_assert_not(waits_for(p, 2, 0), "another part");
		plan_free(p);
	}
}

Test(builder, empty_plan_and_unfinished_builder)
{
	struct plan_builder *b = NULL;
	struct plan *p = NULL;

	cr_assert_eq(plan_builder_new(COLL_BARRIER, COLL_ALGO_LOCAL, 0, &b), 0);
	cr_assert_eq(plan_builder_finish(b, 0, 1, 1, 0, &p), 0);
	plan_builder_free(b);
	cr_assert_eq(p->nsteps, 0);
	cr_assert_eq(plan_find_recv(p, 0, 0), -1);
	cr_assert_null(plan_free(p));
	cr_assert_null(plan_free(NULL));
	cr_assert_null(plan_builder_free(NULL));
	cr_assert_eq(plan_builder_new(COLL_BARRIER, COLL_ALGO_LOCAL, 0, &b), 0);
	plan_add_step(b, PLAN_RECV, 0, 0);
	cr_assert_null(plan_builder_free(b));
}
