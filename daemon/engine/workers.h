/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Workers: threads that sum and copy large data beside the progress thread
 *
 * One queue of slices with one producer, the progress thread, and many takers: the workers and,
 * when it has nothing else to do, the progress thread. A taker claims the oldest slice with one
 * compare-and-swap; so a worker that the system has put aside delays the slice it holds and no
 * other. A finished slice stays in its place until the progress thread pops it, in any order.
 * Everything is allocated with the pool; when the queue is full the progress thread does the slice
 * itself.
 *
 * A worker without work yields for a while and then sleeps on a futex of its own. It is woken only
 * if it sleeps, and only as many are as there are slices that no waking one will take. Finishing a
 * slice, it writes the bell only if the progress thread has announced that it sleeps.
 *
 * Thread: as each function says      Owns: threads, queue, stages      Locks: none
 */
#ifndef ROCECOMM_ENGINE_WORKERS_H
#define ROCECOMM_ENGINE_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/slice.h"
#include "telemetry/counters.h"

#define WORKERS_MAX 16
#define WORKERS_QUEUE 64  /* slices handed out and not popped */
#define WORKERS_STAGES 32 /* messages that wait for arithmetic */

struct workers;

struct workers_options {
	unsigned int threads; /* 1 .. WORKERS_MAX */
	uint32_t spin_us;     /* yields this long before it sleeps */
	size_t stage;	      /* bytes of a stage */
	int bell;	      /* eventfd of the progress thread; borrowed */
	/* System calls that wake workers are added to it by whoever pushes; NULL: nobody counts. */
	_Atomic uint64_t *syscalls;
	void (*run)(struct slice *s);
};

/* How many threads suit a machine with @cpus CPUs for this process. */
unsigned int workers_suit(unsigned int cpus);

/* Control thread. */
int workers_new(const struct workers_options *options, struct workers **ret);
struct workers *workers_free(struct workers *w);
int workers_start(struct workers *w);
/* Ends the threads. The queue is empty: the progress thread has seen to that. */
void workers_stop(struct workers *w);

/* Any thread. @index: NULL comes back from the number of threads on. */
const struct thread_view *workers_view(const struct workers *w, unsigned int index);

/* Progress thread. */

/* Hands a slice out. Return: false if fewer than @spare places would be left. */
bool workers_push(struct workers *w, const struct slice *s, unsigned int spare);
/* A slice that is done, in no order. Return: false if there is none. */
bool workers_pop(struct workers *w, struct slice *ret);
/*
 * Does a slice that nobody has taken and no worker is about to take: those that look for work leave
 * the caller to what only he can do. Return: false if there is none.
 */
bool workers_help(struct workers *w, struct slice_moved *ret);
/* Slices that are handed out and not popped. */
unsigned int workers_out(const struct workers *w);
/* Announces sleep: from now on a finished slice rings. Return: false if there is one already. */
bool workers_arm(struct workers *w);
void workers_disarm(struct workers *w);

/* Memory for one message; NULL: all are in use. The one used last comes first: it is in cache. */
uint8_t *workers_stage_take(struct workers *w);
void workers_stage_put(struct workers *w, uint8_t *stage);
/* All of it, for devices that are to write there. */
void workers_stages(const struct workers *w, uint8_t **ret_base, size_t *ret_size);

#endif
