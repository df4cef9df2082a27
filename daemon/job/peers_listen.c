/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers, listening: accepted connections until it is known whose they are
 *
 * The first byte tells what a connection is: TLS (a link), or the magic of a data connection. Until
 * it has proved itself it is an `incoming`: at most PEERS_MAX_INCOMING of them, each for at most
 * PEERS_INCOMING_MS. When there are too many, listening pauses (the kernel's queue holds the rest,
 * so a thousand hosts may connect at once), and the oldest goes after PEERS_EVICT_MS, so silent
 * connections cannot keep others out. A bad connection loses only itself.
 *
 * Thread: control      Owns: listening sockets, incoming connections      Locks: none
 * See: peers_impl.h, PROTOCOL.md §7
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/peers_impl.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

#define ACCEPT_BATCH 16
#define LISTEN_BACKLOG 16384 /* the kernel cuts it to net.core.somaxconn */
#define LISTEN_RETRY_MS 100
#define PORT_TRIES 16 /* when any port will do */

struct incoming {
	struct list link;
	struct peers *peers;
	uv_poll_t poll; /* until the link has the socket */
	uv_timer_t timer;
	unsigned int handles;
	int fd;
	struct link *tls;
	struct sockaddr_storage remote;
	uint64_t since;
	uint8_t hello[DATA_HELLO_SIZE];
	size_t have;
};

static void on_incoming_closed(uv_handle_t *handle)
{
	struct incoming *in = handle->data;
	struct peers *peers = in->peers;

	if (--in->handles == 0) {
		free(in);
		peers_drop(peers);
	}
}

static void incoming_stop_poll(struct incoming *in)
{
	if (!uv_is_closing((uv_handle_t *)&in->poll)) {
		uv_poll_stop(&in->poll);
		uv_close((uv_handle_t *)&in->poll, on_incoming_closed);
	}
}

static void listen_resume(struct peers *peers);

/* Ends an incoming connection; its link or socket too, unless taken out before. */
static void incoming_free(struct incoming *in, bool flush)
{
	list_remove(&in->link);
	in->peers->nincoming--;
	if (in->peers->full) {
		listen_resume(in->peers);
	}
	incoming_stop_poll(in);
	in->fd = base_close(in->fd);
	in->tls = link_close(in->tls, flush);
	uv_close((uv_handle_t *)&in->timer, on_incoming_closed);
}

static attr_printf(2, 3) void incoming_warn(struct incoming *in, const char *fmt, ...)
{
	char address[ADDRESS_TEXT], text[PEER_REASON];
	va_list args;

	if (in->peers->stopped || !log_rate(&in->peers->warned, 1000)) {
		return;
	}
	address_format(&in->remote, true, address, sizeof(address));
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	log_warn("connection from %s refused: %s", address, text);
}

/* Kept for ranks of this host that wait for the one that did not get in. */
static void incoming_note(struct incoming *in, const char *cause)
{
	struct peers *peers = in->peers;
	struct peers_refusal *refusal = &peers->refusal;

	peers->refused = in->remote;
	refusal->at = uv_now(peers->loop);
	address_format(&in->remote, false, refusal->address, sizeof(refusal->address));
	snprintf(refusal->cause, sizeof(refusal->cause), "%s", cause);
}

static void on_incoming_timeout(uv_timer_t *timer)
{
	struct incoming *in = timer->data;

	incoming_warn(in, "it did not say who it is within %d ms", PEERS_INCOMING_MS);
	incoming_free(in, false);
}

/* Tells the other side why, in a Goodbye, and ends the connection. */
static void incoming_refuse(struct incoming *in, const char *reason)
{
	incoming_warn(in, "%s", reason);
	incoming_note(in, reason);
	peer_goodbye(in->tls, reason);
	incoming_free(in, true);
}

