/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ini: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "config/ini.h"

#include <stdbool.h>
#include <string.h>

#include "proto/base.h"

struct reader {
	ini_item_fn fn;
	void *arg;
	unsigned int line;
	char section[64];
	char name[128];
	char buf[INI_MAX_LINE + 1]; /* the line being read */
};

static bool blank(char c)
{
	return c == ' ' || c == '\t';
}

/* Cuts blanks at both ends, in place. */
static char *trim(char *s)
{
	size_t n;

	while (blank(*s)) {
		s++;
	}
	n = strlen(s);
	while (n > 0 && blank(s[n - 1])) {
		n--;
	}
	s[n] = '\0';
	return s;
}

static void cut_comment(char *s)
{
	for (size_t i = 0; s[i] != '\0'; i++) {
		if ((s[i] == '#' || s[i] == ';') && (i == 0 || blank(s[i - 1]))) {
			s[i] = '\0';
			return;
		}
	}
}

static int tell(struct reader *r, const char *error)
{
	struct ini_item item = {.line = r->line, .error = error};

	return r->fn(r->arg, &item);
}

/* "[section]" or "[section name]", without the brackets' outside. */
static int read_section(struct reader *r, char *s)
{
	struct ini_item item = {.line = r->line, .section = r->section, .name = r->name};
	size_t n = strlen(s);
	char *name;

	/* What follows is in no section that is known, and is not told again line by line. */
	strcpy(r->section, "?");
	r->name[0] = '\0';
	if (s[n - 1] != ']') {
		return tell(r, "the section's ] is missing");
	}
	s[n - 1] = '\0';
	s = trim(s + 1);
	name = s + strcspn(s, " \t");
	if (*name != '\0') {
		*name++ = '\0';
		name = trim(name);
	}
	if (*s == '\0' || strlen(s) >= sizeof(r->section) || strlen(name) >= sizeof(r->name)) {
		return tell(r, "the section's name is empty or too long");
	}
	strcpy(r->section, s);
	strcpy(r->name, name);
	return r->fn(r->arg, &item);
}

static int read_line(struct reader *r)
{
	struct ini_item item = {.line = r->line, .section = r->section, .name = r->name};
	char *s, *equals;

	for (s = r->buf; *s != '\0'; s++) {
		if (((unsigned char)*s < ' ' && *s != '\t') || *s == 0x7f) {
			return tell(r, "a control character; is this a text file?");
		}
	}
	cut_comment(r->buf);
	s = trim(r->buf);
	if (*s == '\0') {
		return 0;
	}
	if (*s == '[') {
		return read_section(r, s);
	}
	equals = strchr(s, '=');
	if (!equals || equals == s) {
		return tell(r, "neither '[section]' nor 'key = value'");
	}
	*equals = '\0';
	item.key = trim(s);
	item.value = trim(equals + 1);
	return r->fn(r->arg, &item);
}

/**
 * ini_parse() - read all lines
 * @text:  borrowed, any bytes
 * @size:  of it
 * @fn:    called for each section, key and error, in order
 * @arg:   for @fn
 *
 * Return: 0, or what @fn returned
 */
int ini_parse(const char *text, size_t size, ini_item_fn fn, void *arg)
{
	struct reader r = {.fn = fn, .arg = arg};
	size_t at = 0;
	int ret = 0;

	while (at < size && ret == 0) {
		const char *newline = memchr(text + at, '\n', size - at);
		size_t n = newline ? (size_t)(newline - (text + at)) : size - at;
		size_t next = at + n + 1;

		r.line++;
		if (n > 0 && text[at + n - 1] == '\r') {
			n--;
		}
		if (n > INI_MAX_LINE) {
			ret = tell(&r, "the line is longer than 8192 bytes");
		} else if (memchr(text + at, '\0', n)) {
			ret = tell(&r, "a zero byte; is this a text file?");
		} else {
			memcpy(r.buf, text + at, n);
			r.buf[n] = '\0';
			ret = read_line(&r);
		}
		at = next;
	}
	return ret;
}
