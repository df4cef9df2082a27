/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * RDMA for rocectl: devices, ways to other hosts, a test of them
 *
 * Devices and ways are for everybody to see: they say nothing of jobs. A test loads the network,
 * and is for those who may see everybody's jobs.
 *
 * Thread: control      Owns: struct paths_request      Locks: none
 */
#include <stdlib.h>
#include <string.h>

#include "control/handle.h"
#include "control/links_json.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

static void refuse_memory(struct session *s, uint64_t serial)
{
	session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
}

static const char *host_of(const struct session *s)
{
	return jobs_host(s->server->o.jobs);
}

/* ---- links and paths ---------------------------------------------------------------------- */

/* See handle.h. */
void handle_links(struct session *s, uint64_t serial, const void *msg, struct fdset *fds)
{
	Rocecomm__LinksReply reply = ROCECOMM__LINKS_REPLY__INIT;
	const struct server_options *o = &s->server->o;
	char *text;

	if (links_json(host_of(s), o->config, rails_devices(o->jobs->rails), &text) < 0) {
		refuse_memory(s, serial);
		return;
	}
	reply.json = text;
	session_send(s, MSG_LINKS_REPLY, serial, &reply, NULL, 0);
	free(text);
}

/* What rocectl paths waits for: trials of GPUs first. */
struct paths_request {
	struct session_request rq;
	struct session *owner; /* lives as long as trials do */
	char *peer;	       /* NULL: all */
};

static void paths_collected(void *arg, const struct rails_path *paths, size_t n)
{
	struct session_request *rq = arg;
	struct session *s = rq->session;
	Rocecomm__PathsReply reply = ROCECOMM__PATHS_REPLY__INIT;
	char *text = NULL;

	if (s &&
	    paths_json(host_of(s), s->server->o.config, rails_devices(s->server->o.jobs->rails),
		       paths, n, s->server->o.gpu, &s->server->gpu_paths, &text) < 0) {
		refuse_memory(s, rq->serial);
	} else if (s) {
		reply.json = text;
		session_send(s, MSG_PATHS_REPLY, rq->serial, &reply, NULL, 0);
	}
	free(text);
	session_request_over(rq);
}

static void paths_collect(struct paths_request *pr)
{
	struct session *s = pr->rq.session;
	struct rails *rails = s ? s->server->o.jobs->rails : NULL;

	if (!rails) {
		paths_collected(&pr->rq, NULL, 0);
	} else if (rails_paths(rails, pr->peer, paths_collected, &pr->rq) < 0) {
		refuse_memory(s, pr->rq.serial);
		session_request_over(&pr->rq);
	}
}

static void paths_tried(void *arg)
{
	struct paths_request *pr = arg;
	struct session *owner = pr->owner;
	char *peer = pr->peer;

	paths_collect(pr); /* it may be gone by now */
	free(peer);
	session_return(owner);
}

/* See handle.h. */
void handle_paths(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__PathsGet *msg = m;
	struct paths_request *pr = session_request_new(s, serial, sizeof(*pr));

	if (!pr) {
		return;
	}
	pr->owner = s;
	pr->peer = msg->peer[0] ? strdup(msg->peer) : NULL;
	if (msg->peer[0] && !pr->peer) {
		refuse_memory(s, serial);
		session_request_over(&pr->rq);
		return;
	}
	s->returning++;
	gpu_paths_look(&s->server->gpu_paths, s->server->o.gpu,
		       rails_devices(s->server->o.jobs->rails), paths_tried, pr);
}

/* ---- check -------------------------------------------------------------------------------- */

static void check_done(void *arg, const struct check_result *result)
{
	struct session_request *rq = arg;
	struct session *s = rq->session;
	Rocecomm__CheckReply reply = ROCECOMM__CHECK_REPLY__INIT;
	char *text = NULL;

	if (s && check_json(host_of(s), s->server->o.config,
			    rails_devices(s->server->o.jobs->rails), result, &text) < 0) {
		refuse_memory(s, rq->serial);
	} else if (s) {
		reply.json = text;
		session_send(s, MSG_CHECK_REPLY, rq->serial, &reply, NULL, 0);
	}
	free(text);
	session_request_over(rq);
}

static void check_refuse(struct session *s, uint64_t serial, int r, const char *peer)
{
	switch (r) {
	case CHECK_E_UNKNOWN:
		session_refuse(
			s, serial, STATUS_NOT_FOUND,
			"no host '%.80s' is linked, and it is no numeric address (with a port: "
			"10.1.0.2:4870, [fd00::2]:4870)",
			peer);
		break;
	case CHECK_E_SELF:
		session_refuse(s, serial, STATUS_INVALID, "'%.80s' is this host itself", peer);
		break;
	case CHECK_E_BUSY:
		session_refuse(s, serial, STATUS_QUOTA,
			       "%d checks are under way already; wait for one to end", CHECKS_MAX);
		break;
	default:
		session_refuse(s, serial, STATUS_NO_MEMORY, "the check cannot be started: %s",
			       strerror(-r));
	}
}

/* See handle.h. */
void handle_check(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__CheckPeer *msg = m;
	const struct server_options *o = &s->server->o;
	struct session_request *rq;
	int r;

	if (!s->admin) {
		session_refuse(
			s, serial, STATUS_PERMISSION,
			"a check loads the network: it is for root, the daemon's user and the "
			"members of admin_group");
		return;
	}
	rq = session_request_new(s, serial, sizeof(*rq));
	if (!rq) {
		return;
	}
	r = check_start(o->jobs, msg->peer, msg->test_ms, check_done, rq);
	if (r != 0) {
		check_refuse(s, serial, r, msg->peer);
		session_request_over(rq);
	}
}