/* The link shows a host that may link with us: give it to the peer. See peers_impl.h. */
static void incoming_identified(struct incoming *in, struct peer_hello *hello)
{
	struct peers *peers = in->peers;
	struct peer *peer = peers_find(peers, hello->host_id);
	struct link *tls = take_ptr(in->tls);

	if (address_equal(&in->remote, &peers->refused)) {
		peers->refused.ss_family = 0; /* mended */
	}
	incoming_free(in, false);
	if (hello->msg->visit) {
		peer_visited(peers, tls, hello);
		return;
	}
	if (!peer) {
		if (peer_new(peers, &peer) < 0) {
			link_close(tls, false);
			return;
		}
		if (peer_identify(peer, hello->host_id, hello->name) < 0) {
			link_close(tls, false);
			peer_down(peer, STATUS_NO_MEMORY, "no memory", NULL);
			return;
		}
	}
	if (peer->state == PEER_CONNECTING &&
	    (!peer->winner || memcmp(hello->host_id, peers->host_id, PEER_HOST_ID) < 0)) {
		peer_identify(peer, hello->host_id, hello->name);
		peer_adopt(peer, tls, false);
	} else {
		peer_park(peer, tls, hello);
	}
}

static void incoming_hello(struct incoming *in, const struct frame *frame)
{
	struct peers *peers = in->peers;
	char differs[PEER_REASON / 2], reason[PEER_REASON];
	struct peer_hello hello;

	if (peer_hello_parse(frame->body, frame->length, &hello) != 0) {
		incoming_refuse(in, "its first message is damaged");
		return;
	}
	if (memcmp(hello.host_id, peers->host_id, PEER_HOST_ID) == 0) {
		incoming_free(in, false); /* ourselves; the connecting side knows as well */
	} else if (peer_hello_differs(&hello, peers->settings, peers->nsettings, differs,
				      sizeof(differs))) {
		snprintf(reason, sizeof(reason),
			 "host %s and host %s must have the same settings, but %s", hello.name,
			 peers->name, differs);
		incoming_refuse(in, reason);
	} else {
		incoming_identified(in, &hello);
	}
	peer_hello_deinit(&hello);
}

static void on_incoming_ready(void *arg, struct link *link)
{
	struct incoming *in = arg;

	link_send_frame(link, in->peers->hello, in->peers->hello_size);
}

static void on_incoming_frame(void *arg, struct link *link, const struct frame *frame)
{
	struct incoming *in = arg;
	char reason[PEER_REASON];

	if (frame->type == PEER_MSG_LINK_HELLO) {
		incoming_hello(in, frame);
	} else if (frame->type == PEER_MSG_GOODBYE &&
		   peer_goodbye_parse(frame->body, frame->length, reason) == 0) {
		incoming_warn(in, "by the other side: %s", reason);
		incoming_note(in, reason);
		incoming_free(in, false);
	} else {
		incoming_refuse(in, "its first message does not say who it is");
	}
}

static void on_incoming_end(void *arg, struct link *link, enum status status, const char *cause)
{
	struct incoming *in = arg;

	in->tls = NULL;
	if (status != STATUS_PEER_DIED) { /* those are the losers of a race between addresses */
		incoming_warn(in, "%s", cause);
	}
	/* Not what any scanner of ports leaves behind. */
	if (status == STATUS_PERMISSION || status == STATUS_VERSION) {
		incoming_note(in, cause);
	}
	incoming_free(in, false);
}

static const struct link_events incoming_events = {
	.ready = on_incoming_ready,
	.frame = on_incoming_frame,
	.closed = on_incoming_end,
};

/* The first byte says TLS. */
static void incoming_start_tls(struct incoming *in)
{
	struct peers *peers = in->peers;

	incoming_stop_poll(in);
	if (peers_tls(peers) < 0 ||
	    link_new_accepted(&peers->link_host, in->fd, &incoming_events, in, &in->tls) < 0) {
		incoming_warn(in, "no memory");
		incoming_free(in, false);
		return;
	}
	in->fd = -1;
}

