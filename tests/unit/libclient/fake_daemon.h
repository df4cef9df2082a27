/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake daemon: one thread that speaks the client protocol, and misbehaves when told to
 *
 * Serves any number of sessions on a Unix socket in a temporary directory. Communicators are made
 * up: every rank that joins finds itself on a host of its own number modulo two. Descriptors are
 * either left for the test to look at (fake_pop(), fake_complete()) or run at once, where "run"
 * moves min(send, recv) bytes of the operation from send to recv: enough to tell whether the
 * right bytes went to the right place and back.
 *
 * Thread: the test's; fake_* functions lock      Owns: the thread, the sessions
 * Locks: lock: everything below it
 */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/fdpass.h"
#include "proto/frame.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "proto/ring.h"

#define FAKE_SESSIONS 8
#define FAKE_BUFFERS 256
#define FAKE_SHUT 1024

struct fake_buffer {
	uint32_t id; /* 0: free */
	uint8_t *base;
	size_t size;
	bool internal;
	uint64_t leaving; /* serial of the request to let it go, once nothing names it; 0: none */
};

/* An allocation of a GPU, as host memory: what the fake CUDA (tests/fake/cuda) makes it of. */
struct fake_alloc {
	uint32_t id; /* 0: free */
	uint32_t kind;
	uint8_t uuid[16];
	uint64_t size;
	int fd;
};

struct fake_session {
	int fd; /* -1: free */
	size_t in;
	size_t out;
	bool hello;
	struct frame_decoder decoder;
	struct fdset queue;
	int bell;
	int event;
	void *page;
	struct ring_consumer ring;
	struct fake_buffer buffers[FAKE_BUFFERS];
	struct fake_alloc allocs[FAKE_BUFFERS];
	struct shm_desc shut[FAKE_SHUT]; /* popped, their gates are not open yet */
	unsigned int n_shut;
	uint32_t next_id;
};

struct fake {
	pthread_mutex_t lock;
	pthread_t thread;
	bool stop;
	int listen_fd;
	char dir[64];
	char path[96];
	struct fake_session sessions[FAKE_SESSIONS];

	/* behaviour; set before connecting, or under the lock */
	bool run; /* run and complete operations at once */
	struct hello version;
	unsigned int welcome_fds;
	bool mute[MSG_COUNT_]; /* do not answer this request */
	int fail[MSG_COUNT_];  /* answer with this status */
	size_t cut_in;	       /* hang up after this many bytes received; 0: never */
	size_t cut_out;	       /* hang up after this many bytes sent + 1; 0: never */
	int sticky;	       /* status of CommError */
	bool old;	       /* knows nothing of GPUs and gates */

	/* what was seen */
	unsigned int seen[MSG_COUNT_];
	unsigned int bells;
	char env_name[256];
	char env_root[64];
	unsigned int n_open;   /* buffers registered now */
	unsigned int n_allocs; /* GPU allocations registered now */
	unsigned int pieces;   /* of the last GPU buffer */
	struct fake_alloc last_alloc;
};

/* Reads and writes a field while the thread may use it. */
#define fake_get(f, field)                                   \
	({                                                   \
		pthread_mutex_lock(&(f)->lock);              \
		__typeof__((f)->field) fake_v_ = (f)->field; \
		pthread_mutex_unlock(&(f)->lock);            \
		fake_v_;                                     \
	})
#define fake_set(f, field, value)                 \
	do {                                      \
		pthread_mutex_lock(&(f)->lock);   \
		(f)->field = (value);             \
		pthread_mutex_unlock(&(f)->lock); \
	} while (0)

void fake_start(struct fake *fake);
/* The same at a path of the caller's, whose folder exists. */
void fake_start_at(struct fake *fake, const char *path);
void fake_stop(struct fake *fake);
/* Hangs up on all sessions. */
void fake_hang_up(struct fake *fake);
/* Listens no more; the socket file stays. */
void fake_deaf(struct fake *fake);
void fake_goodbye(struct fake *fake, int status, const char *reason);
/* Takes descriptors of session 0 out of the ring; waits up to a second for @n. Return: number. */
int fake_pop(struct fake *fake, struct shm_desc *descs, int n);
/* Completes one operation of session 0. */
void fake_complete(struct fake *fake, const struct shm_desc *desc, int status);
/* Address of a descriptor's side in the fake's own mapping. */
uint8_t *fake_ptr(struct fake *fake, uint32_t buffer, uint64_t off);

#endif
