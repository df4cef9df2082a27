/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Connection: implementation
 *
 * Nothing that the daemon sends is believed beyond its frame: types are compared, bodies are
 * unpacked by the caller, descriptors that nobody asked for are closed.
 *
 * Thread: any      Owns: see conn.h      Locks: see conn.h
 */
#include "libclient/conn.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "libclient/clock.h"
#include "libclient/error.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

struct conn_call {
	struct conn_call *next;
	uint64_t serial;
	bool done;
	bool fds_missing;
	bool no_memory;
	struct conn_reply reply;
};

static const char lost_text[] = "the daemon closed the connection: it died or was killed; "
				"start it again and connect anew";

int conn_init(struct conn *conn, int fd)
{
	pthread_condattr_t attr;

	memset(conn, 0, sizeof(*conn));
	conn->fd = fd;
	pthread_mutex_init(&conn->send_lock, NULL);
	pthread_mutex_init(&conn->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&conn->changed, &attr);
	pthread_condattr_destroy(&attr);
	frame_decoder_init(&conn->decoder);
	fdset_init(&conn->queue);
	return 0;
}

void conn_deinit(struct conn *conn)
{
	conn->fd = base_close(conn->fd);
	frame_decoder_deinit(&conn->decoder);
	fdset_deinit(&conn->queue);
}

void conn_reply_deinit(struct conn_reply *reply)
{
	free(take_ptr(reply->body));
	fdset_deinit(&reply->fds);
}

static void conn_die_locked(struct conn *conn, int status, const char *text)
{
	if (atomic_load_explicit(&conn->dead, memory_order_relaxed) != 0) {
		return;
	}
	error_copy(conn->dead_text, text);
	/* release: pairs with the acquire in conn_dead() */
	atomic_store_explicit(&conn->dead, status, memory_order_release);
	/* Wakes a thread that polls the socket. */
	shutdown(conn->fd, SHUT_RDWR);
	pthread_cond_broadcast(&conn->changed);
}

void conn_die(struct conn *conn, int status, const char *text)
{
	pthread_mutex_lock(&conn->lock);
	conn_die_locked(conn, status, text);
	pthread_mutex_unlock(&conn->lock);
}

int conn_dead_error(struct conn *conn)
{
	return error_set(conn_dead(conn), "%s", conn->dead_text);
}

static void conn_goodbye(struct conn *conn, const struct frame *frame)
{
	Rocecomm__Goodbye *bye = rocecomm__goodbye__unpack(NULL, frame->length, frame->body);
	int status = ROCE_ERR_SHUTDOWN;
	const char *why = "the daemon is stopping";

	if (bye && bye->status > ROCE_IN_PROGRESS && bye->status <= ROCE_ERR_INTERNAL) {
		status = (int)bye->status;
	}
	if (bye && bye->reason && bye->reason[0] != '\0') {
		why = bye->reason;
	}
	conn_die_locked(conn, status, why);
	if (bye) {
		rocecomm__goodbye__free_unpacked(bye, NULL);
	}
}

/* Gives a frame and its descriptors to the call that waits for it; nobody waits: drops both. */
static void conn_dispatch(struct conn *conn, const struct frame *frame)
{
	struct fdset fds;
	struct conn_call *call;
	int r;

	fdset_init(&fds);
	r = fdset_split(&conn->queue, frame->nfds, &fds);
	if (frame->serial == 0) {
		if (frame->type == MSG_GOODBYE) {
			conn_goodbye(conn, frame);
		}
		fdset_deinit(&fds);
		return;
	}
	for (call = conn->calls; call; call = call->next) {
		if (call->serial == frame->serial && !call->done) {
			break;
		}
	}
	if (!call) {
		fdset_deinit(&fds);
		return;
	}
	call->done = true;
	call->fds_missing = r < 0;
	call->reply.type = frame->type;
	call->reply.size = frame->length;
	call->reply.fds = fds;
	call->reply.body = malloc(frame->length + 1);
	call->no_memory = !call->reply.body;
	if (call->reply.body && frame->length > 0) {
		memcpy(call->reply.body, frame->body, frame->length);
	}
	pthread_cond_broadcast(&conn->changed);
}

static int conn_feed(struct conn *conn, const uint8_t *data, size_t size)
{
	while (size > 0) {
		struct frame *frame;
		size_t used = 0;
		int r;

		r = frame_decode(&conn->decoder, data, size, &used, &frame);
		data += used;
		size -= used;
		if (r == FRAME_E_MORE) {
			continue;
		}
		if (r != 0) {
			conn_die_locked(conn, r < 0 ? ROCE_ERR_NO_MEMORY : ROCE_ERR_PROTOCOL,
					r < 0 ? "no memory for a message of the daemon"
					      : "the daemon sent a broken frame: the socket does "
						"not belong to a rocecommd of this version");
			return r;
		}
		conn_dispatch(conn, frame);
	}
	return 0;
}

