/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Grid, see grid.h
 *
 * Thread: main      Owns: nothing beyond a call      Locks: none
 */
#include "tools/simulate/grid.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base.h"
#include "proto/limits.h"

#define KIB 1024ull

/* What all algorithms of one (collective, hosts, ranks) need for each size. */
struct block {
	const struct grid *g;
	enum coll_kind kind;
	uint32_t nhosts;
	uint32_t ranks;
	bool possible[COLL_ALGO_COUNT_][GRID_MAX];
	struct prediction at[COLL_ALGO_COUNT_][GRID_MAX];
};

void grid_defaults(struct grid *g)
{
	static const uint64_t hosts[] = {2, 3, 4, 8, 16, 32, 128, 512, 2048, 8192, 10000};
	static const uint64_t sizes[] = {8,	      1 * KIB,	    64 * KIB,	  1024 * KIB,
					 16384 * KIB, 262144 * KIB, 1048576 * KIB};

	if (!g->colls) {
		g->colls = 1u << COLL_ALLREDUCE | 1u << COLL_REDUCE | 1u << COLL_BROADCAST |
			   1u << COLL_ALLGATHER | 1u << COLL_REDUCE_SCATTER | 1u << COLL_ALLTOALL |
			   1u << COLL_BARRIER;
	}
	if (!g->algos) {
		g->algos = UINT32_MAX;
	}
	if (!g->nhosts) {
		memcpy(g->hosts, hosts, sizeof(hosts));
		g->nhosts = ARRAY_SIZE(hosts);
	}
	if (!g->nranks) {
		g->ranks[g->nranks++] = 1;
		g->ranks[g->nranks++] = 8;
	}
	if (!g->nsizes) {
		memcpy(g->sizes, sizes, sizeof(sizes));
		g->nsizes = ARRAY_SIZE(sizes);
	}
}

uint64_t grid_message(enum coll_kind kind, uint64_t size, uint64_t nranks)
{
	switch (kind) {
	case COLL_ALLREDUCE:
	case COLL_REDUCE:
	case COLL_BROADCAST:
	case COLL_BARRIER:
		return size;
	default:
		return size / nranks / FLOW_ESIZE * FLOW_ESIZE;
	}
}

/* ---- printing ----------------------------------------------------------------------------- */

static const char *size_text(uint64_t bytes, char *buf, size_t size)
{
	static const char units[] = " KMGT";
	unsigned int unit = 0;

	while (bytes >= KIB && bytes % KIB == 0 && unit + 2 < sizeof(units)) {
		bytes /= KIB;
		unit++;
	}
	snprintf(buf, size, unit ? "%" PRIu64 " %ciB" : "%" PRIu64 " B", bytes, units[unit]);
	return buf;
}

/* As rocebench writes it. */
static const char *json_name(enum coll_kind kind)
{
	return kind == COLL_REDUCE_SCATTER ? "reduce_scatter" : coll_kind_name(kind);
}

static const char *time_text(double us, char *buf, size_t size)
{
	if (us < 1e4) {
		snprintf(buf, size, us < 100 ? "%.1f us" : "%.0f us", us);
	} else if (us < 1e7) {
		snprintf(buf, size, us < 1e5 ? "%.1f ms" : "%.0f ms", us / 1e3);
	} else {
		snprintf(buf, size, "%.0f s", us / 1e6);
	}
	return buf;
}

/* The fastest algorithm, or AUTO: none could run. */
static enum coll_algo winner_of(const struct block *b, size_t s)
{
	enum coll_algo best = COLL_ALGO_AUTO;

	for (unsigned int a = 0; a < COLL_ALGO_COUNT_; a++) {
		if (b->possible[a][s] &&
		    (best == COLL_ALGO_AUTO || b->at[a][s].us < b->at[best][s].us)) {
			best = (enum coll_algo)a;
		}
	}
	return best;
}

static enum coll_algo selected(const struct block *b, size_t s)
{
	struct coll_layout layout = {.nhosts = b->nhosts, .nranks = b->nhosts * b->ranks};

	return coll_select(NULL, b->kind, grid_message(b->kind, b->g->sizes[s], layout.nranks),
			   &layout);
}

