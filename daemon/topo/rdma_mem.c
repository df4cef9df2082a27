/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * RDMA memory: registration, and why it failed
 *
 * Thread: see rdma_mem.h      Owns: see rdma_mem.h      Locks: none
 */
#include "topo/rdma_mem.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base.h"

/*
 * Relaxed ordering lets writes of one message pass each other on PCIe. A completion does not pass
 * them, and nothing is read before its completion, so this is correct. Where kernel or device do
 * not know the flag, registering is tried without it.
 */
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define NOT_SUPPORTED 524 /* ENOTSUPP: kernels leak it, strerror() does not know it */

/* Bytes that this process has pinned already; 0: unknown. */
static uint64_t pinned_now(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	uint64_t kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "VmPin: %" SCNu64, &kib) == 1) {
			break;
		}
	}
	if (f) {
		fclose(f);
	}
	return kib * 1024;
}

static bool may_lock_all(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

	return syscall(SYS_capget, &header, data) == 0 &&
	       data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

bool rdma_memlock_limited(uint64_t *ret_bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
	    may_lock_all()) {
		return false;
	}
	*ret_bytes = limit.rlim_cur;
	return true;
}

void rdma_memlock_hint(size_t size, char *buf, size_t len)
{
	uint64_t limit, pinned = pinned_now();
	char used[48] = "";

	if (!rdma_memlock_limited(&limit)) {
		snprintf(buf, len, "the limit of locked memory is not the cause");
		return;
	}
	if (pinned) {
		snprintf(used, sizeof(used), ", %" PRIu64 " KiB of it in use,", pinned / 1024);
	}
	snprintf(buf, len,
		 "the limit of locked memory is %" PRIu64 " KiB%s and %zu KiB were asked for; "
		 "LimitMEMLOCK=infinity in the unit raises it",
		 limit / 1024, used, size / 1024);
}

/* Regions of this daemon's. */
static uint32_t ours_of(const struct rdma_device *d)
{
	/* relaxed: a number for a text */
	return atomic_load_explicit(&d->regions, memory_order_relaxed) +
	       atomic_load_explicit(&d->receive_regions, memory_order_relaxed);
}

/* Others may have regions there, too: the device's own number is the most that it ever takes. */
static bool is_full(const struct rdma_device *d)
{
	return d->attr.max_mr > 0 && ours_of(d) >= (uint32_t)d->attr.max_mr;
}

void rdma_region_hint(const struct rdma_device *d, size_t size, char *buf, size_t len)
{
	if (is_full(d)) {
		snprintf(buf, len,
			 "the device takes %d regions at a time, and %u are this daemon's",
			 d->attr.max_mr, ours_of(d));
	} else {
		rdma_memlock_hint(size, buf, len);
	}
}

static enum rdma_refusal refusal_of(const struct rdma_device *d, int error)
{
	uint64_t limit;

	switch (error) {
	case ENOMEM:
	case EAGAIN:
	case ENOSPC:
		return is_full(d)		      ? RDMA_REFUSED_FULL
		       : rdma_memlock_limited(&limit) ? RDMA_REFUSED_MEMLOCK
						      : RDMA_REFUSED_OTHER;
	case EFAULT:
	case EINVAL:
	case EOPNOTSUPP:
	case NOT_SUPPORTED:
		return RDMA_REFUSED_KIND;
	default:
		return RDMA_REFUSED_OTHER;
	}
}

static void explain(struct rdma_mem *m, const struct rdma_device *d, int error)
{
	char hint[200] = "";

	if (refusal_of(d, error) == RDMA_REFUSED_FULL || error == ENOMEM || error == EAGAIN) {
		memcpy(hint, "; ", 2);
		rdma_region_hint(d, m->size, hint + 2, sizeof(hint) - 2);
	} else if (error == EFAULT) {
		snprintf(hint, sizeof(hint), "; this kind of memory cannot be registered");
	}
	snprintf(m->reason, sizeof(m->reason), "%s: cannot register: %s%s", d->name,
		 error == NOT_SUPPORTED ? "not supported" : strerror(error), hint);
}

static void count_refusal(struct rdma_device *d, int error)
{
	/* relaxed: only rocectl reads it */
	atomic_fetch_add_explicit(&d->refused[refusal_of(d, error)], 1, memory_order_relaxed);
}

static struct ibv_mr *reg_once(const struct rdma_mem *m, struct rdma_device *d, int fd,
			       uint64_t offset, unsigned int access)
{
	errno = 0;
	return fd < 0 ? d->api->reg_mr(d->pd, m->base, m->size, access)
		      : d->api->reg_dmabuf(d->pd, offset, m->size, (uintptr_t)m->base, fd, access);
}

