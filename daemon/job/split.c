/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Split: implementation
 *
 * Thread: control      Owns: see split.h      Locks: none
 */
#include "job/split.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/comm.h"
#include "job/formation.h"
#include "job/member.h"
#include "job/roster.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

#define SPLITS_PENDING 1024 /* of one parent at a time */
#define MISSING_NAMED 8

struct split_rank {
	bool here;
	int32_t color;
	int32_t key;
	uint32_t rank; /* in the parent */
};

struct split {
	struct list link; /* jobs.splits */
	struct jobs *jobs;
	struct communicator *parent;
	uint8_t joined[UID_SIZE];
	uint64_t number;
	uint64_t deadline;
	uint32_t arrival_timeout_ms, transfer_timeout_ms;
	char name[LIMIT_NAME];
	uint32_t nhere;
	struct split_rank *ranks; /* [parent->size] */
};

/* See split.h. */
int split_uid(const uint8_t parent[UID_SIZE], uint64_t number, uint8_t ret[UID_SIZE])
{
	uint8_t data[UID_SIZE + 8];

	memcpy(data, parent, UID_SIZE);
	for (unsigned int i = 0; i < 8; i++) {
		data[UID_SIZE + i] = (uint8_t)(number >> (8 * i));
	}
	return uid_derive(data, sizeof(data), ret);
}

static struct split *split_free(struct split *s)
{
	list_remove(&s->link);
	free(s->ranks);
	free(s);
	return NULL;
}

/* The link to a host of the parent; a visit, if it is far away. */
static struct hostlink *split_link(const struct split *s, uint32_t host)
{
	struct hostlink *l = s->parent->links[host];

	if (!l && communicator_is_sparse(s->parent) && host != s->parent->host &&
	    hostlink_connect(s->jobs, s->parent->plan->hosts[host], true, &l) < 0) {
		return NULL;
	}
	return l;
}

/* Tells the hosts whose ranks wait, this one last; @s is gone afterwards. */
static void split_fail(struct split *s, enum status status, const char *text)
{
	Rocecomm__Peer__CommFail msg = ROCECOMM__PEER__COMM_FAIL__INIT;
	struct jobs *jobs = s->jobs;
	uint8_t joined[UID_SIZE];
	cleanup_free bool *told = calloc(s->parent->nhosts, sizeof(*told));

	memcpy(joined, s->joined, UID_SIZE);
	msg.uid.data = joined;
	msg.uid.len = UID_SIZE;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	msg.rank = -1;
	for (uint32_t i = 0; told && i < s->parent->size; i++) {
		/* The list may be sorted already. */
		uint32_t host = s->parent->plan->host_of[s->ranks[i].rank];

		if (s->ranks[i].here && !told[host]) {
			told[host] = true;
			hostlink_send(split_link(s, host), PEER_MSG_COMM_FAIL, &msg.base);
		}
	}
	jobs_soon(jobs); /* ends visits */
	split_free(s);
	members_refuse(jobs, joined, -1, status, text);
}

/* ---- collecting --------------------------------------------------------------------------- */

static struct split *split_find(struct communicator *parent, uint64_t number,
				unsigned int *ret_pending)
{
	*ret_pending = 0;
	list_for_each (at, &parent->jobs->splits) {
		struct split *s = container_of(at, struct split, link);

		if (s->parent == parent && s->number == number) {
			return s;
		}
		*ret_pending += s->parent == parent;
	}
	return NULL;
}

static struct split *split_new(struct communicator *parent, const Rocecomm__Peer__Split *msg)
{
	struct split *s = calloc(1, sizeof(*s));

	if (!s) {
		return NULL;
	}
	s->jobs = parent->jobs;
	s->parent = parent;
	s->number = msg->number;
	s->arrival_timeout_ms = msg->arrival_timeout_ms;
	s->transfer_timeout_ms = msg->transfer_timeout_ms;
	s->deadline = jobs_now(s->jobs) + s->jobs->config->join_timeout_ms;
	snprintf(s->name, sizeof(s->name), "%s", msg->name[0] ? msg->name : parent->plan->name);
	s->ranks = calloc(parent->size, sizeof(*s->ranks));
	list_init(&s->link);
	if (!s->ranks || split_uid(parent->uid, s->number, s->joined) < 0) {
		return split_free(s);
	}
	list_append(&s->jobs->splits, &s->link);
	jobs_tick(s->jobs);
	return s;
}

