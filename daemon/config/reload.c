/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reload: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "config/reload.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void append(char *buf, size_t size, const char *fmt, ...) attr_printf(3, 4);

static void append(char *buf, size_t size, const char *fmt, ...)
{
	size_t used = strlen(buf);
	va_list ap;

	if (used > 0 && used + 2 < size) {
		memcpy(buf + used, ", ", 3);
		used += 2;
	}
	va_start(ap, fmt);
	vsnprintf(buf + used, size - used, fmt, ap);
	va_end(ap);
}

static void name_change(const struct config_key *key, const void *old, const void *new, char *buf,
			size_t size)
{
	cleanup_free char *before = value_format(key, old);
	cleanup_free char *after = value_format(key, new);

	append(buf, size, "%s (%.40s -> %.40s)", key->name, before ? before : "?",
	       after ? after : "?");
}

static bool tenants_equal(const struct config *a, const struct config *b)
{
	if (a->ntenants != b->ntenants) {
		return false;
	}
	for (size_t i = 0; i < a->ntenants; i++) {
		const struct config_tenant *x = &a->tenants[i], *y = &b->tenants[i];

		if (strcmp(x->name, y->name) != 0) {
			return false;
		}
		for (size_t k = 0; k < CONFIG_NTENANT_KEYS; k++) {
			size_t at = config_tenant_keys[k].offset;

			if (!value_equal(&config_tenant_keys[k], (const char *)x + at,
					 (const char *)y + at)) {
				return false;
			}
		}
		/* A name may mean another number now. */
		if (memcmp(x->uids, y->uids, x->users.count * sizeof(*x->uids)) != 0) {
			return false;
		}
	}
	return true;
}

static void swap_tenants(struct config *a, struct config *b)
{
	struct config_tenant *tenants = a->tenants;
	size_t n = a->ntenants;

	a->tenants = b->tenants;
	a->ntenants = b->ntenants;
	b->tenants = tenants;
	b->ntenants = n;
}

/* See reload.h. */
void reload_apply(struct config *running, struct config *fresh, struct reload_result *ret)
{
	char *file = running->file;

	*ret = (struct reload_result){0};
	for (size_t k = 0; k < CONFIG_NKEYS; k++) {
		const struct config_key *key = &config_keys[k];
		void *a = (char *)running + key->offset;
		void *b = (char *)fresh + key->offset;

		if (value_equal(key, a, b)) {
			running->source[k] = fresh->source[k];
		} else if (key->runtime) {
			name_change(key, a, b, ret->applied_text, sizeof(ret->applied_text));
			value_swap(key, a, b);
			running->source[k] = fresh->source[k];
			ret->applied++;
		} else {
			/* The source stays that of the value in use. */
			name_change(key, a, b, ret->waiting_text, sizeof(ret->waiting_text));
			running->source[k] = (struct config_source){.origin = "before reload"};
			ret->waiting++;
		}
	}
	if (!tenants_equal(running, fresh)) {
		append(ret->applied_text, sizeof(ret->applied_text), "tenants");
		ret->applied++;
	}
	/* Also when equal, for the line numbers. */
	swap_tenants(running, fresh);
	running->file = fresh->file;
	fresh->file = file;
}
