/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * JSON: a writer, nothing more
 *
 * Commas and quotes are put where they belong; names of clients and jobs are escaped, and bytes
 * that are not UTF-8 become U+FFFD, so that what a client calls itself cannot break a reader. A
 * failed allocation is remembered and reported at the end. Ours rather than a library's: it is a
 * page long, and the daemon parses no JSON.
 *
 * Thread: any, one user at a time      Owns: its buffer      Locks: none
 */
#ifndef ROCECOMM_CONTROL_JSON_H
#define ROCECOMM_CONTROL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
	char *text;
	size_t size, room;
	bool comma; /* something stands before in this object or array */
	bool failed;
};

void json_init(struct json *j);
void json_deinit(struct json *j);

/* @key: NULL inside an array and for the outermost value; else a literal of ours. */
void json_open(struct json *j, const char *key);
void json_close(struct json *j);
void json_open_array(struct json *j, const char *key);
void json_close_array(struct json *j);
void json_string(struct json *j, const char *key, const char *value);
/* NULL and "" are null. */
void json_text(struct json *j, const char *key, const char *value);
void json_uint(struct json *j, const char *key, uint64_t value);
void json_bool(struct json *j, const char *key, bool value);
void json_null(struct json *j, const char *key);
/* Lower-case hexadecimal digits as a string. */
void json_hex(struct json *j, const char *key, const uint8_t *data, size_t size);

/* Return: 0 and the text (to be freed by the caller), or -ENOMEM. */
int json_finish(struct json *j, char **ret);

#endif
