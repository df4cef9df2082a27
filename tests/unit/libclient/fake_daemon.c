/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake daemon: implementation
 *
 * Thread: see fake_daemon.h      Owns: see there      Locks: see there
 */
#include "fake_daemon.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "proto/base.h"
#include "proto/gpu.h"
#include "proto/status.h"
#include "proto/types.h"
#include "rocecomm.pb-c.h"

static void session_close(struct fake *fake, struct fake_session *s)
{
	if (s->fd < 0) {
		return;
	}
	s->fd = base_close(s->fd);
	s->bell = base_close(s->bell);
	s->event = base_close(s->event);
	frame_decoder_deinit(&s->decoder);
	fdset_deinit(&s->queue);
	if (s->page) {
		munmap(s->page, SHM_FULL_SIZE);
		s->page = NULL;
	}
	for (int i = 0; i < FAKE_BUFFERS; i++) {
		if (s->allocs[i].id) {
			base_close(s->allocs[i].fd);
			s->allocs[i].id = 0;
			fake->n_allocs--;
		}
	}
	for (int i = 0; i < FAKE_BUFFERS; i++) {
		if (s->buffers[i].id) {
			munmap(s->buffers[i].base, s->buffers[i].size);
			s->buffers[i].id = 0;
			fake->n_open--;
		}
	}
}

/* Sends, or hangs up at the byte that the test chose. */
static void session_send(struct fake *fake, struct fake_session *s, const uint8_t *data,
			 size_t size, const int *fds, unsigned int nfds)
{
	size_t n = size;

	if (fake->cut_out > 0 && s->out + size >= fake->cut_out) {
		n = fake->cut_out - 1 - s->out;
	}
	if (n > 0) {
		fd_send(s->fd, data, n, fds, nfds);
		s->out += n;
	}
	if (n < size) {
		session_close(fake, s);
	}
}

static void session_reply(struct fake *fake, struct fake_session *s, uint16_t type, uint64_t serial,
			  const void *msg, const int *fds, unsigned int nfds)
{
	uint8_t *data;
	size_t size;

	if (frame_pack(type, (uint8_t)nfds, serial, msg, &data, &size) == 0) {
		session_send(fake, s, data, size, fds, nfds);
		free(data);
	}
}

static void session_error(struct fake *fake, struct fake_session *s, uint64_t serial, int status)
{
	Rocecomm__Error msg = ROCECOMM__ERROR__INIT;

	msg.status = (uint32_t)status;
	msg.text = (char *)(uintptr_t) "the fake daemon refuses";
	session_reply(fake, s, MSG_ERROR, serial, &msg, NULL, 0);
}

