/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicator: what the client knows of one
 *
 * Layout as the daemon reported it, the sequence numbers of what was posted, and the window of
 * what is in flight. Collectives are windowed by sequence (number n waits for number n - window),
 * sends and receives by count.
 *
 * Thread: any; counters and lists under the client's lock      Owns: arrays, texts
 * Locks: none of its own
 */
#ifndef ROCECLIENT_COMM_H
#define ROCECLIENT_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

#define COMM_PREMUL_MAX 64

struct roce_client;
struct roce_comm_options;

struct comm_slot {
	uint32_t ticket;
	uint32_t generation;
	bool used;
};

struct comm_premul {
	double scalar;
	bool used;
};

struct roce_comm {
	struct roce_client *client;
	struct roce_comm *next;
	struct roce_comm **prev;
	uint32_t id;
	uint64_t uid;
	int rank;
	int size;
	int n_hosts;
	char **host_names;
	uint32_t *host_of;
	char *path;

	uint64_t seq; /* collectives posted */
	struct comm_slot window[LIMIT_COMM_WINDOW];
	uint64_t *sent; /* [size] sends posted to each rank, then [size] receives from each */
	uint64_t *received;
	unsigned int p2p_open;	  /* sends and receives in flight */
	unsigned int staged_open; /* operations in flight that request_ordered() tells of */
	struct comm_premul premul[COMM_PREMUL_MAX];

	int gpu_failed;		 /* an operation that only a stream waited for ended so */
	uint8_t gpu_failed_kind; /* under the client's lock, both */
	_Atomic int failed;	 /* sticky status; the text is whole once it is set */
	char failed_text[LIMIT_ERROR_TEXT];
};

/* Return: 0, or the status of a NULL, forked or failed communicator with its sentence. */
int comm_enter(const struct roce_comm *comm);
/* The sticky error, sentence set. Return: its status, 0 while the communicator works. */
int comm_failed_error(const struct roce_comm *comm);
/*
 * Finds the words for an operation that ended with @status, makes the failure sticky if the daemon
 * says so. @id: of the communicator, which may be destroyed by now. Lock not held. Return: @status.
 */
int comm_op_error(struct roce_client *client, uint32_t id, uint8_t kind, int status);
/* The same for one that only a stream waited for: the failure is sticky in any case. */
void comm_stream_error(struct roce_client *client, uint32_t id, uint8_t kind, int status);
/* Ends all operations of the communicator, everywhere. Return: 0 or a status. */
int comm_abort(struct roce_comm *comm, const char *text);
/* An operation of @kind ended. Lock held. */
void comm_op_ended(struct roce_comm *comm, uint8_t kind, bool staged);
/* Joins by name instead of by id (env.c). */
int comm_join_env(struct roce_client *client, void *env_id, int rank, int size,
		  const struct roce_comm_options *options, struct roce_comm **ret);
/* Frees the handle only. @forked: in a child. */
void comm_free(struct roce_comm *comm);
/* Tells the daemon and frees; used by roce_comm_destroy() and roce_disconnect(). */
int comm_destroy(struct roce_comm *comm, int timeout_ms);

#endif
