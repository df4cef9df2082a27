/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of membership: ranks of many hosts meet, split, leave and die, in every order
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tests/fake/fake_net.h"

static struct fake_rank ranks[FAKE_RANKS];
static struct fake_rank more[FAKE_RANKS];

static void leave_all(struct fake_net *net, struct fake_rank *list, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		fake_leave(&list[i], NULL);
	}
	fake_run_ms(net, 70);
	for (unsigned int i = 0; i < n; i++) {
		cr_assert(list[i].state != FAKE_LEAVING && list[i].state != FAKE_READY);
	}
}

static void expect(unsigned int n, enum fake_rank_state state, enum status status,
		   const char *words)
{
	for (unsigned int i = 0; i < n; i++) {
		cr_assert_eq(ranks[i].state, state, "rank %u: state %d: %s", i, ranks[i].state,
			     ranks[i].text);
		if (state == FAKE_REFUSED) {
			cr_assert_eq(ranks[i].status, status, "rank %u: %d: %s", i, ranks[i].status,
				     ranks[i].text);
			cr_assert(strstr(ranks[i].text, words), "rank %u: %s", i, ranks[i].text);
		}
	}
}

/* Ranks i on host i % hosts, all under one id of host 0. */
static void join(struct fake_net *net, unsigned int hosts, unsigned int n, unsigned int size)
{
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	for (unsigned int i = 0; i < n; i++) {
		fake_join(net, &ranks[i], i % hosts, id, i, size);
	}
}

Test(bootstrap, one_host)
{
	struct fake_net *net = fake_net_new(1, 1);

	join(net, 1, 4, 4);
	fake_run(net);
	expect(4, FAKE_READY, 0, "");
	cr_assert_eq(ranks[2].m.rank, 2);
	cr_assert_eq(ranks[2].m.comm->size, 4);
	leave_all(net, ranks, 4);
	fake_net_free(net);
}

Test(bootstrap, unequal_hosts)
{
	static const unsigned int place[] = {1, 0, 2, 2, 1, 2, 2};
	struct fake_net *net = fake_net_new(3, 2);
	uint8_t id[LIMIT_UNIQUE_ID];
	const struct communicator *c;

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 2), id), 0);
	for (unsigned int i = 0; i < 7; i++) {
		fake_join(net, &ranks[i], place[i], id, i, 7);
	}
	fake_run(net);
	expect(7, FAKE_READY, 0, "");
	c = ranks[0].m.comm;
	cr_assert_eq(c->nhosts, 3);
	cr_assert_str_eq(c->plan->hosts[0]->name, "host1", "hosts in the order of their ranks");
	cr_assert_str_eq(c->plan->hosts[2]->name, "host2");
	cr_assert_eq(ranks[3].m.comm->nlocal, 4);
	cr_assert_eq(ranks[0].m.comm->plan->wire, ranks[6].m.comm->plan->wire);
	leave_all(net, ranks, 7);
	fake_net_free(net);
}

Test(bootstrap, root_without_ranks)
{
	struct fake_net *net = fake_net_new(3, 3);
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	fake_join(net, &ranks[0], 1, id, 0, 2);
	fake_join(net, &ranks[1], 2, id, 1, 2);
	fake_run(net);
	expect(2, FAKE_READY, 0, "");
	/* The root is of no use any more. */
	fake_kill(net, 0);
	fake_run(net);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_OK);
	leave_all(net, ranks, 2);
	fake_net_free(net);
}

Test(bootstrap, sizes_disagree)
{
	struct fake_net *net = fake_net_new(2, 4);
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	fake_join(net, &ranks[0], 0, id, 0, 3);
	fake_join(net, &ranks[1], 1, id, 1, 4);
	fake_run(net);
	expect(2, FAKE_REFUSED, STATUS_MISMATCH, "says 4");
	fake_net_free(net);
}

Test(bootstrap, rank_twice)
{
	struct fake_net *net = fake_net_new(3, 5);
	uint8_t id[LIMIT_UNIQUE_ID];

	fake_config(net)->join_timeout_ms = 200;
	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	fake_join(net, &ranks[0], 1, id, 0, 2);
	fake_run(net);
	fake_join(net, &ranks[1], 2, id, 0, 2);
	fake_run(net);
	cr_assert_eq(ranks[0].state, FAKE_JOINING);
	cr_assert_eq(ranks[1].status, STATUS_EXISTS, "%s", ranks[1].text);
	fake_run_ms(net, 300);
	expect(1, FAKE_REFUSED, STATUS_TIMEOUT, "claimed twice");
	cr_assert(strstr(ranks[0].text, "missing: 1"), "%s", ranks[0].text);
	fake_net_free(net);
}

