/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Copier: the thread of a GPU that submits copies and sees them end
 *
 * A stream for each way, so that all of them work at once: from the GPU, to it, and to other GPUs.
 * What goes to other GPUs is pushed by this one. Inside one GPU the driver has the compute engine
 * copy, which waits for its turn while others compute: that goes through the host. What was copied
 * is known by an event behind it; while a GPU has work the thread asks for the oldest event of each
 * direction again and again, yielding in between; without work it sleeps.
 *
 * Every job comes back, with an error if need be, and only when the GPU does nothing for it any
 * more: whoever waits for jobs may then give memory back.
 *
 * Thread: gpu-N; start, stop, trim: gpu; gpu_copy: the one of the jobs      Owns: nothing
 * Locks: none
 */
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpu/gpu_impl.h"
#include "util/clock.h"
#include "util/log.h"

enum copier_state {
	COPIER_LOOKING = 0,
	COPIER_ASLEEP = 1,
};

static void copier_wake(struct gpu_device *d)
{
	uint32_t asleep = COPIER_ASLEEP;

	if (atomic_compare_exchange_strong_explicit(&d->state, &asleep, COPIER_LOOKING,
						    memory_order_seq_cst, memory_order_seq_cst)) {
		syscall(SYS_futex, &d->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
}

/* See gpu.h. */
void gpu_copy(struct gpu_job *job)
{
	struct gpu_device *d = job->device;

	atomic_fetch_add_explicit(&d->jobs, 1, memory_order_relaxed);
	gpu_inbox_push(&d->inbox, &job->item);
	/* seq_cst, as the push: the copier sees the job, or is seen asleep */
	if (atomic_load_explicit(&d->state, memory_order_seq_cst) == COPIER_ASLEEP) {
		copier_wake(d);
	}
}

/* See gpu.h. */
uint8_t *gpu_staging_take(struct gpu_device *d, uint64_t size, enum gpu_staging_use use)
{
	return staging_take(&d->staging, size, use);
}

/* See gpu.h. */
void gpu_staging_put(struct gpu_device *d, uint8_t *at, uint64_t size, enum gpu_staging_use use)
{
	staging_put(&d->staging, at, size, use);
}

/* See gpu.h. */
uint64_t gpu_staging_limit(const struct gpu_device *d, enum gpu_staging_use use)
{
	return staging_limit(&d->staging, use);
}

/* ---- ends --------------------------------------------------------------------------------- */

static void job_end(struct gpu_device *d, struct gpu_job *job, CUresult r)
{
	struct gpu_channel *channel = job->channel;

	if (r != CUDA_SUCCESS) {
		job->error = (int)r;
		atomic_fetch_add_explicit(&d->jobs_failed, 1, memory_order_relaxed);
	}
	atomic_fetch_add_explicit(&d->jobs_ended, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&channel->ending, 1, memory_order_relaxed);
	gpu_inbox_push(&channel->done, &job->item); /* it is no longer ours */
	if (atomic_load_explicit(&channel->asleep, memory_order_seq_cst) &&
	    atomic_exchange_explicit(&channel->asleep, false, memory_order_seq_cst)) {
		uint64_t one = 1;

		/* Fails only when the counter is full: then it is readable anyway. */
		(void)!write(channel->bell, &one, sizeof(one));
	}
	/* release: pairs with gpu_channel_quiet() */
	atomic_fetch_sub_explicit(&channel->ending, 1, memory_order_release);
}

static bool copier_lost(const struct gpu_device *d)
{
	return atomic_load_explicit(&((struct gpu_device *)d)->lost, memory_order_relaxed) != 0;
}

/* Jobs whose copies are over. Return: how many. */
static int lane_poll(struct gpu_device *d, struct copier_lane *lane)
{
	int n = 0;

	while (lane->count) {
		struct gpu_job *job = lane->flying[lane->first];
		CUresult r = copier_lost(d) ? (CUresult)d->lost
					    : d->gpu->cuda.EventQuery(lane->events[lane->first]);

		if (r == CUDA_ERROR_NOT_READY) {
			break;
		}
		if (r != CUDA_SUCCESS) {
			device_check(d, r);
		}
		lane->first = (lane->first + 1) % COPIER_EVENTS;
		lane->count--;
		job_end(d, job, r ? r : (CUresult)job->error);
		n++;
	}
	return n;
}

/* ---- beginnings --------------------------------------------------------------------------- */

/* Staging memory is pinned when it is first used, a slab at a time. */
static void pin(struct gpu_device *d, uint32_t slab)
{
	struct staging *s = &d->staging;
	char error[160];
	CUresult r;

	if (s->slabs[slab] != STAGING_FRESH) {
		return;
	}
	r = d->gpu->cuda.MemHostRegister(s->base + (uint64_t)slab * STAGING_SLAB, STAGING_SLAB,
					 CU_MEMHOSTREGISTER_PORTABLE);
	if (r == CUDA_SUCCESS) {
		s->slabs[slab] = STAGING_PINNED;
		atomic_fetch_add_explicit(&s->pinned, STAGING_SLAB, memory_order_relaxed);
		return;
	}
	s->slabs[slab] = STAGING_UNPINNABLE;
	log_warn("GPU %s: staging memory cannot be pinned, which makes copies slow: %s",
		 d->uuid_text, cuda_abi_error(&d->gpu->cuda, r, error, sizeof(error)));
}

/* How much of it may be one copy: the driver takes none over the border of two pinned ranges. */
static uint64_t prepare(struct gpu_device *d, const struct gpu_copy *c)
{
	const struct staging *s = c->stage ? &c->stage->staging : &d->staging;
	uint64_t off;

	if (!staging_contains(s, c->host)) {
		return c->size;
	}
	off = (uint64_t)((uint8_t *)c->host - s->base);
	if (!c->stage) {
		pin(d, (uint32_t)(off / STAGING_SLAB)); /* another GPU's its own thread pins */
	}
	return MIN(c->size, STAGING_SLAB - off % STAGING_SLAB);
}

/* Straight to another GPU, whose context is there as long as its memory is. */
static CUresult peer_begin(struct gpu_device *d, struct copier_lane *lane, const struct gpu_copy *c)
{
	CUresult r;

	if (copier_lost(c->to)) {
		return (CUresult)atomic_load_explicit(&c->to->lost, memory_order_relaxed);
	}
	r = d->gpu->cuda.MemcpyPeerAsync(c->to_address, c->to->ctx, c->device, d->ctx, c->size,
					 lane->stream);
	if (r == CUDA_SUCCESS) {
		atomic_fetch_add_explicit(&d->bytes_peer, c->size, memory_order_relaxed);
	}
	return r;
}

/* Inside one GPU: out and in again, in the order of the stream. */
static CUresult bounce_begin(struct gpu_device *d, struct copier_lane *lane, struct gpu_copy c)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;

	while (c.size) {
		struct gpu_copy part = {.host = c.host, .size = MIN(c.size, c.room)};
		uint64_t n = prepare(d, &part);
		CUresult r = cuda->MemcpyDtoHAsync(c.host, c.device, n, lane->stream);

		if (r == CUDA_SUCCESS) {
			r = cuda_abi_upload(cuda, c.to_address, c.host, n, lane->stream);
		}
		if (r != CUDA_SUCCESS) {
			return r;
		}
		atomic_fetch_add_explicit(&d->bytes_in, n, memory_order_relaxed);
		atomic_fetch_add_explicit(&d->bytes_out, n, memory_order_relaxed);
		c.device += n;
		c.to_address += n;
		c.size -= n;
	}
	return CUDA_SUCCESS;
}

static CUresult piece_begin(struct gpu_device *d, struct copier_lane *lane, bool out,
			    struct gpu_copy c)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	_Atomic uint64_t *moved = out ? &d->bytes_out : &d->bytes_in;

	while (c.size) {
		uint64_t n = prepare(d, &c);
		CUresult r = out ? cuda_abi_upload(cuda, c.device, c.host, n, lane->stream)
				 : cuda->MemcpyDtoHAsync(c.host, c.device, n, lane->stream);

		if (r != CUDA_SUCCESS) {
			return r;
		}
		atomic_fetch_add_explicit(moved, n, memory_order_relaxed);
		c.device += n;
		c.host = (uint8_t *)c.host + n;
		c.size -= n;
	}
	return CUDA_SUCCESS;
}

