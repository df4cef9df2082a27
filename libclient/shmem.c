/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Shared memory: implementation
 *
 * memfd rather than /dev/shm: containers limit the latter to 64 MiB and touching a page beyond
 * that kills the process. Never MFD_HUGETLB: its pages come from a pool that may be empty, and
 * fail by SIGBUS; transparent huge pages are asked for and otherwise done without.
 *
 * Thread: any      Owns: see shmem.h      Locks: none
 */
#include "libclient/shmem.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_SIZE ((size_t)2 << 20)
/* A signal makes the kernel undo a fallocate(): pieces of this size always get through. */
#define RESERVE_STEP ((size_t)64 << 20)

static int shmem_reserve(int fd, size_t size)
{
	for (size_t at = 0; at < size; at += RESERVE_STEP) {
		size_t n = MIN(RESERVE_STEP, size - at);
		int r;

		do {
			r = fallocate(fd, 0, (off_t)at, (off_t)n);
		} while (r < 0 && errno == EINTR);
		if (r < 0 && errno == EOPNOTSUPP) {
			return 0;
		}
		if (r < 0) {
			return error_set(ROCE_ERR_NO_MEMORY,
					 "the system has no memory for %zu bytes: %s after %zu "
					 "bytes (is the cgroup's memory.max too low?)",
					 size, strerror(errno), at);
		}
	}
	return 0;
}

/* Maps @fd, for huge pages at an address that they can back. */
static uint8_t *shmem_map(int fd, size_t size, bool huge)
{
	uint8_t *area, *base;
	size_t head;
	void *p;

	if (!huge) {
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		return p == MAP_FAILED ? NULL : p;
	}
	p = mmap(NULL, size + HUGE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		return NULL;
	}
	area = p;
	base = (uint8_t *)ALIGN_UP((uintptr_t)area, HUGE_SIZE);
	head = (size_t)(base - area);
	p = mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (p == MAP_FAILED) {
		munmap(area, size + HUGE_SIZE);
		return NULL;
	}
	if (head > 0) {
		munmap(area, head);
	}
	munmap(base + size, HUGE_SIZE - head);
	madvise(base, size, MADV_HUGEPAGE);
	return base;
}

static int shmem_register(struct roce_client *client, struct shmem *shm)
{
	Rocecomm__BufferRegister msg = ROCECOMM__BUFFER_REGISTER__INIT;
	Rocecomm__BufferReady *ready;
	struct conn_reply reply;
	int r;

	msg.size = shm->size;
	msg.internal = shm->internal;
	r = conn_call(&client->conn, MSG_BUFFER_REGISTER, &msg, shm->fd, client->timeout_ms,
		      MSG_BUFFER_READY, &reply);
	if (r != 0) {
		return error_prefix(r, "registering %zu bytes of shared memory", shm->size);
	}
	ready = rocecomm__buffer_ready__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!ready || ready->buffer == 0) {
		r = error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable BufferReady");
	} else {
		shm->id = ready->buffer;
	}
	if (ready) {
		rocecomm__buffer_ready__free_unpacked(ready, NULL);
	}
	return r;
}

static int shmem_create(size_t size, unsigned int flags, struct shmem *shm)
{
	const char *name = flags & SHMEM_INTERNAL ? "rocecomm-staging" : "rocecomm-memory";

	shm->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (shm->fd < 0) {
		return error_set(ROCE_ERR_NO_MEMORY, "memfd_create failed: %s (see ulimit -n)",
				 strerror(errno));
	}
	if (ftruncate(shm->fd, (off_t)size) < 0) {
		return error_set(ROCE_ERR_NO_MEMORY, "cannot size a memfd to %zu bytes: %s", size,
				 strerror(errno));
	}
	shm->base = shmem_map(shm->fd, size, flags & SHMEM_HUGE);
	if (!shm->base) {
		return error_set(ROCE_ERR_NO_MEMORY,
				 "cannot map %zu bytes: %s (see ulimit -v, vm.max_map_count)", size,
				 strerror(errno));
	}
	shm->size = size;
	if (flags & SHMEM_RESERVE) {
		int r = shmem_reserve(shm->fd, size);

		if (r != 0) {
			return r;
		}
	}
	if (flags & SHMEM_HUGE) {
		madvise(shm->base, size, MADV_COLLAPSE);
	}
	if (flags & SHMEM_INTERNAL) {
		madvise(shm->base, size, MADV_DONTFORK);
	}
	if (fcntl(shm->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		return error_set(ROCE_ERR_INTERNAL, "cannot seal a memfd: %s", strerror(errno));
	}
	return 0;
}

int shmem_new(struct roce_client *client, size_t size, unsigned int flags, struct shmem *ret)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct shmem shm = {.fd = -1, .internal = flags & SHMEM_INTERNAL};
	int r;

	if (size == 0 || size > (size_t)PTRDIFF_MAX - 2 * HUGE_SIZE) {
		return error_set(ROCE_ERR_INVALID, "size %zu is not in 1 .. %zu", size,
				 (size_t)PTRDIFF_MAX - 2 * HUGE_SIZE);
	}
	r = shmem_create(ALIGN_UP(size, page), flags, &shm);
	if (r == 0) {
		r = shmem_register(client, &shm);
	}
	if (r != 0) {
		shmem_free(&shm, false);
		return r;
	}
	if (shm.internal) {
		/* Staging can be made anew at any time: it need not cost a descriptor each. */
		shm.fd = base_close(shm.fd);
	}
	*ret = shm;
	return 0;
}

int shmem_deregister(struct roce_client *client, struct shmem *shm)
{
	Rocecomm__BufferDeregister msg = ROCECOMM__BUFFER_DEREGISTER__INIT;

	msg.buffer = shm->id;
	/* No time-out: the answer comes when the last operation that uses it has ended. */
	return conn_command(&client->conn, MSG_BUFFER_DEREGISTER, &msg, -1, MSG_DONE);
}

void shmem_free(struct shmem *shm, bool forked)
{
	if (!forked) {
		gpu_unpin(shm);
	}
	if (shm->base && !(forked && shm->internal)) {
		munmap(shm->base, shm->size);
	}
	shm->base = NULL;
	shm->fd = base_close(shm->fd);
}