Test(bootstrap, id_twice)
{
	struct fake_net *net = fake_net_new(2, 6);
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	fake_join(net, &ranks[0], 0, id, 0, 2);
	fake_join(net, &ranks[1], 1, id, 1, 2);
	fake_run(net);
	expect(2, FAKE_READY, 0, "");
	fake_join(net, &more[0], 0, id, 0, 2);
	fake_join(net, &more[1], 1, id, 1, 2);
	fake_run(net);
	cr_assert_eq(more[0].status, STATUS_EXISTS);
	cr_assert_eq(more[1].status, STATUS_EXISTS);
	expect(2, FAKE_READY, 0, "");
	leave_all(net, ranks, 2);
	fake_join(net, &more[0], 0, id, 0, 2);
	cr_assert_eq(more[0].status, STATUS_EXISTS, "also when it is gone");
	fake_net_free(net);
}

Test(bootstrap, environment_again)
{
	struct fake_net *net = fake_net_new(2, 7);

	fake_join_env(net, &ranks[0], 0, 1, "job:0", 0, 3);
	fake_join_env(net, &ranks[1], 0, 1, "job:0", 1, 3);
	fake_join_env(net, &ranks[2], 1, 1, "job:0", 2, 3);
	fake_run(net);
	expect(3, FAKE_READY, 0, "");
	fake_join_env(net, &more[0], 0, 1, "job:0", 0, 3);
	fake_run(net);
	cr_assert_eq(more[0].status, STATUS_EXISTS, "%s", more[0].text);
	/* One dies, all are started again. */
	fake_leave(&ranks[2], "its process ended");
	fake_run_ms(net, 150);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_PEER_DIED);
	fake_join_env(net, &more[0], 0, 1, "job:0", 0, 3);
	fake_join_env(net, &more[1], 0, 1, "job:0", 1, 3);
	fake_join_env(net, &more[2], 1, 1, "job:0", 2, 3);
	fake_run(net);
	cr_assert(more[0].state == FAKE_READY && more[2].state == FAKE_READY, "%s", more[0].text);
	leave_all(net, ranks, 3);
	leave_all(net, more, 3);
	fake_net_free(net);
}

Test(bootstrap, bad_ids)
{
	struct fake_net *net = fake_net_new(1, 8);
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	id[4] = 9;
	fake_join(net, &ranks[0], 0, id, 0, 1);
	expect(1, FAKE_REFUSED, STATUS_VERSION, "version 9");
	id[4] = 1;
	id[0] ^= 1;
	fake_join(net, &ranks[0], 0, id, 0, 1);
	expect(1, FAKE_REFUSED, STATUS_INVALID, "no unique id");
	id[0] ^= 1;
	fake_join(net, &ranks[0], 0, id, 3, 2);
	expect(1, FAKE_REFUSED, STATUS_INVALID, "rank 3 of 2");
	fake_net_free(net);
}

Test(bootstrap, too_many_on_a_host)
{
	static struct fake_rank many[LIMIT_LOCAL_RANKS + 1];
	struct fake_net *net = fake_net_new(2, 9);
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	for (unsigned int i = 0; i < ARRAY_SIZE(many); i++) {
		fake_join(net, &many[i], 1, id, i, 100);
	}
	fake_run(net);
	for (unsigned int i = 0; i < ARRAY_SIZE(many); i++) {
		cr_assert_eq(many[i].status, STATUS_UNSUPPORTED, "%s", many[i].text);
	}
	fake_net_free(net);
}

Test(bootstrap, unreachable)
{
	struct fake_net *net = fake_net_new(3, 10);

	fake_unplug(net, 2);
	join(net, 2, 2, 3);
	fake_run(net);
	expect(2, FAKE_JOINING, 0, "");
	leave_all(net, ranks, 2);
	fake_net_free(net);
}

