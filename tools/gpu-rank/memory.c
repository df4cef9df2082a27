/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank: memory of every kind
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "rank.h"

#include "proto/base.h"

static const char *const names[MEMORY_KINDS] = {
	[MEMORY_IPC] = "ipc",	[MEMORY_VMM] = "vmm",	      [MEMORY_PLAIN] = "vmm-unexported",
	[MEMORY_POOL] = "pool", [MEMORY_MANAGED] = "managed",
};

const char *memory_name(enum memory_kind kind)
{
	return names[kind];
}

/* Several allocations under one range, as an expandable segment. */
static void vmm_new(struct rank *r, bool exported, struct memory *m)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = exported ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, r->device},
	};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;

	must_cuda(r,
		  r->cu.MemGetAllocationGranularity(&m->unit, &prop,
						    CU_MEM_ALLOC_GRANULARITY_MINIMUM),
		  "granularity");
	m->size = ALIGN_UP(m->size, m->unit);
	must_cuda(r, r->cu.MemAddressReserve(&m->base, m->size, 0, 0, 0), "reserving addresses");
	for (size_t at = 0; at < m->size; at += m->unit) {
		must_cuda(r, r->cu.MemCreate(&handle, m->unit, &prop, 0), "cuMemCreate");
		must_cuda(r, r->cu.MemMap(m->base + at, m->unit, 0, handle, 0), "cuMemMap");
		must_cuda(r, r->cu.MemRelease(handle), "cuMemRelease");
	}
	must_cuda(r, r->cu.MemSetAccess(m->base, m->size, &access, 1), "cuMemSetAccess");
}

void memory_new(struct rank *r, enum memory_kind kind, size_t size, struct memory *ret)
{
	struct memory m = {.kind = kind, .size = size};

	switch (kind) {
	case MEMORY_VMM:
	case MEMORY_PLAIN:
		vmm_new(r, kind == MEMORY_VMM, &m);
		break;
	case MEMORY_POOL:
		must_cuda(r, r->cu.MemAllocAsync(&m.base, size, r->stream), "cuMemAllocAsync");
		must_cuda(r, r->cu.StreamSynchronize(r->stream), "cuStreamSynchronize");
		break;
	case MEMORY_MANAGED:
		must_cuda(r, r->cu.MemAllocManaged(&m.base, size, CU_MEM_ATTACH_GLOBAL),
			  "cuMemAllocManaged");
		break;
	default:
		must_cuda(r, r->cu.MemAlloc(&m.base, size), "cuMemAlloc");
		break;
	}
	*ret = m;
}

void memory_free(struct rank *r, struct memory *m)
{
	must(roce_mem_forget(r->client, (void *)(uintptr_t)m->base, m->size), "roce_mem_forget");
	switch (m->kind) {
	case MEMORY_VMM:
	case MEMORY_PLAIN:
		must_cuda(r, r->cu.MemUnmap(m->base, m->size), "cuMemUnmap");
		must_cuda(r, r->cu.MemAddressFree(m->base, m->size), "cuMemAddressFree");
		break;
	case MEMORY_POOL:
		must_cuda(r, r->cu.MemFreeAsync(m->base, r->stream), "cuMemFreeAsync");
		break;
	default:
		must_cuda(r, r->cu.MemFree(m->base), "cuMemFree");
		break;
	}
}
