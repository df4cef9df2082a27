/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake CUDA: allocations, IPC handles, host memory, pointer attributes
 *
 * Thread: any      Owns: ranges      Locks: root.lock
 */
#include "fake_cuda.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What an IPC handle holds: whose descriptor, of which allocation. */
struct fake_ipc {
	uint32_t magic;
	int32_t pid;
	int32_t fd;
	int32_t real_device;
	uint64_t size;
	uint64_t id;
	uint64_t addr; /* in its process */
};
#define FAKE_IPC_MAGIC 0x1bc0ffeeu
static_assert(sizeof(struct fake_ipc) == sizeof(((struct fake_range *)0)->key), "whole");

struct fake_range *fake_find(uintptr_t addr)
{
	struct fake_range *range = fake.ranges;

	while (range && !(addr >= range->base && addr - range->base < range->size)) {
		range = range->next;
	}
	return range;
}

struct fake_range *fake_range_new(enum fake_kind kind, uintptr_t base, size_t size, int device)
{
	struct fake_range *range = calloc(1, sizeof(*range));

	if (!range) {
		return NULL;
	}
	range->kind = kind;
	range->base = base;
	range->size = size;
	range->alias = (uint8_t *)base;
	range->device = device;
	range->fd = -1;
	pthread_mutex_lock(&fake.lock);
	range->id = fake.next_id++;
	range->next = fake.ranges;
	fake.ranges = range;
	pthread_mutex_unlock(&fake.lock);
	return range;
}

void fake_range_remove(struct fake_range *range)
{
	struct fake_range **p = &fake.ranges;

	while (*p != range) {
		p = &(*p)->next;
	}
	*p = range->next;
	free(range);
}

uint8_t *fake_touch(uintptr_t addr, size_t *ret_left)
{
	struct fake_range *range;
	uint8_t *p = NULL;

	pthread_mutex_lock(&fake.lock);
	range = fake_find(addr);
	if (range && range->alias) {
		p = range->alias + (addr - range->base);
		*ret_left = range->size - (addr - range->base);
	}
	pthread_mutex_unlock(&fake.lock);
	return p;
}

CUresult fake_copy(uintptr_t dst, uintptr_t src, size_t size)
{
	/* Addresses that the driver does not know are pageable host memory. */
	while (size > 0) {
		size_t a = size, b = size, n = size;
		uint8_t *d = fake_touch(dst, &a), *s = fake_touch(src, &b);

		n = a < n ? a : n;
		n = b < n ? b : n;
		memmove(d ? d : (uint8_t *)dst, s ? s : (const uint8_t *)src, n);
		dst += n;
		src += n;
		size -= n;
	}
	return CUDA_SUCCESS;
}

int fake_memfd(size_t size)
{
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, (off_t)size) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

