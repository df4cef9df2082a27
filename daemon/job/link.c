/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Link: TLS over libuv
 *
 * Everything that arrives is decrypted at once; everything that is sent is encrypted at once and
 * then waits in libuv's write queue. A link ends in one of two ways: end() when something happened
 * (tells the owner once), or link_close() by the owner (tells nobody). Both may linger for a moment
 * so that a last message (an alert, a Goodbye) is delivered: the sending direction is shut, what
 * still arrives is read and dropped, since closing a socket with unread bytes would reset it.
 *
 * Thread: control      Owns: socket, TLS, decoder      Locks: none      See: PROTOCOL.md §7
 */
#include "job/link.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "proto/hello.h"

#define LINGER_MS 500

struct link {
	struct link_host *host;
	const struct link_events *events; /* NULL: closing */
	void *arg;
	uv_tcp_t tcp;
	uv_timer_t timer; /* reports `error` from the loop; bounds lingering */
	uv_connect_t connect;
	uv_shutdown_t shutdown;
	unsigned int handles; /* that the loop has not let go of */
	bool connected, eof, hello_sent, hello_done;
	int error; /* found while no event may be called */
	struct tls *tls;
	uint8_t hello[HELLO_SIZE];
	size_t hello_have;
	struct frame_decoder decoder;
	uint64_t heard;
};

/* One piece of ciphertext on its way. */
struct link_write {
	uv_write_t req;
	struct link *link;
	uint8_t data[];
};

static void link_end(struct link *link, enum status status, const char *cause);

static void on_handle_closed(uv_handle_t *handle)
{
	struct link *link = handle->data;
	struct link_host *host = link->host;

	if (--link->handles > 0) {
		return;
	}
	tls_free(link->tls);
	frame_decoder_deinit(&link->decoder);
	free(link);
	host->gone(host);
}

/* Lets go of the socket at once. */
static void link_destroy(struct link *link)
{
	link->events = NULL;
	if (!uv_is_closing((uv_handle_t *)&link->tcp)) {
		uv_close((uv_handle_t *)&link->tcp, on_handle_closed);
		uv_close((uv_handle_t *)&link->timer, on_handle_closed);
	}
}

static void on_timer(uv_timer_t *timer)
{
	struct link *link = timer->data;

	if (link->events) {
		link_end(link, link->hello_done ? STATUS_PEER_DIED : STATUS_UNREACHABLE,
			 uv_strerror(link->error));
	} else {
		link_destroy(link);
	}
}

/* Remembers an error that was found inside a call of the owner, who is told from the loop. */
static void link_fail_later(struct link *link, int error)
{
	if (link->error == 0) {
		link->error = error;
		uv_timer_start(&link->timer, on_timer, 0, 0);
	}
}

static void on_write(uv_write_t *req, int r)
{
	struct link_write *write = container_of(req, struct link_write, req);
	struct link *link = write->link;

	free(write);
	if (r < 0 && r != UV_ECANCELED && link->events) {
		link_end(link, STATUS_PEER_DIED, uv_strerror(r));
	}
}

/* Hands what TLS has for the network to libuv. Calls no event. */
static int link_flush(struct link *link)
{
	size_t size = tls_pending(link->tls);
	struct link_write *write;
	uv_buf_t buf;
	int r;

	if (size == 0) {
		return 0;
	}
	write = malloc(sizeof(*write) + size);
	if (!write) {
		return err_origin(-ENOMEM);
	}
	write->link = link;
	size = tls_output(link->tls, write->data, size);
	buf = uv_buf_init((char *)write->data, (unsigned int)size);
	r = uv_write(&write->req, (uv_stream_t *)&link->tcp, &buf, 1, on_write);
	if (r < 0) {
		free(write);
	}
	return r;
}

static void on_shutdown(uv_shutdown_t *req, int r)
{
	struct link *link = container_of(req, struct link, shutdown);

	if (r < 0) {
		link_destroy(link);
	}
}

/* The end without an event: at once, or when the last bytes are out and the other side agrees. */
static void link_linger(struct link *link, bool flush)
{
	link->events = NULL;
	if (uv_is_closing((uv_handle_t *)&link->tcp)) {
		return;
	}
	if (!flush || !link->connected || link->eof) {
		link_destroy(link);
		return;
	}
	tls_shutdown(link->tls);
	if (link_flush(link) < 0 ||
	    uv_shutdown(&link->shutdown, (uv_stream_t *)&link->tcp, on_shutdown) < 0) {
		link_destroy(link);
		return;
	}
	uv_timer_start(&link->timer, on_timer, LINGER_MS, 0);
}

/* The end with an event. */
static void link_end(struct link *link, enum status status, const char *cause)
{
	const struct link_events *events = link->events;
	void *arg = link->arg;

	if (events) {
		link_linger(link, true);
		events->closed(arg, link, status, cause);
	}
}

