/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake CUDA: initialisation, devices, contexts, errors on demand
 *
 * Thread: any      Owns: the root      Locks: root.lock
 */
#include "fake_cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct fake_root fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local CUcontext stack[FAKE_STACK];
static _Thread_local unsigned int depth;

static const unsigned char uuid_base[16] = {0xfa, 0x6e, 0xc0, 0xda, 0x11, 0x22, 0x43, 0x44,
					    0x85, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0x00};

static void read_fails(const char *text)
{
	while (text && *text && fake.n_fails < FAKE_FAILS) {
		struct fake_fail *f = &fake.fails[fake.n_fails];
		long skip = 0, count = -1;
		int code = 0;
		int n = sscanf(text, "%39[^=]=%d@%ldx%ld", f->name, &code, &skip, &count);

		if (n >= 2) {
			f->code = code;
			f->skip = n >= 3 ? skip : 0;
			f->count = n >= 4 ? count : -1;
			fake.n_fails++;
		}
		text = strchr(text, ',');
		text = text ? text + 1 : NULL;
	}
}

static void open_counts(const char *dir)
{
	static struct fake_counts unseen;
	char path[256];
	int fd;

	fake.counts = &unseen;
	if (!dir) {
		return;
	}
	snprintf(path, sizeof(path), "%s/%d", dir, (int)getpid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd >= 0 && ftruncate(fd, sizeof(struct fake_counts)) == 0) {
		void *p = mmap(NULL, sizeof(struct fake_counts), PROT_READ | PROT_WRITE, MAP_SHARED,
			       fd, 0);

		if (p != MAP_FAILED) {
			fake.counts = p;
		}
	}
	if (fd >= 0) {
		close(fd);
	}
}

static void uuid_text(int real, char *out, size_t size)
{
	const unsigned char *b = uuid_base;

	snprintf(out, size, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
		 b[13], b[14], (unsigned int)real);
}

/* As the driver: the list ends at the first name that it does not know. */
static void read_visible(const char *text)
{
	for (int i = 0; !text && i < fake.real_devices; i++) {
		fake.visible[fake.n_visible++] = i;
	}
	while (text && *text && fake.n_visible < FAKE_DEVICES) {
		char name[64] = "", full[64];
		int found = -1;

		sscanf(text, "%63[^,]", name);
		for (int i = 0; i < fake.real_devices; i++) {
			const char *prefix = strncmp(name, "GPU-", 4) == 0   ? name + 4
					     : strncmp(name, "MIG-", 4) == 0 ? name + 4
									     : NULL;

			uuid_text(i, full, sizeof(full));
			if (prefix ? strncmp(full, prefix, strlen(prefix)) == 0 : atoi(name) == i) {
				found = i;
				break;
			}
		}
		if (found < 0) {
			return;
		}
		fake.visible[fake.n_visible++] = found;
		text = strchr(text, ',');
		text = text ? text + 1 : NULL;
	}
}

CUresult fake_enter(const char *name, bool needs_init)
{
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&fake.lock);
	if (needs_init && fake.pid != getpid()) {
		r = CUDA_ERROR_NOT_INITIALIZED;
	} else if (needs_init && fake.sticky != CUDA_SUCCESS) {
		r = fake.sticky;
	}
	for (unsigned int i = 0; r == CUDA_SUCCESS && i < fake.n_fails; i++) {
		struct fake_fail *f = &fake.fails[i];

		if (strcmp(f->name, name) != 0 || f->count == 0) {
			continue;
		}
		if (f->skip > 0) {
			f->skip--;
			continue;
		}
		f->count -= f->count > 0;
		r = (CUresult)f->code;
		if (r == CUDA_ERROR_ILLEGAL_ADDRESS || r == CUDA_ERROR_LAUNCH_FAILED ||
		    r == CUDA_ERROR_ECC_UNCORRECTABLE) {
			fake.sticky = r;
		}
	}
	pthread_mutex_unlock(&fake.lock);
	return r;
}

