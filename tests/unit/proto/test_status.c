/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of status: every code has its own name and sentence, every errno becomes a code
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "proto/base.h"
#include "proto/status.h"

Test(status, names_and_texts)
{
	for (unsigned int i = 0; i < STATUS_COUNT_; i++) {
		cr_assert_not_null(status_name(i), "status %u", i);
		cr_assert_not_null(status_text(i), "status %u", i);
		cr_assert_gt(strlen(status_name(i)), 1);
		cr_assert_null(strchr(status_text(i), '\n'));
		cr_assert_null(strpbrk(status_name(i), " \n"));
		for (unsigned int j = 0; j < i; j++) {
			cr_assert_str_neq(status_name(i), status_name(j));
			cr_assert_str_neq(status_text(i), status_text(j));
		}
	}
}

Test(status, unknown)
{
	static const unsigned int values[] = {STATUS_COUNT_, 1000, UINT32_MAX};

	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		cr_assert_str_eq(status_name(values[i]), "unknown");
		cr_assert_gt(strlen(status_text(values[i])), 1);
	}
}

Test(status, values_are_fixed)
{
	cr_assert_eq(STATUS_OK, 0);
	cr_assert_eq(STATUS_QUOTA, 8);
	cr_assert_eq(STATUS_INTERNAL, 21);
	cr_assert_eq(STATUS_COUNT_, 22, "append only, and extend this test");
}

Test(status, from_errno)
{
	static const struct {
		int err;
		enum status status;
	} cases[] = {
		{0, STATUS_OK},
		{EINVAL, STATUS_INVALID},
		{EOPNOTSUPP, STATUS_UNSUPPORTED},
		{ENOMEM, STATUS_NO_MEMORY},
		{EMFILE, STATUS_NO_MEMORY},
		{EACCES, STATUS_PERMISSION},
		{EPERM, STATUS_PERMISSION},
		{ETIMEDOUT, STATUS_TIMEOUT},
		{EDQUOT, STATUS_QUOTA},
		{EPROTO, STATUS_PROTOCOL},
		{EBADF, STATUS_FD_MISSING},
		{ECONNREFUSED, STATUS_UNREACHABLE},
		{EHOSTUNREACH, STATUS_UNREACHABLE},
		{ECONNRESET, STATUS_PEER_DIED},
		{EPIPE, STATUS_PEER_DIED},
		{ECANCELED, STATUS_ABORTED},
		{ESHUTDOWN, STATUS_SHUTDOWN},
		{EEXIST, STATUS_EXISTS},
		{ENOENT, STATUS_NOT_FOUND},
		{EAGAIN, STATUS_IN_PROGRESS},
		{ENOTRECOVERABLE, STATUS_INTERNAL},
		{99999, STATUS_INTERNAL},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cr_assert_eq(status_from_errno(cases[i].err), cases[i].status, "case %zu", i);
		cr_assert_eq(status_from_errno(-cases[i].err), cases[i].status, "case %zu", i);
	}
	for (int err = 1; err < 200; err++) {
		cr_assert_neq(status_from_errno(err), STATUS_OK);
		cr_assert_lt((int)status_from_errno(err), STATUS_COUNT_);
	}
}
