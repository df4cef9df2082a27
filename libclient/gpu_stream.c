/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: what is enqueued on the user's stream for an operation
 *
 *     copies to staging, if any      \
 *     gate[ticket] = generation      / when the op has its ticket; the descriptor is in the ring
 *     wait: cell[ticket] >= generation \
 *     copies from staging, if any      | after the whole group was posted
 *     moved[ticket] = generation      /  (only with copies)
 *
 * The CPU waits for nothing. Nothing of it can be captured into a graph: a graph would replay the
 * same generation.
 *
 * Thread: any      Owns: nothing      Locks: copy, while the pages are being pinned
 */
#include <string.h>
#include <sys/mman.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/post.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

/* Return: CUDA_SUCCESS or the error; *ret is then 0. */
static CUresult pin_page(const struct cuda_abi *cu, void *page, size_t size, CUdeviceptr *ret)
{
	CUresult r = cu->MemHostRegister(
		page, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);

	if (r == CUDA_SUCCESS) {
		r = cu->MemHostGetDevicePointer(ret, page, 0);
		if (r != CUDA_SUCCESS) {
			cu->MemHostUnregister(page);
		}
	}
	return r;
}

/* Makes the session page and the words of copies known to the driver. gpu.copy held. */
static int pin_pages(struct roce_client *client, const struct cuda_abi *cu)
{
	size_t size = LIMIT_TICKETS * sizeof(*client->gpu.moved);
	struct gpu *gpu = &client->gpu;
	CUresult r;
	void *p;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		return error_set(ROCE_ERR_NO_MEMORY, "cannot map %zu bytes: %s", size,
				 strerror(errno));
	}
	madvise(p, size, MADV_DONTFORK);
	r = pin_page(cu, p, size, &gpu->moved_dev);
	if (r == CUDA_SUCCESS) {
		r = pin_page(cu, client->page, client->page_size, &gpu->page_dev);
		if (r != CUDA_SUCCESS) {
			gpu->page_dev = 0;
			cu->MemHostUnregister(p);
		}
	}
	if (r != CUDA_SUCCESS) {
		munmap(p, size);
		return gpu_error("pinning the session page (see ulimit -l)", r);
	}
	gpu->moved = p;
	return 0;
}

static int check_capture(const struct cuda_abi *cu, CUstream stream, const char *what)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = cu->StreamIsCapturing(stream, &status);

	if (r != CUDA_SUCCESS) {
		return gpu_error(what, r);
	}
	if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
		return error_set(
			ROCE_ERR_UNSUPPORTED,
			"%s: the stream is being captured into a CUDA graph, and an "
			"operation cannot be replayed: end the capture before it and begin "
			"a new one behind it",
			what);
	}
	return 0;
}

int gpu_stream_check(struct roce_client *client, void *stream, const char *what)
{
	const struct cuda_abi *cu = gpu_cuda();
	struct gpu *gpu = &client->gpu;
	CUcontext ctx;
	CUdevice device;
	CUresult e;
	int r;

	if (!cu) {
		return error_set(ROCE_ERR_UNSUPPORTED,
				 "%s: this process has no CUDA driver loaded (libcuda.so.1)", what);
	}
	if (!gpu->gates) {
		return error_set(ROCE_ERR_UNSUPPORTED,
				 "%s: this daemon is older than stream operations: upgrade it, or "
				 "synchronise the stream and use the call without _stream",
				 what);
	}
	r = check_capture(cu, stream, what);
	if (r != 0) {
		return r;
	}
	e = cu->StreamGetCtx(stream, &ctx);
	if (e == CUDA_SUCCESS) {
		e = cu->CtxPushCurrent(ctx);
	}
	if (e != CUDA_SUCCESS) {
		return gpu_error(what, e);
	}
	e = cu->CtxGetDevice(&device);
	gpu_pop();
	if (e != CUDA_SUCCESS) {
		return gpu_error(what, e);
	}
	/* Of each device: before the pages go its streams are waited for (gpu_unpin_pages()). */
	r = gpu_push(client, device);
	if (r != 0) {
		return r;
	}
	pthread_mutex_lock(&gpu->copy);
	if (!gpu->page_dev) {
		r = pin_pages(client, cu);
	}
	pthread_mutex_unlock(&gpu->copy);
	gpu_pop();
	return r == 0 ? gpu_watch(client) : r;
}

static CUresult enqueue_copies(const struct op *op, const struct copy_list *list, bool out)
{
	const struct copy_seg *segs = list->many ? list->many : &list->one;
	const struct cuda_abi *cu = gpu_cuda();
	CUstream stream = op->stream;
	CUresult r = CUDA_SUCCESS;
	uint64_t bytes = 0;

	for (size_t i = 0; r == CUDA_SUCCESS && i < list->n; i++) {
		CUdeviceptr user = (uintptr_t)segs[i].user, stage = (uintptr_t)segs[i].stage;

		r = out ? cuda_abi_upload(cu, user, segs[i].stage, segs[i].size, stream)
			: cu->MemcpyAsync(stage, user, segs[i].size, stream);
		bytes += segs[i].size;
	}
	request_count_staged(op->comm->client, bytes);
	return r;
}

/* Copies need the stream's context; value operations take it from the stream. */
static CUresult enter(const struct cuda_abi *cu, CUstream stream)
{
	CUcontext ctx;
	CUresult r = cu->StreamGetCtx(stream, &ctx);

	return r == CUDA_SUCCESS ? cu->CtxPushCurrent(ctx) : r;
}

/*
 * Of an op that is posted the request may be gone already, as may be its ticket: what is said to
 * the stream comes from the descriptor.
 */
int gpu_stream_post(struct op *op)
{
	const struct shm_desc *d = &op->desc;
	const struct cuda_abi *cu = gpu_cuda();
	CUstream stream = op->stream;
	CUdeviceptr gate =
		op->comm->client->gpu.page_dev + SHM_GATE_OFF + d->ticket * sizeof(uint32_t);
	CUresult r = enter(cu, stream);

	if (r == CUDA_SUCCESS) {
		r = enqueue_copies(op, &op->in, false);
		if (r == CUDA_SUCCESS) {
			r = cu->StreamWriteValue32(stream, gate, d->generation,
						   CU_STREAM_WRITE_VALUE_DEFAULT);
		}
		gpu_pop();
	}
	return r == CUDA_SUCCESS ? 0 : gpu_error(coll_kind_name(d->kind), r);
}

int gpu_stream_wait(struct op *op)
{
	const struct shm_desc *d = &op->desc;
	const struct gpu *gpu = &op->comm->client->gpu;
	const struct cuda_abi *cu = gpu_cuda();
	CUstream stream = op->stream;
	CUdeviceptr cell = gpu->page_dev + SHM_CELL_OFF + d->ticket * sizeof(struct shm_cell);
	CUresult r = enter(cu, stream);

	if (r == CUDA_SUCCESS) {
		r = cu->StreamWaitValue32(stream, cell, d->generation, CU_STREAM_WAIT_VALUE_GEQ);
		if (r == CUDA_SUCCESS) {
			r = enqueue_copies(op, &op->out, true);
		}
		if (r == CUDA_SUCCESS && op->copies) {
			r = cu->StreamWriteValue32(stream,
						   gpu->moved_dev + d->ticket * sizeof(uint32_t),
						   d->generation, CU_STREAM_WRITE_VALUE_DEFAULT);
		}
		gpu_pop();
	}
	return r == CUDA_SUCCESS ? 0 : gpu_error(coll_kind_name(d->kind), r);
}
