/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * CUDA ABI: what we use of the CUDA driver's binary interface
 *
 * Declarations of our own, so that nothing of CUDA is needed to build and one binary runs with and
 * without a GPU. Types and constants have NVIDIA's names (so this header and <cuda.h> exclude each
 * other); the driver guarantees that they never change. Functions are members of struct cuda_abi,
 * named without the prefix, and resolved by their versioned symbols in cuda_abi_open().
 *
 * Used by the daemon (daemon/gpu), the library (libclient/gpu*.c) and the fake driver that stands
 * in for libcuda.so.1 in tests. tests/device/gpu-abi compares all of it with a real <cuda.h>.
 *
 * Thread: any      Owns: nothing (the driver stays loaded until the process ends)      Locks: none
 */
#ifndef ROCECOMM_PROTO_CUDA_ABI_H
#define ROCECOMM_PROTO_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUuuid_st {
	char bytes[16];
} CUuuid;
typedef struct CUipcMemHandle_st {
	char reserved[64];
} CUipcMemHandle;

/* Streams that are no objects. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef enum cudaError_enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_STUB_LIBRARY = 34,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MAP_FAILED = 205,
	CUDA_ERROR_ALREADY_MAPPED = 208,
	CUDA_ERROR_NOT_MAPPED = 211,
	CUDA_ERROR_ECC_UNCORRECTABLE = 214,
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef enum CUdevice_attribute_enum {
	CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
	CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
	CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
	CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
	CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
	CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
	CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR = 123,
	CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
} CUdevice_attribute;

typedef enum CUpointer_attribute_enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,	 /* unsigned int, CUmemorytype */
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3, /* CUdeviceptr */
	CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,		      /* unsigned int */
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,		      /* unsigned long long */
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,		      /* unsigned int */
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,	      /* int */
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10, /* unsigned int */
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,	      /* CUdeviceptr */
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,		      /* size_t */
	CU_POINTER_ATTRIBUTE_MAPPED = 13,		      /* unsigned int */
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,	      /* unsigned long long, a mask */
	CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15, /* unsigned int */
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,	     /* size_t */
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19, /* CUdeviceptr */
	CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,   /* unsigned long long */
} CUpointer_attribute;

typedef enum CUmemorytype_enum {
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
	CU_MEMORYTYPE_ARRAY = 3,
	CU_MEMORYTYPE_UNIFIED = 4,
} CUmemorytype;

enum {
	CU_STREAM_DEFAULT = 0x0,
	CU_STREAM_NON_BLOCKING = 0x1,

	CU_EVENT_DEFAULT = 0x0,
	CU_EVENT_BLOCKING_SYNC = 0x1,
	CU_EVENT_DISABLE_TIMING = 0x2,

	CU_STREAM_WAIT_VALUE_GEQ = 0x0, /* (int32_t)(*addr - value) >= 0 */
	CU_STREAM_WAIT_VALUE_EQ = 0x1,
	CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30,
	CU_STREAM_WRITE_VALUE_DEFAULT = 0x0, /* after all earlier work of the stream is visible */
	CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 0x1,

	CU_MEMHOSTALLOC_PORTABLE = 0x01,
	CU_MEMHOSTALLOC_DEVICEMAP = 0x02,
	CU_MEMHOSTALLOC_WRITECOMBINED = 0x04,
	CU_MEMHOSTREGISTER_PORTABLE = 0x01,
	CU_MEMHOSTREGISTER_DEVICEMAP = 0x02,

	CU_MEM_ATTACH_GLOBAL = 0x1,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 0x1,
	CU_CTX_SCHED_BLOCKING_SYNC = 0x04,
};

typedef enum CUstreamCaptureStatus_enum {
	CU_STREAM_CAPTURE_STATUS_NONE = 0,
	CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
	CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
} CUstreamCaptureStatus;

typedef enum CUmemAllocationHandleType_enum {
	CU_MEM_HANDLE_TYPE_NONE = 0x0,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 0x1,
	CU_MEM_HANDLE_TYPE_FABRIC = 0x8,
} CUmemAllocationHandleType;

typedef enum CUmemAccess_flags_enum {
	CU_MEM_ACCESS_FLAGS_PROT_NONE = 0x0,
	CU_MEM_ACCESS_FLAGS_PROT_READ = 0x1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 0x3,
} CUmemAccess_flags;

typedef enum CUmemLocationType_enum {
	CU_MEM_LOCATION_TYPE_INVALID = 0x0,
	CU_MEM_LOCATION_TYPE_DEVICE = 0x1,
} CUmemLocationType;

