/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers: which GPUs of this host may copy to each other, found out by trial
 *
 * A pair (who pushes, where to) is tried when an operation could use it first: is there access,
 * do bytes arrive as they were, and is it faster than out to pinned memory of the host and in
 * again? Until that is known, and where the answer is no, data goes through the host.
 *
 * Memory is opened to another GPU when that one is first to write there: page tables of the other
 * GPU are not filled for nothing.
 *
 * Thread: gpu, but for gpu_peer_ready(), gpu_peer_broken() and gpu_get_peer(): any
 * Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu_impl.h"
#include "util/clock.h"
#include "util/log.h"

#define TRIAL_BYTES ((size_t)16 << 20)
#define TRIAL_LEAST ((size_t)2 << 20) /* when the GPU has no more to spare */
#define TRIAL_TURNS 3
/*
 * Through the host a CPU copies, too, and the links of both GPUs are used: straight is better also
 * when it is a little slower.
 */
#define WORTH_NUM 3
#define WORTH_DEN 4

static uint64_t bit(const struct gpu_device *d)
{
	return UINT64_C(1) << d->index;
}

/* ---- what both ends have for a trial ------------------------------------------------------- */

struct trial_buffer {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t size;
	bool made, mapped;
};

struct trial {
	const struct cuda_abi *cuda;
	struct gpu_device *from, *to;
	struct trial_buffer source, target;
	CUstream push, pull; /* of `from`, of `to` */
	uint8_t *host;	     /* pinned: what is sent, then what has come */
	size_t size;
	CUresult error;
};

static void buffer_free(const struct cuda_abi *cuda, struct trial_buffer *b)
{
	if (b->mapped) {
		cuda->MemUnmap(b->at, b->size);
	}
	if (b->at) {
		cuda->MemAddressFree(b->at, b->size);
	}
	if (b->made) {
		cuda->MemRelease(b->handle);
	}
	*b = (struct trial_buffer){0};
}

static CUresult open_to(const struct cuda_abi *cuda, CUdeviceptr at, size_t size, CUdevice device)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};

	return cuda->MemSetAccess(at, size, &access, 1);
}

/* As a client's memory would be. */
static CUresult buffer_make(const struct cuda_abi *cuda, const struct gpu_device *d, size_t size,
			    struct trial_buffer *b)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->device},
	};
	size_t unit = 1;
	CUresult r =
		cuda->MemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	*b = (struct trial_buffer){.size = ALIGN_UP(size, MAX(unit, 1))};
	if (r == CUDA_SUCCESS) {
		r = cuda->MemCreate(&b->handle, b->size, &prop, 0);
		b->made = r == CUDA_SUCCESS;
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->MemAddressReserve(&b->at, b->size, 0, 0, 0);
		b->at = r == CUDA_SUCCESS ? b->at : 0;
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->MemMap(b->at, b->size, 0, b->handle, 0);
		b->mapped = r == CUDA_SUCCESS;
	}
	return r == CUDA_SUCCESS ? open_to(cuda, b->at, b->size, d->device) : r;
}

/* What has been begun may still run, also when the call after it has failed. */
static void stream_end(const struct cuda_abi *cuda, CUstream *stream)
{
	if (*stream) {
		cuda->StreamSynchronize(*stream);
		cuda->StreamDestroy(*stream);
		*stream = NULL;
	}
}

static void trial_end(struct trial *t)
{
	const struct cuda_abi *cuda = t->cuda;

	cuda->CtxSetCurrent(t->from->ctx);
	stream_end(cuda, &t->push);
	cuda->CtxSetCurrent(t->to->ctx);
	stream_end(cuda, &t->pull);
	buffer_free(cuda, &t->target);
	cuda->CtxSetCurrent(t->from->ctx);
	buffer_free(cuda, &t->source);
	if (t->host) {
		cuda->MemFreeHost(t->host);
	}
	t->host = NULL;
}

