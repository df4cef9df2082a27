/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Snapshot: implementation
 *
 * Thread: main      Owns: see snapshot.h      Locks: none
 */
#include "tools/rocectl/snapshot.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/base.h"

int snapshot_take(struct admin *admin, struct snapshot *ret)
{
	bool own;
	char *text;
	int r;

	r = admin_status(admin, &text, &own);
	if (r == ROCECTL_OK) {
		r = snapshot_parse(text, ret);
	}
	if (r == ROCECTL_OK) {
		ret->own = own;
	}
	return r;
}

/* Control characters of ASCII, and those that UTF-8 has from U+0080 on. */
static bool is_control(const unsigned char *at)
{
	return *at < ' ' || *at == 0x7f || (at[0] == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f);
}

/* Names come from clients and other hosts. Return: false: no memory. */
static bool clean_string(json_t *value)
{
	char *text = strdup(json_string_value(value));
	bool changed = false;
	bool ok = text;

	for (char *at = text; at && *at; at++) {
		if (is_control((unsigned char *)at)) {
			if ((unsigned char)*at == 0xc2) {
				*at++ = '?';
			}
			*at = '?';
			changed = true;
		}
	}
	if (changed) {
		ok = json_string_set(value, text) == 0;
	}
	free(text);
	return ok;
}

static bool clean(json_t *value)
{
	const char *key;
	json_t *child;
	size_t i;
	bool ok = !json_is_string(value) || clean_string(value);

	json_array_foreach(value, i, child)
	{
		ok = ok && clean(child);
	}
	json_object_foreach(value, key, child)
	{
		ok = ok && clean(child);
	}
	return ok;
}

int snapshot_parse(char *text, struct snapshot *ret)
{
	struct snapshot s = {.text = text};
	json_error_t error;
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	s.at = (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
	s.root = json_loads(s.text, 0, &error);
	if (!s.root) {
		fprintf(stderr, "rocectl: the daemon's JSON cannot be read: %s (line %d)\n",
			error.text, error.line);
		free(s.text);
		return ROCECTL_FAILED;
	}
	if (!clean(s.root)) {
		fprintf(stderr, "rocectl: no memory\n");
		snapshot_deinit(&s);
		return ROCECTL_FAILED;
	}
	*ret = s;
	return ROCECTL_OK;
}

void snapshot_deinit(struct snapshot *s)
{
	json_decref(s->root);
	free(s->text);
	*s = (struct snapshot){0};
}

const char *snapshot_string(const json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	return value ? value : "";
}

json_int_t snapshot_number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

const json_t *snapshot_same_comm(const struct snapshot *s, const json_t *comm)
{
	const char *uid = snapshot_string(comm, "uid");
	json_t *job, *other;
	size_t i, k;

	json_array_foreach(json_object_get(s->root, "jobs"), i, job)
	{
		json_array_foreach(json_object_get(job, "communicators"), k, other)
		{
			if (strcmp(uid, snapshot_string(other, "uid")) == 0) {
				return other;
			}
		}
	}
	return NULL;
}

bool snapshot_is_late(const json_t *comm, json_int_t ms)
{
	return snapshot_number(comm, "waiting_ms") >= ms &&
	       json_array_size(json_object_get(comm, "waiting_for")) > 0;
}

const char *text_bytes(double bytes, char *buf, size_t size)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	size_t unit = 0;

	while (bytes >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
		bytes /= 1024;
		unit++;
	}
	snprintf(buf, size, "%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
	return buf;
}

const char *text_ms(json_int_t ms, char *buf, size_t size)
{
	if (ms < 1000) {
		snprintf(buf, size, "%lld ms", (long long)ms);
	} else if (ms < 120000) {
		snprintf(buf, size, "%.1f s", (double)ms / 1000);
	} else if (ms < 7200000) {
		snprintf(buf, size, "%lld min", (long long)(ms / 60000));
	} else {
		snprintf(buf, size, "%lld h", (long long)(ms / 3600000));
	}
	return buf;
}
