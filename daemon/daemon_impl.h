/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Daemon: what its files share. daemon.c runs and stops it, daemon_build.c puts it together.
 *
 * Thread: main      Owns: everything      Locks: none
 */
#ifndef ROCECOMM_DAEMON_IMPL_H
#define ROCECOMM_DAEMON_IMPL_H

#include <uv.h>

#include "control/listen.h"
#include "control/server.h"
#include "daemon.h"
#include "engine/engine.h"
#include "gpu/gpu.h"
#include "host.h"
#include "job/jobs.h"
#include "job/peers.h"
#include "job/rails.h"

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

/* All but the loop. Return: 0, DAEMON_E_TOLD, or negative errno; daemon_free() takes what there is.
 */
int daemon_build(struct daemon *d);
/* Of the server: there are clients, or none is left. */
void daemon_busy(void *arg, bool busy);

#endif