static CUresult trial_prepare(struct trial *t, size_t size)
{
	const struct cuda_abi *cuda = t->cuda;
	void *host = NULL;
	CUresult r = cuda->CtxSetCurrent(t->to->ctx);

	t->size = size;
	if (r == CUDA_SUCCESS) {
		r = cuda->StreamCreate(&t->pull, CU_STREAM_NON_BLOCKING);
	}
	if (r == CUDA_SUCCESS) {
		r = buffer_make(cuda, t->to, size, &t->target);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->CtxSetCurrent(t->from->ctx);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->StreamCreate(&t->push, CU_STREAM_NON_BLOCKING);
	}
	if (r == CUDA_SUCCESS) {
		r = buffer_make(cuda, t->from, size, &t->source);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->MemHostAlloc(&host, 2 * size, CU_MEMHOSTALLOC_PORTABLE);
	}
	if (r == CUDA_SUCCESS) {
		t->host = host;
		r = open_to(cuda, t->target.at, t->target.size, t->from->device);
	}
	return r;
}

/* ---- the trial ----------------------------------------------------------------------------- */

static uint32_t mbytes(const struct trial *t, uint64_t ns)
{
	return (uint32_t)MIN(t->size * 1000 / MAX(ns, 1), UINT32_MAX);
}

static CUresult push_once(struct trial *t, uint64_t *ret_ns)
{
	uint64_t begin = clock_monotonic();
	CUresult r = t->cuda->MemcpyPeerAsync(t->target.at, t->to->ctx, t->source.at, t->from->ctx,
					      t->size, t->push);

	if (r == CUDA_SUCCESS) {
		r = t->cuda->StreamSynchronize(t->push);
	}
	*ret_ns = clock_elapsed(clock_monotonic(), begin);
	return r;
}

static CUresult fetch(struct trial *t, uint64_t *ret_ns)
{
	uint64_t begin = clock_monotonic();
	CUresult r = t->cuda->MemcpyDtoHAsync(t->host + t->size, t->source.at, t->size, t->push);

	if (r == CUDA_SUCCESS) {
		r = t->cuda->StreamSynchronize(t->push);
	}
	*ret_ns = clock_elapsed(clock_monotonic(), begin);
	return r;
}

/* The best of a few turns each, straight and out to the host, which is the slower half there. */
static CUresult trial_measure(struct trial *t, uint32_t *ret_direct, uint32_t *ret_staged)
{
	uint64_t direct = UINT64_MAX, staged = UINT64_MAX, ns;
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < TRIAL_TURNS && r == CUDA_SUCCESS; i++) {
		r = push_once(t, &ns);
		direct = MIN(direct, ns);
		if (r == CUDA_SUCCESS) {
			r = fetch(t, &ns);
			staged = MIN(staged, ns);
		}
	}
	*ret_direct = mbytes(t, direct);
	*ret_staged = mbytes(t, staged);
	return r;
}

static void fill(uint8_t *at, size_t size)
{
	uint32_t x = 0x9e3779b9u;

	for (size_t i = 0; i + 4 <= size; i += 4) {
		memcpy(at + i, &x, 4);
		x = x * 1664525u + 1013904223u;
	}
}

/* Is what arrives what was sent? Return: the driver's error, with *@ret_right otherwise. */
static CUresult trial_bytes(struct trial *t, bool *ret_right)
{
	const struct cuda_abi *cuda = t->cuda;
	uint64_t ns;
	CUresult r;

	fill(t->host, t->size);
	memset(t->host + t->size, 0, t->size);
	r = cuda->MemcpyHtoDAsync(t->source.at, t->host, t->size, t->push);
	if (r == CUDA_SUCCESS) {
		r = push_once(t, &ns);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->CtxSetCurrent(t->to->ctx);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->MemcpyDtoHAsync(t->host + t->size, t->target.at, t->size, t->pull);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->StreamSynchronize(t->pull);
	}
	if (r == CUDA_SUCCESS) {
		r = cuda->CtxSetCurrent(t->from->ctx);
	}
	*ret_right = r == CUDA_SUCCESS && memcmp(t->host, t->host + t->size, t->size) == 0;
	return r;
}

