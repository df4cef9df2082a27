/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Handlers: one function a message of a client
 *
 * Each answers its serial exactly once, at once or later. @msg: the unpacked message, borrowed.
 * @fds: what came with it; taken ones are theirs.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_CONTROL_HANDLE_H
#define ROCECOMM_CONTROL_HANDLE_H

#include "control/session.h"
#include "job/comm.h"
#include "job/member.h"

typedef void (*handle_fn)(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);

void handle_hello(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);

/* handle_comm.c */
struct session_comm {
	struct list link; /* session.comms */
	struct session *session;
	struct member member;
	uint64_t serial; /* of the request that waits: joining or destroying */
	bool leaving;
};
void handle_unique_id(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_comm_init(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_comm_split(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_comm_destroy(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_comm_abort(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_comm_error(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
/* All ranks of a session that is over leave; open answers are dropped. */
void handle_comm_error_teardown(struct session *s);
void handle_comm_teardown(struct session *s);

/* handle_gpu.c */
void handle_gpu_alloc(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_gpu_release(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_gpu_buffer(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
/* All allocations of a session that is over are given back. */
void handle_gpu_teardown(struct session *s);

/* handle_mem.c */
void handle_register(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_deregister(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
/* May one more buffer be registered? If not it is refused. */
bool handle_mem_admit(struct session *s, uint64_t serial);
/* Enters a region here and in the engine. @region: consumed. Return: 0, REGISTRY_E_FULL, -ENOMEM.
 */
int handle_mem_add(struct session *s, struct region *region, uint32_t *ret_id);
/* All buffers of a session that is over and whose ranks have left are given back. */
void handle_mem_teardown(struct session *s);

/* handle_admin.c: rocectl's */
#define REQUESTS_MAX 4 /* of one client at a time */

/* A request that is answered later; embedded in what its handler needs. */
struct session_request {
	struct list link;	 /* session.requests */
	struct session *session; /* NULL: gone, nobody waits for the answer */
	uint64_t serial;
};
/* Zeroed, of @size bytes. Return: NULL: refused, and answered. */
void *session_request_new(struct session *s, uint64_t serial, size_t size);
void session_request_over(struct session_request *rq);

void handle_status(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_config(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
/* handle_rdma.c */
void handle_links(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_paths(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
void handle_check(struct session *s, uint64_t serial, const void *msg, struct fdset *fds);
/* Open requests of a session that is over are dropped. */
void handle_admin_teardown(struct session *s);

#endif
