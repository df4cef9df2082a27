/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU memory: what a client may ask for before it is answered, and what it is charged
 *
 * Where there is no driver everything is refused, when the control thread comes to it.
 *
 * Thread: the test's      Owns: the server      Locks: none
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/server.h"
#include "control/session.h"
#include "gpu/gpu.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "proto/fdpass.h"
#include "proto/frame.h"
#include "proto/gpu.h"
#include "proto/hello.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"
#include "tests/fake/fake_net.h"

#define REQUESTS 200

struct client {
	struct fake_net *net;
	struct server *server;
	struct gpu *gpu;
	struct frame_decoder decoder;
	int listen_fd, fd;
	unsigned int answers[STATUS_INTERNAL + 1]; /* Errors, by status; OK: what was imported */
	bool stopped;
};

static void count_answer(struct client *c, const struct frame *frame)
{
	Rocecomm__Error *error;

	c->answers[STATUS_OK] += frame->type == MSG_GPU_ALLOC_READY;
	if (frame->type != MSG_ERROR) {
		return;
	}
	error = rocecomm__error__unpack(NULL, frame->length, frame->body);
	cr_assert(error && error->status <= STATUS_INTERNAL);
	c->answers[error->status]++;
	rocecomm__error__free_unpacked(error, NULL);
}

/* Runs the loop and reads what comes. */
static void turn(struct client *c)
{
	uint8_t buf[4096];
	ssize_t n;

	fake_run(c->net);
	while ((n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		for (size_t at = 0, used; at < (size_t)n; at += used) {
			struct frame *frame;

			if (frame_decode(&c->decoder, buf + at, (size_t)n - at, &used, &frame) ==
			    0) {
				count_answer(c, frame);
			}
		}
		fake_run(c->net);
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

static void greet(struct client *c)
{
	static const struct hello hello = {PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, 0};
	Rocecomm__ClientHello msg = ROCECOMM__CLIENT_HELLO__INIT;
	char name[] = "test";
	uint8_t bytes[HELLO_SIZE];

	hello_encode(bytes, HELLO_MAGIC_CLIENT, &hello);
	cr_assert_eq(fd_send(c->fd, bytes, sizeof(bytes), NULL, 0), (ssize_t)sizeof(bytes));
	fake_run(c->net);
	cr_assert_eq(recv(c->fd, bytes, sizeof(bytes), MSG_WAITALL), (ssize_t)sizeof(bytes));
	msg.name = name;
	msg.pid = 1;
	say(c, MSG_CLIENT_HELLO, 1, &msg, -1);
}

static void begin(struct client *c, const char *library)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct gpu_options gpu = {.library = library, .staging = 1 << 20};
	socklen_t length = sizeof(address.sun_family);
	struct server_options o = {0};

	*c = (struct client){.net = fake_net_new(1, 1)};
	frame_decoder_init(&c->decoder);
	cr_assert_eq(gpu_new(&gpu, &c->gpu), 0);
	c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* A name of the kernel's choice. */
	cr_assert_eq(bind(c->listen_fd, (struct sockaddr *)&address, length), 0);
	cr_assert_eq(listen(c->listen_fd, 1), 0);
	length = sizeof(address);
	cr_assert_eq(getsockname(c->listen_fd, (struct sockaddr *)&address, &length), 0);
	o.loop = fake_loop(c->net);
	o.listen_fd = c->listen_fd;
	o.engine = fake_engine(c->net, 0);
	o.jobs = fake_jobs(c->net, 0);
	o.peers = fake_peers(c->net, 0);
	o.gpu = c->gpu;
	o.config = fake_config(c->net);
	cr_assert_eq(server_new(&o, &c->server), 0);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(c->fd, (struct sockaddr *)&address, length), 0);
	greet(c);
}

static void stopped(void *arg)
{
	struct client *c = arg;

	c->stopped = true;
}

static void end(struct client *c)
{
	close(c->fd);
	for (int i = 0; i < 2000 && server_sessions(c->server) > 0; i++) {
		gpu_dispatch(c->gpu);
		fake_run_ms(c->net, 1);
	}
	cr_assert_eq(server_sessions(c->server), 0);
	server_stop(c->server, STATUS_SHUTDOWN, "the test is over", stopped, c);
	for (int i = 0; i < 200 && !c->stopped; i++) {
		fake_run(c->net);
		server_reap(c->server);
	}
	server_free(c->server);
	gpu_free(c->gpu);
	close(c->listen_fd);
	frame_decoder_deinit(&c->decoder);
	fake_net_free(c->net);
}

static unsigned int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	cr_assert(dir);
	while (readdir(dir)) {
		n++;
	}
	closedir(dir);
	return n;
}

