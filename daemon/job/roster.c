/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Roster: implementation
 *
 * Thread: any      Owns: see struct roster      Locks: none
 */
#include "job/roster.h"

#include <stdlib.h>
#include <string.h>

#include "job/peers.h"
#include "job/uniqueid.h"
#include "proto/base.h"
#include "proto/limits.h"

/* ---- making ------------------------------------------------------------------------------- */

int roster_init(struct roster *r, uint32_t nranks, uint32_t nhosts)
{
	Rocecomm__Peer__CommPrepare *plan = &r->plan;

	rocecomm__peer__comm_prepare__init(plan);
	hashmap_init(&r->clients);
	plan->hosts = calloc(nhosts, sizeof(Rocecomm__Peer__Host *));
	plan->host_of = calloc(nranks, sizeof(*plan->host_of));
	plan->pids = calloc(nranks, sizeof(*plan->pids));
	plan->client_of = calloc(nranks, sizeof(*plan->client_of));
	plan->clients = calloc(nranks, sizeof(char *));
	plan->parent_ranks = calloc(nranks, sizeof(*plan->parent_ranks));
	return plan->hosts && plan->host_of && plan->pids && plan->client_of && plan->clients &&
			       plan->parent_ranks
		       ? 0
		       : err_origin(-ENOMEM);
}

void roster_deinit(struct roster *r)
{
	free(r->plan.hosts);
	free(r->plan.host_of);
	free(r->plan.pids);
	free(r->plan.client_of);
	free(r->plan.clients);
	free(r->plan.parent_ranks);
	hashmap_deinit(&r->clients);
}

uint32_t roster_add_host(struct roster *r, Rocecomm__Peer__Host *host)
{
	r->plan.hosts[r->plan.n_hosts] = host;
	return (uint32_t)r->plan.n_hosts++;
}

static uint64_t name_hash(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

	for (; *name != '\0'; name++) {
		hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
	}
	return hash;
}

/* Ranks of a job have one name or few: each is sent once. */
static uint32_t roster_client_index(struct roster *r, const char *client)
{
	Rocecomm__Peer__CommPrepare *plan = &r->plan;
	uint64_t hash = name_hash(client);
	size_t index = (size_t)(uintptr_t)hashmap_get(&r->clients, hash);

	if (index > 0 && strcmp(plan->clients[index - 1], client) == 0) {
		return (uint32_t)index - 1;
	}
	plan->clients[plan->n_clients] = (char *)(uintptr_t)client;
	if (index == 0) {
		/* Without it the name is sent again next time. */
		(void)hashmap_put(&r->clients, hash, (void *)(uintptr_t)(plan->n_clients + 1));
	}
	return (uint32_t)plan->n_clients++;
}

void roster_add_rank(struct roster *r, uint32_t host, uint32_t pid, const char *client)
{
	Rocecomm__Peer__CommPrepare *plan = &r->plan;
	size_t rank = plan->n_host_of++;

	plan->n_pids = plan->n_host_of;
	plan->host_of[rank] = host;
	plan->pids[rank] = pid;
	plan->client_of[rank] = roster_client_index(r, client);
	plan->n_client_of = plan->n_clients > 1 ? plan->n_host_of : 0;
}

/* ---- checking, reading -------------------------------------------------------------------- */

static const char *check_hosts(const Rocecomm__Peer__CommPrepare *plan, const uint8_t *host_id)
{
	unsigned int ours = 0;

	if (plan->n_hosts < 1 || plan->n_hosts > LIMIT_COMM_HOSTS) {
		return "its number of hosts is out of range";
	}
	for (size_t h = 0; h < plan->n_hosts; h++) {
		const Rocecomm__Peer__Host *host = plan->hosts[h];

		if (host->host_id.len != PEER_HOST_ID || host->port > UINT16_MAX ||
		    strlen(host->name) >= LIMIT_NAME) {
			return "a host's id, name or port is out of range";
		}
		ours += memcmp(host->host_id.data, host_id, PEER_HOST_ID) == 0;
	}
	return ours == 1 ? NULL : "this host is not in it once";
}

static const char *check_ranks(const Rocecomm__Peer__CommPrepare *plan)
{
	cleanup_free uint32_t *ranks = calloc(plan->n_hosts, sizeof(*ranks));

	if (!ranks) {
		return "this daemon has no memory";
	}
	for (size_t i = 0; i < plan->n_clients; i++) {
		if (strlen(plan->clients[i]) >= LIMIT_NAME) {
			return "a client's name is too long";
		}
	}
	for (size_t i = 0; i < plan->n_host_of; i++) {
		if (plan->host_of[i] >= plan->n_hosts ||
		    (plan->n_client_of > 0 && plan->client_of[i] >= plan->n_clients) ||
		    ++ranks[plan->host_of[i]] > LIMIT_LOCAL_RANKS) {
			return "a rank's host or name is out of range, or a host has too many";
		}
	}
	for (size_t h = 0; h < plan->n_hosts; h++) {
		if (ranks[h] == 0) {
			return "a host has no rank";
		}
	}
	return NULL;
}

