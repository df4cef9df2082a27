/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unit tests: a link model is found again in the times that it predicts
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tools/simulate/fit.h"
#include "tools/simulate/grid.h"

/* The line that rocebench would print if the world were like the model. */
static void line_of(struct predictor *p, const char *coll, enum coll_kind kind, enum coll_algo algo,
		    uint32_t hosts, uint64_t bytes, char *buf, size_t size)
{
	struct prediction at;

	cr_assert_eq(predict(p, kind, algo, hosts, 2, grid_message(kind, bytes, hosts * 2), &at),
		     0);
	snprintf(buf, size,
		 "{\"algo\":\"%s\",\"system\":\"rocecomm\",\"coll\":\"%s\",\"bytes\":%lu,"
		 "\"hosts\":%u,\"ranks\":%u,\"inflight\":1,\"min_us\":%f,\"median_us\":%f}\n",
		 coll_algo_name(algo), coll, (unsigned long)bytes, hosts, hosts * 2, at.us,
		 at.us * 3);
}

static void feed(struct fit *f, const struct link_model *world, uint32_t hosts)
{
	static const struct {
		const char *coll;
		enum coll_kind kind;
		enum coll_algo algo;
	} plans[] = {
		{"allreduce", COLL_ALLREDUCE, COLL_ALGO_DOUBLING},
		{"allreduce", COLL_ALLREDUCE, COLL_ALGO_RING},
		{"reduce_scatter", COLL_REDUCE_SCATTER, COLL_ALGO_RING},
		{"broadcast", COLL_BROADCAST, COLL_ALGO_TREE},
		{"barrier", COLL_BARRIER, COLL_ALGO_DIRECT},
	};
	struct predictor p = {.model = *world};
	char line[512];

	for (size_t i = 0; i < ARRAY_SIZE(plans); i++) {
		for (uint64_t bytes = 64; bytes <= 4 << 20; bytes *= 16) {
			line_of(&p, plans[i].coll, plans[i].kind, plans[i].algo, hosts, bytes, line,
				sizeof(line));
			cr_assert_eq(fit_add(f, line), 0);
		}
	}
	predictor_deinit(&p);
}

Test(fit, finds_the_world_again)
{
	struct link_model world = *link_find("tcp");
	size_t n;
	struct fit *f;

	world.alpha_us = 11;
	world.send_us = world.recv_us = 1.7;
	world.stack_GBps = 3;
	world.op_us = 9;
	cr_assert_eq(fit_new(link_find("tcp"), true, &f), 0);
	feed(f, &world, 2);
	feed(f, &world, 3);
	n = f->ncases;
	feed(f, &world, 2); /* once more: nothing new */
	cr_assert_eq(f->ncases, n);
	cr_assert_eq(f->fewest, 2);
	cr_assert_eq(fit_search(f), 0);
	/* Two hosts do not tell all values apart: the other ones may be a little off. */
	cr_assert_lt(fit_error(f, 2), 0.03, "%f", fit_error(f, 2));
	cr_assert_lt(fit_error(f, 3), 0.08, "%f", fit_error(f, 3));
	fit_free(f);
}

Test(fit, other_lines_are_passed_over)
{
	static const char *const lines[] = {
		"",
		"{",
		"[]",
		"17",
		"{}",
		"{\"coll\":\"allreduce\"}",
		"{\"coll\":\"allreduce\",\"bytes\":8,\"hosts\":1,\"ranks\":4,\"median_us\":3}",
		"{\"coll\":\"allreduce\",\"bytes\":8,\"hosts\":2,\"ranks\":3,\"median_us\":3}",
		"{\"coll\":\"allreduce\",\"bytes\":-8,\"hosts\":2,\"ranks\":2,\"median_us\":3}",
		"{\"coll\":\"allreduce\",\"bytes\":8,\"hosts\":2,\"ranks\":2,\"median_us\":0}",
		"{\"coll\":\"allreduce\",\"bytes\":8,\"hosts\":2,\"ranks\":2,\"median_us\":3,"
		"\"inflight\":32}",
		"{\"coll\":\"step:moe\",\"bytes\":8,\"hosts\":2,\"ranks\":2,\"median_us\":3}",
		"{\"coll\":\"alltoallv\",\"bytes\":8,\"hosts\":2,\"ranks\":2,\"median_us\":3}",
		"{\"coll\":\"alltoall\",\"algo\":\"ring\",\"bytes\":8,\"hosts\":2,\"ranks\":2,"
		"\"median_us\":3}",
		"{\"coll\":7,\"algo\":[],\"bytes\":\"8\",\"hosts\":{},\"ranks\":2}",
	};
	struct fit *f;

	cr_assert_eq(fit_new(link_find("tcp"), false, &f), 0);
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		cr_assert_eq(fit_add(f, lines[i]), 0);
		cr_assert_eq(f->ncases, 0, "%s", lines[i]);
	}
	/* Without "algo" it is what the table selects. */
	cr_assert_eq(fit_add(f, "{\"coll\":\"alltoall\",\"bytes\":64,\"hosts\":2,\"ranks\":2,"
				"\"median_us\":3}"),
		     0);
	cr_assert_eq(f->ncases, 1);
	cr_assert_eq(f->cases[0].algo, COLL_ALGO_PAIRWISE);
	fit_free(f);
}
