/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: the driver, contexts, pinned memory
 *
 * Thread: any      Owns: primary contexts, pinnings      Locks: see gpu.h
 */
#include "libclient/gpu.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

/* The dlopen table, written once (STYLE: that is what may be global). */
static struct {
	pthread_mutex_t lock;
	struct cuda_abi abi;
	_Atomic int state;	    /* 0: not loaded, 1: loaded, -1: cannot be */
	_Atomic uint64_t looked_at; /* objects_loaded() when it was not there */
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int objects_count(struct dl_phdr_info *info, size_t size, void *ret)
{
	(void)size;
	*(uint64_t *)ret = info->dlpi_adds;
	return 1; /* the same for each */
}

/* How many objects the process has loaded so far: a look-up by name costs some 100 us. */
static uint64_t objects_loaded(void)
{
	uint64_t n = 0;

	dl_iterate_phdr(objects_count, &n);
	return n;
}

/* Is the driver in this process? Return: false: it was not when the last object was loaded. */
static bool driver_loaded(void)
{
	uint64_t n = objects_loaded();
	void *loaded;

	/* relaxed: a hint; who misses another's look looks himself */
	if (n == atomic_load_explicit(&driver.looked_at, memory_order_relaxed)) {
		return false;
	}
	loaded = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!loaded) {
		atomic_store_explicit(&driver.looked_at, n, memory_order_relaxed);
		return false;
	}
	dlclose(loaded);
	return true;
}

const struct cuda_abi *gpu_cuda(void)
{
	/* acquire: pairs with the release below; the table is then whole */
	int state = atomic_load_explicit(&driver.state, memory_order_acquire);
	const char *env = getenv(CUDA_ABI_ENV);
	char err[256];

	if (state == 0) {
		if ((!env || env[0] == '\0') && !driver_loaded()) {
			return NULL; /* a program without a GPU stays without a driver */
		}
		pthread_mutex_lock(&driver.lock);
		state = atomic_load_explicit(&driver.state, memory_order_relaxed);
		if (state == 0) {
			state = cuda_abi_open(NULL, &driver.abi, err, sizeof(err)) == 0 ? 1 : -1;
			atomic_store_explicit(&driver.state, state, memory_order_release);
		}
		pthread_mutex_unlock(&driver.lock);
	}
	return state == 1 ? &driver.abi : NULL;
}

int gpu_error(const char *what, CUresult error)
{
	char text[128];

	return error_set(error == CUDA_ERROR_OUT_OF_MEMORY ? ROCE_ERR_NO_MEMORY : ROCE_ERR_INTERNAL,
			 "%s: the CUDA driver says %s", what,
			 cuda_abi_error(gpu_cuda(), error, text, sizeof(text)));
}

void gpu_init(struct gpu *gpu)
{
	pthread_mutex_init(&gpu->grow, NULL);
	pthread_mutex_init(&gpu->lock, NULL);
	pthread_mutex_init(&gpu->inner, NULL);
	pthread_mutex_init(&gpu->copy, NULL);
	pthread_cond_init(&gpu->wake, NULL);
}

/* One whose context we hold already, else the first. gpu.inner held. */
static int gpu_any_device(const struct gpu *gpu)
{
	for (int i = 0; i < GPU_DEVICES; i++) {
		if (gpu->ctx[i]) {
			return i;
		}
	}
	return 0;
}

int gpu_push(struct roce_client *client, int device)
{
	const struct cuda_abi *cu = gpu_cuda();
	struct gpu *gpu = &client->gpu;
	CUcontext ctx;
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&gpu->inner);
	if (device < 0) {
		device = gpu_any_device(gpu);
	}
	ctx = gpu->ctx[device];
	pthread_mutex_unlock(&gpu->inner);
	if (!ctx) {
		r = cu->DevicePrimaryCtxRetain(&ctx, device);
		if (r == CUDA_SUCCESS) {
			pthread_mutex_lock(&gpu->inner);
			if (gpu->ctx[device]) {
				pthread_mutex_unlock(&gpu->inner);
				cu->DevicePrimaryCtxRelease(device);
			} else {
				gpu->ctx[device] = ctx;
				pthread_mutex_unlock(&gpu->inner);
			}
		}
	}
	if (r == CUDA_SUCCESS) {
		r = cu->CtxPushCurrent(ctx);
	}
	return r == CUDA_SUCCESS ? 0 : gpu_error("making the device's context current", r);
}

