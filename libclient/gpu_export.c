/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: allocations, each handed to the daemon once, by the way that applies
 *
 * Memory of cuMemMap() (PyTorch's expandable segments) has an allocation handle, which travels as a
 * descriptor if it was made to; memory of cuMemAlloc() has a legacy IPC handle, which names the
 * whole allocation. What has neither may still have a dma-buf: of use where the NIC reads device
 * memory by itself, which the daemon knows. Each refusal is kept as the reason.
 *
 * Thread: any      Owns: the list of allocations      Locks: gpu.inner; see gpu.h
 */
#include <stdio.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/gpu.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

#define DMABUF_ALIGN 4096u

struct export
{
	struct roce_client *client;
	const struct cuda_abi *cu;
	struct gpu_alloc *alloc;
	CUuuid uuid;
};

bool gpu_is_vmm(const struct cuda_abi *cu, CUdeviceptr ptr)
{
	CUmemGenericAllocationHandle handle;

	if (cu->MemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) != CUDA_SUCCESS) {
		return false;
	}
	cu->MemRelease(handle);
	return true;
}

static unsigned int attribute(const struct cuda_abi *cu, CUpointer_attribute which, CUdeviceptr ptr)
{
	unsigned long long value = 0; /* room for all of them */

	if (cu->PointerGetAttribute(&value, which, ptr) != CUDA_SUCCESS) {
		return 0;
	}
	return (unsigned int)value;
}

/* Sends the handle. Return: 0 with alloc->id, or the daemon's refusal, sentence set. */
static int export_send(struct export *e, unsigned int kind, int fd, const CUipcMemHandle *ipc)
{
	Rocecomm__GpuAllocRegister msg = ROCECOMM__GPU_ALLOC_REGISTER__INIT;
	struct roce_client *client = e->client;
	Rocecomm__GpuAllocReady *ready;
	struct conn_reply reply;
	int r;

	msg.kind = kind;
	msg.device.data = (uint8_t *)e->uuid.bytes;
	msg.device.len = GPU_UUID_BYTES;
	msg.size = e->alloc->size;
	msg.buffer_id = e->alloc->key;
	if (ipc) {
		msg.ipc.data = (uint8_t *)(uintptr_t)ipc->reserved;
		msg.ipc.len = GPU_IPC_BYTES;
	}
	r = conn_call(&client->conn, MSG_GPU_ALLOC_REGISTER, &msg, fd, client->timeout_ms,
		      MSG_GPU_ALLOC_READY, &reply);
	if (r != 0) {
		return r;
	}
	ready = rocecomm__gpu_alloc_ready__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!ready || ready->alloc == 0) {
		r = error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable GpuAllocReady");
	} else {
		e->alloc->id = ready->alloc;
	}
	if (ready) {
		rocecomm__gpu_alloc_ready__free_unpacked(ready, NULL);
	}
	return r;
}

static int export_vmm(struct export *e)
{
	CUmemGenericAllocationHandle handle;
	cleanup_close int fd = -1;
	CUresult r;

	r = e->cu->MemRetainAllocationHandle(&handle, (void *)(uintptr_t)e->alloc->base);
	if (r != CUDA_SUCCESS) {
		return gpu_error("retaining the allocation's handle", r);
	}
	r = e->cu->MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					      0);
	e->cu->MemRelease(handle);
	if (r != CUDA_SUCCESS) {
		fd = -1;
		return gpu_error("exporting the allocation as a descriptor", r);
	}
	return export_send(e, GPU_HANDLE_VMM, fd, NULL);
}

static int export_ipc(struct export *e)
{
	CUipcMemHandle handle;
	CUresult r = e->cu->IpcGetMemHandle(&handle, e->alloc->base);

	if (r != CUDA_SUCCESS) {
		return gpu_error("exporting the allocation by an IPC handle", r);
	}
	return export_send(e, GPU_HANDLE_IPC, -1, &handle);
}

/* Only for what has no other handle. */
static int export_dmabuf(struct export *e, const char *why)
{
	cleanup_close int fd = -1;

	if (!e->cu->MemGetHandleForAddressRange || e->alloc->base % DMABUF_ALIGN != 0 ||
	    e->alloc->size % DMABUF_ALIGN != 0 ||
	    e->cu->MemGetHandleForAddressRange(&fd, e->alloc->base, e->alloc->size,
					       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
					       0) != CUDA_SUCCESS) {
		fd = -1;
		return error_set(ROCE_ERR_UNSUPPORTED, "%s", why);
	}
	if (export_send(e, GPU_HANDLE_DMABUF, fd, NULL) == 0) {
		return 0;
	}
	return error_prefix(ROCE_ERR_UNSUPPORTED, "%s, and no NIC takes its dma-buf", why);
}

