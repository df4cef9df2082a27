/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unit tests: choice of algorithms and the text that overrides it
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "coll/coll.h"
#include "proto/base.h"

static struct coll_layout *hosts(uint32_t n)
{
	uint32_t *host_of = calloc(n, sizeof(*host_of));
	struct coll_layout *l = NULL;

	for (uint32_t h = 0; h < n; h++) {
		host_of[h] = h;
	}
	cr_assert_eq(coll_layout_new(host_of, n, n, &l), 0);
	free(host_of);
	return l;
}

Test(select, always_yields_what_can_be_planned)
{
	static const uint32_t sizes[] = {1, 2, 3, 4, 8, 9, 31, 32, 33, 64, 65, 128, 129, 4096};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct coll_layout *l = hosts(sizes[i]);

		for (unsigned int kind = 0; kind < COLL_SEND; kind++) {
			cr_assert(coll_supports(kind, coll_select(NULL, kind, 0, l), sizes[i]));
			for (uint64_t bytes = 1; bytes; bytes <<= 1) {
				enum coll_algo algo = coll_select(NULL, kind, bytes, l);

				cr_assert(coll_supports(kind, algo, sizes[i]), "%s %u hosts",
					  coll_kind_name(kind), sizes[i]);
			}
			cr_assert(coll_supports(kind, coll_select(NULL, kind, UINT64_MAX, l),
						sizes[i]));
		}
		coll_layout_free(l);
	}
}

Test(select, large_allreduce_is_a_ring_and_small_is_not)
{
	struct coll_layout *l = hosts(2);

	cr_assert_eq(coll_select(NULL, COLL_ALLREDUCE, 25 << 20, l), COLL_ALGO_RING);
	cr_assert_eq(coll_select(NULL, COLL_ALLREDUCE, 8, l), COLL_ALGO_DIRECT);
	coll_layout_free(l);
}

Test(select, rules_come_first_and_in_order)
{
	struct coll_tuning t = {0};
	struct coll_layout *two = hosts(2);
	struct coll_layout *four = hosts(4);
	char err[200] = "";

	cr_assert_eq(coll_tuning_parse(&t, " allreduce:tree<=32K,allreduce:ring@4\tbarrier:tree\n",
				       err, sizeof(err)),
		     0, "%s", err);
	cr_assert_eq(t.nrules, 3);
	cr_assert_eq(t.rules[0].max_bytes, 32768);
	cr_assert_eq(t.rules[1].min_hosts, 4);
	cr_assert_eq(t.rules[1].max_bytes, UINT64_MAX);
	cr_assert_eq(coll_select(&t, COLL_ALLREDUCE, 32768, two), COLL_ALGO_TREE);
	cr_assert_eq(coll_select(&t, COLL_ALLREDUCE, 32769, two),
		     coll_select(NULL, COLL_ALLREDUCE, 32769, two));
	cr_assert_eq(coll_select(&t, COLL_ALLREDUCE, 32769, four), COLL_ALGO_RING);
	cr_assert_eq(coll_select(&t, COLL_BARRIER, 0, two), COLL_ALGO_TREE);
	coll_layout_free(two);
	coll_layout_free(four);
}

Test(select, a_rule_beyond_its_algorithm_is_passed_over)
{
	struct coll_tuning t = {0};
	struct coll_layout *l = hosts(100);
	char err[200];

	cr_assert_eq(coll_tuning_parse(&t, "allreduce:direct", err, sizeof(err)), 0);
	cr_assert_neq(coll_select(&t, COLL_ALLREDUCE, 8, l), COLL_ALGO_DIRECT);
	coll_layout_free(l);
}

Test(select, auto_goes_back_to_the_table)
{
	struct coll_tuning t = {0};
	struct coll_layout *l = hosts(2);
	char err[200];

	cr_assert_eq(coll_tuning_parse(&t, "allreduce:auto<=1M allreduce:tree", err, sizeof(err)),
		     0);
	cr_assert_eq(coll_select(&t, COLL_ALLREDUCE, 8, l),
		     coll_select(NULL, COLL_ALLREDUCE, 8, l));
	cr_assert_eq(coll_select(&t, COLL_ALLREDUCE, 2 << 20, l), COLL_ALGO_TREE);
	coll_layout_free(l);
}

