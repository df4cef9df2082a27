/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Selection: which algorithm for how many bytes on how many hosts
 *
 * Everything that enters is known to all hosts alike, so all choose the same. (For alltoallv,
 * gatherv and scatterv the hosts know different counts, but there is only one algorithm.) The
 * built-in table is in the form of the rules that an operator may put before it, and read the same
 * way.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coll/coll.h"
#include "proto/base.h"

#define ANY UINT64_MAX
#define K 1024ull
#define M (1024 * K)

/*
 * For each collective by ascending size; rules for many hosts before those for fewer. Nobody wrote
 * these thresholds: the simulator derives them for TCP, see the file.
 */
static const struct coll_rule built_in[] = {
#define COLL_RULE(kind, algo, hosts, bytes) {COLL_##kind, COLL_ALGO_##algo, hosts, bytes},
#include "coll/select.def"
#undef COLL_RULE
};

/* The first rule that fits, or AUTO: none. A rule that says "auto" ends the search. */
static enum coll_algo first_match(const struct coll_rule *rules, size_t n, enum coll_kind kind,
				  uint64_t bytes, uint32_t nhosts)
{
	for (size_t i = 0; i < n; i++) {
		const struct coll_rule *rule = &rules[i];

		if (rule->kind != kind || nhosts < rule->min_hosts || bytes > rule->max_bytes) {
			continue;
		}
		if (rule->algo == COLL_ALGO_AUTO || coll_supports(kind, rule->algo, nhosts)) {
			return rule->algo;
		}
	}
	return COLL_ALGO_AUTO;
}

/**
 * coll_select() - choose the algorithm of a collective
 * @tuning:  borrowed; may be NULL
 * @kind:    not point to point
 * @bytes:   of one rank's message, see coll.h
 * @layout:  borrowed
 *
 * A rule whose algorithm cannot serve this number of hosts is passed over.
 *
 * Return: an algorithm that coll_supports().
 */
enum coll_algo coll_select(const struct coll_tuning *tuning, enum coll_kind kind, uint64_t bytes,
			   const struct coll_layout *layout)
{
	enum coll_algo algo = COLL_ALGO_AUTO;

	if (layout->nhosts == 1) {
		return COLL_ALGO_LOCAL;
	}
	if (tuning) {
		algo = first_match(tuning->rules, tuning->nrules, kind, bytes, layout->nhosts);
	}
	if (algo == COLL_ALGO_AUTO) {
		algo = first_match(built_in, ARRAY_SIZE(built_in), kind, bytes, layout->nhosts);
	}
	return algo;
}

/* ---- rules in text ------------------------------------------------------------------------ */

#define SEPARATORS " \t\r\n,"

struct parser {
	const char *rule; /* the rule being read, for messages */
	int rule_len;
	const char *at;
	const char *end;
	char *err;
	size_t err_size;
};

attr_printf(2, 3) static int refuse(struct parser *p, const char *format, ...)
{
	int n = snprintf(p->err, p->err_size, "tuning rule '%.*s': ", MIN(p->rule_len, 80),
			 p->rule);
	va_list args;

	if (n >= 0 && (size_t)n < p->err_size) {
		va_start(args, format);
		vsnprintf(p->err + n, p->err_size - (size_t)n, format, args);
		va_end(args);
	}
	return -EINVAL;
}

/* Index of the @name that stands at the cursor up to one of @stop, or -1. */
static int parse_name(struct parser *p, const char *(*name_of)(unsigned int), unsigned int n,
		      const char *stop)
{
	size_t len = 0;

	while (p->at + len < p->end && !strchr(stop, p->at[len])) {
		len++;
	}
	for (unsigned int i = 0; i < n; i++) {
		const char *name = name_of(i);

		if (strlen(name) == len && memcmp(name, p->at, len) == 0) {
			p->at += len;
			return (int)i;
		}
	}
	return -1;
}

/* Digits at the cursor. Return: 0, or -EINVAL (none, or too many). */
static int parse_number(struct parser *p, uint64_t *ret)
{
	const char *first = p->at;
	uint64_t value = 0;

	for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*p->at - '0'), &value)) {
			return -EINVAL;
		}
	}
	*ret = value;
	return p->at == first ? -EINVAL : 0;
}

