/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of peers: many daemons at once, all of them connecting to all in random order
 *
 * Whoever dials whom first, and with or without knowing the host_id: every pair ends with one link,
 * which both sides have told once, and messages reach the other side. Some daemons stop and come
 * back as others in the middle of it.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "peer.pb-c.h"
#include "peers_fixture.h"
#include "proto/base.h"
#include "proto/msg.h"

#define NODES 7

struct node {
	struct peers *peers;
	uint8_t id;
	int up[256], streams[256], heard[256]; /* by the first byte of the other's host_id */
	int downs, closed, total_up;
};

static void on_up(void *arg, struct peer *peer)
{
	struct node *n = arg;
	uint8_t other = peer_host_id(peer)[0];

	cr_assert_eq(++n->up[other], 1, "%02x is up twice at %02x", other, n->id);
	cr_assert_eq(n->streams[other], 2);
	n->total_up++;
}

static void on_down(void *arg, struct peer *peer, enum status status, const char *reason)
{
	struct node *n = arg;
	uint8_t other = peer_host_id(peer)[0];

	n->total_up -= n->up[other];
	n->up[other] = n->streams[other] = 0;
	n->downs++;
}

static void on_message(void *arg, struct peer *peer, uint16_t type, const uint8_t *body,
		       size_t size)
{
	struct node *n = arg;

	cr_assert_eq(n->up[peer_host_id(peer)[0]], 1);
	n->heard[peer_host_id(peer)[0]]++;
}

static void on_stream(void *arg, struct peer *peer, int fd, unsigned int index)
{
	struct node *n = arg;

	close(fd);
	cr_assert_leq(++n->streams[peer_host_id(peer)[0]], 2);
}

static void on_merged(void *arg, struct peer *from, struct peer *into)
{
}

static const struct peers_events node_events = {on_up, on_down, on_message, on_stream, on_merged};

static void node_open(struct node *n, uint8_t id)
{
	struct peers_options o = options(id, "node");

	memset(n, 0, sizeof(*n));
	n->id = id;
	o.streams = 2;
	o.peer_timeout_ms = 2000;
	o.connect_timeout_ms = 5000;
	cr_assert_eq(peers_new(&loop, &o, &node_events, n, &n->peers), 0);
}

static void node_dial(struct node *from, struct node *to, bool known)
{
	Rocecomm__Peer__CommGo go = ROCECOMM__PEER__COMM_GO__INIT;
	struct peer_host host = {.addresses = v4, .naddresses = 1, .port = peers_port(to->peers)};
	struct peer *peer;

	if (known) {
		memset(host.host_id, to->id, sizeof(host.host_id));
	}
	cr_assert_eq(peers_connect(from->peers, &host, &peer), 0);
	cr_assert_eq(peer_send(peer, PEER_MSG_COMM_GO, &go.base), 0);
}

static void on_node_closed(void *arg)
{
	((struct node *)arg)->closed++;
}

static void node_close(struct node *n)
{
	peers_close(n->peers, on_node_closed, n);
	cr_assert(run_until(&n->closed, 1, 3000), "something stays in the loop");
	n->peers = peers_free(n->peers);
}

static int all_up(struct node *nodes)
{
	int up = 0;

	for (int i = 0; i < NODES; i++) {
		up += nodes[i].total_up;
	}
	return up;
}

static void mesh(unsigned int seed)
{
	struct node nodes[NODES];
	const int want = NODES * (NODES - 1);

	srand(seed);
	for (int i = 0; i < NODES; i++) {
		node_open(&nodes[i], (uint8_t)(10 + i));
	}
	for (int k = 0; k < 3 * want; k++) {
		int from = rand() % NODES, to = rand() % NODES;

		if (from != to) {
			node_dial(&nodes[from], &nodes[to], rand() & 1);
		}
		if (rand() % 3 == 0) {
			uv_run(&loop, UV_RUN_NOWAIT);
		}
		if (k == want) { /* one goes, and comes back as another */
			node_close(&nodes[0]);
			node_open(&nodes[0], 99);
		}
	}
	for (int i = 0; i < NODES; i++) {
		for (int j = i + 1; j < NODES; j++) {
			node_dial(&nodes[i], &nodes[j], true);
		}
	}
	for (int t = 0; t < 200 && all_up(nodes) < want; t++) {
		run_for(20);
	}
	run_for(200);
	cr_assert_eq(all_up(nodes), want, "seed %u", seed);
	for (int i = 0; i < NODES; i++) {
		for (int j = i + 1; j < NODES; j++) {
			cr_assert_geq(nodes[j].heard[nodes[i].id], 1, "seed %u: %d to %d", seed, i,
				      j);
		}
	}
	for (int i = 0; i < NODES; i++) {
		node_close(&nodes[i]);
	}
}

TestSuite(peers_mesh, .init = fixture_setup, .fini = fixture_teardown, .timeout = 120);

Test(peers_mesh, all_to_all)
{
	for (unsigned int seed = 1; seed <= 6; seed++) {
		mesh(seed);
	}
}