/* The GPU has it from now on, or it has ended. */
static void job_begin(struct gpu_device *d, struct copier_lane *lane, struct gpu_job *job)
{
	const struct cuda_abi *cuda = &d->gpu->cuda;
	uint32_t at = (lane->first + lane->count) % COPIER_EVENTS;
	CUresult r = copier_lost(d) ? (CUresult)d->lost : CUDA_SUCCESS;
	CUresult recorded;

	job->error = 0;
	if (r != CUDA_SUCCESS) {
		job_end(d, job, r);
		return;
	}
	for (uint32_t i = 0; i < job->npieces && r == CUDA_SUCCESS; i++) {
		struct gpu_copy c = {0};

		job->piece(job, i, &c);
		if (c.size == 0) {
			continue;
		}
		if (!job->peer) {
			r = piece_begin(d, lane, job->out, c);
		} else {
			r = c.to == d ? bounce_begin(d, lane, c) : peer_begin(d, lane, &c);
		}
	}
	/* Also after an error: what was begun before it must end first. */
	recorded = cuda->EventRecord(lane->events[at], lane->stream);
	if (r != CUDA_SUCCESS || recorded != CUDA_SUCCESS) {
		device_check(d, r ? r : recorded);
		job->error = (int)(r ? r : recorded);
	}
	if (recorded != CUDA_SUCCESS) {
		cuda->StreamSynchronize(lane->stream);
		job_end(d, job, (CUresult)job->error);
		return;
	}
	lane->flying[at] = job;
	lane->count++;
}

