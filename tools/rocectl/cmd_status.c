/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl status: the jobs of this host, and who is waited for
 *
 * Rates need two looks: with --watch those of two rounds, else a short moment apart.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/rocectl/admin.h"
#include "tools/rocectl/rocectl.h"
#include "tools/rocectl/snapshot.h"
#include "tools/rocectl/status_text.h"

#define MOMENT_MS 200
#define WATCH_MAX_S 3600

struct status_options {
	bool json;
	bool check;
	double watch; /* seconds; 0: once */
};

static int parse(struct status_options *o, int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"check", no_argument, NULL, 'c'},
		{"watch", optional_argument, NULL, 'w'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'j':
			o->json = true;
			break;
		case 'c':
			o->check = true;
			break;
		case 'w':
			o->watch = 1;
			if (optarg &&
			    seconds_parse("watch", optarg, WATCH_MAX_S, &o->watch) != ROCECTL_OK) {
				return ROCECTL_USAGE;
			}
			break;
		default:
			return ROCECTL_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "rocectl: status takes no argument, '%s' given\n", argv[optind]);
		return ROCECTL_USAGE;
	}
	if (o->json && o->check) {
		fprintf(stderr, "rocectl: --json and --check exclude each other\n");
		return ROCECTL_USAGE;
	}
	return ROCECTL_OK;
}

/* One look. Takes *before over from the last one and leaves this one there. */
static int look(struct admin *admin, const struct status_options *o, struct snapshot *before)
{
	struct snapshot now;
	int r;

	r = snapshot_take(admin, &now);
	if (r != ROCECTL_OK) {
		return r;
	}
	if (o->json) {
		puts(now.text);
	} else if (o->check) {
		r = status_text_print_wrong(&now) ? ROCECTL_UNHEALTHY : ROCECTL_OK;
	} else {
		status_text_print(&now, before->root ? before : NULL);
	}
	fflush(stdout);
	snapshot_deinit(before);
	*before = now;
	return r;
}

static int show(struct admin *admin, const struct status_options *o)
{
	struct snapshot before = {0};
	bool clear = o->watch > 0 && !o->json && !o->check && isatty(STDOUT_FILENO);
	int r = ROCECTL_OK;

	if (!o->json && !o->check) {
		r = snapshot_take(admin, &before);
		if (r == ROCECTL_OK) {
			poll(NULL, 0, MOMENT_MS);
		}
	}
	while (r == ROCECTL_OK || (r == ROCECTL_UNHEALTHY && o->watch > 0)) {
		if (clear) {
			fputs("\033[H\033[J", stdout);
		}
		r = look(admin, o, &before);
		if (o->watch == 0 || (r != ROCECTL_OK && r != ROCECTL_UNHEALTHY)) {
			break;
		}
		poll(NULL, 0, (int)(o->watch * 1000));
	}
	snapshot_deinit(&before);
	return r;
}

int cmd_status(const struct rocectl *ctl, int argc, char **argv)
{
	struct status_options o = {0};
	struct admin *admin;
	int r;

	r = parse(&o, argc, argv);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = show(admin, &o);
	admin_free(admin);
	return r;
}
