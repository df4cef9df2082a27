/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Thread: create, name, pin
 *
 * Signals are the main thread's: every thread from here starts with all of them blocked.
 *
 * Thread: any      Owns: the pthread until thread_join()      Locks: none
 */
#ifndef ROCECOMM_UTIL_THREAD_H
#define ROCECOMM_UTIL_THREAD_H

#include <pthread.h>
#include <stdbool.h>

enum {
	THREAD_E_CPU = 1, /* this CPU does not exist, or is not in the process's set */
};

#define THREAD_ANY_CPU (-1)

struct thread {
	pthread_t id;
	bool started;
	void (*fn)(void *arg);
	void *arg;
};

/**
 * thread_start() - run fn(arg) in a new thread
 * @t:     all zero; stays where it is until joined
 * @name:  for ps and gdb, at most 15 bytes
 * @cpu:   number, or THREAD_ANY_CPU
 *
 * Return: 0, THREAD_E_CPU, negative errno
 */
int thread_start(struct thread *t, const char *name, int cpu, void (*fn)(void *arg), void *arg);
/* How many CPUs the calling thread may run on; at least 1. */
unsigned int thread_cpus(void);
/* Waits for its end. Harmless when it was never started. */
void thread_join(struct thread *t);

#endif