void gpu_pop(void)
{
	CUcontext ctx;

	gpu_cuda()->CtxPopCurrent(&ctx);
}

int gpu_pin(struct roce_client *client, int device, struct shmem *shm)
{
	const struct cuda_abi *cu = gpu_cuda();
	CUresult e = CUDA_SUCCESS;
	int r;

	pthread_mutex_lock(&client->gpu.copy);
	if (shm->pinned) {
		pthread_mutex_unlock(&client->gpu.copy);
		return 0;
	}
	r = gpu_push(client, device);
	if (r == 0) {
		e = cu->MemHostRegister(shm->base, shm->size,
					CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
		gpu_pop();
	}
	if (r == 0 && e == CUDA_SUCCESS) {
		shm->pinned = client;
		shm->pin_device = device;
	}
	pthread_mutex_unlock(&client->gpu.copy);
	return r != 0		   ? r
	       : e == CUDA_SUCCESS ? 0
				   : gpu_error("pinning memory to copy device memory through", e);
}

void gpu_unpin(struct shmem *shm)
{
	if (shm->pinned && gpu_push(shm->pinned, shm->pin_device) == 0) {
		gpu_cuda()->MemHostUnregister(shm->base);
		gpu_pop();
	}
	shm->pinned = NULL;
}

/* Nothing may write to our memory any more: waits for the devices that streams were on. */
static void gpu_unpin_pages(struct roce_client *client)
{
	const struct cuda_abi *cu = gpu_cuda();
	struct gpu *gpu = &client->gpu;

	for (int i = 0; i < GPU_DEVICES; i++) {
		if (gpu->ctx[i] && gpu_push(client, i) == 0) {
			cu->CtxSynchronize();
			gpu_pop();
		}
	}
	for (int i = 0; i < GPU_DEVICES; i++) {
		if (gpu->ctx[i] && gpu_push(client, i) == 0) {
			cu->MemHostUnregister(client->page);
			cu->MemHostUnregister((void *)gpu->moved);
			gpu_pop();
			break;
		}
	}
}

static void tables_deinit(struct gpu *gpu)
{
	while (gpu->n_buffers > 0) {
		free(gpu->buffers[--gpu->n_buffers]);
	}
	while (gpu->registered) {
		struct roce_buffer *b = gpu->registered;

		gpu->registered = b->next;
		free(b);
	}
	while (gpu->dead) {
		struct gpu_buffer *b = gpu->dead;

		gpu->dead = b->next_dead;
		free(b);
	}
	while (gpu->allocs) {
		struct gpu_alloc *a = gpu->allocs;

		gpu->allocs = a->next;
		free(a);
	}
	free(take_ptr(gpu->buffers));
}

void gpu_deinit(struct roce_client *client, bool forked)
{
	struct gpu *gpu = &client->gpu;
	const struct cuda_abi *cu = forked ? NULL : gpu_cuda();

	if (!forked) {
		gpu_watch_stop(client);
		pthread_mutex_lock(&client->lock);
		request_fail_gated(client, ROCE_ERR_SHUTDOWN);
		pthread_mutex_unlock(&client->lock);
	}
	if (cu && gpu->page_dev) {
		gpu_unpin_pages(client);
	}
	if (gpu->moved && !forked) {
		munmap((void *)gpu->moved, LIMIT_TICKETS * sizeof(*gpu->moved));
	}
	for (int i = 0; cu && i < GPU_DEVICES; i++) {
		if (gpu->copy_stream[i]) {
			cu->StreamDestroy(gpu->copy_stream[i]);
		}
	}
	tables_deinit(gpu);
}

/* The contexts go last: unpinning staging needs them. */
void gpu_release(struct roce_client *client)
{
	const struct cuda_abi *cu = gpu_cuda();

	for (int i = 0; cu && i < GPU_DEVICES; i++) {
		if (client->gpu.ctx[i]) {
			cu->DevicePrimaryCtxRelease(i);
			client->gpu.ctx[i] = NULL;
		}
	}
}
