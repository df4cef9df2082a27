/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicator: implementation
 *
 * Thread: control      Owns: see comm.h      Locks: none
 */
#include "job/comm.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/formation.h"
#include "job/join.h"
#include "job/prepare.h"
#include "job/rails.h"
#include "job/roster.h"
#include "job/split.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

static struct communicator *communicator_free(struct communicator *c)
{
	if (!c) {
		return NULL;
	}
	assert(c->attached == 0);
	assert(list_empty(&c->waits));
	rocecomm__peer__comm_prepare__free_unpacked(c->plan, NULL);
	coll_layout_free(c->layout);
	comm_view_free(c->view);
	free(c->locals);
	free(c->links);
	free(c->near);
	free(c->gone);
	free(c);
	return NULL;
}

/* ---- making ------------------------------------------------------------------------------- */

static int communicator_layout(struct communicator *c)
{
	int r;

	r = coll_layout_new(c->plan->host_of, c->size, c->nhosts, &c->layout);
	if (r < 0) {
		return err_trace(r);
	}
	c->nlocal = coll_nlocal(c->layout, c->host);
	c->locals = calloc(c->nlocal, sizeof(struct member *));
	if (!c->locals) {
		return err_origin(-ENOMEM);
	}
	return err_trace(comm_view_new(c->nlocal, &c->view));
}

bool communicator_is_sparse(const struct communicator *c)
{
	return roster_sparse(c->plan);
}

/* Which hosts this one is linked with. */
static int communicator_near(struct communicator *c)
{
	bool sparse = communicator_is_sparse(c);

	c->links = calloc(c->nhosts, sizeof(struct hostlink *));
	c->near = calloc(sparse ? ROSTER_NEAR_MAX : c->nhosts, sizeof(*c->near));
	if (!c->links || !c->near) {
		return err_origin(-ENOMEM);
	}
	if (sparse) {
		c->nnear = roster_near(c->plan, c->host, c->near);
		return 0;
	}
	for (uint32_t h = 0; h < c->nhosts; h++) {
		if (h != c->host) {
			c->near[c->nnear++] = h;
		}
	}
	return 0;
}

/* Finds the members first, binds them when all are there. */
static int communicator_bind(struct communicator *c, char *text, size_t size)
{
	const uint32_t *ours = &c->layout->by_host[c->layout->host_first[c->host]];

	for (uint32_t i = 0; i < c->nlocal; i++) {
		c->locals[i] =
			member_find(c->jobs, c->joined, roster_waiting_rank(c->plan, ours[i]));
		if (!c->locals[i]) {
			snprintf(text, size,
				 "rank %" PRIu32 " (host %s, pid %" PRIu32 ", %s) is gone: it "
				 "ended or gave up while the communicator was being formed",
				 ours[i], jobs_host(c->jobs), c->plan->pids[ours[i]],
				 roster_client(c->plan, ours[i]));
			return STATUS_PEER_DIED;
		}
	}
	for (uint32_t i = 0; i < c->nlocal; i++) {
		struct member *m = c->locals[i];

		list_remove(&m->link);
		m->comm = c;
		m->rank = ours[i];
		m->local = i;
		m->state = MEMBER_BOUND;
	}
	c->attached = c->nlocal;
	return 0;
}