static int export_any(struct export *e)
{
	CUdeviceptr base = e->alloc->base;

	if (gpu_is_vmm(e->cu, base)) {
		if (attribute(e->cu, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, base) &
		    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
			return export_vmm(e);
		}
		return export_dmabuf(e, "it was made by cuMemCreate() without "
					"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
	}
	if (attribute(e->cu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base)) {
		return export_ipc(e);
	}
	if (attribute(e->cu, CU_POINTER_ATTRIBUTE_IS_MANAGED, base)) {
		return error_set(ROCE_ERR_UNSUPPORTED, "managed memory cannot be exported");
	}
	return export_dmabuf(e, "memory of a pool (cudaMallocAsync) has no handle of its own");
}

static int export_alloc(struct roce_client *client, const struct cuda_abi *cu,
			struct gpu_alloc *alloc)
{
	struct export e = {.client = client, .cu = cu, .alloc = alloc};
	int r, dead;

	if (!client->gpu.takes) {
		snprintf(alloc->reason, sizeof(alloc->reason),
			 "this daemon takes no GPU memory (it is older, or built without)");
		return 0;
	}
	if (cu->DeviceGetUuid(&e.uuid, alloc->device) != CUDA_SUCCESS) {
		snprintf(alloc->reason, sizeof(alloc->reason), "device %d has no UUID",
			 alloc->device);
		return 0;
	}
	r = gpu_push(client, alloc->device);
	if (r == 0) {
		r = export_any(&e);
		gpu_pop();
	}
	dead = conn_dead(&client->conn);
	if (r != 0 && dead != 0) {
		return conn_dead_error(&client->conn);
	}
	if (r != 0) {
		snprintf(alloc->reason, sizeof(alloc->reason), "%s", error_last());
	}
	return 0;
}

uint64_t gpu_key(const struct cuda_abi *cu, CUdeviceptr ptr)
{
	unsigned long long id = 0;

	if (cu->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr) != CUDA_SUCCESS) {
		return 0;
	}
	return id;
}

int gpu_alloc_get(struct roce_client *client, const struct cuda_abi *cu, CUdeviceptr base,
		  size_t size, int device, struct gpu_alloc **ret)
{
	struct gpu *gpu = &client->gpu;
	uint64_t key = gpu_key(cu, base);
	struct gpu_alloc *a;
	int r;

	pthread_mutex_lock(&gpu->inner);
	for (a = gpu->allocs; a && !(a->key == key && a->base == base); a = a->next) {
	}
	if (a) {
		a->refs++;
	}
	pthread_mutex_unlock(&gpu->inner);
	if (a) {
		*ret = a;
		return 0;
	}
	a = calloc(1, sizeof(*a));
	if (!a) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for an allocation's entry");
	}
	*a = (struct gpu_alloc){
		.base = base, .size = size, .key = key, .device = device, .refs = 1};
	r = export_alloc(client, cu, a);
	if (r != 0) {
		free(a);
		return r;
	}
	pthread_mutex_lock(&gpu->inner);
	a->next = gpu->allocs;
	gpu->allocs = a;
	pthread_mutex_unlock(&gpu->inner);
	*ret = a;
	return 0;
}

void gpu_alloc_put(struct roce_client *client, struct gpu_alloc *alloc)
{
	Rocecomm__GpuAllocRelease msg = ROCECOMM__GPU_ALLOC_RELEASE__INIT;
	struct gpu *gpu = &client->gpu;
	bool last;

	pthread_mutex_lock(&gpu->inner);
	last = --alloc->refs == 0;
	for (struct gpu_alloc **p = &gpu->allocs; last && *p; p = &(*p)->next) {
		if (*p == alloc) {
			*p = alloc->next;
			break;
		}
	}
	pthread_mutex_unlock(&gpu->inner);
	if (last && alloc->id) {
		msg.alloc = alloc->id;
		conn_command(&client->conn, MSG_GPU_ALLOC_RELEASE, &msg, client->timeout_ms,
			     MSG_DONE);
	}
	if (last) {
		free(alloc);
	}
}
