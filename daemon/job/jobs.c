/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Jobs: the root object, and where events are handed on
 *
 * Messages of other daemons are unpacked here and go to the file that their subject lives in. A
 * message that cannot be unpacked is dropped with a line in the log; the link stays.
 *
 * Thread: control      Owns: see jobs.h      Locks: none
 */
#include "job/jobs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "job/bootstrap.h"
#include "job/check.h"
#include "job/comm.h"
#include "job/failure.h"
#include "job/formation.h"
#include "job/hostlink.h"
#include "job/join.h"
#include "job/member.h"
#include "job/prepare.h"
#include "job/rails.h"
#include "job/roster.h"
#include "job/split.h"
#include "job/survey.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/clock.h"
#include "util/log.h"

static void addresses_free(char **addresses, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(addresses[i]);
	}
	free(addresses);
}

/* See jobs.h. */
int jobs_set_addresses(struct jobs *jobs, const char *const *addresses, size_t naddresses)
{
	size_t n = MIN(naddresses, (size_t)PEER_MAX_ADDRESSES);
	char **copies = calloc(n + 1, sizeof(char *));

	if (!copies) {
		return err_origin(-ENOMEM);
	}
	for (size_t i = 0; i < n; i++) {
		copies[i] = strdup(addresses[i]);
		if (!copies[i]) {
			addresses_free(copies, i);
			return err_origin(-ENOMEM);
		}
	}
	addresses_free(jobs->self.addresses, jobs->self.n_addresses);
	jobs->self.addresses = copies;
	jobs->self.n_addresses = n;
	return 0;
}

static int jobs_self(struct jobs *jobs, const struct jobs_options *options)
{
	Rocecomm__Peer__Host *self = &jobs->self;

	rocecomm__peer__host__init(self);
	self->host_id.data = malloc(PEER_HOST_ID);
	self->name = strdup(options->host);
	if (!self->host_id.data || !self->name) {
		return err_origin(-ENOMEM);
	}
	memcpy(self->host_id.data, options->host_id, PEER_HOST_ID);
	self->host_id.len = PEER_HOST_ID;
	if (strlen(self->name) >= LIMIT_NAME) {
		self->name[LIMIT_NAME - 1] = '\0';
	}
	return err_trace(jobs_set_addresses(jobs, options->addresses, options->naddresses));
}

static void jobs_on_tick(uv_timer_t *timer);

/* See jobs.h. */
int jobs_new(const struct jobs_options *options, struct jobs **ret)
{
	struct jobs *jobs = calloc(1, sizeof(*jobs));
	char err[256];
	int r;

	if (!jobs) {
		return err_origin(-ENOMEM);
	}
	jobs->loop = options->loop;
	jobs->engine = options->engine;
	jobs->config = options->config;
	jobs->telling = options->telling;
	jobs->telling_arg = options->telling_arg;
	jobs->mesh_hosts = options->mesh_hosts ? options->mesh_hosts : ROSTER_MESH_HOSTS;
	jobs->fanout = options->fanout ? options->fanout : ROSTER_FANOUT;
	jobs->visit_ranks = options->visit_ranks ? options->visit_ranks : JOBS_VISIT_RANKS;
	hashmap_init(&jobs->comms);
	hashmap_init(&jobs->rendezvous);
	list_init(&jobs->joining);
	list_init(&jobs->ending);
	list_init(&jobs->formations);
	list_init(&jobs->splits);
	list_init(&jobs->surveys);
	list_init(&jobs->checks);
	list_init(&jobs->links);
	r = jobs_self(jobs, options);
	if (r == 0) {
		r = coll_tuning_parse(&jobs->tuning, jobs->config->algorithms, err, sizeof(err));
		if (r < 0) {
			log_error("peer.algorithms: %s", err);
		}
	}
	if (r < 0) {
		jobs_free(jobs);
		return err_trace(r);
	}
	uv_timer_init(jobs->loop, &jobs->tick);
	uv_timer_init(jobs->loop, &jobs->soon);
	*ret = jobs;
	return 0;
}

void jobs_set_peers(struct jobs *jobs, struct peers *peers)
{
	jobs->peers = peers;
	jobs->self.port = peers_port(peers);
}

