/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: which of the daemon's buffers an address is in
 *
 * A buffer covers whole allocations: one of cuMemAlloc(), or a run of cuMemMap() ones, of which the
 * neighbours inside the same window are taken along, so that a segment that grows costs a
 * registration a window at most for each growth. At every look-up the driver is asked for the
 * buffer id under the address (40 ns): memory that was freed, and whatever came to lie at its
 * address, has another one, and the old registration is given up. The daemon has to be rid of it
 * before it can open new memory at the same place (the driver: CUDA_ERROR_ALREADY_MAPPED).
 *
 * Thread: any      Owns: buffers, allocations      Locks: see gpu.h
 */
#include <stdio.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/clock.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

#define GPU_WINDOW ((CUdeviceptr)1 << 30)
#define FREED_WAIT_MS 1000

/* A run of allocations on its way to be a buffer. */
struct run {
	CUdeviceptr base, end;
	struct gpu_alloc **pieces;
	size_t n, room;
};

/* Index of the first buffer that begins above @ptr. gpu.lock held. */
static size_t buffer_above(const struct gpu *gpu, CUdeviceptr ptr)
{
	size_t lo = 0, hi = gpu->n_buffers;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (gpu->buffers[mid]->base <= ptr) {
			lo = mid + 1;
		} else {
			hi = mid;
		}
	}
	return lo;
}

/* @freed: its memory is gone; nothing that is in flight can rightly use it. */
static void buffer_remove(struct gpu *gpu, size_t i, bool freed)
{
	struct gpu_buffer *b = gpu->buffers[i];

	gpu->n_buffers--;
	memmove(&gpu->buffers[i], &gpu->buffers[i + 1],
		(gpu->n_buffers - i) * sizeof(*gpu->buffers));
	pthread_mutex_lock(&gpu->inner);
	b->freed = freed;
	gpu->freed += freed;
	b->next_dead = gpu->dead;
	gpu->dead = b;
	pthread_mutex_unlock(&gpu->inner);
}

/* Are the pieces under [ptr, ptr + size) what they were? gpu.lock held: attributes do not block. */
static bool buffer_valid(const struct cuda_abi *cu, const struct gpu_buffer *b, CUdeviceptr ptr,
			 size_t size)
{
	for (size_t i = 0; i < b->n; i++) {
		const struct gpu_alloc *a = b->pieces[i];

		if (a->base < ptr + size && ptr < a->base + a->size &&
		    gpu_key(cu, a->base) != a->key) {
			return false;
		}
	}
	return true;
}

/* Finds a buffer that holds the range; gives up those that are not valid. gpu.lock held. */
static struct gpu_buffer *buffer_find(struct gpu *gpu, const struct cuda_abi *cu, CUdeviceptr ptr,
				      size_t size)
{
	size_t i = buffer_above(gpu, ptr);
	struct gpu_buffer *b;

	if (i == 0) {
		return NULL;
	}
	b = gpu->buffers[i - 1];
	if (ptr - b->base >= b->size) {
		return NULL;
	}
	if (!buffer_valid(cu, b, ptr, size)) {
		buffer_remove(gpu, i - 1, true);
		return NULL;
	}
	return size <= b->size - (ptr - b->base) ? b : NULL;
}

/* Gives up what overlaps [base, end). gpu.lock held. */
static void buffer_drop(struct gpu *gpu, CUdeviceptr base, CUdeviceptr end)
{
	for (size_t i = gpu->n_buffers; i > 0; i--) {
		const struct gpu_buffer *b = gpu->buffers[i - 1];

		if (b->base < end && base < b->base + b->size) {
			buffer_remove(gpu, i - 1, false);
		}
	}
}

/* Gives up whatever has been freed since. Called with gpu.grow held. */
static void buffer_sweep(struct gpu *gpu, const struct cuda_abi *cu)
{
	pthread_mutex_lock(&gpu->lock);
	for (size_t i = gpu->n_buffers; i > 0; i--) {
		const struct gpu_buffer *b = gpu->buffers[i - 1];

		if (!buffer_valid(cu, b, b->base, b->size)) {
			buffer_remove(gpu, i - 1, true);
		}
	}
	pthread_mutex_unlock(&gpu->lock);
}