static enum peer_verdict trial_judge(struct trial *t, uint32_t *ret_direct, uint32_t *ret_staged)
{
	bool right;

	t->error = trial_bytes(t, &right);
	if (t->error == CUDA_SUCCESS && !right) {
		return PEER_WRONG;
	}
	if (t->error == CUDA_SUCCESS) {
		t->error = trial_measure(t, ret_direct, ret_staged);
	}
	if (t->error != CUDA_SUCCESS) {
		return PEER_FAILED;
	}
	return (uint64_t)*ret_direct * WORTH_DEN >= (uint64_t)*ret_staged * WORTH_NUM ? PEER_DIRECT
										      : PEER_SLOW;
}

/* Both contexts know each other. Return: what stands against it, or PEER_DIRECT. */
static enum peer_verdict trial_access(struct trial *t)
{
	const struct cuda_abi *cuda = t->cuda;
	int can = 0;

	t->error = cuda->DeviceCanAccessPeer(&can, t->from->device, t->to->device);
	if (t->error == CUDA_SUCCESS && !can) {
		return PEER_NO_ACCESS;
	}
	if (t->error == CUDA_SUCCESS) {
		t->error = cuda->CtxSetCurrent(t->from->ctx);
	}
	if (t->error == CUDA_SUCCESS) {
		t->error = cuda->CtxEnablePeerAccess(t->to->ctx, 0);
		if (t->error == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
			t->error = CUDA_SUCCESS;
		}
	}
	if (t->error == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) {
		return PEER_NO_ACCESS;
	}
	return t->error == CUDA_SUCCESS ? PEER_DIRECT : PEER_FAILED;
}

static void pair_log(const struct gpu_device *from, const struct gpu_device *to);

static void pair_try(struct gpu_device *from, struct gpu_device *to)
{
	struct trial t = {.cuda = &from->gpu->cuda, .from = from, .to = to};
	struct gpu_pair *pair = &from->pairs[to->index];
	uint32_t direct = 0, staged = 0;
	enum peer_verdict v = trial_access(&t);

	if (v == PEER_DIRECT) {
		t.error = trial_prepare(&t, TRIAL_BYTES);
		if (t.error == CUDA_ERROR_OUT_OF_MEMORY) {
			trial_end(&t);
			t.error = trial_prepare(&t, TRIAL_LEAST);
		}
		v = t.error == CUDA_SUCCESS		  ? trial_judge(&t, &direct, &staged)
		    : t.error == CUDA_ERROR_OUT_OF_MEMORY ? PEER_NO_MEMORY
							  : PEER_FAILED;
		trial_end(&t);
	}
	if (t.error != CUDA_SUCCESS) {
		from->gpu->cuda.CtxSetCurrent(from->ctx);
		device_check(from, t.error);
	}
	atomic_store_explicit(&pair->error, (int)t.error, memory_order_relaxed);
	atomic_store_explicit(&pair->direct_mbytes, direct, memory_order_relaxed);
	atomic_store_explicit(&pair->staged_mbytes, staged, memory_order_relaxed);
	/* release: whoever sees the verdict sees what belongs to it */
	atomic_store_explicit(&pair->verdict, (int)v, memory_order_release);
	pair_log(from, to);
}

/* See gpu_impl.h. */
void peer_forget(struct gpu_device *d)
{
	for (uint32_t i = 0; i < GPU_MAX_DEVICES; i++) {
		struct gpu_device *other = d->gpu->devices[i];

		atomic_store_explicit(&d->pairs[i].verdict, PEER_UNTRIED, memory_order_relaxed);
		if (other) {
			atomic_store_explicit(&other->pairs[d->index].verdict, PEER_UNTRIED,
					      memory_order_relaxed);
		}
	}
}

/* ---- opening memory ------------------------------------------------------------------------ */