static void session_welcome(struct fake *fake, struct fake_session *s, uint64_t serial)
{
	Rocecomm__Welcome msg = ROCECOMM__WELCOME__INIT;
	int page = memfd_create("fake-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int fds[4];

	/* The older page is mapped beyond its end, where nobody looks. */
	assert(ftruncate(page, fake->old ? SHM_SIZE : SHM_FULL_SIZE) == 0);
	s->page = mmap(NULL, SHM_FULL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
	shm_format(s->page);
	if (!fake->old) {
		shm_format_gates(s->page);
		msg.features = WELCOME_GPU;
	}
	ring_consumer_init(&s->ring, s->page);
	fcntl(page, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->event = eventfd(0, EFD_CLOEXEC);
	fds[0] = page;
	fds[1] = s->bell;
	fds[2] = s->event;
	fds[3] = page;
	session_reply(fake, s, MSG_WELCOME, serial, &msg, fds, fake->welcome_fds);
	close(page);
}

static void session_comm(struct fake *fake, struct fake_session *s, uint64_t serial, uint32_t rank,
			 uint32_t size, bool none)
{
	Rocecomm__CommReady msg = ROCECOMM__COMM_READY__INIT;
	Rocecomm__HostInfo a = ROCECOMM__HOST_INFO__INIT, b = ROCECOMM__HOST_INFO__INIT;
	Rocecomm__HostInfo *hosts[] = {&a, &b};
	uint32_t *host_of = calloc(size, sizeof(*host_of));

	for (uint32_t i = 0; i < size; i++) {
		host_of[i] = i % 2;
	}
	a.name = (char *)(uintptr_t) "alpha";
	b.name = (char *)(uintptr_t) "beta";
	msg.comm = ++s->next_id;
	msg.rank = rank;
	msg.size = size;
	msg.n_hosts = 2;
	msg.hosts = hosts;
	msg.n_host_of_rank = size;
	msg.host_of_rank = host_of;
	msg.path = (char *)(uintptr_t) "fake: nothing moves";
	msg.none = none;
	session_reply(fake, s, MSG_COMM_READY, serial, &msg, NULL, 0);
	free(host_of);
}

static void session_comm_init(struct fake *fake, struct fake_session *s, const struct frame *f)
{
	Rocecomm__CommInit *msg = rocecomm__comm_init__unpack(NULL, f->length, f->body);

	if (msg->env) {
		snprintf(fake->env_name, sizeof(fake->env_name), "%s", msg->env->name);
		snprintf(fake->env_root, sizeof(fake->env_root), "%s",
			 msg->env->n_root > 0 ? msg->env->root[0] : "");
	}
	session_comm(fake, s, f->serial, msg->rank, msg->size, false);
	rocecomm__comm_init__free_unpacked(msg, NULL);
}

static void session_register(struct fake *fake, struct fake_session *s, const struct frame *f,
			     struct fdset *fds)
{
	Rocecomm__BufferRegister *msg = rocecomm__buffer_register__unpack(NULL, f->length, f->body);
	Rocecomm__BufferReady ready = ROCECOMM__BUFFER_READY__INIT;
	struct fake_buffer *b = NULL;
	struct stat st;

	for (int i = 0; i < FAKE_BUFFERS && !b; i++) {
		b = s->buffers[i].id == 0 ? &s->buffers[i] : NULL;
	}
	if (!b || fds->n != 1 || fstat(fds->fds[0], &st) < 0 || (uint64_t)st.st_size < msg->size ||
	    !(fcntl(fds->fds[0], F_GET_SEALS) & F_SEAL_SHRINK)) {
		session_error(fake, s, f->serial, STATUS_BAD_MEMORY);
	} else {
		*b = (struct fake_buffer){
			.id = ++s->next_id, .size = msg->size, .internal = msg->internal};
		b->base = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_SHARED, fds->fds[0], 0);
		fake->n_open++;
		ready.buffer = b->id;
		session_reply(fake, s, MSG_BUFFER_READY, f->serial, &ready, NULL, 0);
	}
	rocecomm__buffer_register__free_unpacked(msg, NULL);
}

/* Is the buffer named by an operation that was posted and has not run? */
static bool session_uses(const struct fake_session *s, uint32_t buffer)
{
	for (unsigned int i = 0; i < s->n_shut; i++) {
		const struct shm_desc *d = &s->shut[i];

		if (d->send_buf == buffer || d->recv_buf == buffer || d->args_buf == buffer) {
			return true;
		}
	}
	return false;
}

/* Lets buffers go that the client has given back, once no operation names them, and answers. */
static void session_let_go(struct fake *fake, struct fake_session *s)
{
	Rocecomm__Done done = ROCECOMM__DONE__INIT;

	for (int i = 0; i < FAKE_BUFFERS && s->fd >= 0; i++) {
		struct fake_buffer *b = &s->buffers[i];

		if (b->id && b->leaving && !session_uses(s, b->id)) {
			munmap(b->base, b->size);
			b->id = 0;
			fake->n_open--;
			session_reply(fake, s, MSG_DONE, b->leaving, &done, NULL, 0);
		}
	}
}

/* Takes what is in the ring. */
static void session_take(struct fake *fake, struct fake_session *s)
{
	struct shm_desc d;

	while (fake->run && s->page && ring_pop(&s->ring, &d, 1) == 1) {
		assert(s->n_shut < FAKE_SHUT);
		s->shut[s->n_shut++] = d;
	}
}

/* As the daemon's, it overtakes nothing that was posted before it. */
static void session_deregister(struct fake *fake, struct fake_session *s, const struct frame *f)
{
	Rocecomm__BufferDeregister *msg =
		rocecomm__buffer_deregister__unpack(NULL, f->length, f->body);
	Rocecomm__Done done = ROCECOMM__DONE__INIT;
	bool found = false;

	for (int i = 0; i < FAKE_BUFFERS; i++) {
		if (msg->buffer && s->buffers[i].id == msg->buffer) {
			s->buffers[i].leaving = f->serial;
			found = true;
		}
	}
	rocecomm__buffer_deregister__free_unpacked(msg, NULL);
	if (!found) {
		session_reply(fake, s, MSG_DONE, f->serial, &done, NULL, 0);
		return;
	}
	session_take(fake, s);
	session_let_go(fake, s);
}

/* The memfd behind an IPC handle of the fake CUDA: magic, process, descriptor. */
static int ipc_fd(const uint8_t *handle)
{
	int32_t words[3];
	char path[64];

	memcpy(words, handle, sizeof(words));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", words[1], words[2]);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void session_gpu_alloc(struct fake *fake, struct fake_session *s, const struct frame *f,
			      struct fdset *fds)
{
	Rocecomm__GpuAllocRegister *msg =
		rocecomm__gpu_alloc_register__unpack(NULL, f->length, f->body);
	Rocecomm__GpuAllocReady ready = ROCECOMM__GPU_ALLOC_READY__INIT;
	struct fake_alloc *a = NULL;

	for (int i = 0; i < FAKE_BUFFERS && !a; i++) {
		a = s->allocs[i].id == 0 ? &s->allocs[i] : NULL;
	}
	if (!a || msg->device.len != GPU_UUID_BYTES || msg->kind == GPU_HANDLE_DMABUF ||
	    (msg->kind == GPU_HANDLE_IPC) != (msg->ipc.len == GPU_IPC_BYTES) ||
	    (msg->kind == GPU_HANDLE_VMM) != (fds->n == 1)) {
		session_error(fake, s, f->serial, STATUS_UNSUPPORTED);
	} else {
		a->id = ++s->next_id;
		a->kind = msg->kind;
		a->size = msg->size;
		a->fd = msg->kind == GPU_HANDLE_IPC ? ipc_fd(msg->ipc.data) : fdset_take(fds, 0);
		memcpy(a->uuid, msg->device.data, sizeof(a->uuid));
		fake->n_allocs++;
		fake->last_alloc = *a;
		ready.alloc = a->id;
		session_reply(fake, s, MSG_GPU_ALLOC_READY, f->serial, &ready, NULL, 0);
	}
	rocecomm__gpu_alloc_register__free_unpacked(msg, NULL);
}

static void session_gpu_release(struct fake *fake, struct fake_session *s, const struct frame *f)
{
	Rocecomm__GpuAllocRelease *msg =
		rocecomm__gpu_alloc_release__unpack(NULL, f->length, f->body);
	Rocecomm__Done done = ROCECOMM__DONE__INIT;

	for (int i = 0; i < FAKE_BUFFERS; i++) {
		if (s->allocs[i].id == msg->alloc) {
			s->allocs[i].fd = base_close(s->allocs[i].fd);
			s->allocs[i].id = 0;
			fake->n_allocs--;
		}
	}
	rocecomm__gpu_alloc_release__free_unpacked(msg, NULL);
	session_reply(fake, s, MSG_DONE, f->serial, &done, NULL, 0);
}

/* Maps the pieces one behind the other. Return: false when they are not what they should be. */
static bool gpu_map(struct fake_session *s, const Rocecomm__GpuBufferRegister *msg,
		    struct fake_buffer *b)
{
	size_t at = 0;

	for (size_t i = 0; i < msg->n_pieces; i++) {
		const Rocecomm__GpuPiece *p = msg->pieces[i];
		const struct fake_alloc *a = NULL;

		for (int k = 0; k < FAKE_BUFFERS && !a; k++) {
			a = s->allocs[k].id == p->alloc ? &s->allocs[k] : NULL;
		}
		if (!a || p->size != a->size || p->offset != 0 ||
		    (msg->n_pieces > 1 && a->kind != GPU_HANDLE_VMM) ||
		    mmap(b->base + at, p->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			 a->fd, 0) == MAP_FAILED) {
			return false;
		}
		at += p->size;
	}
	return at == b->size;
}

static void session_gpu_buffer(struct fake *fake, struct fake_session *s, const struct frame *f)
{
	Rocecomm__GpuBufferRegister *msg =
		rocecomm__gpu_buffer_register__unpack(NULL, f->length, f->body);
	Rocecomm__GpuBufferReady ready = ROCECOMM__GPU_BUFFER_READY__INIT;
	struct fake_buffer *b = NULL;

	for (int i = 0; i < FAKE_BUFFERS && !b; i++) {
		b = s->buffers[i].id == 0 ? &s->buffers[i] : NULL;
	}
	assert(b);
	*b = (struct fake_buffer){0};
	for (size_t i = 0; i < msg->n_pieces; i++) {
		b->size += msg->pieces[i]->size;
	}
	b->base = mmap(NULL, b->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!gpu_map(s, msg, b)) {
		session_error(fake, s, f->serial, STATUS_INVALID);
	} else {
		b->id = ++s->next_id;
		fake->n_open++;
		fake->pieces = (unsigned int)msg->n_pieces;
		ready.buffer = b->id;
		ready.path = (char *)(uintptr_t) "staged";
		ready.reason = (char *)(uintptr_t) "the fake daemon has no NIC";
		session_reply(fake, s, MSG_GPU_BUFFER_READY, f->serial, &ready, NULL, 0);
	}
	rocecomm__gpu_buffer_register__free_unpacked(msg, NULL);
}

static void session_split(struct fake *fake, struct fake_session *s, const struct frame *f)
{
	Rocecomm__CommSplit *msg = rocecomm__comm_split__unpack(NULL, f->length, f->body);

	session_comm(fake, s, f->serial, 0, 1, msg->color < 0);
	rocecomm__comm_split__free_unpacked(msg, NULL);
}

static void session_complete(struct fake_session *s, const struct shm_desc *d, int status)
{
	struct shm_header *h = s->page;
	struct shm_cell *cell = &shm_cells(s->page)[d->ticket];
	uint64_t one = 1;

	cell->status = (uint32_t)status;
	atomic_store_explicit(&cell->generation, d->generation, memory_order_release);
	atomic_fetch_add(&h->completions, 1);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&h->waiters) > 0) {
		syscall(SYS_futex, &h->completions, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	}
	if (atomic_load(&h->want_event)) {
		assert(write(s->event, &one, sizeof(one)) == sizeof(one));
	}
}

/* As the daemon: what waits for a gate waits no more. */
static void session_abort(struct fake *fake, struct fake_session *s, const struct frame *f)
{
	Rocecomm__CommAbort *msg = rocecomm__comm_abort__unpack(NULL, f->length, f->body);
	Rocecomm__Done done = ROCECOMM__DONE__INIT;

	session_take(fake, s);
	for (unsigned int i = 0; i < s->n_shut;) {
		struct shm_desc d = s->shut[i];

		if (d.comm != msg->comm) {
			i++;
			continue;
		}
		s->n_shut--;
		memmove(&s->shut[i], &s->shut[i + 1], (s->n_shut - i) * sizeof(d));
		session_complete(s, &d, STATUS_ABORTED);
	}
	rocecomm__comm_abort__free_unpacked(msg, NULL);
	session_reply(fake, s, MSG_DONE, f->serial, &done, NULL, 0);
}

static void session_frame(struct fake *fake, struct fake_session *s, const struct frame *f,
			  struct fdset *fds)
{
	Rocecomm__Done done = ROCECOMM__DONE__INIT;
	Rocecomm__UniqueId id = ROCECOMM__UNIQUE_ID__INIT;
	Rocecomm__CommErrorReply error = ROCECOMM__COMM_ERROR_REPLY__INIT;
	uint8_t bytes[32];

	fake->seen[f->type]++;
	if (fake->mute[f->type]) {
		return;
	}
	if (fake->fail[f->type]) {
		session_error(fake, s, f->serial, fake->fail[f->type]);
		return;
	}
	switch (f->type) {
	case MSG_CLIENT_HELLO:
		session_welcome(fake, s, f->serial);
		break;
	case MSG_GET_UNIQUE_ID:
		memset(bytes, 7, sizeof(bytes));
		id.id.data = bytes;
		id.id.len = sizeof(bytes);
		session_reply(fake, s, MSG_UNIQUE_ID, f->serial, &id, NULL, 0);
		break;
	case MSG_COMM_INIT:
		session_comm_init(fake, s, f);
		break;
	case MSG_COMM_SPLIT:
		session_split(fake, s, f);
		break;
	case MSG_BUFFER_REGISTER:
		session_register(fake, s, f, fds);
		break;
	case MSG_BUFFER_DEREGISTER:
		session_deregister(fake, s, f);
		break;
	case MSG_GPU_ALLOC_REGISTER:
		session_gpu_alloc(fake, s, f, fds);
		break;
	case MSG_GPU_ALLOC_RELEASE:
		session_gpu_release(fake, s, f);
		break;
	case MSG_GPU_BUFFER_REGISTER:
		session_gpu_buffer(fake, s, f);
		break;
	case MSG_COMM_ABORT:
		session_abort(fake, s, f);
		break;
	case MSG_COMM_ERROR:
		error.status = (uint32_t)fake->sticky;
		error.text = (char *)(uintptr_t)(fake->sticky ? "rank 1 (beta) is gone" : "");
		session_reply(fake, s, MSG_COMM_ERROR_REPLY, f->serial, &error, NULL, 0);
		break;
	default:
		session_reply(fake, s, MSG_DONE, f->serial, &done, NULL, 0);
		break;
	}
}

static void session_input(struct fake *fake, struct fake_session *s)
{
	uint8_t buf[4096], *p = buf;
	size_t max = sizeof(buf);
	bool lost;
	ssize_t n;

	if (!s->hello) {
		max = HELLO_SIZE;
	}
	if (fake->cut_in > 0) {
		max = MIN(max, fake->cut_in - s->in);
	}
	n = fd_recv(s->fd, buf, max, &s->queue, &lost);
	if (n == -EAGAIN) {
		return;
	}
	if (n <= 0) {
		session_close(fake, s);
		return;
	}
	s->in += (size_t)n;
	if (fake->cut_in > 0 && s->in >= fake->cut_in) {
		session_close(fake, s);
		return;
	}
	if (!s->hello) {
		uint8_t hello[HELLO_SIZE];

		s->hello = true;
		hello_encode(hello, HELLO_MAGIC_CLIENT, &fake->version);
		session_send(fake, s, hello, sizeof(hello), NULL, 0);
		return;
	}
	while (n > 0 && s->fd >= 0) {
		struct frame *frame;
		struct fdset fds;
		size_t used;
		int r = frame_decode(&s->decoder, p, (size_t)n, &used, &frame);

		p += used;
		n -= (ssize_t)used;
		if (r == 0) {
			fdset_init(&fds);
			fdset_split(&s->queue, frame->nfds, &fds);
			session_frame(fake, s, frame, &fds);
			fdset_deinit(&fds);
		}
	}
}

static uint8_t *session_ptr(struct fake_session *s, uint32_t buffer, uint64_t off)
{
	for (int i = 0; buffer && i < FAKE_BUFFERS; i++) {
		if (s->buffers[i].id == buffer) {
			assert(off <= s->buffers[i].size);
			return s->buffers[i].base + off;
		}
	}
	return NULL;
}

/* Moves what one block of an operation would move on a communicator of one rank. */
static void session_run(struct fake_session *s, const struct shm_desc *d)
{
	uint8_t *send = session_ptr(s, d->send_buf, d->send_off);
	uint8_t *recv = session_ptr(s, d->recv_buf, d->recv_off);
	size_t size = d->count * dtype_size(d->dtype);

	if ((d->send_buf && !send) || (d->recv_buf && !recv)) {
		session_complete(s, d, STATUS_NOT_FOUND);
		return;
	}
	if (d->kind == COLL_ALLGATHERV || d->kind == COLL_ALLTOALLV) {
		const uint64_t *a = (uint64_t *)session_ptr(s, d->args_buf, d->args_off);
		size_t elem = dtype_size(d->dtype);

		/* One rank: counts[1], displs[1], and for alltoallv both again. */
		if (d->kind == COLL_ALLTOALLV) {
			memmove(recv + a[3] * elem, send + a[1] * elem, a[0] * elem);
		} else {
			memmove(recv + a[1] * elem, send, a[0] * elem);
		}
	} else if (send && recv && send != recv) {
		memmove(recv, send, size);
	} else if (recv && d->kind == COLL_RECV) {
		memset(recv, 0x5a, size);
	}
	session_complete(s, d, STATUS_OK);
}

static void session_progress(struct fake *fake, struct fake_session *s)
{
	struct shm_desc d;
	uint64_t count;

	if (s->bell >= 0 && read(s->bell, &count, sizeof(count)) == sizeof(count)) {
		fake->bells += (unsigned int)count;
	}
	session_take(fake, s);
	for (unsigned int i = 0; fake->run && s->page && i < s->n_shut;) {
		_Atomic uint32_t *gates = shm_gates(s->page, SHM_FULL_SIZE);

		d = s->shut[i];
		if ((d.flags & SHM_DESC_GATED) &&
		    !gate_open(atomic_load(&gates[d.ticket]), d.generation)) {
			i++;
			continue;
		}
		s->n_shut--;
		memmove(&s->shut[i], &s->shut[i + 1], (s->n_shut - i) * sizeof(d));
		session_run(s, &d);
	}
	session_let_go(fake, s);
}

static void fake_accept(struct fake *fake)
{
	int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	for (int i = 0; fd >= 0 && i < FAKE_SESSIONS; i++) {
		struct fake_session *s = &fake->sessions[i];

		if (s->fd < 0) {
			memset(s, 0, sizeof(*s));
			s->fd = fd;
			s->bell = -1;
			s->event = -1;
			frame_decoder_init(&s->decoder);
			fdset_init(&s->queue);
			return;
		}
	}
	base_close(fd);
}

static void *fake_main(void *arg)
{
	struct fake *fake = arg;
	struct pollfd fds[1 + FAKE_SESSIONS];

	pthread_mutex_lock(&fake->lock);
	while (!fake->stop) {
		bool shut = false; /* gates ring no bell */

		fds[0] = (struct pollfd){.fd = fake->listen_fd, .events = POLLIN};
		for (int i = 0; i < FAKE_SESSIONS; i++) {
			fds[1 + i] = (struct pollfd){.fd = fake->sessions[i].fd, .events = POLLIN};
			shut |= fake->sessions[i].fd >= 0 && fake->sessions[i].n_shut > 0;
		}
		pthread_mutex_unlock(&fake->lock);
		if (shut) {
			sched_yield();
		}
		poll(fds, 1 + FAKE_SESSIONS, shut ? 0 : 1);
		pthread_mutex_lock(&fake->lock);
		if (fds[0].revents) {
			fake_accept(fake);
		}
		for (int i = 0; i < FAKE_SESSIONS; i++) {
			if (fds[1 + i].revents && fake->sessions[i].fd == fds[1 + i].fd) {
				session_input(fake, &fake->sessions[i]);
			}
			if (fake->sessions[i].fd >= 0) {
				session_progress(fake, &fake->sessions[i]);
			}
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return NULL;
}

void fake_start_at(struct fake *fake, const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	memset(fake, 0, sizeof(*fake));
	pthread_mutex_init(&fake->lock, NULL);
	fake->version = (struct hello){.min = PROTOCOL_VERSION_MIN, .max = PROTOCOL_VERSION_MAX};
	fake->welcome_fds = 3;
	for (int i = 0; i < FAKE_SESSIONS; i++) {
		fake->sessions[i].fd = -1;
	}
	snprintf(fake->path, sizeof(fake->path), "%s", path);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	fake->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert(bind(fake->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	assert(listen(fake->listen_fd, 64) == 0);
	assert(pthread_create(&fake->thread, NULL, fake_main, fake) == 0);
}

void fake_start(struct fake *fake)
{
	char dir[] = "/tmp/roce-test-XXXXXX";
	char path[sizeof(dir) + 8];

	assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/sock", dir);
	fake_start_at(fake, path);
	memcpy(fake->dir, dir, sizeof(dir));
}

void fake_stop(struct fake *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->stop = true;
	pthread_mutex_unlock(&fake->lock);
	pthread_join(fake->thread, NULL);
	fake_hang_up(fake);
	base_close(fake->listen_fd);
	unlink(fake->path);
	rmdir(fake->dir);
}

void fake_hang_up(struct fake *fake)
{
	pthread_mutex_lock(&fake->lock);
	for (int i = 0; i < FAKE_SESSIONS; i++) {
		session_close(fake, &fake->sessions[i]);
	}
	pthread_mutex_unlock(&fake->lock);
}

void fake_deaf(struct fake *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->listen_fd = base_close(fake->listen_fd);
	pthread_mutex_unlock(&fake->lock);
	/* The thread's poll() keeps the socket alive for a moment. */
	poll(NULL, 0, 20);
}

void fake_goodbye(struct fake *fake, int status, const char *reason)
{
	Rocecomm__Goodbye msg = ROCECOMM__GOODBYE__INIT;

	msg.status = (uint32_t)status;
	msg.reason = (char *)(uintptr_t)reason;
	pthread_mutex_lock(&fake->lock);
	session_reply(fake, &fake->sessions[0], MSG_GOODBYE, 0, &msg, NULL, 0);
	pthread_mutex_unlock(&fake->lock);
}

int fake_pop(struct fake *fake, struct shm_desc *descs, int n)
{
	int got = 0;

	for (int tries = 0; tries < 1000 && got < n; tries++) {
		pthread_mutex_lock(&fake->lock);
		if (fake->sessions[0].page) {
			int r = ring_pop(&fake->sessions[0].ring, descs + got,
					 (unsigned int)(n - got));

			assert(r >= 0);
			got += r;
		}
		pthread_mutex_unlock(&fake->lock);
		if (got < n) {
			poll(NULL, 0, 1);
		}
	}
	return got;
}

void fake_complete(struct fake *fake, const struct shm_desc *desc, int status)
{
	pthread_mutex_lock(&fake->lock);
	session_complete(&fake->sessions[0], desc, status);
	pthread_mutex_unlock(&fake->lock);
}

uint8_t *fake_ptr(struct fake *fake, uint32_t buffer, uint64_t off)
{
	uint8_t *p;

	pthread_mutex_lock(&fake->lock);
	p = session_ptr(&fake->sessions[0], buffer, off);
	pthread_mutex_unlock(&fake->lock);
	return p;
}
