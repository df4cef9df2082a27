/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Daemon: the root object, which owns every module
 *
 * Thread: main      Owns: everything      Locks: none
 */
#ifndef ROCECOMM_DAEMON_H
#define ROCECOMM_DAEMON_H

#include "config/config.h"
#include "config/load.h"

/* load_config(), and what only higher layers can check. Return: as load_config(). */
int daemon_load(const struct load_options *options, struct config **ret,
		struct config_report *report);

/* Each line of it as an error of the log. */
void daemon_log_report(const struct config_report *report);

/*
 * Runs until a signal or idleness ends it. @options: for reloads, borrowed. @config: consumed.
 * Return: the exit status.
 */
int daemon_run(const struct load_options *options, struct config *config);

#endif