struct fake_range *fake_map(enum fake_kind kind, int fd, size_t size, int device)
{
	size_t mapped = (size + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE;
	void *alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	void *base =
		mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct fake_range *range = NULL;

	if (alias != MAP_FAILED && base != MAP_FAILED) {
		range = fake_range_new(kind, (uintptr_t)base, size, device);
	}
	if (range) {
		range->alias = alias;
	}
	return range;
}

static void range_unmap(struct fake_range *range)
{
	size_t mapped = (range->size + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE;

	munmap(range->alias, mapped);
	munmap((void *)range->base, mapped);
	if (range->fd >= 0) {
		close(range->fd);
	}
}

static CUresult alloc(enum fake_kind kind, CUdeviceptr *ptr, size_t size)
{
	struct fake_range *range;
	int fd;

	if (size == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	fd = fake_memfd((size + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE);
	range = fd >= 0 ? fake_map(kind, fd, size, fake_ctx()->device) : NULL;
	if (!range) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->fd = fd;
	fake.counts->device_bytes += size;
	*ptr = range->base;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	FAKE_ENTER_CTX("cuMemAlloc");
	return alloc(FAKE_DEVICE, ptr, size);
}

FAKE_API CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	FAKE_ENTER_CTX("cuMemAllocAsync");
	(void)stream;
	return alloc(FAKE_POOL, ptr, size);
}

FAKE_API CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	void *p;

	FAKE_ENTER_CTX("cuMemAllocManaged");
	(void)flags;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED ||
	    !fake_range_new(FAKE_MANAGED, (uintptr_t)p, size, fake_ctx()->device)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = (uintptr_t)p;
	return CUDA_SUCCESS;
}

static CUresult release(uintptr_t addr, enum fake_kind a, enum fake_kind b)
{
	struct fake_range *range;

	/* The driver waits for work that may use it. */
	fake_drain();
	pthread_mutex_lock(&fake.lock);
	range = fake_find(addr);
	if (!range || range->base != addr || (range->kind != a && range->kind != b)) {
		pthread_mutex_unlock(&fake.lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (range->kind == FAKE_DEVICE || range->kind == FAKE_POOL) {
		fake.counts->device_bytes -= range->size;
		range_unmap(range);
	} else {
		munmap((void *)range->base, range->size);
		fake.counts->host_bytes -= range->kind == FAKE_HOST ? range->size : 0;
	}
	fake_range_remove(range);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	FAKE_ENTER_CTX("cuMemFree");
	return ptr ? release(ptr, FAKE_DEVICE, FAKE_MANAGED) : CUDA_SUCCESS;
}

FAKE_API CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	FAKE_ENTER("cuMemFreeAsync");
	(void)stream;
	return release(ptr, FAKE_POOL, FAKE_POOL);
}

FAKE_API CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	FAKE_ENTER_CTX("cuMemGetInfo");
	*total = (size_t)8 << 30;
	*available = *total - fake.counts->device_bytes;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct fake_range *range;

	FAKE_ENTER("cuMemGetAddressRange");
	pthread_mutex_lock(&fake.lock);
	range = fake_find(ptr);
	if (range) {
		*base = range->base;
		*size = range->size;
	}
	pthread_mutex_unlock(&fake.lock);
	return range ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FAKE_API CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	void *p;

	FAKE_ENTER_CTX("cuMemHostAlloc");
	(void)flags;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || !fake_range_new(FAKE_HOST, (uintptr_t)p, size, fake_ctx()->device)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	fake.counts->host_bytes += size;
	*ptr = p;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemFreeHost(void *ptr)
{
	FAKE_ENTER_CTX("cuMemFreeHost");
	return release((uintptr_t)ptr, FAKE_HOST, FAKE_HOST);
}

FAKE_API CUresult cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
	struct fake_range *range;
	bool overlap = false;

	FAKE_ENTER_CTX("cuMemHostRegister");
	(void)flags;
	if (!ptr || size == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&fake.lock);
	for (range = fake.ranges; range; range = range->next) {
		overlap |= range->base < (uintptr_t)ptr + size &&
			   (uintptr_t)ptr < range->base + range->size;
	}
	pthread_mutex_unlock(&fake.lock);
	if (overlap) {
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	}
	if (!fake_range_new(FAKE_REGISTERED, (uintptr_t)ptr, size, fake_ctx()->device)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	fake.counts->host_bytes += size;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemHostUnregister(void *ptr)
{
	struct fake_range *range;

	FAKE_ENTER_CTX("cuMemHostUnregister");
	fake_drain();
	pthread_mutex_lock(&fake.lock);
	range = fake_find((uintptr_t)ptr);
	if (!range || range->kind != FAKE_REGISTERED || range->base != (uintptr_t)ptr) {
		pthread_mutex_unlock(&fake.lock);
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	}
	fake.counts->host_bytes -= range->size;
	fake_range_remove(range);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ret, void *ptr, unsigned int flags)
{
	size_t left;

	FAKE_ENTER_CTX("cuMemHostGetDevicePointer");
	if (flags != 0 || !fake_touch((uintptr_t)ptr, &left)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*ret = (uintptr_t)ptr;
	return CUDA_SUCCESS;
}

static bool range_is_host(const struct fake_range *range)
{
	return range->kind == FAKE_HOST || range->kind == FAKE_REGISTERED;
}

/* Writes one attribute; each has its own size. Return: false for one that does not exist. */
static bool attribute_put(const struct fake_range *r, void *data, CUpointer_attribute attribute,
			  CUdeviceptr ptr)
{
	unsigned int flag = 0;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		flag = range_is_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		flag = r->kind == FAKE_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		flag = r->kind == FAKE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		flag = 1;
		break;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		flag = r->kind == FAKE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = r->device;
		return true;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(unsigned long long *)data =
			attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID || !r->phys ? r->id
										: r->phys->block;
		return true;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)data = r->phys ? r->phys->handle_types : 0;
		return true;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)data = r->base;
		return true;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)data = r->size;
		return true;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = ptr;
		return true;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = r->kind == FAKE_VMM ? NULL : &fake.ctx[r->device];
		return true;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(void **)data = NULL;
		return true;
	default:
		return false;
	}
	*(unsigned int *)data = flag;
	return true;
}

FAKE_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct fake_range *range;
	bool ok;