FAKE_API CUresult cuInit(unsigned int flags)
{
	const char *n = getenv("FAKE_CUDA_DEVICES"), *us = getenv("FAKE_CUDA_COPY_US");
	CUresult r;

	if (flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&fake.lock);
	if (fake.pid == 0) {
		fake.real_devices = n ? atoi(n) : 2;
		fake.copy_us = us ? atol(us) : 0;
		fake.host_us = getenv("FAKE_CUDA_HOST_US") ? atol(getenv("FAKE_CUDA_HOST_US")) : 0;
		fake.peer_us = getenv("FAKE_CUDA_PEER_US") ? atol(getenv("FAKE_CUDA_PEER_US")) : 0;
		fake.no_peer = getenv("FAKE_CUDA_NO_PEER");
		fake.peer_spoil = getenv("FAKE_CUDA_PEER_SPOIL");
		fake.next_id = 900;
		read_fails(getenv("FAKE_CUDA_FAIL"));
		read_visible(getenv("CUDA_VISIBLE_DEVICES"));
		open_counts(getenv("FAKE_CUDA_STATE"));
		for (int i = 0; i < FAKE_DEVICES; i++) {
			fake.ctx[i].device = i;
		}
	}
	r = fake.pid != 0 && fake.pid != getpid() ? CUDA_ERROR_NOT_INITIALIZED
	    : fake.n_visible == 0		  ? CUDA_ERROR_NO_DEVICE
						  : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS) {
		fake.pid = getpid();
	}
	pthread_mutex_unlock(&fake.lock);
	return r == CUDA_SUCCESS ? fake_enter("cuInit", false) : r;
}

FAKE_API CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
	{CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

FAKE_API CUresult cuGetErrorName(CUresult error, const char **name)
{
	*name = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].code == error) {
			*name = errors[i].name;
		}
	}
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuGetErrorString(CUresult error, const char **text)
{
	*text = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].code == error) {
			*text = errors[i].text;
		}
	}
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool device_ok(CUdevice dev)
{
	return dev >= 0 && dev < fake.n_visible;
}

FAKE_API CUresult cuDeviceGetCount(int *count)
{
	FAKE_ENTER("cuDeviceGetCount");
	*count = fake.n_visible;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	FAKE_ENTER("cuDeviceGet");
	if (!device_ok(ordinal)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*device = ordinal;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetName");
	if (!device_ok(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	snprintf(name, (size_t)len, "Fake GPU");
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetUuid");
	if (!device_ok(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	memcpy(uuid->bytes, uuid_base, sizeof(uuid->bytes));
	uuid->bytes[15] = (char)fake.visible[dev];
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attrib, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetAttribute");
	if (!device_ok(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	switch (attrib) {
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = 0x10 + fake.visible[dev];
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
	case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = 0;
		break;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		*value = 3;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
		*value = 100;
		break;
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		*value = !getenv("FAKE_CUDA_NO_DMABUF");
		break;
	default:
		*value = 1;
		break;
	}
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetPCIBusId");
	if (!device_ok(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	snprintf(id, (size_t)len, "0000:%02x:00.0", 0x10 + fake.visible[dev]);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	FAKE_ENTER("cuDeviceTotalMem");
	*bytes = (size_t)8 << 30;
	return device_ok(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKE_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	FAKE_ENTER("cuDeviceCanAccessPeer");
	*can = dev != peer && !fake.no_peer;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	FAKE_ENTER("cuDevicePrimaryCtxRetain");
	if (!device_ok(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	pthread_mutex_lock(&fake.lock);
	fake.ctx[dev].refs++;
	*ctx = &fake.ctx[dev];
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	FAKE_ENTER("cuDevicePrimaryCtxRelease");
	if (!device_ok(dev) || fake.ctx[dev].refs == 0) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	pthread_mutex_lock(&fake.lock);
	fake.ctx[dev].refs--;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	FAKE_ENTER("cuDevicePrimaryCtxSetFlags");
	(void)flags;
	return device_ok(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKE_API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	FAKE_ENTER("cuDevicePrimaryCtxGetState");
	if (!device_ok(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*flags = 0;
	*active = fake.ctx[dev].refs > 0;
	return CUDA_SUCCESS;
}

CUcontext fake_ctx(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

FAKE_API CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	FAKE_ENTER("cuCtxGetCurrent");
	*ctx = fake_ctx();
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxSetCurrent(CUcontext ctx)
{
	FAKE_ENTER("cuCtxSetCurrent");
	depth -= depth > 0;
	if (ctx) {
		stack[depth++] = ctx;
	}
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	FAKE_ENTER("cuCtxPushCurrent");
	if (!ctx || depth == FAKE_STACK) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	FAKE_ENTER("cuCtxPopCurrent");
	if (depth == 0) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	depth--;
	if (ctx) {
		*ctx = stack[depth];
	}
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxGetDevice(CUdevice *dev)
{
	FAKE_ENTER_CTX("cuCtxGetDevice");
	*dev = fake_ctx()->device;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	FAKE_ENTER_CTX("cuCtxEnablePeerAccess");
	if (!peer || flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (fake.no_peer || peer == fake_ctx()) {
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	}
	if (fake.peers[fake_ctx()->device] & 1u << peer->device) {
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	}
	fake.peers[fake_ctx()->device] |= 1u << peer->device;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	FAKE_ENTER("cuFlushGPUDirectRDMAWrites");
	(void)target;
	(void)scope;
	return CUDA_SUCCESS;
}
