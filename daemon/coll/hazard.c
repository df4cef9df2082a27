/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Hazards: which steps of a plan must wait for which
 *
 * The steps are read in the order in which they were added, as a sequential program: a read waits
 * for the last write of the same memory, a write for the last write and for all reads since. Memory
 * is tracked in cells: one part of one block of one buffer. Unless the builder was told otherwise,
 * the blocks of IN and OUT that coincide when a rank works in place are the same cells, so the
 * result is right in place and out of place, with every order that the dependencies admit.
 *
 * A receive must not wait for another receive (rule 1 of plan.h). Where memory says it should, both
 * handle the same part: the first took the part on its way to the result, the second brings the
 * result back. Then what has arrived proves that the part was sent on, and waiting for that send
 * is as good and always short.
 *
 * Thread: any      Owns: nothing after it returns      Locks: none
 */
#include <assert.h>

#include "coll/plan_build.h"
#include "proto/base.h"
#include "proto/types.h"

struct cell {
	uint32_t writer;  /* step, or PLAN_NONE */
	uint32_t readers; /* index of the newest node, or PLAN_NONE */
};

struct reader {
	uint32_t step;
	uint32_t next;
};

struct slot {
	uint64_t key; /* 0: free */
	uint32_t cells;
};

struct tracker {
	const struct plan *plan;
	const uint32_t *ranks;
	uint32_t parts; /* cells of a block */
	struct slot *slots;
	size_t nslots; /* power of two */
	size_t nused;
	struct cell *cells;
	size_t ncells, cap_cells;
	struct reader *readers;
	size_t nreaders, cap_readers;
	uint32_t *seen;	  /* [step]: newest step + 1 that already waits for it */
	uint32_t *stamp;  /* [step]: visits of comes_after() */
	uint32_t visit;	  /* current value of stamp */
	bool *needs_recv; /* [step]: a receive, or local work behind one */
	struct plan_list stack;
	struct plan_deps *deps;
};

/* The one name of memory that has two when a rank works in place. */
static struct plan_ref canonical(const struct tracker *t, struct plan_ref ref)
{
	if (!t->ranks || ref.space == PLAN_TEMP) {
		return ref;
	}
	switch (t->plan->kind) {
	case COLL_ALLGATHER:
	case COLL_ALLGATHERV:
	case COLL_GATHER:
	case COLL_GATHERV:
		if (ref.space == PLAN_IN) {
			ref.space = PLAN_OUT;
			ref.block = t->ranks[ref.lrank];
		}
		break;
	case COLL_REDUCE_SCATTER:
	case COLL_REDUCE_SCATTERV:
	case COLL_SCATTER:
	case COLL_SCATTERV:
		if (ref.space == PLAN_OUT) {
			ref.space = PLAN_IN;
			ref.block = t->ranks[ref.lrank];
		}
		break;
	default:
		ref.space = PLAN_IN;
		break;
	}
	return ref;
}

static uint64_t key_of(struct plan_ref ref)
{
	return (uint64_t)(ref.space + 1) << 48 | (uint64_t)ref.lrank << 32 | ref.block;
}

static size_t slot_of(const struct tracker *t, uint64_t key)
{
	size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (t->nslots - 1);

	while (t->slots[at].key && t->slots[at].key != key) {
		at = (at + 1) & (t->nslots - 1);
	}
	return at;
}

static int grow_slots(struct tracker *t)
{
	struct slot *old = t->slots;
	size_t nold = t->nslots;

	t->nslots = nold ? nold * 2 : 64;
	t->slots = calloc(t->nslots, sizeof(*t->slots));
	if (!t->slots) {
		t->slots = old;
		t->nslots = nold;
		return err_origin(-ENOMEM);
	}
	for (size_t i = 0; i < nold; i++) {
		if (old[i].key) {
			t->slots[slot_of(t, old[i].key)] = old[i];
		}
	}
	free(old);
	return 0;
}

/* Index of the first cell of @ref's block; new cells were never touched. */
static int find_cells(struct tracker *t, struct plan_ref ref, uint32_t *ret)
{
	uint64_t key = key_of(canonical(t, ref));
	size_t at;

	if (t->nused * 2 >= t->nslots) {
		int r = grow_slots(t);

		if (r) {
			return r;
		}
	}
	at = slot_of(t, key);
	if (!t->slots[at].key) {
		size_t want = t->ncells + t->parts;

		if (want > t->cap_cells) {
			size_t cap = MAX(want, t->cap_cells * 2);
			struct cell *cells = reallocarray(t->cells, cap, sizeof(*cells));

			if (!cells || cap >= UINT32_MAX) {
				free(cells ? cells : t->cells);
				t->cells = NULL;
				return err_origin(-ENOMEM);
			}
			t->cells = cells;
			t->cap_cells = cap;
		}
		for (size_t i = t->ncells; i < want; i++) {
			t->cells[i] = (struct cell){PLAN_NONE, PLAN_NONE};
		}
		t->slots[at] = (struct slot){key, (uint32_t)t->ncells};
		t->ncells = want;
		t->nused++;
	}
	*ret = t->slots[at].cells;
	return 0;
}

