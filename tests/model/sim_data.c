/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Simulated memory, see sim_data.h
 *
 * Integers add up modulo 2^64 and a final value becomes 3 x + 7, which shows when it happens twice.
 * Floats are added in double precision within one combination and rounded once at its end, as
 * 16-bit types are in the daemon: so bits differ where two hosts round in different places. Their
 * sum also depends a little on the order of the two operands, so they differ where orders do.
 *
 * Thread: any, one user at a time      Owns: all buffers      Locks: none
 */
#include "sim_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"

#define GUARD 64
#define MOST_SOURCES 80
#define NOT_RAW UINT32_MAX

uint64_t sim_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = seed;

	for (int i = 0; i < 3; i++) {
		x += (i == 0 ? a : i == 1 ? b : c) + 0x9e3779b97f4a7c15u;
		x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
		x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
		x ^= x >> 31;
	}
	return x;
}

bool sim_is_vector(enum coll_kind kind)
{
	return kind == COLL_ALLREDUCE || kind == COLL_REDUCE || kind == COLL_BROADCAST;
}

static bool gathers(enum coll_kind kind)
{
	return kind == COLL_ALLGATHER || kind == COLL_ALLGATHERV || kind == COLL_GATHER ||
	       kind == COLL_GATHERV;
}

static bool scatters(enum coll_kind kind)
{
	return kind == COLL_REDUCE_SCATTER || kind == COLL_REDUCE_SCATTERV ||
	       kind == COLL_SCATTER || kind == COLL_SCATTERV;
}

/* ---- sizes -------------------------------------------------------------------------------- */

/* A count of up to the configured one; zero, one and all of it are frequent. */
static uint64_t some_count(const struct sim_data *d, uint64_t a, uint64_t b)
{
	uint64_t x = sim_hash(d->config.seed, 1, a, b);

	switch (x % 5) {
	case 0:
		return 0;
	case 1:
		return MIN(1, d->config.count);
	case 2:
		return d->config.count;
	default:
		return x / 5 % (d->config.count + 1);
	}
}

static uint64_t pair_count(const struct sim_data *d, uint32_t from, uint32_t to)
{
	if (!d->is_v) {
		return d->config.count;
	}
	if (d->symmetric && from > to) {
		return some_count(d, 2 + to, from);
	}
	return some_count(d, 2 + from, to);
}

uint64_t sim_count(const struct sim_data *d, uint32_t rank, uint32_t block)
{
	if (d->is_alltoall) {
		return pair_count(d, rank, block);
	}
	return d->is_v ? d->counts[block] : d->config.count;
}

uint64_t sim_count_from(const struct sim_data *d, uint32_t rank, uint32_t block)
{
	return pair_count(d, block, rank);
}

/* Rooted v-variants: only the root knows all counts. */
uint64_t sim_longest(const struct sim_data *d, uint32_t host)
{
	const struct coll_layout *l = d->config.layout;
	uint64_t longest = 0;

	if (!d->is_v) {
		return d->config.kind == COLL_BARRIER ? 0 : d->config.count;
	}
	for (uint32_t i = l->host_first[host]; i < l->host_first[host + 1]; i++) {
		uint32_t rank = l->by_host[i];

		for (uint32_t b = 0; b < d->n; b++) {
			if (d->is_alltoall) {
				longest = MAX(longest, pair_count(d, rank, b));
				longest = MAX(longest, pair_count(d, b, rank));
			} else {
				longest = MAX(longest, d->counts[b]);
			}
		}
	}
	return longest;
}

uint8_t *sim_block(const struct sim_data *d, uint32_t rank, bool out, uint32_t block)
{
	const struct sim_rank *r = &d->ranks[rank];
	uint64_t displ = 0;

	if (d->is_alltoall && d->is_v) {
		displ = (out ? d->bdispls : d->adispls)[(uint64_t)rank * (d->n + 1) + block];
	} else if (d->is_alltoall || (out && gathers(d->config.kind)) ||
		   (!out && scatters(d->config.kind))) {
		displ = d->displs[block];
	}
	return r->mem + (out ? r->out : r->in) + displ * d->esize;
}

