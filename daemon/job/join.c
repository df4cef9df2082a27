/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Join: implementation, and how members ask (member.h)
 *
 * Thread: control      Owns: struct member_ask      Locks: none
 */
#include "job/join.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/bootstrap.h"
#include "job/comm.h"
#include "job/roster.h"
#include "job/split.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

/* How much later than the root a joiner gives up by itself. */
#define JOIN_MARGIN_MS 5000
/* Of so many ranks all hosts may come at once; of more, a rank adds so much to the time. */
#define JOIN_SPREAD_RANKS 16384
#define JOIN_SPREAD_US 32

enum ask_kind { ASK_JOIN, ASK_SPLIT };

/* What a rank asks of the root on another host. */
struct member_ask {
	enum ask_kind kind;
	bool sent;		       /* the root may have it */
	bool taken;		       /* the root has it, and the visit is over */
	Rocecomm__Peer__Host *host;    /* the root, for a visit ... */
	uint64_t due;		       /* ... that begins then, ms */
	uint8_t root_id[PEER_HOST_ID]; /* when taken */
	uint32_t size, join_timeout_ms, arrival_timeout_ms, transfer_timeout_ms;
	bool env;
	char name[LIMIT_NAME];
	int32_t color, key; /* of a split */
	uint64_t number;
};

/* Where a unique id or an environment leads. */
struct member_root {
	bool self;
	Rocecomm__Peer__Host host;
};

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
static enum status join_connect(struct member *m, const Rocecomm__Peer__Host *host, bool visit,
				char *text, size_t size)
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

/* ---- starting ----------------------------------------------------------------------------- */

static enum status member_text(char *buf, size_t size, enum status status, const char *text)
{
	snprintf(buf, size, "%s", text);
	return status;
}

/* Gives up before anybody else has heard of it. */
static enum status member_not_started(struct member *m, enum status status)
{
	m->state = MEMBER_IDLE;
	m->starting = false;
	list_remove(&m->link);
	join_forget(m);
	return status;
}

/* Ends the start: STATUS_OK, or the refusal that came from inside. */
static enum status member_started(struct member *m, char *text, size_t size)
{
	enum status status;

	m->starting = false;
	if (m->state != MEMBER_REFUSED) {
		jobs_tick(m->jobs);
		return STATUS_OK;
	}
	status = m->status;
	member_text(text, size, status, m->text ? m->text : status_text(status));
	free(take_ptr(m->text));
	m->state = MEMBER_IDLE;
	join_forget(m);
	return status;
}

static void member_start(struct jobs *jobs, struct member *m, uint32_t rank, uint32_t timeout)
{
	m->jobs = jobs;
	m->state = MEMBER_JOINING;
	m->starting = true;
	m->rank = rank;
	m->has_parent = false;
	m->splits = 0;
	m->root = NULL;
	m->ask = NULL;
	m->comm = NULL;
	m->status = STATUS_OK;
	m->text = NULL;
	m->done = NULL;
	m->deadline = jobs_now(jobs) + timeout + JOIN_MARGIN_MS;
	list_init(&m->link);
	list_append(&jobs->joining, &m->link);
}

static void member_options_resolve(const struct jobs *jobs, const struct member_options *options,
				   uint32_t *ret_join, uint32_t *ret_arrival,
				   uint32_t *ret_transfer)
{
	*ret_join =
		options->join_timeout_ms ? options->join_timeout_ms : jobs->config->join_timeout_ms;
	*ret_arrival = options->arrival_timeout_ms ? options->arrival_timeout_ms
						   : jobs->config->arrival_timeout_ms;
	if (options->arrival_timeout_ms == UINT32_MAX) {
		*ret_arrival = 0;
	}
	*ret_transfer = options->transfer_timeout_ms ? options->transfer_timeout_ms
						     : jobs->config->transfer_timeout_ms;
}

static enum status member_check(struct jobs *jobs, const struct member *m, uint32_t rank,
				uint32_t size, char *text, size_t text_size)
{
	if (size < 1 || size > LIMIT_COMM_RANKS || rank >= size) {
		snprintf(text, text_size,
			 "rank %" PRIu32 " of %" PRIu32 ": size is 1 to %u, rank 0 to size - 1",
			 rank, size, LIMIT_COMM_RANKS);
		return STATUS_INVALID;
	}
	if (member_find(jobs, m->joined, rank)) {
		snprintf(text, text_size,
			 "rank %" PRIu32 " joins twice from host %s: every rank joins once", rank,
			 jobs_host(jobs));
		return STATUS_EXISTS;
	}
	return STATUS_OK;
}

