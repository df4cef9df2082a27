/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Devices: which GPUs the driver shows, what it takes to use one
 *
 * Thread: gpu (device_check: any with the context as its current one)      Owns: devices, contexts
 * Locks: none
 */
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu_impl.h"
#include "util/log.h"

static void uuid_text(const uint8_t *uuid, char *buf, size_t size)
{
	static const uint8_t groups[] = {4, 2, 2, 2, 6};
	size_t n = (size_t)snprintf(buf, size, "GPU");

	for (size_t g = 0; g < ARRAY_SIZE(groups); g++) {
		n += (size_t)snprintf(buf + n, size - n, "-");
		for (uint8_t i = 0; i < groups[g]; i++) {
			n += (size_t)snprintf(buf + n, size - n, "%02x", *uuid++);
		}
	}
}

/* NUMA node of a PCI address such as "0000:3B:00.0", or -1. */
static int bus_node(const char *bus)
{
	char path[96], lower[32];
	int node = -1;
	FILE *f;

	for (size_t i = 0; i < sizeof(lower); i++) {
		lower[i] = (char)tolower((unsigned char)bus[i]);
		if (bus[i] == '\0') {
			break;
		}
	}
	lower[sizeof(lower) - 1] = '\0';
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", lower);
	f = fopen(path, "re");
	if (f) {
		if (fscanf(f, "%d", &node) != 1) {
			node = -1;
		}
		fclose(f);
	}
	return node;
}

/* One GPU of the driver's list. NULL: no memory, or it does not say who it is. */
static struct gpu_device *device_new(struct gpu *gpu, int ordinal)
{
	const struct cuda_abi *cuda = &gpu->cuda;
	struct gpu_device *d = aligned_alloc(64, ALIGN_UP(sizeof(*d), 64));
	CUuuid uuid;

	if (!d) {
		return NULL;
	}
	memset(d, 0, sizeof(*d));
	d->gpu = gpu;
	if (cuda->DeviceGet(&d->device, ordinal) || cuda->DeviceGetUuid(&uuid, d->device)) {
		free(d);
		return NULL;
	}
	memcpy(d->uuid, uuid.bytes, sizeof(d->uuid));
	uuid_text(d->uuid, d->uuid_text, sizeof(d->uuid_text));
	if (cuda->DeviceGetName(d->name, sizeof(d->name), d->device)) {
		snprintf(d->name, sizeof(d->name), "GPU");
	}
	if (cuda->DeviceGetPCIBusId(d->bus, sizeof(d->bus), d->device)) {
		d->bus[0] = '\0';
	}
	d->node = bus_node(d->bus);
	return d;
}

/* See gpu_impl.h. */
void device_free(struct gpu_device *d)
{
	assert(!d->open);
	staging_deinit(&d->staging);
	free(d);
}

/* What stands in the way now need not tomorrow: the next request tries again. */
static bool driver_start(struct gpu *gpu, struct gpu_request *request)
{
	char err[GPU_TEXT];
	char error[160];
	int count = 0;
	uint32_t n = 0;
	CUresult r;

	if (cuda_abi_open(gpu->options.library, &gpu->cuda, err, sizeof(err)) < 0) {
		gpu_refuse(request, STATUS_UNSUPPORTED,
			   "the daemon cannot load the CUDA driver: %s", err);
		return false;
	}
	r = gpu->cuda.Init(0);
	if (r == CUDA_SUCCESS) {
		r = gpu->cuda.DeviceGetCount(&count);
	}
	if (r != CUDA_SUCCESS || count == 0) {
		r = r ? r : CUDA_ERROR_NO_DEVICE;
		gpu_refuse(
			request, STATUS_UNSUPPORTED,
			"the daemon sees no GPU: %s; its device files (/dev/nvidia*) must be there "
			"for its user and in DeviceAllow= of its unit",
			cuda_abi_error(&gpu->cuda, r, error, sizeof(error)));
		return false;
	}
	for (int i = 0; i < MIN(count, GPU_MAX_DEVICES); i++) {
		gpu->devices[n] = device_new(gpu, i);
		if (gpu->devices[n]) {
			gpu->devices[n]->index = n;
			n++;
		}
	}
	gpu->loaded = true;
	/* release: pairs with gpu_get_status() */
	atomic_store_explicit(&gpu->ndevices, n, memory_order_release);
	return true;
}

/* Remembers the first reason, for status. */
static void driver_failed(struct gpu *gpu, const struct gpu_request *request)
{
	if (!atomic_load_explicit(&gpu->failed, memory_order_relaxed)) {
		snprintf(gpu->reason, sizeof(gpu->reason), "%s", request->text);
		/* release: pairs with gpu_reason() */
		atomic_store_explicit(&gpu->failed, true, memory_order_release);
		log_warn("GPU memory is refused: %s", request->text);
	}
}

/* See gpu_impl.h. */
struct gpu_device *device_by_uuid(struct gpu *gpu, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < atomic_load_explicit(&gpu->ndevices, memory_order_relaxed); i++) {
		if (memcmp(gpu->devices[i]->uuid, uuid, GPU_UUID_BYTES) == 0) {
			return gpu->devices[i];
		}
	}
	return NULL;
}

/* See gpu_impl.h. */
struct gpu_device *device_find(struct gpu *gpu, struct gpu_request *request)
{
	char wanted[48], seen[256] = "";
	struct gpu_device *d;
	size_t n = 0;

