/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Connection: requests and replies over the daemon's socket
 *
 * Several threads may have a request open (one joins a communicator while another registers
 * memory); replies are told apart by serial. There is no reader thread: of the threads that wait,
 * one polls the socket and hands out what arrives, the others sleep on a condition. Messages
 * without a request (Goodbye) are picked up by whoever reads, and by conn_check().
 *
 * Once lost, a connection stays lost: `dead` holds the status and every call returns it.
 *
 * Thread: any      Owns: the socket, the frame being read, the fds in flight
 * Locks: send_lock: order of bytes written; lock: all else. send_lock before lock. Both are inner
 * to no other lock: callers must not hold the client's lock.
 */
#ifndef ROCECLIENT_CONN_H
#define ROCECLIENT_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/fdpass.h"
#include "proto/frame.h"
#include "proto/limits.h"

struct conn_call;

struct conn {
	int fd; /* non-blocking; -1 when closed */
	pthread_mutex_t send_lock;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a call got its reply, the reader left, or the daemon is lost */
	uint64_t serial;	/* last one used */
	struct conn_call *calls;
	bool reading;
	struct frame_decoder decoder;
	struct fdset queue; /* descriptors of frames that are not whole yet */
	bool fds_lost;
	_Atomic int dead; /* 0 while alive, else a status */
	char dead_text[LIMIT_ERROR_TEXT];
};

struct conn_reply {
	uint16_t type;
	uint8_t *body;
	size_t size;
	struct fdset fds;
};

/* @fd: consumed; connected and non-blocking. Return: 0 or negative errno. */
int conn_init(struct conn *conn, int fd);
void conn_deinit(struct conn *conn);

/* Exchanges the 32-byte hello. Return: 0 or a status with its sentence. */
int conn_hello(struct conn *conn, int timeout_ms);

/**
 * conn_call() - send one request, wait for its reply
 * @type, @msg:  request type and protobuf message, borrowed
 * @fd:          borrowed, sent along; -1: none
 * @timeout_ms:  -1: as long as the daemon lives
 * @expect:      the reply type
 * @ret:         to be released with conn_reply_deinit(); set on 0 only
 *
 * Return: 0, or a status whose sentence is set (the daemon's own words for an Error reply).
 */
int conn_call(struct conn *conn, unsigned int type, const void *msg, int fd, int timeout_ms,
	      unsigned int expect, struct conn_reply *ret);
/* The same for requests whose reply carries nothing to look at. */
int conn_command(struct conn *conn, unsigned int type, const void *msg, int timeout_ms,
		 unsigned int expect);
void conn_reply_deinit(struct conn_reply *reply);

/*
 * Reads what has arrived, without waiting. Return: 0 while the daemon lives, else the sticky
 * status (no sentence is set).
 */
int conn_check(struct conn *conn);
/* Declares the daemon lost; the first reason stays. */
void conn_die(struct conn *conn, int status, const char *text);
/* 0 while alive. */
static inline int conn_dead(const struct conn *conn)
{
	/* acquire: pairs with the release in conn_die_locked(); the text is then whole */
	return atomic_load_explicit(&conn->dead, memory_order_acquire);
}
/* Sets the sentence that belongs to the loss. Return: its status. */
int conn_dead_error(struct conn *conn);

#endif
