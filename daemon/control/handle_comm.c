/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicators: a client's ranks join, split off, leave
 *
 * Thread: control      Owns: struct session_comm      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "control/handle.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

/* ---- the object --------------------------------------------------------------------------- */

static void session_comm_free(struct session_comm *sc)
{
	list_remove(&sc->link);
	idpool_release(&sc->session->handles_pool, sc->member.handle);
	free(sc);
}

static void session_comm_ready(struct member *m);

static void session_comm_refused(struct member *m, enum status status, const char *text)
{
	struct session_comm *sc = container_of(m, struct session_comm, member);

	session_refuse(sc->session, sc->serial, status, "%s", text);
	session_comm_free(sc);
}

static const struct member_ops session_comm_ops = {
	.ready = session_comm_ready,
	.refused = session_comm_refused,
};

/* Return: NULL: refused. */
static struct session_comm *session_comm_new(struct session *s, uint64_t serial)
{
	struct session_comm *sc;
	int r = IDPOOL_E_FULL;

	if (s->handles_pool.count >= s->tenant->max_comms) {
		session_refuse(s, serial, STATUS_QUOTA,
			       "this client is in %" PRIu32 " communicators, and max_comms of "
			       "tenant %s is %" PRIu32 ": destroy some, or raise it in [tenant %s]",
			       s->handles_pool.count, s->tenant->name, s->tenant->max_comms,
			       s->tenant->name);
		return NULL;
	}
	sc = calloc(1, sizeof(*sc));
	if (sc) {
		r = idpool_take(&s->handles_pool, &sc->member.handle);
	}
	if (!sc || r != 0) {
		free(sc);
		session_refuse(s, serial, sc && r > 0 ? STATUS_QUOTA : STATUS_NO_MEMORY,
			       sc && r > 0 ? "this client is in as many communicators as there are "
					     "handles: destroy some"
					   : "the daemon has no memory");
		return NULL;
	}
	sc->session = s;
	sc->serial = serial;
	sc->member.ops = &session_comm_ops;
	sc->member.session = s->engine;
	sc->member.pid = session_pid(s);
	sc->member.uid = s->uid;
	sc->member.client = s->name;
	sc->member.tenant = s->tenant;
	list_append(&s->comms, &sc->link);
	return sc;
}

/* Of a request; one that is joining or leaving is none. */
static struct session_comm *session_comm_find(struct session *s, uint64_t serial, uint32_t handle)
{
	list_for_each (at, &s->comms) {
		struct session_comm *sc = container_of(at, struct session_comm, link);

		if (sc->member.handle == handle && sc->member.state == MEMBER_READY) {
			return sc;
		}
	}
	session_refuse(s, serial, STATUS_NOT_FOUND, "this client has no communicator %" PRIu32,
		       handle);
	return NULL;
}

/* ---- joining ------------------------------------------------------------------------------ */

static void session_comm_ready(struct member *m)
{
	struct session_comm *sc = container_of(m, struct session_comm, member);
	const struct communicator *c = m->comm;
	Rocecomm__CommReady msg = ROCECOMM__COMM_READY__INIT;
	cleanup_free Rocecomm__HostInfo *hosts = calloc(c->nhosts, sizeof(*hosts));
	cleanup_free Rocecomm__HostInfo **list = calloc(c->nhosts, sizeof(Rocecomm__HostInfo *));
	char path[512];

	if (!hosts || !list) {
		session_kill(sc->session, "its daemon has no memory for it");
		return;
	}
	for (uint32_t h = 0; h < c->nhosts; h++) {
		rocecomm__host_info__init(&hosts[h]);
		hosts[h].name = c->plan->hosts[h]->name;
		hosts[h].host_id = c->plan->hosts[h]->host_id;
		list[h] = &hosts[h];
	}
	communicator_path_text(c, path, sizeof(path));
	msg.comm = m->handle;
	msg.rank = m->rank;
	msg.size = c->size;
	msg.n_hosts = c->nhosts;
	msg.hosts = list;
	msg.n_host_of_rank = c->size;
	msg.host_of_rank = c->layout->host_of;
	msg.path = path;
	msg.uid = c->plan->wire;
	if (rocecomm__comm_ready__get_packed_size(&msg) > LIMIT_FRAME_BODY) {
		/* Of very many hosts, names are enough. */
		for (uint32_t h = 0; h < c->nhosts; h++) {
			hosts[h].host_id.len = 0;
		}
	}
	session_send(sc->session, MSG_COMM_READY, sc->serial, &msg, NULL, 0);
}

/* Return: false: refused. */
static bool comm_options(struct session *s, uint64_t serial, const Rocecomm__CommOptions *msg,
			 struct member_options *ret)
{
	*ret = (struct member_options){.name = s->name};
	if (!msg) {
		return true;
	}
	if (strlen(msg->name) >= LIMIT_NAME) {
		session_refuse(s, serial, STATUS_INVALID,
			       "the communicator's name has %zu bytes, at most %d are allowed",
			       strlen(msg->name), LIMIT_NAME - 1);
		return false;
	}
	if (msg->name[0] != '\0') {
		ret->name = msg->name;
	}
	ret->join_timeout_ms = msg->join_timeout_ms;
	ret->arrival_timeout_ms = msg->arrival_timeout_ms;
	ret->transfer_timeout_ms = msg->transfer_timeout_ms;
	return true;
}

void handle_unique_id(struct session *s, uint64_t serial, const void *msg, struct fdset *fds)
{
	Rocecomm__UniqueId reply = ROCECOMM__UNIQUE_ID__INIT;
	uint8_t id[LIMIT_UNIQUE_ID];
	int r = jobs_unique_id(s->server->o.jobs, id);

	if (r < 0) {
		session_refuse(s, serial, STATUS_INTERNAL, "cannot make a unique id: %s",
			       strerror(-r));
		return;
	}
	reply.id.data = id;
	reply.id.len = sizeof(id);
	session_send(s, MSG_UNIQUE_ID, serial, &reply, NULL, 0);
}

