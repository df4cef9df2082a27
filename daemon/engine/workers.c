/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Workers: see workers.h
 *
 * Sleeping and waking, on both sides, is the store-then-load pattern: the sleeper announces itself
 * and then looks for work once more, the other side publishes work and then looks for sleepers; all
 * four are sequentially consistent, so at least one of them sees the other.
 *
 * Thread: worker_*: a worker; others as workers.h says      Owns: see workers.h      Locks: none
 */
#include "engine/workers.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base.h"
#include "util/clock.h"
#include "util/thread.h"

#define WORKERS_SUIT_MAX 8

enum worker_state {
	WORKER_BUSY = 0,
	WORKER_LOOKING = 1, /* will take a slice by itself */
	WORKER_ASLEEP = 2,
};

/* A place of the queue. */
struct work {
	_Alignas(64) struct slice slice;
	_Atomic uint32_t done; /* the taker's last store */
	bool out;	       /* progress thread: handed out and not popped */
};

struct worker {
	_Alignas(64) _Atomic uint32_t state; /* enum worker_state; the futex */
	struct workers *pool;
	struct thread thread;
	struct thread_view view;
};

struct workers {
	/* the progress thread's */
	struct workers_options options;
	uint64_t oldest; /* places below are free */
	uint64_t popped; /* how many, ever */
	uint8_t *stages;
	unsigned int nstages; /* free ones */
	uint8_t *free_stages[WORKERS_STAGES];

	/* everybody's */
	_Alignas(64) _Atomic uint64_t head; /* places below are handed out */
	_Atomic bool stop;
	_Atomic bool asleep;		    /* the progress thread is */
	_Alignas(64) _Atomic uint64_t tail; /* places below are taken */
	_Alignas(64) _Atomic uint64_t finished;

	struct work queue[WORKERS_QUEUE];
	struct worker workers[]; /* [options.threads] */
};

unsigned int workers_suit(unsigned int cpus)
{
	return cpus <= 4 ? 0 : MIN(MAX(cpus / 4, 1), WORKERS_SUIT_MAX);
}

/* ---- taking and finishing: workers and progress thread ------------------------------------ */

static struct work *work_take(struct workers *w)
{
	uint64_t at = atomic_load_explicit(&w->tail, memory_order_relaxed);

	do {
		/* acquire: pairs with the store in workers_push(), whose slice is read */
		if (at == atomic_load_explicit(&w->head, memory_order_seq_cst)) {
			return NULL;
		}
	} while (!atomic_compare_exchange_weak_explicit(&w->tail, &at, at + 1, memory_order_acq_rel,
							memory_order_relaxed));
	return &w->queue[at % WORKERS_QUEUE];
}

static void work_finish(struct workers *w, struct work *work)
{
	/* release: pairs with the acquire in workers_pop() */
	atomic_store_explicit(&work->done, 1, memory_order_release);
	atomic_fetch_add_explicit(&w->finished, 1, memory_order_seq_cst);
}

/* ---- worker ------------------------------------------------------------------------------- */

static void worker_count(struct worker *me, const struct slice_moved *moved)
{
	counter_add(&me->view.bytes_local, moved->local);
	counter_add(&me->view.bytes_reduced, moved->reduced);
}

static void worker_ring(struct worker *me)
{
	struct workers *w = me->pool;

	if (atomic_load_explicit(&w->asleep, memory_order_seq_cst) &&
	    atomic_exchange_explicit(&w->asleep, false, memory_order_seq_cst)) {
		uint64_t one = 1;

		/* Fails only when the counter is full: then it is readable anyway. */
		(void)!write(w->options.bell, &one, sizeof(one));
		counter_add(&me->view.syscalls, 1);
	}
}

static bool worker_turn(struct worker *me)
{
	struct workers *w = me->pool;
	struct work *work = work_take(w);

	counter_add(&me->view.loops, 1);
	if (!work) {
		return false;
	}
	atomic_store_explicit(&me->state, WORKER_BUSY, memory_order_relaxed);
	w->options.run(&work->slice);
	worker_count(me, &work->slice.moved);
	work_finish(w, work);
	worker_ring(me);
	atomic_store_explicit(&me->state, WORKER_LOOKING, memory_order_relaxed);
	return true;
}

