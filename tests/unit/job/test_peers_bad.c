/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of peers: strangers, versions and lies
 *
 * `struct raw` is a hand-driven end of a link that has the key and says what a test wants.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job/datahello.h"
#include "job/tls.h"
#include "peer.pb-c.h"
#include "peers_fixture.h"
#include "proto/base.h"
#include "proto/frame.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "util/log.h"

struct raw {
	int fd;
	struct tls_context *ctx;
	struct tls *tls;
	struct frame_decoder decoder;
	uint8_t plain[65536];
	size_t have;
	bool ended;
};

static char key_path[] = "/tmp/rocecomm-bad-XXXXXX";

static void setup(void)
{
	fixture_setup();
	log_set_level(0); /* refusals are what is tested */
	write_key(key_path, '1');
}

static void teardown(void)
{
	unlink(key_path);
	fixture_teardown();
}

TestSuite(peers_bad, .init = setup, .fini = teardown, .timeout = 60);

static int tcp_connect(uint16_t port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	cr_assert_eq(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	return fd;
}

static void raw_init(struct raw *raw, int fd, bool server)
{
	uint8_t key[TLS_KEY_SIZE];

	memset(raw, 0, sizeof(*raw));
	memset(key, 0x11, sizeof(key));
	raw->fd = fd;
	cr_assert_eq(tls_context_new(key, &raw->ctx), 0);
	cr_assert_eq(tls_new(raw->ctx, server, &raw->tls), 0);
	frame_decoder_init(&raw->decoder);
}

static void raw_deinit(struct raw *raw)
{
	tls_free(raw->tls);
	tls_context_free(raw->ctx);
	frame_decoder_deinit(&raw->decoder);
	base_close(raw->fd);
}

/* Moves bytes for @ms; decrypted ones are appended to plain. */
static void raw_run(struct raw *raw, unsigned int ms)
{
	for (unsigned int t = 0; t <= ms; t += 5) {
		uint8_t buf[16384];
		ssize_t n;
		size_t got;

		n = recv(raw->fd, buf, sizeof(buf), MSG_DONTWAIT);
		raw->ended = raw->ended || n == 0 || (n < 0 && errno != EAGAIN);
		if (n > 0) {
			cr_assert_eq(tls_input(raw->tls, buf, (size_t)n), 0);
		}
		while (tls_read(raw->tls, raw->plain + raw->have, sizeof(raw->plain) - raw->have,
				&got) == 0) {
			raw->have += got;
		}
		while ((got = tls_output(raw->tls, buf, sizeof(buf))) > 0) {
			send(raw->fd, buf, got, MSG_NOSIGNAL);
		}
		run_for(5);
	}
}

static void raw_write(struct raw *raw, const void *data, size_t size)
{
	cr_assert(tls_is_ready(raw->tls));
	cr_assert_eq(tls_write(raw->tls, data, size), 0);
}

static void raw_hello(struct raw *raw, uint16_t min, uint16_t max)
{
	const struct hello hello = {.min = min, .max = max};
	uint8_t buf[HELLO_SIZE];

	hello_encode(buf, HELLO_MAGIC_PEER, &hello);
	raw_write(raw, buf, sizeof(buf));
}

static void raw_send(struct raw *raw, uint16_t type, const void *msg)
{
	uint8_t *frame;
	size_t size;

	cr_assert_eq(frame_pack(type, 0, 0, msg, &frame, &size), 0);
	raw_write(raw, frame, size);
	free(frame);
}

static void raw_link_hello(struct raw *raw, const uint8_t *id, size_t id_size)
{
	Rocecomm__Peer__LinkHello msg = ROCECOMM__PEER__LINK_HELLO__INIT;
	Rocecomm__Peer__Host host = ROCECOMM__PEER__HOST__INIT;

	host.host_id.data = (uint8_t *)id;
	host.host_id.len = id_size;
	host.name = (char *)"r\naw\033[2J"; /* not fit for a log */
	msg.host = &host;
	raw_send(raw, PEER_MSG_LINK_HELLO, &msg);
}

/* The next frame behind the hello; NULL if none has come. */
static struct frame *raw_frame(struct raw *raw, size_t *at)
{
	struct frame *frame;
	size_t used;
	int r;

	*at = MAX(*at, (size_t)HELLO_SIZE);
	if (raw->have <= *at) {
		return NULL;
	}
	r = frame_decode(&raw->decoder, raw->plain + *at, raw->have - *at, &used, &frame);
	*at += used;
	return r == 0 ? frame : NULL;
}

/* A raw link to @s as far as TLS and hello. */
static void raw_open(struct raw *raw, struct side *s)
{
	raw_init(raw, tcp_connect(peers_port(s->peers)), false);
	raw_run(raw, 30);
	raw_hello(raw, PROTOCOL_PEER_VERSION_MIN, PROTOCOL_PEER_VERSION_MAX);
	raw_run(raw, 10);
	cr_assert(!raw->ended);
}

/* The same, settled as host 0xc3...; takes the tokens. */
static const uint8_t id_c[PEER_HOST_ID] = {[0 ... 15] = 0xc3};

static unsigned int raw_join(struct raw *raw, struct side *s, uint8_t tokens[][DATA_HELLO_TOKEN])
{
	Rocecomm__Peer__DataTokens *msg = NULL;
	struct frame *frame;
	unsigned int n = 0;
	size_t at = 0;

	raw_open(raw, s);
	raw_link_hello(raw, id_c, sizeof(id_c));
	raw_run(raw, 30);
	while ((frame = raw_frame(raw, &at)) != NULL) {
		if (frame->type == PEER_MSG_DATA_TOKENS) {
			msg = rocecomm__peer__data_tokens__unpack(NULL, frame->length, frame->body);
			break;
		}
	}
	if (!msg) {
		return 0;
	}
	for (; n < msg->n_tokens; n++) {
		memcpy(tokens[n], msg->tokens[n].data, DATA_HELLO_TOKEN);
	}
	rocecomm__peer__data_tokens__free_unpacked(msg, NULL);
	return n;
}

static struct peers_options key_options(uint8_t id, const char *name)
{
	struct peers_options o = options(id, name);

	o.key_path = key_path;
	return o;
}

/* A good daemon can still link to @a. */
static void check_alive(struct side *a)
{
	struct peers_options ob = key_options(0xb2, "beta");
	struct side b;
	int ups = a->ups, downs = a->downs;

	side_open(&b, &ob);
	dial(&b, a, id_a, v4, 1);
	cr_assert(run_until(&b.ups, 1, 3000), "%s", b.reason);
	cr_assert_eq(a->ups, ups + 1);
	side_close(&b);
	cr_assert(run_until(&a->downs, downs + 1, 1000));
}

/* Did the other side end this connection? */
static bool ended(int fd)
{
	char c;
	ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);

	while (n > 0) {
		n = recv(fd, &c, 1, MSG_DONTWAIT);
	}
	return n == 0 || errno != EAGAIN;
}

