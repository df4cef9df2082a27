/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Plan: construction and look-up
 *
 * The builder appends to growing arrays and remembers the first failure, so that algorithms are
 * written without error handling between their steps. Finishing turns the dependencies that
 * hazard.c derives into successor lists, which is the direction an interpreter walks.
 *
 * Thread: any      Owns: plans and builders      Locks: none
 */
#include "coll/plan.h"

#include <assert.h>

#include "coll/plan_build.h"
#include "proto/base.h"

/**
 * plan_free() - free a plan
 * @plan: consumed; may be NULL or half built
 *
 * Return: NULL.
 */
struct plan *plan_free(struct plan *plan)
{
	if (!plan) {
		return NULL;
	}
	free(plan->steps);
	free(plan->pieces);
	free(plan->refs);
	free(plan->succ);
	free(plan->recv);
	free(plan->send_peers);
	free(plan->recv_peers);
	free(plan);
	return NULL;
}

static bool step_before(const struct plan_step *a, uint32_t peer, uint32_t tag)
{
	return a->peer < peer || (a->peer == peer && a->tag < tag);
}

/**
 * plan_find_recv() - find the receive for an arriving message
 * @plan:  borrowed
 * @peer:  sending host
 * @tag:   tag of the message
 *
 * Return: the index of the step, or -1.
 */
int plan_find_recv(const struct plan *plan, uint32_t peer, uint32_t tag)
{
	uint32_t low = 0;
	uint32_t high = plan->nrecv;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (step_before(&plan->steps[plan->recv[mid]], peer, tag)) {
			low = mid + 1;
		} else {
			high = mid;
		}
	}
	if (low < plan->nrecv && plan->steps[plan->recv[low]].peer == peer &&
	    plan->steps[plan->recv[low]].tag == tag) {
		return (int)plan->recv[low];
	}
	return -1;
}

/**
 * plan_part() - where a part begins
 * @elems:  elements of the block
 * @part:   0 .. parts; `parts` yields the end
 * @parts:  at least 1
 *
 * Return: floor(elems * part / parts).
 */
uint64_t plan_part(uint64_t elems, uint32_t part, uint32_t parts)
{
	return elems / parts * part + elems % parts * part / parts;
}

/* ---- building ----------------------------------------------------------------------------- */

/* Makes room for one more of @n items. Return: 0 or -ENOMEM; the array stays valid. */
static int grow(void **array, size_t *cap, size_t n, size_t item_size)
{
	size_t want = *cap ? *cap * 2 : 16;
	void *bigger;

	if (n < *cap) {
		return 0;
	}
	if (n >= UINT32_MAX / 2) {
		return err_origin(-ENOMEM);
	}
	bigger = reallocarray(*array, want, item_size);
	if (!bigger) {
		return err_origin(-ENOMEM);
	}
	*array = bigger;
	*cap = want;
	return 0;
}

int plan_list_add(struct plan_list *list, uint32_t item)
{
	int r = grow((void **)&list->items, &list->cap, list->n, sizeof(*list->items));

	if (!r) {
		list->items[list->n++] = item;
	}
	return r;
}

void plan_list_deinit(struct plan_list *list)
{
	free(list->items);
	*list = (struct plan_list){0};
}

/**
 * plan_builder_new() - start a plan
 * @kind, @algo, @root:  recorded in the plan
 * @ret:                 new builder
 *
 * Return: 0 or -ENOMEM.
 */
int plan_builder_new(uint8_t kind, uint8_t algo, uint32_t root, struct plan_builder **ret)
{
	struct plan_builder *b = calloc(1, sizeof(*b));

	if (!b) {
		return err_origin(-ENOMEM);
	}
	b->plan = calloc(1, sizeof(*b->plan));
	if (!b->plan) {
		free(b);
		return err_origin(-ENOMEM);
	}
	b->plan->kind = kind;
	b->plan->algo = algo;
	b->plan->root = root;
	*ret = b;
	return 0;
}