static void print_json(const struct block *b, size_t s)
{
	for (unsigned int a = 0; a < COLL_ALGO_COUNT_; a++) {
		const struct prediction *p = &b->at[a][s];

		if (!b->possible[a][s]) {
			continue;
		}
		printf("{\"system\":\"simulated\",\"model\":\"%s\",\"coll\":\"%s\",\"algo\":\"%s\","
		       "\"hosts\":%u,\"ranks\":%u,\"bytes\":%" PRIu64 ",\"message\":%" PRIu64
		       ",\"us\":%.3f,\"sent\":%.0f,\"messages\":%.0f,\"how\":\"%s\","
		       "\"winner\":%s,\"selected\":%s}\n",
		       b->g->model.name, json_name(b->kind), coll_algo_name(a), b->nhosts,
		       b->nhosts * b->ranks, b->g->sizes[s],
		       grid_message(b->kind, b->g->sizes[s], (uint64_t)b->nhosts * b->ranks), p->us,
		       p->sent, p->messages, prediction_how(p),
		       winner_of(b, s) == a ? "true" : "false",
		       selected(b, s) == a ? "true" : "false");
	}
}

static void print_header(const struct grid *g, enum coll_kind kind, uint64_t ranks)
{
	printf("\n### %s, %" PRIu64 " rank%s a host, %s\n\n| hosts | bytes |", coll_kind_name(kind),
	       ranks, ranks == 1 ? "" : "s", g->model.name);
	for (unsigned int a = COLL_ALGO_DIRECT; a < COLL_ALGO_COUNT_; a++) {
		if (g->algos >> a & 1 && coll_supports(kind, (enum coll_algo)a, 2)) {
			printf(" %s |", coll_algo_name(a));
		}
	}
	printf(" winner | sends a host | selected |\n|---|---|");
	for (unsigned int a = COLL_ALGO_DIRECT; a < COLL_ALGO_COUNT_; a++) {
		if (g->algos >> a & 1 && coll_supports(kind, (enum coll_algo)a, 2)) {
			printf("---|");
		}
	}
	printf("---|---|---|\n");
}

static void print_row(const struct block *b, size_t s)
{
	enum coll_algo best = winner_of(b, s);
	enum coll_algo now = selected(b, s);
	char text[32];

	if (best == COLL_ALGO_AUTO) {
		return;
	}
	printf("| %u | %s |", b->nhosts,
	       b->kind == COLL_BARRIER ? "" : size_text(b->g->sizes[s], text, sizeof(text)));
	for (unsigned int a = COLL_ALGO_DIRECT; a < COLL_ALGO_COUNT_; a++) {
		const struct prediction *p = &b->at[a][s];

		if (!(b->g->algos >> a & 1) || !coll_supports(b->kind, (enum coll_algo)a, 2)) {
			continue;
		}
		if (b->possible[a][s]) {
			printf(" %s%s%s%s |", time_text(p->us, text, sizeof(text)),
			       p->symmetry || p->steady ? " " : "", p->symmetry ? "s" : "",
			       p->steady ? "p" : "");
		} else {
			printf(" - |");
		}
	}
	printf(" %s | %s |", coll_algo_name(best),
	       size_text((uint64_t)b->at[best][s].sent, text, sizeof(text)));
	if (now == best || !b->possible[now][s]) {
		printf(" %s |\n", coll_algo_name(now));
	} else {
		printf(" %s, %.2fx |\n", coll_algo_name(now), b->at[now][s].us / b->at[best][s].us);
	}
}

static void print_legend(void)
{
	printf("\nTimes without a letter are full runs of all hosts and segments. s: one host "
	       "stood "
	       "for all, which do the same at the same time. p: the first segments ran, each "
	       "further "
	       "one costs what one more did then (pipeline in its steady state). -: no such plan, "
	       "or "
	       "too many large plans to run. \"selected\" is what the daemon's table takes, with "
	       "how "
	       "many times the winner's time that needs.\n");
}