/* See handle.h. */
void handle_comm_init(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__CommInit *msg = m;
	struct jobs *jobs = s->server->o.jobs;
	struct member_options options;
	struct session_comm *sc;
	struct member_env env;
	char text[LIMIT_ERROR_TEXT];
	enum status status;

	if (!comm_options(s, serial, msg->options, &options)) {
		return;
	}
	sc = session_comm_new(s, serial);
	if (!sc) {
		return;
	}
	if (msg->env && msg->id.len == 0) {
		env = (struct member_env){
			.user = s->uid,
			.name = msg->env->name,
			.roots = msg->env->root,
			.nroots = msg->env->n_root,
			.port = msg->env->root_port,
		};
		status = member_join_env(jobs, &sc->member, &env, msg->rank, msg->size, &options,
					 text, sizeof(text));
	} else {
		status = member_join(jobs, &sc->member, msg->id.data, msg->id.len, msg->rank,
				     msg->size, &options, text, sizeof(text));
	}
	if (status != STATUS_OK) {
		session_refuse(s, serial, status, "%s", text);
		session_comm_free(sc);
	}
}

/* See handle.h. */
void handle_comm_split(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__CommSplit *msg = m;
	struct session_comm *parent = session_comm_find(s, serial, msg->comm);
	Rocecomm__CommReady none = ROCECOMM__COMM_READY__INIT;
	struct member_options options;
	struct session_comm *sc;
	char text[LIMIT_ERROR_TEXT];
	enum status status;
	bool is_none = false;

	if (!parent || !comm_options(s, serial, msg->options, &options)) {
		return;
	}
	sc = session_comm_new(s, serial);
	if (!sc) {
		return;
	}
	status = member_split(s->server->o.jobs, &sc->member, &parent->member, msg->color, msg->key,
			      &options, &is_none, text, sizeof(text));
	if (status != STATUS_OK) {
		session_refuse(s, serial, status, "%s", text);
		session_comm_free(sc);
	} else if (is_none) {
		none.none = true;
		session_send(s, MSG_COMM_READY, serial, &none, NULL, 0);
		session_comm_free(sc);
	}
}

/* ---- leaving ------------------------------------------------------------------------------ */

static void session_comm_left(void *arg)
{
	struct session_comm *sc = arg;
	struct session *s = sc->session;

	session_done(s, sc->serial);
	session_comm_free(sc);
	session_teardown(s);
}

void handle_comm_destroy(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__CommDestroy *msg = m;
	struct session_comm *sc = session_comm_find(s, serial, msg->comm);

	if (!sc) {
		return;
	}
	sc->serial = serial;
	sc->leaving = true;
	member_leave(&sc->member, NULL, session_comm_left, sc);
}

/* See handle.h. */
void handle_comm_teardown(struct session *s)
{
	bool found = true;

	/* Leaving may end at once and may take others along: look anew each time. */
	while (found) {
		found = false;
		list_for_each (at, &s->comms) {
			struct session_comm *sc = container_of(at, struct session_comm, link);

			if (!sc->leaving) {
				sc->leaving = true;
				member_leave(&sc->member, s->died, session_comm_left, sc);
				found = true;
				break;
			}
		}
	}
}

/* ---- errors ------------------------------------------------------------------------------- */

void handle_comm_abort(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__CommAbort *msg = m;
	struct session_comm *sc = session_comm_find(s, serial, msg->comm);
	char rank[256], text[LIMIT_ERROR_TEXT];

	if (!sc) {
		return;
	}
	communicator_rank_text(sc->member.comm, sc->member.rank, rank, sizeof(rank));
	snprintf(text, sizeof(text), "%s aborted the communicator", rank);
	communicator_fail(sc->member.comm, COMMUNICATOR_TELL, STATUS_ABORTED, text);
	session_done(s, serial);
}

/* An answer that waits for the sentence. */
struct error_wait {
	struct communicator_wait wait;
	struct list link;	 /* session.error_waits */
	struct session *session; /* NULL: gone */
	struct communicator *comm;
	uint64_t serial;
};

static void error_settled(struct communicator_wait *wait)
{
	struct error_wait *e = container_of(wait, struct error_wait, wait);
	Rocecomm__CommErrorReply reply = ROCECOMM__COMM_ERROR_REPLY__INIT;

	if (e->session) {
		reply.status = e->comm->status;
		reply.text = e->comm->text;
		reply.seq = e->comm->seq;
		session_send(e->session, MSG_COMM_ERROR_REPLY, e->serial, &reply, NULL, 0);
	}
	list_remove(&e->link);
	free(e);
}

void handle_comm_error(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__CommError *msg = m;
	struct session_comm *sc;
	struct error_wait *e;

	/* What the engine told before the client learned of it may wait to be read. */
	engine_dispatch(s->server->o.engine);
	sc = session_comm_find(s, serial, msg->comm);
	if (!sc) {
		return;
	}
	e = calloc(1, sizeof(*e));
	if (!e) {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	e->session = s;
	e->comm = sc->member.comm;
	e->serial = serial;
	e->wait.settled = error_settled;
	list_init(&e->link);
	list_append(&s->error_waits, &e->link);
	communicator_when_settled(e->comm, &e->wait);
}

void handle_comm_error_teardown(struct session *s)
{
	while (!list_empty(&s->error_waits)) {
		struct error_wait *e =
			container_of(list_first(&s->error_waits), struct error_wait, link);

		e->session = NULL;
		list_remove(&e->link);
	}
}
