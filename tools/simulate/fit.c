/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fit, see fit.h
 *
 * The search goes along one value of the model at a time, with steps that become smaller. What is
 * minimised is a distance of logarithms, so a microsecond counts at 8 bytes as a millisecond does
 * at 8 MiB, and single bad measurements do not pull at everything.
 *
 * Thread: main      Owns: what it reads      Locks: none
 */
#include "tools/simulate/fit.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "proto/base.h"
#include "tools/simulate/grid.h"

#define SWEEPS 4
#define NEAR 0.2
#define MOST 1e4 /* Gbit/s, GB/s, us */

/* What is searched; a message's work is taken to be the same on both sides. */
static const size_t searched[] = {
	offsetof(struct link_model, alpha_us),	offsetof(struct link_model, send_us),
	offsetof(struct link_model, gbit),	offsetof(struct link_model, stack_GBps),
	offsetof(struct link_model, copy_GBps), offsetof(struct link_model, reduce_GBps),
	offsetof(struct link_model, op_us),	offsetof(struct link_model, rank_us),
};

int fit_new(const struct link_model *model, bool lowest, struct fit **ret)
{
	struct fit *f = calloc(1, sizeof(*f));

	if (!f) {
		return err_origin(-ENOMEM);
	}
	f->model = *model;
	f->lowest = lowest;
	*ret = f;
	return 0;
}

