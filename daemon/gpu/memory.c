/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: allocations of clients imported, buffers mapped of them, and all of it given back
 *
 * An allocation is imported once, by number of the client's, never found again by address: what is
 * freed and allocated anew is another one. It lives as long as anything is mapped of it, and the
 * driver keeps its pages as long, whatever the client does.
 *
 * A buffer inside one allocation lies in the mapping of the whole, which all such buffers share.
 * One of several allocations (PyTorch's expandable segments) gets a mapping of its own.
 *
 * Thread: gpu, but for the counting of references      Owns: mappings      Locks: none
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu_impl.h"

void memory_run_open(struct gpu *gpu, struct gpu_task *task);
void memory_run_map(struct gpu *gpu, struct gpu_task *task);

/* ---- references --------------------------------------------------------------------------- */

static void alloc_run_close(struct gpu *gpu, struct gpu_task *task);
static void memory_run_close(struct gpu *gpu, struct gpu_task *task);

/* See gpu.h. */
struct gpu_alloc *gpu_alloc_ref(struct gpu_alloc *a)
{
	ref_get(&a->ref);
	return a;
}

/* See gpu.h. */
struct gpu_alloc *gpu_alloc_unref(struct gpu_alloc *a)
{
	if (a && ref_put(&a->ref)) {
		a->task.run = alloc_run_close;
		gpu_post(a->device->gpu, &a->task);
	}
	return NULL;
}

/* See gpu.h. */
struct gpu_memory *gpu_memory_ref(struct gpu_memory *m)
{
	ref_get(&m->ref);
	return m;
}

/* See gpu.h. */
struct gpu_memory *gpu_memory_unref(struct gpu_memory *m)
{
	if (m && ref_put(&m->ref)) {
		m->task.run = memory_run_close;
		gpu_post(m->device->gpu, &m->task);
	}
	return NULL;
}

/* See gpu.h. */
uint64_t gpu_memory_address(const struct gpu_memory *m)
{
	return m->address;
}

/* See gpu.h. */
uint64_t gpu_memory_size(const struct gpu_memory *m)
{
	return m->size;
}

/* See gpu.h. */
struct gpu_device *gpu_memory_device(const struct gpu_memory *m)
{
	return m->device;
}

/* See gpu.h. */
const char *gpu_memory_kind(const struct gpu_memory *m)
{
	return m->allocs[0]->handle == GPU_HANDLE_VMM ? "vmm" : "ipc";
}

static void device_leave(struct gpu_device *d)
{
	if (--d->users == 0) {
		device_idle(d);
	}
}

/* ---- mapping ------------------------------------------------------------------------------ */

/* Makes mapped addresses usable for copies. */
static CUresult map_access(const struct gpu_device *d, CUdeviceptr at, uint64_t size)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};

	return d->gpu->cuda.MemSetAccess(at, size, &access, 1);
}

static void unmap_row(const struct gpu_device *d, struct gpu_alloc *const *allocs, uint32_t n,
		      CUdeviceptr base, uint64_t size)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUdeviceptr at = base;

	for (uint32_t i = 0; i < n; i++) {
		cuda->MemUnmap(at, allocs[i]->size);
		at += allocs[i]->size;
	}
	cuda->MemAddressFree(base, size);
}

/* Maps allocations one behind the other. */
static CUresult map_row(const struct gpu_device *d, struct gpu_alloc *const *allocs, uint32_t n,
			uint64_t size, CUdeviceptr *ret)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUdeviceptr base, at;
	uint32_t done = 0;
	CUresult r = cuda->MemAddressReserve(&base, size, 0, 0, 0);

	if (r != CUDA_SUCCESS) {
		return r;
	}
	at = base;
	while (done < n && r == CUDA_SUCCESS) {
		r = cuda->MemMap(at, allocs[done]->size, 0, allocs[done]->vmm, 0);
		if (r == CUDA_SUCCESS) {
			at += allocs[done++]->size;
		}
	}
	if (r == CUDA_SUCCESS) {
		r = map_access(d, base, size);
	}
	if (r != CUDA_SUCCESS) {
		unmap_row(d, allocs, done, base, size);
		return r;
	}
	*ret = base;
	return CUDA_SUCCESS;
}

