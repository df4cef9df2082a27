/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Matrix: every collective x dtype x reduction x count x in and out of place
 *
 * Kind of memory, misalignment and root change from case to case, the first also from rank to
 * rank. Large counts go through every collective and dtype, with one reduction each. `bits`:
 * arbitrary floats, which must come out equal on all ranks and near the reference.
 *
 * Thread: main      Owns: arenas      Locks: none
 */
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tests/integration/collcheck/collcheck.h"

struct matrix {
	struct collcheck *cc;
	struct arena arenas[2][ARENA_MEMORY_COUNT_]; /* send, receive */
	unsigned long cases;
	unsigned long wrong;
	uint64_t digest;
};

static int matrix_init(struct matrix *m, struct collcheck *cc, size_t room)
{
	memset(m, 0, sizeof(*m));
	m->cc = cc;
	m->digest = 0xcbf29ce484222325u;
	for (unsigned int side = 0; side < 2; side++) {
		for (unsigned int k = 0; k < ARENA_MEMORY_COUNT_; k++) {
			int r = arena_init(&m->arenas[side][k], cc->client, k, room);

			if (r != ROCE_OK) {
				return r;
			}
		}
	}
	return ROCE_OK;
}

static void matrix_deinit(struct matrix *m)
{
	for (unsigned int side = 0; side < 2; side++) {
		for (unsigned int k = 0; k < ARENA_MEMORY_COUNT_; k++) {
			arena_deinit(&m->arenas[side][k], m->cc->client);
		}
	}
}

/* Runs one case to its end. Return: 0 or 1 (the rest makes no sense any more). */
static int matrix_case(struct matrix *m, struct one_case *c)
{
	struct collcheck *cc = m->cc;
	uint64_t pick = value_hash(c->value.seed, cc->rank, 77);
	char text[256];
	int r;

	r = case_prepare(c, cc->rank, &m->arenas[0][pick % ARENA_MEMORY_COUNT_],
			 &m->arenas[1][(pick >> 8) % ARENA_MEMORY_COUNT_]);
	if (r == 0) {
		r = case_post(c, cc->comm, cc->premul);
	}
	if (r == ROCE_OK) {
		r = case_wait(c, COLLCHECK_TIMEOUT_MS);
	}
	if (r != ROCE_OK) {
		case_deinit(c);
		return collcheck_failed(cc, case_text(c, text, sizeof(text)), r);
	}
	m->cases++;
	m->wrong += !case_verify(c, &m->digest);
	case_deinit(c);
	return m->wrong > 20;
}

static int matrix_counts(struct matrix *m, int kind, int dtype, int op)
{
	static const size_t counts[] = {0, 1, 7, 1009};
	struct collcheck *cc = m->cc;

	for (unsigned int i = 0; i < ARRAY_SIZE(counts); i++) {
		for (int in_place = 0; in_place <= case_has_in_place(kind); in_place++) {
			struct one_case c = {
				.value = {kind, dtype, op, cc->size, cc->seed + m->cases, false},
				.count = counts[i],
				.root = (int)(m->cases % cc->size),
				.in_place = in_place,
				.misalign = m->cases % 4 == 3 ? (unsigned int)(m->cases % 15) : 0,
			};

			if (matrix_case(m, &c)) {
				return 1;
			}
		}
	}
	return 0;
}

/* Reductions that a kind and dtype have; those that move have one: none. */
static int matrix_ops(struct matrix *m, int kind, int dtype)
{
	if (!coll_kind_reduces((unsigned int)kind)) {
		return matrix_counts(m, kind, dtype, 0);
	}
	for (int op = 0; op < REDOP_COUNT_; op++) {
		if (m->cc->is_short && (op + dtype + kind) % 4 != 0) {
			continue;
		}
		if (redop_supports((unsigned int)op, (unsigned int)dtype) &&
		    matrix_counts(m, kind, dtype, op)) {
			return 1;
		}
	}
	return 0;
}

static int matrix_large(struct matrix *m, int kind, int dtype, size_t bytes)
{
	struct collcheck *cc = m->cc;
	int op = (kind + dtype) % REDOP_COUNT_;
	struct one_case c = {
		.value = {kind, dtype, op, cc->size, cc->seed + m->cases, false},
		.count = bytes / dtype_size((unsigned int)dtype) + 3,
		.root = (int)(m->cases % cc->size),
		.in_place = (kind + dtype) % 2,
		.misalign = dtype % 3 == 0 ? 1 : 0,
	};

	if (coll_kind_reduces((unsigned int)kind)) {
		if (!redop_supports(REDOP_SUM, (unsigned int)dtype)) {
			return 0;
		}
		while (!redop_supports((unsigned int)c.value.op, (unsigned int)dtype)) {
			c.value.op = (c.value.op + 1) % REDOP_COUNT_;
		}
	}
	return matrix_case(m, &c);
}

int mode_matrix(struct collcheck *cc)
{
	/* Larger than several chunks for allreduce; blocks of a rank for the others. */
	size_t large = cc->is_short ? 300000 : 1500000;
	struct matrix m;
	int r;

	r = matrix_init(&m, cc, (large + 64) * (cc->size + 1) + 4096);
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "memory", r);
	}
	r = 0;
	for (int kind = 0; kind <= COLL_SEND && r == 0; kind++) {
		for (int dtype = 0; dtype < DTYPE_COUNT_ && r == 0; dtype++) {
			if (cc->is_short && (kind + dtype) % 3 != 0) {
				continue;
			}
			r = matrix_ops(&m, kind, dtype);
			if (r == 0) {
				r = matrix_large(&m, kind, dtype,
						 kind == COLL_ALLREDUCE ? large : large / 2);
			}
		}
	}
	if (r == 0 && m.wrong == 0) {
		printf("digest %016llx cases %lu\n", (unsigned long long)m.digest, m.cases);
		matrix_deinit(&m);
		return 0;
	}
	fprintf(stderr, "rank %u: %lu of %lu cases are wrong\n", cc->rank, m.wrong, m.cases);
	return 1;
}

/* Are all ranks' digests equal? Return: 0 or 1. */
static int same_everywhere(struct collcheck *cc, uint64_t digest)
{
	uint64_t all[CASE_RANKS_MAX];
	int r;

	r = roce_allgather(&digest, all, 1, ROCE_U64, cc->comm);
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "allgather", r);
	}
	for (unsigned int i = 0; i < cc->size; i++) {
		if (all[i] != digest) {
			fprintf(stderr, "rank %u: result %016llx, rank %u has %016llx\n", cc->rank,
				(unsigned long long)digest, i, (unsigned long long)all[i]);
			return 1;
		}
	}
	return 0;
}

int mode_bits(struct collcheck *cc)
{
	static const int dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
	static const size_t counts[] = {1, 3, 100, 5003, 150001};
	struct matrix m;
	int r;

	r = matrix_init(&m, cc, 150001 * sizeof(double) + 4096);
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "memory", r);
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(dtypes) * ARRAY_SIZE(counts); i++) {
		for (int op = REDOP_SUM; op <= REDOP_AVG; op++) {
			struct one_case c = {
				.value = {COLL_ALLREDUCE, dtypes[i % 4], op, cc->size,
					  cc->seed + m.cases, true},
				.count = counts[i / 4],
			};

			if (op == REDOP_PROD) {
				continue; /* the bound of an error is another */
			}
			if (matrix_case(&m, &c) || m.wrong || same_everywhere(cc, m.digest)) {
				return 1;
			}
		}
	}
	printf("digest %016llx cases %lu\n", (unsigned long long)m.digest, m.cases);
	matrix_deinit(&m);
	return 0;
}
