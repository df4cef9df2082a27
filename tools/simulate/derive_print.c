/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * A derived table in the forms that somebody reads
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/simulate/derive.h"

/* COLL_REDUCE_SCATTER without its prefix. */
static const char *macro_name(const char *name, char *buf, size_t size)
{
	size_t i = 0;

	for (; name[i] && i + 1 < size; i++) {
		buf[i] = (char)(name[i] == '-' ? '_' : toupper((unsigned char)name[i]));
	}
	buf[i] = '\0';
	return buf;
}

static const char *bytes_text(uint64_t bytes, const char *units, char *buf, size_t size)
{
	unsigned int unit = 0;

	while (bytes % 1024 == 0 && unit < 2) {
		bytes /= 1024;
		unit++;
	}
	snprintf(buf, size, unit ? "%" PRIu64 "%s%c" : "%" PRIu64, bytes, units, " KM"[unit]);
	return buf;
}

static void print_def(const struct derived *d, const struct link_model *m, FILE *out)
{
	char kind[32], algo[32], bytes[32];

	fprintf(out,
		"/* SPDX-License-Identifier: Apache-2.0 */\n"
		"/* SPDX-FileCopyrightText: The rocecomm authors */\n\n"
		"/*\n"
		" * Selection: the built-in rules, derived by rocecomm-simulate data --derive=def\n"
		" *\n"
		" * Not written by hand: tests/unit/tools/test_derive.c derives them again and "
		"compares.\n"
		" * The link model is '%s':",
		m->name);
	for (size_t i = 0; i < link_nkeys; i++) {
		struct link_model copy = *m;

		fprintf(out, "%s%s %g",
			i % 5 ? ", "
			: i   ? ",\n * "
			      : "\n * ",
			link_keys[i].name, *link_value(&copy, &link_keys[i]));
	}
	fprintf(out,
		".\n"
		" * In the mean this table is %.1f %% slower than the fastest algorithm of every "
		"size and\n"
		" * number of hosts, at the worst %.0f %%.\n"
		" *\n"
		" * COLL_RULE(collective, algorithm, from so many hosts on, up to so many bytes)\n"
		" */\n",
		expm1(d->regret) * 100, expm1(d->worst) * 100);
	for (uint32_t i = 0; i < d->nrows; i++) {
		const struct coll_rule *rule = &d->rows[i];

		macro_name(coll_kind_name(rule->kind), kind, sizeof(kind));
		macro_name(coll_algo_name(rule->algo), algo, sizeof(algo));
		if (rule->max_bytes == UINT64_MAX) {
			snprintf(bytes, sizeof(bytes), "ANY");
		} else {
			bytes_text(rule->max_bytes, " * ", bytes, sizeof(bytes));
		}
		fprintf(out, "%sCOLL_RULE(%s, %s, %u, %s)\n",
			i == 0 || d->rows[i - 1].kind != rule->kind ? "\n" : "", kind, algo,
			rule->min_hosts, bytes);
	}
}

static void print_rules(const struct derived *d, FILE *out)
{
	char bytes[32];

	for (uint32_t i = 0; i < d->nrows; i++) {
		const struct coll_rule *rule = &d->rows[i];

		fprintf(out, "%s%s:%s", i ? " " : "", coll_kind_name(rule->kind),
			coll_algo_name(rule->algo));
		if (rule->min_hosts > 2) {
			fprintf(out, "@%u", rule->min_hosts);
		}
		if (rule->max_bytes != UINT64_MAX) {
			fprintf(out, "<=%s", bytes_text(rule->max_bytes, "", bytes, sizeof(bytes)));
		}
	}
	fputc('\n', out);
}

static void print_table(const struct derived *d, const struct link_model *m, FILE *out)
{
	char bytes[32];

	fprintf(out,
		"### Selection for %s\n\n| collective | hosts from | fastest, by bytes of a "
		"rank's message |\n|---|---|---|\n",
		m->name);
	for (uint32_t i = 0; i < d->nrows; i++) {
		const struct coll_rule *rule = &d->rows[i];
		const struct coll_rule *before = i ? rule - 1 : NULL;

		if (!before || before->kind != rule->kind || before->min_hosts != rule->min_hosts) {
			fprintf(out, "%s| %s | %u | ", i ? " |\n" : "", coll_kind_name(rule->kind),
				rule->min_hosts);
		} else {
			fputs(", ", out);
		}
		fputs(coll_algo_name(rule->algo), out);
		if (rule->max_bytes != UINT64_MAX) {
			bytes_text(rule->max_bytes, " ", bytes, sizeof(bytes));
			fprintf(out, " up to %s%s", bytes, rule->max_bytes % 1024 ? " B" : "iB");
		}
	}
	fprintf(out,
		"%s\nSlower than the fastest algorithm of every size and number of hosts by "
		"%.1f %% in the mean, %.0f %% at the worst; %" PRIu64 " events.\n",
		d->nrows ? " |\n" : "", expm1(d->regret) * 100, expm1(d->worst) * 100, d->events);
}

/**
 * derive_print() - print a derived table
 * @d, @m:  borrowed
 * @form:   which way
 * @out:    borrowed
 */
void derive_print(const struct derived *d, const struct link_model *m, enum derive_form form,
		  FILE *out)
{
	if (form == DERIVE_DEF) {
		print_def(d, m, out);
	} else if (form == DERIVE_RULES) {
		print_rules(d, out);
	} else {
		print_table(d, m, out);
	}
}
