/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: the object, its thread for slow calls, the way there and back
 *
 * Thread: as gpu.h says      Owns: see gpu.h      Locks: none
 */
#include "gpu/gpu.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include "gpu/gpu_impl.h"

/* ---- there and back ----------------------------------------------------------------------- */

static void gpu_wake(struct gpu *gpu)
{
	atomic_fetch_add_explicit(&gpu->wake, 1, memory_order_seq_cst);
	syscall(SYS_futex, &gpu->wake, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* See gpu_impl.h. */
void gpu_post(struct gpu *gpu, struct gpu_task *task)
{
	if (gpu_inbox_push(&gpu->inbox, &task->item)) {
		gpu_wake(gpu);
	}
}

/* See gpu_impl.h. */
void gpu_post_back(struct gpu *gpu, struct gpu_task *task)
{
	if (gpu_inbox_push(&gpu->back, &task->item)) {
		uint64_t one = 1;

		/* Fails only when the counter is full: then it is readable anyway. */
		(void)!write(gpu->fd, &one, sizeof(one));
	}
}

static bool run_tasks(struct gpu *gpu)
{
	struct gpu_item *item = gpu_inbox_take(&gpu->inbox);
	bool any = item;

	while (item) {
		struct gpu_task *task = container_of(item, struct gpu_task, item);

		item = item->next; /* run() may free it */
		task->run(gpu, task);
	}
	return any;
}

/* Ends when told to and nothing of anybody is left. */
static void gpu_main(void *arg)
{
	struct gpu *gpu = arg;

	for (;;) {
		/* seq_cst: a task that is not seen below changes this */
		uint32_t seen = atomic_load_explicit(&gpu->wake, memory_order_seq_cst);

		if (run_tasks(gpu)) {
			continue;
		}
		if (atomic_load_explicit(&gpu->stop, memory_order_seq_cst)) {
			break;
		}
		syscall(SYS_futex, &gpu->wake, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	}
	for (uint32_t i = 0; i < atomic_load_explicit(&gpu->ndevices, memory_order_relaxed); i++) {
		device_close(gpu->devices[i]);
	}
}

/* ---- life --------------------------------------------------------------------------------- */

/* See gpu.h. */
int gpu_new(const struct gpu_options *options, struct gpu **ret)
{
	struct gpu *gpu = calloc(1, sizeof(*gpu));

	if (!gpu) {
		return err_origin(-ENOMEM);
	}
	gpu->options = *options;
	if (options->library) {
		snprintf(gpu->library, sizeof(gpu->library), "%s", options->library);
		gpu->options.library = gpu->library;
	}
	gpu->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (gpu->fd < 0) {
		int r = -errno;

		free(gpu);
		return err_origin(r);
	}
	*ret = gpu;
	return 0;
}

/* See gpu.h. */
struct gpu *gpu_free(struct gpu *gpu)
{
	if (!gpu) {
		return NULL;
	}
	if (gpu->thread.started) {
		atomic_store_explicit(&gpu->stop, true, memory_order_seq_cst);
		gpu_wake(gpu);
		thread_join(&gpu->thread);
	}
	gpu_dispatch(gpu);
	assert(atomic_load_explicit(&gpu->live, memory_order_relaxed) == 0);
	for (uint32_t i = 0; i < atomic_load_explicit(&gpu->ndevices, memory_order_relaxed); i++) {
		device_free(gpu->devices[i]);
	}
	base_close(gpu->fd);
	free(gpu);
	return NULL;
}

/* See gpu.h. */
int gpu_fd(const struct gpu *gpu)
{
	return gpu->fd;
}

/* See gpu.h. */
void gpu_dispatch(struct gpu *gpu)
{
	struct gpu_item *item;
	uint64_t v;

	(void)!read(gpu->fd, &v, sizeof(v));
	item = gpu_inbox_take(&gpu->back);
	while (item) {
		struct gpu_task *task = container_of(item, struct gpu_task, item);

		item = item->next;
		atomic_fetch_sub_explicit(&gpu->live, 1, memory_order_relaxed);
		task->back(task);
	}
}

/* ---- requests ----------------------------------------------------------------------------- */

/* See gpu_impl.h. */
void gpu_refuse(struct gpu_request *request, enum status status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(request->text, sizeof(request->text), fmt, ap);
	va_end(ap);
	request->status = status;
}

/* See gpu_impl.h. */
void gpu_refuse_cuda(struct gpu *gpu, struct gpu_request *request, const char *what, CUresult r)
{
	enum status status = r == CUDA_ERROR_OUT_OF_MEMORY ? STATUS_NO_MEMORY : STATUS_BAD_MEMORY;
	char error[160];

	gpu_refuse(request, status, "%s: %s", what,
		   cuda_abi_error(&gpu->cuda, r, error, sizeof(error)));
}

static void request_back(struct gpu_task *task)
{
	struct gpu_request *request = container_of(task, struct gpu_request, task);

	request->done(request);
}

/* The thread exists from the first request on. */
static void request_start(struct gpu *gpu, struct gpu_request *request,
			  void (*run)(struct gpu *gpu, struct gpu_task *task))
{
	int r = 0;

	request->task.run = run;
	request->task.back = request_back;
	request->status = STATUS_OK;
	request->text[0] = '\0';
	request->alloc = NULL;
	request->memory = NULL;
	atomic_fetch_add_explicit(&gpu->live, 1, memory_order_relaxed);
	if (gpu->options.off) {
		gpu_refuse(request, STATUS_UNSUPPORTED,
			   "this daemon takes no GPU memory: gpu = off in its configuration");
	} else if (!gpu->thread.started) {
		r = thread_start(&gpu->thread, "gpu", THREAD_ANY_CPU, gpu_main, gpu);
		if (r != 0) {
			gpu_refuse(request, STATUS_NO_MEMORY,
				   "the daemon cannot start a thread: %s", strerror(-r));
		}
	}
	if (request->status != STATUS_OK) {
		gpu_post_back(gpu, &request->task);
		return;
	}
	gpu_post(gpu, &request->task);
}

void memory_run_open(struct gpu *gpu, struct gpu_task *task);
void memory_run_map(struct gpu *gpu, struct gpu_task *task);

/* See gpu.h. */
void gpu_open(struct gpu *gpu, struct gpu_request *request)
{
	request_start(gpu, request, memory_run_open);
}

/* See gpu.h. */
void gpu_map(struct gpu *gpu, struct gpu_request *request)
{
	request_start(gpu, request, memory_run_map);
}

/* ---- what is known ------------------------------------------------------------------------ */

/* See gpu.h. */
int gpu_device_node(const struct gpu_device *d)
{
	return d->node;
}

/* See gpu.h. */
const uint8_t *gpu_memory_uuid(const struct gpu_memory *m)
{
	return m->device->uuid;
}

static uint64_t get(const _Atomic uint64_t *value)
{
	return atomic_load_explicit((_Atomic uint64_t *)value, memory_order_relaxed);
}

static void status_fill(const struct gpu_device *d, struct gpu_status *ret)
{
	int lost = atomic_load_explicit(&((struct gpu_device *)d)->lost, memory_order_relaxed);

	memset(ret, 0, sizeof(*ret));
	snprintf(ret->name, sizeof(ret->name), "%s", d->name);
	snprintf(ret->uuid, sizeof(ret->uuid), "%s", d->uuid_text);
	memcpy(ret->id, d->uuid, sizeof(ret->id));
	snprintf(ret->bus, sizeof(ret->bus), "%s", d->bus);
	ret->node = d->node;
	ret->lost = lost != 0;
	if (lost) {
		cuda_abi_error(&d->gpu->cuda, lost, ret->error, sizeof(ret->error));
	}
	ret->allocs = get(&d->allocs);
	ret->alloc_bytes = get(&d->alloc_bytes);
	ret->staging_limit = d->staging.size;
	ret->staging_used = get(&d->staging.used);
	ret->staging_peak = get(&d->staging.peak);
	ret->staging_pinned = get(&d->staging.pinned);
	ret->bytes_in = get(&d->bytes_in);
	ret->bytes_out = get(&d->bytes_out);
	ret->bytes_peer = get(&d->bytes_peer);
	ret->jobs_failed = get(&d->jobs_failed);
	ret->jobs = get(&d->jobs_ended);
	ret->jobs_waiting = get(&d->jobs) - ret->jobs;
}

/* See gpu.h. */
bool gpu_get_status(const struct gpu *gpu, unsigned int index, struct gpu_status *ret)
{
	/* acquire: pairs with the release where devices are found, and opened */
	uint32_t n = atomic_load_explicit(&((struct gpu *)gpu)->ndevices, memory_order_acquire);

	for (uint32_t i = 0; i < n; i++) {
		if (!atomic_load_explicit(&gpu->devices[i]->used, memory_order_acquire)) {
			continue;
		}
		if (index == 0) {
			status_fill(gpu->devices[i], ret);
			return true;
		}
		index--;
	}
	return false;
}

/* See gpu.h. */
const char *gpu_reason(const struct gpu *gpu)
{
	if (gpu->options.off) {
		return "gpu = off in the daemon's configuration";
	}
	return atomic_load_explicit(&((struct gpu *)gpu)->failed, memory_order_acquire)
		       ? gpu->reason
		       : "";
}