	if (!gpu->loaded && !driver_start(gpu, request)) {
		driver_failed(gpu, request);
		return NULL;
	}
	d = device_by_uuid(gpu, request->uuid);
	if (d) {
		return d;
	}
	for (uint32_t i = 0; i < gpu->ndevices && n < sizeof(seen); i++) {
		n += (size_t)snprintf(seen + n, sizeof(seen) - n, "%s%s", i ? ", " : "",
				      gpu->devices[i]->uuid_text);
	}
	uuid_text(request->uuid, wanted, sizeof(wanted));
	gpu_refuse(
		request, STATUS_NOT_FOUND,
		"the daemon does not see %s, only %s: CUDA_VISIBLE_DEVICES of the daemon must not "
		"leave it out (MIG: a process sees one instance)",
		wanted, seen);
	return NULL;
}

/* ---- in use ------------------------------------------------------------------------------- */

static CUresult lane_open(const struct cuda_abi *cuda, struct copier_lane *lane)
{
	CUresult r = cuda->StreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);

	for (int i = 0; i < COPIER_EVENTS && r == CUDA_SUCCESS; i++) {
		r = cuda->EventCreate(&lane->events[i], CU_EVENT_DISABLE_TIMING);
	}
	return r;
}

/* Errors are no news here: the context may be spoilt, and goes anyway. */
static void lane_close(const struct cuda_abi *cuda, struct copier_lane *lane)
{
	for (int i = 0; i < COPIER_EVENTS; i++) {
		if (lane->events[i]) {
			cuda->EventDestroy(lane->events[i]);
		}
	}
	if (lane->stream) {
		cuda->StreamDestroy(lane->stream);
	}
	memset(lane, 0, sizeof(*lane));
}

static void context_close(struct gpu_device *d)
{
	for (int i = 0; i < COPIER_LANES; i++) {
		lane_close(&d->gpu->cuda, &d->lanes[i]);
	}
	peer_forget(d);
	if (d->trial) {
		d->gpu->cuda.MemFree(d->trial);
		d->trial = 0;
	}
	d->gpu->cuda.CtxSetCurrent(NULL);
	d->gpu->cuda.DevicePrimaryCtxRelease(d->device);
	d->ctx = NULL;
}

static CUresult context_open(struct gpu_device *d)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUresult r = cuda->DevicePrimaryCtxRetain(&d->ctx, d->device);

	if (r != CUDA_SUCCESS) {
		return r;
	}
	r = cuda->CtxSetCurrent(d->ctx);
	for (int i = 0; i < COPIER_LANES && r == CUDA_SUCCESS; i++) {
		r = lane_open(cuda, &d->lanes[i]);
	}
	if (r != CUDA_SUCCESS) {
		context_close(d);
	}
	return r;
}

/* See gpu_impl.h. */
bool device_open(struct gpu_device *d, struct gpu_request *request)
{
	CUresult r;

	if (atomic_load_explicit(&d->lost, memory_order_relaxed)) {
		char error[160];

		gpu_refuse(request, STATUS_UNSUPPORTED,
			   "the daemon's context on %s is spoilt (%s); it begins anew when all "
			   "clients "
			   "have given back what they have registered there",
			   d->uuid_text,
			   cuda_abi_error(&d->gpu->cuda, d->lost, error, sizeof(error)));
		return false;
	}
	if (d->open) {
		r = d->gpu->cuda.CtxSetCurrent(d->ctx);
		if (r != CUDA_SUCCESS) {
			gpu_refuse_cuda(d->gpu, request, "cuCtxSetCurrent()", r);
		}
		return r == CUDA_SUCCESS;
	}
	if (!d->staging.base && staging_init(&d->staging, d->gpu->options.staging, d->node) < 0) {
		gpu_refuse(request, STATUS_NO_MEMORY, "the daemon has no memory");
		return false;
	}
	r = context_open(d);
	if (r != CUDA_SUCCESS) {
		gpu_refuse_cuda(d->gpu, request, "the daemon cannot make a context on the GPU", r);
		return false;
	}
	if (copier_start(d) != 0) {
		context_close(d);
		gpu_refuse(request, STATUS_NO_MEMORY, "the daemon cannot start a thread");
		return false;
	}
	d->open = true;
	/* release: pairs with gpu_get_status() */
	atomic_store_explicit(&d->used, true, memory_order_release);
	log_info("GPU %s (%s, %s) is in use", d->uuid_text, d->name, d->bus);
	return true;
}

/* See gpu_impl.h. */
void device_close(struct gpu_device *d)
{
	if (!d->open) {
		return;
	}
	copier_stop(d);
	d->gpu->cuda.CtxSetCurrent(d->ctx);
	copier_trim(d, 0);
	context_close(d);
	d->open = false;
	atomic_store_explicit(&d->lost, 0, memory_order_relaxed);
}

/* See gpu_impl.h. */
void device_idle(struct gpu_device *d)
{
	if (atomic_load_explicit(&d->lost, memory_order_relaxed)) {
		log_warn("GPU %s: its spoilt context is thrown away", d->uuid_text);
		device_close(d);
	} else if (atomic_load_explicit(&d->staging.used, memory_order_relaxed) == 0) {
		copier_trim(d, 1); /* pinning takes a while: the next client finds one slab */
	}
}

/* See gpu_impl.h. */
void device_check(struct gpu_device *d, CUresult r)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUresult now = cuda->StreamQuery(d->lanes[0].stream);
	char error[160];
	int none = 0;

	if (now == CUDA_SUCCESS || now == CUDA_ERROR_NOT_READY) {
		return;
	}
	if (atomic_compare_exchange_strong_explicit(&d->lost, &none, (int)now, memory_order_relaxed,
						    memory_order_relaxed)) {
		log_error("GPU %s: its context is spoilt: %s; clients that use it fail",
			  d->uuid_text, cuda_abi_error(cuda, r ? r : now, error, sizeof(error)));
	}
}