void jobs_set_rails(struct jobs *jobs, struct rails *rails)
{
	jobs->rails = rails;
}

/* See jobs.h. */
void jobs_shutdown(struct jobs *jobs, enum status status, const char *reason)
{
	rendezvous_shutdown(jobs, status, reason);
	communicators_shutdown(jobs, status, reason);
	checks_shutdown(jobs, reason);
	while (!list_empty(&jobs->joining)) {
		member_refuse(container_of(list_first(&jobs->joining), struct member, link), status,
			      reason);
	}
}

void jobs_engine_stopped(struct jobs *jobs)
{
	jobs->stopped = true;
}

static void jobs_on_part_closed(void *arg)
{
	struct jobs *jobs = arg;

	if (--jobs->closing == 0) {
		jobs->closed(jobs->closed_arg);
	}
}

static void jobs_on_closed(uv_handle_t *handle)
{
	jobs_on_part_closed(handle->data);
}

void jobs_close(struct jobs *jobs, void (*closed)(void *arg), void *arg)
{
	jobs->closed = closed;
	jobs->closed_arg = arg;
	rendezvous_drop_all(jobs);
	formations_drop_all(jobs);
	splits_drop_all(jobs);
	surveys_drop_all(jobs);
	checks_shutdown(jobs, "the daemon stops");
	jobs->closing = 3;
	jobs->tick.data = jobs;
	jobs->soon.data = jobs;
	uv_close((uv_handle_t *)&jobs->tick, jobs_on_closed);
	uv_close((uv_handle_t *)&jobs->soon, jobs_on_closed);
	rails_close(jobs->rails, jobs_on_part_closed, jobs);
}

struct jobs *jobs_free(struct jobs *jobs)
{
	if (!jobs) {
		return NULL;
	}
	assert(list_empty(&jobs->joining));
	assert(hashmap_count(&jobs->comms) == 0);
	while (!list_empty(&jobs->links)) {
		hostlink_drop(container_of(list_first(&jobs->links), struct hostlink, link));
	}
	hashmap_deinit(&jobs->comms);
	hashmap_deinit(&jobs->rendezvous);
	addresses_free(jobs->self.addresses, jobs->self.n_addresses);
	free(jobs->self.host_id.data);
	if (jobs->self.name != protobuf_c_empty_string) {
		free(jobs->self.name);
	}
	free(jobs);
	return NULL;
}

void jobs_telling(struct jobs *jobs)
{
	if (jobs->telling) {
		jobs->telling(jobs->telling_arg);
	}
}

int jobs_unique_id(struct jobs *jobs, uint8_t ret[LIMIT_UNIQUE_ID])
{
	uint8_t uid[UID_SIZE];
	int r;

	jobs_telling(jobs);
	r = uid_random(uid);
	if (r < 0) {
		return err_trace(r);
	}
	return err_trace(uniqueid_encode(uid, &jobs->self, ret));
}

bool jobs_id_used(const struct jobs *jobs, const uint8_t uid[UID_SIZE])
{
	static const uint8_t none[UID_SIZE];

	for (uint32_t i = 0; i < JOBS_USED_IDS; i++) {
		if (memcmp(jobs->used[i], uid, UID_SIZE) == 0) {
			return memcmp(uid, none, UID_SIZE) != 0;
		}
	}
	return false;
}

void jobs_id_use(struct jobs *jobs, const uint8_t uid[UID_SIZE])
{
	memcpy(jobs->used[jobs->next_used], uid, UID_SIZE);
	jobs->next_used = (jobs->next_used + 1) % JOBS_USED_IDS;
}

/* ---- time --------------------------------------------------------------------------------- */

uint64_t jobs_now(const struct jobs *jobs)
{
	return uv_now(jobs->loop);
}

void jobs_tick(struct jobs *jobs)
{
	if (!jobs->ticking && !jobs->closed) {
		jobs->ticking = true;
		uv_timer_start(&jobs->tick, jobs_on_tick, JOBS_TICK_MS, 0);
	}
}