/* Refuses one rank whose wish cannot be kept. */
static void split_refuse(struct jobs *jobs, struct hostlink *l, const Rocecomm__Peer__Split *msg,
			 enum status status, const char *text)
{
	Rocecomm__Peer__CommFail fail = ROCECOMM__PEER__COMM_FAIL__INIT;
	uint8_t joined[UID_SIZE];

	if (msg->parent.len != UID_SIZE || split_uid(msg->parent.data, msg->number, joined) < 0) {
		return;
	}
	if (!l) {
		members_refuse(jobs, joined, (int32_t)msg->rank, status, text);
		return;
	}
	fail.uid.data = joined;
	fail.uid.len = UID_SIZE;
	fail.status = status;
	fail.text = (char *)(uintptr_t)text;
	fail.rank = (int32_t)msg->rank;
	hostlink_send(l, PEER_MSG_COMM_FAIL, &fail.base);
}

static void split_complete(struct split *s);

/* Does this rank live where the message comes from? */
static bool split_rank_is_on(const struct communicator *parent, uint32_t rank,
			     const struct hostlink *l)
{
	uint32_t host = parent->plan->host_of[rank];

	if (!l) {
		return host == parent->host;
	}
	return host != parent->host && memcmp(parent->plan->hosts[host]->host_id.data,
					      peer_host_id(l->peer), PEER_HOST_ID) == 0;
}

/* See split.h. */
void split_join(struct jobs *jobs, struct hostlink *l, const Rocecomm__Peer__Split *msg)
{
	struct communicator *parent = communicator_find(jobs, &msg->parent);
	unsigned int pending;
	struct split *s;

	if (!parent || parent->status != STATUS_OK || parent->doom.on) {
		split_refuse(jobs, l, msg,
			     parent && parent->status ? parent->status : STATUS_PEER_DIED,
			     !parent			   ? "the parent communicator is gone"
			     : parent->status != STATUS_OK ? parent->text
							   : parent->doom.text);
		return;
	}
	if (msg->rank >= parent->size || !split_rank_is_on(parent, msg->rank, l)) {
		log_warn("a Split for rank %" PRIu32 " is dropped: the rank is not on that host",
			 msg->rank);
		return;
	}
	s = split_find(parent, msg->number, &pending);
	if (!s) {
		s = pending < SPLITS_PENDING ? split_new(parent, msg) : NULL;
	}
	if (!s) {
		split_refuse(jobs, l, msg, STATUS_NO_MEMORY,
			     "too many splits of one communicator are under way");
		return;
	}
	if (s->ranks[msg->rank].here) {
		return;
	}
	s->ranks[msg->rank] = (struct split_rank){
		.here = true, .color = msg->color, .key = msg->key, .rank = msg->rank};
	if (++s->nhere == parent->size) {
		split_complete(s);
	}
}

bool split_on_split(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__Split *split = (const Rocecomm__Peer__Split *)msg;
	Rocecomm__Peer__JoinTaken taken = ROCECOMM__PEER__JOIN_TAKEN__INIT;
	uint8_t joined[UID_SIZE];

	split_join(jobs, l, split);
	if (peer_is_visit(l->peer) && split->parent.len == UID_SIZE &&
	    split_uid(split->parent.data, split->number, joined) == 0) {
		taken.uid.data = joined;
		taken.uid.len = UID_SIZE;
		hostlink_send(l, PEER_MSG_JOIN_TAKEN, &taken.base);
	}
	return false;
}

/* ---- forming ------------------------------------------------------------------------------ */

