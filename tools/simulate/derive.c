/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Derivation, see derive.h
 *
 * Two nested searches for the cheapest cut: sizes into runs of one algorithm each, and ranges of
 * hosts into groups that share a table. Both are small, so all cuts are tried.
 *
 * Thread: main      Owns: nothing beyond a call      Locks: none
 */
#include "tools/simulate/derive.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "proto/base.h"

#define SIZES 28      /* 8 bytes to 1 GiB */
#define FIRST_SHIFT 3 /* 8 bytes */
#define MOST_BYTES (1ull << 30)
#define NEVER 1e9

/* By whom a range of hosts is represented: a power of two and others. 0: nobody more. */
static const struct range {
	uint32_t min_hosts;
	uint32_t hosts[2];
} ranges[] = {
	{2, {2}},     {3, {3}},	      {4, {4}},	      {5, {5, 7}},    {8, {8, 11}},
	{12, {12}},   {16, {16, 21}}, {24, {24}},     {32, {32}},     {33, {33, 40}},
	{48, {48}},   {64, {64, 80}}, {96, {96}},     {128, {128}},   {192, {192}},
	{256, {256}}, {512, {512}},   {1024, {1024}}, {2048, {2048}}, {4096, {4096}},
};
#define RANGES ARRAY_SIZE(ranges)

static const uint32_t ranks_of_host[] = {1, 8};
#define MANY_HOSTS 1024 /* from here on only the last one: they take the most time, by far */

/* Of equals the first one is taken. */
static const enum coll_algo preference[] = {
	COLL_ALGO_DOUBLING, COLL_ALGO_DIRECT, COLL_ALGO_HALVING,
	COLL_ALGO_TREE,	    COLL_ALGO_RING,   COLL_ALGO_PAIRWISE,
};

struct price_list {
	double of[RANGES][SIZES][COLL_ALGO_COUNT_];
};

/* A table for one group of ranges. */
struct cut {
	double price;
	enum coll_algo algo[SIZES];
};

/* ---- prices ------------------------------------------------------------------------------- */

/* Plans that differ from host to host and are long: they would take minutes to build. */
static bool too_long(enum coll_kind kind, enum coll_algo algo, uint32_t nhosts)
{
	return kind == COLL_REDUCE_SCATTER && algo == COLL_ALGO_HALVING && nhosts > 100 &&
	       (nhosts & (nhosts - 1));
}

/* Times of one sample of hosts and ranks for all algorithms and sizes; NEVER where none. */
static int sample(struct predictor *p, enum coll_kind kind, uint32_t nhosts, uint32_t ranks,
		  double us[SIZES][COLL_ALGO_COUNT_])
{
	bool blocks = kind == COLL_ALLGATHER || kind == COLL_REDUCE_SCATTER;
	uint64_t most = blocks ? MOST_BYTES / nhosts / ranks : MOST_BYTES;

	for (unsigned int a = 0; a < COLL_ALGO_COUNT_; a++) {
		for (unsigned int s = 0; s < SIZES; s++) {
			uint64_t bytes = kind == COLL_BARRIER ? 0 : 1ull << (s + FIRST_SHIFT);
			struct prediction at;
			int r = -EOPNOTSUPP;

			us[s][a] = NEVER;
			if (coll_supports(kind, (enum coll_algo)a, nhosts) &&
			    !too_long(kind, (enum coll_algo)a, nhosts) && bytes <= most &&
			    (kind != COLL_BARRIER || s == 0)) {
				r = predict(p, kind, (enum coll_algo)a, nhosts, ranks, bytes, &at);
				if (r) {
					return r;
				}
				us[s][a] = at.us;
			}
		}
	}
	return 0;
}

/* Adds what each algorithm is slower than the fastest. Sizes beyond the last one cost nothing. */
static void add_prices(double us[SIZES][COLL_ALGO_COUNT_], double weight,
		       double price[SIZES][COLL_ALGO_COUNT_])
{
	for (unsigned int s = 0; s < SIZES; s++) {
		double best = NEVER;

		for (unsigned int a = 0; a < COLL_ALGO_COUNT_; a++) {
			best = MIN(best, us[s][a]);
		}
		for (unsigned int a = 0; a < COLL_ALGO_COUNT_ && best < NEVER; a++) {
			price[s][a] += us[s][a] < NEVER ? weight * log(us[s][a] / best) : 0;
		}
	}
}

static int fill_range(struct predictor *p, enum coll_kind kind, size_t range,
		      struct price_list *prices)
{
	double us[SIZES][COLL_ALGO_COUNT_];
	uint32_t nhosts = ranges[range].hosts[0];
	size_t first = nhosts >= MANY_HOSTS ? ARRAY_SIZE(ranks_of_host) - 1 : 0;
	size_t samples = (ARRAY_SIZE(ranks_of_host) - first) * (ranges[range].hosts[1] ? 2 : 1);

