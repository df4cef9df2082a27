/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the roster: every host of a sparse communicator is near those that its plans need
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"
#include "job/roster.h"
#include "job/uniqueid.h"
#include "proto/base.h"
#include "proto/limits.h"

static const uint32_t sizes[] = {1, 2, 3, 5, 16, 17, 100, 513, 600, 777, 1024, 1500};

/* Of a tree only. */
static Rocecomm__Peer__CommPrepare tree(uint32_t hosts, uint32_t fanout, uint32_t first)
{
	Rocecomm__Peer__CommPrepare plan = ROCECOMM__PEER__COMM_PREPARE__INIT;

	plan.n_hosts = hosts;
	plan.fanout = fanout;
	plan.first = first;
	return plan;
}

static bool has(const uint32_t *list, uint32_t n, uint32_t value)
{
	for (uint32_t i = 0; i < n; i++) {
		if (list[i] == value) {
			return true;
		}
	}
	return false;
}

Test(roster, tree)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		Rocecomm__Peer__CommPrepare plan = tree(sizes[i], 1 + i % 5, sizes[i] / 3);
		uint32_t list[ROSTER_FANOUT_MAX], found = 0;

		for (uint32_t h = 0; h < sizes[i]; h++) {
			uint32_t n = roster_children(&plan, h, list);

			for (uint32_t k = 0; k < n; k++) {
				cr_assert_eq(roster_parent(&plan, list[k]), h);
			}
			found += n;
		}
		cr_assert_eq(found, sizes[i] - 1, "each has one above");
		cr_assert_eq(roster_parent(&plan, plan.first), LIMIT_COMM_HOSTS);
	}
}

Test(roster, near_is_mutual_and_few)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		Rocecomm__Peer__CommPrepare plan = tree(sizes[i], ROSTER_FANOUT, sizes[i] / 2);
		uint32_t list[ROSTER_NEAR_MAX], other[ROSTER_NEAR_MAX];

		for (uint32_t h = 0; h < sizes[i]; h++) {
			uint32_t n = roster_near(&plan, h, list);

			cr_assert_leq(n, ROSTER_NEAR_MAX);
			cr_assert_not(has(list, n, h));
			for (uint32_t k = 0; k < n; k++) {
				uint32_t m = roster_near(&plan, list[k], other);

				cr_assert(has(other, m, h), "%u of %u", h, sizes[i]);
			}
		}
	}
	/* The most there may be. */
	Rocecomm__Peer__CommPrepare plan = tree(LIMIT_COMM_HOSTS, ROSTER_FANOUT_MAX, 0);
	uint32_t list[ROSTER_NEAR_MAX];

	for (uint32_t h = 0; h < LIMIT_COMM_HOSTS; h += 7) {
		cr_assert_leq(roster_near(&plan, h, list), ROSTER_NEAR_MAX);
	}
}

static void check_plan(const Rocecomm__Peer__CommPrepare *plan, const struct coll_layout *layout,
		       uint32_t host, enum coll_kind kind, enum coll_algo algo, uint32_t root)
{
	uint32_t list[ROSTER_NEAR_MAX], n = roster_near(plan, host, list);
	struct plan *p;

	cr_assert_eq(coll_plan(kind, algo, root, 0, layout, host, &p), 0);
	for (uint32_t i = 0; i < p->nsend_peers; i++) {
		cr_assert(has(list, n, p->send_peers[i]), "%s, %s: %u sends to %u of %u",
			  coll_kind_name(kind), coll_algo_name(algo), host, p->send_peers[i],
			  layout->nhosts);
	}
	for (uint32_t i = 0; i < p->nrecv_peers; i++) {
		cr_assert(has(list, n, p->recv_peers[i]), "%s, %s: %u receives from %u of %u",
			  coll_kind_name(kind), coll_algo_name(algo), host, p->recv_peers[i],
			  layout->nhosts);
	}
	plan_free(p);
}

/* All that the built-in table chooses for many hosts, but those that need all pairs. */
Test(roster, plans_need_near_hosts_only)
{
	static const enum coll_algo algos[] = {COLL_ALGO_RING, COLL_ALGO_DOUBLING,
					       COLL_ALGO_HALVING, COLL_ALGO_TREE};

	for (size_t i = 5; i < ARRAY_SIZE(sizes); i++) {
		uint32_t hosts = sizes[i];
		Rocecomm__Peer__CommPrepare plan = tree(hosts, ROSTER_FANOUT, 0);
		uint32_t *host_of = calloc(hosts, sizeof(*host_of));
		struct coll_layout *layout;

		for (uint32_t h = 0; h < hosts; h++) {
			host_of[h] = h;
		}
		cr_assert_eq(coll_layout_new(host_of, hosts, hosts, &layout), 0);
		for (enum coll_kind kind = 0; kind < COLL_COUNT_; kind++) {
			for (size_t a = 0; a < ARRAY_SIZE(algos); a++) {
				for (uint32_t h = 0;
				     h < hosts && coll_supports(kind, algos[a], hosts);
				     h += 1 + hosts / 7) {
					check_plan(&plan, layout, h, kind, algos[a], hosts / 5);
				}
			}
		}
		coll_layout_free(layout);
		free(host_of);
	}
}

Test(roster, names_once)
{
	static uint8_t id[UID_SIZE] = {1};
	Rocecomm__Peer__Host host = ROCECOMM__PEER__HOST__INIT;
	struct roster r;
	char name[16];

	host.host_id.data = id;
	host.host_id.len = sizeof(id);
	host.name = name;
	snprintf(name, sizeof(name), "alpha");
	cr_assert_eq(roster_init(&r, 40, 1), 0);
	cr_assert_eq(roster_add_host(&r, &host), 0);
	for (uint32_t i = 0; i < 40; i++) {
		roster_add_rank(&r, 0, 100 + i, i % 3 == 2 ? "two" : "one");
	}
	r.plan.uid = r.plan.joined = host.host_id;
	cr_assert_eq(r.plan.n_clients, 2);
	cr_assert_null(roster_check(&r.plan, id));
	cr_assert_str_eq(roster_client(&r.plan, 5), "two");
	cr_assert_str_eq(roster_client(&r.plan, 6), "one");
	r.plan.client_of[7] = 2;
	cr_assert_not_null(roster_check(&r.plan, id));
	r.plan.client_of[7] = 0;
	r.plan.first = 1;
	cr_assert_not_null(roster_check(&r.plan, id));
	r.plan.first = 0;
	r.plan.n_pids = 39;
	cr_assert_not_null(roster_check(&r.plan, id));
	roster_deinit(&r);
}