Test(bootstrap, leave_in_order)
{
	struct fake_net *net = fake_net_new(2, 11);

	join(net, 2, 4, 4);
	fake_run(net);
	fake_post(&ranks[0], 5, 5);
	fake_post(&ranks[2], 5, 5);
	fake_post(&ranks[1], 5, 5);
	fake_post(&ranks[3], 5, 5);
	fake_leave(&ranks[3], NULL);
	fake_run_ms(net, 150);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_OK, "nobody needs it");
	fake_post(&ranks[0], 6, 5);
	fake_run_ms(net, 150);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_PEER_DIED);
	cr_assert_eq(fake_failed(&ranks[0]), STATUS_PEER_DIED);
	cr_assert(strstr(ranks[0].m.comm->text, "rank 3 (host host1"), "%s", ranks[0].m.comm->text);
	cr_assert(strstr(ranks[0].m.comm->text, "destroyed"));
	leave_all(net, ranks, 4);
	fake_net_free(net);
}

Test(bootstrap, death_lets_operations_end)
{
	struct fake_net *net = fake_net_new(2, 12);

	join(net, 2, 2, 2);
	fake_run(net);
	/* Rank 1 has completed the fifth operation, rank 0 has not yet. */
	fake_post(&ranks[1], 5, 5);
	fake_post(&ranks[0], 5, 4);
	fake_leave(&ranks[1], "its process ended");
	fake_run_ms(net, 200);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_OK);
	fake_post(&ranks[0], 5, 5);
	fake_run_ms(net, 150);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_PEER_DIED);
	cr_assert(strstr(ranks[0].m.comm->text, "its process ended"));
	leave_all(net, ranks, 2);
	fake_net_free(net);
}

Test(bootstrap, death_in_flight)
{
	struct fake_net *net = fake_net_new(2, 13);

	join(net, 2, 4, 4);
	fake_run(net);
	fake_post(&ranks[0], 1, 0);
	fake_post(&ranks[1], 1, 0);
	fake_leave(&ranks[1], "its process ended");
	fake_run_ms(net, 120);
	for (unsigned int i = 0; i < 4; i++) {
		if (i != 1) {
			cr_assert_eq(ranks[i].m.comm->status, STATUS_PEER_DIED, "rank %u", i);
		}
	}
	leave_all(net, ranks, 4);
	fake_net_free(net);
}

Test(bootstrap, host_dies)
{
	struct fake_net *net = fake_net_new(3, 14);

	join(net, 3, 6, 6);
	fake_run(net);
	expect(6, FAKE_READY, 0, "");
	fake_kill(net, 2);
	fake_run(net);
	cr_assert_eq(ranks[0].m.comm->status, STATUS_PEER_DIED);
	cr_assert(strstr(ranks[0].m.comm->text, "host host2 (2 ranks, 2 the first"), "%s",
		  ranks[0].m.comm->text);
	leave_all(net, ranks, 6);
	fake_net_free(net);
}

Test(bootstrap, split_by_colour)
{
	struct fake_net *net = fake_net_new(3, 15);

	join(net, 3, 7, 7);
	fake_run(net);
	for (unsigned int i = 0; i < 7; i++) {
		/* Ranks 0, 2, 4 one way round; 1, 3, 5 the other; 6 in none. */
		fake_split(net, &more[i], &ranks[i], i == 6 ? -1 : (int32_t)(i % 2),
			   i % 2 ? -(int32_t)i : (int32_t)i);
	}
	fake_run(net);
	for (unsigned int i = 0; i < 6; i++) {
		cr_assert_eq(more[i].state, FAKE_READY, "%s", more[i].text);
		cr_assert_eq(more[i].m.comm->size, 3);
		cr_assert_eq(more[i].m.rank, i % 2 ? (5 - i) / 2 : i / 2);
	}
	cr_assert_neq(more[0].m.comm->plan->wire, more[1].m.comm->plan->wire);
	leave_all(net, ranks, 7);
	cr_assert_eq(more[0].m.comm->status, STATUS_OK, "children outlive their parent");
	leave_all(net, more, 6);
	fake_net_free(net);
}

Test(bootstrap, split_never_complete)
{
	struct fake_net *net = fake_net_new(2, 16);

	fake_config(net)->join_timeout_ms = 200;
	join(net, 2, 3, 3);
	fake_run(net);
	fake_split(net, &more[0], &ranks[0], 0, 0);
	fake_split(net, &more[1], &ranks[1], 0, 0);
	fake_run_ms(net, 350);
	cr_assert_eq(more[1].state, FAKE_REFUSED);
	cr_assert_eq(more[1].status, STATUS_TIMEOUT);
	cr_assert(strstr(more[1].text, "rank 2 (host host0"), "%s", more[1].text);
	leave_all(net, ranks, 3);
	fake_net_free(net);
}

