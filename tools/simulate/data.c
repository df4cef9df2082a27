/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocecomm-simulate data: options
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/limits.h"
#include "tools/simulate/derive.h"
#include "tools/simulate/fit.h"
#include "tools/simulate/grid.h"
#include "tools/simulate/simulate.h"

#define SIZE_LARGEST (UINT64_C(1) << 59)

struct arguments {
	struct grid grid;
	bool models;
	bool derive;
	enum derive_form form;
	const char *calibrate; /* file */
	bool lowest;
};

static void print_models(void)
{
	printf("%-12s", "");
	for (size_t m = 0; m < link_nmodels; m++) {
		printf(" %9s", link_models[m].name);
	}
	printf("\n");
	for (size_t k = 0; k < link_nkeys; k++) {
		printf("%-12s", link_keys[k].name);
		for (size_t m = 0; m < link_nmodels; m++) {
			struct link_model model = link_models[m];

			printf(" %9g", *link_value(&model, &link_keys[k]));
		}
		printf("  %s\n", link_keys[k].help);
	}
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: rocecomm-simulate data [OPTION...]\n\n"
		     "  --model NAME        link model, see --models (tcp)\n"
		     "  --set KEY=VALUE     changes it; may be repeated\n"
		     "  --coll LIST         collectives (all with plans of uniform counts)\n"
		     "  --algo LIST         algorithms (all)\n"
		     "  --hosts LIST        2,3,4,8,...,10000\n"
		     "  --ranks LIST        of a host (1,8)\n"
		     "  --sizes LIST        buffers in bytes; K, M and G are 2^10, 2^20 and 2^30\n"
		     "  --full              run every host and every segment\n"
		     "  --json              one object a line\n"
		     "  --derive[=FORM]     the selection table; FORM: def, rules\n"
		     "  --calibrate FILE    fits the model to lines of rocebench --json\n"
		     "  --lowest            the same by the lowest times, not the medians\n"
		     "  --models            list the link models and exit\n");
	return status;
}

static int complain(const char *option, const char *what)
{
	fprintf(stderr, "rocecomm-simulate data: --%s: %s\n", option, what);
	return -EINVAL;
}

/* "8,64K,1G" */
static int parse_numbers(const char *option, const char *text, uint64_t min, uint64_t max,
			 uint64_t *list, size_t *n)
{
	char what[96];

	*n = 0;
	snprintf(what, sizeof(what),
		 "a list of numbers from %" PRIu64 " to %" PRIu64 " such as 8,64,1K", min, max);
	for (;;) {
		char *end;
		unsigned int shift = 0;
		unsigned long long value;

		errno = 0;
		value = strtoull(text, &end, 10);
		if (end != text && *end && strchr("KMG", *end)) {
			shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 30;
			end++;
		}
		if (end == text || *text < '0' || *text > '9' || errno || value > max >> shift ||
		    (uint64_t)value << shift < min || (*end && *end != ',')) {
			return complain(option, what);
		}
		if (*n == GRID_MAX) {
			return complain(option, "too many numbers");
		}
		list[(*n)++] = (uint64_t)value << shift;
		if (!*end) {
			return 0;
		}
		text = end + 1;
	}
}

/* A name may be written with '_' for '-', as rocebench writes it. */
static bool same_name(const char *name, const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (name[i] != text[i] && !(name[i] == '-' && text[i] == '_')) {
			return false;
		}
	}
	return name[len] == '\0';
}

/* Names from a list into bits. */
static int parse_names(const char *option, const char *text, const char *(*name)(unsigned int),
		       unsigned int count, uint32_t *ret)
{
	*ret = 0;
	for (;;) {
		size_t len = strcspn(text, ",");
		unsigned int i = 0;

		while (i < count && !same_name(name(i), text, len)) {
			i++;
		}
		if (i == count) {
			fprintf(stderr, "rocecomm-simulate data: --%s: there is no '%.*s'\n",
				option, (int)len, text);
			return -EINVAL;
		}
		*ret |= 1u << i;
		if (!text[len]) {
			return 0;
		}
		text += len + 1;
	}
}

static int take_model(struct link_model *m, const char *name)
{
	const struct link_model *found = link_find(name);

	if (!found) {
		return complain("model", "there is no such model; --models lists them");
	}
	*m = *found;
	return 0;
}

static int change_model(struct link_model *m, const char *text)
{
	char err[128];

	if (link_set(m, text, err, sizeof(err))) {
		return complain("set", err);
	}
	return 0;
}

