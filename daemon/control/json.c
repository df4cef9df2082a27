/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * JSON: implementation
 *
 * Thread: any, one user at a time      Owns: its buffer      Locks: none
 */
#include "control/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

#define JSON_FIRST_ROOM 1024

void json_init(struct json *j)
{
	*j = (struct json){0};
}

void json_deinit(struct json *j)
{
	free(take_ptr(j->text));
}

static void put(struct json *j, const char *data, size_t size)
{
	if (j->failed) {
		return;
	}
	if (j->size + size + 1 > j->room) {
		size_t room = MAX(MAX(2 * j->room, (size_t)JSON_FIRST_ROOM), j->size + size + 1);
		char *text = realloc(j->text, room);

		if (!text) {
			j->failed = true;
			return;
		}
		j->text = text;
		j->room = room;
	}
	memcpy(j->text + j->size, data, size);
	j->size += size;
	j->text[j->size] = '\0';
}

static void put_text(struct json *j, const char *text)
{
	put(j, text, strlen(text));
}

/* Length of the UTF-8 sequence at @s, 0 when it is none (overlong, surrogate, cut off). */
static size_t utf8_length(const unsigned char *s)
{
	uint32_t code;
	size_t n;

	if (s[0] < 0x80) {
		return 1;
	}
	n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	if (s[0] < 0xc2 || s[0] > 0xf4) {
		return 0;
	}
	code = s[0] & (0xffu >> (n + 1));
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80) {
			return 0;
		}
		code = code << 6 | (s[i] & 0x3f);
	}
	if ((n == 3 && code < 0x800) || (n == 4 && code < 0x10000) || code > 0x10ffff ||
	    (code >= 0xd800 && code <= 0xdfff)) {
		return 0;
	}
	return n;
}

static void put_quoted(struct json *j, const char *value)
{
	const unsigned char *s = (const unsigned char *)value;

	put_text(j, "\"");
	while (*s != '\0') {
		size_t n = utf8_length(s);
		char escape[8];

		if (n == 0) {
			put_text(j, "\\ufffd");
			s++;
		} else if (*s == '"' || *s == '\\') {
			escape[0] = '\\';
			escape[1] = (char)*s;
			put(j, escape, 2);
			s++;
		} else if (*s < 0x20 || *s == 0x7f) {
			snprintf(escape, sizeof(escape), "\\u%04x", *s);
			put(j, escape, 6);
			s++;
		} else {
			put(j, (const char *)s, n);
			s += n;
		}
	}
	put_text(j, "\"");
}

static void put_key(struct json *j, const char *key)
{
	if (j->comma) {
		put_text(j, ",");
	}
	if (key) {
		put_quoted(j, key);
		put_text(j, ":");
	}
	j->comma = true;
}

void json_open(struct json *j, const char *key)
{
	put_key(j, key);
	put_text(j, "{");
	j->comma = false;
}

void json_close(struct json *j)
{
	put_text(j, "}");
	j->comma = true;
}

void json_open_array(struct json *j, const char *key)
{
	put_key(j, key);
	put_text(j, "[");
	j->comma = false;
}

void json_close_array(struct json *j)
{
	put_text(j, "]");
	j->comma = true;
}

void json_string(struct json *j, const char *key, const char *value)
{
	put_key(j, key);
	put_quoted(j, value);
}

void json_uint(struct json *j, const char *key, uint64_t value)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%" PRIu64, value);
	put_key(j, key);
	put_text(j, digits);
}

void json_bool(struct json *j, const char *key, bool value)
{
	put_key(j, key);
	put_text(j, value ? "true" : "false");
}

void json_null(struct json *j, const char *key)
{
	put_key(j, key);
	put_text(j, "null");
}

void json_text(struct json *j, const char *key, const char *value)
{
	if (value && value[0] != '\0') {
		json_string(j, key, value);
	} else {
		json_null(j, key);
	}
}

void json_hex(struct json *j, const char *key, const uint8_t *data, size_t size)
{
	put_key(j, key);
	put_text(j, "\"");
	for (size_t i = 0; i < size; i++) {
		char digits[4];

		snprintf(digits, sizeof(digits), "%02x", data[i]);
		put(j, digits, 2);
	}
	put_text(j, "\"");
}

/* See json.h. */
int json_finish(struct json *j, char **ret)
{
	if (j->failed || !j->text) {
		return -ENOMEM;
	}
	*ret = take_ptr(j->text);
	*j = (struct json){0};
	return 0;
}
