/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * RDMA memory: registration, and why it failed
 *
 * Thread: control      Owns: see rdma_mem.h      Locks: none
 */
#include "topo/rdma_mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/base.h"

/*
 * Relaxed ordering lets writes of one message pass each other on PCIe. A completion does not pass
 * them, and nothing is read before its completion, so this is correct; kernels and devices that do
 * not know the flag leave it out.
 */
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING)

void rdma_memlock_hint(size_t size, char *buf, size_t len)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY) {
		snprintf(buf, len, "the limit of locked memory is not the cause");
		return;
	}
	snprintf(buf, len,
		 "the limit of locked memory is %" PRIu64 " KiB and %zu KiB were asked for; "
		 "LimitMEMLOCK=infinity in the unit raises it",
		 (uint64_t)limit.rlim_cur / 1024, size / 1024);
}

static void explain(struct rdma_mem *m, const struct rdma_device *d, int error)
{
	char hint[160] = "";

	if (error == ENOMEM || error == EAGAIN) {
		hint[0] = ';';
		hint[1] = ' ';
		rdma_memlock_hint(m->size, hint + 2, sizeof(hint) - 2);
	} else if (error == EFAULT) {
		snprintf(hint, sizeof(hint), "; this kind of memory cannot be registered");
	}
	/* Kernels leak ENOTSUPP (524), which strerror() does not know. */
	snprintf(m->reason, sizeof(m->reason), "%s: cannot register: %s%s", d->name,
		 error == 524 ? "not supported" : strerror(error), hint);
}

int rdma_mem_add_device(struct rdma_mem *m, struct rdma_device *d)
{
	struct ibv_mr *mr;

	if (m->mr[d->index] || !d->context || d->gone) {
		return m->mr[d->index] ? 0 : -ENODEV;
	}
	errno = 0;
	mr = d->api->reg_mr(d->pd, m->base, m->size, ACCESS);
	if (!mr) {
		int r = errno ? errno : EIO;

		explain(m, d, r);
		return -r;
	}
	m->api = d->api;
	m->mr[d->index] = mr;
	return 0;
}

enum rdma_mem_way rdma_mem_add_dmabuf(struct rdma_mem *m, struct rdma_device *d, int fd,
				      uint64_t offset)
{
	struct ibv_mr *mr = NULL;
	char first[sizeof(m->reason)] = "";

	if (!d->context || d->gone) {
		return RDMA_MEM_NONE;
	}
	errno = 0;
	if (fd >= 0) {
		mr = d->api->reg_dmabuf(d->pd, offset, m->size, (uintptr_t)m->base, fd, ACCESS);
	}
	if (mr) {
		m->api = d->api;
		m->mr[d->index] = mr;
		return RDMA_MEM_DMABUF;
	}
	if (fd >= 0) {
		explain(m, d, errno ? errno : EIO);
		memcpy(first, m->reason, sizeof(first));
	}
	if (rdma_mem_add_device(m, d) == 0) {
		return RDMA_MEM_PEER;
	}
	if (first[0]) {
		memcpy(m->reason, first, sizeof(first));
	}
	return RDMA_MEM_NONE;
}

void rdma_mem_drop_device(struct rdma_mem *m, struct rdma_device *d)
{
	if (m->mr[d->index]) {
		d->api->dereg_mr(m->mr[d->index]);
		m->mr[d->index] = NULL;
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
			m->api->dereg_mr(m->mr[i]);
		}
	}
	free(m);
	return NULL;
}
