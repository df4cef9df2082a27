/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Member: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "job/member.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/bootstrap.h"
#include "job/comm.h"
#include "job/split.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

/* How much later than the root a joiner gives up by itself. */
#define MEMBER_MARGIN_MS 5000

/* Where a unique id or an environment leads. */
struct member_root {
	bool self;
	Rocecomm__Peer__Host host;
};

/* ---- ways out ----------------------------------------------------------------------------- */

/* Nothing refers to it any more: tells it. */
static void member_over(struct member *m)
{
	enum status status = m->status;
	cleanup_free char *text = take_ptr(m->text);
	void (*done)(void *arg) = m->done;

	list_remove(&m->link);
	m->comm = NULL;
	m->root = NULL;
	m->done = NULL;
	m->state = MEMBER_IDLE;
	if (done) {
		done(m->done_arg);
	} else {
		m->ops->refused(m, status, text ? text : status_text(status));
	}
}

/* See comm.h. */
void member_detached(struct member *m)
{
	member_over(m);
}

/* See member.h. */
void member_refuse(struct member *m, enum status status, const char *text)
{
	struct communicator *c = m->comm;

	if (m->state != MEMBER_JOINING && m->state != MEMBER_BOUND) {
		return;
	}
	m->status = status;
	free(take_ptr(m->text));
	m->text = strdup(text);
	m->state = MEMBER_REFUSED;
	list_remove(&m->link);
	if (m->starting) {
		return;
	}
	if (c) {
		communicator_detach(c, m);
	} else {
		member_over(m);
	}
}

/* The root is told that a rank which asked to join is gone. */
static void member_withdraw(struct member *m, enum status status, const char *text)
{
	Rocecomm__Peer__CommFail fail = ROCECOMM__PEER__COMM_FAIL__INIT;

	if (m->at_root) {
		rendezvous_gone(m->jobs, m->joined, m->rank, status, text);
		split_gone(m->jobs, m->joined, status, text);
		return;
	}
	fail.uid.data = m->joined;
	fail.uid.len = UID_SIZE;
	fail.status = status;
	fail.text = (char *)(uintptr_t)text;
	fail.rank = (int32_t)m->rank;
	hostlink_send(m->root, PEER_MSG_COMM_FAIL, &fail.base);
}

static void member_leave_joining(struct member *m, const char *died)
{
	char text[LIMIT_ERROR_TEXT];

	m->state = MEMBER_LEAVING;
	list_remove(&m->link);
	snprintf(text, sizeof(text),
		 "rank %" PRIu32 " (host %s, pid %" PRIu32 ", %s) gave up while the communicator "
		 "was being formed: %s",
		 m->rank, jobs_host(m->jobs), m->pid, m->client, died ? died : "it left");
	member_withdraw(m, STATUS_PEER_DIED, text);
	member_over(m);
}

/* Has the rank operations in flight? The view lags behind what its client was told, a little. */
static bool member_in_flight(const struct member *m, uint64_t *ret_completed)
{
	const struct comm_view *v = m->comm->view;

	*ret_completed = counter_get(&v->completed);
	return counter_get(&v->ranks[m->local].posted) != *ret_completed;
}

static void member_leave_now(struct member *m)
{
	struct communicator *c = m->comm;
	const char *died = m->died;
	char rank[256], text[LIMIT_ERROR_TEXT];
	bool forming = m->state == MEMBER_BOUND;
	uint64_t completed;
	bool in_flight = member_in_flight(m, &completed);

	m->state = MEMBER_LEAVING;
	communicator_rank_text(c, m->rank, rank, sizeof(rank));
	if (forming) {
		snprintf(text, sizeof(text),
			 "%s gave up while the communicator was being formed: %s", rank,
			 died ? died : "it left");
		communicator_fail(c, COMMUNICATOR_TELL, STATUS_PEER_DIED, text);
	} else if (died) {
		snprintf(text, sizeof(text), "%s died: %s", rank, died);
		if (in_flight) {
			communicator_fail(c, COMMUNICATOR_TELL, STATUS_PEER_DIED, text);
		}
		communicator_doom(c, m->rank, true, completed, text, true);
	} else {
		snprintf(text, sizeof(text), "%s has destroyed the communicator", rank);
		communicator_doom(c, m->rank, false, completed, text, true);
	}
	communicator_detach(c, m);
}

