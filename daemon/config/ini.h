/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ini: lines of a configuration file
 *
 * `[section name]`, `key = value`, comments behind # or ; at the start of a line or behind a space.
 * Knows no keys. Never gives up: a bad line is told and the next one is read.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_CONFIG_INI_H
#define ROCECOMM_CONFIG_INI_H

#include <stddef.h>

#define INI_MAX_LINE 8192

/* Texts are valid during the call only. */
struct ini_item {
	unsigned int line;
	const char *section; /* "" before the first */
	const char *name;    /* "x" of [tenant x], else "" */
	const char *key;     /* NULL: a section begins here */
	const char *value;
	const char *error; /* not NULL: what is wrong with the line; the others are unset */
};

/* A return other than 0 ends the reading and is returned. */
typedef int (*ini_item_fn)(void *arg, const struct ini_item *item);

int ini_parse(const char *text, size_t size, ini_item_fn fn, void *arg);

#endif
