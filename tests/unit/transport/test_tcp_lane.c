/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of lanes: what an I/O thread leaves behind when its lane or its message is given up
 *
 * Thread: one, and I/O threads      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/transport/tcp_fixture.h"

#define LENGTH 131072u

static struct wire_header header(uint64_t offset, uint32_t fragment)
{
	return (struct wire_header){
		.magic = WIRE_MAGIC,
		.type = WIRE_DATA,
		.comm = 5,
		.length = LENGTH,
		.offset = offset,
		.fragment = fragment,
	};
}

static void lane_init(struct end *e, uint32_t fragment)
{
	cr_assert_eq(setenv("LAB_IO_THREADS", "2", 1), 0);
	end_init(e, fragment, MODE_IOV);
}

/* Polls for a while, whether it moves anything or not. */
static void poll_for(struct end *e, int ms)
{
	for (int i = 0; i < ms; i++) {
		transport_poll(e->t);
		usleep(1000);
	}
}

/* What a closed lane has told and nobody has seen must not keep the caller awake. */
Test(tcp_lane, no_news_of_closed_lanes)
{
	struct wire_header h = header(0, LENGTH);
	struct message *m;
	struct end e;
	int raw;

	lane_init(&e, LENGTH);
	m = end_expect(&e, 1, LENGTH);
	raw = end_join_raw(&e);
	cr_assert_eq(write(raw, &h, WIRE_SIZE), WIRE_SIZE);
	usleep(50000);
	cr_assert(!transport_arm(e.t));
	transport_peer_free(take_ptr(e.peer));
	poll_for(&e, 5);
	cr_assert(transport_arm(e.t));
	close(raw);
	end_fini(&e);
	messages_free(m, 1);
}

/* A message that is given up, with a lane in the middle of it, leaves its memory alone. */
Test(tcp_lane, dropped_message_is_not_written)
{
	for (uint32_t before = 0; before <= LENGTH / 2; before += LENGTH / 2) {
		struct wire_header h = header(0, LENGTH);
		uint8_t *ones = malloc(LENGTH);
		struct message *m;
		struct end e;
		int raw;

		memset(ones, 1, LENGTH);
		lane_init(&e, LENGTH);
		m = end_expect(&e, 1, LENGTH);
		raw = end_join_raw(&e);
		cr_assert_eq(write(raw, &h, WIRE_SIZE), WIRE_SIZE);
		cr_assert_eq(write(raw, ones, before), before);
		poll_for(&e, 50);
		cr_assert_eq(e.begun, 1);
		transport_drop(e.peer, &m->recv);
		cr_assert(m->recv.discard);
		memset(m->in, 0, LENGTH);
		for (uint32_t at = before; at < LENGTH;) {
			ssize_t n = write(raw, ones, LENGTH - at);

			cr_assert_gt(n, 0);
			at += (uint32_t)n;
			poll_for(&e, 1);
		}
		poll_for(&e, 50);
		cr_assert_eq(e.done, 1);
		for (uint32_t i = 0; i < LENGTH; i++) {
			cr_assert_eq(m->in[i], 0, "byte %u", i);
		}
		close(raw);
		end_fini(&e);
		messages_free(m, 1);
		free(ones);
	}
}

/* The same with the message spread over two lanes, one of which has not begun its part. */
Test(tcp_lane, dropped_message_on_two_lanes)
{
	uint32_t half = LENGTH / 2;
	uint8_t *ones = malloc(half);
	struct message *m;
	struct end e;
	int raw[2];

	memset(ones, 1, half);
	lane_init(&e, LENGTH);
	m = end_expect(&e, 1, LENGTH);
	for (uint32_t i = 0; i < 2; i++) {
		struct wire_header h = header(i * half, half);

		raw[i] = end_join_raw(&e);
		cr_assert_eq(write(raw[i], &h, WIRE_SIZE), WIRE_SIZE);
	}
	cr_assert_eq(write(raw[0], ones, half / 2), half / 2);
	poll_for(&e, 50);
	transport_drop(e.peer, &m->recv);
	memset(m->in, 0, LENGTH);
	cr_assert_eq(write(raw[0], ones, half / 2), half / 2);
	cr_assert_eq(write(raw[1], ones, half), half);
	poll_for(&e, 100);
	cr_assert_eq(e.done, 1);
	for (uint32_t i = 0; i < LENGTH; i++) {
		cr_assert_eq(m->in[i], 0, "byte %u", i);
	}
	close(raw[0]);
	close(raw[1]);
	end_fini(&e);
	messages_free(m, 1);
	free(ones);
}

/* What wakes an I/O thread is a call of the caller, and counts as one. */
Test(tcp_lane, waking_its_thread_is_a_system_call)
{
	struct transport_stats before, after;
	struct message *m = malloc(sizeof(*m));
	struct end e;
	int raw;

	lane_init(&e, 2 * LENGTH); /* one fragment */
	raw = end_join_raw(&e);
	message_init(m, 0, 2 * LENGTH, 1, &e);
	usleep(100000);
	transport_get_stats(e.t, &before);
	transport_send(e.peer, &m->send);
	transport_get_stats(e.t, &after);
	cr_assert_eq(after.syscalls - before.syscalls, 1);
	transport_peer_free(take_ptr(e.peer));
	close(raw);
	end_fini(&e);
	messages_free(m, 1);
}

/* Return: of the fragment that a raw socket is sent; it is read to its end. */
static struct wire_header take(int raw)
{
	struct wire_header h;
	static uint8_t payload[4 * LENGTH];
	uint32_t got = 0;

	cr_assert_eq(recv(raw, &h, WIRE_SIZE, MSG_WAITALL), WIRE_SIZE);
	cr_assert_leq(h.fragment, sizeof(payload));
	while (got < h.fragment) {
		ssize_t n = recv(raw, payload + got, h.fragment - got, 0);

		cr_assert_gt(n, 0);
		got += (uint32_t)n;
	}
	return h;
}

/* A message that would be one fragment is shared by the lanes that have nothing else to do. */
Test(tcp_lane, idle_lanes_share_a_message)
{
	struct message *m = malloc(sizeof(*m));
	struct wire_header a, b;
	struct end e;
	int raw[2];

	lane_init(&e, 4 * LENGTH);
	raw[0] = end_join_raw(&e);
	raw[1] = end_join_raw(&e);
	message_init(m, 0, 2 * LENGTH, 1, &e);
	transport_send(e.peer, &m->send);
	a = take(raw[0]);
	b = take(raw[1]);
	cr_assert_eq(a.length, 2 * LENGTH);
	cr_assert_eq(a.fragment, LENGTH);
	cr_assert_eq(b.fragment, LENGTH);
	cr_assert_eq(a.offset + b.offset, LENGTH);
	transport_peer_free(take_ptr(e.peer));
	close(raw[0]);
	close(raw[1]);
	end_fini(&e);
	messages_free(m, 1);
}

/* Small chunks (peer.chunk_kib) must not make all data the progress thread's. */
Test(tcp_lane, messages_of_a_small_chunk_are_bulk)
{
	struct message *m = malloc(sizeof(*m));
	struct end e;
	int raw;

	lane_init(&e, LENGTH / 4);
	raw = end_join_raw(&e); /* a lane; there is no other stream */
	message_init(m, 0, LENGTH / 4, 1, &e);
	transport_send(e.peer, &m->send);
	cr_assert_eq(take(raw).fragment, LENGTH / 4);
	transport_peer_free(take_ptr(e.peer));
	close(raw);
	end_fini(&e);
	messages_free(m, 1);
}