static int split_compare(const void *va, const void *vb)
{
	const struct split_rank *a = va, *b = vb;

	if (a->color != b->color) {
		return a->color < b->color ? -1 : 1;
	}
	if (a->key != b->key) {
		return a->key < b->key ? -1 : 1;
	}
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Forms the ranks [first, end) of the sorted list. @index: [hosts of the parent], UINT32_MAX */
static int split_form(struct split *s, uint32_t *index, uint32_t first, uint32_t end, char *text,
		      size_t size)
{
	const struct communicator *parent = s->parent;
	Rocecomm__Peer__CommPrepare *plan;
	struct roster r;
	int ret;

	if (roster_init(&r, end - first, MIN(end - first, parent->nhosts)) < 0) {
		roster_deinit(&r);
		return STATUS_NO_MEMORY;
	}
	plan = &r.plan;
	for (uint32_t i = first; i < end; i++) {
		uint32_t rank = s->ranks[i].rank, host = parent->plan->host_of[rank];

		if (index[host] == UINT32_MAX) {
			index[host] = roster_add_host(&r, parent->plan->hosts[host]);
		}
		roster_add_rank(&r, index[host], parent->plan->pids[rank],
				roster_client(parent->plan, rank));
		plan->parent_ranks[plan->n_parent_ranks++] = rank;
	}
	plan->name = s->name;
	plan->joined.data = s->joined;
	plan->joined.len = UID_SIZE;
	plan->parent.data = (uint8_t *)(uintptr_t)parent->uid;
	plan->parent.len = UID_SIZE;
	plan->arrival_timeout_ms = s->arrival_timeout_ms;
	plan->transfer_timeout_ms = s->transfer_timeout_ms;
	ret = formation_start(s->jobs, plan, text, size);
	for (uint32_t i = first; i < end; i++) {
		index[parent->plan->host_of[s->ranks[i].rank]] = UINT32_MAX;
	}
	roster_deinit(&r);
	return ret;
}

static void split_complete(struct split *s)
{
	cleanup_free uint32_t *index = calloc(s->parent->nhosts, sizeof(*index));
	char text[LIMIT_ERROR_TEXT] = "the root daemon has no memory";
	uint32_t n = s->parent->size, first = 0;
	int r = index ? 0 : STATUS_NO_MEMORY;

	for (uint32_t h = 0; index && h < s->parent->nhosts; h++) {
		index[h] = UINT32_MAX;
	}
	qsort(s->ranks, n, sizeof(*s->ranks), split_compare);
	while (r == 0 && first < n) {
		uint32_t end = first + 1;

		while (end < n && s->ranks[end].color == s->ranks[first].color) {
			end++;
		}
		if (s->ranks[first].color >= 0) {
			r = split_form(s, index, first, end, text, sizeof(text));
		}
		first = end;
	}
	if (r != 0) {
		split_fail(s, (enum status)r, text);
	} else {
		split_free(s);
	}
}

/* ---- giving up ---------------------------------------------------------------------------- */

void splits_parent_gone(struct communicator *parent, enum status status, const char *text)
{
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &parent->jobs->splits) {
			struct split *s = container_of(at, struct split, link);

			if (s->parent == parent) {
				split_fail(s, status, text);
				found = true;
				break;
			}
		}
	}
	/* Ranks of this host whose wish is with another host, which may have gone. */
	found = parent->host != 0;
	while (found) {
		found = false;
		list_for_each (at, &parent->jobs->joining) {
			struct member *m = container_of(at, struct member, link);

			if (m->has_parent && memcmp(m->parent, parent->uid, UID_SIZE) == 0) {
				member_refuse(m, status, text);
				found = true;
				break;
			}
		}
	}
}

void split_gone(struct jobs *jobs, const uint8_t joined[UID_SIZE], enum status status,
		const char *text)
{
	list_for_each (at, &jobs->splits) {
		struct split *s = container_of(at, struct split, link);

		if (memcmp(s->joined, joined, UID_SIZE) == 0) {
			split_fail(s, status, text);
			return;
		}
	}
}

static void split_timeout(struct split *s)
{
	char text[LIMIT_ERROR_TEXT], rank[256];
	uint32_t first = 0;

	while (first < s->parent->size && s->ranks[first].here) {
		first++;
	}
	communicator_rank_text(s->parent, first, rank, sizeof(rank));
	snprintf(text, sizeof(text),
		 "%" PRIu32 " of %" PRIu32 " ranks have not called split (or dup) within %" PRIu32
		 " ms, %s the first of them: it is collective over all ranks",
		 s->parent->size - s->nhere, s->parent->size, s->jobs->config->join_timeout_ms,
		 rank);
	split_fail(s, STATUS_TIMEOUT, text);
}

void splits_tick(struct jobs *jobs, uint64_t now)
{
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->splits) {
			struct split *s = container_of(at, struct split, link);

			if (s->deadline <= now) {
				split_timeout(s);
				found = true;
				break;
			}
		}
	}
	if (!list_empty(&jobs->splits)) {
		jobs_tick(jobs);
	}
}

void splits_drop_all(struct jobs *jobs)
{
	while (!list_empty(&jobs->splits)) {
		split_free(container_of(list_first(&jobs->splits), struct split, link));
	}
}