/* This daemon is the root. */
static enum status member_ask_self(struct member *m, const struct member_ask *ask, char *text,
				   size_t text_size)
{
	Rocecomm__Peer__Join join = ROCECOMM__PEER__JOIN__INIT;
	Rocecomm__Peer__Rank who = ROCECOMM__PEER__RANK__INIT;

	who.rank = m->rank;
	who.pid = m->pid;
	who.client = (char *)(uintptr_t)m->client;
	join.uid.data = m->joined;
	join.uid.len = UID_SIZE;
	join.size = ask->size;
	join.rank = &who;
	join.env = ask->env;
	join.name = (char *)(uintptr_t)ask->name;
	join.host = &m->jobs->self;
	join.join_timeout_ms = ask->join_timeout_ms;
	join.arrival_timeout_ms = ask->arrival_timeout_ms;
	join.transfer_timeout_ms = ask->transfer_timeout_ms;
	m->at_root = true;
	jobs_telling(m->jobs);
	rendezvous_join(m->jobs, NULL, &join);
	return member_started(m, text, text_size);
}

/* Another daemon is: it hears from the loop. */
static enum status member_ask_other(struct member *m, const struct member_ask *ask,
				    const Rocecomm__Peer__Host *host, bool visit, char *text,
				    size_t text_size)
{
	enum status status;

	m->at_root = false;
	m->ask = malloc(sizeof(*m->ask));
	if (!m->ask) {
		member_not_started(m, STATUS_NO_MEMORY);
		return member_text(text, text_size, STATUS_NO_MEMORY, "the daemon has no memory");
	}
	*m->ask = *ask;
	status = join_connect(m, host, visit, text, text_size);
	if (status != STATUS_OK) {
		return member_not_started(m, status);
	}
	jobs_soon(m->jobs);
	return member_started(m, text, text_size);
}

static enum status member_ask(struct jobs *jobs, struct member *m, const struct member_root *root,
			      bool env, uint32_t rank, uint32_t size,
			      const struct member_options *options, char *text, size_t text_size)
{
	struct member_ask ask = {.kind = ASK_JOIN, .env = env, .size = size};
	enum status status = member_check(jobs, m, rank, size, text, text_size);

	if (status != STATUS_OK) {
		return status;
	}
	snprintf(ask.name, sizeof(ask.name), "%s", options->name);
	member_options_resolve(jobs, options, &ask.join_timeout_ms, &ask.arrival_timeout_ms,
			       &ask.transfer_timeout_ms);
	member_start(jobs, m, rank, ask.join_timeout_ms);
	return root->self ? member_ask_self(m, &ask, text, text_size)
			  : member_ask_other(m, &ask, &root->host, size > jobs->visit_ranks, text,
					     text_size);
}

static bool member_root_is_self(const struct jobs *jobs, const Rocecomm__Peer__Host *host)
{
	struct peer_host where = {
		.addresses = (const char *const *)host->addresses,
		.naddresses = host->n_addresses,
		.port = (uint16_t)host->port,
	};

	if (host->host_id.len == PEER_HOST_ID) {
		return memcmp(host->host_id.data, jobs->self.host_id.data, PEER_HOST_ID) == 0;
	}
	return peers_is_self(jobs->peers, &where);
}

/* See member.h. */
enum status member_join(struct jobs *jobs, struct member *m, const uint8_t *id, size_t id_size,
			uint32_t rank, uint32_t size, const struct member_options *options,
			char *text, size_t text_size)
{
	Rocecomm__Peer__Host *host = NULL;
	struct member_root root;
	enum status status;
	int r;

	r = uniqueid_decode(id, id_size, m->joined, &host);
	if (r == UNIQUEID_E_VERSION) {
		snprintf(text, text_size,
			 "the unique id is of version %u, this daemon knows version 1 only: use "
			 "daemons of one version on all hosts",
			 id[4]);
		return STATUS_VERSION;
	}
	if (r != 0) {
		snprintf(text, text_size,
			 "these %zu bytes are no unique id: hand all %d bytes of "
			 "roce_get_unique_id() to every rank",
			 id_size, LIMIT_UNIQUE_ID);
		return STATUS_INVALID;
	}
	root.host = *host;
	root.self = member_root_is_self(jobs, host);
	status = member_ask(jobs, m, &root, false, rank, size, options, text, text_size);
	rocecomm__peer__host__free_unpacked(host, NULL);
	return status;
}

