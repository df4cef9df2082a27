/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Control simulation: one start
 *
 * Thread: main      Owns: the nodes of a run      Locks: none
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "job/join.h"
#include "job/roster.h"
#include "job/uniqueid.h"
#include "proto/base.h"
#include "tools/simulate/control.h"
#include "tools/simulate/control_node.h"
#include "util/log.h"

#define END_S 120 /* whoever is not ready by then never is */

/* Measured: a TLS link with its objects; data connections with the engine's; a daemon with none. */
#define LINK_BYTES 18000
#define DATA_LINK_BYTES 95000
#define DAEMON_BYTES 5500000

/*
 * Measured: TLS with OpenSSL 3 (X25519, AES-128-GCM) takes 155 us on either side, CommPrepare of
 * 80,000 ranks 5 to 11 ns a byte with all that is made of it. 20 us one way is a data centre's
 * network with both kernels.
 */
const struct net_model control_model = {
	.latency_us = 20,
	.gbit = 100,
	.recv_us = 6,
	.recv_byte_ns = 10,
	.send_us = 4,
	.send_byte_ns = 1,
	.handshake_us = 160,
	.client_us = 20,
	.incoming = 64,
	.backlog = 4096, /* net.core.somaxconn */
	.connect_timeout_ms = 5000,
};

struct run {
	struct control c;
	struct real_node **real; /* [hosts]; NULL: scripted */
	struct config *config;
	size_t heap; /* before all nodes */
};

void control_host_id(uint32_t host, uint8_t *ret)
{
	memset(ret, 0x5c, UID_SIZE);
	for (unsigned int i = 0; i < 4; i++) {
		ret[i] = (uint8_t)((host + 1) >> (8 * i));
	}
}

uint32_t control_host_of_id(const uint8_t *id)
{
	uint32_t host = 0;

	for (unsigned int i = 0; i < 4; i++) {
		host |= (uint32_t)id[i] << (8 * i);
	}
	return host - 1;
}

void control_host_name(uint32_t host, char *buf, size_t size)
{
	snprintf(buf, size, "node-%05u.cluster", host);
}

/* Spread evenly and in no order of the hosts. */
uint64_t control_begins(const struct control *c, uint32_t host)
{
	uint64_t place = (uint64_t)host * 2654435761u % 1000003;

	return (uint64_t)((double)place / 1000003.0 * c->skew_ms * 1e9);
}

uint64_t control_visit_delay(const struct control *c, uint32_t host)
{
	uint8_t id[UID_SIZE];

	control_host_id(host, id);
	return join_delay_ms(id, c->hosts * c->ranks) * UINT64_C(1000000000);
}

void control_ready(struct control *c, uint32_t ranks)
{
	c->ready += ranks;
	c->ready_at = MAX(c->ready_at, c->net->now);
}

void control_tell(struct control *c, struct net_host *host)
{
	double bytes = 50.0 * c->hosts + 2.0 * c->hosts * c->ranks;

	net_work(host,
		 c->ranks * (c->net->model.client_us + c->net->model.send_byte_ns * bytes * 1e-3));
}

static size_t heap_now(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static bool is_real(const struct run *run, uint32_t host, bool full)
{
	return full || host <= 1 || host + 1 == run->c.hosts;
}

static int run_nodes(struct run *run, bool full)
{
	struct control *c = &run->c;
	uint32_t watched[] = {0, 1, c->hosts - 1};

	run->heap = heap_now();
	for (uint32_t h = 0; h < c->hosts; h++) {
		int r = is_real(run, h, full) ? real_node_new(c, h, &run->real[h])
					      : script_node_new(c, h);

		if (r < 0) {
			return err_trace(r);
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(watched); i++) {
		if (watched[i] < c->hosts) {
			real_node_watch(run->real[watched[i]]);
		}
	}
	return err_trace(real_node_unique_id(run->real[0], c->id));
}

static void run_end(struct run *run)
{
	for (uint32_t h = 0; run->real && run->c.net && h < run->c.hosts; h++) {
		if (run->real[h]) {
			real_node_free(run->real[h]);
		} else {
			script_node_free(&run->c.net->hosts[h]);
		}
	}
	net_free(run->c.net);
	config_free(run->config);
	free(run->real);
}

static void run_traffic(const struct net *net, struct control_result *ret)
{
	for (uint32_t h = 0; h < net->nhosts; h++) {
		const struct net_host *host = &net->hosts[h];

		ret->messages += host->nsent;
		ret->most_bytes = MAX(ret->most_bytes, host->sent + host->received);
		ret->most_messages = MAX(ret->most_messages, host->nsent + host->nreceived);
		ret->most_work_s = MAX(ret->most_work_s, net_seconds(host->work));
		ret->most_links = MAX(ret->most_links, host->most_links);
	}
	ret->root_bytes = net->hosts[0].sent + net->hosts[0].received;
	ret->refused = net->refused;
}

static void run_memory(const struct run *run, struct control_result *ret)
{
	const struct net *net = run->c.net;
	uint32_t last = run->c.hosts - 1;

	real_node_memory(run->real[0], &ret->root_heap);
	for (uint32_t h = 1; h <= last; h += MAX(last - 1, 1u)) {
		size_t most;

		real_node_memory(run->real[h], &most);
		ret->host_heap = MAX(ret->host_heap, most);
	}
	for (uint32_t h = 0; h <= last; h += MAX(last / 2, 1u)) {
		const struct net_host *host = &net->hosts[h];
		size_t size = DAEMON_BYTES + MAX(ret->root_heap, ret->host_heap) +
			      (size_t)host->most_links * LINK_BYTES +
			      (size_t)host->data_links * DATA_LINK_BYTES;

		ret->daemon = MAX(ret->daemon, size);
	}
}

/* See control.h. */
int control_run(const struct net_model *model, uint32_t hosts, uint32_t ranks, uint32_t fanout,
		double skew_ms, struct control_result *ret)
{
	struct run run = {.c = {.hosts = hosts, .ranks = ranks, .skew_ms = skew_ms}};
	struct control *c = &run.c;
	int r;

	memset(ret, 0, sizeof(*ret));
	ret->full = hosts <= CONTROL_FULL_HOSTS;
	c->fanout = hosts <= ROSTER_MESH_HOSTS ? 0 : fanout ? fanout : ROSTER_FANOUT;
	log_set_level(LOG_LEVEL_ERROR);
	r = net_new(model, hosts, &c->net);
	run.real = calloc(hosts, sizeof(struct real_node *));
	if (r == 0) {
		r = run.real ? config_new(&run.config) : -ENOMEM;
		c->config = run.config;
	}
	if (r == 0) {
		r = run_nodes(&run, ret->full);
	}
	if (r == 0) {
		memcpy(c->joined, c->id + 8, UID_SIZE);
		net_run(c->net, END_S * UINT64_C(1000000000000));
		run_traffic(c->net, ret);
		run_memory(&run, ret);
		ret->seconds = net_seconds(c->ready_at);
		ret->listed_s = net_seconds(c->listed_at);
		if (c->ready != (uint64_t)hosts * ranks) {
			snprintf(ret->error, sizeof(ret->error),
				 "%llu of %llu ranks are ready after %d s%s%.150s",
				 (unsigned long long)c->ready, (unsigned long long)hosts * ranks,
				 END_S, c->error[0] ? ": " : "", c->error);
			r = -EIO;
		}
	}
	run_end(&run);
	return r;
}