static int add_reader(struct tracker *t, struct cell *cell, uint32_t step)
{
	if (cell->readers != PLAN_NONE && t->readers[cell->readers].step == step) {
		return 0;
	}
	if (t->nreaders == t->cap_readers) {
		size_t cap = t->cap_readers ? t->cap_readers * 2 : 64;
		struct reader *readers = reallocarray(t->readers, cap, sizeof(*readers));

		if (!readers || cap >= UINT32_MAX) {
			free(readers ? readers : t->readers);
			t->readers = NULL;
			return err_origin(-ENOMEM);
		}
		t->readers = readers;
		t->cap_readers = cap;
	}
	t->readers[t->nreaders] = (struct reader){step, cell->readers};
	cell->readers = (uint32_t)t->nreaders++;
	return 0;
}

/* Does @step wait for @on, directly or through others? */
static int comes_after(struct tracker *t, uint32_t step, uint32_t on, bool *ret)
{
	const struct plan_deps *d = t->deps;

	t->visit++;
	t->stack.n = 0;
	*ret = false;
	for (;;) {
		for (uint32_t i = d->first[step]; i < d->first[step + 1]; i++) {
			uint32_t dep = d->deps.items[i];
			int r;

			if (dep == on) {
				*ret = true;
				return 0;
			}
			if (dep < on || t->stamp[dep] == t->visit) {
				continue;
			}
			t->stamp[dep] = t->visit;
			r = plan_list_add(&t->stack, dep);
			if (r) {
				return r;
			}
		}
		if (t->stack.n == 0) {
			return 0;
		}
		step = t->stack.items[--t->stack.n];
	}
}

static bool covers(const struct plan *p, const struct plan_step *step,
		   const struct plan_piece *wanted)
{
	for (uint32_t i = 0; i < step->npieces; i++) {
		const struct plan_piece *have = &p->pieces[step->first_piece + i];

		if (have->len_kind == wanted->len_kind && have->len_a == wanted->len_a &&
		    have->len_b == wanted->len_b && have->parts == wanted->parts &&
		    have->part <= wanted->part &&
		    have->part + have->span >= wanted->part + wanted->span) {
			return true;
		}
	}
	return false;
}

/* The send that passed on what @on took in, for a receive of the same part (see above). */
static int find_send(struct tracker *t, uint32_t on, uint32_t receive,
		     const struct plan_piece *piece, uint32_t *ret)
{
	*ret = on;
	for (uint32_t s = on + 1; s < receive; s++) {
		bool after;
		int r;

		if (t->plan->steps[s].kind != PLAN_SEND ||
		    !covers(t->plan, &t->plan->steps[s], piece)) {
			continue;
		}
		r = comes_after(t, s, on, &after);
		if (r) {
			return r;
		}
		if (after) {
			*ret = s;
			return 0;
		}
	}
	return 0;
}

static bool is_receive(const struct plan_step *step)
{
	return step->kind == PLAN_RECV || step->kind == PLAN_RECV_REDUCE;
}

static int wait_for(struct tracker *t, uint32_t step, uint32_t on, const struct plan_piece *piece)
{
	int r;

	if (on == PLAN_NONE || on == step) {
		return 0;
	}
	if (piece && t->needs_recv[on] && is_receive(&t->plan->steps[step])) {
		r = find_send(t, on, step, piece, &on);
		if (r) {
			return r;
		}
	}
	if (t->seen[on] == step + 1) {
		return 0;
	}
	t->seen[on] = step + 1;
	if (t->plan->steps[step].kind == PLAN_LOCAL && t->needs_recv[on]) {
		t->needs_recv[step] = true;
	}
	return plan_list_add(&t->deps->deps, on);
}

static int track_read(struct tracker *t, uint32_t step, const struct plan_piece *piece,
		      struct cell *cell)
{
	int r = wait_for(t, step, cell->writer, piece);

	return r ? r : add_reader(t, cell, step);
}

static int track_write(struct tracker *t, uint32_t step, const struct plan_piece *piece,
		       struct cell *cell)
{
	int r = wait_for(t, step, cell->writer, piece);

	for (uint32_t i = cell->readers; !r && i != PLAN_NONE; i = t->readers[i].next) {
		r = wait_for(t, step, t->readers[i].step, piece);
	}
	cell->writer = step;
	cell->readers = PLAN_NONE;
	return r;
}

