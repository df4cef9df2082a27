/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Session: implementation
 *
 * Thread: control      Owns: see session.h      Locks: none
 */
#include "control/session.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "control/dispatch.h"
#include "control/handle.h"
#include "proto/msg.h"
#include "proto/ring.h"
#include "proto/shm_layout.h"
#include "rocecomm.pb-c.h"
#include "util/log.h"

#define SESSION_READ 16384
#define SESSION_READS 4 /* a turn of the loop, so that nobody keeps it */

#define DIED_PROTOCOL "the daemon closed its connection, since it broke the protocol"

struct session_out {
	struct list link;
	uint8_t *data;
	size_t size, sent;
	int fds[LIMIT_FRAME_FDS];
	unsigned int nfds;
};

static void session_out_free(struct session_out *out)
{
	list_remove(&out->link);
	free(out->data);
	free(out);
}

static bool session_process_ended(const struct session *s)
{
	struct pollfd pfd = {.fd = s->pidfd, .events = POLLIN};

	return s->pidfd >= 0 && poll(&pfd, 1, 0) > 0;
}

static void session_hung_up(struct session *s)
{
	session_kill(s, session_process_ended(s) ? "its process ended"
						 : "its connection to the daemon was closed");
}

/* ---- writing ------------------------------------------------------------------------------ */

static void session_on_poll(uv_poll_t *handle, int status, int events);

static void session_poll(struct session *s)
{
	int events = UV_DISCONNECT;

	if (s->state < SESSION_FLUSHING) {
		events |= UV_READABLE;
	}
	if (s->writing) {
		events |= UV_WRITABLE;
	}
	if (!s->dead && s->state != SESSION_CLOSING) {
		uv_poll_start(&s->poll, events, session_on_poll);
	}
}

static void session_flush(struct session *s)
{
	bool writing = false;

	while (!list_empty(&s->out)) {
		struct session_out *out =
			container_of(list_first(&s->out), struct session_out, link);
		ssize_t n = fd_send(s->fd, out->data + out->sent, out->size - out->sent, out->fds,
				    out->sent == 0 ? out->nfds : 0);

		if (n == -EINTR) {
			continue;
		}
		if (n == -EAGAIN) {
			writing = true;
			break;
		}
		if (n < 0) {
			session_hung_up(s);
			return;
		}
		out->sent += (size_t)n;
		s->out_bytes -= (size_t)n;
		if (out->sent == out->size) {
			session_out_free(out);
		}
	}
	if (writing != s->writing) {
		s->writing = writing;
		session_poll(s);
	}
	if (!writing && s->state == SESSION_FLUSHING) {
		session_kill(s, NULL);
	}
}

static void session_queue(struct session *s, uint8_t *data, size_t size, const int *fds,
			  unsigned int nfds)
{
	struct session_out *out = calloc(1, sizeof(*out));

	if (!out) {
		free(data);
		session_kill(s, "the daemon has no memory for it");
		return;
	}
	out->data = data;
	out->size = size;
	out->nfds = nfds;
	for (unsigned int i = 0; i < nfds; i++) {
		out->fds[i] = fds[i];
	}
	list_append(&s->out, &out->link);
	s->out_bytes += size;
	if (!s->writing) {
		session_flush(s);
	}
	if (s->out_bytes > SESSION_QUEUE_LIMIT && !s->dead) {
		log_warn("client %s (pid %" PRIu32 ") does not read: %zu bytes wait for it, which "
			 "is above the limit of %u; it is disconnected",
			 s->name, session_pid(s), s->out_bytes, SESSION_QUEUE_LIMIT);
		session_kill(s, "the daemon closed its connection, since it did not read");
	}
}

/* See session.h. */
void session_send(struct session *s, unsigned int type, uint64_t serial, const void *msg,
		  const int *fds, unsigned int nfds)
{
	uint8_t *data;
	size_t size;
	int r;

	if (s->dead || s->state >= SESSION_FLUSHING) {
		return;
	}
	r = frame_pack((uint16_t)type, (uint8_t)nfds, serial, msg, &data, &size);
	if (r == FRAME_E_TOO_BIG) {
		session_refuse(s, serial, STATUS_UNSUPPORTED,
			       "the answer is longer than a message of %u bytes", LIMIT_FRAME_BODY);
		return;
	}
	if (r < 0) {
		session_kill(s, "the daemon has no memory for it");
		return;
	}
	session_queue(s, data, size, fds, nfds);
}

