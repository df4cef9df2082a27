/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Value: implementation
 *
 * Thread: any      Owns: see value.h      Locks: none
 */
#include "config/value.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "util/log.h"

#define LIST_SEPARATORS ", \t"

/* ---- words -------------------------------------------------------------------------------- */

/* Of a type that is one of some words; its values are enums, all of the size of an int. */
static const struct word {
	enum value_type type;
	const char *name;
	int value;
} words[] = {
	{VALUE_LEVEL, "error", LOG_LEVEL_ERROR},
	{VALUE_LEVEL, "warning", LOG_LEVEL_WARN},
	{VALUE_LEVEL, "info", LOG_LEVEL_INFO},
	{VALUE_LEVEL, "debug", LOG_LEVEL_DEBUG},
	{VALUE_TRANSPORT, "auto", CONFIG_TRANSPORT_AUTO},
	{VALUE_TRANSPORT, "rdma", CONFIG_TRANSPORT_RDMA},
	{VALUE_TRANSPORT, "tcp", CONFIG_TRANSPORT_TCP},
	{VALUE_REQUIRE, "", CONFIG_REQUIRE_NOTHING},
	{VALUE_REQUIRE, "rdma", CONFIG_REQUIRE_RDMA},
	{VALUE_GPU, "auto", CONFIG_GPU_AUTO},
	{VALUE_GPU, "off", CONFIG_GPU_OFF},
};
static_assert(sizeof(enum log_level) == sizeof(int), "words are read and written as an int");
static_assert(sizeof(enum config_transport) == sizeof(int), "as above");
static_assert(sizeof(enum config_require) == sizeof(int), "as above");

static const char suffixes[] = "KMGT";

/* See value.h. */
void value_allowed(const struct config_key *key, char *buf, size_t size)
{
	switch (key->type) {
	case VALUE_TEXT:
		snprintf(buf, size, "%" PRId64 " to %" PRId64 " bytes of text", key->min, key->max);
		break;
	case VALUE_LIST:
		snprintf(buf, size, "up to %" PRId64 " items with commas or spaces between them",
			 key->max);
		break;
	case VALUE_GROUP:
		snprintf(buf, size, "a group's name or number, or nothing");
		break;
	case VALUE_SIZE:
		snprintf(buf, size,
			 "a number of bytes, K, M, G or T behind it if you like, or "
			 "unlimited");
		break;
	case VALUE_AUTO_SIZE:
		snprintf(buf, size,
			 "auto, a number of bytes, K, M, G or T behind it if you like, or "
			 "unlimited");
		break;
	case VALUE_MODE:
		snprintf(buf, size, "permissions in octal, %04o to %04o", (unsigned int)key->min,
			 (unsigned int)key->max);
		break;
	case VALUE_LEVEL:
		snprintf(buf, size, "error, warning, info or debug");
		break;
	case VALUE_TRANSPORT:
		snprintf(buf, size, "auto, rdma or tcp");
		break;
	case VALUE_REQUIRE:
		snprintf(buf, size, "rdma, or nothing");
		break;
	case VALUE_GPU:
		snprintf(buf, size, "auto or off");
		break;
	case VALUE_AUTO:
		snprintf(buf, size, "auto, or a number, %" PRId64 " to %" PRId64, key->min,
			 key->max);
		break;
	case VALUE_U32:
	case VALUE_I32:
	case VALUE_COUNT_:
		snprintf(buf, size, "a number, %" PRId64 " to %" PRId64, key->min, key->max);
		break;
	}
}

static int refuse(const struct config_key *key, const char *text, const char *why, char *err,
		  size_t size)
{
	char allowed[160];

	value_allowed(key, allowed, sizeof(allowed));
	snprintf(err, size, "'%.80s' %s; allowed: %s", text, why, allowed);
	return VALUE_E_INVALID;
}

/* ---- parsing ------------------------------------------------------------------------------ */

/* Return: the whole of @text was a number of @base (no sign but '-', no space). */
static bool read_number(const char *text, int base, int64_t *ret)
{
	const char *digits = text + (text[0] == '-');
	char *end;
	long long v;

	if (!isdigit((unsigned char)digits[0])) {
		return false;
	}
	errno = 0;
	v = strtoll(text, &end, base);
	if (errno != 0 || *end != '\0') {
		return false;
	}
	*ret = v;
	return true;
}

static int parse_number(const struct config_key *key, const char *text, int base, int64_t *ret,
			char *err, size_t size)
{
	int64_t v;

	if (!read_number(text, base, &v)) {
		return refuse(key, text, "is not a number", err, size);
	}
	if (v < key->min || v > key->max) {
		return refuse(key, text, "is out of range", err, size);
	}
	*ret = v;
	return 0;
}