/* "<=" and a size with an optional K, M or G. */
static int parse_size(struct parser *p, uint64_t *ret)
{
	static const char units[] = "KMG";
	const char *unit;
	uint64_t value;

	p->at += 2;
	if (parse_number(p, &value)) {
		return refuse(p, "'<=' needs a size, such as 32K");
	}
	if (p->at < p->end && (unit = strchr(units, *p->at)) != NULL && *unit) {
		uint64_t factor = 1ull << (10 * (unit - units + 1));

		p->at++;
		if (__builtin_mul_overflow(value, factor, &value)) {
			return refuse(p, "the size is larger than 2^64 bytes");
		}
	}
	*ret = value;
	return 0;
}

/* "@" and a number of hosts. */
static int parse_hosts(struct parser *p, uint32_t *ret)
{
	uint64_t value;

	p->at++;
	if (parse_number(p, &value) || value == 0 || value > UINT32_MAX) {
		return refuse(p, "'@' needs a number of hosts from 1 on");
	}
	*ret = (uint32_t)value;
	return 0;
}

/* collective ":" algorithm, then "@hosts" and "<=size" in any order, each at most once. */
static int parse_rule(struct parser *p, struct coll_rule *ret)
{
	struct coll_rule rule = {.min_hosts = 0, .max_bytes = ANY};
	int kind = parse_name(p, coll_kind_name, COLL_COUNT_, ":");
	int algo;

	if (kind < 0 || coll_kind_is_p2p((unsigned int)kind)) {
		return refuse(p, "does not begin with the name of a collective, such as allreduce");
	}
	if (p->at == p->end) {
		return refuse(p, "an algorithm is missing, as in allreduce:ring");
	}
	p->at++;
	algo = parse_name(p, coll_algo_name, COLL_ALGO_COUNT_, "@<");
	if (algo < 0) {
		return refuse(p, "the algorithm is none of auto, direct, doubling, halving, ring, "
				 "tree, pairwise");
	}
	rule.kind = (uint8_t)kind;
	rule.algo = (uint8_t)algo;
	/* Two hosts are within the limits of every algorithm but local, which needs no rule. */
	if (algo != COLL_ALGO_AUTO &&
	    !coll_supports((enum coll_kind)kind, (enum coll_algo)algo, 2)) {
		return refuse(p, "%s cannot do %s", coll_algo_name((unsigned int)algo),
			      coll_kind_name((unsigned int)kind));
	}
	while (p->at < p->end) {
		int r;

		if (*p->at == '@' && rule.min_hosts == 0) {
			r = parse_hosts(p, &rule.min_hosts);
		} else if (p->end - p->at >= 2 && p->at[0] == '<' && p->at[1] == '=' &&
			   rule.max_bytes == ANY) {
			r = parse_size(p, &rule.max_bytes);
		} else {
			r = refuse(p, "'%.*s' is neither '@hosts' nor '<=size', or one too many",
				   (int)MIN(p->end - p->at, 20), p->at);
		}
		if (r) {
			return r;
		}
	}
	*ret = rule;
	return 0;
}

/**
 * coll_tuning_parse() - read selection rules
 * @tuning:    rules are appended; unchanged on failure
 * @text:      borrowed
 * @err:       gets a sentence on failure
 * @err_size:  bytes of @err
 *
 * Return: 0, or -EINVAL.
 */
int coll_tuning_parse(struct coll_tuning *tuning, const char *text, char *err, size_t err_size)
{
	uint32_t n = tuning->nrules;

	for (;;) {
		struct parser p = {.err = err, .err_size = err_size};
		size_t len;
		int r;

		text += strspn(text, SEPARATORS);
		if (!*text) {
			break;
		}
		len = strcspn(text, SEPARATORS);
		p.rule = text;
		p.rule_len = (int)MIN(len, INT32_MAX);
		p.at = text;
		p.end = text + len;
		if (n >= COLL_MAX_RULES) {
			return refuse(&p, "there are more than %d rules; combine or drop some",
				      COLL_MAX_RULES);
		}
		r = parse_rule(&p, &tuning->rules[n]);
		if (r) {
			return r;
		}
		n++;
		text += len;
	}
	tuning->nrules = n;
	return 0;
}
