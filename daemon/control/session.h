/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Session: one client and all that it owns
 *
 *	HELLO --32 bytes--> GREETED --ClientHello--> READY --hang-up, death, fault--> CLOSING
 *
 * The client is hostile until proven dead: what it sends is bounded, what it can grow is charged,
 * what is queued for it has a limit. It is over when its socket hangs up or its process ends
 * (a forked child may keep the socket open), whichever comes first.
 *
 * Sessions are closed from the loop only (session_kill() marks, the server reaps), so that no
 * handler finds its session gone. Teardown: ranks leave their communicators, the engine lets go of
 * the ring, then page, descriptors, regions and charges are given back.
 *
 * Thread: control      Owns: see the struct      Locks: none      See: PROTOCOL.md §3, §4
 */
#ifndef ROCECOMM_CONTROL_SESSION_H
#define ROCECOMM_CONTROL_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "control/server.h"
#include "mem/registry.h"
#include "proto/base.h"
#include "proto/fdpass.h"
#include "proto/frame.h"
#include "proto/hello.h"
#include "proto/limits.h"
#include "proto/status.h"
#include "util/hashmap.h"
#include "util/idpool.h"
#include "util/list.h"
#include "util/quota.h"

#define SESSION_QUEUE_LIMIT (4u << 20) /* bytes that wait for a client that does not read */
#define SESSION_HELLO_BODY 4096	       /* longest message before it is known who speaks */

enum session_state {
	SESSION_HELLO = 0,
	SESSION_GREETED,
	SESSION_READY,
	SESSION_FLUSHING, /* last words are queued; nothing is read any more */
	SESSION_CLOSING,
};

struct session {
	struct list link; /* server.sessions */
	struct server *server;
	uint64_t number;
	enum session_state state;

	/* who */
	pid_t pid; /* as the kernel sees it; 0: in a namespace that we do not see */
	uid_t uid;
	gid_t gid;
	uint32_t claimed_pid;
	bool admin;	 /* may see everybody's jobs */
	bool admin_only; /* rocectl: has no page */
	bool over_quota; /* is let in to be told so */
	char name[LIMIT_NAME];
	char version[32];
	struct tenant *tenant;
	struct quota_charge charge;
	uint64_t since; /* ms of the loop */

	/* the socket */
	int fd;
	uv_poll_t poll;
	int pidfd; /* -1: none */
	uv_poll_t pid_poll;
	unsigned int handles; /* of the loop, not closed yet */
	uint8_t hello[HELLO_SIZE];
	size_t hello_have;
	struct frame_decoder decoder;
	struct fdset queue; /* descriptors that came before their frame was whole */
	bool fds_lost;
	struct list out; /* struct session_out.link */
	size_t out_bytes;
	bool writing; /* waits for room in the socket */

	/* what the engine has */
	void *page; /* SHM_FULL_SIZE */
	int page_fd;
	int bell, event;
	struct engine_session *engine;
	struct registry buffers;
	struct hashmap buffer_map; /* struct session_buffer by id */
	struct hashmap gpu_allocs; /* struct session_alloc by id */
	struct idpool gpu_ids;
	uint64_t gpu_bytes;	/* of these */
	uint32_t gpu_pending;	/* imports and mappings under way */
	uint32_t gpu_maps;	/* of these the mappings: each will be a buffer */
	unsigned int returning; /* answers of the engine that are under way */
	struct idpool handles_pool;
	struct list comms;	 /* struct session_comm.link */
	struct list error_waits; /* answers that wait for a sentence */
	struct list requests;	 /* struct session_request.link */

	/* the end */
	bool dead;	  /* to be reaped */
	bool unmapping;	  /* its buffers are being given back */
	const char *died; /* static: what others are told of its ranks */
};

/* @fd: consumed. Return: 0 or negative errno. */
int session_new(struct server *server, int fd, struct session **ret);
/* Marks it for closing. @died: static. */
void session_kill(struct session *s, const char *died);
/* Last words; then it is closed. */
void session_goodbye(struct session *s, enum status status, const char *reason, const char *died);
/* By the server, from the loop. */
void session_close(struct session *s);

/* ---- for handlers ------------------------------------------------------------------------- */

/* Queues a message. @fds: borrowed until the session ends. */
void session_send(struct session *s, unsigned int type, uint64_t serial, const void *msg,
		  const int *fds, unsigned int nfds);
void session_refuse(struct session *s, uint64_t serial, enum status status, const char *fmt, ...)
	attr_printf(4, 5);
void session_done(struct session *s, uint64_t serial);
/* Makes page, eventfds and the engine's side. Return: 0 or negative errno. */
int session_attach(struct session *s);
/* Goes on with a teardown that waits. */
void session_teardown(struct session *s);
/* One of the s->returning that keep it is back. It may be gone then. */
void session_return(struct session *s);
/* The number that stands for the process in messages to people. */
static inline uint32_t session_pid(const struct session *s)
{
	return s->pid > 0 ? (uint32_t)s->pid : s->claimed_pid;
}

#endif
