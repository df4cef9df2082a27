/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Log: implementation
 *
 * The destination travels in the same atomic as the level, so that this file has one variable.
 * Control characters in a line are replaced: names come from clients and must not forge lines.
 *
 * Thread: any but progress threads      Owns: nothing      Locks: none
 */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include "util/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>

#include "util/clock.h"

#define LOG_LINE 2048
#define LOG_FIELDS ARRAY_SIZE(((struct log_fields *)NULL)->field)
#define LOG_TO_JOURNAL 0x100

static atomic_int log_state = LOG_LEVEL_INFO;

/* Is standard error the journal's stream? It tells its device and inode for exactly this. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t dev, ino;
	struct stat st;

	return stream && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &dev, &ino) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

/**
 * log_open() - choose journal or standard error, and set the level
 * @level:  the least important level that is written
 */
void log_open(enum log_level level)
{
	int state = (int)level | (stderr_is_journal() ? LOG_TO_JOURNAL : 0);

	atomic_store_explicit(&log_state, state, memory_order_relaxed);
}

/* See log.h. */
void log_set_level(enum log_level level)
{
	int to = atomic_load_explicit(&log_state, memory_order_relaxed) & LOG_TO_JOURNAL;

	atomic_store_explicit(&log_state, (int)level | to, memory_order_relaxed);
}

/* See log.h. */
bool log_enabled(enum log_level level)
{
	return (int)level <= (atomic_load_explicit(&log_state, memory_order_relaxed) & 0xff);
}

static const char *level_name(enum log_level level)
{
	switch (level) {
	case LOG_LEVEL_ERROR:
		return "error";
	case LOG_LEVEL_WARN:
		return "warning";
	case LOG_LEVEL_INFO:
		return "info";
	case LOG_LEVEL_DEBUG:
		break;
	}
	return "debug";
}

static void clean(char *s)
{
	for (; *s != '\0'; s++) {
		if ((unsigned char)*s < ' ' || *s == 0x7f) {
			*s = '?';
		}
	}
}

/* Return: could the journal be reached? */
static bool to_journal(enum log_level level, const struct log_fields *fields, const char *text)
{
	struct iovec iov[3 + LOG_FIELDS];
	char message[LOG_LINE + 8];
	char priority[32];
	int n = 0;

	snprintf(message, sizeof(message), "MESSAGE=%s", text);
	snprintf(priority, sizeof(priority), "PRIORITY=%d", (int)level);
	iov[n++] = (struct iovec){message, strlen(message)};
	iov[n++] = (struct iovec){priority, strlen(priority)};
	iov[n++] = (struct iovec){(char *)"SYSLOG_IDENTIFIER=rocecommd",
				  strlen("SYSLOG_IDENTIFIER=rocecommd")};
	for (size_t i = 0; fields && i < LOG_FIELDS && fields->field[i]; i++) {
		iov[n++] = (struct iovec){(char *)fields->field[i], strlen(fields->field[i])};
	}
	return sd_journal_sendv(iov, n) >= 0;
}

static void to_stderr(enum log_level level, const struct log_fields *fields, const char *text)
{
	char line[LOG_LINE + 512];
	size_t used;

	used = (size_t)snprintf(line, sizeof(line) - 1, "%s: %s", level_name(level), text);
	for (size_t i = 0; fields && i < LOG_FIELDS && fields->field[i]; i++) {
		size_t left = sizeof(line) - 1 - used;
		int n = snprintf(line + used, left, " %s", fields->field[i]);

		if (n < 0 || (size_t)n >= left) {
			break;
		}
		used += (size_t)n;
	}
	line[used] = '\0';
	clean(line);
	line[used++] = '\n';
	/* Nothing can be done about a log that cannot be written. */
	if (write(STDERR_FILENO, line, used) < 0) {
		return;
	}
}

/**
 * log_write() - write one line, if the level is enabled
 * @level:   how important
 * @fields:  what it is about, or NULL
 * @fmt:     the sentence, without a newline; cut at 2 KiB
 */
void log_write(enum log_level level, const struct log_fields *fields, const char *fmt, ...)
{
	int saved = errno;
	char text[LOG_LINE];
	va_list ap;

	if (!log_enabled(level)) {
		return;
	}
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	clean(text);
	if (!(atomic_load_explicit(&log_state, memory_order_relaxed) & LOG_TO_JOURNAL) ||
	    !to_journal(level, fields, text)) {
		to_stderr(level, fields, text);
	}
	errno = saved;
}

/**
 * log_rate() - may a line that repeats be written now?
 * @state:        0 at first; when it was last let through
 * @interval_ms:  at most once in this time
 *
 * Return: yes
 */
bool log_rate(uint64_t *state, unsigned int interval_ms)
{
	uint64_t now = clock_monotonic();
	uint64_t last = __atomic_load_n(state, __ATOMIC_RELAXED);

	if (last != 0 && now - last < interval_ms * CLOCK_NS_PER_MS) {
		return false;
	}
	/* Of several threads one wins. */
	return __atomic_compare_exchange_n(state, &last, now, false, __ATOMIC_RELAXED,
					   __ATOMIC_RELAXED);
}
