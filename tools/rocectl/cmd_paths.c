/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl paths: every way to every other host, which are in use, and why the others are not
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>

#include "tools/rocectl/admin.h"
#include "tools/rocectl/links_text.h"
#include "tools/rocectl/rocectl.h"

static int paths_show(struct admin *admin, const char *peer, bool json)
{
	struct snapshot now;
	char *text;
	int r;

	r = admin_paths(admin, peer, &text);
	if (r == ROCECTL_OK) {
		r = snapshot_parse(text, &now);
	}
	if (r != ROCECTL_OK) {
		return r;
	}
	if (peer[0] && json_array_size(json_object_get(now.root, "peers")) == 0) {
		fprintf(stderr,
			"rocectl: no host of the name, id or address '%s' is linked with this one; "
			"rocectl paths lists all that are\n",
			peer);
		r = ROCECTL_FAILED;
	} else if (json) {
		puts(now.text);
	} else {
		paths_text_print(&now);
	}
	snapshot_deinit(&now);
	return r;
}

int cmd_paths(const struct rocectl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{NULL, 0, NULL, 0},
	};
	struct admin *admin;
	bool json = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c != 'j') {
			return ROCECTL_USAGE;
		}
		json = true;
	}
	if (optind + 1 < argc) {
		fprintf(stderr, "rocectl: paths takes one host at most, '%s' given\n",
			argv[optind + 1]);
		return ROCECTL_USAGE;
	}
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = paths_show(admin, optind < argc ? argv[optind] : "", json);
	admin_free(admin);
	return r;
}