static void print_crossover(const struct block *b)
{
	enum coll_algo last = COLL_ALGO_AUTO;
	char text[32];

	printf("| %s | %u | %u |", coll_kind_name(b->kind), b->nhosts, b->ranks);
	for (size_t s = 0; s < b->g->nsizes; s++) {
		enum coll_algo best = winner_of(b, s);

		if (best != COLL_ALGO_AUTO && best != last) {
			printf("%s %s from %s", last == COLL_ALGO_AUTO ? "" : ",",
			       coll_algo_name(best), size_text(b->g->sizes[s], text, sizeof(text)));
			last = best;
		}
	}
	printf(" |\n");
}

/* ---- running ------------------------------------------------------------------------------ */

static void show_progress(const struct block *b, unsigned int algo)
{
	if (isatty(STDERR_FILENO)) {
		fprintf(stderr, "\r\033[K%s %s, %u hosts x %u", coll_kind_name(b->kind),
			coll_algo_name(algo), b->nhosts, b->ranks);
	}
}

/* Sizes innermost: the plans of an algorithm serve all of them. */
static int fill(struct block *b)
{
	struct predictor p = {.model = b->g->model, .full = b->g->full};
	size_t nsizes = b->kind == COLL_BARRIER ? 1 : b->g->nsizes;
	int r = 0;

	for (unsigned int a = COLL_ALGO_DIRECT; a < COLL_ALGO_COUNT_ && !r; a++) {
		if (!(b->g->algos >> a & 1) ||
		    !coll_supports(b->kind, (enum coll_algo)a, b->nhosts)) {
			continue;
		}
		show_progress(b, a);
		for (size_t s = 0; s < nsizes && !r; s++) {
			uint64_t bytes = grid_message(b->kind, b->g->sizes[s],
						      (uint64_t)b->nhosts * b->ranks);

			if (bytes == 0 && b->kind != COLL_BARRIER) {
				continue;
			}
			r = predict(&p, b->kind, (enum coll_algo)a, b->nhosts, b->ranks,
				    b->kind == COLL_BARRIER ? 0 : bytes, &b->at[a][s]);
			b->possible[a][s] = r == 0;
			if (r == -E2BIG) {
				r = 0;
				break;
			}
		}
	}
	predictor_deinit(&p);
	if (isatty(STDERR_FILENO)) {
		fprintf(stderr, "\r\033[K");
	}
	return r;
}

/* Return: 0, or a negative errno; a layout that no communicator may have is passed over. */
static int run_block(struct block *b)
{
	if (b->nhosts < 2 || b->nhosts > LIMIT_COMM_HOSTS ||
	    (uint64_t)b->nhosts * b->ranks > LIMIT_COMM_RANKS) {
		return 0;
	}
	return fill(b);
}

static int run_table(const struct grid *g, enum coll_kind kind, uint64_t ranks,
		     struct block *blocks)
{
	if (!g->json) {
		print_header(g, kind, ranks);
	}
	for (size_t h = 0; h < g->nhosts; h++) {
		struct block *b = &blocks[h];
		int r;

		*b = (struct block){
			.g = g,
			.kind = kind,
			.nhosts = (uint32_t)g->hosts[h],
			.ranks = (uint32_t)ranks,
		};
		r = run_block(b);
		if (r) {
			return r;
		}
		for (size_t s = 0; s < g->nsizes; s++) {
			if (g->json) {
				print_json(b, s);
			} else {
				print_row(b, s);
			}
		}
		fflush(stdout);
	}
	if (!g->json && kind != COLL_BARRIER) {
		printf("\n| collective | hosts | ranks a host | fastest |\n|---|---|---|---|\n");
		for (size_t h = 0; h < g->nhosts; h++) {
			print_crossover(&blocks[h]);
		}
	}
	return 0;
}

/**
 * grid_run() - predict and print
 * @g:  borrowed; grid_defaults() has been called
 *
 * Return: 0 or a negative errno.
 */
int grid_run(const struct grid *g)
{
	struct block *blocks = calloc(g->nhosts, sizeof(*blocks));
	int r = blocks ? 0 : err_origin(-ENOMEM);

	for (unsigned int kind = 0; kind < COLL_SEND && !r; kind++) {
		for (size_t i = 0; i < g->nranks && !r && g->colls >> kind & 1; i++) {
			r = run_table(g, (enum coll_kind)kind, g->ranks[i], blocks);
		}
	}
	if (!r && !g->json) {
		print_legend();
	}
	free(blocks);
	return r;
}
