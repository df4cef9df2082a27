/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TCP backend: streams, from the socket that comes to the socket that is closed
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include "transport/tcp.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEPALIVE_IDLE_S 5
#define KEEPALIVE_INTERVAL_S 2
#define KEEPALIVE_COUNT 3

static int set_int(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) < 0 ? -errno : 0;
}

/*
 * Only NODELAY is needed; a kernel that refuses one of the others serves as well. NOTSENT_LOWAT
 * keeps what is not on the wire yet in our queues, where short messages overtake it and a faster
 * stream can take it; the buffers themselves are left to the kernel's tuning.
 */
static int socket_options(const struct transport *t, int fd)
{
	const struct transport_options *o = &t->options;
	int domain = 0, r;
	socklen_t size = sizeof(domain);

	r = fcntl(fd, F_GETFL);
	if (r < 0 || fcntl(fd, F_SETFL, r | O_NONBLOCK) < 0) {
		return err_origin(-errno);
	}
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0) {
		return err_origin(-errno);
	}
	if (domain != AF_INET && domain != AF_INET6) {
		return 0;
	}
	r = set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (r < 0) {
		return err_trace(r);
	}
	if (set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1) == 0) {
		set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
		set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
		set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
	}
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)MIN(2 * (uint64_t)o->fragment, INT32_MAX));
	if (o->user_timeout_ms > 0) {
		set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)MIN(o->user_timeout_ms, INT32_MAX));
	}
	if (o->congestion[0]) {
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, o->congestion,
			   strnlen(o->congestion, sizeof(o->congestion)));
	}
	return 0;
}

/* The I/O thread with the fewest lanes. */
static struct tcp_io *io_least(const struct transport *t)
{
	struct tcp_io *least = NULL;

	for (unsigned int i = 0; i < t->io_count; i++) {
		if (!least || t->io[i]->used < least->used) {
			least = t->io[i];
		}
	}
	return least;
}

/* Gives the socket to an I/O thread. Return: 0, -ENOSPC if there is none or it is full, ... */
static int stream_lane(struct tcp_stream *s)
{
	struct transport *t = s->peer->transport;
	struct tcp_io *io = io_least(t);
	int r;

	if (!io) {
		return -ENOSPC;
	}
	r = tcp_io_add(io, s, s->fd, t->options.fragment, &s->lane);
	if (r == 0) {
		s->peer->lane_count++;
	}
	return err_trace(r);
}

/* Reads and writes the socket ourselves. */
static int stream_own(struct tcp_stream *s)
{
	struct transport *t = s->peer->transport;
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};

	s->buffer = aligned_alloc(TCP_ALIGN, TCP_BUFFER);
	if (!s->buffer) {
		return err_origin(-ENOMEM);
	}
	if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, s->fd, &event) < 0) {
		return err_origin(-errno);
	}
	s->events = EPOLLIN;
	list_append(&t->streams, &s->link);
	t->stream_count++;
	return 0;
}

/**
 * transport_peer_add_stream() - give a peer one more socket
 * @peer: borrowed
 * @fd:   connected stream socket; consumed on success
 * @bulk: an I/O thread may serve it, if there are any: for all but the first of a peer
 *
 * Return: 0, -ENOTCONN if the peer is lost, -ENOSPC if it has TCP_STREAMS_MAX streams, or negative
 * errno.
 */
int transport_peer_add_stream(struct transport_peer *peer, int fd, bool bulk)
{
	struct tcp_stream *s;
	int r;

	if (peer->state != TCP_PEER_OPEN) {
		return err_origin(-ENOTCONN);
	}
	if (peer->stream_count == TCP_STREAMS_MAX) {
		return err_origin(-ENOSPC);
	}
	r = socket_options(peer->transport, fd);
	if (r < 0) {
		return err_trace(r);
	}
	s = calloc(1, sizeof(*s));
	if (!s) {
		return err_origin(-ENOMEM);
	}
	s->peer = peer;
	s->fd = fd;
	s->index = peer->stream_count;
	list_init(&s->link);
	list_init(&s->ready);
	r = bulk ? stream_lane(s) : -ENOSPC;
	if (r == -ENOSPC) {
		r = stream_own(s);
	}
	if (r < 0) {
		free(s->buffer);
		free(s);
		return err_trace(r);
	}
	peer->streams[peer->stream_count++] = s;
	return 0;
}

/* Brings the epoll registration of a stream up to date. */
void tcp_stream_watch(struct tcp_stream *s)
{
	struct epoll_event event = {.data.ptr = s};

	event.events = (s->stalled ? 0u : (uint32_t)EPOLLIN) |
		       (tcp_stream_wants(s) ? (uint32_t)EPOLLOUT : 0u);
	if (s->fd < 0 || s->lane || event.events == s->events) {
		return;
	}
	s->peer->transport->stats.syscalls++;
	if (epoll_ctl(s->peer->transport->epoll, EPOLL_CTL_MOD, s->fd, &event) < 0) {
		tcp_peer_fail(s->peer, -errno, "cannot watch the connection");
		return;
	}
	s->events = event.events;
}

/* Takes a lane from its thread. What it has not sent is left to tcp_peer_cancel(). */
static void lane_close(struct tcp_stream *s)
{
	struct tcp_lane *lane = s->lane;
	uint32_t tail = atomic_load_explicit(&lane->tail, memory_order_relaxed);
	struct transport_send *sends[TCP_LANE_OUT];
	uint32_t n = 0;

	for (uint32_t i = lane->reaped; i != tail; i++) {
		sends[n++] = lane->out[i % TCP_LANE_OUT].send;
	}
	s->lane = tcp_io_remove(lane);
	s->peer->lane_count--;
	for (uint32_t i = 0; i < n; i++) {
		if (list_empty(&sends[i]->link)) {
			list_append(&s->peer->urgent, &sends[i]->link);
		}
	}
}

void tcp_stream_close(struct tcp_stream *s)
{
	if (s->fd < 0) {
		return;
	}
	if (s->lane) {
		lane_close(s);
	} else {
		/* Closing takes it out of the epoll set: nobody else holds the file. */
		epoll_ctl(s->peer->transport->epoll, EPOLL_CTL_DEL, s->fd, NULL);
		s->peer->transport->stream_count--;
	}
	s->fd = base_close(s->fd);
	list_remove(&s->link);
	list_remove(&s->ready);
	s->recv = NULL;
	s->slot = NULL;
	s->start = s->end = 0;
}
