/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake CUDA: streams, events, copies
 *
 * A stream is a thread with a queue. The default streams are streams like the others: they do not
 * wait for the rest as the legacy one does.
 *
 * Thread: any      Owns: streams, events      Locks: a stream's lock; list_lock: the list of
 * streams
 */
#include "fake_cuda.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_AFTER 2000 /* polls of a value */

enum work_kind { WORK_COPY, WORK_SET, WORK_WRITE, WORK_WAIT, WORK_RECORD, WORK_EVENT, WORK_CALL };

struct work {
	struct work *next;
	enum work_kind kind;
	uintptr_t dst, src;
	size_t size;
	bool peer;
	uint32_t value;
	unsigned int flags;
	CUevent event;
	uint64_t number; /* of the event's record */
	void (*call)(void *arg);
	void *arg;
};

struct CUstream_st {
	CUstream next;
	CUcontext ctx;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct work *first, **last;
	bool busy, ending;
	CUstreamCaptureStatus capture;
};

struct CUevent_st {
	_Atomic uint64_t recorded, done;
	_Atomic unsigned int refs;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream streams;

static void event_unref(CUevent event)
{
	if (atomic_fetch_sub(&event->refs, 1) == 1) {
		free(event);
	}
}

static void nap(unsigned int polls)
{
	if (polls > SLEEP_AFTER) {
		usleep(50);
	} else {
		sched_yield();
	}
}

static bool reached(const struct work *w, const _Atomic uint32_t *p)
{
	uint32_t v = atomic_load(p);

	return w->flags == CU_STREAM_WAIT_VALUE_EQ ? v == w->value : (int32_t)(v - w->value) >= 0;
}

static void wait_value(const struct work *w)
{
	size_t left;
	const _Atomic uint32_t *p = (const _Atomic uint32_t *)fake_touch(w->dst, &left);

	if (reached(w, p)) {
		return;
	}
	fake.counts->waits++;
	for (unsigned int i = 0; !reached(w, p); i += i <= SLEEP_AFTER) {
		nap(i);
	}
	fake.counts->waits--;
}

static void run(const struct work *w)
{
	size_t left;
	uint8_t *p;
	long us;

	switch (w->kind) {
	case WORK_COPY:
		us = fake.copy_us +
		     (w->peer ? fake.peer_us : fake.host_us * (long)(w->size >> 10) / 1024);
		if (us) {
			usleep((useconds_t)us);
		}
		if (fake.sticky) {
			break; /* what a spoilt context had under way is over */
		}
		fake_copy(w->dst, w->src, w->size);
		if (w->peer) {
			fake.counts->peer += w->size;
			*fake_touch(w->dst, &left) ^= fake.peer_spoil;
		}
		fake.counts->copies++;
		fake.counts->copied += w->size;
		break;
	case WORK_SET:
		for (size_t at = 0; at < w->size; at += left) {
			p = fake_touch(w->dst + at, &left);
			left = left < w->size - at ? left : w->size - at;
			memset(p, (int)w->value, left);
		}
		break;
	case WORK_WRITE:
		p = fake_touch(w->dst, &left);
		atomic_store((_Atomic uint32_t *)p, w->value);
		break;
	case WORK_WAIT:
		wait_value(w);
		break;
	case WORK_RECORD:
		atomic_store(&w->event->done, w->number);
		break;
	case WORK_EVENT:
		for (unsigned int i = 0; atomic_load(&w->event->done) < w->number;
		     i += i <= SLEEP_AFTER) {
			nap(i);
		}
		break;
	case WORK_CALL:
		w->call(w->arg);
		break;
	}
	if (w->event) {
		event_unref(w->event);
	}
}

static void *stream_main(void *arg)
{
	CUstream s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct work *w = s->first;

		if (!w) {
			if (s->ending) {
				break;
			}
			pthread_cond_wait(&s->changed, &s->lock);
			continue;
		}
		s->first = w->next;
		s->last = s->first ? s->last : &s->first;
		s->busy = true;
		pthread_mutex_unlock(&s->lock);
		run(w);
		free(w);
		pthread_mutex_lock(&s->lock);
		s->busy = false;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->changed);
	free(s);
	return NULL;
}

static CUstream stream_new(CUcontext ctx)
{
	CUstream s = calloc(1, sizeof(*s));

	if (!s) {
		return NULL;
	}
	s->ctx = ctx;
	s->last = &s->first;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
		free(s);
		return NULL;
	}
	pthread_detach(s->thread);
	pthread_mutex_lock(&list_lock);
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&list_lock);
	return s;
}

/* The stream behind a handle: the special ones need a current context. */
static CUstream stream_get(CUstream stream)
{
	CUcontext ctx = fake_ctx();
	CUstream *place;

	if ((uintptr_t)stream > 2) {
		return stream;
	}
	if (!ctx) {
		return NULL;
	}
	place = &fake.defaults[ctx->device][stream == CU_STREAM_PER_THREAD];
	pthread_mutex_lock(&fake.lock);
	if (!*place) {
		*place = stream_new(ctx);
	}
	pthread_mutex_unlock(&fake.lock);
	return *place;
}

