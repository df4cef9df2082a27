/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl check: can another host be reached, over which ways, and how fast
 *
 * The daemon does it. It looks up no names, so that a name that is not that of a linked host is
 * looked up here.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/rocectl/admin.h"
#include "tools/rocectl/links_text.h"
#include "tools/rocectl/rocectl.h"

#define SECONDS_MAX 60

/* Return: 0 or -1, with the reason printed. */
static int look_up(const char *name, char *ret, size_t size)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *list;
	int r;

	r = getaddrinfo(name, NULL, &hints, &list);
	if (r != 0) {
		fprintf(stderr,
			"rocectl: no host '%s' is linked with this one, and the name cannot be "
			"looked "
			"up: %s; give its address\n",
			name, gai_strerror(r));
		return -1;
	}
	r = getnameinfo(list->ai_addr, list->ai_addrlen, ret, (socklen_t)size, NULL, 0,
			NI_NUMERICHOST);
	freeaddrinfo(list);
	if (r != 0) {
		fprintf(stderr, "rocectl: '%s': %s\n", name, gai_strerror(r));
		return -1;
	}
	return 0;
}

static int check_take(struct admin *admin, const char *peer, unsigned int ms, char **ret_json)
{
	char address[NI_MAXHOST];
	bool unknown;
	int r;

	r = admin_check(admin, peer, ms, ret_json, &unknown);
	if (!unknown) {
		return r;
	}
	if (look_up(peer, address, sizeof(address)) < 0) {
		return ROCECTL_FAILED;
	}
	r = admin_check(admin, address, ms, ret_json, &unknown);
	if (unknown) {
		fprintf(stderr, "rocectl: '%s' is the address %s, which the daemon does not take\n",
			peer, address);
	}
	return r;
}

static int check_show(struct admin *admin, const char *peer, unsigned int ms, bool json)
{
	struct snapshot now;
	char *text;
	bool ok;
	int r;

	r = check_take(admin, peer, ms, &text);
	if (r == ROCECTL_OK) {
		r = snapshot_parse(text, &now);
	}
	if (r != ROCECTL_OK) {
		return r;
	}
	if (json) {
		puts(now.text);
		ok = json_is_true(json_object_get(now.root, "ok"));
	} else {
		ok = check_text_print(&now);
	}
	snapshot_deinit(&now);
	return ok ? ROCECTL_OK : ROCECTL_UNHEALTHY;
}

int cmd_check(const struct rocectl *ctl, int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"seconds", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0},
	};
	struct admin *admin;
	double seconds = 0;
	bool json = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'j':
			json = true;
			break;
		case 's':
			if (seconds_parse("seconds", optarg, SECONDS_MAX, &seconds) != ROCECTL_OK) {
				return ROCECTL_USAGE;
			}
			break;
		default:
			return ROCECTL_USAGE;
		}
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: rocectl check [--json] [--seconds=S] PEER\n");
		return ROCECTL_USAGE;
	}
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	r = check_show(admin, argv[optind], (unsigned int)(seconds * 1000), json);
	admin_free(admin);
	return r;
}
