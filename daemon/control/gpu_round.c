/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU round: implementation
 *
 * A trial belongs to its thread and to the round until one of them says, by `state`, that it has
 * finished or given up; what is left is the other's.
 *
 * Thread: control; round_main(): "gpu-round"; trial_main(): "gpu-register"
 * Owns: see gpu_round.h      Locks: none
 */
#include "control/gpu_round.h"

#include <assert.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/base.h"
#include "util/clock.h"
#include "util/thread.h"

enum trial_state { TRIAL_RUNS, TRIAL_OVER, TRIAL_ABANDONED };

struct trial {
	struct thread thread;
	_Atomic uint32_t state; /* enum trial_state */
	sem_t over;
	struct rdma_device device; /* a copy, with a context and a protection domain of its own */
	uint64_t address, size;
	int fd; /* a duplicate; -1: none */
	enum rdma_mem_way way;
	char refusal[RDMA_REASON + 96];
};

struct gpu_round {
	struct gpu_task task;
	struct gpu *gpu;
	struct thread thread;
	struct pci_tree tree;
	char bus[32];
	char pci[RDMA_DEVICES_MAX][32]; /* of the devices */
	uint64_t address, size;
	int fd; /* borrowed until the round is over */
	unsigned int ms;
	void (*done)(void *arg);
	void *arg;
	uint32_t n;
	struct trial *trials[RDMA_DEVICES_MAX]; /* NULL: not tried, or abandoned */
	struct gpu_round_result results[RDMA_DEVICES_MAX];
};

/* ---- a trial ------------------------------------------------------------------------------- */

static void trial_free(struct trial *t)
{
	if (t->device.pd) {
		t->device.api->dealloc_pd(t->device.pd);
	}
	if (t->device.context) {
		t->device.api->close_device(t->device.context);
	}
	base_close(t->fd);
	sem_destroy(&t->over);
	free(t);
}

/* In order: by dma-buf, by address. */
static void trial_register(struct trial *t)
{
	struct rdma_mem *m;

	if (rdma_mem_new(NULL, (void *)(uintptr_t)t->address, t->size, &m) < 0) {
		snprintf(t->refusal, sizeof(t->refusal), "the daemon has no memory");
		return;
	}
	t->way = rdma_mem_add_dmabuf(m, &t->device, t->fd, 0);
	memcpy(t->refusal, m->reason, sizeof(t->refusal));
	rdma_mem_free(m);
}
static_assert(sizeof(((struct trial *)0)->refusal) == sizeof(((struct rdma_mem *)0)->reason),
	      "one is copied to the other");

static void trial_main(void *arg)
{
	struct trial *t = arg;
	uint32_t runs = TRIAL_RUNS;

	trial_register(t);
	/* acq_rel: the results are there before the state says so; pairs with abandon() */
	if (atomic_compare_exchange_strong_explicit(&t->state, &runs, TRIAL_OVER,
						    memory_order_acq_rel, memory_order_acquire)) {
		sem_post(&t->over);
	} else {
		trial_free(t);
	}
}

