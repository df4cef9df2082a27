/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the TCP backend: two contexts of one process, or one against a raw socket that lies
 *
 * Payload bytes depend on the message and on their place, so that a misplaced byte shows. The
 * receiving side chooses by itself, message by message, whether it takes the bytes in pieces of
 * memory, through the fragment callback, or not at all.
 *
 * Thread: one, or one a context      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/transport.h"

enum mode { MODE_IOV, MODE_FRAGMENT, MODE_DISCARD, MODE_MIXED };
enum callback { CALL_NONE, CALL_BEGIN, CALL_FRAGMENT, CALL_DONE, CALL_SENT, CALL_DOWN };

struct message {
	struct transport_send send;
	struct transport_recv recv;
	uint64_t length;
	uint8_t *out, *in;
	struct iovec *out_iov, *in_iov;
	uint32_t pieces;
	int sent, received, status;
};

struct end {
	struct transport *t;
	struct transport_peer *peer;
	struct message *incoming; /* by header.seq */
	uint32_t incoming_count;
	enum mode mode;
	enum callback free_in; /* frees the peer in this callback */
	bool verify;
	unsigned int begun, done, down, sent;
	int down_error;
	char reason[64];
};

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

static uint8_t pattern(uint32_t message, uint64_t offset)
{
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15u + message * 0xbf58476d1ce4e5b9u;

	return (uint8_t)(x >> 56 ^ x >> 32);
}

