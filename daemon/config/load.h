/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Load: the configuration as the command line asks for it
 *
 * At the start, for --check, and again for a reload: defaults, the file, what --user changes, what
 * the command line says; then config_resolve().
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_CONFIG_LOAD_H
#define ROCECOMM_CONFIG_LOAD_H

#include "config/config.h"

#define LOAD_USER_IDLE_EXIT "60"

/* All borrowed for as long as reloads happen. */
struct load_options {
	const char *file;	 /* must exist; NULL: the usual place, which need not */
	bool user;		 /* one user's daemon */
	const char *user_socket; /* its default socket */
	const char *socket;	 /* NULL: not given */
	const char *idle_exit;	 /* NULL: not given */
};

/* Return: 0, CONFIG_E_INVALID (report), -ENOMEM. */
int load_config(const struct load_options *options, struct config **ret,
		struct config_report *report);

#endif
