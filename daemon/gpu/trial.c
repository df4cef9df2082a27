/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Trial: memory on a GPU that network devices may try to register
 *
 * A piece of our own, made when it is first asked for and kept as long as the GPU's context, so
 * that nobody has to say when the trial is over. Its dma-buf descriptor is made anew each time.
 *
 * Thread: gpu; gpu_trial(): control      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <string.h>

#include "gpu/gpu_impl.h"

#define TRIAL_BYTES ((size_t)2 << 20)

static void say(struct gpu_trial *t, struct gpu *gpu, const char *what, CUresult r)
{
	char error[140];

	snprintf(t->text, sizeof(t->text), "%s: %s", what,
		 cuda_abi_error(&gpu->cuda, r, error, sizeof(error)));
}

/* Return: false, with text. */
static bool memory_make(struct gpu_trial *t, struct gpu_device *d)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	CUresult r = cuda->CtxSetCurrent(d->ctx);

	if (r == CUDA_SUCCESS && !d->trial) {
		r = cuda->MemAlloc(&d->trial, TRIAL_BYTES);
		d->trial = r == CUDA_SUCCESS ? d->trial : 0;
	}
	if (r != CUDA_SUCCESS) {
		say(t, d->gpu, "no GPU memory for a trial", r);
		return false;
	}
	return true;
}

static void descriptor_make(struct gpu_trial *t, const struct gpu_device *d)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	int offered = 0, fd = -1;
	CUresult r;

	if (!cuda->MemGetHandleForAddressRange) {
		snprintf(t->text, sizeof(t->text), "this CUDA driver is too old for dma-buf");
		return;
	}
	r = cuda->DeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, d->device);
	if (r == CUDA_SUCCESS && !offered) {
		snprintf(t->text, sizeof(t->text),
			 "the CUDA driver offers no dma-buf of this GPU (it takes the open kernel "
			 "modules)");
		return;
	}
	r = cuda->MemGetHandleForAddressRange(&fd, d->trial, TRIAL_BYTES,
					      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	if (r != CUDA_SUCCESS) {
		say(t, d->gpu, "the CUDA driver gives no dma-buf", r);
		return;
	}
	t->fd = fd;
}

static void trial_run(struct gpu *gpu, struct gpu_task *task)
{
	struct gpu_trial *t = container_of(task, struct gpu_trial, task);
	struct gpu_device *d = device_by_uuid(gpu, t->uuid);

	if (!d || !d->open || atomic_load_explicit(&d->lost, memory_order_relaxed)) {
		snprintf(t->text, sizeof(t->text), "the GPU is not in use");
	} else if (memory_make(t, d)) {
		t->address = d->trial;
		t->size = TRIAL_BYTES;
		descriptor_make(t, d);
	}
	gpu_post_back(gpu, task);
}

static void trial_back(struct gpu_task *task)
{
	struct gpu_trial *t = container_of(task, struct gpu_trial, task);

	t->done(t);
}

/* See gpu.h. */
void gpu_trial(struct gpu *gpu, struct gpu_trial *t)
{
	t->task.run = trial_run;
	t->task.back = trial_back;
	t->address = 0;
	t->size = 0;
	t->fd = -1;
	t->text[0] = '\0';
	atomic_fetch_add_explicit(&gpu->live, 1, memory_order_relaxed);
	gpu_post(gpu, &t->task);
}

/* See gpu.h. */
void gpu_task_begin(struct gpu *gpu, struct gpu_task *task, void (*back)(struct gpu_task *task))
{
	task->run = NULL;
	task->back = back;
	atomic_fetch_add_explicit(&gpu->live, 1, memory_order_relaxed);
}

/* See gpu.h. */
void gpu_task_end(struct gpu *gpu, struct gpu_task *task)
{
	gpu_post_back(gpu, task);
}