struct plan_builder *plan_builder_free(struct plan_builder *b)
{
	if (!b) {
		return NULL;
	}
	plan_free(b->plan);
	plan_list_deinit(&b->explicit_deps);
	free(b);
	return NULL;
}

void plan_builder_in_place(struct plan_builder *b, const uint32_t *ranks)
{
	b->ranks = ranks;
}

uint32_t plan_add_step(struct plan_builder *b, enum plan_step_kind kind, uint32_t peer,
		       uint32_t tag)
{
	struct plan *p = b->plan;

	if (!b->error) {
		b->error = grow((void **)&p->steps, &b->cap_steps, p->nsteps, sizeof(*p->steps));
	}
	if (b->error) {
		return 0;
	}
	p->steps[p->nsteps] = (struct plan_step){
		.kind = (uint8_t)kind,
		.peer = peer,
		.tag = tag,
		.first_piece = p->npieces,
	};
	return p->nsteps++;
}

void plan_add_dep(struct plan_builder *b, uint32_t step, uint32_t on)
{
	if (!b->error) {
		assert(on < step && step < b->plan->nsteps);
		b->error = plan_list_add(&b->explicit_deps, step);
	}
	if (!b->error) {
		b->error = plan_list_add(&b->explicit_deps, on);
	}
}

void plan_add_piece(struct plan_builder *b, enum plan_len len_kind, uint32_t len_a, uint32_t len_b,
		    uint32_t part, uint32_t span, uint32_t parts, bool final)
{
	struct plan *p = b->plan;

	if (!b->error) {
		b->error =
			grow((void **)&p->pieces, &b->cap_pieces, p->npieces, sizeof(*p->pieces));
	}
	if (b->error) {
		return;
	}
	assert(p->nsteps > 0);
	p->pieces[p->npieces++] = (struct plan_piece){
		.first_ref = p->nrefs,
		.len_kind = (uint8_t)len_kind,
		.final = final,
		.len_a = len_a,
		.len_b = len_b,
		.part = part,
		.span = span,
		.parts = parts,
	};
	p->steps[p->nsteps - 1].npieces++;
}

static void add_ref(struct plan_builder *b, bool is_dst, struct plan_ref ref)
{
	struct plan *p = b->plan;
	struct plan_piece *piece;

	if (!b->error) {
		b->error = grow((void **)&p->refs, &b->cap_refs, p->nrefs, sizeof(*p->refs));
	}
	if (b->error) {
		return;
	}
	assert(p->npieces > 0);
	piece = &p->pieces[p->npieces - 1];
	p->refs[p->nrefs++] = ref;
	if (is_dst) {
		piece->ndst++;
	} else {
		assert(piece->ndst == 0);
		piece->nsrc++;
	}
	if (ref.space == PLAN_TEMP && ref.block >= p->ntemp) {
		p->ntemp = ref.block + 1;
	}
}

void plan_add_src(struct plan_builder *b, enum plan_space space, uint32_t lrank, uint32_t block,
		  bool raw)
{
	add_ref(b, false,
		(struct plan_ref){.space = (uint8_t)space,
				  .raw = raw,
				  .lrank = (uint16_t)lrank,
				  .block = block});
}

void plan_add_dst(struct plan_builder *b, enum plan_space space, uint32_t lrank, uint32_t block)
{
	add_ref(b, true,
		(struct plan_ref){
			.space = (uint8_t)space, .lrank = (uint16_t)lrank, .block = block});
}

/* ---- finishing ---------------------------------------------------------------------------- */