	for (unsigned int i = 0; i < ARRAY_SIZE(ranges[range].hosts); i++) {
		uint32_t n = ranges[range].hosts[i];

		for (size_t k = first; n && k < ARRAY_SIZE(ranks_of_host); k++) {
			int r = sample(p, kind, n, ranks_of_host[k], us);

			if (r) {
				return r;
			}
			add_prices(us, 1.0 / (double)samples, prices->of[range]);
		}
	}
	for (unsigned int a = 0; a < COLL_ALGO_COUNT_; a++) {
		for (unsigned int s = 0; s < SIZES; s++) {
			if (!coll_supports(kind, (enum coll_algo)a, nhosts)) {
				prices->of[range][s][a] = NEVER;
			}
		}
	}
	return 0;
}

/* ---- cuts --------------------------------------------------------------------------------- */

/*
 * The cheapest table for the ranges [first, end): from the largest size down, each size takes the
 * best algorithm for all sizes from it on, or the one of the next size without another row.
 */
static struct cut cut_sizes(const struct price_list *prices, double row, size_t first, size_t end)
{
	double from[SIZES + 1][COLL_ALGO_COUNT_] = {{0}}; /* price of sizes from s on, s with a */
	enum coll_algo next[SIZES][COLL_ALGO_COUNT_] = {{0}};
	struct cut cut = {.price = NEVER * 2};

	for (unsigned int s = SIZES; s-- > 0;) {
		for (unsigned int i = 0; i < ARRAY_SIZE(preference); i++) {
			enum coll_algo a = preference[i];
			double best = from[s + 1][a];

			next[s][a] = a;
			for (unsigned int k = 0; s + 1 < SIZES && k < ARRAY_SIZE(preference); k++) {
				double other = from[s + 1][preference[k]] + row;

				if (other < best) {
					best = other;
					next[s][a] = preference[k];
				}
			}
			for (size_t r = first; r < end; r++) {
				best += prices->of[r][s][a];
			}
			from[s][a] = best;
		}
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(preference); i++) {
		if (from[0][preference[i]] + row < cut.price) {
			cut.price = from[0][preference[i]] + row;
			cut.algo[0] = preference[i];
		}
	}
	for (unsigned int s = 0; s + 1 < SIZES; s++) {
		cut.algo[s + 1] = next[s][cut.algo[s]];
	}
	return cut;
}

static void add_row(struct derived *d, enum coll_kind kind, enum coll_algo algo, uint32_t min_hosts,
		    uint64_t max_bytes)
{
	if (d->nrows < DERIVE_MAX_ROWS) {
		d->rows[d->nrows++] = (struct coll_rule){
			.kind = (uint8_t)kind,
			.algo = (uint8_t)algo,
			.min_hosts = min_hosts,
			.max_bytes = max_bytes,
		};
	}
}

static void add_rows(struct derived *d, enum coll_kind kind, uint32_t min_hosts,
		     const struct cut *cut)
{
	for (unsigned int s = 0; s < SIZES; s++) {
		if (s + 1 == SIZES) {
			add_row(d, kind, cut->algo[s], min_hosts, UINT64_MAX);
		} else if (cut->algo[s] != cut->algo[s + 1]) {
			add_row(d, kind, cut->algo[s], min_hosts, 1ull << (s + FIRST_SHIFT));
		}
	}
}

static void add_regret(struct derived *d, const struct price_list *prices, size_t first, size_t end,
		       const struct cut *cut, unsigned int *n)
{
	for (size_t r = first; r < end; r++) {
		for (unsigned int s = 0; s < SIZES; s++) {
			double price = prices->of[r][s][cut->algo[s]];

			d->regret += price;
			d->worst = MAX(d->worst, price);
			++*n;
		}
	}
}

/* Many hosts first, as the rules are read. */
static void cut_ranges(struct derived *d, enum coll_kind kind, const struct price_list *prices,
		       unsigned int *n)
{
	double best[RANGES + 1] = {0}; /* of the ranges from i on */
	size_t end_of[RANGES];
	size_t firsts[RANGES];
	size_t groups = 0;

	for (size_t i = RANGES; i-- > 0;) {
		best[i] = NEVER * 4;
		for (size_t end = i + 1; end <= RANGES; end++) {
			double price = cut_sizes(prices, d->row, i, end).price + best[end];

			if (price < best[i]) {
				best[i] = price;
				end_of[i] = end;
			}
		}
	}
	for (size_t i = 0; i < RANGES; i = end_of[i]) {
		firsts[groups++] = i;
	}
	while (groups-- > 0) {
		struct cut cut = cut_sizes(prices, d->row, firsts[groups], end_of[firsts[groups]]);

		add_rows(d, kind, ranges[firsts[groups]].min_hosts, &cut);
		add_regret(d, prices, firsts[groups], end_of[firsts[groups]], &cut, n);
	}
}