static int lane_begin(struct gpu_device *d, struct copier_lane *lane)
{
	int n = 0;

	while (lane->waiting && lane->count < COPIER_EVENTS) {
		struct gpu_job *job = lane->waiting;

		lane->waiting = (struct gpu_job *)job->item.next;
		job_begin(d, lane, job);
		n++;
	}
	return n;
}

/* New jobs wait in the lane of their direction. */
static int take_jobs(struct gpu_device *d)
{
	struct gpu_item *item = gpu_inbox_take(&d->inbox);
	int n = 0;

	while (item) {
		struct gpu_job *job = container_of(item, struct gpu_job, item);
		struct copier_lane *lane = &d->lanes[job->peer ? COPIER_PEER : job->out];

		item = item->next;
		job->item.next = NULL;
		if (lane->waiting) {
			lane->last->item.next = &job->item;
		} else {
			lane->waiting = job;
		}
		lane->last = job;
		n++;
	}
	return n;
}

/* ---- the thread --------------------------------------------------------------------------- */

static bool copier_busy(const struct gpu_device *d)
{
	for (int i = 0; i < COPIER_LANES; i++) {
		if (d->lanes[i].count || d->lanes[i].waiting) {
			return true;
		}
	}
	return false;
}

static int copier_turn(struct gpu_device *d)
{
	int n = take_jobs(d);

	for (int i = 0; i < COPIER_LANES; i++) {
		n += lane_begin(d, &d->lanes[i]);
		n += lane_poll(d, &d->lanes[i]);
	}
	return n;
}

static void copier_sleep(struct gpu_device *d)
{
	atomic_store_explicit(&d->state, COPIER_ASLEEP, memory_order_seq_cst);
	if (gpu_inbox_empty(&d->inbox) && !atomic_load_explicit(&d->stop, memory_order_seq_cst)) {
		while (atomic_load_explicit(&d->state, memory_order_seq_cst) == COPIER_ASLEEP) {
			syscall(SYS_futex, &d->state, FUTEX_WAIT_PRIVATE, COPIER_ASLEEP, NULL, NULL,
				0);
		}
	}
	atomic_store_explicit(&d->state, COPIER_LOOKING, memory_order_relaxed);
}

static void copier_main(void *arg)
{
	struct gpu_device *d = arg;
	uint64_t spin = d->gpu->options.spin_us * CLOCK_NS_PER_US;
	uint64_t idle_since = 0;

	d->gpu->cuda.CtxSetCurrent(d->ctx);
	/* acquire: what was done before copier_stop() is seen */
	while (!atomic_load_explicit(&d->stop, memory_order_acquire) || copier_busy(d)) {
		uint64_t now;

		if (copier_turn(d)) {
			idle_since = 0;
			continue;
		}
		now = clock_monotonic();
		idle_since = idle_since ? idle_since : now;
		if (copier_busy(d) || clock_elapsed(now, idle_since) < spin) {
			sched_yield();
			continue;
		}
		copier_sleep(d);
		idle_since = 0;
	}
}

/* See gpu_impl.h. */
int copier_start(struct gpu_device *d)
{
	char name[16];

	snprintf(name, sizeof(name), "gpu-%d", d->device);
	atomic_store_explicit(&d->stop, false, memory_order_relaxed);
	atomic_store_explicit(&d->state, COPIER_LOOKING, memory_order_relaxed);
	return err_trace(thread_start(&d->thread, name, THREAD_ANY_CPU, copier_main, d));
}

/* See gpu_impl.h. */
void copier_stop(struct gpu_device *d)
{
	atomic_store_explicit(&d->stop, true, memory_order_seq_cst);
	copier_wake(d);
	thread_join(&d->thread);
}

/* See gpu_impl.h. */
void copier_trim(struct gpu_device *d, uint32_t first)
{
	struct staging *s = &d->staging;

	for (uint32_t i = first; i < s->nslabs; i++) {
		uint8_t *at = s->base + (uint64_t)i * STAGING_SLAB;

		if (s->slabs[i] == STAGING_PINNED) {
			d->gpu->cuda.MemHostUnregister(at);
			atomic_fetch_sub_explicit(&s->pinned, STAGING_SLAB, memory_order_relaxed);
		}
		if (s->slabs[i] != STAGING_FRESH) {
			madvise(at, STAGING_SLAB, MADV_DONTNEED);
			s->slabs[i] = STAGING_FRESH;
		}
	}
}
