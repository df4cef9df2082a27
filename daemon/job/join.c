/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Join: implementation
 *
 * Thread: control      Owns: struct member_ask      Locks: none
 */
#include "job/join_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/bootstrap.h"
#include "job/comm.h"
#include "job/roster.h"
#include "job/split.h"
#include "proto/base.h"
#include "proto/msg.h"

/* Of so many ranks all hosts may come at once; of more, a rank adds so much to the time. */
#define JOIN_SPREAD_RANKS 16384
#define JOIN_SPREAD_US 32

/* ---- the root's link ---------------------------------------------------------------------- */

void join_forget(struct member *m)
{
	if (m->ask && m->ask->host) {
		rocecomm__peer__host__free_unpacked(m->ask->host, NULL);
	}
	free(take_ptr(m->ask));
	m->root = NULL;
}

bool join_root_is(const struct member *m, const struct hostlink *l)
{
	if (m->root) {
		return m->root == l;
	}
	return m->ask && m->ask->taken &&
	       memcmp(m->ask->root_id, peer_host_id(l->peer), PEER_HOST_ID) == 0;
}

/* Another rank that is about to ask the same root. */
static struct member *join_companion(const struct member *m)
{
	list_for_each (at, &m->jobs->joining) {
		struct member *other = container_of(at, struct member, link);

		if (other != m && other->ask && !other->ask->sent && other->root &&
		    memcmp(other->joined, m->joined, UID_SIZE) == 0) {
			return other;
		}
	}
	return NULL;
}

/* See join.h. */
uint64_t join_delay_ms(const uint8_t *host_id, uint32_t size)
{
	uint64_t hash = 0xcbf29ce484222325u, spread; /* FNV-1a */

	if (size <= JOIN_SPREAD_RANKS) {
		return 0;
	}
	spread = (uint64_t)size * JOIN_SPREAD_US / 1000;
	for (size_t i = 0; i < PEER_HOST_ID; i++) {
		hash = (hash ^ host_id[i]) * 0x100000001b3u;
	}
	return (hash ^ hash >> 32) % spread;
}

/* Finds or makes the link to the root. Return: STATUS_OK or why not. */
static enum status join_link(struct member *m, const Rocecomm__Peer__Host *host, bool visit,
			     char *text, size_t size)
{
	const struct member *companion = join_companion(m);
	int r = 0;

	if (companion) {
		m->root = companion->root;
	} else {
		jobs_telling(m->jobs);
		r = hostlink_connect(m->jobs, host, visit, &m->root);
	}
	if (r < 0) {
		snprintf(text, size, "cannot connect to host %s, where the ranks meet: %s",
			 host->name[0]	     ? host->name
			 : host->n_addresses ? host->addresses[0]
					     : "?",
			 strerror(-r));
		return r == -EINVAL ? STATUS_UNREACHABLE : status_from_errno(r);
	}
	snprintf(m->root_name, sizeof(m->root_name), "%s", peer_name(m->root->peer));
	return STATUS_OK;
}

/* The same, or sees to it that it is made later. */
enum status join_connect(struct member *m, const Rocecomm__Peer__Host *host, bool visit, char *text,
			 size_t size)
{
	uint64_t delay = visit ? join_delay_ms(m->jobs->self.host_id.data, m->ask->size) : 0;

	m->ask->host = visit ? roster_host_copy(host) : NULL;
	if (visit && !m->ask->host) {
		snprintf(text, size, "the daemon has no memory");
		return STATUS_NO_MEMORY;
	}
	if (delay < JOBS_TICK_MS || join_companion(m)) {
		return join_link(m, host, visit, text, size);
	}
	snprintf(m->root_name, sizeof(m->root_name), "%s", host->name);
	m->ask->due = jobs_now(m->jobs) + delay;
	return STATUS_OK;
}

/* See join.h. */
void join_tick(struct jobs *jobs, uint64_t now)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->joining) {
			struct member *m = container_of(at, struct member, link);
			enum status status;

			if (!m->ask || m->root || m->ask->due == 0 || m->ask->due > now) {
				continue;
			}
			m->ask->due = 0;
			status = join_link(m, m->ask->host, true, text, sizeof(text));
			if (status != STATUS_OK) {
				member_refuse(m, status, text);
			}
			jobs_soon(jobs);
			found = true;
			break;
		}
	}
}

/* ---- what is sent ------------------------------------------------------------------------- */

static bool join_same(const struct member *a, const struct member *b)
{
	const struct member_ask *x = a->ask, *y = b->ask;

	return y && y->kind == ASK_JOIN && !y->sent && a->root == b->root && x->env == y->env &&
	       memcmp(a->joined, b->joined, UID_SIZE) == 0 && x->size == y->size &&
	       x->join_timeout_ms == y->join_timeout_ms &&
	       x->arrival_timeout_ms == y->arrival_timeout_ms &&
	       x->transfer_timeout_ms == y->transfer_timeout_ms && strcmp(x->name, y->name) == 0;
}

