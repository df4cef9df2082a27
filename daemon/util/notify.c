/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Notify: implementation
 *
 * Errors are ignored: systemd's time-outs are the answer to a message that is lost.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "util/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <systemd/sd-daemon.h>

#include "util/clock.h"

/* See notify.h. */
void notify_ready(const char *status)
{
	sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

/* See notify.h. MONOTONIC_USEC lets Type=notify-reload tell this reload from an older one. */
void notify_reloading(void)
{
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_monotonic() / CLOCK_NS_PER_US);
}

/* See notify.h. */
void notify_stopping(const char *status)
{
	sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status);
}

/* See notify.h. */
void notify_status(const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	sd_notifyf(0, "STATUS=%s", text);
}

/* See notify.h. */
void notify_watchdog(void)
{
	sd_notify(0, "WATCHDOG=1");
}

/* See notify.h. */
uint64_t notify_watchdog_ms(void)
{
	uint64_t us = 0;

	if (sd_watchdog_enabled(0, &us) <= 0) {
		return 0;
	}
	return MAX(us / 2000, 1);
}
