/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the TCP backend: two contexts of one process that talk to each other
 *
 * Thread: one, or one a context      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/transport/tcp_fixture.h"

static void run_sizes(unsigned int streams, enum mode mode, uint32_t pieces, bool tcp)
{
	static const uint64_t sizes[] = {0,    1,	   63,	   64,	       4096,
					 4097, 262144 - 1, 262144, 262144 + 1, 5 * 1024 * 1024};
	uint32_t n = ARRAY_SIZE(sizes);
	struct message *m = calloc(n, sizeof(*m));
	struct end a, b;

	end_init(&a, 0, mode);
	end_init(&b, 0, mode);
	end_join(&a, &b, streams, tcp);
	b.incoming = m;
	b.incoming_count = n;
	for (uint32_t i = 0; i < n; i++) {
		message_init(&m[i], i, sizes[i], pieces, &a);
		transport_send(a.peer, &m[i].send);
	}
	while ((b.done < n || a.sent < n) && !a.down && !b.down) {
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

static uint64_t with_headers(uint64_t length)
{
	return length + WIRE_SIZE * MAX(DIV_UP(length, 262144), 1);
}

/* Two accounts and nobody: bytes are exact, and calls belong to whom they served alone. */
Test(tcp, accounts)
{
	static const uint64_t sizes[] = {0, 100, 262144, 3 << 20, 100, 5};
	uint64_t bytes[2] = {0, 0}, all = 0;
	uint32_t n = ARRAY_SIZE(sizes);
	struct message *m = calloc(n, sizeof(*m));
	struct transport_stats out, in;
	uint64_t sent, received;
	struct comm_view *v[2];
	struct end a, b;

	end_init(&a, 0, MODE_MIXED);
	end_init(&b, 0, MODE_IOV);
	end_join(&a, &b, 1, true);
	b.incoming = m;
	b.incoming_count = n;
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert_eq(comm_view_new(0, &v[i]), 0);
	}
	for (uint32_t i = 0; i < n; i++) {
		message_init(&m[i], i, sizes[i], 3, &a);
		m[i].send.account = i < 4 ? v[i % 2] : NULL;
		bytes[i % 2] += i < 4 ? with_headers(sizes[i]) : 0;
		all += with_headers(sizes[i]);
		transport_send(a.peer, &m[i].send);
	}
	while ((b.done < n || a.sent < n) && !a.down && !b.down) {
		transport_poll(a.t);
		transport_poll(b.t);
	}
	transport_get_stats(a.t, &out);
	transport_get_stats(b.t, &in);
	cr_assert(out.bytes_sent == all && in.bytes_received == all);
	transport_peer_bytes(a.peer, &sent, &received);
	cr_assert(sent == all && received == 0);
	transport_peer_bytes(b.peer, &sent, &received);
	cr_assert(sent == 0 && received == all);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert_eq(counter_get(&v[i]->bytes_wire_sent), bytes[i]);
		cr_assert_eq(counter_get(&v[i]->bytes_wire_received), bytes[i]);
	}
	cr_assert_gt(counter_get(&v[1]->syscalls), 0);
	cr_assert_leq(counter_get(&v[0]->syscalls) + counter_get(&v[1]->syscalls),
		      out.syscalls + in.syscalls);
	cr_assert_leq(counter_get(&v[0]->bytes_copied) + counter_get(&v[1]->bytes_copied),
		      in.bytes_copied);
	end_fini(&a);
	end_fini(&b);
	messages_free(m, n);
	for (uint32_t i = 0; i < 2; i++) {
		comm_view_free(v[i]);
	}
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
	end_join(&e[0], &e[1], streams, true);
	for (uint32_t k = 0; k < n; k++) {
		for (int i = 0; i < 2; i++) {
			uint64_t length =
				test_random(&seed) % (1u << (1 + test_random(&seed) % 19));
			uint32_t pieces = 1 + (uint32_t)test_random(&seed) % 9;

			message_init(&m[!i][k], k, length, pieces, &e[i]);
			transport_send(e[i].peer, &m[!i][k].send);
		}
		if (test_random(&seed) % 4 == 0) {
			transport_poll(e[test_random(&seed) % 2].t);
		}
	}
	while ((e[0].done < n || e[1].done < n || e[0].sent < n || e[1].sent < n) && !e[0].down &&
	       !e[1].down) {
		transport_poll(e[test_random(&seed) % 2].t);
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

static bool all_sent(const struct message *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!m[i].sent) {
			return false;
		}
	}
	return true;
}

Test(tcp, free_in_any_callback)
{
	for (enum callback c = CALL_BEGIN; c <= CALL_DOWN; c++) {
		for (enum mode mode = MODE_IOV; mode <= MODE_MIXED; mode++) {
			struct end a, b;
			struct message *m, *back;
			/* Every fragment of a lane takes both threads. */
			uint32_t n = 30, fragment = end_lanes() ? 65536 : 4096;
			/* What is dropped has no fragment callback. */
			bool stays = c == CALL_FRAGMENT && mode == MODE_DISCARD;
			bool over = false;

			end_init(&a, fragment, mode);
			end_init(&b, fragment, mode);
			end_join(&a, &b, 2, true);
			m = end_expect(&b, n, 300000);
			back = end_expect(&a, n, 300000);
			b.free_in = c;
			for (uint32_t i = 0; i < n; i++) {
				m[i].send.user = &a;
				back[i].send.user = &b;
				transport_send(a.peer, &m[i].send);
				if (b.peer) {
					transport_send(b.peer, &back[i].send);
				}
			}
			for (int i = 0; i < 300 || (end_lanes() && i < 100000000 && !over); i++) {
				transport_poll(a.t);
				transport_poll(b.t);
				over = all_sent(m, n) && (b.peer == NULL || stays);
				if (c == CALL_DOWN && i == 1) {
					a.peer = transport_peer_free(a.peer);
				}
			}
			cr_assert(b.peer == NULL || stays, "callback %d, mode %d", c, mode);
			for (uint32_t i = 0; i < n; i++) {
				cr_assert_eq(m[i].sent, 1, "callback %d, mode %d, message %u: %d",
					     c, mode, i, m[i].sent);
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

Test(tcp, api_limits)
{
	struct transport_options options = {.fragment = 100};
	struct transport *t = NULL;
	struct message *m;
	struct end e;
	int fd[2];

	cr_assert_eq(transport_new(&options, &test_handler, NULL, &t), -EINVAL);
	end_init(&e, 0, MODE_IOV);
	m = end_expect(&e, 1, 10);
	transport_send(e.peer, &m[0].send); /* no stream yet */
	for (int i = 0; i < 16; i++) {
		close(end_join_raw(&e));
	}
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	cr_assert_eq(transport_peer_add_stream(e.peer, fd[0], false), -ENOSPC);
	end_settle(&e, true);
	cr_assert(e.down == 1 && m[0].sent == 1);
	cr_assert_eq(transport_peer_add_stream(e.peer, fd[0], false), -ENOTCONN);
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
		if (!transport_arm(s->e.t)) {
			continue;
		}
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
	end_join(&s[0].e, &s[1].e, streams, true);
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