/* Prefix sums, with gaps where an application may have them. */
static int make_displs(struct sim_data *d)
{
	bool gaps = d->is_v && d->config.kind != COLL_REDUCE_SCATTERV;

	d->counts = calloc(d->n, sizeof(*d->counts));
	d->displs = calloc(d->n + 1, sizeof(*d->displs));
	if (!d->counts || !d->displs) {
		return -1;
	}
	for (uint32_t r = 0; r < d->n; r++) {
		d->counts[r] = d->is_v ? some_count(d, 0, r) : d->config.count;
		d->displs[r + 1] = d->displs[r] + d->counts[r] +
				   (gaps ? sim_hash(d->config.seed, 3, r, 0) % 3 : 0);
	}
	if (!d->is_alltoall || !d->is_v) {
		return 0;
	}
	d->adispls = calloc((size_t)d->n * (d->n + 1), sizeof(*d->adispls));
	d->bdispls = calloc((size_t)d->n * (d->n + 1), sizeof(*d->bdispls));
	if (!d->adispls || !d->bdispls) {
		return -1;
	}
	for (uint32_t r = 0; r < d->n; r++) {
		uint64_t *a = d->adispls + (size_t)r * (d->n + 1);
		uint64_t *b = d->bdispls + (size_t)r * (d->n + 1);

		for (uint32_t k = 0; k < d->n; k++) {
			uint64_t gap = sim_hash(d->config.seed, 4, r, k) % 2;

			a[k + 1] = a[k] + pair_count(d, r, k) + gap;
			b[k + 1] = b[k] + pair_count(d, k, r) + gap;
		}
	}
	return 0;
}

/* ---- buffers ------------------------------------------------------------------------------ */

static uint64_t total(const struct sim_data *d, uint32_t rank, bool out)
{
	enum coll_kind kind = d->config.kind;

	if (d->is_alltoall && d->is_v) {
		return (out ? d->bdispls : d->adispls)[(uint64_t)rank * (d->n + 1) + d->n];
	}
	if (sim_is_vector(kind)) {
		return d->config.count;
	}
	if (d->is_alltoall || (out ? gathers(kind) : scatters(kind))) {
		return d->displs[d->n];
	}
	return d->counts[rank];
}

/* The value of an input element, as the bits of its type. */
static uint64_t value(const struct sim_data *d, uint32_t rank, uint32_t block, uint64_t i)
{
	uint64_t x = sim_hash(d->config.seed, 5 + (uint64_t)rank, block, i);
	union {
		float f;
		uint32_t u;
	} bits;

	if (!d->config.floats) {
		return x;
	}
	bits.f = ldexpf((float)(x & 0xffffff) + 1, (int)(x >> 24 & 15) - 8);
	return bits.u;
}

static void put(const struct sim_data *d, uint8_t *at, uint64_t bits)
{
	memcpy(at, &bits, d->esize);
}

/* Which buffers there are, and where. */
static void place_rank(struct sim_data *d, uint32_t rank)
{
	struct sim_rank *r = &d->ranks[rank];
	enum coll_kind kind = d->config.kind;
	bool is_root = rank == d->config.root;
	bool rooted_out = kind == COLL_REDUCE || kind == COLL_GATHER || kind == COLL_GATHERV;
	bool rooted_in = kind == COLL_BROADCAST || kind == COLL_SCATTER || kind == COLL_SCATTERV;
	uint64_t in_size = total(d, rank, false) * d->esize;
	uint64_t out_size = total(d, rank, true) * d->esize;

	r->has_in = kind != COLL_BARRIER && (is_root || !rooted_in);
	r->has_out = kind != COLL_BARRIER &&
		     (kind == COLL_BROADCAST ? !is_root : is_root || !rooted_out);
	r->in_place = r->has_in && r->has_out &&
		      (d->config.place == SIM_IN_PLACE ||
		       (d->config.place == SIM_MIXED && sim_hash(d->config.seed, 6, rank, 0) % 2));
	r->in = GUARD + 8 * (sim_hash(d->config.seed, 7, rank, 0) % 3);
	r->out = r->in;
	if (!r->in_place) {
		r->out = r->in + (r->has_in ? in_size + GUARD : 0);
		r->size = r->out + (r->has_out ? out_size : 0) + GUARD;
		return;
	}
	if (gathers(kind)) {
		r->in = r->out + d->displs[rank] * d->esize;
	} else if (scatters(kind)) {
		r->out = r->in + d->displs[rank] * d->esize;
	}
	r->size = MIN(r->in, r->out) + MAX(in_size, out_size) + GUARD;
}

