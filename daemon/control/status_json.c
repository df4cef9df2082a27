/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status as JSON: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "control/status_json.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "control/handle.h"
#include "control/json.h"
#include "control/status_comm.h"
#include "gpu/gpu.h"
#include "proto/base.h"
#include "proto/hello.h"
#include "proto/shm_layout.h"
#include "topo/interfaces.h"

static void put_limit(struct json *j, const char *key, const struct quota *q)
{
	json_open(j, key);
	json_uint(j, "used", quota_used(q));
	if (quota_limit(q) == QUOTA_UNLIMITED) {
		json_null(j, "limit");
	} else {
		json_uint(j, "limit", quota_limit(q));
	}
	json_close(j);
}

static bool sees_session(const struct session *reader, bool all, const struct session *s)
{
	return (all && reader->admin) || s->uid == reader->uid;
}

static void put_daemon(struct json *j, const struct session *s, bool all)
{
	const struct server *server = s->server;
	const Rocecomm__Peer__Host *self = &server->o.jobs->self;
	uint64_t buffers = 0, bytes = 0;

	list_for_each (at, &server->sessions) {
		const struct session *other = container_of(at, struct session, link);

		buffers += registry_count(&other->buffers);
		bytes += other->buffers.bytes;
	}
	json_open(j, "daemon");
	json_string(j, "version", ROCECOMM_VERSION);
	json_uint(j, "protocol", PROTOCOL_VERSION_MAX);
	json_string(j, "host", self->name);
	json_hex(j, "host_id", self->host_id.data, self->host_id.len);
	json_uint(j, "pid", (uint64_t)getpid());
	json_uint(j, "uptime_ms", uv_now(server->o.loop) - server->started);
	json_uint(j, "port", self->port);
	json_open_array(j, "addresses");
	for (size_t i = 0; i < self->n_addresses; i++) {
		json_string(j, NULL, self->addresses[i]);
	}
	json_close_array(j);
	json_uint(j, "sessions", server->nsessions);
	json_uint(j, "buffers", buffers);
	json_uint(j, "buffer_bytes", bytes);
	json_bool(j, "all", all && s->admin);
	json_close(j);
}

static void put_tenants(struct json *j, const struct session *s, bool all)
{
	json_open_array(j, "tenants");
	list_for_each (at, &s->server->tenants.list) {
		const struct tenant *tenant = container_of(at, struct tenant, link);

		if (tenant != s->tenant && !(all && s->admin)) {
			continue;
		}
		json_open(j, NULL);
		json_string(j, "name", tenant->name);
		put_limit(j, "sessions", &tenant->sessions);
		put_limit(j, "bytes", &tenant->bytes);
		json_uint(j, "max_buffers", tenant->max_buffers);
		json_uint(j, "max_comms", tenant->max_comms);
		put_limit(j, "pinned", &tenant->pinned);
		json_close(j);
	}
	json_close_array(j);
}

/* What the library says that it copied to and from memory that is not shared. */
static void put_staged(struct json *j, const struct session *s)
{
	struct shm_header *h = s->page;

	if (h) {
		json_uint(j, "bytes_staged",
			  atomic_load_explicit(&h->staged, memory_order_relaxed));
	} else {
		json_null(j, "bytes_staged");
	}
}

static void put_clients(struct json *j, const struct session *s, bool all)
{
	json_open_array(j, "clients");
	list_for_each (at, &s->server->sessions) {
		const struct session *other = container_of(at, struct session, link);

		if (other->state != SESSION_READY || other->admin_only ||
		    !sees_session(s, all, other)) {
			continue;
		}
		json_open(j, NULL);
		json_uint(j, "session", other->number);
		json_string(j, "name", other->name);
		json_uint(j, "pid", session_pid(other));
		json_uint(j, "uid", other->uid);
		json_string(j, "tenant", other->tenant->name);
		json_string(j, "library", other->version);
		json_uint(j, "buffers", registry_count(&other->buffers));
		json_uint(j, "bytes", other->buffers.bytes);
		json_uint(j, "gpu_allocations", hashmap_count(&other->gpu_allocs));
		json_uint(j, "gpu_bytes", other->gpu_bytes);
		json_uint(j, "communicators", other->handles_pool.count);
		put_staged(j, other);
		json_uint(j, "connected_ms", uv_now(s->server->o.loop) - other->since);
		json_close(j);
	}
	json_close_array(j);
}