/* ---- all kinds ---------------------------------------------------------------------------- */

static enum coll_algo only_algo(enum coll_kind kind)
{
	enum coll_algo only = COLL_ALGO_AUTO;

	for (unsigned int a = COLL_ALGO_DIRECT; a < COLL_ALGO_COUNT_; a++) {
		if (coll_supports(kind, (enum coll_algo)a, 2)) {
			if (only != COLL_ALGO_AUTO) {
				return COLL_ALGO_AUTO;
			}
			only = (enum coll_algo)a;
		}
	}
	return only;
}

/* The same plans with other counts. */
static void copy_rows(struct derived *d, enum coll_kind from, enum coll_kind to)
{
	uint32_t n = d->nrows;

	for (uint32_t i = 0; i < n; i++) {
		if (d->rows[i].kind == from) {
			add_row(d, to, d->rows[i].algo, d->rows[i].min_hosts, d->rows[i].max_bytes);
		}
	}
}

uint32_t derive_kinds(void)
{
	uint32_t kinds = 0;

	for (unsigned int kind = 0; kind < COLL_SEND; kind++) {
		if (!coll_kind_is_v(kind) && only_algo((enum coll_kind)kind) == COLL_ALGO_AUTO) {
			kinds |= 1u << kind;
		}
	}
	return kinds;
}

static int fill_prices(struct predictor *p, enum coll_kind kind, struct price_list *prices)
{
	int r = 0;

	for (size_t i = 0; i < RANGES && !r; i++) {
		if (isatty(STDERR_FILENO)) {
			fprintf(stderr, "\r\033[K%s, %u hosts", coll_kind_name(kind),
				ranges[i].hosts[0]);
		}
		r = fill_range(p, kind, i, prices);
	}
	if (isatty(STDERR_FILENO)) {
		fprintf(stderr, "\r\033[K");
	}
	return r;
}

/* A table with rows at d->row each. Return: false when it has more than @max_rows. */
static bool cut_all(struct derived *d, uint32_t kinds, uint32_t max_rows,
		    const struct price_list *prices)
{
	unsigned int n = 0;

	d->nrows = 0;
	d->regret = 0;
	d->worst = 0;
	for (unsigned int kind = 0; kind < COLL_SEND; kind++) {
		enum coll_algo only = only_algo((enum coll_kind)kind);

		if (!(kinds >> kind & 1)) {
			continue;
		}
		if (only != COLL_ALGO_AUTO) {
			add_row(d, (enum coll_kind)kind, only, 2, UINT64_MAX);
		} else if (kind == COLL_ALLGATHERV) {
			copy_rows(d, COLL_ALLGATHER, COLL_ALLGATHERV);
		} else if (kind == COLL_REDUCE_SCATTERV) {
			copy_rows(d, COLL_REDUCE_SCATTER, COLL_REDUCE_SCATTERV);
		} else {
			cut_ranges(d, (enum coll_kind)kind, &prices[kind], &n);
		}
		if (d->nrows > max_rows || d->nrows == DERIVE_MAX_ROWS) {
			return false;
		}
	}
	d->regret = n ? d->regret / n : 0;
	return true;
}

/**
 * derive() - the selection table of a link model
 * @m:         borrowed
 * @kinds:     bits (1 << kind)
 * @max_rows:  how many rows it may have
 * @ret:       set on success only
 *
 * Return: 0 or a negative errno.
 */
int derive(const struct link_model *m, uint32_t kinds, uint32_t max_rows, struct derived *ret)
{
	cleanup_free struct derived *d = calloc(1, sizeof(*d));
	cleanup_free struct price_list *prices = calloc(COLL_SEND, sizeof(*prices));
	struct predictor p = {.model = *m};
	int r = d && prices ? 0 : err_origin(-ENOMEM);

	for (unsigned int kind = 0; kind < COLL_SEND && !r; kind++) {
		if (kinds & derive_kinds() & 1u << kind) {
			r = fill_prices(&p, (enum coll_kind)kind, &prices[kind]);
		}
	}
	predictor_deinit(&p);
	if (r) {
		return r;
	}
	d->events = p.events;
	d->row = DERIVE_ROW;
	while (!cut_all(d, kinds, max_rows, prices)) {
		d->row *= 1.25;
	}
	*ret = *d;
	return 0;
}