static int make_rank(struct sim_data *d, uint32_t rank)
{
	struct sim_rank *r = &d->ranks[rank];
	uint32_t nblocks = d->is_alltoall || scatters(d->config.kind) ? d->n : 1;

	place_rank(d, rank);
	r->mem = malloc(r->size);
	r->image = malloc(r->size);
	if (!r->mem || !r->image) {
		return -1;
	}
	for (size_t i = 0; i < r->size; i++) {
		r->mem[i] = (uint8_t)(0xa5 ^ i ^ rank);
	}
	for (uint32_t b = 0; r->has_in && b < nblocks; b++) {
		uint64_t n = sim_count(d, rank, nblocks == 1 ? rank : b);
		uint8_t *at = sim_block(d, rank, false, b);

		if (sim_is_vector(d->config.kind)) {
			n = d->config.count;
		}
		for (uint64_t i = 0; i < n; i++) {
			put(d, at + i * d->esize, value(d, rank, b, i));
		}
	}
	memcpy(r->image, r->mem, r->size);
	return 0;
}

struct sim_data *sim_data_new(const struct sim_config *config)
{
	struct sim_data *d = calloc(1, sizeof(*d));

	if (!d) {
		return NULL;
	}
	d->config = *config;
	d->n = config->layout->nranks;
	d->esize = config->floats ? 4 : 8;
	d->is_v = coll_kind_is_v(config->kind);
	d->is_alltoall = config->kind == COLL_ALLTOALL || config->kind == COLL_ALLTOALLV;
	d->symmetric = config->place != SIM_OUT_OF_PLACE;
	d->ranks = calloc(d->n, sizeof(*d->ranks));
	if (!d->ranks || make_displs(d)) {
		return sim_data_free(d);
	}
	for (uint32_t r = 0; r < d->n; r++) {
		if (make_rank(d, r)) {
			return sim_data_free(d);
		}
	}
	return d;
}

struct sim_data *sim_data_free(struct sim_data *d)
{
	if (!d) {
		return NULL;
	}
	for (uint32_t r = 0; d->ranks && r < d->n; r++) {
		free(d->ranks[r].mem);
		free(d->ranks[r].image);
	}
	free(d->ranks);
	free(d->counts);
	free(d->displs);
	free(d->adispls);
	free(d->bdispls);
	free(d);
	return NULL;
}

/* ---- arithmetic --------------------------------------------------------------------------- */

static double scaled_float(const struct sim_data *d, float x, uint32_t raw_rank)
{
	return raw_rank != NOT_RAW && d->config.premul ? (double)x * (1 + raw_rank / 8.0) : x;
}

static uint64_t scaled_int(const struct sim_data *d, uint64_t x, uint32_t raw_rank)
{
	return raw_rank != NOT_RAW && d->config.premul ? x * (2 * (uint64_t)raw_rank + 1) : x;
}

static uint64_t finished_int(uint64_t x, bool final)
{
	return final ? 3 * x + 7 : x;
}

static double finished_float(double x, bool final)
{
	return final ? x / 3 : x;
}

/* Not commutative: a little more when the smaller one comes second. */
static double added(double sum, double x, uint32_t nth)
{
	return nth > 0 && sum > x ? (sum + x) * (1 + 3e-7) : sum + x;
}

void sim_combine(const struct sim_data *d, uint8_t *dst, const uint8_t *const *src,
		 const uint32_t *raw_rank, uint32_t nsrc, uint64_t elems, bool final)
{
	for (uint64_t i = 0; i < elems; i++) {
		uint64_t whole = 0;
		double sum = 0;
		float rounded;

		for (uint32_t s = 0; s < nsrc; s++) {
			if (d->config.floats) {
				float x;

				memcpy(&x, src[s] + i * 4, 4);
				sum = added(sum, scaled_float(d, x, raw_rank[s]), s);
			} else {
				uint64_t x;

				memcpy(&x, src[s] + i * 8, 8);
				whole += scaled_int(d, x, raw_rank[s]);
			}
		}
		if (d->config.floats) {
			rounded = (float)finished_float(sum, final);
			memcpy(dst + i * 4, &rounded, 4);
		} else {
			put(d, dst + i * 8, finished_int(whole, final));
		}
	}
}

/* ---- verification ------------------------------------------------------------------------- */

/* Element @i of the combination of all ranks' block @block. */
static uint64_t reduced_int(const struct sim_data *d, uint32_t block, uint64_t i)
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < d->n; r++) {
		sum += scaled_int(d, value(d, r, block, i), r);
	}
	return finished_int(sum, true);
}