void session_refuse(struct session *s, uint64_t serial, enum status status, const char *fmt, ...)
{
	Rocecomm__Error msg = ROCECOMM__ERROR__INIT;
	char text[LIMIT_ERROR_TEXT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	msg.status = status;
	msg.text = text;
	log_debug("client %s (pid %" PRIu32 "): %s: %s", s->name, session_pid(s),
		  status_name(status), text);
	session_send(s, MSG_ERROR, serial, &msg, NULL, 0);
}

void session_done(struct session *s, uint64_t serial)
{
	Rocecomm__Done msg = ROCECOMM__DONE__INIT;

	session_send(s, MSG_DONE, serial, &msg, NULL, 0);
}

/* See session.h. */
void session_goodbye(struct session *s, enum status status, const char *reason, const char *died)
{
	Rocecomm__Goodbye msg = ROCECOMM__GOODBYE__INIT;

	if (s->dead || s->state >= SESSION_FLUSHING) {
		return;
	}
	if (s->page && status == STATUS_SHUTDOWN) {
		struct shm_header *shm = s->page;

		/* release: pairs with the acquire in the client's look at it */
		atomic_store_explicit(&shm->daemon_state, SHM_DAEMON_STOPPING,
				      memory_order_release);
	}
	s->died = died;
	msg.status = status;
	msg.reason = (char *)(uintptr_t)reason;
	if (s->state != SESSION_HELLO) {
		session_send(s, MSG_GOODBYE, 0, &msg, NULL, 0);
	}
	s->state = SESSION_FLUSHING;
	if (s->dead) {
		return;
	}
	if (s->writing) {
		session_poll(s);
	} else {
		session_kill(s, NULL);
	}
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Takes hello bytes out of the stream. Return: bytes used. */
static size_t session_hello(struct session *s, const uint8_t *data, size_t size)
{
	static const struct hello ours = {PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, 0};
	struct hello theirs = {0};
	uint16_t version;
	size_t n = MIN(sizeof(s->hello) - s->hello_have, size);
	uint8_t *answer;
	int r;

	memcpy(s->hello + s->hello_have, data, n);
	s->hello_have += n;
	if (s->hello_have < sizeof(s->hello)) {
		return n;
	}
	r = hello_decode(s->hello, HELLO_MAGIC_CLIENT, &ours, &theirs, &version);
	if (r == HELLO_E_MAGIC) {
		log_info("pid %" PRIu32 " connected and spoke something else; disconnected",
			 session_pid(s));
		session_kill(s, DIED_PROTOCOL);
		return n;
	}
	answer = malloc(HELLO_SIZE);
	if (!answer) {
		session_kill(s, "the daemon has no memory for it");
		return n;
	}
	hello_encode(answer, HELLO_MAGIC_CLIENT, &ours);
	session_queue(s, answer, HELLO_SIZE, NULL, 0);
	if (r == HELLO_E_VERSION) {
		log_info("pid %" PRIu32 " speaks protocol %u to %u, this daemon %u to %u; "
			 "disconnected",
			 session_pid(s), theirs.min, theirs.max, ours.min, ours.max);
		session_goodbye(s, STATUS_VERSION, "no common protocol version", DIED_PROTOCOL);
		return n;
	}
	s->state = SESSION_GREETED;
	return n;
}

static void session_frame(struct session *s, const struct frame *frame)
{
	struct fdset fds;
	bool lost = s->fds_lost;

	fdset_init(&fds);
	if (fdset_split(&s->queue, frame->nfds, &fds) < 0) {
		lost = true;
		fdset_split(&s->queue, MIN(s->queue.n, (unsigned int)frame->nfds), &fds);
	}
	s->fds_lost = false;
	dispatch(s, frame, &fds, lost);
	fdset_deinit(&fds);
}

static void session_feed(struct session *s, const uint8_t *data, size_t size)
{
	while (size > 0 && !s->dead && s->state < SESSION_FLUSHING) {
		struct frame *frame;
		size_t used = 0;
		int r;

		if (s->state == SESSION_HELLO) {
			used = session_hello(s, data, size);
			data += used;
			size -= used;
			continue;
		}
		r = frame_decode(&s->decoder, data, size, &used, &frame);
		data += used;
		size -= used;
		if (r == 0) {
			session_frame(s, frame);
		} else if (r == FRAME_E_TOO_BIG) {
			session_goodbye(s, STATUS_PROTOCOL,
					"a message is longer than the limit; the connection is "
					"closed",
					DIED_PROTOCOL);
		} else if (r != FRAME_E_MORE) {
			session_goodbye(s, r < 0 ? STATUS_NO_MEMORY : STATUS_PROTOCOL,
					r < 0 ? "the daemon has no memory"
					      : "a broken frame: the connection is closed",
					DIED_PROTOCOL);
		}
	}
	/* Between frames nothing may wait: these belong to none. */
	if (s->decoder.have == 0 || s->decoder.have == FRAME_HEADER + s->decoder.frame.length) {
		fdset_deinit(&s->queue);
		fdset_init(&s->queue);
	}
}

static void session_read(struct session *s)
{
	uint8_t buf[SESSION_READ];

	for (int i = 0; i < SESSION_READS && !s->dead && s->state < SESSION_FLUSHING; i++) {
		ssize_t n = fd_recv(s->fd, buf, sizeof(buf), &s->queue, &s->fds_lost);

		if (n == -EINTR) {
			continue;
		}
		if (n == -EAGAIN) {
			return;
		}
		if (n <= 0) {
			session_hung_up(s);
			return;
		}
		session_feed(s, buf, (size_t)n);
	}
}

static void session_on_poll(uv_poll_t *handle, int status, int events)
{
	struct session *s = container_of(handle, struct session, poll);

	if (s->dead) {
		return;
	}
	if (status < 0) {
		session_hung_up(s);
		return;
	}
	if (events & UV_WRITABLE) {
		session_flush(s);
	}
	if ((events & UV_READABLE) && !s->dead && s->state < SESSION_FLUSHING) {
		session_read(s);
	}
	if ((events & UV_DISCONNECT) && !s->dead && s->state == SESSION_FLUSHING) {
		session_hung_up(s);
	}
}

static void session_on_pid(uv_poll_t *handle, int status, int events)
{
	session_kill(container_of(handle, struct session, pid_poll), "its process ended");
}

/* ---- making ------------------------------------------------------------------------------- */

static int session_credentials(struct session *s)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0) {
		return err_origin(-errno);
	}
	s->pid = cred.pid;
	s->uid = cred.uid;
	s->gid = cred.gid;
	if (cred.pid > 0) {
		s->pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
		if (s->pidfd >= 0) {
			fcntl(s->pidfd, F_SETFD, FD_CLOEXEC);
		}
	}
	return err_trace(tenants_get(&s->server->tenants, s->uid, &s->tenant));
}

