/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl: look at the jobs of a host through its daemon
 *
 * Only the common options and the choice of the command are here; see rocectl(1).
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "libclient/roceclient.h"
#include "proto/base.h"
#include "tools/rocectl/rocectl.h"

struct command {
	const char *name;
	int (*run)(const struct rocectl *ctl, int argc, char **argv);
	const char *help;
};

static const struct command commands[] = {
	{"status", cmd_status, "jobs, ranks, who is waited for [--json] [--watch[=S]] [--check]"},
	{"jobs", cmd_jobs, "one line a communicator [--json]"},
	{"links", cmd_links, "RDMA devices, and why not [--json] [--during=SECONDS]"},
	{"paths", cmd_paths, "ways to other hosts, and why [PEER] [--json]"},
	{"check", cmd_check, "PEER: can it be reached, how, how fast [--json] [--seconds=S]"},
	{"config", cmd_config, "every key, its value and where it comes from [--changed]"},
	{"version", cmd_version, "versions of rocectl and of the daemon"},
	{"key", cmd_key, "key new [FILE]: make a cluster key"},
};

static void usage(FILE *out)
{
	fprintf(out, "usage: rocectl [--socket=PATH] COMMAND [OPTION...]\n\n");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
	}
	fprintf(out, "\nExit: 0 well, 1 refused, 2 wrong usage, 3 no daemon, 4 late or failed "
		     "(status --check), or faults found (check). See rocectl(1).\n");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	struct rocectl ctl = {0};
	int c;

	while ((c = getopt_long(argc, argv, "+s:hV", options, NULL)) != -1) {
		switch (c) {
		case 's':
			ctl.socket = optarg;
			break;
		case 'h':
			usage(stdout);
			return ROCECTL_OK;
		case 'V':
			printf("rocectl %s\n", roce_version());
			return ROCECTL_OK;
		default:
			usage(stderr);
			return ROCECTL_USAGE;
		}
	}
	argc -= optind;
	argv += optind;
	if (argc == 0) {
		usage(stderr);
		return ROCECTL_USAGE;
	}
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(argv[0], commands[i].name) == 0) {
			optind = 0; /* glibc: scan the command's own arguments from the start */
			return commands[i].run(&ctl, argc, argv);
		}
	}
	fprintf(stderr, "rocectl: there is no command '%s'\n\n", argv[0]);
	usage(stderr);
	return ROCECTL_USAGE;
}
