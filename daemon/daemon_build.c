/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Daemon: putting it together, from configuration to parts that know of each other
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "daemon_impl.h"

#include <stdio.h>
#include <string.h>

#include "coll/coll.h"
#include "suit.h"
#include "util/thread.h"

/* Arithmetic on less is over before another thread has heard of it. */
#define REDUCE_MIN (64u << 10)
#define NSETTINGS 4

/* ---- what the parts tell --------------------------------------------------------------------- */

static void on_engine(uv_poll_t *poll, int status, int events)
{
	struct daemon *d = poll->data;

	engine_dispatch(d->engine);
}

static void on_comm_failed(void *arg, void *comm_user, const struct engine_failure *failure)
{
	struct daemon *d = arg;

	jobs_comm_failed(d->jobs, comm_user, failure);
}

static void on_session_corrupt(void *arg, void *session_user, const char *reason)
{
	struct daemon *d = arg;

	server_session_corrupt(d->server, session_user, reason);
}

static void on_peer_down(void *arg, void *peer_user, const char *what, int error,
			 const char *reason)
{
	struct daemon *d = arg;

	jobs_peer_down(d->jobs, peer_user, what, error, reason);
}

static void on_rail(void *arg, void *peer_user, uint32_t rail, enum verbs_rail_state state,
		    const char *text)
{
	struct daemon *d = arg;

	jobs_rail(d->jobs, peer_user, rail, state, text);
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void on_telling(void *arg)
{
	struct daemon *d = arg;

	if (d->host.alone) {
		host_refresh(&d->host, d->config, d->jobs, d->peers);
	}
}

static int init_host(struct daemon *d)
{
	return err_trace(host_init(&d->host, d->config));
}

static void on_gpu(uv_poll_t *poll, int status, int events)
{
	struct daemon *d = poll->data;

	(void)status;
	(void)events;
	gpu_dispatch(d->gpu);
}

static int init_gpu(struct daemon *d)
{
	struct gpu_options o = {
		.off = d->config->gpu == CONFIG_GPU_OFF,
		.peer_off = d->config->gpu_peer == CONFIG_GPU_OFF,
		.staging = d->config->gpu_staging,
		.spin_us = suit_spin_us(d->config, thread_cpus()),
	};
	int r = gpu_new(&o, &d->gpu);

	if (r < 0) {
		return err_trace(r);
	}
	uv_poll_init(&d->loop, &d->gpu_poll, gpu_fd(d->gpu));
	d->gpu_poll.data = d;
	uv_poll_start(&d->gpu_poll, UV_READABLE, on_gpu);
	return 0;
}

static int init_engine(struct daemon *d)
{
	static const struct engine_events events = {
		.comm_failed = on_comm_failed,
		.session_corrupt = on_session_corrupt,
		.peer_down = on_peer_down,
		.rail = on_rail,
	};
	const struct config *c = d->config;
	struct engine_options o = {
		.chunk = c->chunk_kib * 1024,
		.eager = c->eager_kib * 1024,
		.eager_credits = c->eager_credits,
		.spin_us = suit_spin_us(c, thread_cpus()),
		.cpu = c->progress_cpu,
		.reduce_threads = c->reduce_threads,
		.io_threads = suit_io_threads(c, thread_cpus()),
		.reduce_min = REDUCE_MIN,
		.user_timeout_ms = c->transfer_timeout_ms,
	};
	int r;

	snprintf(o.congestion, sizeof(o.congestion), "%s", c->congestion);
	r = engine_new(&o, &events, d, &d->engine);
	if (r < 0) {
		return err_trace(r);
	}
	uv_poll_init(&d->loop, &d->engine_poll, engine_fd(d->engine));
	d->engine_poll.data = d;
	uv_poll_start(&d->engine_poll, UV_READABLE, on_engine);
	r = engine_start(d->engine);
	if (r > 0) {
		log_error("progress_cpu: CPU %d does not exist, or this process may not use it; "
			  "choose one of taskset -cp %d, or -1",
			  c->progress_cpu, (int)getpid());
		return DAEMON_E_TOLD;
	}
	return err_trace(r);
}

static int init_jobs(struct daemon *d)
{
	struct jobs_options o = {
		.loop = &d->loop,
		.engine = d->engine,
		.config = d->config,
		.host = d->host.name,
		.addresses = d->host.addresses,
		.naddresses = d->host.naddresses,
		.telling = on_telling,
		.telling_arg = d,
	};

	memcpy(o.host_id, d->host.id, sizeof(o.host_id));
	return err_trace(jobs_new(&o, &d->jobs));
}

static int init_rails(struct daemon *d)
{
	const struct config *c = d->config;
	struct rails_options o = {
		.mode = c->transport == CONFIG_TRANSPORT_TCP ? RAILS_TCP
			: c->transport == CONFIG_TRANSPORT_RDMA || c->require == CONFIG_REQUIRE_RDMA
				? RAILS_RDMA
				: RAILS_AUTO,
		.devices = {.allow = &c->devices, .deny = &c->devices_denied},
		.verbs =
			{
				.bulk_qps = c->qps,
				.mtu = c->mtu_cap,
				.traffic_class = (uint8_t)c->traffic_class,
				.service_level = (uint8_t)c->service_level,
				.hop_limit = (uint8_t)c->hop_limit,
				.timeout = (uint8_t)c->ack_timeout,
				.retry = (uint8_t)c->retry_count,
				.rnr_retry = (uint8_t)c->rnr_retry_count,
				.wr_timeout_ms = c->completion_timeout_ms,
				.probe_ms = c->probe_timeout_ms,
				.recover_ms = c->recover_timeout_ms,
				.reopen_ms = c->reopen_ms,
			},
		.bounds =
			{
				.bytes = c->max_pinned,
				.regions = (uint32_t)MAX(c->max_regions, 0),
			},
	};
	int r = rails_new(&o, d->jobs, &d->rails);

	if (r == 0) {
		jobs_set_rails(d->jobs, d->rails);
	}
	return err_trace(r);
}

static int init_peers(struct daemon *d)
{
	const struct config *c = d->config;
	char chunk[16], eager[16], credits[16];
	struct peers_setting settings[NSETTINGS] = {
		{"chunk_kib", chunk},
		{"eager_kib", eager},
		{"eager_credits", credits},
		{"algorithms", c->algorithms},
	};
	struct peers_options o = {
		.name = d->host.name,
		.version = ROCECOMM_VERSION,
		.addresses = d->host.addresses,
		.naddresses = d->host.naddresses,
		.port = (uint16_t)c->port,
		.listen = (const char *const *)c->listen.items,
		.nlisten = c->listen.count,
		.key_path = c->key_file[0] != '\0' ? c->key_file : NULL,
		.streams = suit_streams(c, thread_cpus()),
		.heartbeat_ms = c->heartbeat_ms,
		.peer_timeout_ms = c->peer_timeout_ms,
		.connect_timeout_ms = c->connect_timeout_ms,
		.settings = settings,
		.nsettings = NSETTINGS,
	};
	int r;

	memcpy(o.host_id, d->host.id, sizeof(o.host_id));
	snprintf(chunk, sizeof(chunk), "%u", c->chunk_kib);
	snprintf(eager, sizeof(eager), "%u", c->eager_kib);
	snprintf(credits, sizeof(credits), "%u", c->eager_credits);
	r = peers_new(&d->loop, &o, &jobs_peers_events, d->jobs, &d->peers);
	if (r < 0) {
		return r == -ENOMEM ? err_trace(r) : DAEMON_E_TOLD;
	}
	jobs_set_peers(d->jobs, d->peers);
	return 0;
}

/* First of all: another daemon at the same socket is the plainest reason not to go on. */
static int init_listen(struct daemon *d)
{
	struct listen_options o = {
		.path = d->config->socket,
		.mode = d->config->socket_mode,
		.gid = d->config->socket_group.gid,
		.private_dir = d->options->user && !d->options->socket,
	};
	char err[512];

	if (listen_open(&o, &d->listen, err, sizeof(err)) != 0) {
		log_error("%s", err);
		return DAEMON_E_TOLD;
	}
	return 0;
}

static int init_server(struct daemon *d)
{
	struct server_options o = {
		.loop = &d->loop,
		.listen_fd = d->listen.fd,
		.engine = d->engine,
		.jobs = d->jobs,
		.peers = d->peers,
		.gpu = d->gpu,
		.config = d->config,
		.interfaces = d->host.interfaces,
		.busy = daemon_busy,
		.arg = d,
	};

	return err_trace(server_new(&o, &d->server));
}

/* See daemon_impl.h. */
int daemon_build(struct daemon *d)
{
	int (*const steps[])(struct daemon * d) = {
		init_listen, init_host,	 init_gpu,   init_engine,
		init_jobs,   init_rails, init_peers, init_server,
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(steps); i++) {
		r = steps[i](d);
	}
	return err_trace(r);
}
