/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of util/log: one clean line a call
 */
#include <criterion/criterion.h>
#include <string.h>

#include "util/log.h"

/* Writes with standard error in a pipe. */
static size_t capture(char *buf, size_t size, enum log_level level, const char *text)
{
	struct log_fields fields = {{"COMM=7", "PEER=b\nx"}};
	int saved = dup(STDERR_FILENO), fds[2];
	ssize_t n;

	cr_assert_eq(pipe(fds), 0);
	dup2(fds[1], STDERR_FILENO);
	close(fds[1]);
	log_open(LOG_LEVEL_INFO);
	log_write(level, &fields, "%s", text);
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = read(fds[0], buf, size - 1);
	close(fds[0]);
	cr_assert_geq(n, 0);
	buf[n] = '\0';
	return (size_t)n;
}

Test(log, line_with_fields_and_no_forged_line)
{
	char buf[8192];

	unsetenv("JOURNAL_STREAM");
	capture(buf, sizeof(buf), LOG_LEVEL_WARN, "name\nerror: forged\x1b[0m");
	cr_assert_str_eq(buf, "warning: name?error: forged?[0m COMM=7 PEER=b?x\n");
}

Test(log, level)
{
	char buf[8192];

	cr_assert_eq(capture(buf, sizeof(buf), LOG_LEVEL_DEBUG, "x"), 0);
	cr_assert(log_enabled(LOG_LEVEL_ERROR));
	cr_assert_not(log_enabled(LOG_LEVEL_DEBUG));
	log_set_level(LOG_LEVEL_DEBUG);
	cr_assert(log_enabled(LOG_LEVEL_DEBUG));
}

Test(log, long_text_is_cut)
{
	char buf[8192], text[5000];
	size_t n;

	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	n = capture(buf, sizeof(buf), LOG_LEVEL_ERROR, text);
	cr_assert_lt(n, 2600);
	cr_assert_eq(buf[n - 1], '\n');
}