/* Memory of cuMemMap() is opened by range, all other with the contexts. */
static CUresult memory_open_to(struct gpu_memory *m, const struct gpu_device *from)
{
	const struct cuda_abi *cuda = &from->gpu->cuda;
	const struct gpu_alloc *a = m->allocs[0];

	if (a->handle != GPU_HANDLE_VMM) {
		return CUDA_SUCCESS;
	}
	if (m->reserved) {
		return open_to(cuda, m->reserved, m->size, from->device);
	}
	return open_to(cuda, a->base, a->size, from->device);
}

static void peer_run(struct gpu *gpu, struct gpu_task *task)
{
	struct gpu_memory *m = container_of(task, struct gpu_memory, peer_task);
	struct gpu_device *from = m->peer_from, *to = m->device;
	struct gpu_pair *pair = &from->pairs[to->index];
	CUresult r;

	if (from->open && to->open && !atomic_load_explicit(&from->lost, memory_order_relaxed) &&
	    !atomic_load_explicit(&to->lost, memory_order_relaxed)) {
		if (atomic_load_explicit(&pair->verdict, memory_order_relaxed) == PEER_UNTRIED) {
			pair_try(from, to);
		}
		if (atomic_load_explicit(&pair->verdict, memory_order_relaxed) == PEER_DIRECT) {
			gpu->cuda.CtxSetCurrent(to->ctx);
			r = memory_open_to(m, from);
			/* release: pairs with gpu_peer_ready() */
			atomic_fetch_or_explicit(r == CUDA_SUCCESS ? &m->open_to : &m->closed_to,
						 bit(from), memory_order_release);
		}
	}
	gpu_post_back(gpu, task);
}

static void peer_back(struct gpu_task *task)
{
	struct gpu_memory *m = container_of(task, struct gpu_memory, peer_task);

	/* release: the next one to ask sees that the task is free */
	atomic_store_explicit(&m->peer_asked, false, memory_order_release);
	gpu_memory_unref(m);
}

/* One request a memory at a time: others ask again. */
static void peer_ask(struct gpu_memory *to, struct gpu_device *from)
{
	struct gpu *gpu = from->gpu;

	if (atomic_exchange_explicit(&to->peer_asked, true, memory_order_acquire)) {
		return;
	}
	to->peer_from = from;
	to->peer_task.run = peer_run;
	to->peer_task.back = peer_back;
	gpu_memory_ref(to);
	atomic_fetch_add_explicit(&gpu->live, 1, memory_order_relaxed);
	gpu_post(gpu, &to->peer_task);
}

/* See gpu.h. */
bool gpu_peer_ready(struct gpu_memory *from, struct gpu_memory *to)
{
	struct gpu_device *a = from->device, *b = to->device;
	/* acquire: pairs with the release of pair_try() and peer_run() */
	int verdict = atomic_load_explicit(&a->pairs[b->index].verdict, memory_order_acquire);

	if (a->gpu->options.peer_off || (verdict != PEER_DIRECT && verdict != PEER_UNTRIED)) {
		return false;
	}
	if (verdict == PEER_DIRECT) {
		if (atomic_load_explicit(&to->open_to, memory_order_acquire) & bit(a)) {
			return true;
		}
		if (atomic_load_explicit(&to->closed_to, memory_order_acquire) & bit(a)) {
			return false;
		}
	}
	peer_ask(to, a);
	return false;
}

/* See gpu.h. */
void gpu_peer_broken(struct gpu_device *from, struct gpu_device *to, int error)
{
	struct gpu_pair *pair = &from->pairs[to->index];
	int direct = PEER_DIRECT;

	atomic_store_explicit(&pair->error, error, memory_order_relaxed);
	if (atomic_compare_exchange_strong_explicit(&pair->verdict, &direct, PEER_BROKEN,
						    memory_order_release, memory_order_relaxed)) {
		pair_log(from, to);
	}
}

/* ---- what is known ------------------------------------------------------------------------- */

