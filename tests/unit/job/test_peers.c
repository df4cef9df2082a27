/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of peers: two daemons' ends of a link, in one loop, over loopback
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <uv.h>

#include "job/datahello.h"
#include "job/peers.h"
#include "peer.pb-c.h"
#include "proto/base.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "util/log.h"

#define STREAMS 3
#define MAX_FDS 16

/* One daemon. */
struct side {
	struct peers *peers;
	struct peer *peer;
	int ups, downs, messages, merges, closed;
	enum status status;
	char reason[1024];
	char body[64];
	int fd[MAX_FDS];
	unsigned int nfds;
	bool echo; /* answers the first message */
};

static uv_loop_t loop;

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

static const struct peers_events events = {
	.up = on_up,
	.down = on_down,
	.message = on_message,
	.stream = on_stream,
	.merged = on_merged,
};

/* Options of a side; tests change what they are about. */
static struct peers_options options(uint8_t id, const char *name)
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

static void side_open(struct side *s, const struct peers_options *o)
{
	memset(s, 0, sizeof(*s));
	cr_assert_eq(peers_new(&loop, o, &events, s, &s->peers), 0);
}

static void on_tick(uv_timer_t *timer)
{
}

/* Runs the loop until *what reaches @value, or for @ms. */
static bool run_until(const int *what, int value, unsigned int ms)
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

static void run_for(unsigned int ms)
{
	const int never = 0;

	run_until(&never, 1, ms);
}

static void on_closed(void *arg)
{
	struct side *s = arg;

	s->closed++;
}

static void side_close(struct side *s)
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

static void setup(void)
{
	log_open(LOG_LEVEL_ERROR);
	uv_loop_init(&loop);
}

static void teardown(void)
{
	cr_assert_eq(uv_loop_close(&loop), 0, "a handle is left");
}

TestSuite(peers, .init = setup, .fini = teardown, .timeout = 60);

/* Asks @from for a link to @to at these addresses. */
static void dial(struct side *from, struct side *to, const uint8_t *id, const char *const *texts,
		 size_t n)
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

static const char *const v4[] = {"127.0.0.1"}, *const v6[] = {"::1"};
static const uint8_t id_a[16] = {[0 ... 15] = 0xa1}, id_b[16] = {[0 ... 15] = 0xb2};

static void send_text(struct side *s, const char *text)
{
	Rocecomm__Peer__CommGo go = ROCECOMM__PEER__COMM_GO__INIT;

	go.uid.data = (uint8_t *)text;
	go.uid.len = strlen(text) + 1;
	cr_assert_eq(peer_send(s->peer, PEER_MSG_COMM_GO, &go.base), 0);
}

/* Every stream of one side is wired to the stream of the same index of the other. */
static void check_streams(struct side *a, struct side *b)
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

static void link_up(struct side *a, struct side *b, const char *const *texts, const uint8_t *id)
{
	const struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");

	side_open(a, &oa);
	side_open(b, &ob);
	dial(a, b, id, texts, 1);
	cr_assert(run_until(&a->ups, 1, 2000), "%s", a->reason);
	cr_assert(run_until(&b->ups, 1, 2000));
}

Test(peers, connect_v4)
{
	struct side a, b;

	link_up(&a, &b, v4, id_b);
	cr_assert(peer_is_up(a.peer) && peer_is_up(b.peer));
	cr_assert_str_eq(peer_name(a.peer), "beta");
	cr_assert_str_eq(peer_name(b.peer), "alpha");
	cr_assert_arr_eq(peer_host_id(b.peer), id_a, 16);
	cr_assert(strstr(peer_address(a.peer), "127.0.0.1:") &&
			  strstr(peer_address(a.peer), " via lo"),
		  "%s", peer_address(a.peer));
	check_streams(&a, &b);
	send_text(&a, "ping");
	send_text(&b, "pong");
	cr_assert(run_until(&b.messages, 1, 1000) && run_until(&a.messages, 1, 1000));
	cr_assert_str_eq(b.body, "ping");
	cr_assert_str_eq(a.body, "pong");
	cr_assert_eq(peers_find(a.peers, id_b), a.peer);
	run_for(1000); /* heartbeats keep an idle link */
	cr_assert_eq(a.downs + b.downs, 0);
	side_close(&a);
	cr_assert(run_until(&b.downs, 1, 1000));
	side_close(&b);
}

Test(peers, connect_v6)
{
	struct side a, b;
	int probe = socket(AF_INET6, SOCK_STREAM, 0);
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

	if (probe < 0 || bind(probe, (struct sockaddr *)&any, sizeof(any)) < 0) {
		base_close(probe);
		return; /* a machine without IPv6 */
	}
	close(probe);
	link_up(&a, &b, v6, id_b);
	cr_assert(strstr(peer_address(a.peer), "[::1]:"), "%s", peer_address(a.peer));
	check_streams(&b, &a);
	side_close(&b);
	side_close(&a);
}