static void member_leave_comm(struct member *m, const char *died)
{
	uint64_t completed;

	m->died = died;
	if (m->state == MEMBER_READY && m->comm->status == STATUS_OK && !m->jobs->stopped &&
	    member_in_flight(m, &completed)) {
		m->state = MEMBER_ENDING;
		list_append(&m->jobs->ending, &m->link);
		jobs_tick(m->jobs);
	} else {
		member_leave_now(m);
	}
}

/* See member.h. */
void member_leave(struct member *m, const char *died, void (*done)(void *arg), void *arg)
{
	m->done = done;
	m->done_arg = arg;
	switch (m->state) {
	case MEMBER_JOINING:
		member_leave_joining(m, died);
		break;
	case MEMBER_BOUND:
	case MEMBER_READY:
		member_leave_comm(m, died);
		break;
	case MEMBER_ENDING:
		m->died = died ? died : m->died;
		break;
	case MEMBER_REFUSED:
	case MEMBER_LEAVING:
		break; /* on its way: member_over() finds `done` */
	default:
		m->done = NULL;
		done(arg);
		break;
	}
}

/* ---- the way in --------------------------------------------------------------------------- */

static enum status member_text(char *buf, size_t size, enum status status, const char *text)
{
	snprintf(buf, size, "%s", text);
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
	m->root = NULL;
	m->state = MEMBER_IDLE;
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
	m->comm = NULL;
	m->status = STATUS_OK;
	m->text = NULL;
	m->done = NULL;
	m->deadline = jobs_now(jobs) + timeout + MEMBER_MARGIN_MS;
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

/* Connects to another root. Return: STATUS_OK or why not. */
static enum status member_connect(struct member *m, const struct member_root *root, char *text,
				  size_t size)
{
	int r;

	r = hostlink_connect(m->jobs, &root->host, &m->root);
	if (r < 0) {
		m->state = MEMBER_IDLE;
		m->starting = false;
		list_remove(&m->link);
		snprintf(text, size, "cannot connect to host %s, where the ranks meet: %s",
			 root->host.name[0]	  ? root->host.name
			 : root->host.n_addresses ? root->host.addresses[0]
						  : "?",
			 strerror(-r));
		return r == -EINVAL ? STATUS_UNREACHABLE : status_from_errno(r);
	}
	snprintf(m->root_name, sizeof(m->root_name), "%s", peer_name(m->root->peer));
	return STATUS_OK;
}

static enum status member_ask(struct jobs *jobs, struct member *m, const struct member_root *root,
			      bool env, uint32_t rank, uint32_t size,
			      const struct member_options *options, char *text, size_t text_size)
{
	Rocecomm__Peer__Join join = ROCECOMM__PEER__JOIN__INIT;
	Rocecomm__Peer__Rank who = ROCECOMM__PEER__RANK__INIT;
	enum status status;

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
	jobs_telling(jobs);
	who.rank = rank;
	who.pid = m->pid;
	who.client = (char *)(uintptr_t)m->client;
	join.uid.data = m->joined;
	join.uid.len = UID_SIZE;
	join.size = size;
	join.rank = &who;
	join.env = env;
	join.name = (char *)(uintptr_t)options->name;
	join.host = &jobs->self;
	member_options_resolve(jobs, options, &join.join_timeout_ms, &join.arrival_timeout_ms,
			       &join.transfer_timeout_ms);
	member_start(jobs, m, rank, join.join_timeout_ms);
	m->at_root = root->self;
	if (root->self) {
		rendezvous_join(jobs, NULL, &join);
		return member_started(m, text, text_size);
	}
	status = member_connect(m, root, text, text_size);
	if (status != STATUS_OK) {
		return status;
	}
	hostlink_send(m->root, PEER_MSG_JOIN, &join.base);
	return member_started(m, text, text_size);
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

static void member_split_ask(struct jobs *jobs, struct member *parent, int32_t color, int32_t key,
			     const struct member_options *options, Rocecomm__Peer__Split *msg)
{
	msg->parent.data = parent->comm->uid;
	msg->parent.len = UID_SIZE;
	msg->rank = parent->rank;
	msg->color = color;
	msg->key = key;
	msg->number = parent->splits++;
	msg->name = (char *)(uintptr_t)options->name;
}

/* See member.h. */
enum status member_split(struct jobs *jobs, struct member *m, struct member *parent, int32_t color,
			 int32_t key, const struct member_options *options, bool *ret_none,
			 char *text, size_t text_size)
{
	struct communicator *c = parent->comm;
	Rocecomm__Peer__Split msg = ROCECOMM__PEER__SPLIT__INIT;
	struct hostlink *root = c->links[0];
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
	member_split_ask(jobs, parent, color, key, options, &msg);
	member_options_resolve(jobs, options, &join, &msg.arrival_timeout_ms,
			       &msg.transfer_timeout_ms);
	*ret_none = color < 0;
	if (color < 0) {
		if (c->host == 0) {
			split_join(jobs, NULL, &msg);
		} else {
			hostlink_send(root, PEER_MSG_SPLIT, &msg.base);
		}
		return STATUS_OK;
	}
	member_start(jobs, m, parent->rank, join);
	m->has_parent = true;
	memcpy(m->parent, c->uid, UID_SIZE);
	m->at_root = c->host == 0;
	if (m->at_root) {
		split_join(jobs, NULL, &msg);
	} else {
		m->root = root;
		snprintf(m->root_name, sizeof(m->root_name), "%s", c->plan->hosts[0]->name);
		hostlink_send(root, PEER_MSG_SPLIT, &msg.base);
	}
	return member_started(m, text, text_size);
}

/* ---- all that join ------------------------------------------------------------------------ */

struct member *member_find(struct jobs *jobs, const uint8_t joined[UID_SIZE], uint32_t rank)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (m->rank == rank && memcmp(m->joined, joined, UID_SIZE) == 0) {
			return m;
		}
	}
	return NULL;
}

