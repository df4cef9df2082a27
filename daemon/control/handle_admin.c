/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Administration: status and configuration for rocectl
 *
 * Status asks the other hosts of every communicator that the reader may see, for SURVEY_TIMEOUT_MS
 * at most, and answers with what is known then.
 *
 * Thread: control      Owns: struct status_request      Locks: none
 */
#include <stdlib.h>
#include <string.h>

#include "control/handle.h"
#include "control/status_json.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

#define SURVEYS_MAX 64 /* a request; the other communicators show this host's ranks only */

struct status_request {
	struct session_request base; /* first */
	bool all;
	uint32_t pending; /* surveys under way, and one while they are started */
	uint32_t n;
	struct status_survey surveys[SURVEYS_MAX];
};

/* ---- requests ----------------------------------------------------------------------------- */

static unsigned int requests_open(const struct session *s)
{
	unsigned int n = 0;

	list_for_each (at, &s->requests) {
		n++;
	}
	return n;
}

void *session_request_new(struct session *s, uint64_t serial, size_t size)
{
	struct session_request *rq;

	if (requests_open(s) >= REQUESTS_MAX) {
		session_refuse(s, serial, STATUS_QUOTA,
			       "%d requests of this client are under way already", REQUESTS_MAX);
		return NULL;
	}
	rq = calloc(1, size);
	if (!rq) {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
		return NULL;
	}
	rq->session = s;
	rq->serial = serial;
	list_append(&s->requests, &rq->link);
	return rq;
}

void session_request_over(struct session_request *rq)
{
	list_remove(&rq->link);
	free(rq);
}

void handle_admin_teardown(struct session *s)
{
	while (!list_empty(&s->requests)) {
		struct session_request *rq =
			container_of(list_first(&s->requests), struct session_request, link);

		rq->session = NULL;
		list_remove(&rq->link);
	}
}

/* ---- status ------------------------------------------------------------------------------- */

static void status_over(struct status_request *rq)
{
	Rocecomm__StatusReply reply = ROCECOMM__STATUS_REPLY__INIT;
	struct session *s = rq->base.session;
	char *text = NULL;

	if (s && status_json(s, rq->all, rq->surveys, rq->n, &text) < 0) {
		session_refuse(s, rq->base.serial, STATUS_NO_MEMORY, "the daemon has no memory");
	} else if (s) {
		reply.json = text;
		session_send(s, MSG_STATUS_REPLY, rq->base.serial, &reply, NULL, 0);
	}
	free(text);
	for (uint32_t i = 0; i < rq->n; i++) {
		free(rq->surveys[i].ranks);
	}
	session_request_over(&rq->base);
}

static void status_surveyed(void *arg, struct survey *survey)
{
	struct status_request *rq = arg;
	struct status_survey *result = &rq->surveys[rq->n++];

	memcpy(result->uid, survey->uid, UID_SIZE);
	result->nranks = survey->nranks;
	result->ranks = take_ptr(survey->ranks);
	if (--rq->pending == 0) {
		status_over(rq);
	}
}

/* See handle.h. */
void handle_status(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__StatusGet *msg = m;
	struct jobs *jobs = s->server->o.jobs;
	struct status_request *rq;
	struct communicator *c;
	struct survey *survey;
	size_t iter = 0;

	rq = session_request_new(s, serial, sizeof(*rq));
	if (!rq) {
		return;
	}
	rq->all = msg->all;
	rq->pending = 1;
	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL && rq->pending <= SURVEYS_MAX) {
		if (c->nhosts > 1 && c->state == COMMUNICATOR_READY && status_sees(s, rq->all, c) &&
		    survey_start(c, status_surveyed, rq, &survey) == 0) {
			rq->pending++;
		}
	}
	if (--rq->pending == 0) {
		status_over(rq);
	}
}

/* ---- configuration ------------------------------------------------------------------------ */

/* See handle.h. */
void handle_config(struct session *s, uint64_t serial, const void *msg, struct fdset *fds)
{
	Rocecomm__ConfigReply reply = ROCECOMM__CONFIG_REPLY__INIT;
	size_t n = 0;
	int r = 0;

	while (r == 0) {
		struct config_item item;
		Rocecomm__ConfigItem *out;
		Rocecomm__ConfigItem **items;

		r = config_item(s->server->o.config, n, &item);
		if (r != 0) {
			break;
		}
		out = calloc(1, sizeof(*out));
		items = realloc(reply.items, (n + 1) * sizeof(*items));
		reply.items = items ? items : reply.items;
		if (!out || !items) {
			free(out);
			free(item.value);
			r = -ENOMEM;
			break;
		}
		rocecomm__config_item__init(out);
		out->key = strdup(item.name);
		out->value = item.value;
		out->source = strdup(item.source);
		out->runtime = item.key->runtime;
		out->help = strdup(item.key->help);
		items[n++] = out;
		if (!out->key || !out->source || !out->help) {
			r = -ENOMEM;
		}
	}
	reply.n_items = n;
	if (r < 0) {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
	} else {
		session_send(s, MSG_CONFIG_REPLY, serial, &reply, NULL, 0);
	}
	for (size_t i = 0; i < n; i++) {
		free(reply.items[i]->key);
		free(reply.items[i]->value);
		free(reply.items[i]->source);
		free(reply.items[i]->help);
		free(reply.items[i]);
	}
	free(reply.items);
}
