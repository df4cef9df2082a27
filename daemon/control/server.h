/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Server: accepts clients, and holds what their sessions share
 *
 * Thread: control      Owns: the listening handle, sessions, tenants      Locks: none
 */
#ifndef ROCECOMM_CONTROL_SERVER_H
#define ROCECOMM_CONTROL_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config/config.h"
#include "engine/engine.h"
#include "job/jobs.h"
#include "job/peers.h"
#include "control/gpu_paths.h"
#include "job/tenant.h"
#include "proto/status.h"
#include "util/list.h"

#define SERVER_MAX_SESSIONS 16384 /* of all tenants; also bounded by descriptors */

struct gpu;
struct interfaces;

/* All borrowed for as long as the server lives. */
struct server_options {
	uv_loop_t *loop;
	int listen_fd; /* non-blocking */
	struct engine *engine;
	struct jobs *jobs;
	struct peers *peers;
	struct gpu *gpu; /* NULL: takes no GPU memory */
	const struct config *config;
	const struct interfaces *interfaces; /* for rocectl; NULL: not known */
	/* The last client has gone, or the first one has come; NULL: nobody wants to know. */
	void (*busy)(void *arg, bool busy);
	void *arg;
};

struct server {
	struct server_options o;
	struct tenants tenants;
	struct gpu_paths gpu_paths;
	uv_poll_t poll;
	uv_timer_t retry; /* after running out of descriptors; for flushing at the end */
	uv_timer_t reap;
	struct list sessions; /* struct session.link */
	unsigned int nsessions;
	uint64_t next_session;
	uint64_t started;    /* ms of the loop */
	uint64_t refused_at; /* log_rate() */
	bool stopping;
	unsigned int closing; /* handles that are not closed yet */
	void (*stopped)(void *arg);
	void *stopped_arg;
};

int server_new(const struct server_options *options, struct server **ret);
/*
 * Tells all clients @reason and closes their sessions. @stopped: all have let go and nothing is in
 * the loop any more. A client that does not read is not waited for.
 */
void server_stop(struct server *server, enum status status, const char *reason,
		 void (*stopped)(void *arg), void *arg);
/* After server_stop() is done. NULL allowed. Return: NULL. */
struct server *server_free(struct server *server);
/* The configuration has changed. */
void server_reload(struct server *server);

/* An event of the engine: the client wrote nonsense into its ring. */
void server_session_corrupt(struct server *server, void *session_user, const char *reason);

static inline unsigned int server_sessions(const struct server *server)
{
	return server->nsessions;
}

/* ---- for this layer ----------------------------------------------------------------------- */

/* Closes the sessions that are marked dead, from the loop. */
void server_reap(struct server *server);
/* A session is gone for good. */
void server_session_gone(struct server *server);

#endif