static int buffer_insert(struct gpu *gpu, struct gpu_buffer *b)
{
	size_t i;

	if (gpu->n_buffers == gpu->room) {
		size_t room = gpu->room ? 2 * gpu->room : 16;
		struct gpu_buffer **p = realloc(gpu->buffers, room * sizeof(*p));

		if (!p) {
			return -ENOMEM;
		}
		gpu->buffers = p;
		gpu->room = room;
	}
	i = buffer_above(gpu, b->base);
	memmove(&gpu->buffers[i + 1], &gpu->buffers[i],
		(gpu->n_buffers - i) * sizeof(*gpu->buffers));
	gpu->buffers[i] = b;
	gpu->n_buffers++;
	return 0;
}

/* Given up, but an operation that is not posted yet names it. gpu.inner held. */
static bool dead_used(struct gpu_buffer *b)
{
	/* acquire: pairs with the release in gpu_drop(); what names it is then in the ring */
	return atomic_load_explicit(&b->users, memory_order_acquire) > 0;
}

/* The next one that was given up and is not named any more, or NULL. */
static struct gpu_buffer *dead_take(struct gpu *gpu, bool only_freed)
{
	struct gpu_buffer **p, *b;

	pthread_mutex_lock(&gpu->inner);
	for (p = &gpu->dead; *p && ((only_freed && !(*p)->freed) || dead_used(*p));
	     p = &(*p)->next_dead) {
	}
	b = *p;
	if (b) {
		*p = b->next_dead;
	}
	pthread_mutex_unlock(&gpu->inner);
	return b;
}

void gpu_bury(struct roce_client *client, bool only_freed)
{
	Rocecomm__BufferDeregister msg = ROCECOMM__BUFFER_DEREGISTER__INIT;
	struct gpu *gpu = &client->gpu;
	struct gpu_buffer *b;

	for (;;) {
		b = dead_take(gpu, only_freed);
		if (!b) {
			return;
		}
		if (b->id) {
			/* Answered when no operation uses it. */
			msg.buffer = b->id;
			conn_command(&client->conn, MSG_BUFFER_DEREGISTER, &msg, -1, MSG_DONE);
		}
		for (size_t i = 0; i < b->n; i++) {
			gpu_alloc_put(client, b->pieces[i]);
		}
		pthread_mutex_lock(&gpu->inner);
		gpu->freed -= b->freed;
		pthread_mutex_unlock(&gpu->inner);
		free(b);
	}
}

/*
 * How many that were freed the daemon still has; but for those that are named: it may be this
 * thread's own operation that names one, by a piece of it that was not freed.
 */
static unsigned int freed_left(struct gpu *gpu)
{
	unsigned int left;

	pthread_mutex_lock(&gpu->inner);
	left = gpu->freed;
	for (struct gpu_buffer *b = gpu->dead; b; b = b->next_dead) {
		left -= b->freed && dead_used(b);
	}
	pthread_mutex_unlock(&gpu->inner);
	return left;
}

/*
 * Has the daemon let go of what was freed, the watchdog may be at it. Not for ever: an operation
 * may be in flight whose memory the program should not have freed.
 */
static void bury_freed(struct roce_client *client)
{
	struct gpu *gpu = &client->gpu;
	int64_t deadline = clock_deadline(FREED_WAIT_MS);
	unsigned int left;

	do {
		gpu_bury(client, true);
		left = freed_left(gpu);
		if (left > 0) {
			usleep(100);
		}
	} while (left > 0 && clock_left_ms(deadline) > 0 && conn_dead(&client->conn) == 0);
}

