/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Daemon: implementation
 *
 * Built from below: engine, jobs, peers, then the socket, so that nobody is let in before all is
 * there. Torn down from above, in steps that the loop runs between, for what is under way must come
 * back first:
 *   1. clients and peers are told why; no new ones
 *   2. the engine stops: outstanding operations end with STATUS_SHUTDOWN
 *   3. jobs and peers leave the loop
 *   4. memory is freed
 * A deadline cuts this short: the process ends in any case.
 *
 * Thread: main; the engine's progress thread is below engine/      Owns: everything      Locks:
 * none
 */
#include "daemon.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

#include "coll/coll.h"
#include "config/reload.h"
#include "control/listen.h"
#include "control/server.h"
#include "engine/engine.h"
#include "engine/workers.h"
#include "gpu/gpu.h"
#include "host.h"
#include "job/jobs.h"
#include "job/peers.h"
#include "job/rails.h"
#include "suit.h"
#include "util/notify.h"
#include "util/thread.h"

#define STOP_DEADLINE_MS 1800 /* a clean stop takes at most 2 s */
/* Arithmetic on less is over before another thread has heard of it. */
#define REDUCE_MIN (64u << 10)
#define NSETTINGS 4
#define NSIGNALS 3

enum stop_state {
	STOP_NOT = 0,
	STOP_CLIENTS, /* the server lets its sessions go */
	STOP_JOBS,
	STOP_PEERS,
	STOP_DONE,
};

enum {
	DAEMON_E_TOLD = 1, /* cannot go on; the log says why */
};

struct daemon {
	const struct load_options *options;
	struct config *config;
	uv_loop_t loop;
	struct listen_socket listen;
	struct host host;

	struct gpu *gpu;
	uv_poll_t gpu_poll;
	struct engine *engine;
	uv_poll_t engine_poll;
	struct jobs *jobs;
	struct rails *rails;
	struct peers *peers;
	struct server *server;

	uv_signal_t signals[NSIGNALS];
	uv_timer_t watchdog;
	uv_timer_t idle;
	uv_timer_t deadline;
	enum stop_state stop;
	char stop_reason[128];
};

/* ---- configuration ------------------------------------------------------------------------ */

/* See daemon.h. */
int daemon_load(const struct load_options *options, struct config **ret,
		struct config_report *report)
{
	struct coll_tuning tuning = {0};
	struct config *c;
	char err[256];
	int r;

	r = load_config(options, &c, report);
	if (r != 0) {
		return err_trace(r);
	}
	if (coll_tuning_parse(&tuning, c->algorithms, err, sizeof(err)) < 0) {
		config_report_add(report, "%s:%u: algorithms: %s", c->file ? c->file : "default",
				  c->source[CONFIG_KEY_algorithms].line, err);
		config_free(c);
		return CONFIG_E_INVALID;
	}
	*ret = c;
	return 0;
}

/* See daemon.h. */
void daemon_log_report(const struct config_report *report)
{
	const char *line = report->text;

	while (line && *line != '\0') {
		int n = (int)strcspn(line, "\n");

		log_error("%.*s", n, line);
		line += n + 1;
	}
	if (report->errors > CONFIG_MAX_ERRORS) {
		log_error("and %u more", report->errors - CONFIG_MAX_ERRORS);
	}
}

static void tell_status(struct daemon *d)
{
	notify_status("%u clients at %s, hosts at port %u%s", server_sessions(d->server),
		      d->listen.path, peers_port(d->peers),
		      d->config->key_file[0] != '\0' ? "" : " of loopback");
}

static void daemon_apply(struct daemon *d, struct config *fresh)
{
	struct reload_result result;

	reload_apply(d->config, fresh, &result);
	log_set_level(d->config->log_level);
	server_reload(d->server);
	if (result.applied > 0) {
		log_info("reload: changed: %s", result.applied_text);
	}
	if (result.waiting > 0) {
		log_warn("reload: these wait for a restart: %s", result.waiting_text);
	}
	if (result.applied == 0 && result.waiting == 0) {
		log_info("reload: nothing changed");
	}
}

static void idle_update(struct daemon *d, bool busy);

