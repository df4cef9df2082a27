/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Docs: the sample file and rocecommd.conf(5) say what config_keys.def says
 *
 * Both are rendered from the table here and compared with what is in the tree. After a change of
 * the table: ROCECOMM_UPDATE_DOCS=1 tests/unit/test_config_docs
 */
#include <criterion/criterion.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"

#define MAN_BEGIN ".\\\" keys begin"
#define MAN_END ".\\\" keys end\n"

/* Sections in the order of the documents. */
static const struct {
	const char *name, *title, *help;
} sections[] = {
	{"daemon", "[daemon]", "This host's daemon and its clients."},
	{"peer", "[peer]", "Daemons of other hosts."},
	{"rdma", "[rdma]", "RDMA devices and what travels over them."},
	{"tenant", "[tenant default]",
	 "Limits of everybody who is in no other tenant. More of these sections, each with a name "
	 "of its own and a list of users, may follow."},
};

/*
 * Prints @text with lines of up to 78 bytes, each after @prefix; without one, for a man page, each
 * sentence on a new line.
 */
static void wrap(FILE *out, const char *prefix, const char *text)
{
	size_t column = 0, room = 78 - strlen(prefix);
	bool sentence = false;

	while (*text != '\0') {
		size_t n = strcspn(text, " ");

		if (column > 0 && (column + 1 + n > room || sentence)) {
			fputc('\n', out);
			column = 0;
		}
		column += (size_t)fprintf(out, "%s%.*s", column > 0 ? " " : prefix, (int)n, text) -
			  (column > 0 ? 0 : strlen(prefix));
		sentence = prefix[0] == '\0' && text[n - 1] == '.';
		text += n;
		text += strspn(text, " ");
	}
	fputc('\n', out);
}

typedef void (*key_fn)(FILE *out, const struct config_key *key);

static void each_key(FILE *out, const char *section, key_fn fn)
{
	for (size_t i = 0; i < CONFIG_NKEYS; i++) {
		if (strcmp(config_keys[i].section, section) == 0) {
			fn(out, &config_keys[i]);
		}
	}
	for (size_t i = 0; strcmp(section, "tenant") == 0 && i < CONFIG_NTENANT_KEYS; i++) {
		fn(out, &config_tenant_keys[i]);
	}
}

static void facts(const struct config_key *key, char *buf, size_t size)
{
	char allowed[160];

	value_allowed(key, allowed, sizeof(allowed));
	snprintf(buf, size, "Allowed: %s. Changes at a %s.", allowed,
		 key->runtime ? "reload" : "restart");
}

static void sample_key(FILE *out, const struct config_key *key)
{
	char text[512];

	fputc('\n', out);
	wrap(out, "# ", key->help);
	facts(key, text, sizeof(text));
	wrap(out, "# ", text);
	/* The default tenant has no list of users. */
	fprintf(out, "#%s =%s%s\n", key->name, key->fallback[0] != '\0' ? " " : "", key->fallback);
}

static void render_sample(FILE *out)
{
	fputs("# SPDX-License-Identifier: Apache-2.0\n"
	      "# rocecommd.conf: every key of rocecommd with its default; see rocecommd.conf(5).\n"
	      "# The daemon needs no file. Copy this one to /etc/rocecomm/rocecommd.conf, take "
	      "away\n"
	      "# the # in front of what you change, and let `rocecommd --check` look at it.\n",
	      out);
	for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
		fputc('\n', out);
		wrap(out, "# ", sections[i].help);
		fprintf(out, "%s\n", sections[i].title);
		each_key(out, sections[i].name, sample_key);
	}
}

static void man_key(FILE *out, const struct config_key *key)
{
	char text[512];

	fprintf(out, ".It Cm %s\n", key->name);
	wrap(out, "", key->help);
	facts(key, text, sizeof(text));
	wrap(out, "", text);
	if (key->fallback[0] == '\0') {
		fputs("Default: empty.\n", out);
	} else {
		fprintf(out, "Default:\n.Li %s .\n", key->fallback);
	}
}

static void render_man(FILE *out)
{
	for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
		fprintf(out, ".Sh [%s%s] KEYS\n", sections[i].name,
			strcmp(sections[i].name, "tenant") == 0 ? " NAME" : "");
		fputs(".Bl -tag -width Ds\n", out);
		each_key(out, sections[i].name, man_key);
		fputs(".El\n", out);
	}
}

static void path_of(const char *name, char *buf, size_t size)
{
	char file[] = __FILE__;

	/* Tests run in the build directory, which this is relative to. */
	snprintf(buf, size, "%s/../../../%s", dirname(file), name);
}

static char *read_file(const char *name)
{
	char path[PATH_MAX];
	char *text = calloc(1, 1 << 17);
	FILE *in;

	path_of(name, path, sizeof(path));
	in = fopen(path, "r");
	cr_assert(in, "%s cannot be opened from the build directory", path);
	cr_assert_lt(fread(text, 1, (1 << 17) - 1, in), (1 << 17) - 1);
	fclose(in);
	return text;
}

static void compare(const char *name, const char *expected)
{
	char *have = read_file(name);
	char path[PATH_MAX];
	size_t line = 1;

	if (getenv("ROCECOMM_UPDATE_DOCS")) {
		FILE *out;

		path_of(name, path, sizeof(path));
		out = fopen(path, "w");
		cr_assert(out);
		fputs(expected, out);
		fclose(out);
	} else if (strcmp(have, expected) != 0) {
		for (size_t i = 0; have[i] != '\0' && have[i] == expected[i]; i++) {
			line += have[i] == '\n';
		}
		cr_assert_fail("%s differs from config_keys.def in line %zu; run this test with "
			       "ROCECOMM_UPDATE_DOCS=1",
			       name, line);
	}
	free(have);
}

Test(docs, sample_has_every_key)
{
	char *text;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	render_sample(out);
	fclose(out);
	compare("systemd/rocecommd.conf", text);
	free(text);
}

Test(docs, man_page_has_every_key)
{
	char *page = read_file("tools/man/rocecommd.conf.5");
	char *begin = strstr(page, MAN_BEGIN), *end = strstr(page, MAN_END);
	char *text;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	cr_assert(begin && end && begin < end);
	begin = strchr(begin, '\n') + 1;
	fwrite(page, 1, (size_t)(begin - page), out);
	render_man(out);
	fputs(end, out);
	fclose(out);
	compare("tools/man/rocecommd.conf.5", text);
	free(text);
	free(page);
}

/* With every # in front of a key taken away it is still a configuration without errors. */
Test(docs, sample_is_valid)
{
	char *text = read_file("systemd/rocecommd.conf");
	struct config_report report = {0};
	struct config *c;

	for (size_t i = 1; text[i] != '\0'; i++) {
		if (text[i - 1] == '\n' && text[i] == '#' && text[i + 1] != ' ') {
			text[i] = strncmp(text + i, "#users", 6) == 0 ? '#' : ' ';
		}
	}
	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_parse(c, "sample", text, strlen(text), &report), 0, "%s", report.text);
	cr_assert_eq(config_resolve(c, &report), 0, "%s", report.text);
	config_free(c);
	free(text);
}
