/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the TCP transport: a peer daemon that sends anything over two streams
 *
 * Input: a byte n: the n-th callback frees the peer (0: none does). Then chunks: 2 bytes, of which
 * the top bit says the stream and the rest the length, and the bytes themselves. Every callback
 * must be in order and within the message; memory for messages has its exact size for ASan.
 *
 * Thread: one      Owns: contexts, sockets      Locks: none
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base.h"
#include "tests/fuzz/fuzz.h"
#include "transport/transport.h"

#define RECEIVES 256
#define FRAGMENT 256
#define MEMORY_MAX 4096

struct receive {
	struct transport_recv recv;
	struct iovec iov[3];
	uint8_t *memory;
	uint64_t length;
	uint64_t told; /* bytes of fragment() */
	bool done;
	uint8_t sum; /* so that every byte is read */
};

struct receiver {
	struct transport_peer *peer;
	struct receive receives[RECEIVES];
	unsigned int count, down;
	unsigned int free_at; /* callbacks until the peer is freed; 0: never */
};

static void callback(struct receiver *r)
{
	fuzz_check(r->peer && !r->down);
	if (r->free_at > 0 && --r->free_at == 0) {
		r->peer = transport_peer_free(r->peer);
	}
}

static int on_begin(void *arg, struct transport_peer *peer, const struct wire_header *h,
		    struct transport_recv **ret)
{
	struct receiver *r = arg;
	struct receive *m;

	fuzz_check(h->fragment <= FRAGMENT && h->offset <= h->length);
	if (r->count == RECEIVES) {
		return -ENOBUFS;
	}
	m = &r->receives[r->count++];
	m->length = h->length;
	m->recv.discard = h->tag % 3 == 0;
	if (h->tag % 3 == 1 && h->length <= MEMORY_MAX) {
		size_t third = h->length / 3;

		m->memory = malloc(h->length);
		fuzz_check(m->memory || h->length == 0);
		for (size_t i = 0; i < 3; i++) {
			m->iov[i].iov_base = m->memory ? m->memory + i * third : NULL;
			m->iov[i].iov_len = i < 2 ? third : h->length - 2 * third;
		}
		m->recv.iov = m->iov;
		m->recv.niov = 3;
	}
	*ret = &m->recv;
	callback(r);
	return 0;
}

static void on_fragment(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
			uint64_t size)
{
	struct receive *m = container_of(recv, struct receive, recv);

	fuzz_check(!m->done && !recv->discard && size > 0 && size <= FRAGMENT);
	fuzz_check(offset <= m->length && size <= m->length - offset && offset % 64 == 0);
	fuzz_check(size % 64 == 0 || offset + size == m->length);
	fuzz_check((data == NULL) == (recv->iov != NULL));
	for (uint64_t i = 0; data && i < size; i++) {
		m->sum ^= ((const uint8_t *)data)[i];
	}
	m->told += size;
	fuzz_check(m->told <= m->length);
	callback(arg);
}

static void on_done(void *arg, struct transport_recv *recv)
{
	struct receive *m = container_of(recv, struct receive, recv);

	fuzz_check(!m->done && recv->received == m->length);
	fuzz_check(recv->discard || m->told == m->length);
	m->done = true;
	callback(arg);
}

static void on_down(void *arg, struct transport_peer *peer, int error, const char *reason)
{
	struct receiver *r = arg;

	fuzz_check(error < 0 && reason && peer == r->peer);
	callback(r);
	r->down++;
}

static void feed(struct transport *t, const int raw[2], const uint8_t *data, size_t size)
{
	while (size >= 2) {
		size_t length = (size_t)(data[0] | (data[1] & 0x7f) << 8);
		int fd = raw[data[1] >> 7];

		data += 2;
		size -= 2;
		length = MIN(length, size);
		/* A peer that is gone, or stalls, does not take it: that is fine. */
		(void)send(fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
		data += length;
		size -= length;
		transport_poll(t);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct transport_handler handler = {on_begin, on_fragment, on_done, on_down};
	const struct transport_options options = {.fragment = FRAGMENT};
	cleanup_free struct receiver *r = calloc(1, sizeof(*r));
	struct transport *t = NULL;
	int raw[2];

	fuzz_check(r && transport_new(&options, &handler, r, &t) == 0);
	fuzz_check(transport_peer_new(t, r, &r->peer) == 0);
	for (int i = 0; i < 2; i++) {
		int fd[2];

		fuzz_check(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
		fuzz_check(transport_peer_add_stream(r->peer, fd[0], false) == 0);
		raw[i] = fd[1];
	}
	if (size > 0) {
		r->free_at = data[0];
		feed(t, raw, data + 1, size - 1);
	}
	close(raw[0]);
	close(raw[1]);
	for (int i = 0; i < 3; i++) {
		transport_poll(t);
	}
	fuzz_check(!r->peer || r->down == 1);
	transport_free(t);
	for (unsigned int i = 0; i < r->count; i++) {
		free(r->receives[i].memory);
	}
	return 0;
}