static void daemon_reload(struct daemon *d)
{
	struct config_report report = {0};
	struct config *fresh;
	int r;

	notify_reloading();
	r = daemon_load(d->options, &fresh, &report);
	if (r == 0) {
		daemon_apply(d, fresh);
		config_free(fresh);
		idle_update(d, server_sessions(d->server) > 0);
	} else {
		daemon_log_report(&report);
		log_error("reload: the configuration is left as it was");
	}
	config_report_deinit(&report);
	host_refresh(&d->host, d->config, d->jobs, d->peers);
	rails_refresh(d->rails);
	notify_ready("");
	tell_status(d);
}

/* ---- stopping ----------------------------------------------------------------------------- */

static void daemon_stop(struct daemon *d, const char *reason);

static void on_deadline(uv_timer_t *timer)
{
	struct daemon *d = timer->data;

	log_warn("the stop takes longer than %d ms (step %d): exiting with what is left",
		 STOP_DEADLINE_MS, (int)d->stop);
	listen_close(&d->listen);
	_exit(EXIT_FAILURE);
}

static void on_idle(uv_timer_t *timer)
{
	struct daemon *d = timer->data;

	log_info("no client for %u s (idle_exit_s): exiting", d->config->idle_exit_s);
	daemon_stop(d, "it was idle");
}

/* Starts or ends the wait for the first client or after the last one. */
static void idle_update(struct daemon *d, bool busy)
{
	if (busy || d->config->idle_exit_s == 0 || d->stop != STOP_NOT) {
		uv_timer_stop(&d->idle);
	} else {
		uv_timer_start(&d->idle, on_idle, d->config->idle_exit_s * UINT64_C(1000), 0);
	}
}

static void on_busy(void *arg, bool busy)
{
	struct daemon *d = arg;

	idle_update(d, busy);
	if (!busy) {
		malloc_trim(
			0); /* what the last job needed is not what an idle daemon should hold */
	}
	if (d->stop == STOP_NOT) {
		tell_status(d);
	}
}

static void close_handles(struct daemon *d)
{
	for (int i = 0; i < NSIGNALS; i++) {
		uv_close((uv_handle_t *)&d->signals[i], NULL);
	}
	uv_close((uv_handle_t *)&d->watchdog, NULL);
	uv_close((uv_handle_t *)&d->idle, NULL);
	uv_close((uv_handle_t *)&d->deadline, NULL);
	if (d->engine) {
		uv_close((uv_handle_t *)&d->engine_poll, NULL);
	}
	if (d->gpu) {
		uv_close((uv_handle_t *)&d->gpu_poll, NULL);
	}
}

/* Each step is over when it calls this again; what was never built is passed over. */
static void stop_next(void *arg)
{
	struct daemon *d = arg;

	switch (++d->stop) {
	case STOP_CLIENTS:
		if (d->server) {
			server_stop(d->server, STATUS_SHUTDOWN, d->stop_reason, stop_next, d);
			return;
		}
		d->stop++;
		/* fall through */
	case STOP_JOBS:
		if (d->engine) {
			uv_poll_stop(&d->engine_poll);
			engine_stop(d->engine, STATUS_SHUTDOWN);
		}
		if (d->jobs) {
			jobs_engine_stopped(d->jobs);
			jobs_close(d->jobs, stop_next, d);
			return;
		}
		d->stop++;
		/* fall through */
	case STOP_PEERS:
		if (d->peers) {
			peers_close(d->peers, stop_next, d);
			return;
		}
		d->stop++;
		/* fall through */
	case STOP_NOT:
	case STOP_DONE:
		close_handles(d);
	}
}

/* @reason: goes on "the daemon of host X stops: " */
static void daemon_stop(struct daemon *d, const char *reason)
{
	if (d->stop != STOP_NOT) {
		return;
	}
	snprintf(d->stop_reason, sizeof(d->stop_reason), "the daemon of host %.40s stops: %s",
		 d->host.name, reason);
	notify_stopping(d->stop_reason);
	uv_timer_stop(&d->idle);
	uv_timer_start(&d->deadline, on_deadline, STOP_DEADLINE_MS, 0);
	/*
	 * In this order: ranks of this host learn that it stops, not that others are lost; then
	 * other hosts hear of the stop, not of ranks that leave.
	 */
	if (d->jobs) {
		jobs_shutdown(d->jobs, STATUS_SHUTDOWN, d->stop_reason);
	}
	if (d->peers) {
		peers_stop(d->peers, d->stop_reason);
	}
	stop_next(d);
}