/* The first byte says data connection. Reads its hello and not one byte more. */
static void incoming_read_data(struct incoming *in)
{
	ssize_t n = recv(in->fd, in->hello + in->have, DATA_HELLO_SIZE - in->have, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (n <= 0) {
		incoming_free(in, false);
		return;
	}
	in->have += (size_t)n;
	if (in->have < DATA_HELLO_SIZE) {
		return;
	}
	incoming_stop_poll(in);
	if (peers_stream_accept(in->peers, in->hello, in->fd)) {
		in->fd = -1;
	} else {
		incoming_warn(in, "its token as a data connection is not valid");
	}
	incoming_free(in, false);
}

static void on_incoming_readable(uv_poll_t *poll, int status, int events)
{
	struct incoming *in = poll->data;
	uint8_t first;
	ssize_t n;

	if (in->have > 0) {
		incoming_read_data(in);
		return;
	}
	n = recv(in->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (n == 1 && first == TLS_FIRST_BYTE) {
		incoming_start_tls(in);
	} else if (n == 1 && first == (uint8_t)DATA_HELLO_MAGIC[0]) {
		incoming_read_data(in);
	} else {
		if (n == 1) {
			incoming_warn(in, "it speaks neither TLS nor the data protocol");
		}
		incoming_free(in, false);
	}
}

/* @fd: consumed */
static void incoming_new(struct peers *peers, int fd, const struct sockaddr_storage *remote)
{
	struct incoming *in;

	if (!peers->has_key && !address_is_loopback(remote)) {
		close(fd); /* cannot happen: we listen on loopback only */
		return;
	}
	in = calloc(1, sizeof(*in));
	if (!in || uv_poll_init(peers->loop, &in->poll, fd) < 0) {
		free(in);
		close(fd);
		return;
	}
	in->peers = peers;
	in->fd = fd;
	in->remote = *remote;
	in->since = uv_now(peers->loop);
	in->poll.data = in;
	in->timer.data = in;
	in->handles = 2;
	uv_timer_init(peers->loop, &in->timer);
	uv_timer_start(&in->timer, on_incoming_timeout, PEERS_INCOMING_MS, 0);
	uv_poll_start(&in->poll, UV_READABLE, on_incoming_readable);
	list_append(&peers->incoming, &in->link);
	peers->nincoming++;
	peers_hold(peers);
}

static void on_accept(uv_poll_t *poll, int status, int events);

static void on_listen_timer(uv_timer_t *timer)
{
	struct peers *peers = timer->data;

	peers->full = false;
	for (size_t i = 0; i < peers->nlisteners; i++) {
		if (peers->listener[i].open) {
			uv_poll_start(&peers->listener[i].poll, UV_READABLE, on_accept);
		}
	}
}

/* Stops accepting for a moment, without turning round and round. */
static void listen_pause(struct peers *peers)
{
	for (size_t i = 0; i < peers->nlisteners; i++) {
		if (peers->listener[i].open) {
			uv_poll_stop(&peers->listener[i].poll);
		}
	}
	uv_timer_start(&peers->listen_timer, on_listen_timer, LISTEN_RETRY_MS, 0);
}

/* There is room again. */
static void listen_resume(struct peers *peers)
{
	if (!peers->stopped) {
		uv_timer_stop(&peers->listen_timer);
		on_listen_timer(&peers->listen_timer);
	}
}

/* Room for one more incoming connection? Makes some when the oldest had its chance. */
static bool listen_room(struct peers *peers)
{
	struct incoming *oldest;

	if (peers->nincoming < PEERS_MAX_INCOMING) {
		return true;
	}
	oldest = container_of(list_first(&peers->incoming), struct incoming, link);
	if (uv_now(peers->loop) - oldest->since < PEERS_EVICT_MS) {
		return false;
	}
	incoming_warn(oldest, "%d connections wait to prove themselves, it is the oldest",
		      PEERS_MAX_INCOMING);
	incoming_free(oldest, false);
	return true;
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
	struct peers_listener *listener = poll->data;
	struct peers *peers = listener->peers;

	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage remote = {0};
		socklen_t size = sizeof(remote);
		int fd;

		if (!listen_room(peers)) {
			listen_pause(peers);
			peers->full = true;
			return;
		}
		fd = accept4(listener->fd, (struct sockaddr *)&remote, &size,
			     SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			incoming_new(peers, fd, &remote);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			   errno == ENOMEM) {
			if (log_rate(&peers->warned, 1000)) {
				log_warn("connections of other hosts wait: %s", strerror(errno));
			}
			listen_pause(peers);
			return;
		} else if (errno == EAGAIN) {
			return;
		}
	}
}

/* Opens one listening socket. Return: the socket, or negative errno. */
static int listen_open(const struct sockaddr_storage *address)
{
	cleanup_close int fd = -1;
	int one = 1;

	fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return -errno;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (address->ss_family == AF_INET6) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	}
	if (bind(fd, (const struct sockaddr *)address, address_length(address)) < 0 ||
	    listen(fd, LISTEN_BACKLOG) < 0) {
		return -errno;
	}
	return take_fd(&fd);
}