/* "user:name"; names have no upper limit of their own below that of a frame. */
static int member_env_uid(const struct member_env *env, uint8_t ret[UID_SIZE])
{
	cleanup_free char *text = NULL;
	int n = asprintf(&text, "%" PRIu32 ":%s", env->user, env->name);

	if (n < 0) {
		text = NULL;
		return err_origin(-ENOMEM);
	}
	return err_trace(uid_derive(text, (size_t)n, ret));
}

/* See member.h. */
enum status member_join_env(struct jobs *jobs, struct member *m, const struct member_env *env,
			    uint32_t rank, uint32_t size, const struct member_options *options,
			    char *text, size_t text_size)
{
	struct member_root root = {.host = ROCECOMM__PEER__HOST__INIT};

	if (env->name[0] == '\0' || env->port > UINT16_MAX) {
		snprintf(text, text_size, "the meeting place has %s",
			 env->name[0] == '\0' ? "no name" : "a port above 65535");
		return STATUS_INVALID;
	}
	if (member_env_uid(env, m->joined) < 0) {
		return member_text(text, text_size, STATUS_NO_MEMORY, "the daemon has no memory");
	}
	root.host.addresses = (char **)(uintptr_t)env->roots;
	root.host.n_addresses = MIN(env->nroots, (size_t)PEER_MAX_ADDRESSES);
	root.host.port = env->port ? env->port : peers_port(jobs->peers);
	root.self = env->nroots == 0 || member_root_is_self(jobs, &root.host);
	return member_ask(jobs, m, &root, true, rank, size, options, text, text_size);
}

/* Joins none: nobody waits for an answer. */
static enum status member_split_none(struct communicator *c, Rocecomm__Peer__Split *msg)
{
	struct hostlink *root = c->links[0];

	if (c->host == 0) {
		split_join(c->jobs, NULL, msg);
		return STATUS_OK;
	}
	if (!root && hostlink_connect(c->jobs, c->plan->hosts[0], true, &root) < 0) {
		return STATUS_UNREACHABLE;
	}
	hostlink_send(root, PEER_MSG_SPLIT, &msg->base);
	jobs_soon(c->jobs); /* ends a visit */
	return STATUS_OK;
}

static enum status member_split_ask(struct jobs *jobs, struct member *m, struct communicator *c,
				    Rocecomm__Peer__Split *msg, char *text, size_t text_size)
{
	struct member_ask ask = {
		.kind = ASK_SPLIT,
		.color = msg->color,
		.key = msg->key,
		.number = msg->number,
		.size = c->size,
		.arrival_timeout_ms = msg->arrival_timeout_ms,
		.transfer_timeout_ms = msg->transfer_timeout_ms,
	};

	m->at_root = c->host == 0;
	if (m->at_root) {
		split_join(jobs, NULL, msg);
		return member_started(m, text, text_size);
	}
	snprintf(ask.name, sizeof(ask.name), "%s", msg->name);
	return member_ask_other(m, &ask, c->plan->hosts[0], !c->links[0], text, text_size);
}

/* See member.h. */
enum status member_split(struct jobs *jobs, struct member *m, struct member *parent, int32_t color,
			 int32_t key, const struct member_options *options, bool *ret_none,
			 char *text, size_t text_size)
{
	struct communicator *c = parent->comm;
	Rocecomm__Peer__Split msg = ROCECOMM__PEER__SPLIT__INIT;
	uint32_t join;

	if (c->status != STATUS_OK) {
		return member_text(text, text_size, c->status, c->text);
	}
	if (c->doom.on) {
		return member_text(text, text_size, STATUS_PEER_DIED, c->doom.text);
	}
	if (split_uid(c->uid, parent->splits, m->joined) < 0) {
		return member_text(text, text_size, STATUS_NO_MEMORY, "the daemon has no memory");
	}
	msg.parent.data = c->uid;
	msg.parent.len = UID_SIZE;
	msg.rank = parent->rank;
	msg.color = color;
	msg.key = key;
	msg.number = parent->splits++;
	msg.name = (char *)(uintptr_t)options->name;
	member_options_resolve(jobs, options, &join, &msg.arrival_timeout_ms,
			       &msg.transfer_timeout_ms);
	*ret_none = color < 0;
	if (color < 0) {
		return member_split_none(c, &msg);
	}
	member_start(jobs, m, parent->rank, join);
	m->has_parent = true;
	memcpy(m->parent, c->uid, UID_SIZE);
	return member_split_ask(jobs, m, c, &msg, text, text_size);
}
