/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer, data connections: opening, proving, handing over
 *
 * The initiator opens one connection for each token that it got, to the address and from the
 * address of the link, so the data takes the path that was found to work. It sends a data hello and
 * waits for one byte; neither side sends anything else before that, so the sockets are handed over
 * with no byte read that is not ours. Plain sockets with uv_poll rather than uv_tcp, because libuv
 * does not give sockets back.
 *
 * Thread: control      Owns: sockets until events.stream() has them      Locks: none
 * See: peers_impl.h, PROTOCOL.md §7
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/peers_impl.h"
#include "proto/base.h"

struct peer_stream {
	struct list link; /* in peer.streams */
	struct peers *peers;
	struct peer *peer;
	uv_poll_t poll;
	int fd;
	unsigned int index;
	bool sent;
	uint8_t hello[DATA_HELLO_SIZE];
};

static void on_stream_closed(uv_handle_t *handle)
{
	struct peer_stream *s = handle->data;
	struct peers *peers = s->peers;

	OPENSSL_cleanse(s, sizeof(*s));
	free(s);
	peers_drop(peers);
}

/* Lets go of a stream; its socket too, unless taken out before. */
static void stream_free(struct peer_stream *s)
{
	list_remove(&s->link);
	uv_poll_stop(&s->poll);
	s->fd = base_close(s->fd);
	uv_close((uv_handle_t *)&s->poll, on_stream_closed);
}

/* Gives a proved connection to the owner. */
static void peer_hand_over(struct peer *peer, int fd, unsigned int index)
{
	peer->streams_ready++;
	peer->exposed = true;
	peer->peers->events.stream(peer->peers->arg, peer, fd, index);
	peer_check_up(peer);
}

static void stream_fail(struct peer_stream *s, int error)
{
	char cause[128];

	snprintf(cause, sizeof(cause), "data connection %u: %s", s->index,
		 error ? strerror(error) : "the other side refused it");
	peer_down(s->peer, STATUS_UNREACHABLE, cause, cause);
}

static void on_stream_readable(uv_poll_t *poll, int status, int events)
{
	struct peer_stream *s = poll->data;
	struct peer *peer = s->peer;
	unsigned int index = s->index;
	uint8_t ack = 0;
	ssize_t n;
	int fd;

	n = recv(s->fd, &ack, 1, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (n != 1 || ack != DATA_HELLO_ACK) {
		stream_fail(s, n < 0 ? errno : 0);
		return;
	}
	fd = take_fd(&s->fd);
	stream_free(s);
	peer_hand_over(peer, fd, index);
}

static void on_stream_connected(uv_poll_t *poll, int status, int events)
{
	struct peer_stream *s = poll->data;
	socklen_t size = sizeof(int);
	int error = 0;

	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) {
		error = errno;
	}
	if (error == 0 && !s->sent) {
		/* 64 bytes always fit into the buffer of a new connection. */
		ssize_t n = send(s->fd, s->hello, sizeof(s->hello), MSG_DONTWAIT | MSG_NOSIGNAL);

		error = n == sizeof(s->hello) ? 0 : n < 0 ? errno : EIO;
		s->sent = error == 0;
	}
	if (error != 0) {
		stream_fail(s, error);
		return;
	}
	uv_poll_start(&s->poll, UV_READABLE, on_stream_readable);
}

/* A socket that is connecting, from the link's local address. Return: it, or negative errno. */
static int stream_connect(const struct peer *peer)
{
	struct sockaddr_storage local = peer->local;
	cleanup_close int fd = -1;
	int one = 1;

	fd = socket(peer->remote.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return -errno;
	}
	address_set_port(&local, 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&local, address_length(&local)) < 0 ||
	    (connect(fd, (const struct sockaddr *)&peer->remote, address_length(&peer->remote)) <
		     0 &&
	     errno != EINPROGRESS)) {
		return -errno;
	}
	return take_fd(&fd);
}

static int stream_open(struct peer *peer, unsigned int index, const uint8_t *token)
{
	struct data_hello hello = {.index = (uint16_t)index};
	struct peer_stream *s;
	int r;

	s = calloc(1, sizeof(*s));
	if (!s) {
		return err_origin(-ENOMEM);
	}
	s->fd = stream_connect(peer);
	if (s->fd < 0) {
		r = s->fd;
		free(s);
		return err_origin(r);
	}
	r = uv_poll_init(peer->peers->loop, &s->poll, s->fd);
	if (r < 0) {
		base_close(s->fd);
		free(s);
		return err_origin(r);
	}
	memcpy(hello.host_id, peer->peers->host_id, sizeof(hello.host_id));
	memcpy(hello.token, token, DATA_HELLO_TOKEN);
	data_hello_encode(s->hello, &hello);
	OPENSSL_cleanse(&hello, sizeof(hello));
	s->peers = peer->peers;
	s->peer = peer;
	s->index = index;
	s->poll.data = s;
	list_append(&peer->streams, &s->link);
	peers_hold(peer->peers);
	uv_poll_start(&s->poll, UV_WRITABLE, on_stream_connected);
	return 0;
}

/**
 * peer_streams_open() - initiator: open the data connections that these tokens allow
 */
void peer_streams_open(struct peer *peer, const struct peer_tokens *tokens)
{
	char cause[128];
	int r;

	peer->nstreams = tokens->n;
	for (unsigned int i = 0; i < tokens->n; i++) {
		r = stream_open(peer, i, tokens->token[i]);
		if (r < 0) {
			snprintf(cause, sizeof(cause), "data connection %u: %s", i, strerror(-r));
			peer_down(peer, STATUS_UNREACHABLE, cause, cause);
			return;
		}
	}
	peer_check_up(peer);
}

/**
 * peer_streams_stop() - drop the connections that are under way
 */
void peer_streams_stop(struct peer *peer)
{
	struct list *first;

	while ((first = list_first(&peer->streams)) != NULL) {
		stream_free(container_of(first, struct peer_stream, link));
	}
}

/* See peers_impl.h. */
bool peers_stream_accept(struct peers *peers, const uint8_t *buf, int fd)
{
	const uint8_t ack = DATA_HELLO_ACK;
	struct data_hello hello;
	struct peer *peer;
	bool valid;
	int one = 1;

	if (data_hello_decode(buf, &hello) != 0) {
		return false;
	}
	peer = peers_find(peers, hello.host_id);
	valid = peer && peer->state == PEER_LINKED && !peer->initiator && peer->tokens &&
		hello.index < peer->tokens->n && !peer->token_used[hello.index] &&
		data_hello_token_equal(hello.token, peer->tokens->token[hello.index]);
	OPENSSL_cleanse(&hello.token, sizeof(hello.token));
	if (!valid) {
		return false;
	}
	peer->token_used[hello.index] = true;
	OPENSSL_cleanse(peer->tokens->token[hello.index], DATA_HELLO_TOKEN);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* If this is lost the connection is broken, which its next user finds out. */
	(void)!send(fd, &ack, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	peer_hand_over(peer, fd, hello.index);
	return true;
}