typedef enum CUmemAllocationType_enum {
	CU_MEM_ALLOCATION_TYPE_INVALID = 0x0,
	CU_MEM_ALLOCATION_TYPE_PINNED = 0x1,
} CUmemAllocationType;

typedef enum CUmemAllocationGranularity_flags_enum {
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0x0,
	CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 0x1,
} CUmemAllocationGranularity_flags;

typedef enum CUmemRangeHandleType_enum {
	CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 0x1,
} CUmemRangeHandleType;

typedef struct CUmemLocation_st {
	CUmemLocationType type;
	int id;
} CUmemLocation;

typedef struct CUmemAccessDesc_st {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemAllocationProp_st {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUarray_st *CUarray;

typedef struct CUDA_MEMCPY2D_st {
	size_t srcXInBytes;
	size_t srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes;
	size_t dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes;
	size_t Height;
} CUDA_MEMCPY2D;

/*
 * The driver's functions; the comment behind a group says what it is for. All members are set,
 * except those after `optional`, which an older driver may lack (NULL).
 */
struct cuda_abi {
	CUresult (*Init)(unsigned int flags);
	CUresult (*DriverGetVersion)(int *version);
	CUresult (*GetErrorName)(CUresult error, const char **name);
	CUresult (*GetErrorString)(CUresult error, const char **text);

	CUresult (*DeviceGetCount)(int *count);
	CUresult (*DeviceGet)(CUdevice *device, int ordinal);
	CUresult (*DeviceGetName)(char *name, int len, CUdevice dev);
	CUresult (*DeviceGetUuid)(CUuuid *uuid, CUdevice dev); /* of a MIG instance: its own */
	CUresult (*DeviceGetAttribute)(int *value, CUdevice_attribute attrib, CUdevice dev);
	CUresult (*DeviceGetPCIBusId)(char *id, int len, CUdevice dev);
	CUresult (*DeviceTotalMem)(size_t *bytes, CUdevice dev);
	CUresult (*DeviceCanAccessPeer)(int *can, CUdevice dev, CUdevice peer);

	CUresult (*DevicePrimaryCtxRetain)(CUcontext *ctx, CUdevice dev);
	CUresult (*DevicePrimaryCtxRelease)(CUdevice dev);
	CUresult (*DevicePrimaryCtxSetFlags)(CUdevice dev, unsigned int flags);
	CUresult (*DevicePrimaryCtxGetState)(CUdevice dev, unsigned int *flags, int *active);
	CUresult (*CtxGetCurrent)(CUcontext *ctx);
	CUresult (*CtxSetCurrent)(CUcontext ctx);
	CUresult (*CtxPushCurrent)(CUcontext ctx);
	CUresult (*CtxPopCurrent)(CUcontext *ctx);
	CUresult (*CtxGetDevice)(CUdevice *dev);
	CUresult (*CtxSynchronize)(void);
	CUresult (*CtxEnablePeerAccess)(CUcontext peer, unsigned int flags);

	CUresult (*MemAlloc)(CUdeviceptr *ptr, size_t size);
	CUresult (*MemFree)(CUdeviceptr ptr);
	CUresult (*MemAllocManaged)(CUdeviceptr *ptr, size_t size, unsigned int flags);
	CUresult (*MemGetInfo)(size_t *available, size_t *total);
	CUresult (*MemGetAddressRange)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
	CUresult (*MemHostAlloc)(void **ptr, size_t size, unsigned int flags);
	CUresult (*MemFreeHost)(void *ptr);
	CUresult (*MemHostRegister)(void *ptr, size_t size, unsigned int flags);
	CUresult (*MemHostUnregister)(void *ptr);
	CUresult (*MemHostGetDevicePointer)(CUdeviceptr *ret, void *ptr, unsigned int flags);
	CUresult (*PointerGetAttribute)(void *data, CUpointer_attribute attribute, CUdeviceptr ptr);
	CUresult (*PointerGetAttributes)(unsigned int n, CUpointer_attribute *attributes,
					 void **data, CUdeviceptr ptr);

	CUresult (*Memcpy)(CUdeviceptr dst, CUdeviceptr src, size_t size);
	CUresult (*MemcpyAsync)(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream);
	CUresult (*MemcpyDtoHAsync)(void *dst, CUdeviceptr src, size_t size, CUstream stream);
	CUresult (*MemcpyHtoDAsync)(CUdeviceptr dst, const void *src, size_t size, CUstream stream);
	CUresult (*MemcpyDtoDAsync)(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream);
	CUresult (*MemcpyPeerAsync)(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
				    CUcontext src_ctx, size_t size, CUstream stream);
	CUresult (*Memcpy2DAsync)(const CUDA_MEMCPY2D *copy, CUstream stream);
	CUresult (*MemsetD8Async)(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream);

	CUresult (*StreamCreate)(CUstream *stream, unsigned int flags);
	CUresult (*StreamCreateWithPriority)(CUstream *stream, unsigned int flags, int priority);
	CUresult (*StreamDestroy)(CUstream stream);
	CUresult (*StreamSynchronize)(CUstream stream);
	CUresult (*StreamQuery)(CUstream stream);
	CUresult (*StreamWaitEvent)(CUstream stream, CUevent event, unsigned int flags);
	CUresult (*StreamIsCapturing)(CUstream stream, CUstreamCaptureStatus *status);
	CUresult (*StreamGetCtx)(CUstream stream, CUcontext *ctx);
	CUresult (*StreamWriteValue32)(CUstream stream, CUdeviceptr addr, uint32_t value,
				       unsigned int flags);
	CUresult (*StreamWaitValue32)(CUstream stream, CUdeviceptr addr, uint32_t value,
				      unsigned int flags);

	CUresult (*EventCreate)(CUevent *event, unsigned int flags);
	CUresult (*EventRecord)(CUevent event, CUstream stream);
	CUresult (*EventQuery)(CUevent event);
	CUresult (*EventSynchronize)(CUevent event);
	CUresult (*EventDestroy)(CUevent event);

	CUresult (*MemGetAllocationGranularity)(size_t *granularity,
						const CUmemAllocationProp *prop,
						CUmemAllocationGranularity_flags option);
	CUresult (*MemCreate)(CUmemGenericAllocationHandle *handle, size_t size,
			      const CUmemAllocationProp *prop, unsigned long long flags);
	CUresult (*MemRelease)(CUmemGenericAllocationHandle handle);
	CUresult (*MemAddressReserve)(CUdeviceptr *ptr, size_t size, size_t alignment,
				      CUdeviceptr addr, unsigned long long flags);
	CUresult (*MemAddressFree)(CUdeviceptr ptr, size_t size);
	CUresult (*MemMap)(CUdeviceptr ptr, size_t size, size_t offset,
			   CUmemGenericAllocationHandle handle, unsigned long long flags);
	CUresult (*MemUnmap)(CUdeviceptr ptr, size_t size);
	CUresult (*MemSetAccess)(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
				 size_t count);
	CUresult (*MemExportToShareableHandle)(void *handle_out,
					       CUmemGenericAllocationHandle handle,
					       CUmemAllocationHandleType type,
					       unsigned long long flags);
	CUresult (*MemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle,
						 void *os_handle, CUmemAllocationHandleType type);
	CUresult (*MemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *addr);
	CUresult (*MemGetAllocationPropertiesFromHandle)(CUmemAllocationProp *prop,
							 CUmemGenericAllocationHandle handle);

	CUresult (*IpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr ptr);
	CUresult (*IpcOpenMemHandle)(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags);
	CUresult (*IpcCloseMemHandle)(CUdeviceptr ptr);

	/* optional */
	CUresult (*MemGetHandleForAddressRange)(void *handle, CUdeviceptr ptr, size_t size,
						CUmemRangeHandleType type,
						unsigned long long flags);
	CUresult (*FlushGPUDirectRDMAWrites)(int target, int scope);
	CUresult (*MemAllocAsync)(CUdeviceptr *ptr, size_t size, CUstream stream);
	CUresult (*MemFreeAsync)(CUdeviceptr ptr, CUstream stream);
};

/* Which library is loaded instead of libcuda.so.1 when this is set; for tests. */
#define CUDA_ABI_ENV "ROCECOMM_CUDA_LIBRARY"

/**
 * cuda_abi_open() - load the driver and resolve its functions; does not call Init
 * @path:  library; NULL: $ROCECOMM_CUDA_LIBRARY, else libcuda.so.1
 * @ret:   set on success
 * @err:   one sentence otherwise: no such library, or the function that it lacks
 *
 * Return: 0, or -ENOENT.
 */
int cuda_abi_open(const char *path, struct cuda_abi *ret, char *err, size_t err_size);

/*
 * Copies pinned host memory to a device by a copy engine, whatever the size. MemcpyHtoDAsync gives
 * less than 32 KiB to the compute engine, where it waits until the other processes of the GPU have
 * had their turns (H200: 270 us with one other that copies so too, 8 us by a copy engine).
 */
CUresult cuda_abi_upload(const struct cuda_abi *abi, CUdeviceptr dst, const void *src, size_t size,
			 CUstream stream);

/* "CUDA_ERROR_X (text)" in @buf; also for values that the driver does not know. Return: @buf. */
const char *cuda_abi_error(const struct cuda_abi *abi, CUresult error, char *buf, size_t size);

#endif
