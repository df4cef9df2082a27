/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers fixture: the implementation
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "peers_fixture.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.pb-c.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

uv_loop_t loop;
const char *const v4[1] = {"127.0.0.1"}, *const v6[1] = {"::1"};
const uint8_t id_a[PEER_HOST_ID] = {[0 ... 15] = 0xa1}, id_b[PEER_HOST_ID] = {[0 ... 15] = 0xb2};

static void on_up(void *arg, struct peer *peer)
{
	struct side *s = arg;

	cr_assert(s->merges || !s->peer || s->peer == peer);
	cr_assert_eq(s->nfds % STREAMS, 0);
	s->peer = peer;
	s->ups++;
}

static void on_down(void *arg, struct peer *peer, enum status status, const char *reason)
{
	struct side *s = arg;

	s->downs++;
	s->status = status;
	s->peer = NULL;
	snprintf(s->reason, sizeof(s->reason), "%s", reason);
}

static void on_message(void *arg, struct peer *peer, uint16_t type, const uint8_t *body,
		       size_t size)
{
	struct side *s = arg;
	Rocecomm__Peer__CommGo *go;

	cr_assert_gt(s->ups, 0, "a message before up");
	cr_assert_eq(type, PEER_MSG_COMM_GO);
	go = rocecomm__peer__comm_go__unpack(NULL, size, body);
	cr_assert(go && go->uid.len < sizeof(s->body));
	memcpy(s->body, go->uid.data, go->uid.len);
	rocecomm__peer__comm_go__free_unpacked(go, NULL);
	s->messages++;
}

static void on_stream(void *arg, struct peer *peer, int fd, unsigned int index)
{
	struct side *s = arg;

	cr_assert_lt(index, STREAMS);
	cr_assert_lt(s->nfds, MAX_FDS);
	s->fd[(s->nfds / STREAMS) * STREAMS + index] = fd;
	s->nfds++;
}

static void on_merged(void *arg, struct peer *from, struct peer *into)
{
	struct side *s = arg;

	s->merges++;
	s->peer = into;
}

static uint64_t on_heard(void *arg, struct peer *peer)
{
	const struct side *s = arg;

	return MIN(uv_now(&loop), s->data_until);
}

const struct peers_events events = {
	.up = on_up,
	.down = on_down,
	.message = on_message,
	.stream = on_stream,
	.merged = on_merged,
	.heard = on_heard,
};

/* Options of a side; tests change what they are about. */
struct peers_options options(uint8_t id, const char *name)
{
	struct peers_options o = {
		.name = name,
		.version = "1",
		.streams = STREAMS,
		.heartbeat_ms = 50,
		.peer_timeout_ms = 400,
		.connect_timeout_ms = 2000,
	};

	memset(o.host_id, id, sizeof(o.host_id));
	return o;
}

void side_open(struct side *s, const struct peers_options *o)
{
	memset(s, 0, sizeof(*s));
	cr_assert_eq(peers_new(&loop, o, &events, s, &s->peers), 0);
}

static void on_tick(uv_timer_t *timer)
{
}

/* Runs the loop until *what reaches @value, or for @ms. */
bool run_until(const int *what, int value, unsigned int ms)
{
	uint64_t end = uv_hrtime() / 1000000 + ms;
	uv_timer_t tick;

	uv_timer_init(&loop, &tick);
	uv_timer_start(&tick, on_tick, 5, 5);
	while (*what < value && uv_hrtime() / 1000000 < end) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	uv_close((uv_handle_t *)&tick, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
	return *what >= value;
}

void run_for(unsigned int ms)
{
	const int never = 0;

	run_until(&never, 1, ms);
}

static void on_closed(void *arg)
{
	struct side *s = arg;

	s->closed++;
}

void side_close(struct side *s)
{
	peers_close(s->peers, on_closed, s);
	cr_assert(run_until(&s->closed, 1, 2000), "something stays in the loop");
	s->peers = peers_free(s->peers);
	for (unsigned int i = 0; i < MAX_FDS; i++) {
		if (i < s->nfds) {
			close(s->fd[i]);
		}
	}
}

void fixture_setup(void)
{
	signal(SIGPIPE, SIG_IGN); /* see peers.h */
	log_open(LOG_LEVEL_ERROR);
	uv_loop_init(&loop);
}

void fixture_teardown(void)
{
	cr_assert_eq(uv_loop_close(&loop), 0, "a handle is left");
}

/* Asks @from for a link to @to at these addresses. */
void dial(struct side *from, struct side *to, const uint8_t *id, const char *const *texts, size_t n)
{
	struct peer_host host = {
		.name = "the-other",
		.addresses = texts,
		.naddresses = n,
		.port = peers_port(to->peers),
	};

	if (id) {
		memcpy(host.host_id, id, sizeof(host.host_id));
	}
	cr_assert_eq(peers_connect(from->peers, &host, &from->peer), 0);
	cr_assert_eq(from->ups + from->downs, 0, "an event before the call returned");
}

void send_text(struct side *s, const char *text)
{
	Rocecomm__Peer__CommGo go = ROCECOMM__PEER__COMM_GO__INIT;

	go.uid.data = (uint8_t *)text;
	go.uid.len = strlen(text) + 1;
	cr_assert_eq(peer_send(s->peer, PEER_MSG_COMM_GO, &go.base), 0);
}

/* Every stream of one side is wired to the stream of the same index of the other. */
void check_streams(struct side *a, struct side *b)
{
	cr_assert_eq(a->nfds, STREAMS);
	cr_assert_eq(b->nfds, STREAMS);
	for (unsigned int i = 0; i < STREAMS; i++) {
		char text[32], got[32] = "";
		struct pollfd p = {.fd = b->fd[i], .events = POLLIN};
		int n = snprintf(text, sizeof(text), "stream %u", i);

		cr_assert_eq(send(a->fd[i], text, (size_t)n, 0), n);
		cr_assert_eq(poll(&p, 1, 1000), 1);
		cr_assert_eq(recv(b->fd[i], got, sizeof(got), 0), n);
		cr_assert_str_eq(got, text);
	}
}

void link_up(struct side *a, struct side *b, const char *const *texts, const uint8_t *id)
{
	const struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");

	side_open(a, &oa);
	side_open(b, &ob);
	dial(a, b, id, texts, 1);
	cr_assert(run_until(&a->ups, 1, 2000), "%s", a->reason);
	cr_assert(run_until(&b->ups, 1, 2000));
}

void write_key(char *path, char digit)
{
	char line[65];
	int fd = mkstemp(path);

	memset(line, digit, 64);
	line[64] = '\n';
	cr_assert_eq(write(fd, line, sizeof(line)), (ssize_t)sizeof(line));
	close(fd);
}

/* A listener that never answers stands for an address that swallows packets. */
int silent_listener(const char *text, uint16_t port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	inet_pton(AF_INET, text, &sin.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	cr_assert_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	cr_assert_eq(listen(fd, 8), 0);
	return fd;
}
