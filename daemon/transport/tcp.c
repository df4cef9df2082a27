/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TCP backend: contexts, peers and the poll loop
 *
 * With a few streams transport_poll() just tries to read each of them, since a read that finds
 * nothing costs what epoll_wait() costs; with many it asks epoll. The epoll set is level triggered
 * and always complete, so that its descriptor can be slept on after transport_arm().
 *
 * A peer fails in two steps. tcp_peer_fail() may be called anywhere: it shuts the sockets down,
 * which also keeps the epoll descriptor readable. The next transport_poll() completes the sends
 * and tells peer_down, so that this never happens inside a caller's transport_send().
 *
 * Thread: the progress thread that owns the context      Owns: peers, streams and their sockets
 * Locks: none
 */
#include "transport/tcp.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 64

/* Closes the streams and completes the sends; calls out. */
static void peer_close(struct transport_peer *peer, int status)
{
	peer->state = TCP_PEER_DEAD;
	list_remove(&peer->failed);
	list_remove(&peer->sending);
	list_remove(&peer->fresh);
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		tcp_stream_close(peer->streams[i]);
	}
	tcp_peer_cancel(peer, status);
}

static void peer_destroy(struct transport_peer *peer)
{
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		free(peer->streams[i]->buffer);
		free(peer->streams[i]);
	}
	free(peer->slots);
	free(peer);
}

void tcp_enter(struct transport *t)
{
	t->depth++;
}

void tcp_leave(struct transport *t)
{
	struct list *l;

	if (--t->depth > 0) {
		return;
	}
	while ((l = list_first(&t->garbage))) {
		list_remove(l);
		peer_destroy(container_of(l, struct transport_peer, link));
	}
}

/**
 * tcp_peer_fail() - note that a peer is lost
 * @peer:   borrowed; only the first failure counts
 * @error:  negative errno
 * @reason: static text
 *
 * Calls nothing back; the next transport_poll() does.
 */
void tcp_peer_fail(struct transport_peer *peer, int error, const char *reason)
{
	if (peer->state != TCP_PEER_OPEN) {
		return;
	}
	peer->state = TCP_PEER_FAILED;
	peer->error = error;
	peer->reason = reason;
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		shutdown(peer->streams[i]->fd, SHUT_RDWR);
	}
	list_append(&peer->transport->failed, &peer->failed);
}

void tcp_peer_broke(struct transport_peer *peer, int error, const char *reason)
{
	tcp_peer_fail(peer, -error, error == ECONNRESET ? "connection reset by the peer" : reason);
}

static void tell_failed(struct transport *t)
{
	struct list *l;

	while ((l = list_first(&t->failed))) {
		struct transport_peer *peer = container_of(l, struct transport_peer, failed);

		peer_close(peer, peer->error);
		if (!peer->freed) {
			t->handler.peer_down(t->arg, peer, peer->error, peer->reason);
		}
	}
}

static int io_start(struct transport *t)
{
	int r;

	while (t->io_count < t->options.io_threads) {
		r = tcp_io_new(&t->bell, t->options.io_spin_us, t->io_count, &t->io[t->io_count]);
		if (r < 0) {
			return err_trace(r);
		}
		t->io_count++;
	}
	return 0;
}

/**
 * transport_new() - make a context
 * @options: borrowed; `fragment` 0 means 256 KiB
 * @handler: copied
 * @arg:     for the handler
 * @ret:     new context, set on success only
 *
 * Return: 0, or negative errno.
 */
int transport_new(const struct transport_options *options, const struct transport_handler *handler,
		  void *arg, struct transport **ret)
{
	struct epoll_event bell = {.events = EPOLLIN};
	struct transport *t;
	int r;

	if (options->fragment % TCP_ALIGN != 0 || options->io_threads > TCP_IO_MAX) {
		return err_origin(-EINVAL);
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		return err_origin(-ENOMEM);
	}
	t->options = *options;
	if (t->options.fragment == 0) {
		t->options.fragment = 256 * 1024;
	}
	t->handler = *handler;
	t->arg = arg;
	list_init(&t->peers);
	list_init(&t->streams);
	list_init(&t->sending);
	list_init(&t->fresh);
	list_init(&t->failed);
	list_init(&t->ready);
	list_init(&t->garbage);
	t->bell.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (t->epoll < 0 || t->bell.fd < 0 ||
	    epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->bell.fd, &bell) < 0) {
		r = -errno;
		transport_free(t);
		return err_origin(r);
	}
	r = io_start(t);
	if (r < 0) {
		transport_free(t);
		return err_trace(r);
	}
	t->scratch = aligned_alloc(TCP_ALIGN, t->options.fragment + TCP_ALIGN);
	if (!t->scratch) {
		transport_free(t);
		return err_origin(-ENOMEM);
	}
	*ret = t;
	return 0;
}

/**
 * transport_free() - close all peers and free the context
 * @t: consumed; NULL allowed; not from inside a callback
 *
 * Return: NULL
 */
struct transport *transport_free(struct transport *t)
{
	struct list *l;

	if (!t) {
		return NULL;
	}
	assert(t->depth == 0);
	while ((l = list_first(&t->peers))) {
		transport_peer_free(container_of(l, struct transport_peer, link));
	}
	while (t->io_count > 0) {
		tcp_io_free(t->io[--t->io_count]);
	}
	base_close(t->epoll);
	base_close(t->bell.fd);
	free(t->scratch);
	free(t);
	return NULL;
}

/**
 * transport_peer_new() - make a peer without streams
 * @t:    borrowed by the peer
 * @user: for transport_peer_user()
 * @ret:  new peer, set on success only
 *
 * Return: 0, or -ENOMEM.
 */