static void jobs_on_soon(uv_timer_t *timer)
{
	struct jobs *jobs = container_of(timer, struct jobs, soon);

	formations_run(jobs);
	join_run(jobs);
}

void jobs_soon(struct jobs *jobs)
{
	if (!jobs->closed) {
		uv_timer_start(&jobs->soon, jobs_on_soon, 0, 0);
	}
}

/* Whoever still has something that may time out calls jobs_tick() again. */
static void jobs_on_tick(uv_timer_t *timer)
{
	struct jobs *jobs = container_of(timer, struct jobs, tick);
	uint64_t now = jobs_now(jobs);

	jobs->ticking = false;
	rendezvous_tick(jobs, now);
	formations_tick(jobs, now);
	splits_tick(jobs, now);
	surveys_tick(jobs, now);
	members_tick(jobs, now);
	communicators_tick(jobs, now);
	rails_tick(jobs->rails, now);
	checks_tick(jobs, now);
}

/* ---- events of the engine ----------------------------------------------------------------- */

void jobs_comm_failed(struct jobs *jobs, void *comm_user, const struct engine_failure *failure)
{
	failure_from_engine(comm_user, failure);
}

void jobs_peer_down(struct jobs *jobs, void *peer_user, const char *what, int error,
		    const char *reason)
{
	/* Of these two the reason says it all; else it says where, and the error what. */
	bool both = reason && error != -EPROTO && error != -ECONNRESET;
	struct hostlink *l = peer_user;
	char text[LIMIT_ERROR_TEXT];

	if (!l->peer || l->broken) {
		return;
	}
	l->broken = true;
	snprintf(text, sizeof(text), "the %s to host %s are lost: %s%s%s", what, peer_name(l->peer),
		 reason ? reason : "", both ? ": " : "",
		 both || !reason ? strerror(error < 0 ? -error : error) : "");
	log_warn("%s", text);
	communicators_link_down(jobs, l, STATUS_PEER_DIED, text);
	peer_break(l->peer, text);
}

void jobs_rail(struct jobs *jobs, void *peer_user, uint32_t rail, enum verbs_rail_state state,
	       const char *text)
{
	rails_event(peer_user, rail, state, text);
}

/* ---- events of peers ---------------------------------------------------------------------- */

static void jobs_on_up(void *arg, struct peer *peer)
{
	struct jobs *jobs = arg;
	struct hostlink *l = hostlink_of(jobs, peer);

	if (l) {
		l->reached = true;
		if (l->engine && !peer_is_visit(peer) && rails_link_up(jobs->rails, l) < 0) {
			log_warn("host %s is without RDMA: no memory", peer_name(peer));
		}
		if (!list_empty(&jobs->joining) || l->visit) {
			jobs_soon(jobs); /* ranks may wait to ask */
		}
		communicators_link_up(jobs, l);
	}
}

static void jobs_on_down(void *arg, struct peer *peer, enum status status, const char *reason)
{
	struct jobs *jobs = arg;
	struct hostlink *l = peer_user(peer);

	if (!l) {
		return;
	}
	l->broken = true;
	surveys_link_down(jobs, l);
	members_root_down(jobs, l, status, reason);
	rendezvous_link_down(jobs, l, reason);
	formations_link_down(jobs, l, reason);
	communicators_link_down(jobs, l, status, reason);
	checks_link_down(jobs, l, reason);
	hostlink_drop(l);
}

static void jobs_on_stream(void *arg, struct peer *peer, int fd, unsigned int index)
{
	struct hostlink *l = hostlink_of(arg, peer);
	int r;

	if (!l) {
		base_close(fd);
		return;
	}
	r = hostlink_stream(l, fd, index);
	if (r < 0) {
		log_error("data connection %u of host %s cannot be used: %s", index,
			  peer_name(peer), strerror(-r));
	}
}

static void jobs_on_merged(void *arg, struct peer *from, struct peer *into)
{
	struct jobs *jobs = arg;
	struct hostlink *l = peer_user(from);
	struct hostlink *other;

	if (!l) {
		return;
	}
	other = hostlink_of(jobs, into);
	if (other) {
		members_root_merged(jobs, l, other);
		checks_link_merged(jobs, l, other);
		jobs_soon(jobs);
	} else {
		members_root_down(jobs, l, STATUS_NO_MEMORY, "the daemon has no memory");
		checks_link_down(jobs, l, "the daemon has no memory");
	}
	hostlink_drop(l);
}

