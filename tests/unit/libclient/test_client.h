/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * What the tests of libclient share: a connected client, counts of descriptors
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#ifndef TEST_CLIENT_H
#define TEST_CLIENT_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"
#include "libclient/roceclient.h"

/* Fails with the sentence. */
#define ok(call)                                                                           \
	do {                                                                               \
		int ok_r_ = (call);                                                        \
		cr_assert_eq(ok_r_, ROCE_OK, "%s: %s: %s", #call, roce_status_name(ok_r_), \
			     roce_last_error());                                           \
	} while (0)
/* Fails unless the call fails that way and its sentence holds the words. */
#define refused(call, status, words)                                                            \
	do {                                                                                    \
		int no_r_ = (call);                                                             \
		cr_assert_eq(no_r_, (status), "%s: got %s: %s", #call, roce_status_name(no_r_), \
			     roce_last_error());                                                \
		cr_assert(strstr(roce_last_error(), (words)), "\"%s\" lacks \"%s\"",            \
			  roce_last_error(), (words));                                          \
	} while (0)

static inline int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir)) {
		n++;
	}
	closedir(dir);
	return n;
}

static inline struct roce_client *test_connect(struct fake *fake)
{
	struct roce_client *client = NULL;

	ok(roce_connect(fake->path, NULL, &client));
	return client;
}

static inline struct roce_comm *test_comm(struct roce_client *client, int rank, int size)
{
	struct roce_unique_id id;
	struct roce_comm *comm = NULL;

	ok(roce_get_unique_id(client, &id));
	ok(roce_comm_init(client, &id, rank, size, NULL, &comm));
	return comm;
}

#endif
