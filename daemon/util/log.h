/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Log: to the journal with fields, or to standard error as lines
 *
 * Whoever decides an error logs it, once. Never on a progress thread (see engine/mailbox.h).
 * Fields name what a line is about: TENANT, JOB, COMM, PEER. The level is the one mutable global
 * here (an atomic int), so that SIGHUP can change it.
 *
 * Thread: any but progress threads      Owns: nothing      Locks: none (one write a line)
 */
#ifndef ROCECOMM_UTIL_LOG_H
#define ROCECOMM_UTIL_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base.h"

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARN = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

/* Up to four "NAME=value" strings, NULL ends; NAME in upper case. */
struct log_fields {
	const char *field[4];
};

/* Chooses the journal when standard error is connected to it, else lines on standard error. */
void log_open(enum log_level level);
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
void log_write(enum log_level level, const struct log_fields *fields, const char *fmt, ...)
	attr_printf(3, 4);

#define log_error(...) log_write(LOG_LEVEL_ERROR, NULL, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, NULL, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...)                                                 \
	do {                                                           \
		if (log_enabled(LOG_LEVEL_DEBUG)) {                    \
			log_write(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__); \
		}                                                      \
	} while (0)

/* Lets a line through at most once in @interval_ms; *state starts as 0. */
bool log_rate(uint64_t *state, unsigned int interval_ms);

#endif
