/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocecomm-simulate: large clusters in one process, on virtual time
 *
 * Only the choice of the command is here; see rocecomm-simulate(1).
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/simulate/simulate.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{"data", simulate_data, "time and bytes of every algorithm; the selection table"},
	{"control", simulate_control, "how long a communicator takes to start, and what it costs"},
};

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: rocecomm-simulate COMMAND [OPTION...]\n\n");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
	}
	fprintf(out, "\nrocecomm-simulate COMMAND --help lists the options of a command. See "
		     "rocecomm-simulate(1).\n");
	return status;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		return usage(stderr, SIMULATE_USAGE);
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		return usage(stdout, SIMULATE_OK);
	}
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(argv[1], commands[i].name) == 0) {
			return commands[i].run(argc - 1, argv + 1);
		}
	}
	fprintf(stderr, "rocecomm-simulate: there is no command '%s'\n\n", argv[1]);
	return usage(stderr, SIMULATE_USAGE);
}