Test(peers, queue_while_connecting_and_share)
{
	const struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct peer *first;
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	first = a.peer;
	send_text(&a, "early");
	dial(&a, &b, id_b, v4, 1);
	cr_assert_eq(a.peer, first, "one link a host");
	dial(&a, &b, NULL, v4, 1);
	cr_assert_eq(a.peer, first, "found by its addresses");
	cr_assert(run_until(&b.messages, 1, 2000));
	cr_assert_str_eq(b.body, "early");
	cr_assert(run_until(&a.ups, 1, 2000));
	run_for(50);
	cr_assert_eq(a.ups, 1);
	cr_assert_eq(b.ups, 1);
	side_close(&a);
	side_close(&b);
}

/* Both at once, by known or unknown id, either one first: one link on both sides, both learn it. */
Test(peers, both_at_once)
{
	for (int round = 0; round < 8; round++) {
		struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
		struct side a, b;

		side_open(&a, &oa);
		side_open(&b, &ob);
		if (round & 4) {
			dial(&b, &a, round & 2 ? NULL : id_a, v4, 1);
		}
		dial(&a, &b, round & 1 ? NULL : id_b, v4, 1);
		if (!(round & 4)) {
			dial(&b, &a, round & 2 ? NULL : id_a, v4, 1);
		}
		send_text(&a, "from a");
		send_text(&b, "from b");
		cr_assert(run_until(&a.messages, 1, 2000), "round %d: %s", round, a.reason);
		cr_assert(run_until(&b.messages, 1, 2000), "round %d: %s", round, b.reason);
		cr_assert_str_eq(a.body, "from b");
		cr_assert_str_eq(b.body, "from a");
		run_for(150);
		cr_assert(a.ups == 1 && b.ups == 1, "round %d: %d %d", round, a.ups, b.ups);
		cr_assert_eq(a.downs + b.downs, 0, "round %d: %s %s", round, a.reason, b.reason);
		check_streams(&a, &b);
		side_close(&a);
		side_close(&b);
	}
}

static void write_key(char *path, char digit)
{
	char line[65];
	int fd = mkstemp(path);

	memset(line, digit, 64);
	line[64] = '\n';
	cr_assert_eq(write(fd, line, sizeof(line)), (ssize_t)sizeof(line));
	close(fd);
}

Test(peers, cluster_key)
{
	char one[] = "/tmp/rocecomm-one-XXXXXX", two[] = "/tmp/rocecomm-two-XXXXXX";
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	write_key(one, '1');
	write_key(two, '2');
	oa.key_path = ob.key_path = one;
	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.ups, 1, 2000), "%s", a.reason);
	side_close(&b);
	cr_assert(run_until(&a.downs, 1, 1000));
	a.ups = a.downs = 0;

	ob.key_path = two;
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_PERMISSION);
	cr_assert(strstr(a.reason, "the other host has another cluster key"), "%s", a.reason);
	side_close(&b);
	a.downs = 0;

	ob.key_path = NULL; /* the key for loopback is not ours either */
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_PERMISSION);
	side_close(&b);
	side_close(&a);
	unlink(one);
	unlink(two);
}

Test(peers, no_key_no_network)
{
	static const char *const far[] = {"192.0.2.1", "2001:db8::1"}, *const any[] = {"0.0.0.0"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, far, 2);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_PERMISSION);
	cr_assert(strstr(a.reason, "no cluster key: run `rocectl key new` and copy "
				   "/etc/rocecomm/cluster.key to all hosts"),
		  "%s", a.reason);
	side_close(&a);
	side_close(&b);

	log_set_level(0);
	oa.listen = any;
	oa.nlisten = 1;
	cr_assert_eq(peers_new(&loop, &oa, &events, &a, &a.peers), -EACCES);
	oa.nlisten = 0;
	oa.key_path = "/nonexistent/key";
	cr_assert_eq(peers_new(&loop, &oa, &events, &a, &a.peers), -ENOENT);
}

Test(peers, address_fallback)
{
	static const char *const texts[] = {"127.0.0.9", "127.0.0.1"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob); /* listens on 127.0.0.1 only, so .9 refuses */
	dial(&a, &b, id_b, texts, 2);
	cr_assert(run_until(&a.ups, 1, 2000), "%s", a.reason);
	cr_assert(strstr(peer_address(a.peer), "127.0.0.1:"));
	side_close(&a);
	side_close(&b);
}

