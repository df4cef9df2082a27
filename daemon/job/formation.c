/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Formation: implementation
 *
 * Thread: control      Owns: see formation.h      Locks: none
 */
#include "job/formation.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "job/comm.h"
#include "job/prepare.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

struct formation {
	struct list link; /* jobs.formations */
	struct jobs *jobs;
	uint8_t uid[UID_SIZE];
	uint8_t joined[UID_SIZE];
	char name[LIMIT_NAME];
	uint64_t deadline;
	uint32_t nhosts;
	uint32_t pending;		  /* hosts that have not answered */
	struct hostlink **links;	  /* [nhosts]; NULL: ours */
	char **names;			  /* [nhosts] */
	bool *prepared;			  /* [nhosts] */
	Rocecomm__Peer__CommPrepare *own; /* for this host, not handed over yet */
};

static struct formation *formation_free(struct formation *f)
{
	if (!f) {
		return NULL;
	}
	list_remove(&f->link);
	for (uint32_t h = 0; f->names && h < f->nhosts; h++) {
		free(f->names[h]);
	}
	if (f->own) {
		rocecomm__peer__comm_prepare__free_unpacked(f->own, NULL);
	}
	free(f->names);
	free(f->links);
	free(f->prepared);
	free(f);
	return NULL;
}

static int formation_new(struct jobs *jobs, const Rocecomm__Peer__CommPrepare *plan,
			 struct hostlink *const *links, struct formation **ret)
{
	struct formation *f = calloc(1, sizeof(*f));

	if (!f) {
		return err_origin(-ENOMEM);
	}
	list_init(&f->link);
	f->jobs = jobs;
	f->nhosts = (uint32_t)plan->n_hosts;
	f->pending = f->nhosts;
	f->deadline = jobs_now(jobs) + FORMATION_TIMEOUT_MS;
	memcpy(f->uid, plan->uid.data, UID_SIZE);
	memcpy(f->joined, plan->joined.data, UID_SIZE);
	snprintf(f->name, sizeof(f->name), "%s", plan->name);
	f->links = calloc(f->nhosts, sizeof(struct hostlink *));
	f->names = calloc(f->nhosts, sizeof(char *));
	f->prepared = calloc(f->nhosts, sizeof(*f->prepared));
	if (!f->links || !f->names || !f->prepared) {
		formation_free(f);
		return err_origin(-ENOMEM);
	}
	for (uint32_t h = 0; h < f->nhosts; h++) {
		f->links[h] = links[h];
		f->names[h] = strdup(plan->hosts[h]->name);
		if (!f->names[h]) {
			formation_free(f);
			return err_origin(-ENOMEM);
		}
	}
	*ret = f;
	return 0;
}

/* Packs and unpacks, so that this host gets what the others get. */
static Rocecomm__Peer__CommPrepare *formation_copy(const Rocecomm__Peer__CommPrepare *plan)
{
	size_t size = rocecomm__peer__comm_prepare__get_packed_size(plan);
	cleanup_free uint8_t *packed = malloc(size);

	if (!packed) {
		return NULL;
	}
	rocecomm__peer__comm_prepare__pack(plan, packed);
	return rocecomm__peer__comm_prepare__unpack(NULL, size, packed);
}

/* Leaves names of clients out where the message would be too big with them. */
static bool formation_fits(Rocecomm__Peer__CommPrepare *plan)
{
	if (rocecomm__peer__comm_prepare__get_packed_size(plan) <= LIMIT_FRAME_BODY) {
		return true;
	}
	for (size_t i = 0; i < plan->n_ranks; i++) {
		plan->ranks[i]->client = (char *)(uintptr_t)protobuf_c_empty_string;
	}
	return rocecomm__peer__comm_prepare__get_packed_size(plan) <= LIMIT_FRAME_BODY;
}

/* See formation.h. */
int formation_start(struct jobs *jobs, Rocecomm__Peer__CommPrepare *plan,
		    struct hostlink *const *links, char *text, size_t text_size)
{
	uint8_t uid[UID_SIZE];
	struct formation *f = NULL;

	if (uid_random(uid) < 0) {
		snprintf(text, text_size, "the root daemon has no random numbers");
		return STATUS_INTERNAL;
	}
	plan->uid.data = uid;
	plan->uid.len = UID_SIZE;
	memcpy(&plan->wire, uid, sizeof(plan->wire));
	if (!formation_fits(plan)) {
		snprintf(text, text_size,
			 "the description of %zu ranks on %zu hosts is longer than a message of %u "
			 "bytes: use fewer hosts, or shorter host names and fewer addresses",
			 plan->n_ranks, plan->n_hosts, LIMIT_FRAME_BODY);
		return STATUS_UNSUPPORTED;
	}
	if (formation_new(jobs, plan, links, &f) < 0) {
		snprintf(text, text_size, "the root daemon has no memory");
		return STATUS_NO_MEMORY;
	}
	for (uint32_t h = 0; h < f->nhosts; h++) {
		if (!links[h]) {
			f->own = formation_copy(plan);
			if (!f->own) {
				formation_free(f);
				snprintf(text, text_size, "the root daemon has no memory");
				return STATUS_NO_MEMORY;
			}
		}
	}
	list_append(&jobs->formations, &f->link);
	for (uint32_t h = 0; h < f->nhosts; h++) {
		hostlink_send(links[h], PEER_MSG_COMM_PREPARE, &plan->base);
	}
	if (f->own) {
		jobs_soon(jobs);
	}
	jobs_tick(jobs);
	return 0;
}