/* See roster.h. */
const char *roster_check(const Rocecomm__Peer__CommPrepare *plan, const uint8_t *host_id)
{
	size_t n = plan->n_host_of;
	const char *why;

	if (plan->uid.len != UID_SIZE || plan->joined.len != UID_SIZE ||
	    (plan->parent.len != 0 && plan->parent.len != UID_SIZE)) {
		return "a uid has not 16 bytes";
	}
	if (n < 1 || n > LIMIT_COMM_RANKS || plan->n_pids != n ||
	    (plan->n_client_of != 0 && plan->n_client_of != n) || plan->n_clients > n ||
	    plan->n_parent_ranks != (plan->parent.len > 0 ? n : 0) ||
	    strlen(plan->name) >= LIMIT_NAME) {
		return "its size or name is out of range";
	}
	why = check_hosts(plan, host_id);
	if (!why && (plan->fanout > ROSTER_FANOUT_MAX || plan->first >= plan->n_hosts)) {
		why = "its tree is out of range";
	}
	return why ? why : check_ranks(plan);
}

const char *roster_client(const Rocecomm__Peer__CommPrepare *plan, uint32_t rank)
{
	if (plan->n_client_of > 0) {
		return plan->clients[plan->client_of[rank]];
	}
	return plan->n_clients > 0 ? plan->clients[0] : "";
}

uint32_t roster_waiting_rank(const Rocecomm__Peer__CommPrepare *plan, uint32_t rank)
{
	return plan->n_parent_ranks > 0 ? plan->parent_ranks[rank] : rank;
}

uint32_t roster_find(const Rocecomm__Peer__CommPrepare *plan, const uint8_t *host_id)
{
	for (size_t h = 0; h < plan->n_hosts; h++) {
		if (memcmp(plan->hosts[h]->host_id.data, host_id, PEER_HOST_ID) == 0) {
			return (uint32_t)h;
		}
	}
	return LIMIT_COMM_HOSTS;
}

Rocecomm__Peer__Host *roster_host_copy(const Rocecomm__Peer__Host *host)
{
	size_t size = rocecomm__peer__host__get_packed_size(host);
	cleanup_free uint8_t *packed = malloc(size + 1);

	if (!packed) {
		return NULL;
	}
	rocecomm__peer__host__pack(host, packed);
	return rocecomm__peer__host__unpack(NULL, size, packed);
}

/* ---- tree --------------------------------------------------------------------------------- */

static uint32_t position_of(const Rocecomm__Peer__CommPrepare *plan, uint32_t host)
{
	uint32_t n = (uint32_t)plan->n_hosts;

	return (host + n - plan->first) % n;
}

uint32_t roster_parent(const Rocecomm__Peer__CommPrepare *plan, uint32_t host)
{
	uint32_t at = position_of(plan, host);

	return at == 0 ? LIMIT_COMM_HOSTS
		       : ((at - 1) / plan->fanout + plan->first) % (uint32_t)plan->n_hosts;
}

uint32_t roster_children(const Rocecomm__Peer__CommPrepare *plan, uint32_t host, uint32_t *list)
{
	uint64_t at = (uint64_t)position_of(plan, host) * plan->fanout + 1;
	uint32_t n = 0;

	for (; n < plan->fanout && at < plan->n_hosts; at++) {
		list[n++] = (uint32_t)((at + plan->first) % plan->n_hosts);
	}
	return n;
}

/* ---- near hosts --------------------------------------------------------------------------- */

static void near_add(uint32_t *list, uint32_t *n, uint32_t self, uint32_t host)
{
	if (host == self) {
		return;
	}
	for (uint32_t i = 0; i < *n; i++) {
		if (list[i] == host) {
			return;
		}
	}
	list[(*n)++] = host;
}

/*
 * Halving and doubling (coll/rhd.c, coll/doubling.c): the first hosts are folded into pairs until a
 * power of two is left, whose partners differ in one bit of their numbers.
 */
static void near_partners(uint32_t hosts, uint32_t self, uint32_t *list, uint32_t *n)
{
	uint32_t units = 1, folded;

	while (units <= hosts / 2) {
		units *= 2;
	}
	folded = hosts - units;
	if (self < 2 * folded) {
		near_add(list, n, self, self ^ 1);
		if (self & 1) {
			return;
		}
	}
	for (uint32_t d = 1; d < units; d *= 2) {
		uint32_t unit = (self < 2 * folded ? self / 2 : self - folded) ^ d;

		near_add(list, n, self, unit < folded ? 2 * unit : unit + folded);
	}
}

uint32_t roster_near(const Rocecomm__Peer__CommPrepare *plan, uint32_t host, uint32_t *list)
{
	uint32_t hosts = (uint32_t)plan->n_hosts, n, parent;

	n = roster_children(plan, host, list);
	parent = roster_parent(plan, host);
	if (parent != LIMIT_COMM_HOSTS) {
		near_add(list, &n, host, parent);
	}
	for (uint32_t d = 1; d < hosts; d *= 2) {
		near_add(list, &n, host, (host + d) % hosts);
		near_add(list, &n, host, (host + hosts - d) % hosts);
	}
	near_partners(hosts, host, list, &n);
	return n;
}