static int run_add(struct run *run, struct gpu_alloc *alloc, bool front)
{
	if (run->n == run->room) {
		size_t room = run->room ? 2 * run->room : 64;
		struct gpu_alloc **p = realloc(run->pieces, room * sizeof(*p));

		if (!p) {
			return -ENOMEM;
		}
		run->pieces = p;
		run->room = room;
	}
	if (front) {
		memmove(run->pieces + 1, run->pieces, run->n * sizeof(*run->pieces));
		run->pieces[0] = alloc;
		run->base = alloc->base;
	} else {
		run->pieces[run->n] = alloc;
		run->base = run->n == 0 ? alloc->base : run->base;
		run->end = alloc->base + alloc->size;
	}
	run->n++;
	return 0;
}

/* Takes the mapped allocation at @at, if it may follow. Return: 0, 1: it does not, or a status. */
static int run_extend(struct roce_client *client, const struct cuda_abi *cu, struct run *run,
		      CUdeviceptr at, int device, bool front)
{
	struct gpu_alloc *alloc;
	CUdeviceptr base;
	size_t size;
	int where = -1, r;

	if (run->n >= LIMIT_GPU_PIECES ||
	    cu->MemGetAddressRange(&base, &size, at) != CUDA_SUCCESS || !gpu_is_vmm(cu, at) ||
	    cu->PointerGetAttribute(&where, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) !=
		    CUDA_SUCCESS ||
	    where != device ||
	    (front ? base + size != run->base : run->n > 0 && base != run->end)) {
		return 1;
	}
	r = gpu_alloc_get(client, cu, base, size, device, &alloc);
	if (r != 0) {
		return r;
	}
	if (!alloc->id || run_add(run, alloc, front) != 0) {
		gpu_alloc_put(client, alloc);
		return 1;
	}
	return 0;
}

/* Collects the mapped allocations under the range and their neighbours. Return: as above. */
static int run_collect(struct roce_client *client, const struct cuda_abi *cu, struct run *run,
		       CUdeviceptr ptr, size_t size, int device)
{
	CUdeviceptr low = ptr & ~(GPU_WINDOW - 1);
	CUdeviceptr high = (ptr + size + GPU_WINDOW - 1) & ~(GPU_WINDOW - 1);
	CUdeviceptr at = ptr;
	int r = 0, more = 0;

	while (r == 0 && at < ptr + size) {
		r = run_extend(client, cu, run, at, device, false);
		at = run->end;
	}
	if (r != 0) {
		return r;
	}
	while (more == 0 && run->end < high) {
		more = run_extend(client, cu, run, run->end, device, false);
	}
	for (more = 0; more == 0 && run->base > low;) {
		more = run_extend(client, cu, run, run->base - 1, device, true);
	}
	return 0;
}

/* Asks the daemon to make a buffer of the run. */
static int buffer_register(struct roce_client *client, const struct run *run, struct gpu_buffer *b)
{
	Rocecomm__GpuBufferRegister msg = ROCECOMM__GPU_BUFFER_REGISTER__INIT;
	cleanup_free Rocecomm__GpuPiece *pieces = calloc(run->n, sizeof(*pieces));
	cleanup_free Rocecomm__GpuPiece **list = calloc(run->n, sizeof(*list));
	Rocecomm__GpuBufferReady *ready;
	struct conn_reply reply;
	int r;

	if (!pieces || !list) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a list of %zu pieces", run->n);
	}
	for (size_t i = 0; i < run->n; i++) {
		rocecomm__gpu_piece__init(&pieces[i]);
		pieces[i].alloc = run->pieces[i]->id;
		pieces[i].size = run->pieces[i]->size;
		list[i] = &pieces[i];
	}
	msg.n_pieces = run->n;
	msg.pieces = list;
	r = conn_call(&client->conn, MSG_GPU_BUFFER_REGISTER, &msg, -1, client->timeout_ms,
		      MSG_GPU_BUFFER_READY, &reply);
	if (r != 0) {
		return r;
	}
	ready = rocecomm__gpu_buffer_ready__unpack(NULL, reply.size, reply.body);
	conn_reply_deinit(&reply);
	if (!ready || ready->buffer == 0) {
		r = error_set(ROCE_ERR_PROTOCOL, "the daemon sent an unreadable GpuBufferReady");
	} else {
		b->id = ready->buffer;
		snprintf(b->path, sizeof(b->path), "%s: %s", ready->path, ready->reason);
	}
	if (ready) {
		rocecomm__gpu_buffer_ready__free_unpacked(ready, NULL);
	}
	return r;
}