static int session_watch(struct session *s)
{
	int r;

	r = uv_poll_init(s->server->o.loop, &s->poll, s->fd);
	if (r < 0) {
		return err_origin(r);
	}
	s->handles++;
	if (s->pidfd >= 0 && uv_poll_init(s->server->o.loop, &s->pid_poll, s->pidfd) == 0) {
		s->handles++;
		uv_poll_start(&s->pid_poll, UV_READABLE, session_on_pid);
	}
	session_poll(s);
	return 0;
}

static void session_free(struct session *s)
{
	frame_decoder_deinit(&s->decoder);
	fdset_deinit(&s->queue);
	while (!list_empty(&s->out)) {
		session_out_free(container_of(list_first(&s->out), struct session_out, link));
	}
	hashmap_deinit(&s->buffer_map);
	hashmap_deinit(&s->gpu_allocs);
	idpool_deinit(&s->gpu_ids);
	registry_deinit(&s->buffers);
	idpool_deinit(&s->handles_pool);
	if (s->page) {
		munmap(s->page, SHM_FULL_SIZE);
	}
	base_close(s->page_fd);
	base_close(s->bell);
	base_close(s->event);
	base_close(s->pidfd);
	base_close(s->fd);
	quota_release(&s->charge);
	tenant_unref(s->tenant);
	free(s);
}

