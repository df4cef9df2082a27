/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Prepare: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "job/prepare.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/comm.h"
#include "job/formation.h"
#include "job/member.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

/* Return: NULL, or what is wrong with it. */
static const char *prepare_check_hosts(const struct jobs *jobs,
				       const Rocecomm__Peer__CommPrepare *plan)
{
	unsigned int ours = 0;

	if (plan->n_hosts < 1 || plan->n_hosts > LIMIT_COMM_HOSTS) {
		return "its number of hosts is out of range";
	}
	for (size_t h = 0; h < plan->n_hosts; h++) {
		const Rocecomm__Peer__Host *host = plan->hosts[h];

		if (host->host_id.len != PEER_HOST_ID || host->port > UINT16_MAX ||
		    strlen(host->name) >= LIMIT_NAME) {
			return "a host's id, name or port is out of range";
		}
		ours += memcmp(host->host_id.data, jobs->self.host_id.data, PEER_HOST_ID) == 0;
	}
	return ours == 1 ? NULL : "this host is not in it once";
}

static const char *prepare_check(const struct jobs *jobs, const Rocecomm__Peer__CommPrepare *plan)
{
	cleanup_free uint32_t *ranks = NULL;
	const char *why;

	if (plan->uid.len != UID_SIZE || plan->joined.len != UID_SIZE ||
	    (plan->parent.len != 0 && plan->parent.len != UID_SIZE)) {
		return "a uid has not 16 bytes";
	}
	if (plan->n_ranks < 1 || plan->n_ranks > LIMIT_COMM_RANKS ||
	    strlen(plan->name) >= LIMIT_NAME) {
		return "its size or name is out of range";
	}
	why = prepare_check_hosts(jobs, plan);
	if (why) {
		return why;
	}
	ranks = calloc(plan->n_hosts, sizeof(*ranks));
	if (!ranks) {
		return "this daemon has no memory";
	}
	for (size_t i = 0; i < plan->n_ranks; i++) {
		if (plan->ranks[i]->host >= plan->n_hosts ||
		    strlen(plan->ranks[i]->client) >= LIMIT_NAME ||
		    ++ranks[plan->ranks[i]->host] > LIMIT_LOCAL_RANKS) {
			return "a rank's host or name is out of range, or a host has too many";
		}
	}
	for (size_t h = 0; h < plan->n_hosts; h++) {
		if (ranks[h] == 0) {
			return "a host has no rank";
		}
	}
	return NULL;
}

static void prepare_reply(struct jobs *jobs, struct hostlink *root, bool root_is_self,
			  const ProtobufCBinaryData *uid, enum status status, const char *text)
{
	Rocecomm__Peer__CommPrepared msg = ROCECOMM__PEER__COMM_PREPARED__INIT;

	msg.uid = *uid;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	if (root_is_self) {
		formation_prepared(jobs, NULL, &msg);
	} else {
		hostlink_send(root, PEER_MSG_COMM_PREPARED, &msg.base);
	}
}

void prepare_answer(struct communicator *c, enum status status, const char *text)
{
	ProtobufCBinaryData uid = {.data = c->uid, .len = UID_SIZE};

	prepare_reply(c->jobs, c->root, c->root_is_self, &uid, status, text);
}

void prepare_refuse(struct jobs *jobs, const Rocecomm__Peer__CommPrepare *plan, enum status status,
		    const char *text)
{
	for (size_t i = 0; i < plan->n_ranks; i++) {
		uint32_t rank = plan->parent.len > 0 ? plan->ranks[i]->parent_rank : (uint32_t)i;

		members_refuse(jobs, plan->joined.data, (int32_t)rank, status, text);
	}
}

/* This host cannot follow: neither the root nor its own ranks shall wait for it. */
static void prepare_reject(struct jobs *jobs, struct hostlink *l,
			   const Rocecomm__Peer__CommPrepare *plan, enum status status,
			   const char *text)
{
	log_info("communicator %s cannot be formed here: %s", plan->name, text);
	prepare_reply(jobs, l, !l, &plan->uid, status, text);
	prepare_refuse(jobs, plan, status, text);
}

/* The ranks wait for this root and no other. Return: true when so. */
static bool prepare_root_is(struct jobs *jobs, const struct hostlink *l,
			    const Rocecomm__Peer__CommPrepare *plan)
{
	list_for_each (at, &jobs->joining) {
		const struct member *m = container_of(at, struct member, link);

		if (memcmp(m->joined, plan->joined.data, UID_SIZE) == 0 &&
		    (m->at_root ? l != NULL : m->root != l)) {
			return false;
		}
	}
	return true;
}

/* See prepare.h. */
void prepare_plan(struct jobs *jobs, struct hostlink *l, Rocecomm__Peer__CommPrepare *plan)
{
	char text[LIMIT_ERROR_TEXT];
	struct communicator *c;
	const char *why = prepare_check(jobs, plan);
	int r;

	if (why || !prepare_root_is(jobs, l, plan)) {
		log_warn("host %s sent a CommPrepare that is refused: %s",
			 l ? peer_name(l->peer) : jobs_host(jobs),
			 why ? why : "it is not where its ranks meet");
		snprintf(text, sizeof(text), "host %s refuses what the root sent: %s",
			 jobs_host(jobs), why ? why : "it is not where its ranks meet");
		if (plan->uid.len == UID_SIZE) {
			prepare_reply(jobs, l, !l, &plan->uid, STATUS_PROTOCOL, text);
		}
		rocecomm__peer__comm_prepare__free_unpacked(plan, NULL);
		return;
	}
	r = communicator_new(jobs, plan, l, &c, text, sizeof(text));
	if (r != 0) {
		if (r < 0) {
			snprintf(text, sizeof(text), "host %s has no memory for the communicator",
				 jobs_host(jobs));
		} else if (r == HASHMAP_E_EXISTS) {
			r = STATUS_EXISTS;
		}
		prepare_reject(jobs, l, plan, r < 0 ? STATUS_NO_MEMORY : (enum status)r, text);
		rocecomm__peer__comm_prepare__free_unpacked(plan, NULL);
		return;
	}
	communicator_link(c);
}

bool prepare_on_prepare(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	prepare_plan(jobs, l, (Rocecomm__Peer__CommPrepare *)msg);
	return true;
}

bool prepare_on_go(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__CommGo *go = (const Rocecomm__Peer__CommGo *)msg;
	struct communicator *c = communicator_find(jobs, &go->uid);

	if (c && c->root == l) {
		communicator_go(c);
	}
	return false;
}