/* One warning a client: everything works, at the price of two copies. */
static void warn_copied(struct roce_client *client, const char *reason)
{
	struct gpu *gpu = &client->gpu;

	if (!gpu->warned) {
		gpu->warned = true;
		fprintf(stderr,
			"rocecomm: some GPU memory is copied through host memory by this process, "
			"since the daemon cannot have it: %s\n",
			reason);
	}
}

/* Makes a buffer of @run, exported or not, and enters it, with one use. gpu.grow held. */
static int buffer_new(struct roce_client *client, struct run *run, int device,
		      struct gpu_buffer **ret)
{
	struct gpu *gpu = &client->gpu;
	struct gpu_buffer *b = calloc(1, sizeof(*b) + run->n * sizeof(b->pieces[0]));
	int r = 0;

	if (!b) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a GPU buffer");
	}
	b->base = run->base;
	b->size = run->end - run->base;
	b->device = device;
	b->users = 1;
	b->n = run->n;
	memcpy(b->pieces, run->pieces, run->n * sizeof(b->pieces[0]));
	if (run->pieces[0]->id) {
		r = buffer_register(client, run, b);
		if (r != 0 && conn_dead(&client->conn) == 0) {
			snprintf(b->path, sizeof(b->path), "%s", error_last());
			r = 0;
		}
	} else {
		snprintf(b->path, sizeof(b->path), "%s", run->pieces[0]->reason);
	}
	if (r == 0 && !b->id) {
		warn_copied(client, b->path);
	}
	if (r == 0) {
		pthread_mutex_lock(&gpu->lock);
		buffer_drop(gpu, b->base, b->base + b->size);
		r = buffer_insert(gpu, b) == 0
			    ? 0
			    : error_set(ROCE_ERR_NO_MEMORY, "no memory for the GPU buffer table");
		pthread_mutex_unlock(&gpu->lock);
	}
	if (r != 0) {
		free(b);
		return r;
	}
	run->n = 0; /* the uses are the buffer's now */
	*ret = b;
	return 0;
}

/* Registers the memory under the range. gpu.grow held. *ret: one use, or NULL: no one piece. */
static int buffer_make(struct roce_client *client, const struct cuda_abi *cu, CUdeviceptr ptr,
		       size_t size, int device, struct gpu_buffer **ret)
{
	struct gpu_alloc *alloc;
	struct run run = {0};
	CUdeviceptr base;
	size_t whole;
	int r;

	*ret = NULL;
	if (cu->MemGetAddressRange(&base, &whole, ptr) != CUDA_SUCCESS) {
		return 0;
	}
	if (gpu_is_vmm(cu, ptr)) {
		r = run_collect(client, cu, &run, ptr, size, device);
	} else {
		r = 1;
	}
	if (r == 1 && ptr + size <= base + whole) {
		while (run.n > 0) {
			gpu_alloc_put(client, run.pieces[--run.n]);
		}
		r = gpu_alloc_get(client, cu, base, whole, device, &alloc);
		if (r == 0 && run_add(&run, alloc, false) != 0) {
			gpu_alloc_put(client, alloc);
			r = error_set(ROCE_ERR_NO_MEMORY, "no memory for a list of allocations");
		}
	}
	if (r == 0) {
		r = buffer_new(client, &run, device, ret);
	} else if (r == 1) {
		warn_copied(client, "a tensor spans several allocations, not all of which can be "
				    "exported");
		r = 0;
	}
	while (run.n > 0) {
		gpu_alloc_put(client, run.pieces[--run.n]);
	}
	free(run.pieces);
	return r;
}