	FAKE_ENTER("cuPointerGetAttribute");
	pthread_mutex_lock(&fake.lock);
	range = fake_find(ptr);
	ok = range && attribute_put(range, data, attribute, ptr);
	pthread_mutex_unlock(&fake.lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes,
					 void **data, CUdeviceptr ptr)
{
	struct fake_range *range;

	FAKE_ENTER("cuPointerGetAttributes");
	pthread_mutex_lock(&fake.lock);
	range = fake_find(ptr);
	for (unsigned int i = 0; range && i < n; i++) {
		attribute_put(range, data[i], attributes[i], ptr);
	}
	pthread_mutex_unlock(&fake.lock);
	/* Unknown addresses succeed, with zeros: all of them are left as they were here. */
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct fake_ipc ipc = {.magic = FAKE_IPC_MAGIC, .pid = (int32_t)getpid()};
	struct fake_range *range;

	FAKE_ENTER_CTX("cuIpcGetMemHandle");
	pthread_mutex_lock(&fake.lock);
	range = fake_find(ptr);
	if (range && range->kind == FAKE_DEVICE) {
		ipc.fd = range->fd;
		ipc.size = range->size;
		ipc.id = range->id;
		ipc.addr = range->base;
		ipc.real_device = fake.visible[range->device];
	}
	pthread_mutex_unlock(&fake.lock);
	if (ipc.size == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return CUDA_SUCCESS;
}

static int ipc_open(const struct fake_ipc *ipc)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)ipc->pid, (int)ipc->fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

FAKE_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	struct fake_range *range;
	struct fake_ipc ipc;
	int fd;

	FAKE_ENTER_CTX("cuIpcOpenMemHandle");
	memcpy(&ipc, &handle, sizeof(ipc));
	if (ipc.magic != FAKE_IPC_MAGIC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
	    ipc.pid == (int32_t)getpid() || fake.visible[fake_ctx()->device] != ipc.real_device) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&fake.lock);
	for (range = fake.ranges; range; range = range->next) {
		struct fake_ipc open;

		memcpy(&open, range->key, sizeof(open));
		if (range->kind == FAKE_IMPORTED && open.pid == ipc.pid && open.addr == ipc.addr &&
		    open.id != ipc.id) {
			/* As a real driver: what was there before is still open. */
			pthread_mutex_unlock(&fake.lock);
			return CUDA_ERROR_ALREADY_MAPPED;
		}
		if (range->kind == FAKE_IMPORTED && memcmp(range->key, &ipc, sizeof(ipc)) == 0) {
			range->opened++;
			*ptr = range->base;
			pthread_mutex_unlock(&fake.lock);
			return CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&fake.lock);
	fd = ipc_open(&ipc);
	range = fd >= 0 ? fake_map(FAKE_IMPORTED, fd, ipc.size, fake_ctx()->device) : NULL;
	if (!range) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	range->fd = fd;
	range->opened = 1;
	memcpy(range->key, &ipc, sizeof(ipc));
	fake.counts->ipc++;
	*ptr = range->base;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	struct fake_range *range;

	FAKE_ENTER_CTX("cuIpcCloseMemHandle");
	fake_drain();
	pthread_mutex_lock(&fake.lock);
	range = fake_find(ptr);
	if (!range || range->kind != FAKE_IMPORTED || range->base != ptr) {
		pthread_mutex_unlock(&fake.lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (--range->opened == 0) {
		range_unmap(range);
		fake_range_remove(range);
		fake.counts->ipc--;
	}
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}