/* @msg: unpacked; the handler that takes it returns true. */
typedef bool (*jobs_message_fn)(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

static const struct jobs_message {
	const ProtobufCMessageDescriptor *descriptor;
	jobs_message_fn handle;
} jobs_messages[PEER_MSG_COUNT_] = {
	[PEER_MSG_JOIN] = {&rocecomm__peer__join__descriptor, rendezvous_on_join},
	[PEER_MSG_COMM_PREPARE] = {&rocecomm__peer__comm_prepare__descriptor, prepare_on_prepare},
	[PEER_MSG_COMM_PREPARED] = {&rocecomm__peer__comm_prepared__descriptor,
				    formation_on_prepared},
	[PEER_MSG_COMM_GO] = {&rocecomm__peer__comm_go__descriptor, prepare_on_go},
	[PEER_MSG_COMM_FAIL] = {&rocecomm__peer__comm_fail__descriptor, failure_on_fail},
	[PEER_MSG_COMM_LEAVE] = {&rocecomm__peer__comm_leave__descriptor, failure_on_leave},
	[PEER_MSG_SPLIT] = {&rocecomm__peer__split__descriptor, split_on_split},
	[PEER_MSG_STATUS_QUERY] = {&rocecomm__peer__status_query__descriptor, survey_on_query},
	[PEER_MSG_JOIN_TAKEN] = {&rocecomm__peer__join_taken__descriptor, join_on_taken},
	[PEER_MSG_STATUS_ANSWER] = {&rocecomm__peer__status_answer__descriptor, survey_on_answer},
	[PEER_MSG_RAIL_PORTS] = {&rocecomm__peer__rail_ports__descriptor, rails_on_ports},
	[PEER_MSG_RAIL_PLAN] = {&rocecomm__peer__rail_plan__descriptor, rails_on_plan},
	[PEER_MSG_RAIL_OPEN] = {&rocecomm__peer__rail_open__descriptor, rails_on_open},
	[PEER_MSG_RAIL_OPENED] = {&rocecomm__peer__rail_opened__descriptor, rails_on_opened},
};

static void jobs_on_message(void *arg, struct peer *peer, uint16_t type, const uint8_t *body,
			    size_t size)
{
	struct jobs *jobs = arg;
	struct hostlink *l = hostlink_of(jobs, peer);
	ProtobufCMessage *msg;

	if (type >= PEER_MSG_COUNT_ || !jobs_messages[type].handle) {
		log_debug("host %s sent message type %u, which this version does not know",
			  peer_name(peer), type);
		return;
	}
	msg = protobuf_c_message_unpack(jobs_messages[type].descriptor, NULL, size, body);
	if (!l || !msg) {
		log_warn("message type %u of host %s is dropped: %s", type, peer_name(peer),
			 l ? "it cannot be decoded" : "no memory");
		if (msg) {
			protobuf_c_message_free_unpacked(msg, NULL);
		}
		return;
	}
	if (!jobs_messages[type].handle(jobs, l, msg)) {
		protobuf_c_message_free_unpacked(msg, NULL);
	}
}

static uint64_t jobs_on_heard(void *arg, struct peer *peer)
{
	const struct jobs *jobs = arg;
	const struct hostlink *l = peer_user(peer);
	uint64_t at = l && l->engine ? engine_peer_heard(l->engine) : 0;
	uint64_t now = jobs_now(jobs), age;

	if (at == 0) {
		return 0;
	}
	age = clock_elapsed(clock_monotonic(), at) / CLOCK_NS_PER_MS;
	return now > age ? now - age : 0;
}

const struct peers_events jobs_peers_events = {
	.up = jobs_on_up,
	.down = jobs_on_down,
	.message = jobs_on_message,
	.stream = jobs_on_stream,
	.merged = jobs_on_merged,
	.heard = jobs_on_heard,
};
