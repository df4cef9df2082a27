/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fixture of the TCP tests: callbacks that check what they get
 *
 * Thread: one an end      Owns: nothing      Locks: none
 */
#include "tests/unit/transport/tcp_fixture.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

uint64_t test_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

uint8_t test_pattern(uint32_t message, uint64_t offset)
{
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15u + message * 0xbf58476d1ce4e5b9u;

	return (uint8_t)(x >> 56 ^ x >> 32);
}

static void maybe_free(struct end *e, enum callback here)
{
	if (e->free_in == here && e->peer) {
		/* Completes sends, so this is called again meanwhile. */
		transport_peer_free(take_ptr(e->peer));
	}
}

static int on_begin(void *arg, struct transport_peer *peer, const struct wire_header *h,
		    struct transport_recv **ret)
{
	struct end *e = arg;
	struct message *m;
	enum mode mode = e->mode == MODE_MIXED ? h->seq % 3 : e->mode;

	if (h->seq >= e->incoming_count || e->incoming[h->seq].length != h->length) {
		return -EBADMSG;
	}
	m = &e->incoming[h->seq];
	e->begun++;
	m->recv = (struct transport_recv){
		.user = m,
		.received = 77,
		.account = m->send.account,
	};
	m->recv.discard = mode == MODE_DISCARD;
	if (mode == MODE_IOV) {
		m->recv.iov = m->in_iov;
		m->recv.niov = m->pieces;
	}
	*ret = &m->recv;
	maybe_free(e, CALL_BEGIN);
	return 0;
}

static void on_fragment(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
			uint64_t size)
{
	struct end *e = arg;
	struct message *m = recv->user;

	cr_assert(!recv->discard);
	cr_assert(size > 0 && offset % 64 == 0 && offset + size <= m->length);
	cr_assert(size % 64 == 0 || offset + size == m->length);
	cr_assert_eq(data == NULL, recv->iov != NULL);
	if (data) {
		memcpy(m->in + offset, data, size);
	}
	maybe_free(e, CALL_FRAGMENT);
}

static void on_done(void *arg, struct transport_recv *recv)
{
	struct end *e = arg;
	struct message *m = recv->user;

	cr_assert_eq(recv->received, m->length);
	m->received++;
	e->done++;
	if (e->verify && !recv->discard) {
		uint32_t id = (uint32_t)(m - e->incoming);

		for (uint64_t i = 0; i < m->length; i++) {
			if (m->in[i] != test_pattern(id, i)) {
				cr_assert_fail("message %u, byte %llu of %llu", id,
					       (unsigned long long)i,
					       (unsigned long long)m->length);
			}
		}
	}
	maybe_free(e, CALL_DONE);
}

static void on_down(void *arg, struct transport_peer *peer, int error, const char *reason)
{
	struct end *e = arg;

	e->down++;
	e->down_error = error;
	snprintf(e->reason, sizeof(e->reason), "%s", reason);
	maybe_free(e, CALL_DOWN);
}

static void on_sent(struct transport_send *send, int status)
{
	struct message *m = container_of(send, struct message, send);
	struct end *e = send->user;

	m->sent++;
	m->status = status;
	e->sent++;
	maybe_free(e, CALL_SENT);
}

const struct transport_handler test_handler = {on_begin, on_fragment, on_done, on_down};

/* Cuts memory into @pieces of random lengths, some of them empty. */
static struct iovec *cut(uint8_t *memory, uint64_t length, uint32_t pieces, uint64_t *seed)
{
	struct iovec *iov = calloc(pieces, sizeof(*iov));
	uint64_t at = 0;

	for (uint32_t i = 0; i < pieces; i++) {
		uint64_t n = test_random(seed) % (2 * length / pieces + 2);

		n = i + 1 == pieces ? length - at : MIN(n, length - at);
		iov[i].iov_base = memory + at;
		iov[i].iov_len = n;
		at += n;
	}
	return iov;
}

