/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl version: what is installed, and what runs
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>

#include "libclient/roceclient.h"
#include "proto/hello.h"
#include "tools/rocectl/admin.h"
#include "tools/rocectl/rocectl.h"

int cmd_version(const struct rocectl *ctl, int argc, char **argv)
{
	const Rocecomm__Welcome *welcome;
	struct admin *admin;
	int r;

	if (argc > 1) {
		fprintf(stderr, "rocectl: version takes no argument, '%s' given\n", argv[1]);
		return ROCECTL_USAGE;
	}
	printf("rocectl    %s (protocol %d to %d)\n", roce_version(), PROTOCOL_VERSION_MIN,
	       PROTOCOL_VERSION_MAX);
	fflush(stdout);
	r = admin_new(ctl, &admin);
	if (r != ROCECTL_OK) {
		return r;
	}
	welcome = admin_welcome(admin);
	printf("rocecommd  %s on %s (%s)\n", welcome->version, welcome->host, admin_path(admin));
	printf("reachable  %s\n",
	       welcome->peer_address[0] ? welcome->peer_address : "from this host only");
	admin_free(admin);
	return ROCECTL_OK;
}
