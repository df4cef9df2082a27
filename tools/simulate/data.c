/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocecomm-simulate data: options
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>

#include "tools/simulate/link.h"
#include "tools/simulate/simulate.h"

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
		     "  --models   list the link models\n");
	return status;
}

int simulate_data(int argc, char **argv)
{
	static const struct option options[] = {
		{"models", no_argument, NULL, 'm'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case 'm':
			print_models();
			return SIMULATE_OK;
		case 'h':
			return usage(stdout, SIMULATE_OK);
		default:
			return usage(stderr, SIMULATE_USAGE);
		}
	}
	return usage(stderr, SIMULATE_USAGE);
}