Test(bootstrap, shutdown)
{
	struct fake_net *net = fake_net_new(2, 17);

	join(net, 2, 2, 2);
	fake_run(net);
	fake_join_env(net, &more[0], 0, 0, "x", 0, 2);
	jobs_shutdown(fake_jobs(net, 0), STATUS_SHUTDOWN, "the daemon of host host0 stops");
	cr_assert_eq(ranks[0].m.comm->status, STATUS_SHUTDOWN);
	cr_assert_eq(more[0].status, STATUS_SHUTDOWN);
	leave_all(net, ranks, 2);
	fake_net_free(net);
}

/* ---- many hosts --------------------------------------------------------------------------- */

Test(bootstrap, wide)
{
	struct fake_net *net = fake_net_new_wide(12, 20, 3, 2);
	const struct communicator *c;
	uint32_t links = 0;

	join(net, 12, 24, 24);
	fake_run(net);
	expect(24, FAKE_READY, 0, "");
	for (unsigned int i = 0; i < 24; i++) {
		cr_assert_eq(ranks[i].m.comm->plan->wire, ranks[0].m.comm->plan->wire);
		cr_assert_eq(ranks[i].m.rank, i);
	}
	c = ranks[11].m.comm;
	for (uint32_t h = 0; h < 12; h++) {
		links += c->links[h] != NULL;
	}
	cr_assert_lt(links, 10, "%u links", links);
	cr_assert_eq(hashmap_count(&fake_jobs(net, 0)->rendezvous), 0);
	leave_all(net, ranks, 24);
	fake_net_free(net);
}

Test(bootstrap, wide_root_without_ranks)
{
	struct fake_net *net = fake_net_new_wide(12, 21, 3, 2);
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	for (unsigned int i = 0; i < 11; i++) {
		fake_join(net, &ranks[i], 1 + i, id, i, 11);
	}
	fake_run(net);
	expect(11, FAKE_READY, 0, "");
	fake_kill(net, 0);
	fake_run(net);
	cr_assert_eq(ranks[10].m.comm->status, STATUS_OK);
	leave_all(net, ranks, 11);
	fake_net_free(net);
}

Test(bootstrap, wide_host_dies)
{
	struct fake_net *net = fake_net_new_wide(12, 22, 3, 2);

	join(net, 12, 12, 12);
	fake_run(net);
	expect(12, FAKE_READY, 0, "");
	fake_kill(net, 5);
	fake_run(net);
	for (unsigned int i = 0; i < 12; i++) {
		if (i != 5) {
			cr_assert_eq(ranks[i].m.comm->status, STATUS_PEER_DIED, "rank %u", i);
			cr_assert(strstr(ranks[i].m.comm->text, "host5"), "%s",
				  ranks[i].m.comm->text);
		}
	}
	leave_all(net, ranks, 12);
	fake_net_free(net);
}

Test(bootstrap, wide_rank_dies)
{
	struct fake_net *net = fake_net_new_wide(12, 23, 3, 2);

	join(net, 12, 12, 12);
	fake_run(net);
	fake_leave(&ranks[7], "its process ended");
	fake_run_ms(net, 150);
	for (unsigned int i = 0; i < 12; i++) {
		cr_assert(i == 7 || ranks[i].m.comm->status == STATUS_PEER_DIED, "rank %u", i);
	}
	leave_all(net, ranks, 12);
	fake_net_free(net);
}

Test(bootstrap, wide_split)
{
	struct fake_net *net = fake_net_new_wide(12, 24, 3, 2);

	join(net, 12, 24, 24);
	fake_run(net);
	for (unsigned int i = 0; i < 24; i++) {
		fake_split(net, &more[i], &ranks[i], i % 5 == 4 ? -1 : (int32_t)(i % 2), 0);
	}
	fake_run(net);
	for (unsigned int i = 0; i < 24; i++) {
		cr_assert(i % 5 == 4 || more[i].state == FAKE_READY, "%s", more[i].text);
	}
	leave_all(net, more, 24);
	leave_all(net, ranks, 24);
	fake_net_free(net);
}

Test(bootstrap, wide_gives_up_after_its_visit)
{
	struct fake_net *net = fake_net_new_wide(12, 25, 3, 2);

	join(net, 12, 11, 12);
	fake_run(net);
	expect(11, FAKE_JOINING, 0, "");
	fake_leave(&ranks[3], "its process ended");
	fake_run(net);
	for (unsigned int i = 0; i < 11; i++) {
		cr_assert(i == 3 || ranks[i].status == STATUS_PEER_DIED, "rank %u: %s", i,
			  ranks[i].text);
	}
	fake_net_free(net);
}

