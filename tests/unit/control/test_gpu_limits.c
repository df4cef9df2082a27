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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/session.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "proto/gpu.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"
#include "tests/unit/control/desk_fixture.h"

#define REQUESTS 200

struct client {
	struct desk desk;
	struct desk_client link;
	unsigned int answers[STATUS_INTERNAL + 1]; /* Errors, by status; OK: what was imported */
};

static void count_answer(struct desk_client *link, const struct frame *frame)
{
	struct client *c = container_of(link, struct client, link);
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

static void begin(struct client *c, const char *library)
{
	struct gpu_options options = {.library = library, .staging = 1 << 20};
	struct gpu *gpu;

	*c = (struct client){0};
	cr_assert_eq(gpu_new(&options, &gpu), 0);
	desk_begin(&c->desk, gpu);
	desk_client_begin(&c->link, &c->desk, count_answer);
}

static void end(struct client *c)
{
	desk_client_end(&c->link);
	desk_end(&c->desk);
}

/* Has what the GPU's thread has done told, and takes what comes. */
static void turn(struct client *c)
{
	gpu_dispatch(c->desk.gpu);
	desk_turn(&c->link);
	usleep(1000);
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
		desk_say(&c.link, MSG_GPU_ALLOC_REGISTER, 2 + i, &msg, fd);
	}
	cr_assert_eq(c.answers[STATUS_QUOTA], REQUESTS - 64, "%u", c.answers[STATUS_QUOTA]);
	cr_assert_leq(open_files(), files + 64);
	for (int i = 0; i < 2000 && c.answers[STATUS_UNSUPPORTED] < 64; i++) {
		turn(&c);
	}
	cr_assert_eq(c.answers[STATUS_UNSUPPORTED], 64);
	cr_assert_eq(open_files(), files);
	/* There is room again. */
	desk_say(&c.link, MSG_GPU_ALLOC_REGISTER, 2 + REQUESTS, &msg, fd);
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
		turn(c);
	}
	cr_assert_eq(c->answers[status], n);
}

static void settle(struct client *c, const struct quota *bytes, uint64_t due)
{
	for (int i = 0; i < 2000 && quota_used(bytes) != due; i++) {
		turn(c);
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
	s = container_of(c.desk.server->sessions.next, struct session, link);
	msg.kind = GPU_HANDLE_IPC;
	msg.device.data = (uint8_t *)f.uuid.bytes;
	msg.device.len = sizeof(f.uuid.bytes);
	msg.ipc.data = (uint8_t *)f.handle.reserved;
	msg.ipc.len = sizeof(f.handle.reserved);
	msg.size = 4096;
	quota_set_limit(&s->tenant->bytes, (1 << 20) - 1);
	desk_say(&c.link, MSG_GPU_ALLOC_REGISTER, 2, &msg, -1);
	wait_answer(&c, STATUS_QUOTA, 1);
	settle(&c, &s->tenant->bytes, 0);
	cr_assert_eq(s->gpu_bytes, 0);
	quota_set_limit(&s->tenant->bytes, 1 << 20);
	desk_say(&c.link, MSG_GPU_ALLOC_REGISTER, 3, &msg, -1);
	wait_answer(&c, STATUS_OK, 1);
	cr_assert_eq(quota_used(&s->tenant->bytes), 1 << 20);
	cr_assert_eq(s->gpu_bytes, 1 << 20);
	release.alloc = 1;
	desk_say(&c.link, MSG_GPU_ALLOC_RELEASE, 4, &release, -1);
	settle(&c, &s->tenant->bytes, 0);
	cr_assert_eq(s->gpu_bytes, 0);
	/* One that the hang-up has to give back. */
	desk_say(&c.link, MSG_GPU_ALLOC_REGISTER, 5, &msg, -1);
	wait_answer(&c, STATUS_OK, 2);
	end(&c);
	kill(f.pid, SIGKILL);
	waitpid(f.pid, NULL, 0);
}
