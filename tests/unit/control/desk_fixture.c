/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Desk: implementation
 *
 * Thread: the test's      Owns: see desk_fixture.h      Locks: none
 */
#include "tests/unit/control/desk_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/fdpass.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

void desk_begin(struct desk *d, struct gpu *gpu)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct server_options o = {0};

	*d = (struct desk){.net = fake_net_new(1, 1), .gpu = gpu};
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
	o.gpu = gpu;
	o.config = fake_config(d->net);
	cr_assert_eq(server_new(&o, &d->server), 0);
}

static void stopped(void *arg)
{
	struct desk *d = arg;

	d->stopped = true;
}

void desk_end(struct desk *d)
{
	for (int i = 0; i < 2000 && server_sessions(d->server) > 0; i++) {
		if (d->gpu) {
			gpu_dispatch(d->gpu);
		}
		fake_run_ms(d->net, 1);
	}
	cr_assert_eq(server_sessions(d->server), 0);
	server_stop(d->server, STATUS_SHUTDOWN, "the test is over", stopped, d);
	for (int i = 0; i < 200 && !d->stopped; i++) {
		fake_run(d->net);
		server_reap(d->server);
	}
	server_free(d->server);
	gpu_free(d->gpu);
	close(d->listen_fd);
	fake_net_free(d->net);
}

void desk_turn(struct desk_client *c)
{
	uint8_t buf[4096];
	ssize_t n;

	fake_run(c->desk->net);
	while ((n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		for (size_t at = 0, used; at < (size_t)n; at += used) {
			struct frame *frame;

			if (frame_decode(&c->decoder, buf + at, (size_t)n - at, &used, &frame) ==
			    0) {
				c->take(c, frame);
			}
		}
		fake_run(c->desk->net);
	}
}

void desk_say(struct desk_client *c, uint16_t type, uint64_t serial, const void *msg, int fd)
{
	uint8_t *data;
	size_t size;

	cr_assert_eq(frame_pack(type, fd >= 0, serial, msg, &data, &size), 0);
	cr_assert_eq(fd_send(c->fd, data, size, &fd, fd >= 0), (ssize_t)size);
	free(data);
	desk_turn(c);
}

void desk_client_begin(struct desk_client *c, struct desk *d,
		       void (*take)(struct desk_client *c, const struct frame *frame))
{
	static const struct hello hello = {PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, 0};
	Rocecomm__ClientHello msg = ROCECOMM__CLIENT_HELLO__INIT;
	struct sockaddr_un address;
	socklen_t length = sizeof(address);
	uint8_t bytes[HELLO_SIZE];
	char name[] = "test";

	*c = (struct desk_client){.desk = d, .take = take};
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
	desk_say(c, MSG_CLIENT_HELLO, 1, &msg, -1);
}

void desk_client_end(struct desk_client *c)
{
	close(c->fd);
	frame_decoder_deinit(&c->decoder);
}