void formations_run(struct jobs *jobs)
{
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->formations) {
			struct formation *f = container_of(at, struct formation, link);

			if (f->own) {
				prepare_plan(jobs, NULL, take_ptr(f->own));
				found = true;
				break;
			}
		}
	}
}

bool formation_pending(struct jobs *jobs, const uint8_t joined[UID_SIZE])
{
	list_for_each (at, &jobs->formations) {
		if (memcmp(container_of(at, struct formation, link)->joined, joined, UID_SIZE) ==
		    0) {
			return true;
		}
	}
	return false;
}

static struct formation *formation_find(struct jobs *jobs, const ProtobufCBinaryData *uid)
{
	list_for_each (at, &jobs->formations) {
		struct formation *f = container_of(at, struct formation, link);

		if (uid->len == UID_SIZE && memcmp(f->uid, uid->data, UID_SIZE) == 0) {
			return f;
		}
	}
	return NULL;
}

/* Tells all hosts, this one last; @f is gone afterwards. */
static void formation_fail(struct formation *f, enum status status, const char *text)
{
	Rocecomm__Peer__CommFail msg = ROCECOMM__PEER__COMM_FAIL__INIT;
	struct jobs *jobs = f->jobs;
	ProtobufCBinaryData uid = {.data = f->uid, .len = UID_SIZE};
	Rocecomm__Peer__CommPrepare *own = take_ptr(f->own);
	struct communicator *c;

	log_info("communicator %s is not formed: %s", f->name, text);
	msg.uid = uid;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	msg.rank = -1;
	for (uint32_t h = 0; h < f->nhosts; h++) {
		hostlink_send(f->links[h], PEER_MSG_COMM_FAIL, &msg.base);
	}
	c = communicator_find(jobs, &uid);
	formation_free(f);
	if (c) {
		communicator_fail(c, 0, status, text);
	} else if (own) {
		prepare_refuse(jobs, own, status, text);
	}
	if (own) {
		rocecomm__peer__comm_prepare__free_unpacked(own, NULL);
	}
}

bool formation_failed(struct jobs *jobs, const ProtobufCBinaryData *uid, enum status status,
		      const char *text)
{
	struct formation *f = formation_find(jobs, uid);

	if (f) {
		formation_fail(f, status, text);
	}
	return f != NULL;
}

static void formation_go(struct formation *f)
{
	Rocecomm__Peer__CommGo msg = ROCECOMM__PEER__COMM_GO__INIT;
	struct jobs *jobs = f->jobs;
	ProtobufCBinaryData uid = {.data = f->uid, .len = UID_SIZE};
	struct communicator *c;

	msg.uid = uid;
	for (uint32_t h = 0; h < f->nhosts; h++) {
		hostlink_send(f->links[h], PEER_MSG_COMM_GO, &msg.base);
	}
	c = communicator_find(jobs, &uid);
	formation_free(f);
	if (c) {
		communicator_go(c);
	}
}

/* See formation.h. */
void formation_prepared(struct jobs *jobs, struct hostlink *l,
			const Rocecomm__Peer__CommPrepared *msg)
{
	struct formation *f = formation_find(jobs, &msg->uid);

	if (!f) {
		return;
	}
	if (msg->status != STATUS_OK) {
		formation_fail(f, msg->status < STATUS_COUNT_ ? msg->status : STATUS_INTERNAL,
			       msg->text);
		return;
	}
	for (uint32_t h = 0; h < f->nhosts; h++) {
		if (f->links[h] == l && !f->prepared[h]) {
			f->prepared[h] = true;
			f->pending--;
		}
	}
	if (f->pending == 0) {
		formation_go(f);
	}
}

bool formation_on_prepared(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	formation_prepared(jobs, l, (const Rocecomm__Peer__CommPrepared *)msg);
	return false;
}

void formations_link_down(struct jobs *jobs, struct hostlink *l, const char *reason)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->formations) {
			struct formation *f = container_of(at, struct formation, link);
			uint32_t h = 0;

			while (h < f->nhosts && f->links[h] != l) {
				h++;
			}
			if (h < f->nhosts) {
				snprintf(text, sizeof(text),
					 "host %s was lost while the communicator was being "
					 "formed: %s",
					 f->names[h], reason);
				f->links[h] = NULL;
				formation_fail(f, STATUS_PEER_DIED, text);
				found = true;
				break;
			}
		}
	}
}

static void formation_timeout(struct formation *f)
{
	char text[LIMIT_ERROR_TEXT];
	uint32_t h = 0;

	while (h < f->nhosts && f->prepared[h]) {
		h++;
	}
	snprintf(text, sizeof(text),
		 "host %s has not set the communicator up within %d s (%" PRIu32 " of %" PRIu32
		 " hosts have not)",
		 h < f->nhosts ? f->names[h] : "?", FORMATION_TIMEOUT_MS / 1000, f->pending,
		 f->nhosts);
	formation_fail(f, STATUS_TIMEOUT, text);
}

void formations_tick(struct jobs *jobs, uint64_t now)
{
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->formations) {
			struct formation *f = container_of(at, struct formation, link);

			if (f->deadline <= now) {
				formation_timeout(f);
				found = true;
				break;
			}
		}
	}
	if (!list_empty(&jobs->formations)) {
		jobs_tick(jobs);
	}
}

void formations_drop_all(struct jobs *jobs)
{
	while (!list_empty(&jobs->formations)) {
		formation_free(container_of(list_first(&jobs->formations), struct formation, link));
	}
}