static CUresult enqueue(CUstream stream, const struct work *work)
{
	CUstream s = stream_get(stream);
	struct work *w;

	if (!s) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	w = malloc(sizeof(*w));
	if (!w) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*w = *work;
	w->next = NULL;
	if (w->event) {
		atomic_fetch_add(&w->event->refs, 1);
	}
	pthread_mutex_lock(&s->lock);
	*s->last = w;
	s->last = &w->next;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return CUDA_SUCCESS;
}

static void drain(CUstream s)
{
	pthread_mutex_lock(&s->lock);
	while (s->first || s->busy) {
		pthread_cond_wait(&s->changed, &s->lock);
	}
	pthread_mutex_unlock(&s->lock);
}

/*
 * Work that waits for a value is not waited for: a real driver would, and hang; a test should not
 * depend on either.
 */
void fake_drain(void)
{
	for (unsigned int i = 0; i < 100; i++) {
		bool busy = false;

		pthread_mutex_lock(&list_lock);
		for (CUstream s = streams; s; s = s->next) {
			pthread_mutex_lock(&s->lock);
			busy |= s->first || s->busy;
			pthread_mutex_unlock(&s->lock);
		}
		pthread_mutex_unlock(&list_lock);
		if (!busy || fake.counts->waits > 0) {
			return;
		}
		usleep(1000);
	}
}

FAKE_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	FAKE_ENTER_CTX("cuStreamCreate");
	(void)flags;
	*stream = stream_new(fake_ctx());
	fake.counts->streams += *stream != NULL;
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

FAKE_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	(void)priority;
	return cuStreamCreate(stream, flags);
}

FAKE_API CUresult cuStreamDestroy_v2(CUstream stream)
{
	FAKE_ENTER("cuStreamDestroy");
	if ((uintptr_t)stream <= 2) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_lock(&list_lock);
	for (CUstream *p = &streams; *p; p = &(*p)->next) {
		if (*p == stream) {
			*p = stream->next;
			break;
		}
	}
	pthread_mutex_unlock(&list_lock);
	pthread_mutex_lock(&stream->lock);
	stream->ending = true; /* its thread frees it when the queue is empty */
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	fake.counts->streams--;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuStreamSynchronize(CUstream stream)
{
	CUstream s;

	FAKE_ENTER("cuStreamSynchronize");
	s = stream_get(stream);
	if (!s) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	drain(s);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxSynchronize(void)
{
	CUstream s;

	FAKE_ENTER_CTX("cuCtxSynchronize");
	pthread_mutex_lock(&list_lock);
	for (s = streams; s; s = s->next) {
		if (s->ctx == fake_ctx()) {
			drain(s);
		}
	}
	pthread_mutex_unlock(&list_lock);
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuStreamQuery(CUstream stream)
{
	CUstream s;
	bool busy;

	FAKE_ENTER("cuStreamQuery");
	s = stream_get(stream);
	if (!s) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	pthread_mutex_lock(&s->lock);
	busy = s->first || s->busy;
	pthread_mutex_unlock(&s->lock);
	return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

FAKE_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
	CUstream s;

	FAKE_ENTER("cuStreamGetCtx");
	s = stream_get(stream);
	if (!s) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*ctx = s->ctx;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CUstream s;

	FAKE_ENTER("cuStreamIsCapturing");
	s = stream_get(stream);
	if (!s) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*status = s->capture;
	return CUDA_SUCCESS;
}

/* For tests: nothing is captured, the stream only says so. */
FAKE_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	FAKE_ENTER("cuStreamBeginCapture");
	(void)mode;
	stream_get(stream)->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuStreamEndCapture(CUstream stream, void **graph)
{
	FAKE_ENTER("cuStreamEndCapture");
	*graph = NULL;
	stream_get(stream)->capture = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

/* For tests: stands for a kernel. */
FAKE_API CUresult cuLaunchHostFunc(CUstream stream, void (*call)(void *arg), void *arg)
{
	struct work w = {.kind = WORK_CALL, .call = call, .arg = arg};

	FAKE_ENTER("cuLaunchHostFunc");
	return enqueue(stream, &w);
}

static bool value_ok(CUdeviceptr addr)
{
	size_t left = 0;

	return addr % 4 == 0 && fake_touch(addr, &left) && left >= 4;
}

FAKE_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, uint32_t value,
					  unsigned int flags)
{
	struct work w = {.kind = WORK_WRITE, .dst = addr, .value = value};

	FAKE_ENTER("cuStreamWriteValue32");
	if (!value_ok(addr) || flags > 1) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return enqueue(stream, &w);
}

FAKE_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, uint32_t value,
					 unsigned int flags)
{
	struct work w = {.kind = WORK_WAIT, .dst = addr, .value = value, .flags = flags};

	FAKE_ENTER("cuStreamWaitValue32");
	if (flags & CU_STREAM_WAIT_VALUE_FLUSH) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!value_ok(addr) || flags > CU_STREAM_WAIT_VALUE_EQ) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return enqueue(stream, &w);
}

static CUresult copy(CUstream stream, uintptr_t dst, uintptr_t src, size_t size)
{
	struct work w = {.kind = WORK_COPY, .dst = dst, .src = src, .size = size};

	return enqueue(stream, &w);
}

FAKE_API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	FAKE_ENTER_CTX("cuMemcpy");
	return fake_copy(dst, src, size);
}