Test(peers_bad, garbage)
{
	static const struct {
		const char *text;
		size_t size;
	} lines[] = {
		{"GET / HTTP/1.1\r\n\r\n", 18},
		{"\x16\x03\x01\x00\x05hello and more that is no TLS", 32},
		{"\x16\x03\x01\xff\xff", 5},
		{"ROCEDATA but sixty-four bytes that mean nothing to anybody at all", 64},
		{"RST", 3},
		{"\xff", 1},
	};
	struct peers_options oa = key_options(0xa1, "alpha");
	int fd[ARRAY_SIZE(lines)];
	struct side a;

	side_open(&a, &oa);
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		fd[i] = tcp_connect(peers_port(a.peers));
		send(fd[i], lines[i].text, lines[i].size, MSG_NOSIGNAL);
	}
	run_for(700);
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		if (i != 2 && i != 4) { /* those may still become something */
			cr_assert(ended(fd[i]), "%zu", i);
		}
	}
	check_alive(&a);
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		close(fd[i]);
	}
	cr_assert_eq(a.downs, 1);
	side_close(&a);
}

/* More silent connections than are let in: others still get through, and in the end all are gone.
 */
Test(peers_bad, silent_crowd)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	struct side a;
	int fd[150];

	side_open(&a, &oa);
	for (size_t i = 0; i < ARRAY_SIZE(fd); i++) {
		fd[i] = tcp_connect(peers_port(a.peers));
	}
	run_for(100);
	check_alive(&a);
	run_for(5300);
	for (size_t i = 0; i < ARRAY_SIZE(fd); i++) {
		cr_assert(ended(fd[i]), "connection %zu is still held", i);
		close(fd[i]);
	}
	side_close(&a);
}