static void maybe_free(struct end *e, enum callback here)
{
	if (e->free_in == here && e->peer) {
		e->peer = transport_peer_free(e->peer);
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
	m->recv = (struct transport_recv){.user = m, .received = 77};
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
			if (m->in[i] != pattern(id, i)) {
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

static const struct transport_handler handler = {on_begin, on_fragment, on_done, on_down};

/* Cuts memory into @pieces of random lengths, some of them empty. */
static struct iovec *cut(uint8_t *memory, uint64_t length, uint32_t pieces, uint64_t *seed)
{
	struct iovec *iov = calloc(pieces, sizeof(*iov));
	uint64_t at = 0;

	for (uint32_t i = 0; i < pieces; i++) {
		uint64_t n = next_random(seed) % (2 * length / pieces + 2);

		n = i + 1 == pieces ? length - at : MIN(n, length - at);
		iov[i].iov_base = memory + at;
		iov[i].iov_len = n;
		at += n;
	}
	return iov;
}

static void message_init(struct message *m, uint32_t id, uint64_t length, uint32_t pieces,
			 struct end *from)
{
	uint64_t seed = id + length;

	*m = (struct message){.length = length, .pieces = pieces};
	m->out = malloc(length + 1);
	m->in = calloc(1, length + 1);
	for (uint64_t i = 0; i < length; i++) {
		m->out[i] = pattern(id, i);
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

static void messages_free(struct message *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		free(m[i].out);
		free(m[i].in);
		free(m[i].out_iov);
		free(m[i].in_iov);
	}
	free(m);
}

static void end_init(struct end *e, uint32_t fragment, enum mode mode)
{
	struct transport_options options = {.fragment = fragment, .user_timeout_ms = 5000};

	*e = (struct end){.mode = mode, .verify = true};
	strcpy(options.congestion, "none such");
	cr_assert_eq(transport_new(&options, &handler, e, &e->t), 0);
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

static void join(struct end *a, struct end *b, unsigned int streams, bool tcp)
{
	for (unsigned int i = 0; i < streams; i++) {
		int fd[2];

		if (tcp) {
			tcp_pair(fd);
		} else {
			cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
		}
		cr_assert_eq(transport_peer_add_stream(a->peer, fd[0]), 0);
		cr_assert_eq(transport_peer_add_stream(b->peer, fd[1]), 0);
	}
}

/* The other end of the socket stays raw. */
static int join_raw(struct end *e)
{
	int fd[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	cr_assert_eq(transport_peer_add_stream(e->peer, fd[0]), 0);
	return fd[1];
}

static void end_fini(struct end *e)
{
	e->free_in = CALL_NONE;
	transport_free(e->t);
}

static void run_sizes(unsigned int streams, enum mode mode, uint32_t pieces, bool tcp)
{
	static const uint64_t sizes[] = {0,    1,	   63,	   64,	       4096,
					 4097, 262144 - 1, 262144, 262144 + 1, 5 * 1024 * 1024};
	uint32_t n = ARRAY_SIZE(sizes);
	struct message *m = calloc(n, sizeof(*m));
	struct end a, b;

	end_init(&a, 0, mode);
	end_init(&b, 0, mode);
	join(&a, &b, streams, tcp);
	b.incoming = m;
	b.incoming_count = n;
	for (uint32_t i = 0; i < n; i++) {
		message_init(&m[i], i, sizes[i], pieces, &a);
		transport_send(a.peer, &m[i].send);
	}
	while (b.done < n && !a.down && !b.down) {
		transport_poll(a.t);
		transport_poll(b.t);
	}
	cr_assert(!a.down && !b.down, "%s %s", a.reason, b.reason);
	for (uint32_t i = 0; i < n; i++) {
		cr_assert(m[i].sent == 1 && m[i].status == 0 && m[i].received == 1);
	}
	cr_assert_eq(transport_poll(a.t) + transport_poll(b.t), 0);
	end_fini(&a);
	end_fini(&b);
	messages_free(m, n);
}

Test(tcp, sizes)
{
	for (enum mode mode = MODE_IOV; mode <= MODE_DISCARD; mode++) {
		for (unsigned int streams = 1; streams <= 4; streams *= 2) {
			run_sizes(streams, mode, 1, true);
			run_sizes(streams, mode, 200, true);
		}
	}
	run_sizes(8, MODE_MIXED, 3, true);
	run_sizes(2, MODE_MIXED, 200, false);
}

static void run_interleaved(unsigned int streams, uint32_t fragment)
{
	uint32_t n = 500;
	struct message *m[2];
	struct end e[2];
	uint64_t seed = streams;

	for (int i = 0; i < 2; i++) {
		end_init(&e[i], fragment, MODE_MIXED);
		m[i] = calloc(n, sizeof(*m[i]));
		e[i].incoming = m[i];
		e[i].incoming_count = n;
	}
	join(&e[0], &e[1], streams, true);
	for (uint32_t k = 0; k < n; k++) {
		for (int i = 0; i < 2; i++) {
			uint64_t length =
				next_random(&seed) % (1u << (1 + next_random(&seed) % 19));
			uint32_t pieces = 1 + (uint32_t)next_random(&seed) % 9;

			message_init(&m[!i][k], k, length, pieces, &e[i]);
			transport_send(e[i].peer, &m[!i][k].send);
		}
		if (next_random(&seed) % 4 == 0) {
			transport_poll(e[next_random(&seed) % 2].t);
		}
	}
	while ((e[0].done < n || e[1].done < n) && !e[0].down && !e[1].down) {
		transport_poll(e[next_random(&seed) % 2].t);
	}
	for (int i = 0; i < 2; i++) {
		cr_assert(!e[i].down, "%s", e[i].reason);
		for (uint32_t k = 0; k < n; k++) {
			cr_assert(m[i][k].sent == 1 && m[i][k].status == 0);
			cr_assert(m[i][k].received == 1);
		}
		end_fini(&e[i]);
		messages_free(m[i], n);
	}
}

Test(tcp, interleaved)
{
	run_interleaved(1, 0);
	run_interleaved(2, 4096);
	run_interleaved(4, 64);
	run_interleaved(6, 1024);
}

/* What a well-behaved sender would write, as one piece of memory. */
static uint8_t *wire_bytes(uint32_t messages, uint64_t length, uint32_t fragment, size_t *ret_size)
{
	uint8_t *bytes = malloc(messages * (length + WIRE_SIZE * (length / fragment + 1)));
	size_t at = 0;

	for (uint64_t offset = 0; offset < length; offset += fragment) {
		for (uint32_t k = 0; k < messages; k++) {
			struct wire_header h = {.magic = WIRE_MAGIC, .type = WIRE_DATA, .comm = 5};

			h.seq = k;
			h.length = length;
			h.offset = offset;
			h.fragment = (uint32_t)MIN(fragment, length - offset);
			memcpy(bytes + at, &h, WIRE_SIZE);
			at += WIRE_SIZE;
			for (uint32_t i = 0; i < h.fragment; i++) {
				bytes[at++] = pattern(k, offset + i);
			}
		}
	}
	*ret_size = at;
	return bytes;
}

static struct message *expect(struct end *e, uint32_t n, uint64_t length)
{
	struct message *m = calloc(n, sizeof(*m));

	for (uint32_t i = 0; i < n; i++) {
		message_init(&m[i], i, length, 3, e);
	}
	e->incoming = m;
	e->incoming_count = n;
	return m;
}

Test(tcp, sender_dies_at_every_offset)
{
	size_t size;
	uint8_t *bytes = wire_bytes(2, 320, 128, &size);

	for (size_t k = 0; k <= size; k++) {
		for (enum mode mode = MODE_IOV; mode <= MODE_MIXED; mode++) {
			struct end e;
			struct message *m;
			int raw;

			end_init(&e, 128, mode);
			m = expect(&e, 2, 320);
			raw = join_raw(&e);
			cr_assert_eq(write(raw, bytes, k), (ssize_t)k);
			if (k % 2) {
				transport_poll(e.t);
			}
			transport_send(e.peer, &m[0].send);
			close(raw);
			for (int i = 0; i < 5; i++) {
				transport_poll(e.t);
			}
			cr_assert_eq(e.down, 1);
			cr_assert_lt(e.down_error, 0);
			cr_assert_eq(m[0].sent, 1);
			cr_assert_eq(e.done, k == size ? 2 : k >= size - 128 ? 1 : 0);
			transport_send(e.peer, &m[1].send);
			cr_assert(m[1].sent == 1 && m[1].status < 0);
			end_fini(&e);
			messages_free(m, 2);
		}
	}
	free(bytes);
}

Test(tcp, receiver_dies)
{
	static const size_t cuts[] = {0, 1, 63, 64, 65, 4000, 4096 + 64, 100000, 1000000};
	static uint8_t sink[1000000];

	for (size_t c = 0; c < ARRAY_SIZE(cuts); c++) {
		for (unsigned int streams = 1; streams <= 3; streams++) {
			uint32_t n = 40, failed = 0;
			struct message *m;
			struct end e;
			int raw[3];

			end_init(&e, 4096, MODE_MIXED);
			for (unsigned int i = 0; i < streams; i++) {
				raw[i] = join_raw(&e);
			}
			m = expect(&e, n, 100000);
			for (uint32_t i = 0; i < n; i++) {
				transport_send(e.peer, &m[i].send);
			}
			for (size_t got = 0; got < cuts[c];) {
				got += (size_t)read(raw[0], sink, cuts[c] - got);
				transport_poll(e.t);
			}
			for (unsigned int i = 0; i < streams; i++) {
				close(raw[i]);
			}
			for (int i = 0; i < 5; i++) {
				transport_poll(e.t);
			}
			cr_assert_eq(e.down, 1);
			for (uint32_t i = 0; i < n; i++) {
				cr_assert_eq(m[i].sent, 1);
				failed += m[i].status < 0;
			}
			cr_assert_gt(failed, 0);
			end_fini(&e);
			messages_free(m, n);
		}
	}
}

Test(tcp, free_in_any_callback)
{
	for (enum callback c = CALL_BEGIN; c <= CALL_DOWN; c++) {
		for (enum mode mode = MODE_IOV; mode <= MODE_MIXED; mode++) {
			struct end a, b;
			struct message *m, *back;
			uint32_t n = 30;

			end_init(&a, 4096, mode);
			end_init(&b, 4096, mode);
			join(&a, &b, 2, true);
			m = expect(&b, n, 300000);
			back = expect(&a, n, 300000);
			b.free_in = c;
			for (uint32_t i = 0; i < n; i++) {
				m[i].send.user = &a;
				back[i].send.user = &b;
				transport_send(a.peer, &m[i].send);
				if (b.peer) {
					transport_send(b.peer, &back[i].send);
				}
			}
			for (int i = 0; i < 300; i++) {
				transport_poll(a.t);
				transport_poll(b.t);
				if (c == CALL_DOWN && i == 1) {
					a.peer = transport_peer_free(a.peer);
				}
			}
			cr_assert(b.peer == NULL || (c == CALL_FRAGMENT && mode == MODE_DISCARD));
			for (uint32_t i = 0; i < n; i++) {
				cr_assert_eq(m[i].sent, 1);
				cr_assert_leq(back[i].sent, 1);
			}
			end_fini(&a);
			end_fini(&b);
			cr_assert_eq(b.sent, c == CALL_SENT ? b.sent : n);
			messages_free(m, n);
			messages_free(back, n);
		}
	}
}

/* Feeds bytes to a fresh context. Return: the reason why the peer was closed, in e. */
static void feed(struct end *e, const void *bytes, size_t size, uint32_t messages, uint64_t length)
{
	struct message *m;
	int raw;

	end_init(e, 128, MODE_MIXED);
	m = expect(e, messages, length);
	e->verify = false;
	raw = join_raw(e);
	for (size_t at = 0; at < size && !e->down;) {
		ssize_t n =
			send(raw, (const char *)bytes + at, size - at, MSG_DONTWAIT | MSG_NOSIGNAL);

		at += n > 0 ? (size_t)n : 0;
		transport_poll(e->t);
	}
	transport_poll(e->t);
	close(raw);
	end_fini(e);
	messages_free(m, messages);
}

Test(tcp, lying_headers)
{
	struct wire_header good = {
		.magic = WIRE_MAGIC, .type = WIRE_DATA, .comm = 5, .length = 320};
	struct wire_header h[12];
	struct end e;

	good.fragment = 128;
	for (size_t i = 0; i < ARRAY_SIZE(h); i++) {
		h[i] = good;
	}
	h[0].magic = 1;
	h[1].type = 0;
	h[2].type = WIRE_TYPE_COUNT_;
	h[3].fragment = 129;
	h[4].offset = 321;
	h[5].offset = 256;
	h[6].offset = UINT64_MAX - 63;
	h[7].offset = 1;
	h[8].fragment = 0;
	h[9].fragment = 65;
	h[10].length = 321; /* refused by recv_begin */
	h[11].seq = 9;
	for (size_t i = 0; i < ARRAY_SIZE(h); i++) {
		feed(&e, &h[i], WIRE_SIZE, 2, 320);
		cr_assert(e.down == 1 && e.begun == 0, "case %zu", i);
		cr_assert_eq(e.down_error, i < 10 ? -EPROTO : -EBADMSG);
	}
	feed(&e, &good, WIRE_SIZE, 2, 320);
	cr_assert(e.down == 0 && e.begun == 1);
}

Test(tcp, contradicting_and_double_fragments)
{
	size_t size, one = WIRE_SIZE + 128;
	uint8_t *bytes = wire_bytes(1, 384, 128, &size);
	struct wire_header *second = (struct wire_header *)(bytes + one);
	struct end e;

	feed(&e, bytes, size, 1, 384);
	cr_assert(e.down == 0 && e.done == 1);
	second->count = 1;
	feed(&e, bytes, size, 1, 384);
	cr_assert_str_eq(e.reason, "fragments of a message contradict each other");
	second->count = 0;
	second->offset = 0;
	feed(&e, bytes, size, 1, 384);
	cr_assert_str_eq(e.reason, "fragment came twice");
	cr_assert_eq(e.done, 0);
	free(bytes);
}

Test(tcp, garbage)
{
	uint64_t seed = 3;
	size_t size;
	uint8_t *bytes = wire_bytes(3, 320, 128, &size);
	uint8_t *copy = malloc(size);
	struct end e;

	for (int round = 0; round < 3000; round++) {
		memcpy(copy, bytes, size);
		if (round % 10 == 0) {
			for (size_t i = 0; i < size; i++) {
				copy[i] = (uint8_t)next_random(&seed);
			}
		}
		for (int flips = 1 + round % 5; flips > 0; flips--) {
			copy[next_random(&seed) % size] ^= (uint8_t)(1u << next_random(&seed) % 8);
		}
		feed(&e, copy, size, 3, 320);
		cr_assert_leq(e.down, 1);
		cr_assert(round % 10 != 0 || e.down == 1);
	}
	free(bytes);
	free(copy);
}

static void put_fragments(struct end *e, int raw, uint32_t first, uint32_t n, uint64_t offset)
{
	struct wire_header h = {.magic = WIRE_MAGIC, .type = WIRE_DATA, .comm = 5, .length = 128};
	size_t one = WIRE_SIZE + 64, size = n * one;
	uint8_t *bytes = calloc(n, one);

	h.fragment = 64;
	h.offset = offset;
	for (uint32_t i = 0; i < n; i++) {
		h.seq = first + i;
		memcpy(bytes + i * one, &h, WIRE_SIZE);
	}
	cr_assert_eq(send(raw, bytes, size, MSG_DONTWAIT), (ssize_t)size);
	transport_poll(e->t);
	free(bytes);
}

/* First fragments of more messages than the table holds, then the rest of some, otherwise. */
static void run_table_is_full(unsigned int stalled)
{
	uint32_t full = 4096, more = 600;
	struct message *m;
	struct end e;
	int raw[2];

	end_init(&e, 64, MODE_IOV);
	e.verify = false;
	m = expect(&e, full + more, 128);
	raw[0] = join_raw(&e);
	raw[1] = join_raw(&e);
	for (uint32_t i = 0; i < full; i += 64) {
		put_fragments(&e, raw[stalled], i, 64, 0);
	}
	put_fragments(&e, raw[stalled], full, more, 0);
	cr_assert(e.begun == full && !e.down);
	transport_arm(e.t);
	cr_assert_eq(poll(&(struct pollfd){transport_fd(e.t), POLLIN, 0}, 1, 0), 0, "would spin");
	for (uint32_t i = 0; i < more; i++) {
		put_fragments(&e, raw[!stalled], i, 1, 64);
		cr_assert(e.begun == full + 1 + i && e.done == 1 + i && !e.down);
	}
	put_fragments(&e, raw[0], 0, 1, 0); /* done before, so it begins anew */
	cr_assert_eq(e.down, 0u);
	put_fragments(&e, raw[1], 1, 1, 0);
	cr_assert_eq(e.down, 1);
	cr_assert_str_eq(e.reason, "too many unfinished messages");
	close(raw[0]);
	close(raw[1]);
	end_fini(&e);
	messages_free(m, full + more);
}

Test(tcp, table_is_full)
{
	run_table_is_full(0);
	run_table_is_full(1);
}

Test(tcp, api_limits)
{
	struct transport_options options = {.fragment = 100};
	struct transport *t = NULL;
	struct message *m;
	struct end e;
	int fd[2];

	cr_assert_eq(transport_new(&options, &handler, NULL, &t), -EINVAL);
	end_init(&e, 0, MODE_IOV);
	m = expect(&e, 1, 10);
	transport_send(e.peer, &m[0].send); /* no stream yet */
	for (int i = 0; i < 16; i++) {
		close(join_raw(&e));
	}
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	cr_assert_eq(transport_peer_add_stream(e.peer, fd[0]), -ENOSPC);
	transport_poll(e.t);
	cr_assert(e.down == 1 && m[0].sent == 1);
	cr_assert_eq(transport_peer_add_stream(e.peer, fd[0]), -ENOTCONN);
	close(fd[0]);
	close(fd[1]);
	cr_assert_null(transport_peer_free(NULL));
	cr_assert_null(transport_free(NULL));
	end_fini(&e);
	messages_free(m, 1);
}

/* One side of the sleep test: sends @n messages with pauses, sleeps whenever there is no work. */
struct sleeper {
	struct end e;
	struct message *out;
	uint32_t n, expected;
	_Atomic int *finished; /* relaxed: counts only */
};

static void *sleeper_run(void *arg)
{
	struct sleeper *s = arg;
	uint32_t next = 0;
	bool told = false;

	while (atomic_load_explicit(s->finished, memory_order_relaxed) < 2) {
		int timeout = told || next < s->n ? 1 : 5000;
		struct pollfd p = {.fd = transport_fd(s->e.t), .events = POLLIN};

		if (next < s->n) {
			transport_send(s->e.peer, &s->out[next++].send);
		}
		if (transport_poll(s->e.t) > 0) {
			continue;
		}
		if (!told && s->e.done == s->expected && s->e.sent == s->n) {
			atomic_fetch_add_explicit(s->finished, 1, memory_order_relaxed);
			told = true;
			continue;
		}
		transport_arm(s->e.t);
		if (poll(&p, 1, timeout) == 0 && timeout == 5000) {
			return (void *)"slept through";
		}
	}
	return s->e.down ? (void *)"down" : NULL;
}

static void run_sleep(unsigned int streams, bool both)
{
	struct sleeper s[2];
	pthread_t thread[2];
	_Atomic int finished = 0;

	for (int i = 0; i < 2; i++) {
		end_init(&s[i].e, 65536, MODE_MIXED);
		s[i].n = i == 0 || both ? 300 : 0;
		s[i].finished = &finished;
		s[i].out = calloc(s[i].n + 1, sizeof(*s[i].out));
		for (uint32_t k = 0; k < s[i].n; k++) {
			uint64_t length = k % 7 == 0 ? 500000 : k;

			/* The last but one is more than the sockets hold. */
			length = k + 2 == s[i].n ? 20000000 : length;
			message_init(&s[i].out[k], k, length, 2, &s[i].e);
		}
	}
	for (int i = 0; i < 2; i++) {
		s[!i].e.incoming = s[i].out;
		s[!i].e.incoming_count = s[i].n;
		s[!i].expected = s[i].n;
	}
	join(&s[0].e, &s[1].e, streams, true);
	for (int i = 0; i < 2; i++) {
		pthread_create(&thread[i], NULL, sleeper_run, &s[i]);
	}
	for (int i = 0; i < 2; i++) {
		void *error = NULL;

		pthread_join(thread[i], &error);
		cr_expect_null(error, "%s", (char *)error);
	}
	for (int i = 0; i < 2; i++) {
		end_fini(&s[i].e);
		messages_free(s[i].out, s[i].n);
	}
}

Test(tcp, sleep_is_lossless)
{
	run_sleep(1, true);
	run_sleep(1, false);
	run_sleep(8, true);
	run_sleep(8, false);
}