bool status_sees(const struct session *s, bool all, const struct communicator *c)
{
	if (all && s->admin) {
		return true;
	}
	for (uint32_t i = 0; i < c->nlocal; i++) {
		if (c->locals[i] && c->locals[i]->uid == s->uid) {
			return true;
		}
	}
	return false;
}

static const struct status_survey *find_survey(const struct status_survey *surveys, size_t n,
					       const struct communicator *c)
{
	for (size_t i = 0; i < n; i++) {
		if (surveys[i].nranks == c->size && memcmp(surveys[i].uid, c->uid, UID_SIZE) == 0) {
			return &surveys[i];
		}
	}
	return NULL;
}

/* Sums over a job's communicators that this reader sees. */
static void put_job_counters(struct json *j, const struct communicator *const *list, size_t n)
{
	json_open(j, "counters");
	for (size_t row = 0; row < counter_comm_nrows; row++) {
		uint64_t sum = 0;

		for (size_t i = 0; i < n; i++) {
			sum += counter_row_get(&counter_comm_rows[row], list[i]->view);
		}
		json_uint(j, counter_comm_rows[row].name, sum);
	}
	json_close(j);
}

/* Communicators of one name are one job. */
static int put_jobs(struct json *j, const struct session *s, bool all,
		    const struct status_survey *surveys, size_t nsurveys)
{
	const struct jobs *jobs = s->server->o.jobs;
	size_t n = hashmap_count(&jobs->comms), count = 0, iter = 0, first = 0;
	cleanup_free const struct communicator **list = calloc(n + 1, sizeof(*list));
	const struct communicator *c;

	if (!list) {
		return -ENOMEM;
	}
	while ((c = hashmap_next(&jobs->comms, &iter)) != NULL) {
		if (status_sees(s, all, c)) {
			list[count++] = c;
		}
	}
	qsort(list, count, sizeof(*list), status_comm_compare);
	json_open_array(j, "jobs");
	for (size_t i = 0; i < count; i++) {
		if (i == 0 || strcmp(list[i]->plan->name, list[i - 1]->plan->name) != 0) {
			first = i;
			json_open(j, NULL);
			json_string(j, "name", list[i]->plan->name);
			json_open_array(j, "communicators");
		}
		status_comm_put(j, list[i], find_survey(surveys, nsurveys, list[i]));
		if (i + 1 == count || strcmp(list[i]->plan->name, list[i + 1]->plan->name) != 0) {
			json_close_array(j);
			put_job_counters(j, &list[first], i + 1 - first);
			json_close(j);
		}
	}
	json_close_array(j);
	return 0;
}

static void put_joining(struct json *j, const struct session *s, bool all)
{
	json_open_array(j, "joining");
	list_for_each (at, &s->server->o.jobs->joining) {
		const struct member *m = container_of(at, struct member, link);

		if (m->uid != s->uid && !(all && s->admin)) {
			continue;
		}
		json_open(j, NULL);
		json_uint(j, "rank", m->rank);
		json_uint(j, "pid", m->pid);
		json_string(j, "client", m->client);
		json_string(j, "root", m->at_root ? jobs_host(m->jobs) : m->root_name);
		json_close(j);
	}
	json_close_array(j);
}

static void put_peers(struct json *j, const struct session *s)
{
	json_open_array(j, "peers");
	list_for_each (at, &s->server->o.jobs->links) {
		const struct hostlink *l = container_of(at, struct hostlink, link);

		json_open(j, NULL);
		json_string(j, "host", peer_name(l->peer));
		json_string(j, "address", peer_address(l->peer));
		json_string(j, "state",
			    !peer_is_up(l->peer) ? "connecting"
			    : l->broken		 ? "broken"
						 : "up");
		json_close(j);
	}
	json_close_array(j);
}

