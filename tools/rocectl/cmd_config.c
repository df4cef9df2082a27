/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl config: the values that the running daemon uses, and where each comes from
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/rocectl/admin.h"
#include "tools/rocectl/rocectl.h"

static void config_print(const Rocecomm__ConfigReply *reply, bool changed)
{
	int key = (int)strlen("KEY"), value = (int)strlen("VALUE");

	for (size_t i = 0; i < reply->n_items; i++) {
		key = MAX(key, (int)strlen(reply->items[i]->key));
		value = MAX(value, MIN((int)strlen(reply->items[i]->value), 32));
	}
	printf("%-*s  %-*s  %-8s  %s\n", key, "KEY", value, "VALUE", "RELOADS", "SOURCE");
	for (size_t i = 0; i < reply->n_items; i++) {
		const Rocecomm__ConfigItem *item = reply->items[i];

		if (changed && strcmp(item->source, "default") == 0) {
			continue;
		}
		printf("%-*s  %-*s  %-8s  %s\n", key, item->key, value,
		       item->value[0] ? item->value : "-", item->runtime ? "yes" : "no",
		       item->source);
	}
}

int cmd_config(const struct rocectl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"changed", no_argument, NULL, 'c'},
		{NULL, 0, NULL, 0},
	};
	Rocecomm__ConfigReply *reply;
	struct admin *admin;
	bool changed = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c != 'c') {
			return ROCECTL_USAGE;
		}
		changed = true;
	}
	if (optind < argc) {
		fprintf(stderr, "rocectl: config takes no argument, '%s' given\n", argv[optind]);
		return ROCECTL_USAGE;
	}
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = admin_config(admin, &reply);
	if (r == ROCECTL_OK) {
		config_print(reply, changed);
		rocecomm__config_reply__free_unpacked(reply, NULL);
	}
	admin_free(admin);
	return r;
}