/* Sends our hello as soon as TLS allows. */
static int link_send_hello(struct link *link)
{
	const struct hello ours = {.min = PROTOCOL_PEER_VERSION_MIN,
				   .max = PROTOCOL_PEER_VERSION_MAX};
	uint8_t hello[HELLO_SIZE];

	if (link->hello_sent || !tls_is_ready(link->tls)) {
		return 0;
	}
	link->hello_sent = true;
	hello_encode(hello, HELLO_MAGIC_PEER, &ours);
	if (tls_write(link->tls, hello, sizeof(hello)) != 0) {
		return -EPIPE;
	}
	return link_flush(link);
}

/* Takes the bytes of the other side's hello. Return: how many were used. */
static size_t link_take_hello(struct link *link, const uint8_t *data, size_t size)
{
	const struct hello ours = {.min = PROTOCOL_PEER_VERSION_MIN,
				   .max = PROTOCOL_PEER_VERSION_MAX};
	size_t n = MIN(size, HELLO_SIZE - link->hello_have);
	struct hello theirs;
	uint16_t version;
	char cause[160];
	int r;

	memcpy(link->hello + link->hello_have, data, n);
	link->hello_have += n;
	if (link->hello_have < HELLO_SIZE) {
		return n;
	}
	r = hello_decode(link->hello, HELLO_MAGIC_PEER, &ours, &theirs, &version);
	if (r == HELLO_E_MAGIC) {
		link_end(link, STATUS_PROTOCOL, "what answers is not a rocecomm daemon");
	} else if (r == HELLO_E_VERSION) {
		snprintf(
			cause, sizeof(cause),
			"the daemon there speaks peer protocol %u to %u, this one %u to %u: update "
			"the older one",
			theirs.min, theirs.max, ours.min, ours.max);
		link_end(link, STATUS_VERSION, cause);
	} else {
		link->hello_done = true;
		link->events->ready(link->arg, link);
	}
	return n;
}

/* Decrypted bytes: the hello, then frames. */
static void link_take_plain(struct link *link, const uint8_t *data, size_t size)
{
	struct frame *frame;
	size_t used;
	int r;

	if (!link->hello_done) {
		used = link_take_hello(link, data, size);
		data += used;
		size -= used;
	}
	while (link->events && size > 0) {
		r = frame_decode(&link->decoder, data, size, &used, &frame);
		data += used;
		size -= used;
		if (r == 0 && frame->nfds == 0) {
			link->events->frame(link->arg, link, frame);
		} else if (r < 0) {
			link_end(link, STATUS_NO_MEMORY, "no memory for a message");
		} else if (r == FRAME_E_TOO_BIG) {
			link_end(link, STATUS_PROTOCOL, "a message from there is too long");
		} else if (r != FRAME_E_MORE) {
			link_end(link, STATUS_PROTOCOL, "a message from there is damaged");
		}
	}
}

static void link_tls_failed(struct link *link, int r)
{
	char cause[256];

	if (r == TLS_E_KEY) {
		link_end(link, STATUS_PERMISSION,
			 "the other host has another cluster key: copy the same key file to all "
			 "hosts");
	} else if (r == TLS_E_CLOSED) {
		link_end(link, STATUS_PEER_DIED, "the other side closed the connection");
	} else {
		snprintf(cause, sizeof(cause), "what is there speaks no TLS 1.3 with a key (%s)",
			 tls_error(link->tls));
		link_end(link, STATUS_PROTOCOL, cause);
	}
}

/* Moves TLS on as far as the bytes that are here allow. */
static void link_pump(struct link *link)
{
	uint8_t *plain = link->host->plain;
	size_t n;
	int r;

	while (link->events) {
		r = tls_read(link->tls, plain, LINK_BUFFER, &n);
		if (link_flush(link) < 0 || link_send_hello(link) < 0) {
			link_end(link, STATUS_NO_MEMORY, "no memory to send");
			return;
		}
		if (r == TLS_E_MORE) {
			return;
		}
		if (r != 0) {
			link_tls_failed(link, r);
			return;
		}
		link_take_plain(link, plain, n);
	}
}

static void on_alloc(uv_handle_t *handle, size_t hint, uv_buf_t *ret)
{
	struct link *link = handle->data;

	*ret = uv_buf_init((char *)link->host->cipher, LINK_BUFFER);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct link *link = stream->data;

	if (!link->events) { /* lingering: only the end is of interest */
		if (n < 0) {
			link_destroy(link);
		}
		return;
	}
	link->eof = n < 0;
	if (n == UV_EOF) {
		link_end(link, STATUS_PEER_DIED, "the other side closed the connection");
	} else if (n < 0) {
		link_end(link, STATUS_PEER_DIED, uv_strerror((int)n));
	} else if (n > 0) {
		link->heard = uv_now(link->host->loop);
		if (tls_input(link->tls, buf->base, (size_t)n) < 0) {
			link_end(link, STATUS_NO_MEMORY, "no memory to receive");
			return;
		}
		link_pump(link);
	}
}

