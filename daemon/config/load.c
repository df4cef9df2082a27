/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Load: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "config/load.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define ORIGIN_USER "--user"
#define ORIGIN_COMMAND "command line"

/* Return: false when there is no usual place (no home). */
static bool usual_file(bool user, char *buf, size_t size)
{
	const char *xdg = getenv("XDG_CONFIG_HOME");
	const char *home = getenv("HOME");

	if (!user) {
		snprintf(buf, size, "%s", CONFIG_SYSTEM_FILE);
	} else if (xdg && xdg[0] == '/') {
		snprintf(buf, size, "%s/rocecomm/rocecommd.conf", xdg);
	} else if (home && home[0] == '/') {
		snprintf(buf, size, "%s/.config/rocecomm/rocecommd.conf", home);
	} else {
		return false;
	}
	return true;
}

static int read_file(const struct load_options *o, struct config *c, struct config_report *report)
{
	char usual[PATH_MAX];
	int r;

	if (!o->file && !usual_file(o->user, usual, sizeof(usual))) {
		return 0;
	}
	r = config_read(c, o->file ? o->file : usual, report);
	if (r == -ENOENT) {
		if (!o->file) {
			return 0;
		}
		config_report_add(report, "%s: there is no such file; --config names it", o->file);
		return CONFIG_E_INVALID;
	}
	return err_trace(r);
}

/* A value of the command line always; one of --user where the file says nothing. */
static int override(struct config *c, enum config_index key, const char *text, const char *origin,
		    struct config_report *report)
{
	int r;

	if (!text || (strcmp(origin, ORIGIN_USER) == 0 && c->source[key].line != 0)) {
		return 0;
	}
	r = config_set(c, key, text, origin, report);
	return r < 0 ? err_trace(r) : 0;
}

static int override_all(const struct load_options *o, struct config *c,
			struct config_report *report)
{
	int r = 0;

	if (o->user) {
		r = override(c, CONFIG_KEY_socket, o->user_socket, ORIGIN_USER, report);
		if (r == 0) {
			r = override(c, CONFIG_KEY_socket_mode, "0600", ORIGIN_USER, report);
		}
		if (r == 0) {
			r = override(c, CONFIG_KEY_idle_exit_s, LOAD_USER_IDLE_EXIT, ORIGIN_USER,
				     report);
		}
		/* The host's daemon may have the usual one. */
		if (r == 0) {
			r = override(c, CONFIG_KEY_port, "0", ORIGIN_USER, report);
		}
	}
	if (r == 0) {
		r = override(c, CONFIG_KEY_socket, o->socket, ORIGIN_COMMAND, report);
	}
	if (r == 0) {
		r = override(c, CONFIG_KEY_idle_exit_s, o->idle_exit, ORIGIN_COMMAND, report);
	}
	return err_trace(r);
}

/* See load.h. */
int load_config(const struct load_options *options, struct config **ret,
		struct config_report *report)
{
	struct config *c;
	int r;

	r = config_new(&c);
	if (r < 0) {
		return err_trace(r);
	}
	r = read_file(options, c, report);
	if (r >= 0) {
		r = override_all(options, c, report);
	}
	if (r >= 0) {
		r = config_resolve(c, report);
	}
	if (r != 0) {
		config_free(c);
		return err_trace(r);
	}
	*ret = c;
	return 0;
}
