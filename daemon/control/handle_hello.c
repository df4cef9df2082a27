/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * ClientHello: who the client is, and what it is given
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "control/handle.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"
#include "util/log.h"

#define GROUPS_MAX 256 /* of a client, that are looked at */

/* Root, the daemon's own user, and members of admin_group see everybody's jobs. */
static bool hello_is_admin(const struct session *s)
{
	int64_t gid = s->server->o.config->admin_group.gid;
	gid_t groups[GROUPS_MAX];
	socklen_t size = sizeof(groups);

	if (s->uid == 0 || s->uid == geteuid()) {
		return true;
	}
	if (gid < 0) {
		return false;
	}
	if (s->gid == (gid_t)gid) {
		return true;
	}
	if (getsockopt(s->fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0) {
		return false;
	}
	for (size_t i = 0; i < size / sizeof(gid_t); i++) {
		if (groups[i] == (gid_t)gid) {
			return true;
		}
	}
	return false;
}

static void hello_welcome(struct session *s, uint64_t serial)
{
	const struct jobs *jobs = s->server->o.jobs;
	Rocecomm__Welcome msg = ROCECOMM__WELCOME__INIT;
	char address[64] = "";
	int fds[3] = {s->page_fd, s->bell, s->event};

	if (jobs->self.n_addresses > 0) {
		snprintf(address, sizeof(address),
			 strchr(jobs->self.addresses[0], ':') ? "[%s]:%" PRIu32 : "%s:%" PRIu32,
			 jobs->self.addresses[0], jobs->self.port);
	}
	msg.version = (char *)(uintptr_t)ROCECOMM_VERSION;
	msg.host = (char *)(uintptr_t)jobs_host(jobs);
	msg.session = s->number;
	msg.max_bytes = quota_limit(&s->tenant->bytes);
	msg.max_buffers = s->tenant->max_buffers;
	msg.max_comms = s->tenant->max_comms;
	msg.host_id = jobs->self.host_id;
	msg.peer_address = address;
	msg.features = s->server->o.gpu ? WELCOME_GPU : 0;
	session_send(s, MSG_WELCOME, serial, &msg, fds, s->admin_only ? 0 : 3);
}

/* See handle.h. */
void handle_hello(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__ClientHello *msg = m;
	char text[256];
	int r;

	snprintf(s->name, sizeof(s->name), "%s", msg->name[0] ? msg->name : "unnamed");
	snprintf(s->version, sizeof(s->version), "%s", msg->version);
	s->claimed_pid = msg->pid;
	s->admin_only = msg->admin;
	s->admin = hello_is_admin(s);
	if (s->over_quota && !(s->admin && s->admin_only)) {
		quota_describe(&s->tenant->sessions, s->tenant->name, 1, text, sizeof(text));
		session_refuse(s, serial, STATUS_QUOTA, "%s", text);
		session_goodbye(s, STATUS_QUOTA, text, NULL);
		return;
	}
	s->over_quota = false;
	if (!s->admin_only) {
		r = session_attach(s);
		if (r < 0) {
			session_refuse(s, serial, STATUS_NO_MEMORY,
				       "the daemon cannot make a session page: %s", strerror(-r));
			session_goodbye(s, STATUS_NO_MEMORY, "the daemon has no memory", NULL);
			return;
		}
	}
	s->decoder.max_body = LIMIT_FRAME_BODY;
	s->state = SESSION_READY;
	log_debug("client %s (pid %" PRIu32 ", uid %u, tenant %s, library %s) is session %" PRIu64,
		  s->name, session_pid(s), s->uid, s->tenant->name, s->version, s->number);
	hello_welcome(s, serial);
}
