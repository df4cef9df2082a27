/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the session: a client that says anything
 *
 * The first byte chooses: 0: the rest are raw bytes from the very first on. Else hello and
 * ClientHello are sent, then messages of 1 byte type, 1 byte descriptors (of a good memfd), 1 byte
 * length, body. Type 255 joins with a real unique id: its body is rank, size, and whether the id is
 * the last one again. In the end the client hangs up and nothing is left of it.
 *
 * Thread: one      Owns: the server      Locks: none
 */
#include <fcntl.h>
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
#include "tests/fake/fake_net.h"
#include "tests/fuzz/fuzz.h"

struct fuzz {
	struct fake_net *net;
	struct server *server;
	int listen_fd;
	int fd; /* the client's */
	int memfd;
	bool stopped;
};

static void fuzz_turn(struct fuzz *f)
{
	uint8_t sink[4096];

	fake_run(f->net);
	while (recv(f->fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
	}
	fake_run(f->net);
}

static void fuzz_send(struct fuzz *f, const void *data, size_t size, unsigned int nfds)
{
	int fds[LIMIT_FRAME_FDS];

	nfds = MIN(nfds, (unsigned int)LIMIT_FRAME_FDS);
	for (unsigned int i = 0; i < nfds; i++) {
		fds[i] = f->memfd;
	}
	if (size > 0) {
		fd_send(f->fd, data, size, fds, nfds);
	}
	fuzz_turn(f);
}

static void fuzz_message(struct fuzz *f, uint16_t type, unsigned int nfds, const void *msg)
{
	uint8_t *data;
	size_t size;

	fuzz_check(frame_pack(type, (uint8_t)nfds, 1, msg, &data, &size) == 0);
	fuzz_send(f, data, size, nfds);
	free(data);
}

static void fuzz_greet(struct fuzz *f)
{
	static const struct hello hello = {PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, 0};
	Rocecomm__ClientHello msg = ROCECOMM__CLIENT_HELLO__INIT;
	char name[] = "fuzz";
	uint8_t bytes[HELLO_SIZE];

	hello_encode(bytes, HELLO_MAGIC_CLIENT, &hello);
	fuzz_send(f, bytes, sizeof(bytes), 0);
	msg.name = name;
	msg.pid = 1;
	fuzz_message(f, MSG_CLIENT_HELLO, 0, &msg);
}

static void fuzz_join(struct fuzz *f, const uint8_t *body, size_t size)
{
	static uint8_t id[LIMIT_UNIQUE_ID];
	Rocecomm__CommInit msg = ROCECOMM__COMM_INIT__INIT;

	/* The second join may use the id of the first. */
	if (size < 3 || body[2] == 0) {
		fuzz_check(jobs_unique_id(fake_jobs(f->net, 0), id) == 0);
	}
	msg.id.data = id;
	msg.id.len = sizeof(id);
	msg.rank = size > 0 ? body[0] : 0;
	msg.size = size > 1 ? body[1] : 1;
	fuzz_message(f, MSG_COMM_INIT, 0, &msg);
}

static void fuzz_speak(struct fuzz *f, const uint8_t *data, size_t size)
{
	while (size >= 3) {
		uint8_t frame[FRAME_HEADER + 256];
		size_t n = MIN((size_t)data[2], size - 3);

		if (data[0] == 255) {
			fuzz_join(f, data + 3, n);
		} else {
			frame_encode_header(frame, data[0], data[1] & 15, 1, (uint32_t)n);
			memcpy(frame + FRAME_HEADER, data + 3, n);
			fuzz_send(f, frame, FRAME_HEADER + n, data[1] >> 4);
		}
		data += 3 + n;
		size -= 3 + n;
	}
}

static void fuzz_open(struct fuzz *f)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t length = sizeof(address.sun_family);
	struct server_options options = {0};

	f->net = fake_net_new(1, 1);
	f->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* A name of the kernel's choice. */
	fuzz_check(bind(f->listen_fd, (struct sockaddr *)&address, length) == 0);
	fuzz_check(listen(f->listen_fd, 1) == 0);
	length = sizeof(address);
	fuzz_check(getsockname(f->listen_fd, (struct sockaddr *)&address, &length) == 0);
	options.loop = fake_loop(f->net);
	options.listen_fd = f->listen_fd;
	options.engine = fake_engine(f->net, 0);
	options.jobs = fake_jobs(f->net, 0);
	options.peers = fake_peers(f->net, 0);
	options.config = fake_config(f->net);
	fuzz_check(server_new(&options, &f->server) == 0);
	f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fuzz_check(connect(f->fd, (struct sockaddr *)&address, length) == 0);
	f->memfd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	fuzz_check(ftruncate(f->memfd, 4096) == 0);
	fuzz_check(fcntl(f->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	fuzz_turn(f);
}

static void fuzz_stopped(void *arg)
{
	struct fuzz *f = arg;

	f->stopped = true;
}

static void fuzz_close(struct fuzz *f)
{
	close(f->fd);
	for (int i = 0; i < 200 && server_sessions(f->server) > 0; i++) {
		fake_run_ms(f->net, 1);
	}
	fuzz_check(server_sessions(f->server) == 0);
	server_stop(f->server, STATUS_SHUTDOWN, "the fuzzer has seen enough", fuzz_stopped, f);
	for (int i = 0; i < 200 && !f->stopped; i++) {
		fake_run(f->net);
		server_reap(f->server);
	}
	fuzz_check(f->stopped);
	server_free(f->server);
	close(f->listen_fd);
	close(f->memfd);
	fake_net_free(f->net);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {0};

	fuzz_open(&f);
	if (size > 0 && data[0] == 0) {
		fuzz_send(&f, data + 1, MIN(size - 1, (size_t)65536), 0);
	} else if (size > 0) {
		fuzz_greet(&f);
		fuzz_speak(&f, data + 1, size - 1);
	}
	fuzz_close(&f);
	return 0;
}
