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
#include "job/roster.h"
#include "proto/base.h"
#include "proto/frame.h"
#include "proto/msg.h"
#include "util/log.h"

struct formation {
	struct list link; /* jobs.formations */
	struct jobs *jobs;
	uint8_t uid[UID_SIZE];
	uint8_t joined[UID_SIZE];
	char name[LIMIT_NAME];
	uint64_t deadline;
	bool top;			  /* this is the root */
	struct hostlink *up;		  /* whom to answer; NULL: at the top */
	uint32_t nbelow;		  /* hosts that are told from here */
	uint32_t pending;		  /* of them and our own part: have not answered */
	struct hostlink **links;	  /* [nbelow]; NULL: lost */
	char **names;			  /* [nbelow] */
	bool *prepared;			  /* [nbelow] */
	bool own_part;			  /* ranks of this host are in it ... */
	bool own_prepared;		  /* ... and it is installed here */
	Rocecomm__Peer__CommPrepare *own; /* for this host, not handed over yet */
};

static struct formation *formation_free(struct formation *f)
{
	if (!f) {
		return NULL;
	}
	list_remove(&f->link);
	for (uint32_t h = 0; f->names && h < f->nbelow; h++) {
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
			 const uint32_t *below, uint32_t n, struct formation **ret)
{
	struct formation *f = calloc(1, sizeof(*f));

	if (!f) {
		return err_origin(-ENOMEM);
	}
	list_init(&f->link);
	f->jobs = jobs;
	f->nbelow = n;
	f->deadline = jobs_now(jobs) + FORMATION_TIMEOUT_MS;
	memcpy(f->uid, plan->uid.data, UID_SIZE);
	memcpy(f->joined, plan->joined.data, UID_SIZE);
	snprintf(f->name, sizeof(f->name), "%s", plan->name);
	f->links = calloc(n + 1, sizeof(struct hostlink *));
	f->names = calloc(n + 1, sizeof(char *));
	f->prepared = calloc(n + 1, sizeof(*f->prepared));
	if (!f->links || !f->names || !f->prepared) {
		formation_free(f);
		return err_origin(-ENOMEM);
	}
	for (uint32_t h = 0; h < n; h++) {
		f->names[h] = strdup(plan->hosts[below[h]]->name);
		if (!f->names[h]) {
			formation_free(f);
			return err_origin(-ENOMEM);
		}
	}
	*ret = f;
	return 0;
}

/* Unpacks what the others get. */
static Rocecomm__Peer__CommPrepare *formation_copy(const uint8_t *frame, size_t size)
{
	return rocecomm__peer__comm_prepare__unpack(NULL, size - FRAME_HEADER,
						    frame + FRAME_HEADER);
}

/* Leaves names of clients out where the message would be too big with them. */
static bool formation_fits(Rocecomm__Peer__CommPrepare *plan)
{
	if (rocecomm__peer__comm_prepare__get_packed_size(plan) <= LIMIT_PEER_BODY) {
		return true;
	}
	plan->n_clients = 0;
	plan->n_client_of = 0;
	return rocecomm__peer__comm_prepare__get_packed_size(plan) <= LIMIT_PEER_BODY;
}

/* Has links to all below, be they up or not. Return: 0, enum status. */
static int formation_connect(struct formation *f, const Rocecomm__Peer__CommPrepare *plan,
			     const uint32_t *below, char *text, size_t text_size)
{
	jobs_telling(f->jobs);
	for (uint32_t h = 0; h < f->nbelow; h++) {
		int r = hostlink_connect(f->jobs, plan->hosts[below[h]], false, &f->links[h]);

		if (r < 0) {
			snprintf(text, text_size, "host %s cannot connect to host %s: %s",
				 jobs_host(f->jobs), f->names[h], strerror(-r));
			return STATUS_UNREACHABLE;
		}
	}
	return 0;
}

static enum status formation_no_memory(const struct jobs *jobs, char *text, size_t text_size)
{
	snprintf(text, text_size, "the daemon of host %s has no memory for the communicator",
		 jobs_host(jobs));
	return STATUS_NO_MEMORY;
}

/* Begins with the hosts @below. @up: NULL: at the top. Return: 0, enum status. */
static int formation_begin(struct jobs *jobs, const Rocecomm__Peer__CommPrepare *plan,
			   const uint32_t *below, uint32_t n, struct hostlink *up, bool own,
			   char *text, size_t text_size)
{
	cleanup_free uint8_t *frame = NULL;
	struct formation *f = NULL;
	size_t size = 0;
	int r;

	if (frame_pack_limit(PEER_MSG_COMM_PREPARE, 0, 0, plan, LIMIT_PEER_BODY, &frame, &size) !=
		    0 ||
	    formation_new(jobs, plan, below, n, &f) < 0) {
		return formation_no_memory(jobs, text, text_size);
	}
	f->up = up;
	f->top = !up;
	f->own_part = own;
	f->pending = n + own;
	if (own && f->top) {
		f->own = formation_copy(frame, size);
		if (!f->own) {
			formation_free(f);
			return formation_no_memory(jobs, text, text_size);
		}
	}
	r = formation_connect(f, plan, below, text, text_size);
	if (r != 0) {
		formation_free(f);
		return r;
	}
	list_append(&jobs->formations, &f->link);
	for (uint32_t h = 0; h < n; h++) {
		hostlink_send_frame(f->links[h], frame, size);
	}
	if (f->own) {
		jobs_soon(jobs);
	}
	jobs_tick(jobs);
	return 0;
}

/* The hosts that the root tells. @below: [hosts]. Return: how many. */
static uint32_t formation_first(Rocecomm__Peer__CommPrepare *plan, uint32_t self, uint32_t *below)
{
	bool inside = self < plan->n_hosts;
	uint32_t n = 0;

	if (roster_sparse(plan)) {
		plan->first = inside ? self : 0;
		if (inside) {
			return roster_children(plan, self, below);
		}
		below[0] = 0;
		return 1;
	}
	for (uint32_t h = 0; h < plan->n_hosts; h++) {
		if (h != self) {
			below[n++] = h;
		}
	}
	return n;
}

/* See formation.h. */
int formation_start(struct jobs *jobs, Rocecomm__Peer__CommPrepare *plan, char *text,
		    size_t text_size)
{
	uint32_t self = roster_find(plan, jobs->self.host_id.data), n;
	cleanup_free uint32_t *below =
		calloc(MAX(plan->n_hosts, (size_t)ROSTER_FANOUT_MAX), sizeof(*below));
	uint8_t uid[UID_SIZE];

	if (!below) {
		return formation_no_memory(jobs, text, text_size);
	}
	if (uid_random(uid) < 0) {
		snprintf(text, text_size, "the root daemon has no random numbers");
		return STATUS_INTERNAL;
	}
	plan->uid.data = uid;
	plan->uid.len = UID_SIZE;
	memcpy(&plan->wire, uid, sizeof(plan->wire));
	plan->fanout = plan->n_hosts > jobs->mesh_hosts ? jobs->fanout : 0;
	n = formation_first(plan, self, below);
	if (!formation_fits(plan)) {
		snprintf(text, text_size,
			 "the description of %zu ranks on %zu hosts is longer than a message of %u "
			 "bytes: use fewer hosts, or shorter host names and fewer addresses",
			 plan->n_host_of, plan->n_hosts, LIMIT_PEER_BODY);
		return STATUS_UNSUPPORTED;
	}
	return formation_begin(jobs, plan, below, n, NULL, self < plan->n_hosts, text, text_size);
}

/* See formation.h. */
int formation_relay(struct jobs *jobs, struct hostlink *up, const Rocecomm__Peer__CommPrepare *plan,
		    char *text, size_t text_size)
{
	uint32_t below[ROSTER_FANOUT_MAX], n = 0;

	if (up && roster_sparse(plan)) {
		n = roster_children(plan, roster_find(plan, jobs->self.host_id.data), below);
	}
	return n == 0 ? 0 : formation_begin(jobs, plan, below, n, up, true, text, text_size);
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

/* The host above hears how it went. */
static void formation_answer(const struct formation *f, enum status status, const char *text)
{
	Rocecomm__Peer__CommPrepared msg = ROCECOMM__PEER__COMM_PREPARED__INIT;

	msg.uid.data = (uint8_t *)(uintptr_t)f->uid;
	msg.uid.len = UID_SIZE;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	hostlink_send(f->up, PEER_MSG_COMM_PREPARED, &msg.base);
}

/* Tells all hosts, this one last; @f is gone afterwards. */
static void formation_fail(struct formation *f, enum status status, const char *text)
{
	Rocecomm__Peer__CommFail msg = ROCECOMM__PEER__COMM_FAIL__INIT;
	struct jobs *jobs = f->jobs;
	uint8_t uid_data[UID_SIZE];
	ProtobufCBinaryData uid = {.data = uid_data, .len = UID_SIZE};
	Rocecomm__Peer__CommPrepare *own = take_ptr(f->own);
	struct communicator *c;

	log_info("communicator %s is not formed: %s", f->name, text);
	memcpy(uid_data, f->uid, UID_SIZE);
	msg.uid = uid;
	msg.status = status;
	msg.text = (char *)(uintptr_t)text;
	msg.rank = -1;
	for (uint32_t h = 0; h < f->nbelow; h++) {
		hostlink_send(f->links[h], PEER_MSG_COMM_FAIL, &msg.base);
	}
	formation_answer(f, status, text);
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
	uint8_t uid_data[UID_SIZE];
	ProtobufCBinaryData uid = {.data = uid_data, .len = UID_SIZE};
	struct communicator *c;

	memcpy(uid_data, f->uid, UID_SIZE);
	msg.uid = uid;
	for (uint32_t h = 0; h < f->nbelow; h++) {
		hostlink_send(f->links[h], PEER_MSG_COMM_GO, &msg.base);
	}
	c = communicator_find(jobs, &uid);
	formation_free(f);
	if (c) {
		communicator_go(c);
	}
}

/* See formation.h. */
bool formation_go_from(struct jobs *jobs, struct hostlink *l, const ProtobufCBinaryData *uid)
{
	struct formation *f = formation_find(jobs, uid);

	if (!f || f->top || f->up != l || f->pending > 0) {
		return false;
	}
	formation_go(f);
	return true;
}

static void formation_note(struct formation *f, struct hostlink *l)
{
	if (!l && f->own_part && !f->own_prepared) {
		f->own_prepared = true;
		f->pending--;
	}
	for (uint32_t h = 0; l && h < f->nbelow; h++) {
		if (f->links[h] == l && !f->prepared[h]) {
			f->prepared[h] = true;
			f->pending--;
		}
	}
}

/* See formation.h. */
bool formation_prepared(struct jobs *jobs, struct hostlink *l,
			const Rocecomm__Peer__CommPrepared *msg)
{
	struct formation *f = formation_find(jobs, &msg->uid);
	bool waited = f && f->pending > 0;

	if (!f) {
		return false;
	}
	if (msg->status != STATUS_OK) {
		formation_fail(f, msg->status < STATUS_COUNT_ ? msg->status : STATUS_INTERNAL,
			       msg->text);
		return true;
	}
	formation_note(f, l);
	if (waited && f->pending == 0) {
		if (f->top) {
			formation_go(f);
		} else {
			formation_answer(f, STATUS_OK, "");
		}
	}
	return true;
}

bool formation_on_prepared(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	formation_prepared(jobs, l, (const Rocecomm__Peer__CommPrepared *)msg);
	return false;
}

/* Return: the name of the host that @f had this link to, or NULL. */
static const char *formation_lost(struct formation *f, const struct hostlink *l)
{
	if (f->up == l) {
		f->up = NULL;
		return peer_name(l->peer);
	}
	for (uint32_t h = 0; h < f->nbelow; h++) {
		if (f->links[h] == l) {
			f->links[h] = NULL;
			return f->names[h];
		}
	}
	return NULL;
}

void formations_link_down(struct jobs *jobs, struct hostlink *l, const char *reason)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->formations) {
			struct formation *f = container_of(at, struct formation, link);
			const char *name = formation_lost(f, l);

			if (name) {
				snprintf(text, sizeof(text),
					 "host %s was lost while the communicator was being "
					 "formed: %s",
					 name, reason);
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

	while (h < f->nbelow && f->prepared[h]) {
		h++;
	}
	snprintf(text, sizeof(text),
		 "host %s has not set the communicator up within %d s (%" PRIu32 " of %" PRIu32
		 " hosts have not)",
		 h < f->nbelow ? f->names[h] : jobs_host(f->jobs), FORMATION_TIMEOUT_MS / 1000,
		 f->pending, f->nbelow + f->own_part);
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
