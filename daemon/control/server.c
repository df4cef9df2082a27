/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Server: implementation
 *
 * Thread: control      Owns: see server.h      Locks: none
 */
#include "control/server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "control/session.h"
#include "proto/base.h"
#include "util/log.h"

#define SERVER_ACCEPTS 16     /* a turn of the loop */
#define SERVER_HELLO_MS 5000  /* for a client to say who it is, when others want its place */
#define SERVER_RETRY_MS 100   /* after running out of descriptors */
#define SERVER_FLUSH_MS 200   /* for last words to clients that do not read */
#define SERVER_REFUSED_MAX 64 /* clients over their quota that wait to be told so */

#define DIED_STOP "its daemon is stopping"

static void server_on_poll(uv_poll_t *handle, int status, int events);

static void server_listen(struct server *server)
{
	if (!server->stopping) {
		uv_poll_start(&server->poll, UV_READABLE, server_on_poll);
	}
}

/* ---- accepting ---------------------------------------------------------------------------- */

static unsigned int server_refused(const struct server *server)
{
	unsigned int n = 0;

	list_for_each (at, &server->sessions) {
		const struct session *s = container_of(at, struct session, link);

		n += s->over_quota && !s->dead;
	}
	return n;
}

/* Room is short: those that have had their time to say who they are must go. */
static void server_drop_mute(struct server *server)
{
	uint64_t now = uv_now(server->o.loop);

	list_for_each (at, &server->sessions) {
		struct session *s = container_of(at, struct session, link);

		if (s->state < SESSION_READY && now - s->since > SERVER_HELLO_MS) {
			session_kill(s, NULL);
		}
	}
}

static void server_add(struct server *server, int fd)
{
	struct session *s;
	int r;

	if (server->nsessions >= SERVER_MAX_SESSIONS) {
		server_drop_mute(server);
		if (log_rate(&server->refused_at, 10000)) {
			log_warn("a client is turned away: %u are connected, which is the limit",
				 server->nsessions);
		}
		base_close(fd);
		return;
	}
	r = session_new(server, fd, &s);
	if (r < 0) {
		log_warn("a client cannot be served: %s", strerror(-r));
		return;
	}
	s->number = ++server->next_session;
	list_append(&server->sessions, &s->link);
	server->nsessions++;
	if (s->over_quota) {
		server_drop_mute(server);
		if (server_refused(server) > SERVER_REFUSED_MAX) {
			session_kill(s, NULL);
		}
	}
	if (server->nsessions == 1 && server->o.busy) {
		server->o.busy(server->o.arg, true);
	}
}

static void server_on_retry(uv_timer_t *timer)
{
	server_listen(container_of(timer, struct server, retry));
}

static void server_on_poll(uv_poll_t *handle, int status, int events)
{
	struct server *server = container_of(handle, struct server, poll);

	for (int i = 0; i < SERVER_ACCEPTS; i++) {
		int fd = accept4(server->o.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			server_add(server, fd);
			continue;
		}
		if (errno == EAGAIN) {
			return;
		}
		if (errno == EINTR || errno == ECONNABORTED) {
			continue;
		}
		/* The client stays in the backlog; looking again at once would only turn. */
		if (log_rate(&server->refused_at, 10000)) {
			log_warn("cannot accept a client: %s (LimitNOFILE= of the unit)",
				 strerror(errno));
		}
		uv_poll_stop(&server->poll);
		uv_timer_start(&server->retry, server_on_retry, SERVER_RETRY_MS, 0);
		return;
	}
}

/* ---- sessions ----------------------------------------------------------------------------- */

static void server_on_reap(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, reap);
	bool found = true;

	/* Closing one may mark others, and may free itself. */
	while (found) {
		found = false;
		list_for_each (at, &server->sessions) {
			struct session *s = container_of(at, struct session, link);

			if (s->dead && s->state != SESSION_CLOSING) {
				session_close(s);
				found = true;
				break;
			}
		}
	}
}

void server_reap(struct server *server)
{
	uv_timer_start(&server->reap, server_on_reap, 0, 0);
}

void server_session_corrupt(struct server *server, void *session_user, const char *reason)
{
	struct session *s = session_user;

	if (s->state == SESSION_CLOSING) {
		return;
	}
	log_warn("client %s (pid %u) wrote nonsense into its ring (%s); it is disconnected",
		 s->name, session_pid(s), reason);
	session_goodbye(s, STATUS_PROTOCOL,
			"the submission ring is corrupt; the connection is closed",
			"the daemon closed its connection, since its ring was corrupt");
}

static void server_check_stopped(struct server *server);

void server_session_gone(struct server *server)
{
	server->nsessions--;
	if (server->nsessions == 0 && server->o.busy && !server->stopping) {
		server->o.busy(server->o.arg, false);
	}
	server_check_stopped(server);
}

/* ---- life --------------------------------------------------------------------------------- */

int server_new(const struct server_options *options, struct server **ret)
{
	struct server *server = calloc(1, sizeof(*server));
	int r;

	if (!server) {
		return err_origin(-ENOMEM);
	}
	server->o = *options;
	list_init(&server->sessions);
	server->started = uv_now(options->loop);
	r = uv_poll_init(options->loop, &server->poll, options->listen_fd);
	if (r < 0) {
		free(server);
		return err_origin(r);
	}
	tenants_init(&server->tenants, options->config);
	uv_timer_init(options->loop, &server->retry);
	uv_timer_init(options->loop, &server->reap);
	server_listen(server);
	*ret = server;
	return 0;
}

static void server_on_closed(uv_handle_t *handle)
{
	struct server *server = handle->data;

	server->closing--;
	server_check_stopped(server);
}

static void server_close_handle(struct server *server, uv_handle_t *handle)
{
	handle->data = server;
	server->closing++;
	uv_close(handle, server_on_closed);
}

static void server_on_flushed(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, retry);

	list_for_each (at, &server->sessions) {
		session_kill(container_of(at, struct session, link), DIED_STOP);
	}
}

/* See server.h. */
void server_stop(struct server *server, enum status status, const char *reason,
		 void (*stopped)(void *arg), void *arg)
{
	server->stopping = true;
	server->stopped = stopped;
	server->stopped_arg = arg;
	uv_poll_stop(&server->poll);
	server_close_handle(server, (uv_handle_t *)&server->poll);
	jobs_shutdown(server->o.jobs, status, reason);
	list_for_each (at, &server->sessions) {
		session_goodbye(container_of(at, struct session, link), status, reason, DIED_STOP);
	}
	uv_timer_start(&server->retry, server_on_flushed, SERVER_FLUSH_MS, 0);
}

static void server_check_stopped(struct server *server)
{
	if (!server->stopped || server->nsessions > 0) {
		return;
	}
	if (!uv_is_closing((uv_handle_t *)&server->retry)) {
		server_close_handle(server, (uv_handle_t *)&server->retry);
		server_close_handle(server, (uv_handle_t *)&server->reap);
	}
	if (server->closing == 0) {
		void (*stopped)(void *arg) = take_ptr(server->stopped);

		stopped(server->stopped_arg);
	}
}

struct server *server_free(struct server *server)
{
	if (!server) {
		return NULL;
	}
	assert(list_empty(&server->sessions));
	tenants_deinit(&server->tenants);
	gpu_paths_deinit(&server->gpu_paths);
	free(server);
	return NULL;
}

void server_reload(struct server *server)
{
	tenants_reload(&server->tenants);
}