static int take_form(struct arguments *args, const char *name)
{
	args->derive = true;
	args->form = DERIVE_TABLE;
	if (name && strcmp(name, "def") == 0) {
		args->form = DERIVE_DEF;
	} else if (name && strcmp(name, "rules") == 0) {
		args->form = DERIVE_RULES;
	} else if (name) {
		return complain("derive", "def or rules, or nothing");
	}
	return 0;
}

static int run_derive(const struct arguments *args)
{
	const struct link_model *m = &args->grid.model;
	struct derived d;
	bool rules = args->form == DERIVE_RULES;
	uint32_t kinds = args->grid.colls ? args->grid.colls : rules ? derive_kinds() : UINT32_MAX;
	int r = derive(m, kinds, rules ? COLL_MAX_RULES : DERIVE_MAX_ROWS, &d);

	if (!r) {
		derive_print(&d, m, args->form, stdout);
	}
	return r;
}

static int run_calibrate(const struct arguments *args)
{
	FILE *in = fopen(args->calibrate, "re");
	char *line = NULL;
	size_t size = 0;
	struct fit *f;
	int r;

	if (!in) {
		return -errno;
	}
	r = fit_new(&args->grid.model, args->lowest, &f);
	while (!r && getline(&line, &size, in) > 0) {
		r = fit_add(f, line);
	}
	free(line);
	fclose(in);
	if (!r && f->ncases == 0) {
		r = complain("calibrate", "the file has no line that a plan could be held against");
	}
	r = r ? r : fit_search(f);
	if (!r) {
		fit_print(f, args->grid.json, stdout);
	}
	fit_free(f);
	return r;
}

static const struct option options[] = {
	{"model", required_argument, NULL, 'm'},
	{"set", required_argument, NULL, 's'},
	{"coll", required_argument, NULL, 'c'},
	{"algo", required_argument, NULL, 'a'},
	{"hosts", required_argument, NULL, 'n'},
	{"ranks", required_argument, NULL, 'r'},
	{"sizes", required_argument, NULL, 'b'},
	{"full", no_argument, NULL, 'f'},
	{"json", no_argument, NULL, 'j'},
	{"models", no_argument, NULL, 'l'},
	{"help", no_argument, NULL, 'h'},
	{"derive", optional_argument, NULL, 'd'},
	{"calibrate", required_argument, NULL, 'k'},
	{"lowest", no_argument, NULL, 'w'},
	{NULL, 0, NULL, 0},
};

static int take_option(struct arguments *args, int c)
{
	struct grid *g = &args->grid;

	switch (c) {
	case 'm':
		return take_model(&g->model, optarg);
	case 's':
		return change_model(&g->model, optarg);
	case 'c':
		return parse_names("coll", optarg, coll_kind_name, COLL_SEND, &g->colls);
	case 'a':
		return parse_names("algo", optarg, coll_algo_name, COLL_ALGO_COUNT_, &g->algos);
	case 'n':
		return parse_numbers("hosts", optarg, 2, LIMIT_COMM_HOSTS, g->hosts, &g->nhosts);
	case 'r':
		return parse_numbers("ranks", optarg, 1, LIMIT_LOCAL_RANKS, g->ranks, &g->nranks);
	case 'b':
		return parse_numbers("sizes", optarg, 1, SIZE_LARGEST, g->sizes, &g->nsizes);
	case 'f':
		g->full = true;
		return 0;
	case 'j':
		g->json = true;
		return 0;
	case 'l':
		args->models = true;
		return 0;
	case 'd':
		return take_form(args, optarg);
	case 'k':
		args->calibrate = optarg;
		return 0;
	case 'w':
		args->lowest = true;
		return 0;
	default:
		return -EINVAL;
	}
}

int simulate_data(int argc, char **argv)
{
	struct arguments args = {.grid.model = link_models[0]};
	int c;
	int r;

	optind = 0; /* glibc: scan these arguments from the start */
	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c == 'h') {
			return usage(stdout, SIMULATE_OK);
		}
		if (take_option(&args, c)) {
			fprintf(stderr, "rocecomm-simulate data --help lists the options\n");
			return SIMULATE_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "rocecomm-simulate data: what is '%s'?\n", argv[optind]);
		return SIMULATE_USAGE;
	}
	if (args.models) {
		print_models();
		return SIMULATE_OK;
	}
	if (args.calibrate) {
		r = run_calibrate(&args);
	} else if (args.derive) {
		r = run_derive(&args);
	} else {
		grid_defaults(&args.grid);
		r = grid_run(&args.grid);
	}
	if (r) {
		fprintf(stderr, "rocecomm-simulate data: %s\n", strerror(-r));
		return SIMULATE_FAILED;
	}
	return SIMULATE_OK;
}
