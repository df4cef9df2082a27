/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fit: a link model from measured times, and how well it predicts them
 *
 * Reads lines of rocebench's JSON, with "algo" when it is not the one that the table selects. Of
 * several lines for one case the lowest counts. The model is fitted to the cases with the fewest
 * hosts; those with more are predicted by what was learned there.
 *
 * Thread: main      Owns: what it reads      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_FIT_H
#define ROCECOMM_SIMULATE_FIT_H

#include <stdio.h>

#include "tools/simulate/predict.h"

struct fit_case {
	enum coll_kind kind;
	enum coll_algo algo;
	uint32_t hosts;
	uint32_t ranks; /* a host */
	uint64_t bytes; /* buffer, as rocebench counts it */
	uint64_t message;
	double measured; /* us */
	double predicted;
};

struct fit {
	struct fit_case *cases;
	size_t ncases, cap;
	uint32_t fewest; /* hosts */
	struct link_model model;
	bool lowest; /* min_us instead of median_us */
};

/* @model: where the search begins. Return: 0 or -ENOMEM. */
int fit_new(const struct link_model *model, bool lowest, struct fit **ret);
struct fit *fit_free(struct fit *f);
/* Takes a line of JSON in; what says nothing about a plan is passed over. Return: 0 or -ENOMEM. */
int fit_add(struct fit *f, const char *line);
/* Changes f->model and sets every case's prediction. Return: 0 or a negative errno. */
int fit_search(struct fit *f);
/* Mean of |log(predicted / measured)| of the cases with @hosts; 0: of all. */
double fit_error(const struct fit *f, uint32_t hosts);
void fit_print(const struct fit *f, bool json, FILE *out);

#endif
