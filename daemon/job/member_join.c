/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Member: ranks ask to join, by unique id or environment, and to split (member.h)
 *
 * Thread: control      Owns: struct member_ask      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/bootstrap.h"
#include "job/comm.h"
#include "job/join_impl.h"
#include "job/split.h"
#include "proto/base.h"
#include "proto/msg.h"

/* How much later than the root a joiner gives up by itself. */
#define JOIN_MARGIN_MS 5000

/* Where a unique id or an environment leads. */
struct member_root {
	bool self;
	Rocecomm__Peer__Host host;
};

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