void message_init(struct message *m, uint32_t id, uint64_t length, uint32_t pieces,
		  struct end *from)
{
	uint64_t seed = id + length;

	*m = (struct message){.length = length, .pieces = pieces};
	m->out = malloc(length + 1);
	m->in = calloc(1, length + 1);
	for (uint64_t i = 0; i < length; i++) {
		m->out[i] = test_pattern(id, i);
	}
	m->out_iov = cut(m->out, length, pieces, &seed);
	m->in_iov = cut(m->in, length, pieces, &seed);
	m->send.header = (struct wire_header){.type = WIRE_DATA, .comm = 5, .seq = id};
	m->send.iov = m->out_iov;
	m->send.niov = pieces;
	m->send.length = length;
	m->send.done = on_sent;
	m->send.user = from;
}

void messages_free(struct message *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		free(m[i].out);
		free(m[i].in);
		free(m[i].out_iov);
		free(m[i].in_iov);
	}
	free(m);
}

bool end_lanes(void)
{
	return getenv("LAB_IO_THREADS") != NULL;
}

void end_settle(struct end *e, bool down)
{
	int idle = 0;

	if (!end_lanes()) {
		for (int i = 0; i < 5; i++) {
			transport_poll(e->t);
		}
		return;
	}
	while (!e->down && idle < (down ? 10000 : 50)) {
		usleep(1000);
		idle = transport_poll(e->t) > 0 ? 0 : idle + 1;
	}
	transport_poll(e->t);
}

bool end_until(struct end *e, const unsigned int *counter, unsigned int value)
{
	for (int i = 0; i < 10000 && *counter < value && !e->down; i++) {
		if (transport_poll(e->t) == 0 && end_lanes()) {
			usleep(1000);
		}
	}
	return *counter == value;
}

void end_init(struct end *e, uint32_t fragment, enum mode mode)
{
	struct transport_options options = {
		.fragment = fragment,
		.user_timeout_ms = 60000, /* a busy machine may let a thread wait for long */
		.io_threads = end_lanes() ? 2 : 0,
		.io_spin_us = 20,
	};

	*e = (struct end){.mode = mode, .verify = true};
	strcpy(options.congestion, "none such");
	cr_assert_eq(transport_new(&options, &test_handler, e, &e->t), 0);
	cr_assert_eq(transport_peer_new(e->t, e, &e->peer), 0);
	cr_assert_eq(transport_peer_user(e->peer), e);
}

static void tcp_pair(int fd[2])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	cr_assert_eq(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	cr_assert_eq(listen(l, 1), 0);
	cr_assert_eq(getsockname(l, (struct sockaddr *)&a, &size), 0);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	cr_assert_eq(connect(fd[0], (struct sockaddr *)&a, sizeof(a)), 0);
	fd[1] = accept(l, NULL, NULL);
	cr_assert_geq(fd[1], 0);
	close(l);
}

void end_join(struct end *a, struct end *b, unsigned int streams, bool tcp)
{
	for (unsigned int i = 0; i < streams; i++) {
		int fd[2];

		if (tcp) {
			tcp_pair(fd);
		} else {
			cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
		}
		cr_assert_eq(transport_peer_add_stream(a->peer, fd[0], i > 0), 0);
		cr_assert_eq(transport_peer_add_stream(b->peer, fd[1], i > 0), 0);
	}
}

/* The other end of the socket stays raw. */
int end_join_raw(struct end *e)
{
	int fd[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	/* With I/O threads it is one of theirs. */
	cr_assert_eq(transport_peer_add_stream(e->peer, fd[0], true), 0);
	return fd[1];
}

void end_fini(struct end *e)
{
	e->free_in = CALL_NONE;
	transport_free(e->t);
}

struct message *end_expect(struct end *e, uint32_t n, uint64_t length)
{
	struct message *m = calloc(n, sizeof(*m));

	for (uint32_t i = 0; i < n; i++) {
		message_init(&m[i], i, length, 3, e);
	}
	e->incoming = m;
	e->incoming_count = n;
	return m;
}