/* What kind of memory is it? Return: false for memory that the driver does not know. */
static bool classify(const struct cuda_abi *cu, CUdeviceptr ptr, struct gpu_place *ret)
{
	unsigned int type = 0;

	if (cu->PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) != CUDA_SUCCESS) {
		return false;
	}
	ret->pinned = type == CU_MEMORYTYPE_HOST;
	if (type != CU_MEMORYTYPE_DEVICE ||
	    cu->PointerGetAttribute(&ret->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) !=
		    CUDA_SUCCESS) {
		return false;
	}
	return ret->device >= 0 && ret->device < GPU_DEVICES;
}

/* @b: a use of it goes to the place. */
static void place_set(struct gpu_place *place, struct gpu_buffer *b, CUdeviceptr ptr)
{
	place->kind = b && b->id ? GPU_EXPORTED : GPU_COPIED;
	place->buffer = b ? b->id : 0;
	place->off = b ? ptr - b->base : 0;
	place->used = b;
}

/* A use of what the table has for the range, or NULL. */
static struct gpu_buffer *buffer_use(struct gpu *gpu, const struct cuda_abi *cu, CUdeviceptr ptr,
				     size_t size)
{
	struct gpu_buffer *b;

	pthread_mutex_lock(&gpu->lock);
	b = buffer_find(gpu, cu, ptr, size);
	if (b) {
		/* relaxed: it dies under the same lock */
		atomic_fetch_add_explicit(&b->users, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&gpu->lock);
	return b;
}

void gpu_drop(struct gpu_buffer *buffer)
{
	if (buffer) {
		/* release: see dead_used(); it may be freed from here on */
		atomic_fetch_sub_explicit(&buffer->users, 1, memory_order_release);
	}
}

int gpu_find(struct roce_client *client, const void *pointer, size_t size, struct gpu_place *ret)
{
	const struct cuda_abi *cu = gpu_cuda();
	CUdeviceptr ptr = (uintptr_t)pointer;
	struct gpu *gpu = &client->gpu;
	struct gpu_buffer *b;
	int r = 0;

	*ret = (struct gpu_place){.kind = GPU_HOST};
	if (!cu || !classify(cu, ptr, ret)) {
		return 0;
	}
	b = buffer_use(gpu, cu, ptr, size);
	place_set(ret, b, ptr);
	if (b) {
		return 0;
	}
	pthread_mutex_lock(&gpu->grow);
	b = buffer_use(gpu, cu, ptr, size); /* another thread may have been first */
	if (!b) {
		buffer_sweep(gpu, cu);
		bury_freed(client);
		r = buffer_make(client, cu, ptr, size, ret->device, &b);
	}
	if (r == 0) {
		place_set(ret, b, ptr);
	}
	pthread_mutex_unlock(&gpu->grow);
	r = r == 0 ? gpu_watch(client) : r;
	if (r != 0) {
		gpu_drop(take_ptr(ret->used));
	}
	return r;
}

void gpu_describe(struct roce_client *client, const void *ptr, char *text, size_t size)
{
	const struct cuda_abi *cu = gpu_cuda();
	struct gpu *gpu = &client->gpu;
	struct gpu_buffer *b;

	pthread_mutex_lock(&gpu->lock);
	b = buffer_find(gpu, cu, (uintptr_t)ptr, 1);
	if (b) {
		snprintf(text, size, "GPU %d, %s%s", b->device,
			 b->id ? "" : "copied by this process: ", b->path);
	} else {
		snprintf(text, size, "GPU, copied by this process");
	}
	pthread_mutex_unlock(&gpu->lock);
}

int gpu_forget(struct roce_client *client, const void *ptr, size_t size)
{
	const struct cuda_abi *cu = gpu_cuda();
	struct gpu *gpu = &client->gpu;

	pthread_mutex_lock(&gpu->grow);
	if (cu && size == 0) {
		buffer_sweep(gpu, cu);
	}
	pthread_mutex_lock(&gpu->lock);
	if (size > 0) {
		buffer_drop(gpu, (uintptr_t)ptr, (uintptr_t)ptr + size);
	}
	pthread_mutex_unlock(&gpu->lock);
	gpu_bury(client, false);
	bury_freed(client);
	pthread_mutex_unlock(&gpu->grow);
	return conn_dead(&client->conn) ? conn_dead_error(&client->conn) : 0;
}