/* Turns "waits for" into "is waited for by". */
static int link_steps(struct plan *p, const struct plan_deps *d)
{
	uint32_t total = d->first[p->nsteps];
	uint32_t at = 0;

	p->succ = calloc(total + 1, sizeof(*p->succ));
	if (!p->succ) {
		return err_origin(-ENOMEM);
	}
	p->nsucc = total;
	for (uint32_t i = 0; i < total; i++) {
		p->steps[d->deps.items[i]].nsucc++;
	}
	for (uint32_t s = 0; s < p->nsteps; s++) {
		p->steps[s].first_succ = at;
		at += p->steps[s].nsucc;
		p->steps[s].nsucc = 0;
	}
	for (uint32_t s = 0; s < p->nsteps; s++) {
		p->steps[s].ndeps = d->first[s + 1] - d->first[s];
		for (uint32_t i = d->first[s]; i < d->first[s + 1]; i++) {
			struct plan_step *on = &p->steps[d->deps.items[i]];

			p->succ[on->first_succ + on->nsucc++] = s;
		}
	}
	return 0;
}

static bool is_receive(const struct plan_step *step)
{
	return step->kind == PLAN_RECV || step->kind == PLAN_RECV_REDUCE;
}

static int compare_receives(const void *a, const void *b, void *arg)
{
	const struct plan_step *steps = arg;
	const struct plan_step *x = &steps[*(const uint32_t *)a];
	const struct plan_step *y = &steps[*(const uint32_t *)b];

	return step_before(x, y->peer, y->tag) ? -1 : step_before(y, x->peer, x->tag);
}

static int compare_peers(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a;
	uint32_t y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorts and makes unique. Return: how many are left. */
static uint32_t unique_peers(uint32_t *peers, uint32_t n)
{
	uint32_t kept = 0;

	qsort(peers, n, sizeof(*peers), compare_peers);
	for (uint32_t i = 0; i < n; i++) {
		if (kept == 0 || peers[kept - 1] != peers[i]) {
			peers[kept++] = peers[i];
		}
	}
	return kept;
}

/* Look-up tables: receives by (peer, tag), and who is spoken to. */
static int index_steps(struct plan *p)
{
	p->recv = calloc(p->nsteps + 1, sizeof(*p->recv));
	p->send_peers = calloc(p->nsteps + 1, sizeof(*p->send_peers));
	p->recv_peers = calloc(p->nsteps + 1, sizeof(*p->recv_peers));
	if (!p->recv || !p->send_peers || !p->recv_peers) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t s = 0; s < p->nsteps; s++) {
		if (is_receive(&p->steps[s])) {
			p->recv_peers[p->nrecv] = p->steps[s].peer;
			p->recv[p->nrecv++] = s;
		} else if (p->steps[s].kind == PLAN_SEND) {
			p->send_peers[p->nsend_peers++] = p->steps[s].peer;
		}
	}
	qsort_r(p->recv, p->nrecv, sizeof(*p->recv), compare_receives, p->steps);
	p->nrecv_peers = unique_peers(p->recv_peers, p->nrecv);
	p->nsend_peers = unique_peers(p->send_peers, p->nsend_peers);
	return 0;
}

/**
 * plan_builder_finish() - turn what was added into a plan
 * @b:                      borrowed; has no plan any more afterwards and can only be freed
 * @flags:                  enum plan_flags
 * @msg_blocks, @msg_parts: longest message of any host, see struct plan
 * @max_temp:               most TEMP blocks of any host; at least those of this one
 * @ret:                    new plan
 *
 * Return: 0 or -ENOMEM.
 */
int plan_builder_finish(struct plan_builder *b, uint32_t flags, uint32_t msg_blocks,
			uint32_t msg_parts, uint32_t max_temp, struct plan **ret)
{
	struct plan_deps deps;
	struct plan *p;
	int r = b->error;

	if (!r) {
		r = plan_deps_init(&deps, b);
	}
	if (r) {
		b->plan = plan_free(b->plan);
		return r;
	}
	p = take_ptr(b->plan);
	p->flags = flags;
	p->msg_blocks = msg_blocks;
	p->msg_parts = msg_parts;
	p->max_temp = max_temp;
	r = link_steps(p, &deps);
	plan_deps_deinit(&deps);
	if (!r) {
		r = index_steps(p);
	}
	if (r) {
		plan_free(p);
		return r;
	}
	*ret = p;
	return 0;
}
