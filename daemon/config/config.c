/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Config: implementation
 *
 * Thread: control      Owns: see config.h      Locks: none
 */
#include "config/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/ini.h"

#define ROW(section_, struct_, name_, type_, default_, min_, max_, runtime_, help_) \
	{                                                                           \
		.section = section_,                                                \
		.name = #name_,                                                     \
		.type = VALUE_##type_,                                              \
		.offset = offsetof(struct_, name_),                                 \
		.fallback = default_,                                               \
		.min = min_,                                                        \
		.max = max_,                                                        \
		.runtime = runtime_,                                                \
		.help = help_,                                                      \
	},

const struct config_key config_keys[CONFIG_NKEYS] = {
#define CONFIG_KEY(section, ...) ROW(section, struct config, __VA_ARGS__)
#define CONFIG_TENANT_KEY(...)
#include "config/config_keys.def"
#undef CONFIG_KEY
#undef CONFIG_TENANT_KEY
};

const struct config_key config_tenant_keys[CONFIG_NTENANT_KEYS] = {
#define CONFIG_KEY(...)
#define CONFIG_TENANT_KEY(...) ROW("tenant", struct config_tenant, __VA_ARGS__)
#include "config/config_keys.def"
#undef CONFIG_KEY
#undef CONFIG_TENANT_KEY
};

static void *value_at(void *base, const struct config_key *key)
{
	return (char *)base + key->offset;
}

/* ---- report ------------------------------------------------------------------------------- */

/* See config.h. */
void config_report_deinit(struct config_report *report)
{
	free(report->text);
	*report = (struct config_report){0};
}

/* See config.h. A report that finds no memory still counts. */
void config_report_add(struct config_report *report, const char *fmt, ...)
{
	cleanup_free char *line = NULL;
	va_list ap;
	char *text;
	int n;

	report->errors++;
	if (report->errors > CONFIG_MAX_ERRORS) {
		return;
	}
	va_start(ap, fmt);
	n = vasprintf(&line, fmt, ap);
	va_end(ap);
	if (n < 0) {
		line = NULL;
		return;
	}
	text = realloc(report->text, report->length + (size_t)n + 2);
	if (!text) {
		return;
	}
	memcpy(text + report->length, line, (size_t)n);
	report->length += (size_t)n;
	text[report->length++] = '\n';
	text[report->length] = '\0';
	report->text = text;
}

/* ---- making ------------------------------------------------------------------------------- */

static void tenant_deinit(struct config_tenant *t)
{
	for (size_t i = 0; i < CONFIG_NTENANT_KEYS; i++) {
		value_free(&config_tenant_keys[i], value_at(t, &config_tenant_keys[i]));
	}
	free(t->name);
	free(t->uids);
}

static int set_defaults(const struct config_key *keys, size_t n, void *base)
{
	char err[256];
	int r;

	for (size_t i = 0; i < n; i++) {
		r = value_parse(&keys[i], keys[i].fallback, value_at(base, &keys[i]), err,
				sizeof(err));
		if (r != 0) {
			/* A default that its own row refuses is a bug. */
			return err_origin(r > 0 ? -ENOTRECOVERABLE : r);
		}
	}
	return 0;
}

/* Adds a tenant with default values. */
static int add_tenant(struct config *c, const char *name)
{
	struct config_tenant *tenants;
	struct config_tenant t = {0};
	int r;

	tenants = realloc(c->tenants, (c->ntenants + 1) * sizeof(*tenants));
	if (!tenants) {
		return err_origin(-ENOMEM);
	}
	c->tenants = tenants;
	r = set_defaults(config_tenant_keys, CONFIG_NTENANT_KEYS, &t);
	if (r == 0) {
		t.name = strdup(name);
		r = t.name ? 0 : err_origin(-ENOMEM);
	}
	if (r < 0) {
		tenant_deinit(&t);
		return err_trace(r);
	}
	c->tenants[c->ntenants++] = t;
	return 0;
}

/* See config.h. */
int config_new(struct config **ret)
{
	struct config *c;
	int r;

	c = calloc(1, sizeof(*c));
	if (!c) {
		return err_origin(-ENOMEM);
	}
	r = set_defaults(config_keys, CONFIG_NKEYS, c);
	if (r == 0) {
		r = add_tenant(c, CONFIG_DEFAULT_TENANT);
	}
	if (r < 0) {
		config_free(c);
		return err_trace(r);
	}
	*ret = c;
	return 0;
}

/**
 * config_free() - free a configuration
 * @c:  consumed, may be NULL
 *
 * Return: NULL
 */
struct config *config_free(struct config *c)
{
	if (!c) {
		return NULL;
	}
	for (size_t i = 0; i < CONFIG_NKEYS; i++) {
		value_free(&config_keys[i], value_at(c, &config_keys[i]));
	}
	for (size_t i = 0; i < c->ntenants; i++) {
		tenant_deinit(&c->tenants[i]);
	}
	free(c->tenants);
	free(c->file);
	free(c);
	return NULL;
}