static int parse_size(const struct config_key *key, const char *text, uint64_t *ret, char *err,
		      size_t size)
{
	char digits[24];
	size_t n = strlen(text);
	unsigned int shift = 0;
	const char *suffix;
	int64_t v;

	if (strcmp(text, "unlimited") == 0) {
		*ret = UINT64_MAX;
		return 0;
	}
	suffix = n > 0 ? strchr(suffixes, toupper((unsigned char)text[n - 1])) : NULL;
	if (suffix && *suffix != '\0') {
		shift = 10 * (unsigned int)(suffix - suffixes + 1);
		n--;
	}
	if (n == 0 || n >= sizeof(digits)) {
		return refuse(key, text, "is not a size", err, size);
	}
	memcpy(digits, text, n);
	digits[n] = '\0';
	if (!read_number(digits, 10, &v)) {
		return refuse(key, text, "is not a size", err, size);
	}
	if (v < 0 || v > INT64_MAX >> shift || v << shift < key->min || v << shift > key->max) {
		return refuse(key, text, "is out of range", err, size);
	}
	*ret = (uint64_t)v << shift;
	return 0;
}

static int parse_auto(const struct config_key *key, const char *text, int32_t *ret, char *err,
		      size_t size)
{
	int64_t v = VALUE_IS_AUTO;
	int r = strcmp(text, "auto") == 0 ? 0 : parse_number(key, text, 10, &v, err, size);

	*ret = (int32_t)v;
	return r;
}

static int parse_word(const struct config_key *key, const char *text, int *ret, char *err,
		      size_t size)
{
	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		if (words[i].type == key->type && strcmp(text, words[i].name) == 0) {
			*ret = words[i].value;
			return 0;
		}
	}
	return refuse(key, text, key->type == VALUE_LEVEL ? "is no level" : "is none of its words",
		      err, size);
}

static int copy_text(const struct config_key *key, const char *text, char **ret, char *err,
		     size_t size)
{
	size_t n = strlen(text);
	char *copy;

	if ((int64_t)n < key->min || (int64_t)n > key->max) {
		return refuse(key, text, n == 0 ? "is empty" : "has the wrong length", err, size);
	}
	copy = strdup(text);
	if (!copy) {
		return err_origin(-ENOMEM);
	}
	*ret = copy;
	return 0;
}

static void list_clear(struct value_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		free(list->items[i]);
	}
	free(list->items);
	*list = (struct value_list){0};
}

static int list_add(struct value_list *list, const char *item, size_t n)
{
	char **items;

	items = realloc(list->items, (list->count + 1) * sizeof(*items));
	if (!items) {
		return err_origin(-ENOMEM);
	}
	list->items = items;
	items[list->count] = strndup(item, n);
	if (!items[list->count]) {
		return err_origin(-ENOMEM);
	}
	list->count++;
	return 0;
}

static int parse_list(const struct config_key *key, const char *text, struct value_list *ret,
		      char *err, size_t size)
{
	struct value_list list = {0};
	const char *at = text;
	int r = 0;

	for (;;) {
		size_t n;

		at += strspn(at, LIST_SEPARATORS);
		n = strcspn(at, LIST_SEPARATORS);
		if (n == 0 || r != 0) {
			break;
		}
		if ((int64_t)list.count >= key->max) {
			r = refuse(key, text, "has too many items", err, size);
			break;
		}
		r = list_add(&list, at, n);
		at += n;
	}
	if (r != 0) {
		list_clear(&list);
		return err_trace(r);
	}
	*ret = list;
	return 0;
}

/* A value on its own, large enough for every type. */
union any {
	char *text;
	struct value_list list;
	struct value_group group;
	uint32_t u32;
	int32_t i32;
	uint64_t size;
	int word;
};

static int parse_any(const struct config_key *key, const char *text, union any *ret, char *err,
		     size_t size)
{
	int64_t v = 0;
	int r;

	switch (key->type) {
	case VALUE_TEXT:
		return err_trace(copy_text(key, text, &ret->text, err, size));
	case VALUE_LIST:
		return err_trace(parse_list(key, text, &ret->list, err, size));
	case VALUE_GROUP:
		ret->group.gid = -1;
		return err_trace(copy_text(key, text, &ret->group.name, err, size));
	case VALUE_SIZE:
		return parse_size(key, text, &ret->size, err, size);
	case VALUE_AUTO_SIZE:
		/* 0 already */
		return strcmp(text, "auto") == 0 ? 0 : parse_size(key, text, &ret->size, err, size);
	case VALUE_LEVEL:
	case VALUE_TRANSPORT:
	case VALUE_REQUIRE:
	case VALUE_GPU:
		return parse_word(key, text, &ret->word, err, size);
	case VALUE_AUTO:
		return parse_auto(key, text, &ret->i32, err, size);
	case VALUE_MODE:
		r = parse_number(key, text, 8, &v, err, size);
		ret->u32 = (uint32_t)v;
		return r;
	case VALUE_I32:
		r = parse_number(key, text, 10, &v, err, size);
		ret->i32 = (int32_t)v;
		return r;
	case VALUE_U32:
	case VALUE_COUNT_:
		break;
	}
	r = parse_number(key, text, 10, &v, err, size);
	ret->u32 = (uint32_t)v;
	return r;
}