/* ---- allocations -------------------------------------------------------------------------- */

static void alloc_back(struct gpu_task *task)
{
	struct gpu_alloc *a = container_of(task, struct gpu_alloc, task);
	void (*gone)(void *arg) = a->gone;
	void *arg = a->gone_arg;

	free(a);
	gone(arg);
}

/* In a spoilt context the calls fail, and all goes with it. */
static void alloc_run_close(struct gpu *gpu, struct gpu_task *task)
{
	struct gpu_alloc *a = container_of(task, struct gpu_alloc, task);
	struct gpu_device *d = a->device;

	gpu->cuda.CtxSetCurrent(d->ctx);
	if (a->handle == GPU_HANDLE_IPC) {
		gpu->cuda.IpcCloseMemHandle(a->base);
	} else {
		if (a->base) {
			unmap_row(d, &a, 1, a->base, a->size);
		}
		gpu->cuda.MemRelease(a->vmm);
	}
	atomic_fetch_sub_explicit(&d->allocs, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&d->alloc_bytes, a->size, memory_order_relaxed);
	device_leave(d);
	a->task.back = alloc_back;
	gpu_post_back(gpu, &a->task);
}

/*
 * No call tells how large an allocation is, but mapping does: that many bytes can be mapped, and
 * not more. One that is larger than its client says would hold more than it is charged for.
 */
static bool check_vmm_size(const struct gpu_device *d, const struct gpu_alloc *a,
			   const CUmemAllocationProp *prop, struct gpu_request *request)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUdeviceptr at = 0;
	bool larger = false;
	size_t unit = 0;
	uint64_t room;
	CUresult r;

	r = cuda->MemGetAllocationGranularity(&unit, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (r == CUDA_SUCCESS &&
	    (unit == 0 || a->size % unit != 0 || __builtin_add_overflow(a->size, unit, &room))) {
		r = CUDA_ERROR_INVALID_VALUE;
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->MemAddressReserve(&at, room, 0, 0, 0);
	}
	if (r == CUDA_SUCCESS) {
		larger = cuda->MemMap(at, room, 0, a->vmm, 0) == CUDA_SUCCESS;
		if (larger) {
			cuda->MemUnmap(at, room);
		} else {
			r = cuda->MemMap(at, a->size, 0, a->vmm, 0);
		}
		if (!larger && r == CUDA_SUCCESS) {
			cuda->MemUnmap(at, a->size);
		}
		cuda->MemAddressFree(at, room);
	}
	if (larger || r == CUDA_ERROR_INVALID_VALUE) {
		gpu_refuse(request, STATUS_INVALID,
			   "the allocation is not of %" PRIu64 " bytes, as its client says",
			   a->size);
		return false;
	}
	if (r != CUDA_SUCCESS) {
		gpu_refuse_cuda(d->gpu, request, "the daemon cannot map the GPU memory", r);
		return false;
	}
	return true;
}

/* The handle is a client's word: whose memory is it really, and how much? */
static bool check_vmm(const struct gpu_device *d, const struct gpu_alloc *a,
		      struct gpu_request *request)
{
	CUmemAllocationProp prop;
	CUresult r = d->gpu->cuda.MemGetAllocationPropertiesFromHandle(&prop, a->vmm);

	if (r != CUDA_SUCCESS) {
		gpu_refuse_cuda(d->gpu, request, "cuMemGetAllocationPropertiesFromHandle()", r);
		return false;
	}
	if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id != d->device) {
		gpu_refuse(request, STATUS_INVALID,
			   "the allocation is not on %s, which its client names", d->uuid_text);
		return false;
	}
	return check_vmm_size(d, a, &prop, request);
}