Test(bootstrap, wide_times_out_after_its_visit)
{
	struct fake_net *net = fake_net_new_wide(12, 26, 3, 2);

	fake_config(net)->join_timeout_ms = 200;
	join(net, 12, 11, 12);
	fake_run_ms(net, 300);
	expect(11, FAKE_REFUSED, STATUS_TIMEOUT, "missing: 11");
	fake_net_free(net);
}

Test(bootstrap, wide_host_dies_while_it_forms)
{
	for (unsigned int steps = 20; steps < 320; steps += 3) {
		struct fake_net *net = fake_net_new_wide(12, steps, 3, 2);

		join(net, 12, 12, 12);
		for (unsigned int i = 0; i < steps; i++) {
			fake_step(net);
		}
		fake_kill(net, 7);
		/* The root does not know when it was on its list: nobody can be reached there. */
		fake_run(net);
		for (unsigned int i = 0; i < 12; i++) {
			cr_assert(i == 7 || ranks[i].state == FAKE_REFUSED ||
					  ranks[i].state == FAKE_JOINING ||
					  ranks[i].m.comm->status == STATUS_PEER_DIED,
				  "steps %u, rank %u: state %d", steps, i, ranks[i].state);
		}
		leave_all(net, ranks, 12);
		fake_net_free(net);
	}
}

/* One round: ranks join, split, die, hosts die, at any moment; in the end nothing is left. */
static void storm(struct fake_net *net, unsigned int hosts, uint64_t seed)
{
	unsigned int n = 2 + (unsigned int)fake_random(net, 10 + hosts);
	unsigned int steps = (unsigned int)fake_random(net, 30 * hosts);
	bool env = fake_random(net, 2);
	bool host_dies = fake_random(net, 3) == 0;
	uint8_t id[LIMIT_UNIQUE_ID];

	cr_assert_eq(jobs_unique_id(fake_jobs(net, 0), id), 0);
	for (unsigned int i = 0; i < n; i++) {
		unsigned int host = (unsigned int)fake_random(net, hosts);

		if (env) {
			fake_join_env(net, &ranks[i], host, 0, "storm", i, n);
		} else {
			fake_join(net, &ranks[i], host, id, i, n);
		}
		for (uint64_t k = fake_random(net, 4); k > 0; k--) {
			fake_step(net);
		}
	}
	for (unsigned int k = 0; k < steps; k++) {
		unsigned int i = (unsigned int)fake_random(net, n);

		if (fake_random(net, 30) == 0) {
			fake_leave(&ranks[i], fake_random(net, 2) ? "its process ended" : NULL);
		}
		fake_step(net);
	}
	memset(more, 0, sizeof(more));
	for (unsigned int i = 0; i < n; i++) {
		if (ranks[i].state == FAKE_READY) {
			fake_split(net, &more[i], &ranks[i], (int32_t)fake_random(net, 3) - 1, 0);
		}
		fake_step(net);
	}
	if (host_dies) {
		fake_kill(net, (unsigned int)fake_random(net, hosts));
	}
	fake_run(net);
	for (unsigned int i = 0; i < n; i++) {
		fake_leave(&ranks[i], fake_random(net, 2) ? "its process ended" : NULL);
		fake_leave(&more[i], NULL);
	}
	fake_run(net);
	for (unsigned int i = 0; i < n; i++) {
		cr_assert(ranks[i].state == FAKE_LEFT || ranks[i].state == FAKE_REFUSED,
			  "seed %lu rank %u state %d", (unsigned long)seed, i, ranks[i].state);
		cr_assert(more[i].state == FAKE_LEFT || more[i].state == FAKE_REFUSED ||
				  more[i].state == FAKE_IDLE,
			  "seed %lu split of %u state %d", (unsigned long)seed, i, more[i].state);
	}
	fake_net_free(net);
}

Test(bootstrap, storm)
{
	for (uint64_t seed = 1; seed <= 2000; seed++) {
		storm(fake_net_new(4, seed), 4, seed);
	}
}

Test(bootstrap, wide_storm)
{
	for (uint64_t seed = 1; seed <= 600; seed++) {
		unsigned int hosts = 2 + (unsigned int)(seed % (FAKE_HOSTS - 1));

		storm(fake_net_new_wide(hosts, seed, 1 + seed % 3, 1 + (uint32_t)(seed / 3 % 3)),
		      hosts, seed);
	}
}