/* Asks for a rank and all that want the same. */
static void join_send(struct member *m)
{
	Rocecomm__Peer__Join join = ROCECOMM__PEER__JOIN__INIT;
	Rocecomm__Peer__Rank ranks[LIMIT_LOCAL_RANKS], *list[LIMIT_LOCAL_RANKS];
	struct member_ask *ask = m->ask;
	unsigned int n = 0;

	list_for_each (at, &m->jobs->joining) {
		struct member *other = container_of(at, struct member, link);

		if (n < LIMIT_LOCAL_RANKS && join_same(m, other)) {
			rocecomm__peer__rank__init(&ranks[n]);
			ranks[n].rank = other->rank;
			ranks[n].pid = other->pid;
			ranks[n].client = (char *)(uintptr_t)other->client;
			list[n] = &ranks[n];
			n++;
			if (other != m) {
				other->ask->sent = true;
			}
		}
	}
	ask->sent = true;
	join.uid.data = m->joined;
	join.uid.len = UID_SIZE;
	join.size = ask->size;
	join.rank = list[0];
	join.more = list + 1;
	join.n_more = n - 1;
	join.env = ask->env;
	join.name = ask->name;
	join.host = &m->jobs->self;
	join.join_timeout_ms = ask->join_timeout_ms;
	join.arrival_timeout_ms = ask->arrival_timeout_ms;
	join.transfer_timeout_ms = ask->transfer_timeout_ms;
	hostlink_send(m->root, PEER_MSG_JOIN, &join.base);
}

static void join_send_split(struct member *m)
{
	Rocecomm__Peer__Split msg = ROCECOMM__PEER__SPLIT__INIT;
	struct member_ask *ask = m->ask;

	ask->sent = true;
	msg.parent.data = m->parent;
	msg.parent.len = UID_SIZE;
	msg.rank = m->rank;
	msg.color = ask->color;
	msg.key = ask->key;
	msg.number = ask->number;
	msg.name = ask->name;
	msg.arrival_timeout_ms = ask->arrival_timeout_ms;
	msg.transfer_timeout_ms = ask->transfer_timeout_ms;
	hostlink_send(m->root, PEER_MSG_SPLIT, &msg.base);
}

/* Whoever we visited and has nothing to tell us any more. */
static void join_end_visits(struct jobs *jobs)
{
	list_for_each (at, &jobs->links) {
		struct hostlink *l = container_of(at, struct hostlink, link);
		bool waits = false;

		if (!l->visit) {
			continue;
		}
		list_for_each (i, &jobs->joining) {
			waits = waits || container_of(i, struct member, link)->root == l;
		}
		if (!waits) {
			peer_release(l->peer);
		}
	}
}

/* See join.h. */
void join_run(struct jobs *jobs)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (!m->ask || m->ask->sent || !m->root || !peer_is_up(m->root->peer)) {
			continue;
		}
		if (m->ask->kind == ASK_SPLIT) {
			join_send_split(m);
		} else {
			join_send(m);
		}
	}
	join_end_visits(jobs);
}

/* See join.h. */
void join_withdraw(struct member *m, enum status status, const char *text)
{
	Rocecomm__Peer__CommFail fail = ROCECOMM__PEER__COMM_FAIL__INIT;
	struct hostlink *l = m->root;

	if (m->at_root) {
		rendezvous_gone(m->jobs, m->joined, m->rank, status, text);
		split_gone(m->jobs, m->joined, status, text);
		return;
	}
	jobs_soon(m->jobs); /* a visit may be over */
	if (!m->ask || !m->ask->sent) {
		return;
	}
	if (!l && m->ask->taken && hostlink_connect(m->jobs, m->ask->host, true, &l) < 0) {
		return;
	}
	fail.uid.data = m->joined;
	fail.uid.len = UID_SIZE;
	fail.status = status;
	fail.text = (char *)(uintptr_t)text;
	fail.rank = (int32_t)m->rank;
	hostlink_send(l, PEER_MSG_COMM_FAIL, &fail.base);
}

bool join_on_taken(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__JoinTaken *taken = (const Rocecomm__Peer__JoinTaken *)msg;

	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (m->root != l || !l->visit || !m->ask || !m->ask->sent || !m->ask->host ||
		    taken->uid.len != UID_SIZE ||
		    memcmp(taken->uid.data, m->joined, UID_SIZE) != 0) {
			continue;
		}
		m->root = NULL;
		m->ask->taken = true;
		memcpy(m->ask->root_id, peer_host_id(l->peer), PEER_HOST_ID);
	}
	jobs_soon(jobs);
	return false;
}