static void worker_sleep(struct worker *me)
{
	struct workers *w = me->pool;

	atomic_store_explicit(&me->state, WORKER_ASLEEP, memory_order_seq_cst);
	if (atomic_load_explicit(&w->head, memory_order_seq_cst) ==
		    atomic_load_explicit(&w->tail, memory_order_seq_cst) &&
	    !atomic_load_explicit(&w->stop, memory_order_seq_cst)) {
		while (atomic_load_explicit(&me->state, memory_order_seq_cst) == WORKER_ASLEEP) {
			syscall(SYS_futex, &me->state, FUTEX_WAIT_PRIVATE, WORKER_ASLEEP, NULL,
				NULL, 0);
			counter_add(&me->view.syscalls, 1);
		}
		counter_add(&me->view.wakeups, 1);
	}
	atomic_store_explicit(&me->state, WORKER_LOOKING, memory_order_relaxed);
}

static void worker_main(void *arg)
{
	struct worker *me = arg;
	struct workers *w = me->pool;
	uint64_t spin = w->options.spin_us * CLOCK_NS_PER_US;
	uint64_t idle_since = 0;

	/* acquire: what was done before workers_stop() is seen */
	while (!atomic_load_explicit(&w->stop, memory_order_acquire)) {
		uint64_t now;

		if (worker_turn(me)) {
			idle_since = 0;
			continue;
		}
		now = clock_monotonic();
		idle_since = idle_since ? idle_since : now;
		if (clock_elapsed(now, idle_since) < spin) {
			sched_yield();
			counter_add(&me->view.yields, 1);
			continue;
		}
		worker_sleep(me);
		idle_since = 0;
	}
}