/* @fd: -1: by address. Return: 0, or positive errno; nothing is counted. */
static int reg(struct rdma_mem *m, struct rdma_device *d, int fd, uint64_t offset)
{
	struct ibv_mr *mr = reg_once(m, d, fd, offset, ACCESS | IBV_ACCESS_RELAXED_ORDERING);

	if (!mr && (errno == EINVAL || errno == EOPNOTSUPP || errno == NOT_SUPPORTED)) {
		mr = reg_once(m, d, fd, offset, ACCESS);
	}
	if (!mr) {
		return errno ? errno : EIO;
	}
	m->mr[d->index] = mr;
	m->devices[d->index] = d;
	/* relaxed: only rocectl, and the words of a refusal, read them */
	atomic_fetch_add_explicit(&d->registrations, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&d->regions, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&d->region_bytes, m->size, memory_order_relaxed);
	return 0;
}

int rdma_mem_add_device(struct rdma_mem *m, struct rdma_device *d)
{
	int r;

	m->full &= ~(1u << d->index);
	if (m->mr[d->index] || !d->context || d->gone) {
		return m->mr[d->index] ? 0 : -ENODEV;
	}
	r = reg(m, d, -1, 0);
	if (r) {
		explain(m, d, r);
		count_refusal(d, r);
		m->full |= r == ENOMEM || r == EAGAIN || r == ENOSPC ? 1u << d->index : 0;
	}
	return -r;
}

/* Return: 0, or positive errno with m->reason; nothing is counted. */
static int reg_dmabuf(struct rdma_mem *m, struct rdma_device *d, int fd, uint64_t offset)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int r;

	if (offset % page != (uintptr_t)m->base % page) {
		snprintf(m->reason, sizeof(m->reason),
			 "%s: cannot register: it lies otherwise in its page than in the dma-buf",
			 d->name);
		return EINVAL;
	}
	r = reg(m, d, fd, offset);
	if (r) {
		explain(m, d, r);
	}
	return r;
}

enum rdma_mem_way rdma_mem_add_dmabuf(struct rdma_mem *m, struct rdma_device *d, int fd,
				      uint64_t offset)
{
	int first = 0, r;

	if (!d->context || d->gone || m->mr[d->index]) {
		return RDMA_MEM_NONE;
	}
	if (fd >= 0) {
		first = reg_dmabuf(m, d, fd, offset);
		if (first == 0) {
			return RDMA_MEM_DMABUF;
		}
	}
	r = reg(m, d, -1, 0);
	if (r == 0) {
		return RDMA_MEM_PEER;
	}
	if (first == 0) {
		explain(m, d, r); /* else that of the dma-buf says more */
	}
	count_refusal(d, first ? first : r);
	return RDMA_MEM_NONE;
}

static void drop(struct rdma_mem *m, struct rdma_device *d)
{
	d->api->dereg_mr(m->mr[d->index]);
	m->mr[d->index] = NULL;
	atomic_fetch_sub_explicit(&d->regions, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&d->region_bytes, m->size, memory_order_relaxed);
}

void rdma_mem_drop_device(struct rdma_mem *m, struct rdma_device *d)
{
	if (m->mr[d->index]) {
		drop(m, d);
	}
}

/**
 * rdma_mem_new() - register a region with all devices
 * @list: borrowed; NULL: with none, rdma_mem_add_device() follows
 * @base: borrowed, mapped until rdma_mem_free()
 * @size: bytes, not 0
 * @ret:  new region, set on success only
 *
 * Return: 0, also when no device took it (see reason); -ENOMEM.
 */
int rdma_mem_new(struct rdma *list, void *base, size_t size, struct rdma_mem **ret)
{
	struct rdma_mem *m = calloc(1, sizeof(*m));

	if (!m) {
		return err_origin(-ENOMEM);
	}
	m->base = base;
	m->size = size;
	for (uint32_t i = 0; list && i < list->count; i++) {
		rdma_mem_add_device(m, list->devices[i]);
	}
	*ret = m;
	return 0;
}

/**
 * rdma_mem_free() - deregister a region
 * @m: consumed; NULL allowed; devices that it is registered with are still open
 *
 * When this returns, no device touches the memory any more.
 *
 * Return: NULL
 */
struct rdma_mem *rdma_mem_free(struct rdma_mem *m)
{
	if (!m) {
		return NULL;
	}
	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		if (m->mr[i]) {
			drop(m, m->devices[i]);
		}
	}
	free(m);
	return NULL;
}