/* Reads all that is there. Lock held. */
static void conn_read_locked(struct conn *conn)
{
	uint8_t buf[4096];

	while (conn_dead(conn) == 0) {
		ssize_t n = fd_recv(conn->fd, buf, sizeof(buf), &conn->queue, &conn->fds_lost);

		if (n == -EAGAIN) {
			return;
		}
		if (n == -EINTR) {
			continue;
		}
		if (n <= 0) {
			conn_die_locked(conn, ROCE_ERR_NO_DAEMON, lost_text);
			return;
		}
		if (conn_feed(conn, buf, (size_t)n) != 0) {
			return;
		}
		if ((size_t)n < sizeof(buf)) {
			return;
		}
	}
}

int conn_check(struct conn *conn)
{
	struct pollfd pfd = {.fd = conn->fd, .events = POLLIN};

	if (conn_dead(conn) == 0 && poll(&pfd, 1, 0) > 0) {
		pthread_mutex_lock(&conn->lock);
		if (!conn->reading) {
			conn_read_locked(conn);
		}
		pthread_mutex_unlock(&conn->lock);
	}
	return conn_dead(conn);
}

/* Waits until @call has its reply; the caller holds the lock. Return: 0, or -ETIMEDOUT, or -EPIPE.
 */
static int conn_await(struct conn *conn, struct conn_call *call, int64_t deadline)
{
	while (!call->done) {
		int left = clock_left_ms(deadline);

		if (conn_dead(conn) != 0) {
			return -EPIPE;
		}
		if (left == 0) {
			return -ETIMEDOUT;
		}
		if (conn->reading) {
			if (deadline == CLOCK_NEVER) {
				pthread_cond_wait(&conn->changed, &conn->lock);
			} else {
				struct timespec ts = clock_timespec(deadline);

				pthread_cond_timedwait(&conn->changed, &conn->lock, &ts);
			}
		} else {
			struct pollfd pfd = {.fd = conn->fd, .events = POLLIN};

			conn->reading = true;
			pthread_mutex_unlock(&conn->lock);
			poll(&pfd, 1, left);
			pthread_mutex_lock(&conn->lock);
			conn->reading = false;
			conn_read_locked(conn);
			/* Somebody else may have to read for his own reply now. */
			pthread_cond_broadcast(&conn->changed);
		}
	}
	return 0;
}

/* Writes a whole frame. Return: 0, -ETIMEDOUT with nothing sent, or -EPIPE (connection lost). */
static int conn_send(struct conn *conn, const uint8_t *data, size_t size, int fd, int64_t deadline)
{
	size_t sent = 0;
	int r = 0;

	pthread_mutex_lock(&conn->send_lock);
	while (sent < size) {
		unsigned int nfds = sent == 0 && fd >= 0 ? 1 : 0;
		ssize_t n = fd_send(conn->fd, data + sent, size - sent, &fd, nfds);

		if (n > 0) {
			sent += (size_t)n;
		} else if (n == -EAGAIN) {
			struct pollfd pfd = {.fd = conn->fd, .events = POLLOUT};
			int left = clock_left_ms(deadline);

			if (left == 0 && sent == 0) {
				r = -ETIMEDOUT;
				break;
			}
			if (left == 0) {
				conn_die(conn, ROCE_ERR_NO_DAEMON,
					 "the daemon stopped reading in the middle of a request");
				r = -EPIPE;
				break;
			}
			poll(&pfd, 1, left);
		} else if (n != -EINTR) {
			/* Its last words (a Goodbye) may still be in the socket. */
			conn_check(conn);
			conn_die(conn, ROCE_ERR_NO_DAEMON, lost_text);
			r = -EPIPE;
			break;
		}
	}
	pthread_mutex_unlock(&conn->send_lock);
	return r;
}

/* Turns a whole reply into a status; Error replies speak for themselves. */
static int conn_judge(struct conn_call *call, unsigned int expect)
{
	Rocecomm__Error *error;
	int status;

	if (call->no_memory) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a reply of %zu bytes",
				 call->reply.size);
	}
	if (call->reply.type == MSG_ERROR) {
		error = rocecomm__error__unpack(NULL, call->reply.size, call->reply.body);
		if (!error) {
			return error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable error");
		}
		status = error->status > ROCE_IN_PROGRESS && error->status <= ROCE_ERR_INTERNAL
				 ? (int)error->status
				 : ROCE_ERR_INTERNAL;
		error_set(status, "%s", error->text[0] ? error->text : roce_strerror(status));
		rocecomm__error__free_unpacked(error, NULL);
		return status;
	}
	if (call->reply.type != expect) {
		return error_set(ROCE_ERR_PROTOCOL,
				 "the daemon answered with message type %u where %u was due",
				 call->reply.type, expect);
	}
	if (call->fds_missing) {
		return error_set(ROCE_ERR_FD_MISSING,
				 "a descriptor that the daemon sent did not arrive: this process "
				 "is out of descriptors (ulimit -n), or a security module "
				 "(SELinux, AppArmor) forbids passing it: look for denials in the "
				 "audit log");
	}
	return 0;
}