/* Port 0 became a number: all listeners share it. */
static int listen_learn_port(struct peers *peers, int fd)
{
	struct sockaddr_storage address = {0};
	socklen_t size = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
		return -errno;
	}
	peers->port = address_port(&address);
	return 0;
}

static int listen_add(struct peers *peers, struct sockaddr_storage *address)
{
	int fd, r = 0;

	address_set_port(address, peers->port);
	fd = listen_open(address);
	if (fd < 0) {
		return fd;
	}
	if (peers->port == 0) {
		r = listen_learn_port(peers, fd);
	}
	peers->listener[peers->nlisteners++] = (struct peers_listener){.peers = peers, .fd = fd};
	return r;
}

/* Tries all addresses with one port. @optional: a missing address family is no error. */
static int listen_all(struct peers *peers, const char *const *texts, size_t n, bool optional,
		      bool quiet)
{
	struct sockaddr_storage address;
	int r;

	for (size_t i = 0; i < n; i++) {
		r = address_parse(texts[i], 0, &address);
		if (r < 0) {
			log_error("cannot listen for other hosts on \"%s\": not a numeric address",
				  texts[i]);
			return r;
		}
		if (!peers->has_key && !address_is_loopback(&address)) {
			log_error("cannot listen for other hosts on %s: " PEERS_NO_KEY, texts[i]);
			return -EACCES;
		}
		r = listen_add(peers, &address);
		if (r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL) {
			r = optional ? 0 : r;
		}
		if (r < 0) {
			if (!quiet) {
				log_error("cannot listen for other hosts on %s port %u: %s",
					  texts[i], peers->port, strerror(-r));
			}
			return r;
		}
	}
	if (peers->nlisteners == 0) {
		log_error("cannot listen for other hosts: this host has neither IPv4 nor IPv6");
		return -EADDRNOTAVAIL;
	}
	return 0;
}

/**
 * peers_listen() - open the listening sockets; peers_listen_start() puts them into the loop
 */
int peers_listen(struct peers *peers, const struct peers_options *o)
{
	static const char *const any[] = {"0.0.0.0", "::"}, *const local[] = {"127.0.0.1", "::1"};
	const char *const *texts = o->nlisten > 0 ? o->listen : peers->has_key ? any : local;
	size_t n = o->nlisten > 0 ? o->nlisten : ARRAY_SIZE(any);
	int r = -EADDRINUSE;

	for (int i = 0; r == -EADDRINUSE && i < (o->port == 0 ? PORT_TRIES : 1); i++) {
		while (peers->nlisteners > 0) {
			base_close(peers->listener[--peers->nlisteners].fd);
		}
		peers->port = o->port;
		r = listen_all(peers, texts, n, o->nlisten == 0,
			       o->port == 0 && i + 1 < PORT_TRIES);
	}
	return r;
}

/**
 * peers_listen_start() - accept from now on
 */
void peers_listen_start(struct peers *peers)
{
	for (size_t i = 0; i < peers->nlisteners; i++) {
		struct peers_listener *listener = &peers->listener[i];

		if (uv_poll_init(peers->loop, &listener->poll, listener->fd) < 0) {
			log_error("the loop does not take a listening socket");
			continue;
		}
		listener->poll.data = listener;
		listener->open = true;
		peers_hold(peers);
		uv_poll_start(&listener->poll, UV_READABLE, on_accept);
	}
}

static void on_listener_closed(uv_handle_t *handle)
{
	struct peers_listener *listener = handle->data;

	peers_drop(listener->peers);
}

/**
 * peers_listen_stop() - stop listening, and end what is incoming
 */
void peers_listen_stop(struct peers *peers)
{
	struct list *first;

	uv_timer_stop(&peers->listen_timer);
	for (size_t i = 0; i < peers->nlisteners; i++) {
		struct peers_listener *listener = &peers->listener[i];

		if (listener->open) {
			listener->open = false;
			uv_poll_stop(&listener->poll);
			uv_close((uv_handle_t *)&listener->poll, on_listener_closed);
		}
		listener->fd = base_close(listener->fd);
	}
	while ((first = list_first(&peers->incoming)) != NULL) {
		incoming_free(container_of(first, struct incoming, link), false);
	}
}