Test(peers_bad, version_skew_incoming)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	struct side a;
	struct raw raw;

	side_open(&a, &oa);
	raw_init(&raw, tcp_connect(peers_port(a.peers)), false);
	raw_run(&raw, 30);
	raw_hello(&raw, 100, 120);
	raw_run(&raw, 50);
	cr_assert(raw.ended);
	cr_assert_geq(raw.have, HELLO_SIZE, "it tells its versions all the same");
	raw_deinit(&raw);
	check_alive(&a);
	side_close(&a);
}

Test(peers_bad, version_skew_outgoing)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	struct peer_host host = {.addresses = v4, .naddresses = 1};
	int listener = silent_listener("127.0.0.1", 0);
	struct sockaddr_in sin;
	socklen_t size = sizeof(sin);
	struct side a;
	struct raw raw;

	cr_assert_eq(getsockname(listener, (struct sockaddr *)&sin, &size), 0);
	host.port = ntohs(sin.sin_port);
	side_open(&a, &oa);
	cr_assert_eq(peers_connect(a.peers, &host, &a.peer), 0);
	run_for(20);
	raw_init(&raw, accept(listener, NULL, NULL), true);
	raw_run(&raw, 30);
	raw_hello(&raw, 100, 120);
	raw_run(&raw, 20);
	cr_assert(run_until(&a.downs, 1, 500));
	cr_assert_eq(a.status, STATUS_VERSION);
	cr_assert(strstr(a.reason, "100 to 120") && strstr(a.reason, "3 to 3"), "%s", a.reason);
	raw_deinit(&raw);
	close(listener);
	side_close(&a);
}

/* With the key, but against the rules: each loses itself only. */
Test(peers_bad, rules)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	Rocecomm__Peer__CommGo go = ROCECOMM__PEER__COMM_GO__INIT;
	struct side a;

	side_open(&a, &oa);
	for (int i = 0; i < 8; i++) {
		uint8_t header[FRAME_HEADER], junk[100];
		struct raw raw;

		raw_open(&raw, &a);
		memset(junk, 0xee, sizeof(junk));
		switch (i) {
		case 0: /* longer than anything may be before the link is agreed on */
			frame_encode_header(header, PEER_MSG_LINK_HELLO, 0, 0, 1 << 20);
			raw_write(&raw, header, sizeof(header));
			break;
		case 1: /* descriptors cannot be with it */
			frame_encode_header(header, PEER_MSG_LINK_HELLO, 1, 0, 0);
			raw_write(&raw, header, sizeof(header));
			break;
		case 2:
			frame_encode_header(header, PEER_MSG_LINK_HELLO, 0, 0, sizeof(junk));
			raw_write(&raw, header, sizeof(header));
			raw_write(&raw, junk, sizeof(junk));
			break;
		case 3:
			raw_send(&raw, PEER_MSG_COMM_GO, &go);
			break;
		case 4:
			raw_link_hello(&raw, id_c, 15);
			break;
		case 5:
			raw_link_hello(&raw, (uint8_t[16]){0}, 16);
			break;
		case 6:
			raw_link_hello(&raw, id_a, 16); /* its own */
			break;
		case 7: /* a second time */
			raw_link_hello(&raw, id_c, 16);
			raw_link_hello(&raw, id_c, 16);
			break;
		}
		raw_run(&raw, 50);
		cr_assert(raw.ended, "case %d", i);
		raw_deinit(&raw);
	}
	check_alive(&a);
	side_close(&a);
}

static int data_connect(struct side *s, unsigned int index, const uint8_t *id, const uint8_t *token)
{
	struct data_hello hello = {.index = (uint16_t)index};
	uint8_t buf[DATA_HELLO_SIZE];
	int fd = tcp_connect(peers_port(s->peers));

	memcpy(hello.host_id, id, sizeof(hello.host_id));
	memcpy(hello.token, token, sizeof(hello.token));
	data_hello_encode(buf, &hello);
	cr_assert_eq(send(fd, buf, 10, MSG_NOSIGNAL), 10); /* in pieces */
	run_for(5);
	cr_assert_eq(send(fd, buf + 10, sizeof(buf) - 10, MSG_NOSIGNAL), sizeof(buf) - 10);
	run_for(20);
	return fd;
}

static bool acknowledged(int fd)
{
	uint8_t ack = 0;

	return recv(fd, &ack, 1, MSG_DONTWAIT) == 1 && ack == DATA_HELLO_ACK;
}