int conn_call(struct conn *conn, unsigned int type, const void *msg, int fd, int timeout_ms,
	      unsigned int expect, struct conn_reply *ret)
{
	cleanup_free uint8_t *data = NULL;
	struct conn_call call = {.done = false};
	int64_t deadline = clock_deadline(timeout_ms);
	size_t size;
	int r;

	fdset_init(&call.reply.fds);
	pthread_mutex_lock(&conn->lock);
	if (conn_dead(conn) != 0) {
		pthread_mutex_unlock(&conn->lock);
		return conn_dead_error(conn);
	}
	call.serial = ++conn->serial;
	call.next = conn->calls;
	conn->calls = &call;
	pthread_mutex_unlock(&conn->lock);

	r = frame_pack((uint16_t)type, fd >= 0 ? 1 : 0, call.serial, msg, &data, &size);
	if (r == 0) {
		r = conn_send(conn, data, size, fd, deadline);
	}
	pthread_mutex_lock(&conn->lock);
	if (r == 0) {
		r = conn_await(conn, &call, deadline);
	}
	for (struct conn_call **p = &conn->calls; *p; p = &(*p)->next) {
		if (*p == &call) {
			*p = call.next;
			break;
		}
	}
	pthread_mutex_unlock(&conn->lock);

	if (r == -ETIMEDOUT) {
		r = error_set(
			ROCE_ERR_TIMEOUT,
			"the daemon did not answer within %d ms: is it stopped or overloaded?",
			timeout_ms);
	} else if (r == -EPIPE) {
		r = conn_dead_error(conn);
	} else if (r == FRAME_E_TOO_BIG) {
		r = error_set(ROCE_ERR_INVALID, "the request is larger than a message of %u bytes",
			      LIMIT_FRAME_BODY);
	} else if (r != 0) {
		r = error_set(ROCE_ERR_NO_MEMORY, "no memory for a request");
	} else {
		r = conn_judge(&call, expect);
	}
	if (r != 0) {
		conn_reply_deinit(&call.reply);
		return r;
	}
	*ret = call.reply;
	return 0;
}

int conn_command(struct conn *conn, unsigned int type, const void *msg, int timeout_ms,
		 unsigned int expect)
{
	struct conn_reply reply;
	int r;

	r = conn_call(conn, type, msg, -1, timeout_ms, expect, &reply);
	if (r == 0) {
		conn_reply_deinit(&reply);
	}
	return r;
}

/* Moves exactly @size raw bytes before framing begins. Return: 0, -ETIMEDOUT, -EPIPE. */
static int conn_raw(struct conn *conn, uint8_t *data, size_t size, bool out, int64_t deadline)
{
	size_t done = 0;

	while (done < size) {
		struct pollfd pfd = {.fd = conn->fd, .events = out ? POLLOUT : POLLIN};
		ssize_t n;

		n = out ? send(conn->fd, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT)
			: recv(conn->fd, data + done, size - done, MSG_DONTWAIT);
		if (n > 0) {
			done += (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			int left = clock_left_ms(deadline);

			if (left == 0) {
				return -ETIMEDOUT;
			}
			poll(&pfd, 1, left);
		} else {
			return -EPIPE;
		}
	}
	return 0;
}

int conn_hello(struct conn *conn, int timeout_ms)
{
	const struct hello ours = {.min = PROTOCOL_VERSION_MIN, .max = PROTOCOL_VERSION_MAX};
	int64_t deadline = clock_deadline(timeout_ms);
	uint8_t buf[HELLO_SIZE];
	struct hello theirs = {.min = 0};
	uint16_t version;
	int r;

	hello_encode(buf, HELLO_MAGIC_CLIENT, &ours);
	r = conn_raw(conn, buf, sizeof(buf), true, deadline);
	if (r == 0) {
		r = conn_raw(conn, buf, sizeof(buf), false, deadline);
	}
	if (r == -ETIMEDOUT) {
		return error_set(ROCE_ERR_TIMEOUT,
				 "the daemon did not answer the hello within %d ms: is it stopped?",
				 timeout_ms);
	}
	if (r != 0) {
		conn_die(conn, ROCE_ERR_NO_DAEMON, lost_text);
		return error_set(ROCE_ERR_NO_DAEMON,
				 "the daemon closed the connection before its hello");
	}
	r = hello_decode(buf, HELLO_MAGIC_CLIENT, &ours, &theirs, &version);
	if (r == HELLO_E_VERSION) {
		return error_set(ROCE_ERR_VERSION,
				 "this library speaks protocol %u to %u, the daemon %u to %u: "
				 "upgrade the older one (library %s)",
				 ours.min, ours.max, theirs.min, theirs.max, ROCECOMM_VERSION);
	}
	if (r != 0) {
		return error_set(ROCE_ERR_PROTOCOL, "what answers is not a rocecommd");
	}
	return 0;
}