/* ---- parsing ------------------------------------------------------------------------------ */

struct parse {
	struct config *c;
	struct config_report *report;
	const char *file;
	bool skip; /* the section is not known: its keys are not looked at */
};

/* Levenshtein distance, for names of up to 63 bytes. */
static unsigned int distance(const char *a, const char *b)
{
	size_t n = strlen(b);
	unsigned int row[64];

	if (n >= ARRAY_SIZE(row) || strlen(a) >= ARRAY_SIZE(row)) {
		return UINT32_MAX;
	}
	for (unsigned int j = 0; j <= n; j++) {
		row[j] = j;
	}
	for (unsigned int i = 1; a[i - 1] != '\0'; i++) {
		unsigned int diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			unsigned int above = row[j];

			row[j] = MIN(MIN(above, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
			diagonal = above;
		}
	}
	return row[n];
}

static const struct config_key *nearest(const struct config_key *keys, size_t n, const char *name,
					const struct config_key *best, unsigned int *best_distance)
{
	for (size_t i = 0; i < n; i++) {
		unsigned int d = distance(name, keys[i].name);

		if (d < *best_distance) {
			*best_distance = d;
			best = &keys[i];
		}
	}
	return best;
}

/* The key is not one of @section: says which it may have been. */
static void unknown_key(struct parse *p, const struct ini_item *item)
{
	unsigned int d = UINT32_MAX;
	const struct config_key *key;

	key = nearest(config_keys, CONFIG_NKEYS, item->key, NULL, &d);
	key = nearest(config_tenant_keys, CONFIG_NTENANT_KEYS, item->key, key, &d);
	if (d == 0) {
		config_report_add(p->report, "%s:%u: %s does not belong in [%s]; move it to [%s%s]",
				  p->file, item->line, item->key, item->section, key->section,
				  strcmp(key->section, "tenant") == 0 ? " NAME" : "");
	} else if (d <= 2 + strlen(item->key) / 4) {
		config_report_add(p->report,
				  "%s:%u: there is no key '%.64s'; did you mean %s in [%s]?",
				  p->file, item->line, item->key, key->name, key->section);
	} else {
		config_report_add(
			p->report,
			"%s:%u: there is no key '%.64s'; rocecommd.conf(5) lists them all", p->file,
			item->line, item->key);
	}
}

/* Return: the index of the key in its table, or -1. */
static int find_key(const struct config_key *keys, size_t n, const char *section, const char *name)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0) {
			return (int)i;
		}
	}
	return -1;
}

static int set_value(struct parse *p, const struct ini_item *item, const struct config_key *key,
		     void *base, struct config_source *source)
{
	char err[512];
	int r;

	if (source->line != 0) {
		config_report_add(p->report,
				  "%s:%u: %s was set in line %u already; remove one of the two",
				  p->file, item->line, key->name, source->line);
		return 0;
	}
	r = value_parse(key, item->value, value_at(base, key), err, sizeof(err));
	if (r == VALUE_E_INVALID) {
		config_report_add(p->report, "%s:%u: %s: %s", p->file, item->line, key->name, err);
		r = 0;
	}
	source->line = item->line;
	return err_trace(r);
}

static int on_section(struct parse *p, const struct ini_item *item)
{
	struct config *c = p->c;
	bool tenant = strcmp(item->section, "tenant") == 0;

	p->skip = true;
	if (!tenant && strcmp(item->section, "daemon") != 0 && strcmp(item->section, "peer") != 0 &&
	    strcmp(item->section, "rdma") != 0) {
		config_report_add(p->report,
				  "%s:%u: there is no section [%s]; allowed: [daemon], [peer], "
				  "[rdma], [tenant NAME]",
				  p->file, item->line, item->section);
		return 0;
	}
	if (tenant != (item->name[0] != '\0')) {
		config_report_add(p->report, "%s:%u: section [%s] is written [%s]", p->file,
				  item->line, item->section,
				  tenant ? "tenant NAME" : item->section);
		return 0;
	}
	p->skip = false;
	if (!tenant) {
		return 0;
	}
	for (size_t i = 0; i < c->ntenants; i++) {
		if (strcmp(c->tenants[i].name, item->name) == 0) {
			return 0;
		}
	}
	if (c->ntenants >= CONFIG_MAX_TENANTS) {
		config_report_add(p->report, "%s:%u: more than %d tenants", p->file, item->line,
				  CONFIG_MAX_TENANTS);
		p->skip = true;
		return 0;
	}
	return err_trace(add_tenant(c, item->name));
}

static struct config_tenant *find_tenant(struct config *c, const char *name)
{
	for (size_t i = 0; i < c->ntenants; i++) {
		if (strcmp(c->tenants[i].name, name) == 0) {
			return &c->tenants[i];
		}
	}
	return NULL;
}

