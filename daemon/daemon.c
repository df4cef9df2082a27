/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Daemon: running and stopping
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
#include "daemon_impl.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "coll/coll.h"
#include "config/reload.h"
#include "util/notify.h"

#define STOP_DEADLINE_MS 1800 /* a clean stop takes at most 2 s */

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

/* See daemon_impl.h. */
void daemon_busy(void *arg, bool busy)
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
