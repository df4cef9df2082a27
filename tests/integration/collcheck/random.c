/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Random: a seeded mixture of operations, many in flight, on several communicators
 *
 * All ranks draw the same sequence. A round posts WINDOW operations over all communicators, waits
 * for them, checks each, and agrees on whether the time is up. Half of the communicators are made
 * from ids, the rest by duplication.
 *
 * Thread: main      Owns: communicators, arenas      Locks: none
 */
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tests/integration/collcheck/collcheck.h"

#define WINDOW 32
#define COMMS_MAX 64
#define ROOM (256u << 10)

struct mixture {
	struct collcheck *cc;
	struct roce_comm *comms[COMMS_MAX];
	int premul[COMMS_MAX];
	struct arena arenas[2][WINDOW];
	struct one_case cases[WINDOW];
	uint64_t drawn;
	uint64_t digest;
};

static uint64_t draw(struct mixture *x, uint64_t below)
{
	return value_hash(x->cc->seed, 4711, x->drawn++) % below;
}

static void draw_case(struct mixture *x, struct one_case *c)
{
	struct collcheck *cc = x->cc;
	int kind = (int)draw(x, COLL_SEND + 1), dtype, op = 0;

	do {
		dtype = (int)draw(x, DTYPE_COUNT_);
		op = (int)draw(x, REDOP_COUNT_);
	} while (coll_kind_reduces((unsigned int)kind) &&
		 !redop_supports((unsigned int)op, (unsigned int)dtype));
	*c = (struct one_case){
		.value = {kind, dtype, op, cc->size, cc->seed + x->drawn, false},
		.root = (int)draw(x, cc->size),
		.in_place = draw(x, 2),
		.misalign = draw(x, 4) ? 0 : (unsigned int)draw(x, 16),
	};
	/* Mostly small, sometimes as large as the arena allows. */
	c->count = draw(x, UINT64_C(1) << draw(x, 18));
	while (case_room(c) > ROOM) {
		c->count /= 2;
	}
}

static int round_post(struct mixture *x)
{
	struct collcheck *cc = x->cc;
	char text[256];

	for (unsigned int i = 0; i < WINDOW; i++) {
		struct one_case *c = &x->cases[i];
		unsigned int comm = (unsigned int)draw(x, cc->comms);
		int r;

		draw_case(x, c);
		r = case_prepare(c, cc->rank, &x->arenas[0][i], &x->arenas[1][i]);
		if (r == 0) {
			r = case_post(c, x->comms[comm], x->premul[comm]);
		}
		if (r != ROCE_OK) {
			return collcheck_failed(cc, case_text(c, text, sizeof(text)), r);
		}
	}
	return 0;
}

static int round_finish(struct mixture *x)
{
	int wrong = 0;
	char text[256];

	for (unsigned int i = 0; i < WINDOW; i++) {
		struct one_case *c = &x->cases[i];
		int r = case_wait(c, COLLCHECK_TIMEOUT_MS);

		if (r != ROCE_OK) {
			return collcheck_failed(x->cc, case_text(c, text, sizeof(text)), r);
		}
		wrong += !case_verify(c, &x->digest);
		case_deinit(c);
	}
	return wrong > 0;
}

static int mixture_init(struct mixture *x, struct collcheck *cc)
{
	int r = ROCE_OK;

	x->cc = cc;
	for (unsigned int i = 0; i < cc->comms && r == ROCE_OK; i++) {
		r = i % 2 || i == 0 ? collcheck_join(cc, i + 1, &x->comms[i])
				    : roce_comm_dup(x->comms[i - 1], &x->comms[i]);
		if (r == ROCE_OK) {
			r = roce_op_create_premul(x->comms[i], value_scalar(cc->rank),
						  &x->premul[i]);
		}
	}
	for (unsigned int i = 0; i < 2 * WINDOW && r == ROCE_OK; i++) {
		enum arena_memory memory = (i / 2 + i % 2 + cc->rank) % ARENA_MEMORY_COUNT_;

		r = arena_init(&x->arenas[i % 2][i / 2], cc->client, memory, ROOM);
	}
	return r;
}

int mode_random(struct collcheck *cc)
{
	cleanup_free struct mixture *x = calloc(1, sizeof(*x));
	double end = collcheck_now() + cc->seconds;
	unsigned long rounds = 0;
	uint8_t over = 0;
	int r;

	if (!x || cc->comms > COMMS_MAX) {
		return 1;
	}
	r = mixture_init(x, cc);
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "setting up", r);
	}
	while (!over) {
		if (round_post(x) || round_finish(x)) {
			return 1;
		}
		rounds++;
		over = collcheck_now() >= end;
		r = roce_allreduce(&over, &over, 1, ROCE_U8, ROCE_MAX, cc->comm);
		if (r != ROCE_OK) {
			return collcheck_failed(cc, "agreeing on the end", r);
		}
	}
	for (unsigned int i = 0; i < cc->comms; i++) {
		roce_comm_destroy(x->comms[i]);
	}
	for (unsigned int i = 0; i < 2 * WINDOW; i++) {
		arena_deinit(&x->arenas[i % 2][i / 2], cc->client);
	}
	printf("done %lu operations\n", rounds * WINDOW);
	return 0;
}