/* See session.h. */
int session_new(struct server *server, int fd, struct session **ret)
{
	struct session *s = calloc(1, sizeof(*s));
	int r;

	if (!s) {
		base_close(fd);
		return err_origin(-ENOMEM);
	}
	s->server = server;
	s->fd = fd;
	s->pidfd = -1;
	s->page_fd = -1;
	s->bell = -1;
	s->event = -1;
	s->since = uv_now(server->o.loop);
	snprintf(s->name, sizeof(s->name), "?");
	list_init(&s->link);
	list_init(&s->out);
	list_init(&s->comms);
	list_init(&s->requests);
	list_init(&s->error_waits);
	hashmap_init(&s->buffer_map);
	hashmap_init(&s->gpu_allocs);
	idpool_init(&s->gpu_ids, LIMIT_SESSION_GPU_ALLOCS);
	frame_decoder_init(&s->decoder);
	s->decoder.max_body = SESSION_HELLO_BODY;
	fdset_init(&s->queue);
	r = session_credentials(s);
	if (r == 0) {
		registry_init(&s->buffers, LIMIT_SESSION_BUFFERS);
		idpool_init(&s->handles_pool, LIMIT_SESSION_COMMS);
		s->over_quota = quota_charge(&s->tenant->sessions, 1, &s->charge) != 0;
		r = session_watch(s);
	}
	if (r < 0) {
		session_free(s);
		return err_trace(r);
	}
	*ret = s;
	return 0;
}

static int session_page(struct session *s)
{
	s->page_fd = memfd_create("rocecomm-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->page_fd < 0 || ftruncate(s->page_fd, SHM_FULL_SIZE) < 0 ||
	    fcntl(s->page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		return err_origin(-errno);
	}
	s->page = mmap(NULL, SHM_FULL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, s->page_fd, 0);
	if (s->page == MAP_FAILED) {
		s->page = NULL;
		return err_origin(-errno);
	}
	shm_format(s->page);
	shm_format_gates(s->page);
	return 0;
}

/* See session.h. */
int session_attach(struct session *s)
{
	int r = session_page(s);

	if (r < 0) {
		return err_trace(r);
	}
	s->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	s->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (s->bell < 0 || s->event < 0) {
		return err_origin(-errno);
	}
	r = engine_session_add(s->server->o.engine, s->page, s->bell, s->event, s, &s->engine);
	if (r == 0) {
		engine_session_quota(s->engine, &s->tenant->pinned, s->tenant->name);
	}
	return err_trace(r);
}

/* ---- the end ------------------------------------------------------------------------------ */

/* See session.h. */
void session_kill(struct session *s, const char *died)
{
	if (s->dead) {
		return;
	}
	s->dead = true;
	if (!s->died) {
		s->died = died ? died : "its connection to the daemon was closed";
	}
	server_reap(s->server);
}

static void session_on_closed(uv_handle_t *handle)
{
	struct session *s = handle->data;

	s->handles--;
	session_teardown(s);
}

static void session_close_handle(struct session *s, uv_poll_t *poll)
{
	uv_poll_stop(poll);
	poll->data = s;
	uv_close((uv_handle_t *)poll, session_on_closed);
}

/* See session.h. */
void session_close(struct session *s)
{
	if (s->state == SESSION_CLOSING) {
		return;
	}
	s->state = SESSION_CLOSING;
	session_close_handle(s, &s->poll);
	if (s->handles > 1) {
		session_close_handle(s, &s->pid_poll);
	}
	handle_admin_teardown(s);
	handle_comm_error_teardown(s);
	handle_comm_teardown(s);
	session_teardown(s);
}

void session_return(struct session *s)
{
	s->returning--;
	session_teardown(s);
}

static void session_engine_gone(void *arg)
{
	session_return(arg);
}

/* Each step when the one before is over; the last one frees. */
void session_teardown(struct session *s)
{
	struct server *server = s->server;
	struct engine_session *engine;

	if (s->state != SESSION_CLOSING || s->handles > 0 || !list_empty(&s->comms)) {
		return;
	}
	if (!s->unmapping) {
		s->unmapping = true;
		s->returning++; /* keeps it until all are under way */
		handle_mem_teardown(s);
		handle_gpu_teardown(s);
		s->returning--;
	}
	if (s->returning > 0) {
		return;
	}
	if (s->engine && !server->o.jobs->stopped) {
		engine = take_ptr(s->engine);
		s->returning++;
		engine_session_remove(server->o.engine, engine, session_engine_gone, s);
		return;
	}
	list_remove(&s->link);
	session_free(s);
	server_session_gone(server);
}