/* See comm.h. */
int communicator_new(struct jobs *jobs, Rocecomm__Peer__CommPrepare *plan, struct hostlink *root,
		     struct communicator **ret, char *text, size_t text_size)
{
	struct communicator *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		return err_origin(-ENOMEM);
	}
	list_init(&c->waits);
	c->jobs = jobs;
	c->root = root;
	c->size = (uint32_t)plan->n_host_of;
	c->nhosts = (uint32_t)plan->n_hosts;
	c->since = jobs_now(jobs);
	memcpy(c->uid, plan->uid.data, UID_SIZE);
	memcpy(c->joined, plan->joined.data, UID_SIZE);
	c->host = roster_find(plan, jobs->self.host_id.data);
	c->plan = plan;
	c->gone = calloc(c->size, sizeof(*c->gone));
	r = c->gone ? communicator_near(c) : -ENOMEM;
	if (r == 0) {
		r = communicator_layout(c);
	}
	if (r == 0) {
		r = communicator_bind(c, text, text_size);
	}
	if (r == 0) {
		r = hashmap_put16(&jobs->comms, c->uid, c);
	}
	if (r != 0) {
		for (uint32_t i = 0; c->attached > 0 && i < c->nlocal; i++) {
			c->locals[i]->comm = NULL;
			c->locals[i]->rank = roster_waiting_rank(plan, c->locals[i]->rank);
			c->locals[i]->state = MEMBER_JOINING;
			list_append(&jobs->joining, &c->locals[i]->link);
		}
		c->attached = 0;
		c->plan = NULL;
		communicator_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

struct communicator *communicator_find(struct jobs *jobs, const ProtobufCBinaryData *uid)
{
	return uid->len == UID_SIZE ? hashmap_get16(&jobs->comms, uid->data) : NULL;
}

/* ---- links and engine --------------------------------------------------------------------- */

static void communicator_installed(void *arg)
{
	struct communicator *c = arg;

	if (c->state != COMMUNICATOR_INSTALLING) {
		return;
	}
	c->state = COMMUNICATOR_PREPARED;
	prepare_answer(c, STATUS_OK, "");
}

static int communicator_install(struct communicator *c)
{
	cleanup_free struct engine_peer **peers = calloc(c->nhosts, sizeof(struct engine_peer *));
	cleanup_free struct engine_comm_rank *ranks = calloc(c->nlocal, sizeof(*ranks));
	struct engine_comm_params params = {
		.uid = c->plan->wire,
		.layout = c->layout,
		.tuning = &c->jobs->tuning,
		.host = c->host,
		.peers = peers,
		.ranks = ranks,
		.view = c->view,
		.arrival_timeout_ms = c->plan->arrival_timeout_ms,
		.transfer_timeout_ms = c->plan->transfer_timeout_ms,
		.user = c,
	};

	if (!peers || !ranks) {
		return err_origin(-ENOMEM);
	}
	for (uint32_t h = 0; h < c->nhosts; h++) {
		peers[h] = c->links[h] ? c->links[h]->engine : NULL;
	}
	for (uint32_t i = 0; i < c->nlocal; i++) {
		ranks[i].session = c->locals[i]->session;
		ranks[i].handle = c->locals[i]->handle;
		ranks[i].rank = c->locals[i]->rank;
	}
	return err_trace(
		engine_comm_add(c->jobs->engine, &params, communicator_installed, c, &c->engine));
}

/* Where TCP is not allowed, every link must have a rail. Return: false: failed, and perhaps gone.
 */
static bool communicator_rails_check(struct communicator *c)
{
	char text[LIMIT_ERROR_TEXT], why[LIMIT_ERROR_TEXT / 2];

	for (uint32_t i = 0; i < c->nnear && !rails_tcp_allowed(c->jobs->rails); i++) {
		const struct hostlink *l = c->links[c->near[i]];

		if (l && !rails_link_uses(l, why, sizeof(why))) {
			snprintf(text, sizeof(text),
				 "host %s does not reach host %s by RDMA, and its configuration "
				 "allows nothing else (transport = rdma): %s",
				 jobs_host(c->jobs), c->plan->hosts[c->near[i]]->name, why);
			communicator_fail(c, COMMUNICATOR_TELL, STATUS_UNREACHABLE, text);
			return false;
		}
	}
	return true;
}

/* See comm.h. */
bool communicator_link_check(struct communicator *c)
{
	int r;

	for (uint32_t i = 0; i < c->nnear; i++) {
		const struct hostlink *l = c->links[c->near[i]];

		if (l && !hostlink_is_ready(l)) {
			return true;
		}
	}
	if (!communicator_rails_check(c)) {
		return false;
	}
	c->state = COMMUNICATOR_INSTALLING;
	r = communicator_install(c);
	if (r < 0) {
		communicator_fail(c, COMMUNICATOR_TELL, status_from_errno(r),
				  "the daemon has no memory for the communicator");
		return false;
	}
	return true;
}

/* See comm.h. */
void communicator_link(struct communicator *c)
{
	char text[LIMIT_ERROR_TEXT];

	jobs_telling(c->jobs);
	for (uint32_t i = 0; i < c->nnear; i++) {
		uint32_t h = c->near[i];
		const Rocecomm__Peer__Host *host = c->plan->hosts[h];
		int r;

		r = hostlink_connect(c->jobs, host, false, &c->links[h]);
		if (r == 0 && c->links[h]->broken) {
			r = -ECONNRESET;
		}
		if (r < 0) {
			snprintf(text, sizeof(text), "host %s cannot connect to host %s: %s",
				 jobs_host(c->jobs), host->name, strerror(-r));
			communicator_fail(c, COMMUNICATOR_TELL, STATUS_UNREACHABLE, text);
			return;
		}
	}
	communicator_link_check(c);
}

/* See comm.h. */
/* Once a job: a host that has RDMA devices does without them. Of those without any nobody expects
 * it. */
static void warn_of_tcp(const struct communicator *c)
{
	const struct rdma *devices = c->jobs->rails ? rails_devices(c->jobs->rails) : NULL;
	char text[512];

	if (c->nhosts == 1 || c->plan->parent.len > 0 || !devices || devices->count == 0) {
		return;
	}
	communicator_path_text(c, text, sizeof(text));
	if (strncmp(text, "rdma (", strlen("rdma (")) != 0) {
		log_warn("job %s: %s", c->plan->name, text);
	}
}

void communicator_go(struct communicator *c)
{
	if (c->state != COMMUNICATOR_PREPARED) {
		return;
	}
	c->state = COMMUNICATOR_READY;
	c->root = NULL;
	warn_of_tcp(c);
	for (uint32_t i = 0; i < c->nlocal; i++) {
		struct member *m = c->locals[i];

		if (m && m->state == MEMBER_BOUND) {
			m->state = MEMBER_READY;
			join_forget(m);
			m->ops->ready(m);
		}
	}
}

/* ---- the end ------------------------------------------------------------------------------ */

static void communicator_removed(void *arg)
{
	communicator_free(arg);
}

/* The last local rank has left. */
static void communicator_remove(struct communicator *c)
{
	splits_parent_gone(c, STATUS_PEER_DIED, "the parent communicator was destroyed meanwhile");
	communicator_settled(c);
	hashmap_remove16(&c->jobs->comms, c->uid);
	c->state = COMMUNICATOR_FAILED;
	if (c->engine && !c->jobs->stopped) {
		engine_comm_remove(c->jobs->engine, c->engine, communicator_removed, c);
	} else {
		communicator_free(c);
	}
}

static void communicator_detached(void *arg)
{
	struct member *m = arg;
	struct communicator *c = m->comm;

	c->locals[m->local] = NULL;
	c->attached--;
	if (c->attached == 0) {
		communicator_remove(c);
	}
	member_detached(m);
}

/* See comm.h. */
void communicator_detach(struct communicator *c, struct member *m)
{
	if (c->engine && !c->jobs->stopped) {
		engine_comm_detach(c->jobs->engine, c->engine, m->local, communicator_detached, m);
	} else {
		communicator_detached(m);
	}
}

/* ---- failure ------------------------------------------------------------------------------ */

static void communicator_send(struct communicator *c, uint16_t type, const ProtobufCMessage *msg)
{
	bool root_told = !c->root;

	for (uint32_t i = 0; i < c->nnear; i++) {
		struct hostlink *l = c->links[c->near[i]];

		hostlink_send(l, type, msg);
		root_told = root_told || l == c->root;
	}
	if (!root_told) {
		hostlink_send(c->root, type, msg);
	}
}

/* Not usable yet: the ranks are refused. @c may be gone afterwards. */
static void communicator_refuse(struct communicator *c)
{
	char text[LIMIT_ERROR_TEXT];
	enum status status = c->status;

	snprintf(text, sizeof(text), "%s", c->text);
	/* Keeps it alive until all are told. */
	c->attached++;
	for (uint32_t i = 0; i < c->nlocal; i++) {
		if (c->locals[i]) {
			member_refuse(c->locals[i], status, text);
		}
	}
	if (--c->attached == 0) {
		communicator_remove(c);
	}
}

/* See comm.h. */
void communicator_fail(struct communicator *c, unsigned int flags, enum status status,
		       const char *text)
{
	Rocecomm__Peer__CommFail msg = ROCECOMM__PEER__COMM_FAIL__INIT;
	bool ready = c->state == COMMUNICATOR_READY;

	if (c->status != STATUS_OK) {
		return;
	}
	c->status = status;
	c->state = COMMUNICATOR_FAILED;
	snprintf(c->text, sizeof(c->text), "%s", text);
	log_info("communicator %s (%016" PRIx64 ") has failed: %s", c->plan->name, c->plan->wire,
		 text);
	if (c->engine && !c->jobs->stopped && !(flags & COMMUNICATOR_ENGINE_KNOWS)) {
		engine_comm_fail(c->jobs->engine, c->engine, status);
	}
	if (flags & COMMUNICATOR_TELL) {
		msg.uid.data = c->uid;
		msg.uid.len = UID_SIZE;
		msg.status = status;
		msg.text = c->text;
		msg.rank = -1;
		communicator_send(c, PEER_MSG_COMM_FAIL, &msg.base);
	}
	if (!ready) {
		ProtobufCBinaryData uid = {.data = c->uid, .len = UID_SIZE};

		formation_failed(c->jobs, &uid, status, text);
		communicator_refuse(c);
		return;
	}
	splits_parent_gone(c, status, text);
}

static void communicator_tell_gone(struct communicator *c, uint32_t rank, bool died,
				   uint64_t completed, const char *text)
{
	Rocecomm__Peer__CommFail fail = ROCECOMM__PEER__COMM_FAIL__INIT;
	Rocecomm__Peer__CommLeave leave = ROCECOMM__PEER__COMM_LEAVE__INIT;

	if (died) {
		fail.uid.data = c->uid;
		fail.uid.len = UID_SIZE;
		fail.status = STATUS_PEER_DIED;
		fail.text = (char *)(uintptr_t)text;
		fail.rank = (int32_t)rank;
		fail.died = true;
		fail.completed = completed;
		communicator_send(c, PEER_MSG_COMM_FAIL, &fail.base);
	} else {
		leave.uid.data = c->uid;
		leave.uid.len = UID_SIZE;
		leave.rank = rank;
		leave.completed = completed;
		communicator_send(c, PEER_MSG_COMM_LEAVE, &leave.base);
	}
}

/* See comm.h. */
void communicator_doom(struct communicator *c, uint32_t rank, bool died, uint64_t completed,
		       const char *text, bool tell)
{
	struct communicator_doom *d = &c->doom;

	if (c->gone[rank]) {
		return;
	}
	c->gone[rank] = true;
	if (c->status != STATUS_OK) {
		return;
	}
	if (tell) {
		communicator_tell_gone(c, rank, died, completed, text);
	}
	if (!d->on || completed < d->limit || (died && !d->died)) {
		d->limit = d->on ? MIN(d->limit, completed) : completed;
		d->rank = rank;
		snprintf(d->text, sizeof(d->text), "%s", text);
	}
	if (died && !d->died) {
		d->deadline = jobs_now(c->jobs) + DOOM_GRACE_MS;
	}
	d->on = true;
	d->died = d->died || died;
	splits_parent_gone(c, STATUS_PEER_DIED, text);
	jobs_tick(c->jobs);
}

/* Have the local ranks, those that are still here, completed what they have posted? */
static bool communicator_quiet(const struct communicator *c, bool *ret_beyond)
{
	uint64_t completed = counter_get(&c->view->completed);
	bool quiet = true;

	*ret_beyond = false;
	for (uint32_t i = 0; i < c->nlocal; i++) {
		uint64_t posted = counter_get(&c->view->ranks[i].posted);

		if (!c->locals[i] || c->locals[i]->state != MEMBER_READY) {
			continue;
		}
		quiet = quiet && posted == completed;
		*ret_beyond = *ret_beyond || posted > c->doom.limit;
	}
	return quiet;
}

static void communicator_tick(struct communicator *c, uint64_t now)
{
	struct communicator_doom *d = &c->doom;
	bool beyond, quiet;

	if (!d->on || c->status != STATUS_OK || c->state != COMMUNICATOR_READY) {
		return;
	}
	quiet = communicator_quiet(c, &beyond);
	if (beyond || (d->died && (quiet || now >= d->deadline))) {
		/*
		 * The other hosts know of the doom, and best when their own operations have ended;
		 * not so those far away.
		 */
		communicator_fail(c, communicator_is_sparse(c) ? COMMUNICATOR_TELL : 0,
				  STATUS_PEER_DIED, d->text);
		return;
	}
	jobs_tick(c->jobs);
}

void communicators_tick(struct jobs *jobs, uint64_t now)
{
	size_t iter = 0;
	struct communicator *c;

	/* Usable ones fail without going away, so the map does not change under us. */
	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		communicator_tick(c, now);
	}
}

void communicators_shutdown(struct jobs *jobs, enum status status, const char *reason)
{
	size_t iter = 0;
	struct communicator *c;

	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		if (c->status == STATUS_OK) {
			communicator_fail(c, 0, status, reason);
			iter = 0; /* the map may have changed */
		}
	}
}

void communicator_when_settled(struct communicator *c, struct communicator_wait *wait)
{
	if (c->settling) {
		list_append(&c->waits, &wait->link);
	} else {
		list_init(&wait->link);
		wait->settled(wait);
	}
}

void communicator_settled(struct communicator *c)
{
	c->settling = false;
	while (!list_empty(&c->waits)) {
		struct communicator_wait *wait =
			container_of(list_first(&c->waits), struct communicator_wait, link);

		list_remove(&wait->link);
		wait->settled(wait);
	}
}
