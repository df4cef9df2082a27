/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the TCP backend against a raw socket that dies or lies
 *
 * Thread: one      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/transport/tcp_fixture.h"

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
				bytes[at++] = test_pattern(k, offset + i);
			}
		}
	}
	*ret_size = at;
	return bytes;
}

Test(tcp_hostile, sender_dies_at_every_offset)
{
	size_t size;
	uint8_t *bytes = wire_bytes(2, 320, 128, &size);

	for (size_t k = 0; k <= size; k += end_lanes() ? 13 : 1) {
		for (enum mode mode = MODE_IOV; mode <= MODE_MIXED; mode++) {
			struct end e;
			struct message *m;
			int raw;

			end_init(&e, 128, mode);
			m = end_expect(&e, 2, 320);
			raw = end_join_raw(&e);
			cr_assert_eq(write(raw, bytes, k), (ssize_t)k);
			if (k % 2) {
				transport_poll(e.t);
			}
			transport_send(e.peer, &m[0].send);
			close(raw);
			end_settle(&e, true);
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

Test(tcp_hostile, receiver_dies)
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
				raw[i] = end_join_raw(&e);
			}
			m = end_expect(&e, n, 200000); /* bulk: there is no other stream */
			for (uint32_t i = 0; i < n; i++) {
				transport_send(e.peer, &m[i].send);
			}
			for (size_t got = 0; got < cuts[c];) {
				ssize_t r = recv(raw[0], sink, cuts[c] - got, MSG_DONTWAIT);

				got += r > 0 ? (size_t)r : 0;
				transport_poll(e.t);
			}
			for (unsigned int i = 0; i < streams; i++) {
				close(raw[i]);
			}
			end_settle(&e, true);
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

/*
 * Feeds bytes to a fresh context, with @down until it closes the peer. Return: the reason why it
 * was closed, in e.
 */
static void feed(struct end *e, const void *bytes, size_t size, uint32_t messages, uint64_t length,
		 bool down)
{
	struct message *m;
	int raw;

	end_init(e, 128, MODE_MIXED);
	m = end_expect(e, messages, length);
	e->verify = false;
	raw = end_join_raw(e);
	for (size_t at = 0; at < size && !e->down;) {
		ssize_t n =
			send(raw, (const char *)bytes + at, size - at, MSG_DONTWAIT | MSG_NOSIGNAL);

		at += n > 0 ? (size_t)n : 0;
		transport_poll(e->t);
	}
	end_settle(e, down);
	close(raw);
	end_fini(e);
	messages_free(m, messages);
}

Test(tcp_hostile, lying_headers)
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
		feed(&e, &h[i], WIRE_SIZE, 2, 320, true);
		cr_assert(e.down == 1 && e.begun == 0, "case %zu", i);
		cr_assert_eq(e.down_error, i < 10 ? -EPROTO : -EBADMSG);
	}
	feed(&e, &good, WIRE_SIZE, 2, 320, false);
	cr_assert(e.down == 0 && e.begun == 1);
}

Test(tcp_hostile, contradicting_and_double_fragments)
{
	size_t size, one = WIRE_SIZE + 128;
	uint8_t *bytes = wire_bytes(1, 384, 128, &size);
	struct wire_header *second = (struct wire_header *)(bytes + one);
	struct end e;

	feed(&e, bytes, size, 1, 384, false);
	cr_assert(e.down == 0 && e.done == 1);
	second->count = 1;
	feed(&e, bytes, size, 1, 384, true);
	cr_assert_str_eq(e.reason, "fragments of a message contradict each other");
	second->count = 0;
	second->offset = 0;
	feed(&e, bytes, size, 1, 384, true);
	cr_assert_str_eq(e.reason, "fragment came twice");
	cr_assert_eq(e.done, 0);
	free(bytes);
}

Test(tcp_hostile, garbage)
{
	uint64_t seed = 3;
	size_t size;
	uint8_t *bytes = wire_bytes(3, 320, 128, &size);
	uint8_t *copy = malloc(size);
	struct end e;

	for (int round = 0; round < (end_lanes() ? 60 : 3000); round++) {
		memcpy(copy, bytes, size);
		if (round % 10 == 0) {
			for (size_t i = 0; i < size; i++) {
				copy[i] = (uint8_t)test_random(&seed);
			}
		}
		for (int flips = 1 + round % 5; flips > 0; flips--) {
			copy[test_random(&seed) % size] ^= (uint8_t)(1u << test_random(&seed) % 8);
		}
		feed(&e, copy, size, 3, 320, round % 10 == 0);
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
	for (size_t at = 0; at < size;) {
		ssize_t sent = send(raw, bytes + at, size - at, MSG_DONTWAIT);

		at += sent > 0 ? (size_t)sent : 0;
		transport_poll(e->t);
	}
	end_settle(e, false);
	free(bytes);
}

/* First fragments of more messages than the table holds, then the rest of some, otherwise. */
static void run_table_is_full(unsigned int stalled)
{
	uint32_t full = 4096, more = end_lanes() ? 20 : 600;
	struct message *m;
	struct end e;
	int raw[2];

	end_init(&e, 64, MODE_IOV);
	e.verify = false;
	m = end_expect(&e, full + more, 128);
	raw[0] = end_join_raw(&e);
	raw[1] = end_join_raw(&e);
	for (uint32_t i = 0; i < full; i += 512) {
		put_fragments(&e, raw[stalled], i, 512, 0);
	}
	put_fragments(&e, raw[stalled], full, more, 0);
	cr_assert(end_until(&e, &e.begun, full) && !e.down);
	cr_assert(transport_arm(e.t));
	cr_assert_eq(poll(&(struct pollfd){transport_fd(e.t), POLLIN, 0}, 1, 0), 0, "would spin");
	for (uint32_t i = 0; i < more; i++) {
		put_fragments(&e, raw[!stalled], i, 1, 64);
		cr_assert(end_until(&e, &e.done, 1 + i) && end_until(&e, &e.begun, full + 1 + i));
		cr_assert_eq(e.down, 0);
	}
	put_fragments(&e, raw[0], 0, 1, 0); /* done before, so it begins anew */
	cr_assert_eq(e.down, 0u);
	put_fragments(&e, raw[1], 1, 1, 0);
	end_settle(&e, true);
	cr_assert_eq(e.down, 1);
	cr_assert_str_eq(e.reason, "too many unfinished messages");
	close(raw[0]);
	close(raw[1]);
	end_fini(&e);
	messages_free(m, full + more);
}

Test(tcp_hostile, table_is_full)
{
	run_table_is_full(0);
	run_table_is_full(1);
}
