/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl jobs: one line a communicator
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/rocectl/admin.h"
#include "tools/rocectl/rocectl.h"
#include "tools/rocectl/snapshot.h"
#include "tools/rocectl/status_text.h"

static int print_json(const struct snapshot *s)
{
	/* As it was sent: s->root is for people. */
	json_t *root = json_loads(s->text, 0, NULL);
	char *text = json_dumps(json_object_get(root, "jobs"), JSON_INDENT(2));

	json_decref(root);
	if (!text) {
		fprintf(stderr, "rocectl: the daemon's status has no jobs\n");
		return ROCECTL_FAILED;
	}
	puts(text);
	free(text);
	return ROCECTL_OK;
}

int cmd_jobs(const struct rocectl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{NULL, 0, NULL, 0},
	};
	struct snapshot now;
	struct admin *admin;
	bool json = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c != 'j') {
			return ROCECTL_USAGE;
		}
		json = true;
	}
	if (optind < argc) {
		fprintf(stderr, "rocectl: jobs takes no argument, '%s' given\n", argv[optind]);
		return ROCECTL_USAGE;
	}
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = snapshot_take(admin, &now);
	if (r == ROCECTL_OK) {
		if (json) {
			r = print_json(&now);
		} else {
			status_text_print_jobs(&now);
		}
		snapshot_deinit(&now);
	}
	admin_free(admin);
	return r;
}