static void reason_put(const struct gpu *gpu, struct gpu_peer_status *s, int verdict, int error)
{
	static const char host[] = "data goes through pinned memory of the host";
	char text[100] = "";

	if (error) {
		cuda_abi_error(&gpu->cuda, (CUresult)error, text, sizeof(text));
	}
	switch (gpu->options.peer_off ? PEER_OFF : verdict) {
	case PEER_DIRECT:
		snprintf(s->reason, sizeof(s->reason),
			 "copy engines reach it: %u MB/s, %u MB/s to the host in the same trial",
			 s->direct_mbytes, s->staged_mbytes);
		break;
	case PEER_OFF:
		snprintf(s->reason, sizeof(s->reason), "gpu_peer = off: %s", host);
		break;
	case PEER_NO_ACCESS:
		snprintf(s->reason, sizeof(s->reason),
			 "the driver says that they cannot reach each other, which takes NVLink, "
			 "or PCIe without an IOMMU or ACS in between: %s",
			 host);
		break;
	case PEER_NO_MEMORY:
		snprintf(s->reason, sizeof(s->reason), "no GPU memory was left for a trial: %s",
			 host);
		break;
	case PEER_FAILED:
		snprintf(s->reason, sizeof(s->reason), "the trial failed, %s: %s", text, host);
		break;
	case PEER_WRONG:
		snprintf(s->reason, sizeof(s->reason), "the trial's bytes arrived wrong: %s", host);
		break;
	case PEER_SLOW:
		snprintf(s->reason, sizeof(s->reason),
			 "%u MB/s straight, %u MB/s to the host in the same trial: %s",
			 s->direct_mbytes, s->staged_mbytes, host);
		break;
	case PEER_BROKEN:
		snprintf(s->reason, sizeof(s->reason), "a copy failed, %s: %s", text, host);
		break;
	default:
		snprintf(s->reason, sizeof(s->reason),
			 "not tried: no operation has moved data between the two yet");
		break;
	}
}

static void peer_describe(const struct gpu_device *from, const struct gpu_device *to,
			  struct gpu_peer_status *ret)
{
	struct gpu_pair *pair = &((struct gpu_device *)from)->pairs[to->index];
	int verdict = atomic_load_explicit(&pair->verdict, memory_order_acquire);

	memset(ret, 0, sizeof(*ret));
	snprintf(ret->uuid, sizeof(ret->uuid), "%s", to->uuid_text);
	ret->direct = verdict == PEER_DIRECT && !from->gpu->options.peer_off;
	ret->direct_mbytes = atomic_load_explicit(&pair->direct_mbytes, memory_order_relaxed);
	ret->staged_mbytes = atomic_load_explicit(&pair->staged_mbytes, memory_order_relaxed);
	reason_put(from->gpu, ret, verdict,
		   atomic_load_explicit(&pair->error, memory_order_relaxed));
}

static void pair_log(const struct gpu_device *from, const struct gpu_device *to)
{
	struct gpu_peer_status s;

	peer_describe(from, to, &s);
	log_info("GPU %s to %s: %s", from->uuid_text, to->uuid_text, s.reason);
}

/* The @index-th that was ever used, but for @except. */
static const struct gpu_device *used_device(const struct gpu *gpu, unsigned int index,
					    const struct gpu_device *except)
{
	/* acquire: pairs with the release where devices are found, and opened */
	uint32_t n = atomic_load_explicit(&((struct gpu *)gpu)->ndevices, memory_order_acquire);

	for (uint32_t i = 0; i < n; i++) {
		struct gpu_device *d = gpu->devices[i];

		if (d != except && atomic_load_explicit(&d->used, memory_order_acquire) &&
		    index-- == 0) {
			return d;
		}
	}
	return NULL;
}

/* See gpu.h. */
bool gpu_get_peer(const struct gpu *gpu, unsigned int index, unsigned int peer,
		  struct gpu_peer_status *ret)
{
	const struct gpu_device *d = used_device(gpu, index, NULL);
	const struct gpu_device *other = d ? used_device(gpu, peer, d) : NULL;

	if (other) {
		peer_describe(d, other, ret);
	}
	return other;
}
