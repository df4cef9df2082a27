/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Thread: implementation
 *
 * Thread: any      Owns: see thread.h      Locks: none
 */
#include "util/thread.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>

#include "proto/base.h"

static void *trampoline(void *arg)
{
	struct thread *t = arg;

	t->fn(t->arg);
	return NULL;
}

/* Allocated by size: a machine may have more CPUs than a cpu_set_t. */
static int attr_pin(pthread_attr_t *attr, int cpu)
{
	size_t ncpu = (size_t)cpu + 1;
	size_t size = CPU_ALLOC_SIZE(ncpu);
	cpu_set_t *set = CPU_ALLOC(ncpu);
	int r;

	if (!set) {
		return err_origin(-ENOMEM);
	}
	CPU_ZERO_S(size, set);
	CPU_SET_S((size_t)cpu, size, set);
	r = pthread_attr_setaffinity_np(attr, size, set);
	CPU_FREE(set);
	if (r == EINVAL) {
		return THREAD_E_CPU;
	}
	return r != 0 ? err_origin(-r) : 0;
}

/* See thread.h. */
int thread_start(struct thread *t, const char *name, int cpu, void (*fn)(void *arg), void *arg)
{
	sigset_t all, saved;
	pthread_attr_t attr;
	char short_name[16];
	int r;

	r = pthread_attr_init(&attr);
	if (r != 0) {
		return err_origin(-r);
	}
	if (cpu >= 0) {
		r = attr_pin(&attr, cpu);
		if (r != 0) {
			pthread_attr_destroy(&attr);
			return err_trace(r);
		}
	}
	t->fn = fn;
	t->arg = arg;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	r = pthread_create(&t->id, &attr, trampoline, t);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	pthread_attr_destroy(&attr);
	if (r == EINVAL && cpu >= 0) {
		return THREAD_E_CPU;
	}
	if (r != 0) {
		return err_origin(-r);
	}
	t->started = true;
	snprintf(short_name, sizeof(short_name), "%s", name);
	pthread_setname_np(t->id, short_name);
	return 0;
}

/* See thread.h. A kernel that knows more CPUs than the set holds says EINVAL. */
unsigned int thread_cpus(void)
{
	for (size_t ncpu = CPU_SETSIZE; ncpu <= 64 * CPU_SETSIZE; ncpu *= 2) {
		size_t size = CPU_ALLOC_SIZE(ncpu);
		cpu_set_t *set = CPU_ALLOC(ncpu);
		int n = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;

		CPU_FREE(set);
		if (n > 0) {
			return (unsigned int)n;
		}
	}
	return 1;
}

/* See thread.h. */
void thread_join(struct thread *t)
{
	if (t->started) {
		pthread_join(t->id, NULL);
		t->started = false;
	}
}
