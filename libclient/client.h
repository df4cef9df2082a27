/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Client: the root object of a connection to the daemon
 *
 * Owns everything that hangs on one session: socket, session page, requests, memory table,
 * staging and communicators.
 *
 * Thread: any      Owns: see above
 * Locks: lock: ring producer, tickets, requests, memory table, staging lists, communicator list.
 * Held for the time of a post, never across a request to the daemon or a wait.
 */
#ifndef ROCECLIENT_CLIENT_H
#define ROCECLIENT_CLIENT_H

#include <pthread.h>

#include "libclient/conn.h"
#include "libclient/fork.h"
#include "libclient/gpu.h"
#include "libclient/mem.h"
#include "libclient/request.h"
#include "libclient/staging.h"
#include "proto/limits.h"
#include "proto/ring.h"

#define CLIENT_TIMEOUT_MS 10000

struct roce_client {
	unsigned int fork_gen; /* of the process that made it */
	struct fork_guard guard;
	struct conn conn;
	int bell_fd;
	int event_fd;
	int epoll_fd;	  /* made by the first roce_event_fd(): event_fd and the socket's hang-up */
	void *page;	  /* not inherited over fork() */
	size_t page_size; /* SHM_FULL_SIZE; SHM_SIZE of daemons without gates */
	struct shm_header *shm;
	struct shm_cell *cells;
	int timeout_ms;
	char name[LIMIT_NAME];

	pthread_mutex_t lock;
	struct ring_producer ring;
	struct request_pool requests;
	struct mem_table mem;
	struct staging staging;
	struct gpu gpu;
	struct roce_comm *comms;
	_Atomic int64_t checked_at; /* last look at the socket by a poller, ns */
};

int client_enter_slow(const struct roce_client *client);

/* First thing of every entry. Return: 0, ROCE_ERR_INVALID for NULL, ROCE_ERR_FORKED. */
static inline int client_enter(const struct roce_client *client)
{
	if (client && client->fork_gen == fork_generation()) {
		return 0;
	}
	return client_enter_slow(client);
}

/* Rings the bell after ring_publish() returned true. */
void client_bell(struct roce_client *client);
/* What can be known of the daemon without a system call. Return: 0 or the sticky status. */
int client_glance(struct roce_client *client);
/*
 * Looks whether the daemon lives: the page at every call, the socket at most every 100 ms unless
 * @now. Return: 0 or the sticky status.
 */
int client_check(struct roce_client *client, bool now);

/*
 * Copies a caller's struct that begins with its size. @known: sizeof ours; missing fields of an
 * older caller are zeroed, fields of a newer one must be zero. Return: 0 or ROCE_ERR_INVALID.
 */
int client_options(const char *what, const void *options, void *ret, size_t known);

#endif
