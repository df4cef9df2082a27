/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of config/load: file, --user and command line, in their order
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/load.h"

static char path[] = "/tmp/test_load_XXXXXX";

static void write_file(const char *text)
{
	int fd;

	strcpy(path + strlen(path) - 6, "XXXXXX");
	fd = mkstemp(path);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static struct config *load(const struct load_options *options)
{
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(load_config(options, &c, &report), 0, "%s", report.text);
	return c;
}

Test(load, user_mode_where_the_file_says_nothing)
{
	struct load_options options = {.file = path, .user = true, .user_socket = "/run/u/s"};
	struct config *c;

	write_file("[daemon]\nidle_exit_s = 5\n");
	c = load(&options);
	cr_assert_str_eq(c->socket, "/run/u/s");
	cr_assert_eq(c->socket_mode, 0600);
	cr_assert_eq(c->port, 0);
	cr_assert_eq(c->idle_exit_s, 5);
	config_free(c);
	options.socket = "/x/y";
	options.idle_exit = "7";
	c = load(&options);
	cr_assert_str_eq(c->socket, "/x/y");
	cr_assert_eq(c->idle_exit_s, 7);
	cr_assert_str_eq(c->source[CONFIG_KEY_idle_exit_s].origin, "command line");
	config_free(c);
	unlink(path);
}

Test(load, named_file_must_exist_the_usual_one_need_not)
{
	struct load_options options = {.file = "/no/such/file", .user = true};
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(load_config(&options, &c, &report), CONFIG_E_INVALID);
	cr_assert(strstr(report.text, "there is no such file"));
	config_report_deinit(&report);
	options.file = NULL;
	setenv("XDG_CONFIG_HOME", "/no/such/dir", 1);
	config_free(load(&options));
	unsetenv("XDG_CONFIG_HOME");
	unsetenv("HOME");
	config_free(load(&options));
}

Test(load, bad_command_line)
{
	struct load_options options = {.idle_exit = "soon", .socket = "relative", .user = true};
	struct config_report report = {0};
	struct config *c;

	setenv("XDG_CONFIG_HOME", "/no/such/dir", 1);
	cr_assert_eq(load_config(&options, &c, &report), CONFIG_E_INVALID);
	cr_assert_eq(report.errors, 2);
	cr_assert(strstr(report.text, "command line: idle_exit_s: 'soon'"));
	cr_assert(strstr(report.text, "command line: socket: 'relative' is not an absolute path"));
	config_report_deinit(&report);
}