/* Return: it slept, and wakes. */
static bool worker_wake(struct worker *worker)
{
	uint32_t asleep = WORKER_ASLEEP;

	/* From now on it counts as looking. */
	if (!atomic_compare_exchange_strong_explicit(&worker->state, &asleep, WORKER_LOOKING,
						     memory_order_seq_cst, memory_order_seq_cst)) {
		return false;
	}
	syscall(SYS_futex, &worker->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	return true;
}

/* ---- control thread ----------------------------------------------------------------------- */

int workers_new(const struct workers_options *options, struct workers **ret)
{
	size_t size = sizeof(struct workers) + options->threads * sizeof(struct worker);
	struct workers *w = aligned_alloc(64, ALIGN_UP(size, 64));

	assert(options->threads >= 1 && options->threads <= WORKERS_MAX);
	if (!w) {
		return err_origin(-ENOMEM);
	}
	__builtin_memset(w, 0, ALIGN_UP(size, 64));
	w->options = *options;
	w->stages = mmap(NULL, WORKERS_STAGES * options->stage, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w->stages == MAP_FAILED) {
		free(w);
		return err_origin(-ENOMEM);
	}
	for (unsigned int i = 0; i < WORKERS_STAGES; i++) {
		workers_stage_put(w, w->stages + i * options->stage);
	}
	for (unsigned int i = 0; i < options->threads; i++) {
		w->workers[i].pool = w;
		atomic_init(&w->workers[i].state, WORKER_LOOKING);
	}
	*ret = w;
	return 0;
}

struct workers *workers_free(struct workers *w)
{
	if (w) {
		munmap(w->stages, WORKERS_STAGES * w->options.stage);
		free(w);
	}
	return NULL;
}

int workers_start(struct workers *w)
{
	for (unsigned int i = 0; i < w->options.threads; i++) {
		struct worker *me = &w->workers[i];
		char name[24];
		int r;

		snprintf(name, sizeof(name), "reduce-%u", i);
		r = thread_start(&me->thread, name, THREAD_ANY_CPU, worker_main, me);
		if (r < 0) {
			workers_stop(w);
			return err_trace(r);
		}
	}
	return 0;
}

void workers_stop(struct workers *w)
{
	/* seq_cst: before the look at who sleeps */
	atomic_store_explicit(&w->stop, true, memory_order_seq_cst);
	for (unsigned int i = 0; i < w->options.threads; i++) {
		worker_wake(&w->workers[i]);
	}
	for (unsigned int i = 0; i < w->options.threads; i++) {
		thread_join(&w->workers[i].thread);
	}
}

const struct thread_view *workers_view(const struct workers *w, unsigned int index)
{
	return index < w->options.threads ? &w->workers[index].view : NULL;
}

/* ---- progress thread ---------------------------------------------------------------------- */

/* Wakes one more if those that look for work are fewer than the slices that nobody has taken. */
static void wake_for(struct workers *w, uint64_t untaken)
{
	struct worker *sleeper = NULL;

	for (unsigned int i = 0; i < w->options.threads; i++) {
		struct worker *worker = &w->workers[i];
		uint32_t state = atomic_load_explicit(&worker->state, memory_order_seq_cst);

		if (state == WORKER_LOOKING && --untaken == 0) {
			return;
		}
		if (state == WORKER_ASLEEP && !sleeper) {
			sleeper = worker;
		}
	}
	if (sleeper && worker_wake(sleeper) && w->options.syscalls) {
		counter_add(w->options.syscalls, 1);
	}
}

bool workers_push(struct workers *w, const struct slice *s, unsigned int spare)
{
	uint64_t head = atomic_load_explicit(&w->head, memory_order_relaxed);
	struct work *work = &w->queue[head % WORKERS_QUEUE];
	uint64_t tail;

	if (head - w->oldest + spare >= WORKERS_QUEUE) {
		return false;
	}
	work->slice = *s;
	work->out = true;
	atomic_store_explicit(&work->done, 0, memory_order_relaxed);
	/* release: pairs with work_take(); seq_cst: before the look at who sleeps */
	atomic_store_explicit(&w->head, head + 1, memory_order_seq_cst);
	tail = atomic_load_explicit(&w->tail, memory_order_relaxed);
	if (head + 1 != tail) {
		wake_for(w, head + 1 - tail);
	}
	return true;
}

bool workers_pop(struct workers *w, struct slice *ret)
{
	uint64_t head = atomic_load_explicit(&w->head, memory_order_relaxed);

	if (atomic_load_explicit(&w->finished, memory_order_relaxed) == w->popped) {
		return false;
	}
	for (uint64_t at = w->oldest; at != head; at++) {
		struct work *work = &w->queue[at % WORKERS_QUEUE];

		/* acquire: pairs with work_finish() */
		if (!work->out || !atomic_load_explicit(&work->done, memory_order_acquire)) {
			continue;
		}
		*ret = work->slice;
		work->out = false;
		w->popped++;
		while (w->oldest != head && !w->queue[w->oldest % WORKERS_QUEUE].out) {
			w->oldest++;
		}
		return true;
	}
	return false;
}

bool workers_help(struct workers *w, struct slice_moved *ret)
{
	uint64_t untaken = atomic_load_explicit(&w->head, memory_order_relaxed) -
			   atomic_load_explicit(&w->tail, memory_order_relaxed);
	struct work *work;

	for (unsigned int i = 0; untaken && i < w->options.threads; i++) {
		untaken -= atomic_load_explicit(&w->workers[i].state, memory_order_relaxed) ==
			   WORKER_LOOKING;
	}
	work = untaken ? work_take(w) : NULL;
	if (!work) {
		return false;
	}
	w->options.run(&work->slice);
	*ret = work->slice.moved;
	work_finish(w, work);
	return true;
}

unsigned int workers_out(const struct workers *w)
{
	return (unsigned int)(atomic_load_explicit(&w->head, memory_order_relaxed) - w->popped);
}

bool workers_arm(struct workers *w)
{
	atomic_store_explicit(&w->asleep, true, memory_order_seq_cst);
	/* seq_cst: a worker that finishes now sees us asleep, or we see that it has finished */
	return atomic_load_explicit(&w->finished, memory_order_seq_cst) == w->popped;
}

void workers_disarm(struct workers *w)
{
	atomic_store_explicit(&w->asleep, false, memory_order_relaxed);
}

uint8_t *workers_stage_take(struct workers *w)
{
	return w->nstages ? w->free_stages[--w->nstages] : NULL;
}

void workers_stage_put(struct workers *w, uint8_t *stage)
{
	assert(w->nstages < WORKERS_STAGES);
	w->free_stages[w->nstages++] = stage;
}

void workers_stages(const struct workers *w, uint8_t **ret_base, size_t *ret_size)
{
	*ret_base = w->stages;
	*ret_size = WORKERS_STAGES * w->options.stage;
}