static bool open_vmm(struct gpu_device *d, struct gpu_alloc *a, struct gpu_request *request)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUresult r = cuda->MemImportFromShareableHandle(&a->vmm, (void *)(intptr_t)request->fd,
							CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (r != CUDA_SUCCESS) {
		gpu_refuse_cuda(d->gpu, request, "the GPU memory cannot be imported", r);
		return false;
	}
	if (!check_vmm(d, a, request)) {
		cuda->MemRelease(a->vmm);
		return false;
	}
	return true;
}

/* What the driver says of the mapping counts, not what the client says, and is what it holds. */
static bool check_ipc(const struct gpu_device *d, struct gpu_alloc *a, struct gpu_request *request)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUdeviceptr base;
	size_t size;
	CUresult r = cuda->MemGetAddressRange(&base, &size, a->base);

	if (r != CUDA_SUCCESS) {
		gpu_refuse_cuda(d->gpu, request, "cuMemGetAddressRange()", r);
		return false;
	}
	if (base != a->base || size < a->size) {
		gpu_refuse(request, STATUS_INVALID,
			   "the IPC handle is of %zu bytes, not of %" PRIu64 " as its client says",
			   size, a->size);
		return false;
	}
	a->size = size;
	request->size = size;
	return true;
}

static bool open_ipc(struct gpu_device *d, struct gpu_alloc *a, struct gpu_request *request)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUipcMemHandle handle;
	CUresult r;

	memcpy(handle.reserved, request->ipc, sizeof(handle.reserved));
	r = cuda->IpcOpenMemHandle(&a->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (r != CUDA_SUCCESS) {
		gpu_refuse_cuda(d->gpu, request, "the IPC handle cannot be opened", r);
		return false;
	}
	if (!check_ipc(d, a, request)) {
		cuda->IpcCloseMemHandle(a->base);
		return false;
	}
	return true;
}

static bool open_handle(struct gpu_device *d, struct gpu_alloc *a, struct gpu_request *request)
{
	switch (request->handle) {
	case GPU_HANDLE_VMM:
		return open_vmm(d, a, request);
	case GPU_HANDLE_IPC:
		return open_ipc(d, a, request);
	case GPU_HANDLE_DMABUF:
		gpu_refuse(
			request, STATUS_UNSUPPORTED,
			"a dma-buf is for network devices, and this daemon has copy engines move "
			"memory of GPUs, which cannot use one");
		return false;
	default:
		gpu_refuse(request, STATUS_INVALID, "handle kind %d is unknown",
			   (int)request->handle);
		return false;
	}
}

