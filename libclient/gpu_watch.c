/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: the watchdog
 *
 * A program that has put its work on streams may sit in cudaStreamSynchronize() for long and never
 * call us. Somebody has to see that the daemon died, and to write for it what the streams wait for;
 * to make failures sticky; and to give back what streams have finished with. It looks every 10 ms
 * while there is anything, and sleeps otherwise. It calls no driver function: one may hold the
 * driver's lock while it waits for the very stream that is to be let go.
 *
 * Thread: its own      Owns: the thread      Locks: the client's lock, gpu.inner
 */
#include <signal.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/clock.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

#define WATCH_EVERY_NS INT64_C(10000000)
#define WATCH_IDLE 50 /* looks without anything to watch, before it sleeps */

static bool watch_needed(struct roce_client *client)
{
	bool dead;

	pthread_mutex_lock(&client->gpu.inner);
	dead = client->gpu.dead != NULL;
	pthread_mutex_unlock(&client->gpu.inner);
	/* relaxed: it looks again soon */
	return dead || atomic_load_explicit(&client->gpu.open, memory_order_relaxed) > 0;
}

/* Failures of operations that nobody waits for. The words come from the daemon: no lock held. */
static void watch_failures(struct roce_client *client)
{
	for (;;) {
		struct roce_comm *comm;
		uint32_t id = 0;
		uint8_t kind = 0;
		int status = 0;

		pthread_mutex_lock(&client->lock);
		for (comm = client->comms; comm && comm->gpu_failed == 0; comm = comm->next) {
		}
		if (comm) {
			id = comm->id;
			kind = comm->gpu_failed_kind;
			status = comm->gpu_failed;
			comm->gpu_failed = 0;
		}
		pthread_mutex_unlock(&client->lock);
		if (!comm) {
			return;
		}
		comm_stream_error(client, id, kind, status);
	}
}

static void watch_look(struct roce_client *client)
{
	int dead = client_check(client, false);

	pthread_mutex_lock(&client->lock);
	if (dead != 0) {
		request_fail_gated(client, dead);
	} else {
		request_harvest_gated(client);
	}
	pthread_mutex_unlock(&client->lock);
	watch_failures(client);
	gpu_bury(client, false);
}

/* Until there is something, or the next look is due. Return: false to end. */
static bool watch_sleep(struct roce_client *client, unsigned int idle)
{
	struct gpu *gpu = &client->gpu;
	struct timespec ts = clock_timespec(WATCH_EVERY_NS);
	bool quit;

	if (idle < WATCH_IDLE) {
		nanosleep(&ts, NULL);
	}
	pthread_mutex_lock(&client->lock);
	while (idle >= WATCH_IDLE && !gpu->quit && !watch_needed(client)) {
		gpu->sleeping = true;
		pthread_cond_wait(&gpu->wake, &client->lock);
	}
	gpu->sleeping = false;
	quit = gpu->quit;
	pthread_mutex_unlock(&client->lock);
	return !quit;
}

static void *watch_main(void *arg)
{
	struct roce_client *client = arg;
	unsigned int idle = 0;

	while (watch_sleep(client, idle)) {
		idle = watch_needed(client) ? 0 : idle + 1;
		watch_look(client);
	}
	return NULL;
}

int gpu_watch(struct roce_client *client)
{
	struct gpu *gpu = &client->gpu;
	sigset_t all, old;
	int r = 0;

	pthread_mutex_lock(&client->lock);
	if (!gpu->watching) {
		/* Signals are the program's: none is delivered to this thread. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		r = pthread_create(&gpu->watchdog, NULL, watch_main, client);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		gpu->watching = r == 0;
		if (r == 0) {
			pthread_setname_np(gpu->watchdog, "roce-watch");
		}
	}
	gpu_watch_more(client); /* old registrations may wait to be given back */
	pthread_mutex_unlock(&client->lock);
	return r == 0 ? 0
		      : error_set(ROCE_ERR_NO_MEMORY, "cannot start the watchdog thread: %s",
				  strerror(r));
}

void gpu_watch_more(struct roce_client *client)
{
	if (client->gpu.sleeping) {
		pthread_cond_signal(&client->gpu.wake);
	}
}

void gpu_watch_stop(struct roce_client *client)
{
	struct gpu *gpu = &client->gpu;

	pthread_mutex_lock(&client->lock);
	gpu->quit = true;
	pthread_cond_signal(&gpu->wake);
	pthread_mutex_unlock(&client->lock);
	if (gpu->watching) {
		pthread_join(gpu->watchdog, NULL);
		gpu->watching = false;
	}
}