Test(peers_bad, tokens)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	uint8_t token[STREAMS][DATA_HELLO_TOKEN];
	struct side a;
	struct raw raw;
	int fd[STREAMS], bad[6];

	side_open(&a, &oa);
	cr_assert_eq(raw_join(&raw, &a, token), STREAMS);
	bad[0] = data_connect(&a, 0, id_c, token[1]);
	bad[1] = data_connect(&a, STREAMS, id_c, token[0]);
	bad[2] = data_connect(&a, 0, id_b, token[0]);
	fd[0] = data_connect(&a, 0, id_c, token[0]);
	cr_assert(acknowledged(fd[0]));
	bad[3] = data_connect(&a, 0, id_c, token[0]);
	bad[4] = data_connect(&a, 0, id_c, (uint8_t[DATA_HELLO_TOKEN]){0});
	for (unsigned int i = 1; i < STREAMS; i++) {
		cr_assert_eq(a.ups, 0);
		fd[i] = data_connect(&a, i, id_c, token[i]);
		cr_assert(acknowledged(fd[i]));
	}
	cr_assert_eq(a.ups, 1);
	bad[5] = data_connect(&a, 1, id_c, token[1]);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		cr_assert(!acknowledged(bad[i]) && ended(bad[i]), "%zu", i);
		close(bad[i]);
	}
	cr_assert_eq(a.nfds, STREAMS);
	cr_assert_str_eq(peer_name(a.peer), "r?aw?[2J");
	raw_deinit(&raw);
	cr_assert(run_until(&a.downs, 1, 500));
	for (unsigned int i = 0; i < STREAMS; i++) {
		close(fd[i]);
	}
	side_close(&a);
}

/* Nobody comes with the tokens: the link ends, and the owner, who knows nothing of it, hears
 * nothing. */
Test(peers_bad, tokens_unused)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	uint8_t token[STREAMS][DATA_HELLO_TOKEN];
	struct side a;
	struct raw raw;
	int fd;

	oa.connect_timeout_ms = 200;
	side_open(&a, &oa);
	cr_assert_eq(raw_join(&raw, &a, token), STREAMS);
	raw_run(&raw, 300);
	cr_assert(raw.ended);
	fd = data_connect(&a, 0, id_c, token[0]); /* tokens expire with the link */
	cr_assert(!acknowledged(fd) && ended(fd));
	cr_assert_eq(a.ups + a.downs, 0);
	close(fd);
	raw_deinit(&raw);
	side_close(&a);
}

/* The other side lost the link and comes back before we noticed: it waits, then goes on. */
Test(peers_bad, second_link_waits)
{
	struct peers_options oa = key_options(0xa1, "alpha");
	uint8_t token[STREAMS][DATA_HELLO_TOKEN];
	struct raw first, second;
	struct side a;

	oa.streams = 0;
	oa.peer_timeout_ms = 600;
	side_open(&a, &oa);
	raw_join(&first, &a, token);
	cr_assert_eq(a.ups, 1);
	raw_join(&second, &a, token);
	cr_assert_eq(a.ups, 1);
	cr_assert_eq(a.downs, 0);
	first.fd = base_close(first.fd);
	cr_assert(run_until(&a.ups, 2, 500));
	cr_assert_eq(a.downs, 1);
	cr_assert(!second.ended);
	raw_deinit(&first);
	raw_deinit(&second);
	side_close(&a);
}

/* Connected by an address without knowing whose it is, and it is somebody we have a link with. */
Test(peers_bad, merged)
{
	const struct peers_options oa = key_options(0xa1, "alpha"), ob = key_options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&b, &a, id_a, v4, 1);
	cr_assert(run_until(&b.ups, 1, 2000), "%s", b.reason);
	cr_assert_eq(a.ups, 1);
	a.ups = 0;
	dial(&a, &b, NULL, v4, 1);
	send_text(&a, "to whom");
	cr_assert(run_until(&a.merges, 1, 1000));
	cr_assert_eq(a.peer, peers_find(a.peers, id_b));
	cr_assert(peer_is_up(a.peer));
	cr_assert(run_until(&b.messages, 1, 1000));
	cr_assert_str_eq(b.body, "to whom");
	run_for(100);
	cr_assert_eq(a.ups + a.downs + b.downs, 0);
	side_close(&a);
	side_close(&b);
}