/* ---- events ------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *handle, int number)
{
	struct daemon *d = handle->data;

	if (number == SIGHUP) {
		if (d->stop == STOP_NOT) {
			daemon_reload(d);
		}
		return;
	}
	if (d->stop != STOP_NOT) {
		log_warn("second signal: exiting at once");
		listen_close(&d->listen);
		_exit(EXIT_FAILURE);
	}
	log_info("SIG%s: stopping", sigabbrev_np(number));
	daemon_stop(d, number == SIGINT ? "interrupted" : "it was told to (SIGTERM)");
}

static void on_watchdog(uv_timer_t *timer)
{
	notify_watchdog();
}

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

/* ---- building ----------------------------------------------------------------------------- */

static int init_loop(struct daemon *d)
{
	static const int numbers[NSIGNALS] = {SIGTERM, SIGINT, SIGHUP};
	uint64_t watchdog_ms = notify_watchdog_ms();
	int r;

	r = uv_loop_init(&d->loop);
	if (r < 0) {
		return err_origin(r);
	}
	for (int i = 0; i < NSIGNALS; i++) {
		uv_signal_init(&d->loop, &d->signals[i]);
		d->signals[i].data = d;
		uv_signal_start(&d->signals[i], on_signal, numbers[i]);
	}
	uv_timer_init(&d->loop, &d->watchdog);
	uv_timer_init(&d->loop, &d->idle);
	uv_timer_init(&d->loop, &d->deadline);
	d->idle.data = d;
	d->deadline.data = d;
	if (watchdog_ms > 0) {
		uv_timer_start(&d->watchdog, on_watchdog, watchdog_ms, watchdog_ms);
	}
	return 0;
}

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
		.busy = on_busy,
		.arg = d,
	};

	return err_trace(server_new(&o, &d->server));
}

static int daemon_build(struct daemon *d)
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

static void daemon_announce(struct daemon *d)
{
	log_info("rocecommd %s serves %s%s; hosts: %s port %u, %zu address%s", ROCECOMM_VERSION,
		 d->listen.path, d->listen.activated ? " (from systemd)" : "",
		 d->config->key_file[0] != '\0' ? "with a key," : "loopback only (no key_file),",
		 peers_port(d->peers), d->host.naddresses, d->host.naddresses == 1 ? "" : "es");
	notify_ready("");
	tell_status(d);
	idle_update(d, false);
}

static struct daemon *daemon_free(struct daemon *d)
{
	server_free(d->server);
	peers_free(d->peers);
	jobs_free(d->jobs);
	engine_free(d->engine);
	rails_free(d->rails);
	gpu_free(d->gpu);
	host_deinit(&d->host);
	listen_close(&d->listen);
	config_free(d->config);
	free(d);
	return NULL;
}

/* See daemon.h. */
int daemon_run(const struct load_options *options, struct config *config)
{
	struct daemon *d;
	int r;

	d = calloc(1, sizeof(*d));
	if (!d) {
		config_free(config);
		return EXIT_FAILURE;
	}
	d->options = options;
	d->config = config;
	d->listen = (struct listen_socket){.fd = -1, .lock_fd = -1};
	r = init_loop(d);
	if (r < 0) {
		log_error("cannot make the event loop: %s", strerror(-r));
		daemon_free(d);
		return EXIT_FAILURE;
	}
	r = daemon_build(d);
	if (r == 0) {
		daemon_announce(d);
	} else {
		if (r < 0) {
			log_error("cannot start: %s", strerror(-r));
		}
		daemon_stop(d, "it could not start");
	}
	uv_run(&d->loop, UV_RUN_DEFAULT);
	uv_loop_close(&d->loop);
	if (r == 0) {
		log_info("stopped");
	}
	daemon_free(d);
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