static void put_interfaces(struct json *j, const struct interfaces *interfaces)
{
	json_open_array(j, "interfaces");
	for (size_t i = 0; interfaces && i < interfaces->count; i++) {
		const struct interface_address *a = &interfaces->items[i];

		json_open(j, NULL);
		json_string(j, "name", a->interface);
		json_string(j, "address", a->text);
		json_bool(j, "usable", !a->reason);
		json_text(j, "reason", a->reason);
		json_close(j);
	}
	json_close_array(j);
}

static void put_gpu(struct json *j, const struct gpu_status *g)
{
	json_open(j, NULL);
	json_string(j, "uuid", g->uuid);
	json_string(j, "name", g->name);
	json_string(j, "bus", g->bus);
	if (g->node >= 0) {
		json_uint(j, "numa_node", (uint64_t)g->node);
	} else {
		json_null(j, "numa_node");
	}
	json_string(j, "path", "staged");
	json_uint(j, "allocations", g->allocs);
	json_uint(j, "bytes", g->alloc_bytes);
	json_uint(j, "staging_limit", g->staging_limit);
	json_uint(j, "staging_used", g->staging_used);
	json_uint(j, "staging_peak", g->staging_peak);
	json_uint(j, "staging_pinned", g->staging_pinned);
	json_uint(j, "bytes_from_gpu", g->bytes_in);
	json_uint(j, "bytes_to_gpu", g->bytes_out);
	json_uint(j, "bytes_to_other_gpus", g->bytes_peer);
	json_uint(j, "copies", g->jobs);
	json_uint(j, "copies_failed", g->jobs_failed);
	json_uint(j, "copies_waiting", g->jobs_waiting);
	if (g->lost) {
		json_string(j, "error", g->error);
	} else {
		json_null(j, "error");
	}
	json_close(j);
}

static void put_gpus(struct json *j, const struct gpu *gpu)
{
	struct gpu_status g;

	json_open_array(j, "gpus");
	for (unsigned int i = 0; gpu && gpu_get_status(gpu, i, &g); i++) {
		put_gpu(j, &g);
	}
	json_close_array(j);
	if (gpu && gpu_reason(gpu)[0] == '\0') {
		json_null(j, "gpu_reason");
	} else {
		json_string(j, "gpu_reason", gpu ? gpu_reason(gpu) : "this daemon takes none");
	}
}

static void put_worker(struct json *j, const struct thread_view *v)
{
	json_open(j, NULL);
	json_uint(j, "loops", counter_get(&v->loops));
	json_uint(j, "wakeups", counter_get(&v->wakeups));
	json_uint(j, "syscalls", counter_get(&v->syscalls));
	json_uint(j, "yields", counter_get(&v->yields));
	json_uint(j, "bytes_local", counter_get(&v->bytes_local));
	json_uint(j, "bytes_reduced", counter_get(&v->bytes_reduced));
	json_close(j);
}

static void put_thread(struct json *j, const struct engine *engine)
{
	const struct thread_view *v = engine_thread_view(engine);

	json_open(j, "thread");
	for (size_t i = 0; i < counter_thread_nrows; i++) {
		json_uint(j, counter_thread_rows[i].name,
			  counter_row_get(&counter_thread_rows[i], v));
	}
	json_close(j);
	json_open_array(j, "reduce_threads");
	for (unsigned int i = 0; (v = engine_worker_view(engine, i)); i++) {
		put_worker(j, v);
	}
	json_close_array(j);
}

/* See status_json.h. */
int status_json(const struct session *s, bool all, const struct status_survey *surveys,
		size_t nsurveys, char **ret)
{
	struct json j;
	int r;

	json_init(&j);
	json_open(&j, NULL);
	put_daemon(&j, s, all);
	put_tenants(&j, s, all);
	put_clients(&j, s, all);
	r = put_jobs(&j, s, all, surveys, nsurveys);
	put_joining(&j, s, all);
	put_peers(&j, s);
	put_interfaces(&j, s->server->o.interfaces);
	put_thread(&j, s->server->o.engine);
	put_gpus(&j, s->server->o.gpu);
	json_close(&j);
	if (r == 0) {
		r = json_finish(&j, ret);
	}
	json_deinit(&j);
	return r;
}