/* A listener that never answers stands for an address that swallows packets. */
static int silent_listener(const char *text, uint16_t port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	inet_pton(AF_INET, text, &sin.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	cr_assert_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	cr_assert_eq(listen(fd, 8), 0);
	return fd;
}

Test(peers, address_fallback_silent)
{
	static const char *const texts[] = {"127.0.0.8", "127.0.0.1"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	uint64_t start, took;
	struct side a, b;
	int fd;

	side_open(&a, &oa);
	side_open(&b, &ob);
	fd = silent_listener("127.0.0.8", peers_port(b.peers));
	start = uv_hrtime();
	dial(&a, &b, id_b, texts, 2);
	cr_assert(run_until(&a.ups, 1, 2000), "%s", a.reason);
	took = (uv_hrtime() - start) / 1000000;
	cr_assert(took >= 150 && took < 1000, "%lu ms", (unsigned long)took);
	side_close(&a);
	side_close(&b);
	close(fd);
}

Test(peers, unreachable_names_all)
{
	static const char *const texts[] = {"127.0.0.9", "127.0.0.8", "example.org"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;
	int fd;

	oa.connect_timeout_ms = 500;
	side_open(&a, &oa);
	side_open(&b, &ob);
	fd = silent_listener("127.0.0.8", peers_port(b.peers));
	dial(&a, &b, id_b, texts, 3);
	cr_assert(run_until(&a.downs, 1, 2000));
	cr_assert_eq(a.status, STATUS_UNREACHABLE);
	cr_assert(strstr(a.reason, "the-other") && strstr(a.reason, "127.0.0.9:") &&
			  strstr(a.reason, "refused") && strstr(a.reason, "127.0.0.8:") &&
			  strstr(a.reason, "no answer within 500 ms") &&
			  strstr(a.reason, "example.org: not a numeric address"),
		  "%s", a.reason);
	side_close(&a);
	side_close(&b);
	close(fd);
}

Test(peers, no_address)
{
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, NULL, 0);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "no address"), "%s", a.reason);
	side_close(&a);
	side_close(&b);
}

/* Our own address, under another host's id or none: recognised, and no link. */
Test(peers, ourselves)
{
	struct peers_options oa = options(0xa1, "alpha");
	struct peer_host host = {.addresses = v4, .naddresses = 1};
	struct side a;

	side_open(&a, &oa);
	dial(&a, &a, NULL, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "leads back to this host"), "%s", a.reason);
	a.downs = 0;
	dial(&a, &a, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "leads back to this host"), "%s", a.reason);
	host.port = peers_port(a.peers);
	cr_assert(peers_is_self(a.peers, &host));
	host.port++;
	cr_assert(!peers_is_self(a.peers, &host));
	memcpy(host.host_id, id_a, 16);
	cr_assert(peers_is_self(a.peers, &host));
	cr_assert_eq(peers_connect(a.peers, &host, &a.peer), -EINVAL);
	run_for(50);
	cr_assert_eq(a.ups, 0);
	side_close(&a);
}

Test(peers, another_daemon_answers)
{
	static const uint8_t id_c[16] = {0xc3};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_c, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "another daemon answers there (host beta"), "%s", a.reason);
	run_for(50);
	cr_assert_eq(b.ups + b.downs, 0);
	side_close(&a);
	side_close(&b);
}

Test(peers, settings)
{
	static const struct peers_setting sa[] = {{"chunk_bytes", "1048576"}, {"ring_min", "7"}};
	static const struct peers_setting sb[] = {{"chunk_bytes", "524288"}, {"ring_min", "7"}};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	oa.settings = sa;
	ob.settings = sb;
	oa.nsettings = ob.nsettings = 2;
	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_MISMATCH);
	cr_assert(strstr(a.reason, "chunk_bytes") && strstr(a.reason, "1048576") &&
			  strstr(a.reason, "524288") && strstr(a.reason, "alpha") &&
			  strstr(a.reason, "beta") && !strstr(a.reason, "ring_min"),
		  "%s", a.reason);
	side_close(&b);
	a.downs = 0;

	ob.settings = sa;
	ob.nsettings = 1; /* one that the other does not know */
	side_open(&b, &ob);
	dial(&a, &b, NULL, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "ring_min"), "%s", a.reason);
	side_close(&b);
	a.downs = 0;

	ob.nsettings = 2;
	side_open(&b, &ob);
	dial(&a, &b, NULL, v4, 1);
	cr_assert(run_until(&a.ups, 1, 1000), "%s", a.reason);
	side_close(&b);
	side_close(&a);
}

Test(peers, goodbye)
{
	struct side a, b;

	link_up(&a, &b, v4, NULL);
	peers_stop(b.peers, "maintenance until noon");
	cr_assert_eq(b.downs, 1);
	cr_assert_eq(b.status, STATUS_SHUTDOWN);
	cr_assert(run_until(&a.downs, 1, 500));
	cr_assert_eq(a.status, STATUS_PEER_DIED);
	cr_assert(strstr(a.reason, "beta") && strstr(a.reason, "maintenance until noon"), "%s",
		  a.reason);
	cr_assert_null(peers_find(a.peers, id_b));
	cr_assert_eq(peers_connect(b.peers, &(struct peer_host){.port = 1}, &b.peer), -ESHUTDOWN);
	side_close(&a);
	side_close(&b);
}
