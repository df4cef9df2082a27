/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocectl: what its commands share
 *
 * One file a command, each with one entry point that parses its own arguments. Exit codes are part
 * of the interface (rocectl(1)).
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCECTL_H
#define ROCECTL_H

enum rocectl_exit {
	ROCECTL_OK = 0,
	ROCECTL_FAILED = 1,    /* the daemon, or the system, refused */
	ROCECTL_USAGE = 2,     /* wrong arguments */
	ROCECTL_NO_DAEMON = 3, /* nobody answers at the socket */
	ROCECTL_UNHEALTHY = 4, /* status --check: a rank is late; check: a fault was found */
	ROCECTL_EXIT_COUNT_
};

struct rocectl {
	const char *socket; /* --socket, NULL: the usual places */
};

/*
 * The value of --@option, which takes seconds, from 0.1 to @max. Return: ROCECTL_OK, or, said on
 * stderr, ROCECTL_USAGE.
 */
int seconds_parse(const char *option, const char *text, unsigned int max, double *ret_seconds);

/* @argv[0] is the command's name. Return: enum rocectl_exit. */
int cmd_status(const struct rocectl *ctl, int argc, char **argv);
int cmd_jobs(const struct rocectl *ctl, int argc, char **argv);
int cmd_links(const struct rocectl *ctl, int argc, char **argv);
int cmd_paths(const struct rocectl *ctl, int argc, char **argv);
int cmd_check(const struct rocectl *ctl, int argc, char **argv);
int cmd_config(const struct rocectl *ctl, int argc, char **argv);
int cmd_version(const struct rocectl *ctl, int argc, char **argv);
int cmd_key(const struct rocectl *ctl, int argc, char **argv);

#endif
