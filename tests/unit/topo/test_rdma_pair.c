/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the pairs of rails between hosts of different shapes
 *
 * Thread: the test's      Owns: what it makes      Locks: none
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "topo/rdma.h"

#define RAILS 16

/* Cards with so many ports each, all in one network or each port in that of its number. */
struct shape {
	uint32_t cards, ports;
};

struct host {
	struct rdma list;
	struct rdma_device devices[RAILS];
	struct rdma_gid gids[RAILS];
	struct rdma_remote remote[RAILS]; /* as the other host sees it */
	uint32_t n;
};

static union ibv_gid gid_of(uint32_t network, uint32_t number)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	union ibv_gid gid;

	a.sin_addr.s_addr = htonl(10u << 24 | network << 16 | number);
	cr_assert_eq(rdma_gid_from_address((const struct sockaddr *)&a, &gid), 0);
	return gid;
}

/* @number: of the host, not 0 */
static struct host *host_new(struct shape s, uint32_t number, bool flat)
{
	struct host *h = calloc(1, sizeof(*h));

	for (uint32_t c = 0; c < s.cards; c++) {
		struct rdma_device *d = &h->devices[c];

		d->index = c;
		d->nports = s.ports;
		h->list.devices[h->list.count++] = d;
		for (uint32_t p = 0; p < s.ports; p++, h->n++) {
			struct rdma_gid *g = &h->gids[h->n];

			g->gid = flat ? gid_of(200, number * 64 + h->n) : gid_of(h->n, number);
			g->v2 = true;
			d->ports[p] = (struct rdma_port){.device = d,
							 .number = (uint8_t)(p + 1),
							 .up = true,
							 .usable = true,
							 .gids = g,
							 .ngids = 1};
			h->remote[h->n] = (struct rdma_remote){g->gid, h->n};
		}
	}
	return h;
}

/* Within a network of 16 bits. */
static int route_network(void *arg, uint32_t ifindex, const union ibv_gid *from,
			 const union ibv_gid *to)
{
	return memcmp(from->raw, to->raw, 14) == 0 ? 0 : -ENETUNREACH;
}

/* Return: how many pairs; each port of either host is in one of them at most. */
static uint32_t pair(struct host *a, struct host *b, uint32_t max, struct rdma_pair *pairs)
{
	uint32_t n = rdma_pair_rails(&a->list, b->remote, b->n, route_network, NULL, pairs, 0, max);

	for (uint32_t i = 0; i < n; i++) {
		cr_assert_lt(pairs[i].remote, b->n);
		for (uint32_t k = 0; k < i; k++) {
			cr_assert(pairs[i].port != pairs[k].port, "a port is in two pairs");
			cr_assert(b->remote[pairs[i].remote].port !=
					  b->remote[pairs[k].remote].port,
				  "a port of the other host is in two pairs");
		}
	}
	return n;
}

/*
 * Hosts of every two shapes: no rail that has a partner is idle, from either end, and one more look
 * says the same. In networks of their own rails are paired by number, across cards.
 */
Test(rdma_pair, no_rail_is_idle)
{
	static const struct shape shapes[] = {{8, 1}, {2, 1}, {4, 2}, {1, 2}, {2, 2}, {4, 4}};

	for (size_t i = 0; i < ARRAY_SIZE(shapes) * ARRAY_SIZE(shapes) * 2; i++) {
		bool flat = i % 2;
		struct host *a = host_new(shapes[i / 2 % ARRAY_SIZE(shapes)], 1, flat);
		struct host *b = host_new(shapes[i / 2 / ARRAY_SIZE(shapes)], 2, flat);
		uint32_t due = a->n < b->n ? a->n : b->n;
		struct rdma_pair first[RAILS], again[RAILS];

		cr_assert_eq(pair(a, b, RAILS, first), due);
		cr_assert_eq(pair(a, b, RAILS, again), due);
		for (uint32_t k = 0; k < due; k++) {
			cr_assert_eq(first[k].port, again[k].port);
			cr_assert_eq(first[k].remote, again[k].remote);
		}
		for (uint32_t k = 0; !flat && k < due; k++) {
			cr_assert_eq(
				memcmp(first[k].gid->gid.raw, b->gids[first[k].remote].gid.raw, 14),
				0);
		}
		cr_assert_eq(pair(b, a, RAILS, again), due);
		free(a);
		free(b);
	}
}

/* Two ports of one card, or two cards: two rails both; with one down the other one is left. */
Test(rdma_pair, two_ports_or_two_cards)
{
	static const struct shape shapes[] = {{1, 2}, {2, 1}};

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct host *a = host_new(shapes[i], 1, false);
		struct host *b = host_new(shapes[1 - i], 2, false);
		struct rdma_pair pairs[RAILS];

		cr_assert_eq(pair(a, b, RAILS, pairs), 2);
		a->devices[0].ports[0].usable = false;
		cr_assert_eq(pair(a, b, RAILS, pairs), 1);
		cr_assert_eq(pairs[0].remote, 1);
		free(a);
		free(b);
	}
}

/* With fewer rails than ports allowed, those that are there are as many as may be. */
Test(rdma_pair, no_more_than_asked)
{
	struct host *a = host_new((struct shape){8, 1}, 1, true);
	struct host *b = host_new((struct shape){4, 2}, 2, true);
	struct rdma_pair pairs[RAILS];

	for (uint32_t max = 0; max <= 8; max++) {
		cr_assert_eq(pair(a, b, max, pairs), max);
	}
	free(a);
	free(b);
}