/* The next one that a refusal is for, or NULL. */
static struct member *members_next(struct jobs *jobs, const uint8_t joined[UID_SIZE], int32_t rank)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (memcmp(m->joined, joined, UID_SIZE) == 0 &&
		    (rank < 0 || m->rank == (uint32_t)rank)) {
			return m;
		}
	}
	return NULL;
}

/*
 * Refusing calls out, and whoever is called may let others go: each round looks anew for one that
 * fits. Refused ones leave the list, so it ends.
 */
void members_refuse(struct jobs *jobs, const uint8_t joined[UID_SIZE], int32_t rank,
		    enum status status, const char *text)
{
	struct member *m;

	while ((m = members_next(jobs, joined, rank)) != NULL) {
		member_refuse(m, status, text);
	}
}

void members_refuse_from(struct jobs *jobs, const struct hostlink *l,
			 const uint8_t joined[UID_SIZE], int32_t rank, enum status status,
			 const char *text)
{
	const struct member *m = members_next(jobs, joined, rank);

	/* All that wait under one uid have the same root. */
	if (m && !m->at_root && m->root == l) {
		members_refuse(jobs, joined, rank, status, text);
	}
}

/* The reason of a host that was never reached says its name, and that it cannot be reached. */
static void root_down_text(const struct member *m, const struct hostlink *l, const char *reason,
			   char *buf, size_t size)
{
	if (l->reached) {
		snprintf(buf, size, "host %s, where the ranks meet, is lost: %s", m->root_name,
			 reason);
	} else {
		snprintf(buf, size, "cannot join where the ranks meet: %s", reason);
	}
}

void members_root_down(struct jobs *jobs, struct hostlink *l, enum status status,
		       const char *reason)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->joining) {
			struct member *m = container_of(at, struct member, link);

			if (m->root == l) {
				m->root = NULL;
				root_down_text(m, l, reason, text, sizeof(text));
				member_refuse(m, status, text);
				found = true;
				break;
			}
		}
	}
}

void members_root_merged(struct jobs *jobs, struct hostlink *from, struct hostlink *into)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (m->root == from) {
			m->root = into;
		}
	}
}

void members_tick(struct jobs *jobs, uint64_t now)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (!list_empty(&jobs->ending)) {
		struct member *m = container_of(list_first(&jobs->ending), struct member, link);

		list_remove(&m->link);
		member_leave_now(m);
	}
	while (found) {
		found = false;
		list_for_each (at, &jobs->joining) {
			struct member *m = container_of(at, struct member, link);

			if (m->deadline <= now) {
				snprintf(text, sizeof(text),
					 "host %s, where the ranks meet, has not answered in time",
					 m->at_root ? jobs_host(jobs) : m->root_name);
				member_withdraw(m, STATUS_TIMEOUT, text);
				member_refuse(m, STATUS_TIMEOUT, text);
				found = true;
				break;
			}
		}
	}
	if (!list_empty(&jobs->joining)) {
		jobs_tick(jobs);
	}
}
