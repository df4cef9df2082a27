/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Buffers that devices take long to register: who is answered when
 *
 * The engine is a fake; its regions are ready when the test says so.
 *
 * Thread: the test's      Owns: the server      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/server.h"
#include "proto/base.h"
#include "proto/fdpass.h"
#include "proto/frame.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"
#include "tests/fake/fake_engine.h"
#include "tests/fake/fake_net.h"

#define TYPES 256

struct desk {
	struct fake_net *net;
	struct server *server;
	int listen_fd;
	bool stopped;
};

struct client {
	struct desk *desk;
	struct frame_decoder decoder;
	int fd;
	unsigned int answers[TYPES]; /* by type */
	uint32_t buffer;	     /* of the last BufferReady */
};

static void take(struct client *c, const struct frame *frame)
{
	Rocecomm__BufferReady *ready;

	cr_assert_lt(frame->type, TYPES);
	c->answers[frame->type]++;
	if (frame->type == MSG_BUFFER_READY) {
		ready = rocecomm__buffer_ready__unpack(NULL, frame->length, frame->body);
		cr_assert(ready);
		c->buffer = ready->buffer;
		rocecomm__buffer_ready__free_unpacked(ready, NULL);
	}
}

/* Runs the loop and reads what comes. */
static void turn(struct client *c)
{
	uint8_t buf[4096];
	ssize_t n;

	fake_run(c->desk->net);
	while ((n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		for (size_t at = 0, used; at < (size_t)n; at += used) {
			struct frame *frame;

			if (frame_decode(&c->decoder, buf + at, (size_t)n - at, &used, &frame) ==
			    0) {
				take(c, frame);
			}
		}
		fake_run(c->desk->net);
	}
}

static void say(struct client *c, uint16_t type, uint64_t serial, const void *msg, int fd)
{
	uint8_t *data;
	size_t size;

	cr_assert_eq(frame_pack(type, fd >= 0, serial, msg, &data, &size), 0);
	cr_assert_eq(fd_send(c->fd, data, size, &fd, fd >= 0), (ssize_t)size);
	free(data);
	turn(c);
}

static void client_begin(struct client *c, struct desk *d)
{
	static const struct hello hello = {PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, 0};
	Rocecomm__ClientHello msg = ROCECOMM__CLIENT_HELLO__INIT;
	struct sockaddr_un address;
	socklen_t length = sizeof(address);
	uint8_t bytes[HELLO_SIZE];
	char name[] = "test";

	*c = (struct client){.desk = d};
	frame_decoder_init(&c->decoder);
	cr_assert_eq(getsockname(d->listen_fd, (struct sockaddr *)&address, &length), 0);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(c->fd, (struct sockaddr *)&address, length), 0);
	hello_encode(bytes, HELLO_MAGIC_CLIENT, &hello);
	cr_assert_eq(fd_send(c->fd, bytes, sizeof(bytes), NULL, 0), (ssize_t)sizeof(bytes));
	fake_run(d->net);
	cr_assert_eq(recv(c->fd, bytes, sizeof(bytes), MSG_WAITALL), (ssize_t)sizeof(bytes));
	msg.name = name;
	msg.pid = 1;
	say(c, MSG_CLIENT_HELLO, 1, &msg, -1);
	cr_assert_eq(c->answers[MSG_WELCOME], 1);
}

static void client_end(struct client *c)
{
	close(c->fd);
	frame_decoder_deinit(&c->decoder);
}

static void ask(struct client *c, uint64_t serial)
{
	Rocecomm__BufferRegister msg = ROCECOMM__BUFFER_REGISTER__INIT;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_eq(ftruncate(fd, 4096), 0);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	msg.size = 4096;
	say(c, MSG_BUFFER_REGISTER, serial, &msg, fd);
	close(fd);
}

static void give_back(struct client *c, uint64_t serial, uint32_t buffer)
{
	Rocecomm__BufferDeregister msg = ROCECOMM__BUFFER_DEREGISTER__INIT;

	msg.buffer = buffer;
	say(c, MSG_BUFFER_DEREGISTER, serial, &msg, -1);
}

static void desk_begin(struct desk *d)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct server_options o = {0};

	*d = (struct desk){.net = fake_net_new(1, 1)};
	d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* A name of the kernel's choice. */
	cr_assert_eq(bind(d->listen_fd, (struct sockaddr *)&address, sizeof(address.sun_family)),
		     0);
	cr_assert_eq(listen(d->listen_fd, 4), 0);
	o.loop = fake_loop(d->net);
	o.listen_fd = d->listen_fd;
	o.engine = fake_engine(d->net, 0);
	o.jobs = fake_jobs(d->net, 0);
	o.peers = fake_peers(d->net, 0);
	o.config = fake_config(d->net);
	cr_assert_eq(server_new(&o, &d->server), 0);
	fake_engine_slow(o.engine, true);
}

static void stopped(void *arg)
{
	struct desk *d = arg;

	d->stopped = true;
}

static void desk_end(struct desk *d)
{
	for (int i = 0; i < 2000 && server_sessions(d->server) > 0; i++) {
		fake_run_ms(d->net, 1);
	}
	cr_assert_eq(server_sessions(d->server), 0);
	server_stop(d->server, STATUS_SHUTDOWN, "the test is over", stopped, d);
	for (int i = 0; i < 200 && !d->stopped; i++) {
		fake_run(d->net);
		server_reap(d->server);
	}
	server_free(d->server);
	close(d->listen_fd);
	fake_net_free(d->net);
}

/* The client waits for its answer, nobody else does. */
Test(register, answered_when_ready, .timeout = 60)
{
	struct client slow, other;
	struct desk d;

	desk_begin(&d);
	client_begin(&slow, &d);
	client_begin(&other, &d);
	ask(&slow, 2);
	cr_assert_eq(slow.answers[MSG_BUFFER_READY], 0);
	/* A number that nobody was told is no buffer's. */
	give_back(&slow, 3, 1);
	cr_assert_eq(slow.answers[MSG_ERROR], 1);
	fake_engine_slow(fake_engine(d.net, 0), false);
	ask(&other, 2);
	cr_assert_eq(other.answers[MSG_BUFFER_READY], 1);
	fake_engine_ready(fake_engine(d.net, 0));
	turn(&slow);
	cr_assert_eq(slow.answers[MSG_BUFFER_READY], 1);
	give_back(&slow, 4, slow.buffer);
	turn(&slow);
	cr_assert_eq(slow.answers[MSG_DONE], 1);
	client_end(&slow);
	client_end(&other);
	desk_end(&d);
}

/* It can be used before devices have it: the client does not wait for ever, and is told once. */
Test(register, answered_in_time, .timeout = 60)
{
	struct client c;
	struct desk d;

	desk_begin(&d);
	client_begin(&c, &d);
	ask(&c, 2);
	for (int i = 0; i < 100 && c.answers[MSG_BUFFER_READY] == 0; i++) {
		fake_run_ms(d.net, 100);
		turn(&c);
	}
	cr_assert_eq(c.answers[MSG_BUFFER_READY], 1);
	fake_engine_ready(fake_engine(d.net, 0));
	turn(&c);
	cr_assert_eq(c.answers[MSG_BUFFER_READY], 1);
	client_end(&c);
	desk_end(&d);
}

/* The client dies before its memory is ready. */
Test(register, client_dies, .timeout = 60)
{
	struct client c;
	struct desk d;

	desk_begin(&d);
	client_begin(&c, &d);
	ask(&c, 2);
	client_end(&c);
	desk_end(&d);
}
