/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl links: the RDMA devices of this host, what each is good for, and its counters
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <poll.h>
#include <stdio.h>

#include "tools/rocectl/admin.h"
#include "tools/rocectl/links_text.h"
#include "tools/rocectl/rocectl.h"

#define DURING_MAX_S 3600

static int links_take(struct admin *admin, struct snapshot *ret)
{
	char *text;
	int r;

	r = admin_links(admin, &text);
	return r == ROCECTL_OK ? snapshot_parse(text, ret) : r;
}

static int links_show(struct admin *admin, bool json, double during)
{
	struct snapshot before = {0}, now;
	int r = ROCECTL_OK;

	if (during > 0) {
		r = links_take(admin, &before);
		if (r == ROCECTL_OK) {
			poll(NULL, 0, (int)(during * 1000));
		}
	}
	if (r == ROCECTL_OK) {
		r = links_take(admin, &now);
	}
	if (r == ROCECTL_OK) {
		if (json) {
			puts(now.text);
		} else {
			links_text_print(&now, before.root ? &before : NULL);
		}
		snapshot_deinit(&now);
	}
	snapshot_deinit(&before);
	return r;
}

int cmd_links(const struct rocectl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"during", required_argument, NULL, 'd'},
		{NULL, 0, NULL, 0},
	};
	struct admin *admin;
	double during = 0;
	bool json = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'j':
			json = true;
			break;
		case 'd':
			if (seconds_parse("during", optarg, DURING_MAX_S, &during) != ROCECTL_OK) {
				return ROCECTL_USAGE;
			}
			break;
		default:
			return ROCECTL_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "rocectl: links takes no argument, '%s' given\n", argv[optind]);
		return ROCECTL_USAGE;
	}
	if (json && during > 0) {
		fprintf(stderr, "rocectl: --json and --during exclude each other: the JSON has the "
				"counters themselves\n");
		return ROCECTL_USAGE;
	}
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = links_show(admin, json, during);
	admin_free(admin);
	return r;
}