/* The device may go away during the trial: its context stays open for as long as ours is. */
static int trial_new(const struct gpu_round *round, const struct rdma_device *d, struct trial **ret)
{
	struct trial *t = calloc(1, sizeof(*t));
	int r = 0;

	if (!t) {
		return -ENOMEM;
	}
	sem_init(&t->over, 0, 0);
	t->address = round->address;
	t->size = round->size;
	t->device.api = d->api;
	memcpy(t->device.name, d->name, sizeof(t->device.name));
	t->device.attr = d->attr;
	/* relaxed: numbers for the words of a refusal */
	t->device.regions = atomic_load_explicit(&d->regions, memory_order_relaxed);
	t->device.receive_regions = atomic_load_explicit(&d->receive_regions, memory_order_relaxed);
	t->fd = round->fd < 0 ? -1 : fcntl(round->fd, F_DUPFD_CLOEXEC, 0);
	t->device.context = d->api->open_device(d->context->device);
	if (t->device.context) {
		t->device.pd = d->api->alloc_pd(t->device.context);
	}
	if (!t->device.pd || (round->fd >= 0 && t->fd < 0)) {
		r = errno ? -errno : -EIO;
		trial_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

/* ---- the round ----------------------------------------------------------------------------- */

/* Return: false: it was over just now. */
static bool abandon(struct trial *t)
{
	pthread_t id = t->thread.id;
	uint32_t runs = TRIAL_RUNS;

	/* acq_rel: pairs with trial_main() */
	if (!atomic_compare_exchange_strong_explicit(&t->state, &runs, TRIAL_ABANDONED,
						     memory_order_acq_rel, memory_order_acquire)) {
		return false;
	}
	pthread_detach(id); /* the trial may be gone by now */
	return true;
}

static void result_take(struct gpu_round_result *r, struct trial *t)
{
	r->way = t->way;
	memcpy(r->refusal, t->refusal, sizeof(r->refusal));
	for (size_t i = 0; i < RDMA_REFUSAL_COUNT_; i++) {
		r->refused[i] = atomic_load_explicit(&t->device.refused[i], memory_order_relaxed);
	}
}

/* Return: false: it is not over at @deadline. */
static bool wait_until(sem_t *sem, const struct timespec *deadline)
{
	int r;

	do {
		r = sem_clockwait(sem, CLOCK_MONOTONIC, deadline);
	} while (r < 0 && errno == EINTR);
	return r == 0;
}

static void wait_for_trials(struct gpu_round *round)
{
	uint64_t end = clock_monotonic() + round->ms * CLOCK_NS_PER_MS;
	struct timespec deadline = {(time_t)(end / CLOCK_NS_PER_S), (long)(end % CLOCK_NS_PER_S)};

	for (uint32_t i = 0; i < round->n; i++) {
		struct trial *t = round->trials[i];

		if (!t) {
			continue;
		}
		if (!wait_until(&t->over, &deadline) && abandon(t)) {
			round->results[i].stalled = true;
			round->trials[i] = NULL;
			continue;
		}
		thread_join(&t->thread);
		result_take(&round->results[i], t);
	}
}

static void round_main(void *arg)
{
	struct gpu_round *round = arg;

	for (uint32_t i = 0; i < round->n; i++) {
		struct trial *t = round->trials[i];

		if (t && thread_start(&t->thread, "gpu-register", THREAD_ANY_CPU, trial_main, t)) {
			round->results[i].untried = true;
			snprintf(round->results[i].refusal, sizeof(round->results[i].refusal),
				 "the daemon cannot start a thread");
			trial_free(t);
			round->trials[i] = NULL;
		}
	}
	for (uint32_t i = 0; i < round->n; i++) {
		pci_route_read(&round->tree, round->pci[i], round->bus, &round->results[i].route);
	}
	wait_for_trials(round);
	gpu_task_end(round->gpu, &round->task);
}

static void round_back(struct gpu_task *task)
{
	struct gpu_round *round = container_of(task, struct gpu_round, task);

	thread_join(&round->thread);
	round->done(round->arg);
}

/**
 * gpu_round_new() - a round without devices
 * @gpu:   borrowed until it is over
 * @trial: memory of the GPU; its descriptor is borrowed until the round is over
 * @tree:  copied; what it names is borrowed
 * @bus:   of the GPU, copied
 * @ret:   new round, set on success only
 *
 * Return: 0, -ENOMEM
 */
int gpu_round_new(struct gpu *gpu, const struct gpu_trial *trial, const struct pci_tree *tree,
		  const char *bus, struct gpu_round **ret)
{
	struct gpu_round *round = calloc(1, sizeof(*round));

	if (!round) {
		return err_origin(-ENOMEM);
	}
	round->gpu = gpu;
	round->tree = *tree;
	round->address = trial->address;
	round->size = trial->size;
	round->fd = trial->fd;
	snprintf(round->bus, sizeof(round->bus), "%s", bus);
	*ret = round;
	return 0;
}

/* See gpu_round.h. */
void gpu_round_add(struct gpu_round *round, const struct rdma_device *d)
{
	struct gpu_round_result *result = &round->results[round->n];
	int r = trial_new(round, d, &round->trials[round->n]);

	result->index = d->index;
	memcpy(result->device, d->name, sizeof(result->device));
	memcpy(round->pci[round->n], d->pci, sizeof(d->pci));
	if (r < 0) {
		result->untried = true;
		snprintf(result->refusal, sizeof(result->refusal), "it cannot be opened again: %s",
			 strerror(-r));
	}
	round->n++;
}

/* See gpu_round.h. */
void gpu_round_run(struct gpu_round *round, unsigned int ms, void (*done)(void *arg), void *arg)
{
	round->ms = ms;
	round->done = done;
	round->arg = arg;
	gpu_task_begin(round->gpu, &round->task, round_back);
	if (thread_start(&round->thread, "gpu-round", THREAD_ANY_CPU, round_main, round) == 0) {
		return;
	}
	for (uint32_t i = 0; i < round->n; i++) {
		round->results[i].untried = true;
		snprintf(round->results[i].refusal, sizeof(round->results[i].refusal),
			 "the daemon cannot start a thread");
	}
	gpu_task_end(round->gpu, &round->task);
}

/* See gpu_round.h. */
uint32_t gpu_round_results(const struct gpu_round *round, const struct gpu_round_result **ret)
{
	if (ret) {
		*ret = round->results;
	}
	return round->n;
}

/* See gpu_round.h. */
struct gpu_round *gpu_round_free(struct gpu_round *round)
{
	for (uint32_t i = 0; round && i < round->n; i++) {
		if (round->trials[i]) {
			trial_free(round->trials[i]);
		}
	}
	free(round);
	return NULL;
}
