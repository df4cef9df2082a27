/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Notify: what systemd is told about the daemon (sd_notify)
 *
 * Without NOTIFY_SOCKET every call does nothing, so callers need not ask.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_UTIL_NOTIFY_H
#define ROCECOMM_UTIL_NOTIFY_H

#include <stdint.h>

#include "proto/base.h"

void notify_ready(const char *status);
/* A reload begins; notify_ready() ends it. */
void notify_reloading(void);
void notify_stopping(const char *status);
/* The line that `systemctl status` shows. */
void notify_status(const char *fmt, ...) attr_printf(1, 2);
void notify_watchdog(void);
/* How often notify_watchdog() is wanted, half the limit; 0: not at all. */
uint64_t notify_watchdog_ms(void);

#endif
