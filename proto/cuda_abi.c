/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * CUDA ABI: the symbols behind struct cuda_abi
 *
 * The versions are written out, since <cuda.h> chooses them by macros that we do not see: an
 * unversioned symbol of the same name exists and takes 32-bit addresses.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "proto/cuda_abi.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"

#define UPLOAD_PLAIN ((size_t)32 << 10)
#define SYMBOL(member, name, optional)                            \
	{                                                         \
		name, offsetof(struct cuda_abi, member), optional \
	}

static const struct {
	const char *name;
	size_t offset;
	bool optional;
} symbols[] = {
	SYMBOL(Init, "cuInit", false),
	SYMBOL(DriverGetVersion, "cuDriverGetVersion", false),
	SYMBOL(GetErrorName, "cuGetErrorName", false),
	SYMBOL(GetErrorString, "cuGetErrorString", false),
	SYMBOL(DeviceGetCount, "cuDeviceGetCount", false),
	SYMBOL(DeviceGet, "cuDeviceGet", false),
	SYMBOL(DeviceGetName, "cuDeviceGetName", false),
	SYMBOL(DeviceGetUuid, "cuDeviceGetUuid_v2", false),
	SYMBOL(DeviceGetAttribute, "cuDeviceGetAttribute", false),
	SYMBOL(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", false),
	SYMBOL(DeviceTotalMem, "cuDeviceTotalMem_v2", false),
	SYMBOL(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", false),
	SYMBOL(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", false),
	SYMBOL(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", false),
	SYMBOL(DevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags_v2", false),
	SYMBOL(DevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", false),
	SYMBOL(CtxGetCurrent, "cuCtxGetCurrent", false),
	SYMBOL(CtxSetCurrent, "cuCtxSetCurrent", false),
	SYMBOL(CtxPushCurrent, "cuCtxPushCurrent_v2", false),
	SYMBOL(CtxPopCurrent, "cuCtxPopCurrent_v2", false),
	SYMBOL(CtxGetDevice, "cuCtxGetDevice", false),
	SYMBOL(CtxSynchronize, "cuCtxSynchronize", false),
	SYMBOL(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", false),
	SYMBOL(MemAlloc, "cuMemAlloc_v2", false),
	SYMBOL(MemFree, "cuMemFree_v2", false),
	SYMBOL(MemAllocManaged, "cuMemAllocManaged", false),
	SYMBOL(MemGetInfo, "cuMemGetInfo_v2", false),
	SYMBOL(MemGetAddressRange, "cuMemGetAddressRange_v2", false),
	SYMBOL(MemHostAlloc, "cuMemHostAlloc", false),
	SYMBOL(MemFreeHost, "cuMemFreeHost", false),
	SYMBOL(MemHostRegister, "cuMemHostRegister_v2", false),
	SYMBOL(MemHostUnregister, "cuMemHostUnregister", false),
	SYMBOL(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", false),
	SYMBOL(PointerGetAttribute, "cuPointerGetAttribute", false),
	SYMBOL(PointerGetAttributes, "cuPointerGetAttributes", false),
	SYMBOL(Memcpy, "cuMemcpy", false),
	SYMBOL(MemcpyAsync, "cuMemcpyAsync", false),
	SYMBOL(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", false),
	SYMBOL(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", false),
	SYMBOL(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", false),
	SYMBOL(MemcpyPeerAsync, "cuMemcpyPeerAsync", false),
	SYMBOL(Memcpy2DAsync, "cuMemcpy2DAsync_v2", false),
	SYMBOL(MemsetD8Async, "cuMemsetD8Async", false),
	SYMBOL(StreamCreate, "cuStreamCreate", false),
	SYMBOL(StreamCreateWithPriority, "cuStreamCreateWithPriority", false),
	SYMBOL(StreamDestroy, "cuStreamDestroy_v2", false),
	SYMBOL(StreamSynchronize, "cuStreamSynchronize", false),
	SYMBOL(StreamQuery, "cuStreamQuery", false),
	SYMBOL(StreamWaitEvent, "cuStreamWaitEvent", false),
	SYMBOL(StreamIsCapturing, "cuStreamIsCapturing", false),
	SYMBOL(StreamGetCtx, "cuStreamGetCtx", false),
	SYMBOL(StreamWriteValue32, "cuStreamWriteValue32_v2", false),
	SYMBOL(StreamWaitValue32, "cuStreamWaitValue32_v2", false),
	SYMBOL(EventCreate, "cuEventCreate", false),
	SYMBOL(EventRecord, "cuEventRecord", false),
	SYMBOL(EventQuery, "cuEventQuery", false),
	SYMBOL(EventSynchronize, "cuEventSynchronize", false),
	SYMBOL(EventDestroy, "cuEventDestroy_v2", false),
	SYMBOL(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", false),
	SYMBOL(MemCreate, "cuMemCreate", false),
	SYMBOL(MemRelease, "cuMemRelease", false),
	SYMBOL(MemAddressReserve, "cuMemAddressReserve", false),
	SYMBOL(MemAddressFree, "cuMemAddressFree", false),
	SYMBOL(MemMap, "cuMemMap", false),
	SYMBOL(MemUnmap, "cuMemUnmap", false),
	SYMBOL(MemSetAccess, "cuMemSetAccess", false),
	SYMBOL(MemExportToShareableHandle, "cuMemExportToShareableHandle", false),
	SYMBOL(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", false),
	SYMBOL(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", false),
	SYMBOL(MemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle",
	       false),
	SYMBOL(IpcGetMemHandle, "cuIpcGetMemHandle", false),
	SYMBOL(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", false),
	SYMBOL(IpcCloseMemHandle, "cuIpcCloseMemHandle", false),
	SYMBOL(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", true),
	SYMBOL(FlushGPUDirectRDMAWrites, "cuFlushGPUDirectRDMAWrites", true),
	SYMBOL(MemAllocAsync, "cuMemAllocAsync", true),
	SYMBOL(MemFreeAsync, "cuMemFreeAsync", true),
};

static_assert(ARRAY_SIZE(symbols) == sizeof(struct cuda_abi) / sizeof(void (*)(void)), "all");

/* See cuda_abi.h. */
int cuda_abi_open(const char *path, struct cuda_abi *ret, char *err, size_t err_size)
{
	const char *env = getenv(CUDA_ABI_ENV);
	struct cuda_abi abi;
	void *driver;

	if (!path) {
		path = env && env[0] != '\0' ? env : "libcuda.so.1";
	}
	driver = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!driver) {
		snprintf(err, err_size, "no CUDA driver: %s", dlerror());
		return -ENOENT;
	}
	for (size_t i = 0; i < ARRAY_SIZE(symbols); i++) {
		void *symbol = dlsym(driver, symbols[i].name);

		if (!symbol && !symbols[i].optional) {
			snprintf(err, err_size, "the CUDA driver %s lacks %s: it is too old", path,
				 symbols[i].name);
			dlclose(driver);
			return -ENOENT;
		}
		memcpy((char *)&abi + symbols[i].offset, &symbol, sizeof(symbol));
	}
	dlclose(driver); /* RTLD_NODELETE: it stays */
	*ret = abi;
	return 0;
}

/* Two rows of @half bytes, one behind the other. */
static CUresult upload_rows(const struct cuda_abi *abi, CUdeviceptr dst, const uint8_t *src,
			    size_t half, CUstream stream)
{
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = src,
		.srcPitch = half,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED, /* also what is mapped of the host */
		.dstDevice = dst,
		.dstPitch = half,
		.WidthInBytes = half,
		.Height = 2,
	};

	return abi->Memcpy2DAsync(&copy, stream);
}

/* See cuda_abi.h. */
CUresult cuda_abi_upload(const struct cuda_abi *abi, CUdeviceptr dst, const void *src, size_t size,
			 CUstream stream)
{
	const uint8_t *from = src;
	CUresult r;

	if (size >= UPLOAD_PLAIN || size < 2) {
		return abi->MemcpyHtoDAsync(dst, src, size, stream);
	}
	r = upload_rows(abi, dst, from, size / 2, stream);
	if (r == CUDA_SUCCESS && size % 2 != 0) {
		r = upload_rows(abi, dst + size - 2, from + size - 2, 1, stream);
	}
	return r;
}

/* See cuda_abi.h. */
const char *cuda_abi_error(const struct cuda_abi *abi, CUresult error, char *buf, size_t size)
{
	const char *name = NULL, *text = NULL;

	if (abi->GetErrorName(error, &name) != CUDA_SUCCESS || !name) {
		snprintf(buf, size, "CUDA error %d", (int)error);
		return buf;
	}
	if (abi->GetErrorString(error, &text) != CUDA_SUCCESS || !text) {
		text = "no text";
	}
	snprintf(buf, size, "%s (%s)", name, text);
	return buf;
}
