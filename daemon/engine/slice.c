/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Slice: see slice.h
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "engine/slice.h"

#include <string.h>

#include "engine/step.h"
#include "reduce/reduce.h"
#include "util/farcopy.h"

static const struct plan_piece *piece_of(const struct step_state *st, uint32_t piece)
{
	return &st->run->ctx->entry->plan->pieces[step_of(st)->first_piece + piece];
}

/* To a place that nobody here reads again. A client that lies may make them overlap. */
static void copy_result(const struct op_ctx *ctx, void *dst, const void *src, uint64_t bytes)
{
	if (ctx->far) {
		farcopy(dst, src, bytes);
	} else {
		memmove(dst, src, bytes);
	}
}

void slice_combine(const struct op_run *run, const struct plan_piece *piece, uint64_t first,
		   uint64_t lo, uint64_t skip, uint64_t n, const void *wire,
		   struct slice_moved *moved)
{
	const struct op_ctx *ctx = run->ctx;
	const struct plan_ref *refs = &ctx->entry->plan->refs[piece->first_ref];
	const struct engine_signature *sig = &ctx->op->sig;
	struct reduce_src src[REDUCE_MAX_SRC];
	struct reduce_args args = {
		.src = src,
		.nsrc = piece->nsrc,
		.count = n,
		.dtype = sig->dtype,
		.op = sig->op,
	};
	uint64_t bytes = n * ctx->esize;
	uint64_t off = skip * ctx->esize;
	uint8_t *last = NULL;

	for (uint32_t i = 0; i < piece->nsrc; i++) {
		src[i].ptr = refs[i].space == PLAN_WIRE
				     ? wire
				     : op_ref(ctx, run, &refs[i], first, lo) + off;
		src[i].scaled = refs[i].raw;
		src[i].scalar = refs[i].raw ? ctx->op->posts[refs[i].lrank].scalar : 0;
	}
	if (piece->final && sig->op == REDOP_AVG && coll_kind_reduces(sig->kind)) {
		args.divisor = ctx->comm->nranks;
	}
	args.dst = op_ref(ctx, run, &refs[piece->nsrc], first, lo) + off;
	if (piece->final && piece->nsrc == 1 && sig->op >= REDOP_LAND) {
		/* One rank alone: its logical result is 0 or 1, too: x or x. */
		src[1] = src[0];
		args.nsrc = 2;
		args.op = REDOP_LOR;
	}
	if (args.nsrc > 1) {
		moved->reduced += bytes;
	} else if (args.dst != src[0].ptr) {
		moved->local += bytes;
	}
	reduce_run(&args);
	for (uint32_t i = 1; i < piece->ndst; i++) {
		uint8_t *dst = op_ref(ctx, run, &refs[piece->nsrc + i], first, lo) + off;

		/* Ranks whose buffers are on GPUs may have one place, neighbours mostly. */
		if (dst != args.dst && dst != last) {
			copy_result(ctx, dst, args.dst, bytes);
			moved->local += bytes;
		}
		last = dst;
	}
}

void slice_spread(const struct op_run *run, const struct plan_piece *piece, uint64_t first,
		  uint64_t lo, uint64_t off, uint64_t bytes, const void *data,
		  struct slice_moved *moved)
{
	const struct op_ctx *ctx = run->ctx;
	const struct plan_ref *refs = &ctx->entry->plan->refs[piece->first_ref];
	uint8_t *at = op_ref(ctx, run, &refs[0], first, lo) + off;
	uint8_t *last = NULL;

	if (data) {
		memcpy(at, data, bytes);
		moved->copied += bytes;
	}
	for (uint32_t i = 1; i < piece->ndst; i++) {
		uint8_t *dst = op_ref(ctx, run, &refs[i], first, lo) + off;

		if (dst != at && dst != last) {
			copy_result(ctx, dst, at, bytes);
			moved->local += bytes;
		}
		last = dst;
	}
}

uint64_t slice_cut(struct step_state *st, uint64_t max, struct slice *ret)
{
	uint32_t npieces = step_of(st)->npieces;
	uint64_t left = max;

	memset(ret, 0, sizeof(*ret));
	ret->st = st;
	ret->piece = st->piece;
	ret->offset = st->offset;
	while (st->piece < npieces) {
		uint64_t first, lo, n, now;

		op_piece(st->run->ctx, st->run, piece_of(st, st->piece), &first, &lo, &n);
		now = MIN(n - st->offset, left);
		left -= now;
		st->offset += now;
		if (st->offset != n) {
			break;
		}
		st->offset = 0;
		st->piece++;
	}
	ret->count = max - left;
	return ret->count;
}

void slice_run(struct slice *s)
{
	const struct op_run *run = s->st->run;
	const struct plan_step *step = step_of(s->st);
	const unsigned int esize = run->ctx->esize;

	while (s->piece < step->npieces && s->count) {
		const struct plan_piece *piece = piece_of(s->st, s->piece);
		uint64_t first, lo, n, now;

		op_piece(run->ctx, run, piece, &first, &lo, &n);
		now = MIN(n - s->offset, s->count);
		if (now && step->kind == PLAN_RECV) {
			slice_spread(run, piece, first, lo, s->offset * esize, now * esize, NULL,
				     &s->moved);
		} else if (now) {
			slice_combine(run, piece, first, lo, s->offset, now, s->wire, &s->moved);
			s->wire = s->wire ? s->wire + now * esize : NULL;
		}
		s->count -= now;
		s->offset += now;
		if (s->offset == n) {
			s->offset = 0;
			s->piece++;
		}
	}
}