int transport_peer_new(struct transport *t, void *user, struct transport_peer **ret)
{
	struct transport_peer *peer = calloc(1, sizeof(*peer));

	if (!peer) {
		return err_origin(-ENOMEM);
	}
	/* Half a megabyte that costs nothing until many receives are open at once. */
	peer->slots = calloc(TCP_SLOTS, sizeof(*peer->slots));
	if (!peer->slots) {
		free(peer);
		return err_origin(-ENOMEM);
	}
	peer->transport = t;
	peer->user = user;
	list_init(&peer->sending);
	list_init(&peer->fresh);
	list_init(&peer->failed);
	list_init(&peer->urgent);
	tcp_queue_init(&peer->small);
	tcp_queue_init(&peer->bulk);
	list_append(&t->peers, &peer->link);
	*ret = peer;
	return 0;
}

void *transport_peer_user(const struct transport_peer *peer)
{
	return peer->user;
}

/**
 * transport_peer_free() - close a peer
 * @peer: consumed; NULL allowed; also from inside any callback
 *
 * Sends that are not complete complete with -ECANCELED before this returns.
 *
 * Return: NULL
 */
struct transport_peer *transport_peer_free(struct transport_peer *peer)
{
	struct transport *t;

	if (!peer) {
		return NULL;
	}
	assert(!peer->freed);
	t = peer->transport;
	tcp_enter(t);
	peer->freed = true;
	list_remove(&peer->link);
	list_append(&t->garbage, &peer->link);
	if (peer->state != TCP_PEER_DEAD) {
		peer_close(peer, -ECANCELED);
	}
	tcp_leave(t);
	return NULL;
}

static void poll_direct(struct transport *t)
{
	struct tcp_stream *streams[TCP_DIRECT];
	uint32_t n = 0;

	/* Callbacks may add and remove streams; their memory stays until tcp_leave(). */
	list_for_each (l, &t->streams) {
		streams[n++] = container_of(l, struct tcp_stream, link);
		streams[n - 1]->blocked = false;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (streams[i]->fd >= 0) {
			tcp_stream_receive(streams[i]);
		}
	}
	tcp_flush_sending(t);
}

static void poll_epoll(struct transport *t)
{
	struct epoll_event events[EVENTS];
	int n;

	n = epoll_wait(t->epoll, events, EVENTS, 0);
	t->stats.syscalls++;
	for (int i = 0; i < n; i++) {
		struct tcp_stream *s = events[i].data.ptr;

		if (!s || s->fd < 0) { /* NULL: the bell */
			continue;
		}
		if (events[i].events & EPOLLOUT) {
			s->blocked = false;
		}
		if (events[i].events & ~(uint32_t)EPOLLOUT) {
			tcp_stream_receive(s);
		}
	}
	tcp_flush_sending(t);
	for (int i = 0; i < n; i++) {
		struct tcp_stream *s = events[i].data.ptr;

		if (s && s->fd >= 0 && (events[i].events & EPOLLOUT)) {
			tcp_stream_watch(s);
		}
	}
}

/* The sleep that transport_arm() announced is over. */
static void wake(struct transport *t)
{
	uint64_t count;

	if (atomic_load_explicit(&t->bell.asleep, memory_order_relaxed)) {
		atomic_store_explicit(&t->bell.asleep, false, memory_order_relaxed);
		(void)!read(t->bell.fd, &count, sizeof(count));
		t->stats.syscalls++;
	}
}

/**
 * transport_poll() - move what can be moved
 * @t: borrowed; not from inside a callback
 *
 * Return: how many system calls moved bytes.
 */
int transport_poll(struct transport *t)
{
	struct list *l;

	assert(!t->polling);
	tcp_enter(t);
	t->polling = true;
	t->moved = 0;
	wake(t);
	tell_failed(t);
	tcp_lanes_poll(t);
	if (t->stream_count <= TCP_DIRECT) {
		poll_direct(t);
	} else {
		poll_epoll(t);
	}
	/* Streams whose slot came free. Only buffered bytes are looked at: this ends. */
	while ((l = list_first(&t->ready))) {
		struct tcp_stream *s = container_of(l, struct tcp_stream, ready);

		list_remove(l);
		if (s->lane) {
			tcp_lane_poll(s->lane);
		} else {
			tcp_stream_parse(s);
		}
	}
	tcp_flush_fresh(t);
	tell_failed(t);
	t->polling = false;
	tcp_leave(t);
	return t->moved;
}

int transport_fd(const struct transport *t)
{
	return t->epoll;
}

/**
 * transport_arm() - prepare transport_fd() for sleeping
 * @t: borrowed
 *
 * Call it after the last transport_poll() and transport_send() before the sleep.
 *
 * Return: false if an I/O thread has news: poll instead of sleeping.
 */
bool transport_arm(struct transport *t)
{
	list_for_each (l, &t->streams) {
		tcp_stream_watch(container_of(l, struct tcp_stream, link));
	}
	if (t->io_count == 0) {
		return true;
	}
	/* seq_cst: an I/O thread that tells something sees this and rings, or we see its news */
	atomic_store_explicit(&t->bell.asleep, true, memory_order_seq_cst);
	for (unsigned int i = 0; i < t->io_count; i++) {
		if (tcp_io_has_news(t->io[i])) {
			return false;
		}
	}
	return true;
}

void transport_forget(struct transport *t, const struct comm_view *account)
{
	if (t->served == account) {
		t->served = NULL;
		t->served_others = true;
	}
}

void transport_get_stats(const struct transport *t, struct transport_stats *ret)
{
	*ret = t->stats;
}

void transport_peer_bytes(const struct transport_peer *peer, uint64_t *ret_sent,
			  uint64_t *ret_received)
{
	*ret_sent = peer->bytes_sent;
	*ret_received = peer->bytes_received;
}