static size_t size_of(enum value_type type)
{
	switch (type) {
	case VALUE_TEXT:
		return sizeof(char *);
	case VALUE_LIST:
		return sizeof(struct value_list);
	case VALUE_GROUP:
		return sizeof(struct value_group);
	case VALUE_SIZE:
	case VALUE_AUTO_SIZE:
		return sizeof(uint64_t);
	case VALUE_LEVEL:
	case VALUE_TRANSPORT:
	case VALUE_REQUIRE:
	case VALUE_GPU:
		return sizeof(int);
	case VALUE_U32:
	case VALUE_I32:
	case VALUE_AUTO:
	case VALUE_MODE:
	case VALUE_COUNT_:
		break;
	}
	return sizeof(uint32_t);
}

/* See value.h. */
int value_parse(const struct config_key *key, const char *text, void *dest, char *err, size_t size)
{
	union any v = {0};
	int r;

	r = parse_any(key, text, &v, err, size);
	if (r != 0) {
		return err_trace(r);
	}
	value_free(key, dest);
	memcpy(dest, &v, size_of(key->type));
	return 0;
}

/* ---- the rest ----------------------------------------------------------------------------- */

static char *format_list(const struct value_list *list)
{
	size_t size = 1, used = 0;
	char *text;

	for (size_t i = 0; i < list->count; i++) {
		size += strlen(list->items[i]) + 2;
	}
	text = malloc(size);
	if (!text) {
		return NULL;
	}
	text[0] = '\0';
	for (size_t i = 0; i < list->count; i++) {
		used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "",
					 list->items[i]);
	}
	return text;
}

static void format_size(uint64_t v, char *buf, size_t size)
{
	unsigned int i = 0;

	if (v == UINT64_MAX) {
		snprintf(buf, size, "unlimited");
		return;
	}
	while (v > 0 && v % 1024 == 0 && i < strlen(suffixes)) {
		v /= 1024;
		i++;
	}
	if (i == 0) {
		snprintf(buf, size, "%" PRIu64, v);
	} else {
		snprintf(buf, size, "%" PRIu64 "%c", v, suffixes[i - 1]);
	}
}

/* See value.h. */
char *value_format(const struct config_key *key, const void *value)
{
	char buf[32] = "";

	switch (key->type) {
	case VALUE_TEXT:
		return strdup(*(char *const *)value);
	case VALUE_LIST:
		return format_list(value);
	case VALUE_GROUP:
		return strdup(((const struct value_group *)value)->name);
	case VALUE_AUTO_SIZE:
		if (*(const uint64_t *)value == 0) {
			return strdup("auto");
		}
		/* fall through */
	case VALUE_SIZE:
		format_size(*(const uint64_t *)value, buf, sizeof(buf));
		break;
	case VALUE_LEVEL:
	case VALUE_TRANSPORT:
	case VALUE_REQUIRE:
	case VALUE_GPU:
		for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
			if (words[i].type == key->type && words[i].value == *(const int *)value) {
				return strdup(words[i].name);
			}
		}
		break;
	case VALUE_MODE:
		snprintf(buf, sizeof(buf), "%04o", *(const uint32_t *)value);
		break;
	case VALUE_AUTO:
		if (*(const int32_t *)value == VALUE_IS_AUTO) {
			return strdup("auto");
		}
		/* fall through */
	case VALUE_I32:
		snprintf(buf, sizeof(buf), "%" PRId32, *(const int32_t *)value);
		break;
	case VALUE_U32:
	case VALUE_COUNT_:
		snprintf(buf, sizeof(buf), "%" PRIu32, *(const uint32_t *)value);
		break;
	}
	return strdup(buf);
}

static bool list_equal(const struct value_list *a, const struct value_list *b)
{
	if (a->count != b->count) {
		return false;
	}
	for (size_t i = 0; i < a->count; i++) {
		if (strcmp(a->items[i], b->items[i]) != 0) {
			return false;
		}
	}
	return true;
}

/* See value.h. */
bool value_equal(const struct config_key *key, const void *a, const void *b)
{
	switch (key->type) {
	case VALUE_TEXT:
		return strcmp(*(char *const *)a, *(char *const *)b) == 0;
	case VALUE_LIST:
		return list_equal(a, b);
	case VALUE_GROUP: {
		const struct value_group *x = a, *y = b;

		return strcmp(x->name, y->name) == 0 && x->gid == y->gid;
	}
	default:
		return memcmp(a, b, size_of(key->type)) == 0;
	}
}

/* See value.h. */
void value_swap(const struct config_key *key, void *a, void *b)
{
	size_t n = size_of(key->type);
	union any v;

	memcpy(&v, a, n);
	memcpy(a, b, n);
	memcpy(b, &v, n);
}

/* See value.h. */
void value_free(const struct config_key *key, void *value)
{
	switch (key->type) {
	case VALUE_TEXT:
		free(*(char **)value);
		*(char **)value = NULL;
		break;
	case VALUE_GROUP: {
		struct value_group *group = value;

		free(group->name);
		group->name = NULL;
		break;
	}
	case VALUE_LIST:
		list_clear(value);
		break;
	default:
		break;
	}
}
