/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake CUDA: physical allocations, reserved addresses and the mappings between them
 *
 * Thread: any      Owns: physical allocations, reservations      Locks: root.lock
 */
#include "fake_cuda.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Lock held. */
static void physical_unref(struct fake_physical *phys)
{
	if (--phys->refs == 0) {
		close(phys->fd);
		free(phys);
		fake.counts->physical--;
	}
}

static CUresult physical_new(int fd, size_t size, int device, unsigned int types,
			     CUmemGenericAllocationHandle *handle)
{
	struct fake_physical *phys = fd >= 0 ? calloc(1, sizeof(*phys)) : NULL;

	if (!phys) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*phys = (struct fake_physical){
		.refs = 1, .fd = fd, .size = size, .device = device, .handle_types = types};
	pthread_mutex_lock(&fake.lock);
	phys->block = fake.next_id++;
	pthread_mutex_unlock(&fake.lock);
	fake.counts->physical++;
	*handle = (uintptr_t)phys;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemGetAllocationGranularity(size_t *granularity,
						const CUmemAllocationProp *prop,
						CUmemAllocationGranularity_flags option)
{
	FAKE_ENTER("cuMemGetAllocationGranularity");
	(void)prop;
	(void)option;
	*granularity = FAKE_GRANULARITY;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
			      const CUmemAllocationProp *prop, unsigned long long flags)
{
	FAKE_ENTER("cuMemCreate");
	if (size == 0 || size % FAKE_GRANULARITY != 0 || flags != 0 ||
	    prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    prop->location.id >= fake.n_visible) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return physical_new(fake_memfd(size), size, prop->location.id, prop->requestedHandleTypes,
			    handle);
}

FAKE_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	FAKE_ENTER("cuMemRelease");
	pthread_mutex_lock(&fake.lock);
	physical_unref((struct fake_physical *)(uintptr_t)handle);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
				      CUdeviceptr addr, unsigned long long flags)
{
	struct fake_reserve *reserve;
	void *p;

	FAKE_ENTER("cuMemAddressReserve");
	(void)alignment;
	(void)addr;
	(void)flags;
	if (size == 0 || size % FAKE_GRANULARITY != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	reserve = calloc(1, sizeof(*reserve));
	p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!reserve || p == MAP_FAILED) {
		free(reserve);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	reserve->base = (uintptr_t)p;
	reserve->size = size;
	pthread_mutex_lock(&fake.lock);
	reserve->next = fake.reserves;
	fake.reserves = reserve;
	pthread_mutex_unlock(&fake.lock);
	*ptr = reserve->base;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	struct fake_reserve **p, *reserve;

	FAKE_ENTER("cuMemAddressFree");
	pthread_mutex_lock(&fake.lock);
	for (p = &fake.reserves; *p && (*p)->base != ptr; p = &(*p)->next) {
	}
	reserve = *p;
	if (!reserve || reserve->size != size || fake_find(ptr)) {
		pthread_mutex_unlock(&fake.lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*p = reserve->next;
	pthread_mutex_unlock(&fake.lock);
	munmap((void *)reserve->base, size);
	free(reserve);
	return CUDA_SUCCESS;
}

/* Is it wholly inside a reservation, and free? Lock held. */
static bool range_free(uintptr_t base, size_t size)
{
	const struct fake_reserve *r = fake.reserves;

	while (r && !(base >= r->base && base + size <= r->base + r->size)) {
		r = r->next;
	}
	for (const struct fake_range *m = fake.ranges; r && m; m = m->next) {
		if (m->base < base + size && base < m->base + m->size) {
			return false;
		}
	}
	return r != NULL;
}

FAKE_API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
			   CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct fake_physical *phys = (struct fake_physical *)(uintptr_t)handle;
	struct fake_range *range;
	bool ok;

	FAKE_ENTER("cuMemMap");
	pthread_mutex_lock(&fake.lock);
	ok = range_free(ptr, size);
	pthread_mutex_unlock(&fake.lock);
	/* As the driver: whole allocations only; newer ones may map a part. */
	if (getenv("FAKE_CUDA_MAP_PART") ? size > phys->size : size != phys->size) {
		ok = false;
	}
	if (!ok || offset != 0 || flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	range = fake_range_new(FAKE_VMM, ptr, size, phys->device);
	if (!range) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&fake.lock);
	range->alias = NULL; /* no access yet */
	range->phys = phys;
	phys->refs++;
	pthread_mutex_unlock(&fake.lock);
	fake.counts->mapped++;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
				 size_t count)
{
	uintptr_t at = ptr;
	CUresult r = CUDA_SUCCESS;

	FAKE_ENTER("cuMemSetAccess");
	if (count == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&fake.lock);
	while (r == CUDA_SUCCESS && at < ptr + size) {
		struct fake_range *range = fake_find(at);

		if (!range || !range->phys || range->base != at) {
			r = CUDA_ERROR_INVALID_VALUE;
			break;
		}
		if (!range->alias) {
			void *p = mmap(NULL, range->size, PROT_READ | PROT_WRITE, MAP_SHARED,
				       range->phys->fd, 0);

			range->alias = p != MAP_FAILED ? p : NULL;
			r = range->alias ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		}
		for (size_t i = 0; i < count; i++) {
			range->access |= 1u << desc[i].location.id;
		}
		at += range->size;
	}
	pthread_mutex_unlock(&fake.lock);
	return r;
}

FAKE_API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	uintptr_t at = ptr;
	CUresult r = CUDA_SUCCESS;

	FAKE_ENTER("cuMemUnmap");
	fake_drain();
	pthread_mutex_lock(&fake.lock);
	while (r == CUDA_SUCCESS && at < ptr + size) {
		struct fake_range *range = fake_find(at);

		if (!range || !range->phys || range->base != at) {
			r = CUDA_ERROR_INVALID_VALUE;
			break;
		}
		at += range->size;
		if (range->alias) {
			munmap(range->alias, range->size);
		}
		physical_unref(range->phys);
		fake_range_remove(range);
		fake.counts->mapped--;
	}
	pthread_mutex_unlock(&fake.lock);
	return r;
}

FAKE_API CUresult cuMemExportToShareableHandle(void *handle_out,
					       CUmemGenericAllocationHandle handle,
					       CUmemAllocationHandleType type,
					       unsigned long long flags)
{
	const struct fake_physical *phys = (const struct fake_physical *)(uintptr_t)handle;
	int fd;

	FAKE_ENTER("cuMemExportToShareableHandle");
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 ||
	    !(phys->handle_types & (unsigned int)type)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	fd = fcntl(phys->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)handle_out = fd;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
						 void *os_handle, CUmemAllocationHandleType type)
{
	int given = (int)(intptr_t)os_handle;
	struct stat st;

	FAKE_ENTER_CTX("cuMemImportFromShareableHandle");
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(given, &st) < 0 ||
	    !S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size % FAKE_GRANULARITY != 0 ||
	    fcntl(given, F_GET_SEALS) < 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return physical_new(fcntl(given, F_DUPFD_CLOEXEC, 0), (size_t)st.st_size,
			    fake_ctx()->device, 0, handle);
}

FAKE_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct fake_range *range;

	FAKE_ENTER("cuMemRetainAllocationHandle");
	pthread_mutex_lock(&fake.lock);
	range = fake_find((uintptr_t)addr);
	if (range && range->phys) {
		range->phys->refs++;
		*handle = (uintptr_t)range->phys;
	}
	pthread_mutex_unlock(&fake.lock);
	return range && range->phys ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
							 CUmemGenericAllocationHandle handle)
{
	const struct fake_physical *phys = (const struct fake_physical *)(uintptr_t)handle;

	FAKE_ENTER("cuMemGetAllocationPropertiesFromHandle");
	memset(prop, 0, sizeof(*prop));
	prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop->requestedHandleTypes = (CUmemAllocationHandleType)phys->handle_types;
	prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop->location.id = phys->device;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size,
						CUmemRangeHandleType type, unsigned long long flags)
{
	struct fake_range *range;
	int fd = -1;

	FAKE_ENTER("cuMemGetHandleForAddressRange");
	if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || size == 0 ||
	    ptr % FAKE_PAGE != 0 || size % FAKE_PAGE != 0 || getenv("FAKE_CUDA_NO_DMABUF")) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	pthread_mutex_lock(&fake.lock);
	range = fake_find(ptr);
	if (range && (range->phys || range->fd >= 0) && range->kind != FAKE_IMPORTED) {
		fd = fcntl(range->phys ? range->phys->fd : range->fd, F_DUPFD_CLOEXEC, 0);
	}
	pthread_mutex_unlock(&fake.lock);
	if (fd < 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}
