/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Error: implementation, and the public names of the status codes
 *
 * The text is the library's only per-thread state besides the open group (group.c).
 *
 * Thread: any      Owns: the thread's text      Locks: none
 */
#include "libclient/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libclient/roceclient.h"
#include "proto/limits.h"
#include "proto/status.h"

/* One list of codes for ring, socket and API: the public names may not drift. */
static_assert((int)ROCE_OK == (int)STATUS_OK, "status");
static_assert((int)ROCE_IN_PROGRESS == (int)STATUS_IN_PROGRESS, "status");
static_assert((int)ROCE_ERR_INVALID == (int)STATUS_INVALID, "status");
static_assert((int)ROCE_ERR_UNSUPPORTED == (int)STATUS_UNSUPPORTED, "status");
static_assert((int)ROCE_ERR_MISMATCH == (int)STATUS_MISMATCH, "status");
static_assert((int)ROCE_ERR_PEER_DIED == (int)STATUS_PEER_DIED, "status");
static_assert((int)ROCE_ERR_ABORTED == (int)STATUS_ABORTED, "status");
static_assert((int)ROCE_ERR_TIMEOUT == (int)STATUS_TIMEOUT, "status");
static_assert((int)ROCE_ERR_QUOTA == (int)STATUS_QUOTA, "status");
static_assert((int)ROCE_ERR_NO_MEMORY == (int)STATUS_NO_MEMORY, "status");
static_assert((int)ROCE_ERR_NO_DAEMON == (int)STATUS_NO_DAEMON, "status");
static_assert((int)ROCE_ERR_PERMISSION == (int)STATUS_PERMISSION, "status");
static_assert((int)ROCE_ERR_VERSION == (int)STATUS_VERSION, "status");
static_assert((int)ROCE_ERR_PROTOCOL == (int)STATUS_PROTOCOL, "status");
static_assert((int)ROCE_ERR_FD_MISSING == (int)STATUS_FD_MISSING, "status");
static_assert((int)ROCE_ERR_BAD_MEMORY == (int)STATUS_BAD_MEMORY, "status");
static_assert((int)ROCE_ERR_UNREACHABLE == (int)STATUS_UNREACHABLE, "status");
static_assert((int)ROCE_ERR_FORKED == (int)STATUS_FORKED, "status");
static_assert((int)ROCE_ERR_SHUTDOWN == (int)STATUS_SHUTDOWN, "status");
static_assert((int)ROCE_ERR_EXISTS == (int)STATUS_EXISTS, "status");
static_assert((int)ROCE_ERR_NOT_FOUND == (int)STATUS_NOT_FOUND, "status");
static_assert((int)ROCE_ERR_INTERNAL == (int)STATUS_INTERNAL, "status");
static_assert((int)ROCE_ERR_INTERNAL + 1 == (int)STATUS_COUNT_, "status");

static _Thread_local char error_buf[LIMIT_ERROR_TEXT];

int error_set(int status, const char *format, ...)
{
	char text[LIMIT_ERROR_TEXT];
	va_list ap;

	/* Built aside: an argument may be the old sentence. */
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	memcpy(error_buf, text, sizeof(error_buf));
	return status;
}

int error_prefix(int status, const char *format, ...)
{
	char prefix[LIMIT_ERROR_TEXT / 2];
	va_list ap;

	va_start(ap, format);
	vsnprintf(prefix, sizeof(prefix), format, ap);
	va_end(ap);
	return error_set(status, "%s: %s", prefix, error_buf);
}

const char *error_last(void)
{
	return error_buf[0] != '\0' ? error_buf : "no call of this thread has failed";
}

void error_copy(char *to, const char *from)
{
	size_t n = strnlen(from, LIMIT_ERROR_TEXT - 1);

	memcpy(to, from, n);
	to[n] = '\0';
}

const char *roce_status_name(int status)
{
	return status_name((unsigned int)status);
}

const char *roce_strerror(int status)
{
	return status_text((unsigned int)status);
}

const char *roce_last_error(void)
{
	return error_last();
}

const char *roce_version(void)
{
	return ROCECOMM_VERSION;
}
