/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * A program linked with the static library that has names of its own which the library has too
 *
 * It must link, and the library must go on using its own.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <string.h>

#include "libclient/roceclient.h"

/* The names of libclient/error.h, proto/frame.h and proto/status.h. */
int error_set(int status, const char *format, ...);
int frame_pack(void);
const char *status_text(unsigned int status);

static int calls; /* of ours, by the library */

int error_set(int status, const char *format, ...)
{
	calls++;
	return status;
}

int frame_pack(void)
{
	return ++calls;
}

const char *status_text(unsigned int status)
{
	calls++;
	return "ours";
}

int main(void)
{
	struct roce_client *client;

	if (roce_connect("relative", NULL, &client) == ROCE_OK) {
		return 1;
	}
	if (calls != 0 || strcmp(roce_strerror(ROCE_ERR_TIMEOUT), "ours") == 0 ||
	    strstr(roce_last_error(), "no call of this thread")) {
		fprintf(stderr, "the library used the program's functions\n");
		return 1;
	}
	return 0;
}