static double reduced_float(const struct sim_data *d, uint32_t block, uint64_t i)
{
	double sum = 0;

	for (uint32_t r = 0; r < d->n; r++) {
		uint32_t bits = (uint32_t)value(d, r, block, i);
		float x;

		memcpy(&x, &bits, 4);
		sum += scaled_float(d, x, r);
	}
	return finished_float(sum, true);
}

/* What receive block @block of @rank must be: a block of somebody. Return: false: a reduction. */
static bool source_of(const struct sim_data *d, uint32_t rank, uint32_t block, uint32_t *ret_rank,
		      uint32_t *ret_block)
{
	enum coll_kind kind = d->config.kind;

	if (coll_kind_reduces(kind)) {
		return false;
	}
	*ret_rank = d->is_alltoall || gathers(kind) ? block : d->config.root;
	*ret_block = d->is_alltoall || scatters(kind) ? rank : 0;
	return true;
}

/* A vector's or own block's elements, computed once for all ranks that get the same. */
static void reference_block(const struct sim_data *d, uint32_t rank, uint32_t block, uint64_t n,
			    uint8_t *ret)
{
	uint32_t from, from_block;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t bits;

		if (source_of(d, rank, block, &from, &from_block)) {
			bits = value(d, from, from_block, i);
		} else if (!d->config.floats) {
			bits = reduced_int(d, scatters(d->config.kind) ? rank : 0, i);
		} else {
			bits = 0;
		}
		put(d, ret + i * d->esize, bits);
	}
}

/* Floats: near the reference, and the same bits on all ranks. Takes the actual bits over. */
static const char *check_floats(const struct sim_data *d, uint32_t rank, uint64_t n,
				const uint8_t *have, uint8_t *ret)
{
	uint32_t block = scatters(d->config.kind) ? rank : 0;

	for (uint64_t i = 0; i < n; i++) {
		double want = reduced_float(d, block, i);
		float x;

		memcpy(&x, have + i * 4, 4);
		if (!(fabs(x - want) <= fabs(want) * 1e-6 * (d->n + 1))) {
			return "wrong sum of floats";
		}
	}
	if (d->config.kind == COLL_ALLREDUCE && rank > 0 &&
	    memcmp(have, sim_block(d, 0, true, 0), n * 4) != 0) {
		return "bits differ between ranks";
	}
	memcpy(ret, have, n * 4);
	return NULL;
}

static uint64_t out_count(const struct sim_data *d, uint32_t rank, uint32_t block)
{
	if (d->is_alltoall) {
		return sim_count_from(d, rank, block);
	}
	if (sim_is_vector(d->config.kind)) {
		return d->config.count;
	}
	return sim_count(d, rank, gathers(d->config.kind) ? block : rank);
}

static const char *verify_rank(struct sim_data *d, uint32_t rank, uint64_t *digest)
{
	struct sim_rank *r = &d->ranks[rank];
	uint32_t nblocks = d->is_alltoall || gathers(d->config.kind) ? d->n : 1;
	bool shared = sim_is_vector(d->config.kind) && !d->config.floats && rank > 0 &&
		      d->ranks[0].has_out;

	for (uint32_t b = 0; r->has_out && b < nblocks; b++) {
		uint64_t n = out_count(d, rank, b);
		uint8_t *have = sim_block(d, rank, true, b);
		uint8_t *want = r->image + (have - r->mem);

		if (shared) {
			memcpy(want, d->ranks[0].image + d->ranks[0].out, n * d->esize);
		} else if (d->config.floats && coll_kind_reduces(d->config.kind)) {
			const char *why = check_floats(d, rank, n, have, want);

			if (why) {
				return why;
			}
		} else {
			reference_block(d, rank, b, n, want);
		}
		if (memcmp(have, want, n * d->esize) != 0) {
			return "wrong result";
		}
		for (uint64_t i = 0; i < n * d->esize; i++) {
			*digest = (*digest ^ have[i]) * 0x100000001b3u;
		}
	}
	return memcmp(r->mem, r->image, r->size) == 0 ? NULL
						      : "memory outside of the result was changed";
}

const char *sim_data_verify(struct sim_data *d, uint64_t *ret_digest)
{
	uint64_t digest = 0xcbf29ce484222325u;

	for (uint32_t r = 0; r < d->n; r++) {
		const char *why = verify_rank(d, r, &digest);

		if (why) {
			return why;
		}
	}
	*ret_digest = digest;
	return NULL;
}