struct fit *fit_free(struct fit *f)
{
	if (f) {
		free(f->cases);
		free(f);
	}
	return NULL;
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Index of a name, which may have '_' for '-'; @count when there is none. */
static unsigned int find_name(const char *text, const char *(*name)(unsigned int),
			      unsigned int count)
{
	unsigned int i = 0;

	for (; text && i < count; i++) {
		const char *a = text;
		const char *b = name(i);

		while (*a && (*a == *b || (*a == '_' && *b == '-'))) {
			a++;
			b++;
		}
		if (!*a && !*b) {
			return i;
		}
	}
	return count;
}

static bool same_case(const struct fit_case *a, const struct fit_case *b)
{
	return a->kind == b->kind && a->algo == b->algo && a->hosts == b->hosts &&
	       a->ranks == b->ranks && a->bytes == b->bytes;
}

static int keep_case(struct fit *f, const struct fit_case *c)
{
	for (size_t i = 0; i < f->ncases; i++) {
		if (same_case(&f->cases[i], c)) {
			f->cases[i].measured = MIN(f->cases[i].measured, c->measured);
			return 0;
		}
	}
	if (f->ncases == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 64;
		struct fit_case *cases = reallocarray(f->cases, cap, sizeof(*cases));

		if (!cases) {
			return err_origin(-ENOMEM);
		}
		f->cases = cases;
		f->cap = cap;
	}
	f->cases[f->ncases++] = *c;
	f->fewest = f->fewest ? MIN(f->fewest, c->hosts) : c->hosts;
	return 0;
}

/* Return: false when the line is about something that no uniform plan does. */
static bool read_case(const struct fit *f, json_t *line, struct fit_case *ret)
{
	json_int_t hosts = json_integer_value(json_object_get(line, "hosts"));
	json_int_t ranks = json_integer_value(json_object_get(line, "ranks"));
	json_int_t bytes = json_integer_value(json_object_get(line, "bytes"));
	unsigned int kind = find_name(json_string_value(json_object_get(line, "coll")),
				      coll_kind_name, COLL_ALLGATHERV);
	unsigned int algo = find_name(json_string_value(json_object_get(line, "algo")),
				      coll_algo_name, COLL_ALGO_COUNT_);
	const char *coll = json_string_value(json_object_get(line, "coll"));

	if (coll && strcmp(coll, "barrier") == 0) {
		kind = COLL_BARRIER;
	}
	if (kind == COLL_ALLGATHERV || hosts < 2 || hosts > 1024 || ranks < hosts ||
	    ranks % hosts || bytes < 0 ||
	    json_integer_value(json_object_get(line, "inflight")) > 1) {
		return false;
	}
	*ret = (struct fit_case){
		.kind = (enum coll_kind)kind,
		.hosts = (uint32_t)hosts,
		.ranks = (uint32_t)(ranks / hosts),
		.bytes = (uint64_t)bytes,
		.message = grid_message((enum coll_kind)kind, (uint64_t)bytes, (uint64_t)ranks),
		.measured = json_number_value(
			json_object_get(line, f->lowest ? "min_us" : "median_us")),
	};
	if (algo == COLL_ALGO_COUNT_) {
		struct coll_layout layout = {.nhosts = (uint32_t)hosts, .nranks = (uint32_t)ranks};

		algo = coll_select(NULL, ret->kind, ret->message, &layout);
	}
	ret->algo = (enum coll_algo)algo;
	return ret->measured > 0 && coll_supports(ret->kind, ret->algo, ret->hosts);
}

int fit_add(struct fit *f, const char *text)
{
	json_t *line = json_loads(text, 0, NULL);
	struct fit_case c;
	int r = 0;

	if (line && read_case(f, line, &c)) {
		r = keep_case(f, &c);
	}
	json_decref(line);
	return r;
}

/* ---- searching ---------------------------------------------------------------------------- */

static int predict_cases(struct fit *f, const struct link_model *m, uint32_t hosts)
{
	struct predictor p = {.model = *m};
	int r = 0;

	for (size_t i = 0; i < f->ncases && !r; i++) {
		struct fit_case *c = &f->cases[i];
		struct prediction at;

		if (hosts && c->hosts != hosts) {
			continue;
		}
		r = predict(&p, c->kind, c->algo, c->hosts, c->ranks, c->message, &at);
		c->predicted = r ? 0 : at.us;
	}
	predictor_deinit(&p);
	return r;
}

double fit_error(const struct fit *f, uint32_t hosts)
{
	double sum = 0;
	size_t n = 0;

	for (size_t i = 0; i < f->ncases; i++) {
		const struct fit_case *c = &f->cases[i];

		if (hosts == 0 || c->hosts == hosts) {
			sum += fabs(log(c->predicted / c->measured));
			n++;
		}
	}
	return n ? sum / (double)n : 0;
}

/* What the search makes small: square near nothing, so that it does not get stuck, else straight.
 */
static double search_cost(const struct fit *f)
{
	double sum = 0;

	for (size_t i = 0; i < f->ncases; i++) {
		const struct fit_case *c = &f->cases[i];

		if (c->hosts == f->fewest) {
			sum += hypot(NEAR, log(c->predicted / c->measured)) - NEAR;
		}
	}
	return sum;
}

/* Multiplies one value. Return: 1 when that is better and was kept, 0 when not, negative errno. */
static int try_step(struct fit *f, size_t offset, double factor, double *best)
{
	struct link_model m = f->model;
	double *value = (double *)((char *)&m + offset);
	double cost;
	int r;

	*value *= factor;
	m.recv_us = m.send_us;
	if (*value > MOST) {
		return 0; /* what is not to be seen in the times would grow for ever */
	}
	r = predict_cases(f, &m, f->fewest);
	if (r) {
		return r;
	}
	cost = search_cost(f);
	if (cost >= *best - 1e-9) {
		return 0;
	}
	*best = cost;
	f->model = m;
	return 1;
}

/* Each value up and down by one step, as long as that helps. */
static int search_round(struct fit *f, double step, double *best)
{
	int better = 1;
	int r = 0;

	for (int round = 0; better && round < 8 && r >= 0; round++) {
		better = 0;
		for (size_t i = 0; i < 2 * ARRAY_SIZE(searched) && r >= 0; i++) {
			r = try_step(f, searched[i / 2], i % 2 ? 1 / step : step, best);
			better |= r > 0;
		}
	}
	return r;
}

/**
 * fit_search() - fit the model to what was read
 * @f:  has at least one case
 *
 * Return: 0 or a negative errno.
 */
int fit_search(struct fit *f)
{
	double best;
	int r;

	f->model.recv_us = f->model.send_us;
	r = predict_cases(f, &f->model, f->fewest);
	best = search_cost(f);
	/* Large steps again after small ones: the way out of a corner. */
	for (int sweep = 0; sweep < SWEEPS && r >= 0; sweep++) {
		for (double step = 1.6; step > 1.01 && r >= 0; step = sqrt(step)) {
			r = search_round(f, step, &best);
		}
	}
	return r < 0 ? r : predict_cases(f, &f->model, 0);
}

/* ---- printing ----------------------------------------------------------------------------- */

/* Of the cases that differ in nothing but the algorithm: who is predicted, who was measured best?
 */
static double choice_cost(const struct fit *f, size_t i)
{
	const struct fit_case *guess = &f->cases[i];
	double best = guess->measured;

	for (size_t k = 0; k < f->ncases; k++) {
		const struct fit_case *c = &f->cases[k];
		struct fit_case like = f->cases[i];

		like.algo = c->algo;
		if (!same_case(c, &like)) {
			continue;
		}
		if (k < i) {
			return 0; /* this group has been seen */
		}
		best = MIN(best, c->measured);
		guess = c->predicted < guess->predicted ? c : guess;
	}
	return guess->measured / best;
}

static void print_summary(const struct fit *f, FILE *out)
{
	double cost = 0;
	double worst = 1;
	size_t n = 0;

	for (uint32_t hosts = f->fewest; hosts <= 1024; hosts++) {
		size_t of = 0;

		for (size_t i = 0; i < f->ncases; i++) {
			of += f->cases[i].hosts == hosts;
		}
		if (of) {
			fprintf(out,
				"%s %u hosts: %zu cases, off by a factor of %.2f in the mean\n",
				hosts == f->fewest ? "\nFitted," : "Predicted,", hosts, of,
				exp(fit_error(f, hosts)));
		}
	}
	for (size_t i = 0; i < f->ncases; i++) {
		double c = choice_cost(f, i);

		if (c > 0) {
			cost += log(c);
			worst = MAX(worst, c);
			n++;
		}
	}
	fprintf(out,
		"The algorithm that is predicted to be the fastest took %.2f times as long as "
		"the one measured to be, in the mean of %zu sizes; at the worst %.2f.\n",
		n ? exp(cost / (double)n) : 1, n, worst);
}

static void print_case(const struct fit_case *c, bool json, FILE *out)
{
	fprintf(out,
		json ? "{\"coll\":\"%s\",\"algo\":\"%s\",\"hosts\":%u,\"ranks\":%u,\"bytes\":%llu,"
		       "\"measured_us\":%.3f,\"predicted_us\":%.3f,\"ratio\":%.3f}\n"
		     : "| %s | %s | %u | %u | %llu | %.1f | %.1f | %.2f |\n",
		coll_kind_name(c->kind), coll_algo_name(c->algo), c->hosts, c->hosts * c->ranks,
		(unsigned long long)c->bytes, c->measured, c->predicted,
		c->predicted / c->measured);
}

/**
 * fit_print() - predicted against measured, and the fitted model
 * @f:     borrowed, after fit_search()
 * @json:  one object a line, the model last
 * @out:   borrowed
 */
void fit_print(const struct fit *f, bool json, FILE *out)
{
	struct link_model m = f->model;

	if (!json) {
		fprintf(out, "| collective | algorithm | hosts | ranks | bytes | measured us | "
			     "predicted us | ratio |\n|---|---|---|---|---|---|---|---|\n");
	}
	for (size_t i = 0; i < f->ncases; i++) {
		print_case(&f->cases[i], json, out);
	}
	if (!json) {
		print_summary(f, out);
		fprintf(out, "\nThe fitted model:\n");
	}
	for (size_t k = 0; k < link_nkeys; k++) {
		fprintf(out, json ? "%s\"%s\":%.4g" : "%s--set=%s=%.4g", json ? k ? "," : "{" : " ",
			link_keys[k].name, *link_value(&m, &link_keys[k]));
	}
	fprintf(out, json ? "}\n" : "\n");
}