/* Neither memory nor descriptors of the daemon grow with what a client asks for. */
Test(gpu_limits, requests_under_way, .timeout = 60)
{
	Rocecomm__GpuAllocRegister msg = ROCECOMM__GPU_ALLOC_REGISTER__INIT;
	uint8_t uuid[GPU_UUID_BYTES] = {1};
	unsigned int files;
	struct client c;
	int fd = memfd_create("test", MFD_CLOEXEC);

	begin(&c, "/nonexistent");
	msg.kind = GPU_HANDLE_VMM;
	msg.device.data = uuid;
	msg.device.len = sizeof(uuid);
	msg.size = 4096;
	files = open_files();
	for (unsigned int i = 0; i < REQUESTS; i++) {
		say(&c, MSG_GPU_ALLOC_REGISTER, 2 + i, &msg, fd);
	}
	cr_assert_eq(c.answers[STATUS_QUOTA], REQUESTS - 64, "%u", c.answers[STATUS_QUOTA]);
	cr_assert_leq(open_files(), files + 64);
	for (int i = 0; i < 2000 && c.answers[STATUS_UNSUPPORTED] < 64; i++) {
		gpu_dispatch(c.gpu);
		turn(&c);
		usleep(1000);
	}
	cr_assert_eq(c.answers[STATUS_UNSUPPORTED], 64);
	cr_assert_eq(open_files(), files);
	/* There is room again. */
	say(&c, MSG_GPU_ALLOC_REGISTER, 2 + REQUESTS, &msg, fd);
	cr_assert_eq(c.answers[STATUS_QUOTA], REQUESTS - 64);
	end(&c);
	close(fd);
}

/* ---- what is charged ---------------------------------------------------------------------- */

struct foreign {
	CUipcMemHandle handle;
	CUuuid uuid;
	pid_t pid;
};

/* A process with 1 MiB of a GPU, and its handle. */
static void foreign_start(struct foreign *f)
{
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	f->pid = fork();
	if (f->pid == 0) {
		struct cuda_abi cuda;
		CUdeviceptr p;
		CUcontext ctx;
		char text[256];

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (cuda_abi_open(NULL, &cuda, text, sizeof(text)) || cuda.Init(0) ||
		    cuda.DevicePrimaryCtxRetain(&ctx, 0) || cuda.CtxSetCurrent(ctx) ||
		    cuda.DeviceGetUuid(&f->uuid, 0) || cuda.MemAlloc(&p, 1 << 20) ||
		    cuda.IpcGetMemHandle(&f->handle, p) ||
		    write(fds[1], f, sizeof(*f)) != sizeof(*f)) {
			_exit(1);
		}
		pause();
		_exit(0);
	}
	cr_assert_eq(read(fds[0], f, offsetof(struct foreign, pid)),
		     (ssize_t)offsetof(struct foreign, pid));
	close(fds[0]);
	close(fds[1]);
}

static void wait_answer(struct client *c, enum status status, unsigned int n)
{
	for (int i = 0; i < 2000 && c->answers[status] < n; i++) {
		gpu_dispatch(c->gpu);
		turn(c);
		usleep(1000);
	}
	cr_assert_eq(c->answers[status], n);
}

static void settle(struct client *c, const struct quota *bytes, uint64_t due)
{
	for (int i = 0; i < 2000 && quota_used(bytes) != due; i++) {
		gpu_dispatch(c->gpu);
		turn(c);
		usleep(1000);
	}
	cr_assert_eq(quota_used(bytes), due);
}

/* Whatever the client says of the size of an allocation, what the daemon holds is charged. */
Test(gpu_limits, charged_for_what_it_is, .timeout = 60)
{
	Rocecomm__GpuAllocRegister msg = ROCECOMM__GPU_ALLOC_REGISTER__INIT;
	Rocecomm__GpuAllocRelease release = ROCECOMM__GPU_ALLOC_RELEASE__INIT;
	struct session *s;
	struct foreign f;
	struct client c;

	foreign_start(&f);
	begin(&c, NULL);
	s = container_of(c.server->sessions.next, struct session, link);
	msg.kind = GPU_HANDLE_IPC;
	msg.device.data = (uint8_t *)f.uuid.bytes;
	msg.device.len = sizeof(f.uuid.bytes);
	msg.ipc.data = (uint8_t *)f.handle.reserved;
	msg.ipc.len = sizeof(f.handle.reserved);
	msg.size = 4096;
	quota_set_limit(&s->tenant->bytes, (1 << 20) - 1);
	say(&c, MSG_GPU_ALLOC_REGISTER, 2, &msg, -1);
	wait_answer(&c, STATUS_QUOTA, 1);
	settle(&c, &s->tenant->bytes, 0);
	cr_assert_eq(s->gpu_bytes, 0);
	quota_set_limit(&s->tenant->bytes, 1 << 20);
	say(&c, MSG_GPU_ALLOC_REGISTER, 3, &msg, -1);
	wait_answer(&c, STATUS_OK, 1);
	cr_assert_eq(quota_used(&s->tenant->bytes), 1 << 20);
	cr_assert_eq(s->gpu_bytes, 1 << 20);
	release.alloc = 1;
	say(&c, MSG_GPU_ALLOC_RELEASE, 4, &release, -1);
	settle(&c, &s->tenant->bytes, 0);
	cr_assert_eq(s->gpu_bytes, 0);
	/* One that the hang-up has to give back. */
	say(&c, MSG_GPU_ALLOC_REGISTER, 5, &msg, -1);
	wait_answer(&c, STATUS_OK, 2);
	end(&c);
	kill(f.pid, SIGKILL);
	waitpid(f.pid, NULL, 0);
}
