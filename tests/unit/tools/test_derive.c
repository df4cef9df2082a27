/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Derived table: daemon/coll/select.def is what the simulator derives from today's plans
 *
 * After a change of plans, engine constants or the link model of TCP:
 * ROCECOMM_UPDATE_DOCS=1 tests/unit/test_tools_derive
 *
 * Takes half a minute, so ROCECOMM_MODEL_SCALE=0 (sanitizers) leaves the large part out.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/simulate/derive.h"

static bool small_only(void)
{
	const char *scale = getenv("ROCECOMM_MODEL_SCALE");

	return scale && strcmp(scale, "0") == 0;
}

static void open_def(const char *mode, FILE **ret)
{
	char file[] = __FILE__;
	char path[PATH_MAX];

	/* Tests run in the build directory, which this is relative to. */
	snprintf(path, sizeof(path), "%s/../../../daemon/coll/select.def", dirname(file));
	*ret = fopen(path, mode);
	cr_assert(*ret, "%s cannot be opened from the build directory", path);
}

static void derive_text(uint32_t kinds, enum derive_form form, struct derived *d, char **ret)
{
	const struct link_model *m = link_find("tcp");
	size_t size;
	FILE *out = open_memstream(ret, &size);

	cr_assert_eq(derive(m, kinds, form == DERIVE_RULES ? 12 : DERIVE_MAX_ROWS, d), 0);
	derive_print(d, m, form, out);
	fclose(out);
}

Test(derive, table_is_the_derived_one, .timeout = 600)
{
	static char have[1 << 16];
	struct derived d;
	char *text;
	FILE *file;

	if (small_only()) {
		return;
	}
	derive_text(UINT32_MAX, DERIVE_DEF, &d, &text);
	cr_assert_lt(d.nrows, DERIVE_MAX_ROWS);
	if (getenv("ROCECOMM_UPDATE_DOCS")) {
		open_def("w", &file);
		fputs(text, file);
	} else {
		open_def("r", &file);
		cr_assert_lt(fread(have, 1, sizeof(have) - 1, file), sizeof(have) - 1);
		cr_assert_str_eq(have, text,
				 "daemon/coll/select.def is not what the simulator derives; run "
				 "this test with ROCECOMM_UPDATE_DOCS=1");
	}
	fclose(file);
	free(text);
}

/* What the daemon selects is the fastest plan, or nearly. */
Test(derive, selection_is_nearly_the_fastest, .timeout = 600)
{
	static const uint32_t hosts[] = {2, 3, 4, 6, 8, 13, 16, 32, 50, 64};
	static const enum coll_kind kinds[] = {COLL_ALLREDUCE, COLL_ALLGATHER, COLL_REDUCE_SCATTER,
					       COLL_BROADCAST, COLL_REDUCE};
	struct predictor p = {.model = *link_find("tcp")};

	for (size_t i = 0; i < ARRAY_SIZE(hosts) * ARRAY_SIZE(kinds) * 6; i++) {
		enum coll_kind kind = kinds[i % ARRAY_SIZE(kinds)];
		struct coll_layout layout = {.nhosts = hosts[i / ARRAY_SIZE(kinds) / 6]};
		uint64_t bytes = 8ull << i / ARRAY_SIZE(kinds) % 6 * 4; /* 8 B to 8 MiB */
		struct prediction at, best = {.us = 1e12}, chosen = {0};

		for (unsigned int a = COLL_ALGO_DIRECT; a < COLL_ALGO_COUNT_; a++) {
			if (predict(&p, kind, (enum coll_algo)a, layout.nhosts, 2, bytes, &at)) {
				continue;
			}
			best = at.us < best.us ? at : best;
			if (a == coll_select(NULL, kind, bytes, &layout)) {
				chosen = at;
			}
		}
		cr_assert(chosen.us >= best.us && chosen.us <= 1.75 * best.us,
			  "%s, %u hosts, %lu bytes: %.1f us, the fastest %.1f us",
			  coll_kind_name(kind), layout.nhosts, (unsigned long)bytes, chosen.us,
			  best.us);
	}
	predictor_deinit(&p);
}

/* An operator may paste the rules for another link into the configuration. */
Test(derive, rules_can_be_read, .timeout = 600)
{
	struct coll_tuning tuning = {0};
	struct derived d;
	char err[200];
	char *text;

	if (small_only()) {
		return;
	}
	derive_text(1u << COLL_ALLGATHER | 1u << COLL_REDUCE_SCATTER | 1u << COLL_BARRIER,
		    DERIVE_RULES, &d, &text);
	cr_assert_eq(coll_tuning_parse(&tuning, text, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(tuning.nrules, d.nrows);
	cr_assert_leq(d.nrows, 12);
	for (uint32_t i = 0; i < d.nrows; i++) {
		cr_assert_eq(tuning.rules[i].algo, d.rows[i].algo);
		cr_assert_eq(tuning.rules[i].max_bytes, d.rows[i].max_bytes);
		cr_assert_eq(MAX(tuning.rules[i].min_hosts, 2), d.rows[i].min_hosts);
	}
	free(text);
}