static int link_start(struct link *link)
{
	link->connected = true;
	link->heard = uv_now(link->host->loop);
	uv_tcp_nodelay(&link->tcp, 1);
	return uv_read_start((uv_stream_t *)&link->tcp, on_alloc, on_read);
}

static void on_connect(uv_connect_t *req, int r)
{
	struct link *link = container_of(req, struct link, connect);

	if (!link->events) {
		return;
	}
	if (r == 0) {
		r = link_start(link);
	}
	if (r < 0) {
		link_end(link, STATUS_UNREACHABLE, uv_strerror(r));
		return;
	}
	link_pump(link); /* begins the handshake */
}

static int link_new(struct link_host *host, bool server, const struct link_events *events,
		    void *arg, struct link **ret)
{
	struct link *link = calloc(1, sizeof(*link));
	int r;

	if (!link) {
		return err_origin(-ENOMEM);
	}
	r = tls_new(host->tls, server, &link->tls);
	if (r < 0) {
		free(link);
		return err_trace(r);
	}
	link->host = host;
	link->events = events;
	link->arg = arg;
	link->heard = uv_now(host->loop);
	frame_decoder_init(&link->decoder);
	link->decoder.max_body = LINK_BODY_MAX_FIRST;
	uv_tcp_init(host->loop, &link->tcp);
	uv_timer_init(host->loop, &link->timer);
	link->tcp.data = link;
	link->timer.data = link;
	link->handles = 2;
	host->opened(host);
	*ret = link;
	return 0;
}

/* See link.h. */
int link_new_connect(struct link_host *host, const struct sockaddr_storage *address,
		     const struct link_events *events, void *arg, struct link **ret)
{
	struct link *link = NULL; /* gcc 14 cannot see that link_new() sets it */
	int r;

	r = link_new(host, false, events, arg, &link);
	if (r < 0) {
		return err_trace(r);
	}
	r = uv_tcp_connect(&link->connect, &link->tcp, (const struct sockaddr *)address,
			   on_connect);
	if (r < 0) {
		link_fail_later(link, r);
	}
	*ret = link;
	return 0;
}

/* See link.h. */
int link_new_accepted(struct link_host *host, int fd, const struct link_events *events, void *arg,
		      struct link **ret)
{
	struct link *link = NULL; /* gcc 14 cannot see that link_new() sets it */
	int r;

	r = link_new(host, true, events, arg, &link);
	if (r < 0) {
		return err_trace(r);
	}
	r = uv_tcp_open(&link->tcp, fd);
	if (r < 0) {
		link_destroy(link);
		return err_origin(r);
	}
	r = link_start(link);
	if (r < 0) {
		link_fail_later(link, r);
	}
	*ret = link;
	return 0;
}

/* See link.h. */
void link_set_events(struct link *link, const struct link_events *events, void *arg)
{
	if (link->events) {
		link->events = events;
		link->arg = arg;
	}
}

/* See link.h. */
void link_trust(struct link *link)
{
	link->decoder.max_body = LIMIT_PEER_BODY;
}

/* See link.h. */
int link_send_frame(struct link *link, const uint8_t *frame, size_t size)
{
	int r;

	if (!link->events || !link->hello_done || link->error != 0) {
		return -EPIPE;
	}
	if (uv_stream_get_write_queue_size((uv_stream_t *)&link->tcp) + size > LINK_QUEUE_MAX) {
		link_fail_later(link, -ENOBUFS);
		return err_origin(-ENOBUFS);
	}
	if (tls_write(link->tls, frame, size) != 0) {
		link_fail_later(link, -EPIPE);
		return err_origin(-EPIPE);
	}
	r = link_flush(link);
	if (r < 0) {
		link_fail_later(link, r);
	}
	return err_trace(r);
}

/* See link.h. */
int link_send(struct link *link, uint16_t type, const ProtobufCMessage *msg)
{
	uint8_t *frame = NULL;
	size_t size;
	int r;

	r = frame_pack_limit(type, 0, 0, msg, LIMIT_PEER_BODY, &frame, &size);
	if (r != 0) {
		return r == FRAME_E_TOO_BIG ? -EMSGSIZE : err_trace(r);
	}
	r = link_send_frame(link, frame, size);
	free(frame);
	return r;
}

/* See link.h. */
struct link *link_close(struct link *link, bool flush)
{
	if (link && link->events) {
		link_linger(link, flush);
	}
	return NULL;
}

/* See link.h. */
uint64_t link_heard(const struct link *link)
{
	return link->heard;
}

/* See link.h. */
void link_get_addresses(const struct link *link, struct sockaddr_storage *ret_local,
			struct sockaddr_storage *ret_remote)
{
	int size;

	memset(ret_local, 0, sizeof(*ret_local));
	memset(ret_remote, 0, sizeof(*ret_remote));
	size = sizeof(*ret_local);
	uv_tcp_getsockname(&link->tcp, (struct sockaddr *)ret_local, &size);
	size = sizeof(*ret_remote);
	uv_tcp_getpeername(&link->tcp, (struct sockaddr *)ret_remote, &size);
}