FAKE_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	FAKE_ENTER_CTX("cuMemcpyAsync");
	return copy(stream, dst, src, size);
}

FAKE_API CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	FAKE_ENTER_CTX("cuMemcpyDtoHAsync");
	return copy(stream, (uintptr_t)dst, src, size);
}

FAKE_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size,
				       CUstream stream)
{
	FAKE_ENTER_CTX("cuMemcpyHtoDAsync");
	return copy(stream, dst, (uintptr_t)src, size);
}

FAKE_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size,
				       CUstream stream)
{
	FAKE_ENTER_CTX("cuMemcpyDtoDAsync");
	return copy(stream, dst, src, size);
}

/* May the copy engines of @device touch it? */
static bool reaches(int device, uintptr_t addr)
{
	struct fake_range *range;
	bool ok;

	pthread_mutex_lock(&fake.lock);
	range = fake_find(addr);
	ok = range && (range->kind == FAKE_VMM ? range->access & 1u << device
					       : range->device == device ||
							 fake.peers[device] & 1u << range->device);
	pthread_mutex_unlock(&fake.lock);
	return ok;
}

FAKE_API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
				    CUcontext src_ctx, size_t size, CUstream stream)
{
	struct work w = {.kind = WORK_COPY, .dst = dst, .src = src, .size = size, .peer = true};
	CUstream s;

	FAKE_ENTER_CTX("cuMemcpyPeerAsync");
	s = stream_get(stream);
	if (!s || !dst_ctx || !src_ctx) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (!reaches(s->ctx->device, dst) || !reaches(s->ctx->device, src)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return enqueue(stream, &w);
}

FAKE_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream)
{
	CUresult r = CUDA_SUCCESS;
	uintptr_t dst, src;

	FAKE_ENTER_CTX("cuMemcpy2DAsync");
	dst = c->dstMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)c->dstHost : c->dstDevice;
	src = c->srcMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)c->srcHost : c->srcDevice;
	if (c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t y = 0; r == CUDA_SUCCESS && y < c->Height; y++) {
		r = copy(stream, dst + (c->dstY + y) * c->dstPitch + c->dstXInBytes,
			 src + (c->srcY + y) * c->srcPitch + c->srcXInBytes, c->WidthInBytes);
	}
	return r;
}

FAKE_API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
	struct work w = {.kind = WORK_SET, .dst = dst, .value = value, .size = n};

	FAKE_ENTER_CTX("cuMemsetD8Async");
	return enqueue(stream, &w);
}

FAKE_API CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	FAKE_ENTER_CTX("cuEventCreate");
	(void)flags;
	*event = calloc(1, sizeof(**event));
	if (!*event) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	atomic_store(&(*event)->refs, 1);
	fake.counts->events++;
	return CUDA_SUCCESS;
}

FAKE_API CUresult cuEventDestroy_v2(CUevent event)
{
	CUresult r = fake_enter("cuEventDestroy", true);

	/* In a spoilt context it goes with the context, which nobody counts here. */
	event_unref(event);
	fake.counts->events--;
	return r;
}

FAKE_API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct work w = {.kind = WORK_RECORD, .event = event};

	FAKE_ENTER("cuEventRecord");
	w.number = atomic_fetch_add(&event->recorded, 1) + 1;
	return enqueue(stream, &w);
}

FAKE_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	struct work w = {.kind = WORK_EVENT, .event = event};

	FAKE_ENTER("cuStreamWaitEvent");
	w.number = atomic_load(&event->recorded);
	return flags == 0 ? enqueue(stream, &w) : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuEventQuery(CUevent event)
{
	FAKE_ENTER("cuEventQuery");
	return atomic_load(&event->done) >= atomic_load(&event->recorded) ? CUDA_SUCCESS
									  : CUDA_ERROR_NOT_READY;
}

FAKE_API CUresult cuEventSynchronize(CUevent event)
{
	FAKE_ENTER("cuEventSynchronize");
	for (unsigned int i = 0; cuEventQuery(event) == CUDA_ERROR_NOT_READY; i++) {
		nap(i);
	}
	return CUDA_SUCCESS;
}
