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
#include "job/join.h"
#include "job/member.h"
#include "job/roster.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

/* To those above, who may be this daemon. */
static void prepare_reply(struct jobs *jobs, struct hostlink *root, const ProtobufCBinaryData *uid,
			  enum status status, const char *text)
{
	Rocecomm__Peer__CommPrepared msg = ROCECOMM__PEER__COMM_PREPARED__INIT;

	msg.uid = *uid;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	/* With hosts below, the answer waits for theirs. */
	if (!formation_prepared(jobs, NULL, &msg)) {
		hostlink_send(root, PEER_MSG_COMM_PREPARED, &msg.base);
	}
}

void prepare_answer(struct communicator *c, enum status status, const char *text)
{
	ProtobufCBinaryData uid = {.data = c->uid, .len = UID_SIZE};

	prepare_reply(c->jobs, c->root, &uid, status, text);
}

void prepare_refuse(struct jobs *jobs, const Rocecomm__Peer__CommPrepare *plan, enum status status,
		    const char *text)
{
	uint32_t self = roster_find(plan, jobs->self.host_id.data);

	for (uint32_t i = 0; i < plan->n_host_of; i++) {
		if (plan->host_of[i] == self) {
			members_refuse(jobs, plan->joined.data,
				       (int32_t)roster_waiting_rank(plan, i), status, text);
		}
	}
}

/* This host cannot follow: neither the root nor its own ranks shall wait for it. */
static void prepare_reject(struct jobs *jobs, struct hostlink *l,
			   const Rocecomm__Peer__CommPrepare *plan, enum status status,
			   const char *text)
{
	log_info("communicator %s cannot be formed here: %s", plan->name, text);
	prepare_reply(jobs, l, &plan->uid, status, text);
	prepare_refuse(jobs, plan, status, text);
}

/* Did it come from where the rank waits: from the root, or through the tree? */
static bool prepare_member_waits(const struct member *m, const struct hostlink *l,
				 const Rocecomm__Peer__CommPrepare *plan, uint32_t parent)
{
	if (m->at_root) {
		return !l;
	}
	if (!l) {
		return false;
	}
	if (parent != LIMIT_COMM_HOSTS) {
		return memcmp(plan->hosts[parent]->host_id.data, peer_host_id(l->peer),
			      PEER_HOST_ID) == 0;
	}
	return join_root_is(m, l);
}

/* The ranks wait for this root and no other. Return: true when so. */
static bool prepare_root_is(struct jobs *jobs, const struct hostlink *l,
			    const Rocecomm__Peer__CommPrepare *plan)
{
	uint32_t self = roster_find(plan, jobs->self.host_id.data);
	uint32_t parent = roster_sparse(plan) ? roster_parent(plan, self) : LIMIT_COMM_HOSTS;

	list_for_each (at, &jobs->joining) {
		const struct member *m = container_of(at, struct member, link);

		if (memcmp(m->joined, plan->joined.data, UID_SIZE) == 0 &&
		    !prepare_member_waits(m, l, plan, parent)) {
			return false;
		}
	}
	return true;
}

/* What is wrong with the message itself: whoever sent it is told, nobody else. */
static void prepare_refuse_sender(struct jobs *jobs, struct hostlink *l,
				  Rocecomm__Peer__CommPrepare *plan, const char *why)
{
	Rocecomm__Peer__CommPrepared msg = ROCECOMM__PEER__COMM_PREPARED__INIT;
	char text[LIMIT_ERROR_TEXT];

	log_warn("host %s sent a CommPrepare that is refused: %s",
		 l ? peer_name(l->peer) : jobs_host(jobs), why);
	snprintf(text, sizeof(text), "host %s refuses what the root sent: %s", jobs_host(jobs),
		 why);
	msg.uid = plan->uid;
	msg.status = STATUS_PROTOCOL;
	msg.text = text;
	if (!l) {
		formation_prepared(jobs, NULL, &msg);
	} else if (plan->uid.len == UID_SIZE) {
		hostlink_send(l, PEER_MSG_COMM_PREPARED, &msg.base);
	}
	rocecomm__peer__comm_prepare__free_unpacked(plan, NULL);
}

/* See prepare.h. */
void prepare_plan(struct jobs *jobs, struct hostlink *l, Rocecomm__Peer__CommPrepare *plan)
{
	char text[LIMIT_ERROR_TEXT];
	struct communicator *c;
	const char *why = roster_check(plan, jobs->self.host_id.data);
	int r;

	if (!why && !prepare_root_is(jobs, l, plan)) {
		why = "it is not where its ranks meet";
	}
	if (!why && communicator_find(jobs, &plan->uid)) {
		why = "there is a communicator of its uid";
	}
	if (why) {
		prepare_refuse_sender(jobs, l, plan, why);
		return;
	}
	/* First, so that those below work at the same time. */
	r = formation_relay(jobs, l, plan, text, sizeof(text));
	if (r == 0) {
		r = communicator_new(jobs, plan, l, &c, text, sizeof(text));
	}
	if (r != 0) {
		if (r < 0) {
			snprintf(text, sizeof(text), "host %s has no memory for the communicator",
				 jobs_host(jobs));
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

	if (!formation_go_from(jobs, l, &go->uid) && c && c->root == l) {
		communicator_go(c);
	}
	return false;
}