Test(select, bad_rules_are_named)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"x", "'x'"},
		{"allreduce", "missing"},
		{"allreduce:", "none of"},
		{"allreduce:rings", "none of"},
		{"allreduce:local", "cannot"},
		{"alltoall:ring", "ring cannot do alltoall"},
		{"send:ring", "collective"},
		{"allreduce:ring<=", "size"},
		{"allreduce:ring<=K", "size"},
		{"allreduce:ring<=99999999999999999999", "size"},
		{"allreduce:ring<=17179869184G", "2^64"},
		{"allreduce:ring<=3KB", "'B'"},
		{"allreduce:ring<3", "'<3'"},
		{"allreduce:ring@0", "hosts"},
		{"allreduce:ring@4294967296", "hosts"},
		{"allreduce:ring@2@3", "'@3'"},
		{"allreduce:ring<=1<=2", "'<=2'"},
		{"barrier:tree allreduce:ring@2x", "'x'"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct coll_tuning t = {.nrules = 1};
		char err[200] = "";

		cr_assert_eq(coll_tuning_parse(&t, bad[i].text, err, sizeof(err)), -EINVAL, "%s",
			     bad[i].text);
		cr_assert_not_null(strstr(err, bad[i].says), "%s: %s", bad[i].text, err);
		cr_assert_eq(t.nrules, 1);
	}
}

Test(select, number_of_rules_is_limited)
{
	struct coll_tuning t = {0};
	char text[COLL_MAX_RULES * 16 + 32] = "";
	char err[200];
	char small[4] = "abc";

	for (int i = 0; i < COLL_MAX_RULES; i++) {
		strcat(text, "barrier:tree,");
	}
	cr_assert_eq(coll_tuning_parse(&t, text, err, sizeof(err)), 0);
	cr_assert_eq(t.nrules, COLL_MAX_RULES);
	cr_assert_eq(coll_tuning_parse(&t, "", err, sizeof(err)), 0);
	cr_assert_eq(coll_tuning_parse(&t, "barrier:tree", err, sizeof(err)), -EINVAL);
	cr_assert_not_null(strstr(err, "64"));
	cr_assert_eq(coll_tuning_parse(&t, "barrier:tree", small, sizeof(small)), -EINVAL);
	cr_assert_eq(small[3], 0);
}

/* Random text of the characters that rules consist of: no crash, and accepted rules are valid. */
Test(select, any_text_is_survived)
{
	static const char letters[] = "allreduce:ring<=12K@ ,treebir\n\xff";
	uint64_t x = 1;

	for (int i = 0; i < 200000; i++) {
		struct coll_tuning t = {0};
		char text[24];
		char err[64];
		size_t n = 0;

		if (i % 2) {
			n = (size_t)snprintf(text, sizeof(text), "barrier:tree");
		}
		for (; n + 1 < sizeof(text); n++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			text[n] = letters[(x >> 33) % sizeof(letters)];
		}
		text[n] = 0;
		if (coll_tuning_parse(&t, text, err, sizeof(err)) == 0) {
			for (uint32_t k = 0; k < t.nrules; k++) {
				cr_assert(t.rules[k].kind < COLL_SEND);
				cr_assert(t.rules[k].algo < COLL_ALGO_COUNT_);
			}
		}
	}
}

Test(select, names_and_support)
{
	cr_assert_str_eq(coll_algo_name(COLL_ALGO_HALVING), "halving");
	cr_assert_str_eq(coll_algo_name(COLL_ALGO_COUNT_), "unknown algorithm");
	cr_assert_not(coll_supports(COLL_COUNT_, COLL_ALGO_RING, 2));
	cr_assert_not(coll_supports(COLL_ALLREDUCE, COLL_ALGO_COUNT_, 2));
	cr_assert_not(coll_supports(COLL_ALLREDUCE, COLL_ALGO_AUTO, 2));
	cr_assert_not(coll_supports(COLL_SEND, COLL_ALGO_LOCAL, 1));
	cr_assert_not(coll_supports(COLL_ALLREDUCE, COLL_ALGO_LOCAL, 2));
	cr_assert_not(coll_supports(COLL_ALLREDUCE, COLL_ALGO_RING, 1));
}