static int track_piece(struct tracker *t, uint32_t step, const struct plan_piece *piece)
{
	uint32_t first = piece->parts == 1 ? 0 : piece->part;
	uint32_t n = piece->parts == 1 ? t->parts : piece->span;

	assert(piece->parts == 1 || piece->parts == t->parts);
	for (uint32_t i = 0; i < (uint32_t)piece->nsrc + piece->ndst; i++) {
		struct plan_ref ref = t->plan->refs[piece->first_ref + i];
		uint32_t cells = 0;
		int r;

		if (ref.space == PLAN_WIRE) {
			continue;
		}
		r = find_cells(t, ref, &cells);
		for (uint32_t part = first; !r && part < first + n; part++) {
			struct cell *cell = &t->cells[cells + part];

			r = i < piece->nsrc ? track_read(t, step, piece, cell)
					    : track_write(t, step, piece, cell);
		}
		if (r) {
			return r;
		}
	}
	return 0;
}

/* Explicit dependencies sorted by the step that waits, as one list: first[], then on[]. */
static int group_explicit(const struct plan_builder *b, uint32_t **ret_first, uint32_t **ret_on)
{
	size_t n = b->explicit_deps.n / 2;
	cleanup_free uint32_t *first = calloc(b->plan->nsteps + 2, sizeof(*first));
	cleanup_free uint32_t *on = calloc(n + 1, sizeof(*on));

	if (!first || !on) {
		return err_origin(-ENOMEM);
	}
	/* Counting sort; first[] is kept two ahead and ends up as the beginning of each. */
	for (size_t i = 0; i < n; i++) {
		first[b->explicit_deps.items[2 * i] + 2]++;
	}
	for (uint32_t s = 2; s < b->plan->nsteps + 2; s++) {
		first[s] += first[s - 1];
	}
	for (size_t i = 0; i < n; i++) {
		on[first[b->explicit_deps.items[2 * i] + 1]++] = b->explicit_deps.items[2 * i + 1];
	}
	*ret_first = take_ptr(first);
	*ret_on = take_ptr(on);
	return 0;
}

static int track_steps(struct tracker *t, const uint32_t *first, const uint32_t *on)
{
	const struct plan *p = t->plan;

	for (uint32_t s = 0; s < p->nsteps; s++) {
		const struct plan_step *step = &p->steps[s];
		int r = 0;

		t->needs_recv[s] = is_receive(step);
		for (uint32_t i = first[s]; !r && i < first[s + 1]; i++) {
			r = wait_for(t, s, on[i], NULL);
		}
		for (uint32_t i = 0; !r && i < step->npieces; i++) {
			r = track_piece(t, s, &p->pieces[step->first_piece + i]);
		}
		if (r) {
			return r;
		}
		t->deps->first[s + 1] = (uint32_t)t->deps->deps.n;
	}
	return 0;
}

static int tracker_init(struct tracker *t, const struct plan_builder *b, struct plan_deps *deps)
{
	const struct plan *p = b->plan;

	*t = (struct tracker){.plan = p, .ranks = b->ranks, .parts = 1, .deps = deps};
	for (uint32_t i = 0; i < p->npieces; i++) {
		t->parts = MAX(t->parts, p->pieces[i].parts);
	}
	t->seen = calloc(p->nsteps + 1, sizeof(*t->seen));
	t->stamp = calloc(p->nsteps + 1, sizeof(*t->stamp));
	t->needs_recv = calloc(p->nsteps + 1, sizeof(*t->needs_recv));
	return t->seen && t->stamp && t->needs_recv ? 0 : err_origin(-ENOMEM);
}

static void tracker_deinit(struct tracker *t)
{
	free(t->slots);
	free(t->cells);
	free(t->readers);
	free(t->seen);
	free(t->stamp);
	free(t->needs_recv);
	plan_list_deinit(&t->stack);
}

void plan_deps_deinit(struct plan_deps *deps)
{
	free(deps->first);
	plan_list_deinit(&deps->deps);
}

/**
 * plan_deps_init() - derive the dependencies of a plan under construction
 * @ret: set on success only
 * @b:   borrowed
 *
 * Return: 0 or -ENOMEM.
 */
int plan_deps_init(struct plan_deps *ret, const struct plan_builder *b)
{
	cleanup_free uint32_t *first = NULL;
	cleanup_free uint32_t *on = NULL;
	struct plan_deps deps = {.first = calloc(b->plan->nsteps + 1, sizeof(*deps.first))};
	struct tracker t;
	int r = tracker_init(&t, b, &deps);

	if (!r && !deps.first) {
		r = err_origin(-ENOMEM);
	}
	if (!r) {
		r = group_explicit(b, &first, &on);
	}
	if (!r) {
		r = track_steps(&t, first, on);
	}
	tracker_deinit(&t);
	if (r) {
		plan_deps_deinit(&deps);
		return r;
	}
	*ret = deps;
	return 0;
}