static int on_tenant_key(struct parse *p, const struct ini_item *item)
{
	struct config_tenant *t = find_tenant(p->c, item->name);
	int k = find_key(config_tenant_keys, CONFIG_NTENANT_KEYS, "tenant", item->key);

	if (k < 0) {
		unknown_key(p, item);
		return 0;
	}
	if (k == CONFIG_TENANT_KEY_users && strcmp(t->name, CONFIG_DEFAULT_TENANT) == 0) {
		config_report_add(p->report,
				  "%s:%u: [tenant default] is everybody who is in no other tenant; "
				  "remove users, or name the tenant otherwise",
				  p->file, item->line);
		return 0;
	}
	return err_trace(set_value(p, item, &config_tenant_keys[k], t, &t->source[k]));
}

static int on_item(void *arg, const struct ini_item *item)
{
	struct parse *p = arg;
	int k;

	if (item->error) {
		config_report_add(p->report, "%s:%u: %s", p->file, item->line, item->error);
		return 0;
	}
	if (!item->key) {
		return err_trace(on_section(p, item));
	}
	if (item->section[0] == '\0') {
		config_report_add(p->report,
				  "%s:%u: %s is in no section; put [daemon], [peer], [rdma] or "
				  "[tenant NAME] before it",
				  p->file, item->line, item->key);
		return 0;
	}
	if (p->skip || item->section[0] == '?') {
		return 0;
	}
	if (strcmp(item->section, "tenant") == 0) {
		return err_trace(on_tenant_key(p, item));
	}
	k = find_key(config_keys, CONFIG_NKEYS, item->section, item->key);
	if (k < 0) {
		unknown_key(p, item);
		return 0;
	}
	return err_trace(set_value(p, item, &config_keys[k], p->c, &p->c->source[k]));
}

/* See config.h. */
int config_parse(struct config *c, const char *name, const char *text, size_t size,
		 struct config_report *report)
{
	struct parse p = {.c = c, .report = report, .file = name};
	char *file;
	int r;

	file = strdup(name);
	if (!file) {
		return err_origin(-ENOMEM);
	}
	free(c->file);
	c->file = file;
	r = ini_parse(text, size, on_item, &p);
	if (r < 0) {
		return err_trace(r);
	}
	return report->errors > 0 ? CONFIG_E_INVALID : 0;
}

/* See config.h. */
int config_set(struct config *c, enum config_index k, const char *text, const char *origin,
	       struct config_report *report)
{
	const struct config_key *key = &config_keys[k];
	char err[512];
	int r;

	r = value_parse(key, text, value_at(c, key), err, sizeof(err));
	if (r == VALUE_E_INVALID) {
		config_report_add(report, "%s: %s: %s", origin, key->name, err);
		return CONFIG_E_INVALID;
	}
	if (r < 0) {
		return err_trace(r);
	}
	c->source[k] = (struct config_source){.origin = origin};
	return 0;
}

/* ---- looking ------------------------------------------------------------------------------ */

/* See config.h. */
const struct config_tenant *config_tenant_of(const struct config *c, uid_t uid)
{
	for (size_t i = 1; i < c->ntenants; i++) {
		for (size_t k = 0; c->tenants[i].uids && k < c->tenants[i].users.count; k++) {
			if (c->tenants[i].uids[k] == uid) {
				return &c->tenants[i];
			}
		}
	}
	return &c->tenants[0];
}

/* See config.h. */
int config_item(const struct config *c, size_t index, struct config_item *ret)
{
	const struct config_source *source;
	struct config_item item = {.name = ""};
	const void *base = c;

	if (index < CONFIG_NKEYS) {
		item.key = &config_keys[index];
		source = &c->source[index];
		snprintf(item.name, sizeof(item.name), "%s.%s", item.key->section, item.key->name);
	} else {
		size_t t = (index - CONFIG_NKEYS) / CONFIG_NTENANT_KEYS;
		size_t k = (index - CONFIG_NKEYS) % CONFIG_NTENANT_KEYS;

		if (t >= c->ntenants) {
			return CONFIG_E_INVALID;
		}
		base = &c->tenants[t];
		item.key = &config_tenant_keys[k];
		source = &c->tenants[t].source[k];
		snprintf(item.name, sizeof(item.name), "tenant %s.%s", c->tenants[t].name,
			 item.key->name);
	}
	if (source->origin) {
		snprintf(item.source, sizeof(item.source), "%s", source->origin);
	} else if (source->line > 0) {
		snprintf(item.source, sizeof(item.source), "%s:%u", c->file, source->line);
	} else {
		snprintf(item.source, sizeof(item.source), "default");
	}
	item.value = value_format(item.key, (const char *)base + item.key->offset);
	if (!item.value) {
		return err_origin(-ENOMEM);
	}
	*ret = item;
	return 0;
}