static void alloc_open(struct gpu_device *d, struct gpu_request *request)
{
	struct gpu_alloc *a = calloc(1, sizeof(*a));

	if (!a) {
		gpu_refuse(request, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	ref_init(&a->ref);
	a->device = d;
	a->handle = request->handle;
	a->size = request->size;
	a->gone = request->gone;
	a->gone_arg = request->gone_arg;
	if (!open_handle(d, a, request)) {
		free(a);
		return;
	}
	atomic_fetch_add_explicit(&d->gpu->live, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&d->allocs, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&d->alloc_bytes, a->size, memory_order_relaxed);
	d->users++;
	request->alloc = a;
}

void memory_run_open(struct gpu *gpu, struct gpu_task *task)
{
	struct gpu_request *request = container_of(task, struct gpu_request, task);
	struct gpu_device *d = device_find(gpu, request);

	if (d) {
		d->users++;
		if (device_open(d, request)) {
			alloc_open(d, request);
		}
		if (request->status != STATUS_OK && d->open) {
			device_check(d, CUDA_SUCCESS);
		}
		device_leave(d);
	}
	gpu_post_back(gpu, task);
}

/* ---- buffers ------------------------------------------------------------------------------ */

static void memory_back(struct gpu_task *task)
{
	free(container_of(task, struct gpu_memory, task));
}

static void memory_run_close(struct gpu *gpu, struct gpu_task *task)
{
	struct gpu_memory *m = container_of(task, struct gpu_memory, task);
	struct gpu_device *d = m->device;

	gpu->cuda.CtxSetCurrent(d->ctx);
	if (m->reserved) {
		unmap_row(d, m->allocs, m->nallocs, m->reserved, m->size);
	}
	/* Its allocations use the device still: who is told of the last one finds it idle. */
	device_leave(d);
	/* At once: what is opened next may lie where this one lay (CUDA_ERROR_ALREADY_MAPPED). */
	for (uint32_t i = 0; i < m->nallocs; i++) {
		if (ref_put(&m->allocs[i]->ref)) {
			alloc_run_close(gpu, &m->allocs[i]->task);
		}
	}
	m->task.back = memory_back;
	gpu_post_back(gpu, &m->task);
}

/* Is it what can be mapped? */
static bool check_pieces(struct gpu_request *request, uint64_t *ret)
{
	uint64_t size = 0;

	for (uint32_t i = 0; i < request->npieces; i++) {
		const struct gpu_piece *p = &request->pieces[i];

		if (p->size == 0 || p->offset > p->alloc->size ||
		    p->size > p->alloc->size - p->offset) {
			gpu_refuse(request, STATUS_INVALID,
				   "piece %" PRIu32
				   " of the buffer lies outside its allocation of %" PRIu64
				   " bytes",
				   i, p->alloc->size);
			return false;
		}
		if (p->alloc->device != request->pieces[0].alloc->device) {
			gpu_refuse(request, STATUS_INVALID, "a buffer lies on one GPU, not on two");
			return false;
		}
		if (request->npieces > 1 && (p->alloc->handle != GPU_HANDLE_VMM || p->offset != 0 ||
					     p->size != p->alloc->size)) {
			gpu_refuse(request, STATUS_INVALID,
				   "a buffer of several pieces is made of whole VMM allocations");
			return false;
		}
		if (__builtin_add_overflow(size, p->size, &size)) {
			gpu_refuse(request, STATUS_INVALID, "the buffer's size overflows");
			return false;
		}
	}
	*ret = size;
	return true;
}

/* Addresses for it. */
static CUresult memory_place(struct gpu_memory *m, const struct gpu_request *request)
{
	struct gpu_alloc *a = m->allocs[0];
	CUresult r = CUDA_SUCCESS;

	if (m->nallocs > 1) {
		r = map_row(m->device, m->allocs, m->nallocs, m->size, &m->reserved);
		m->address = m->reserved;
		return r;
	}
	if (!a->base) {
		r = map_row(m->device, &a, 1, a->size, &a->base);
	}
	m->address = a->base + request->pieces[0].offset;
	return r;
}

static void memory_open(struct gpu_device *d, struct gpu_request *request, uint64_t size)
{
	struct gpu_memory *m = calloc(1, sizeof(*m) + request->npieces * sizeof(m->allocs[0]));
	CUresult r;

	if (!m) {
		gpu_refuse(request, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	ref_init(&m->ref);
	m->device = d;
	m->size = size;
	m->nallocs = request->npieces;
	for (uint32_t i = 0; i < m->nallocs; i++) {
		m->allocs[i] = request->pieces[i].alloc;
	}
	r = memory_place(m, request);
	if (r != CUDA_SUCCESS) {
		free(m);
		gpu_refuse_cuda(d->gpu, request, "the daemon cannot map the GPU memory", r);
		return;
	}
	for (uint32_t i = 0; i < m->nallocs; i++) {
		ref_get(&m->allocs[i]->ref);
	}
	atomic_fetch_add_explicit(&d->gpu->live, 1, memory_order_relaxed);
	d->users++;
	request->memory = m;
}

void memory_run_map(struct gpu *gpu, struct gpu_task *task)
{
	struct gpu_request *request = container_of(task, struct gpu_request, task);
	struct gpu_device *d = request->pieces[0].alloc->device;
	uint64_t size;

	if (check_pieces(request, &size) && device_open(d, request)) {
		memory_open(d, request, size);
	}
	gpu_post_back(gpu, task);
}
