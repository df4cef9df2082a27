/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Registrar: implementation
 *
 * Thread: see registrar.h      Owns: see registrar.h      Locks: see registrar.h
 */
#include "engine/registrar.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/base.h"
#include "util/thread.h"

struct registrar {
	struct mailbox *outbox;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct list small, large; /* registrar_job.link */
	bool stop;
	struct registrar_thread {
		struct registrar *registrar;
		bool only_small;
		struct thread thread;
	} threads[REGISTRAR_THREADS];
};

static void job_run(struct registrar *r, struct registrar_job *job)
{
	/* Not by the list's count, which control may just be changing. */
	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		if (job->drop & (1u << i)) {
			rdma_mem_drop_device(job->mem, job->list->devices[i]);
		}
	}
	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		if (job->add & (1u << i)) {
			/* What a device does not take is staged; the memory has the reason. */
			(void)rdma_mem_add_device(job->mem, job->list->devices[i]);
		}
	}
	mailbox_post(r->outbox, &job->msg);
}

/* Large ones first, where they may be: there is a thread for the small ones alone. */
static struct registrar_job *job_take(struct registrar *r, bool only_small)
{
	struct list *from = only_small || list_empty(&r->large) ? &r->small : &r->large;
	struct registrar_job *job;

	if (list_empty(from)) {
		return NULL;
	}
	job = container_of(list_first(from), struct registrar_job, link);
	list_remove(&job->link);
	return job;
}

static void registrar_main(void *arg)
{
	struct registrar_thread *t = arg;
	struct registrar *r = t->registrar;
	struct registrar_job *job;

	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		job = job_take(r, t->only_small);
		if (!job) {
			pthread_cond_wait(&r->work, &r->lock);
			continue;
		}
		pthread_mutex_unlock(&r->lock);
		job_run(r, job);
		pthread_mutex_lock(&r->lock);
	}
	pthread_mutex_unlock(&r->lock);
}

/**
 * registrar_new() - start the threads
 * @outbox: borrowed until registrar_stop()
 * @ret:    new object, set on success only
 *
 * Return: 0, or negative errno.
 */
int registrar_new(struct mailbox *outbox, struct registrar **ret)
{
	struct registrar *r = calloc(1, sizeof(*r));
	char name[16];
	int error = 0;

	if (!r) {
		return err_origin(-ENOMEM);
	}
	r->outbox = outbox;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->work, NULL);
	list_init(&r->small);
	list_init(&r->large);
	for (unsigned int i = 0; i < REGISTRAR_THREADS && error == 0; i++) {
		r->threads[i].registrar = r;
		r->threads[i].only_small = i == 0;
		snprintf(name, sizeof(name), "memory-%u", i);
		error = thread_start(&r->threads[i].thread, name, THREAD_ANY_CPU, registrar_main,
				     &r->threads[i]);
	}
	if (error != 0) {
		registrar_stop(r);
		registrar_free(r);
		return err_trace(error);
	}
	*ret = r;
	return 0;
}

/**
 * registrar_push() - have a job done
 * @r:   borrowed
 * @job: borrowed until it is in the outbox
 */
void registrar_push(struct registrar *r, struct registrar_job *job)
{
	bool stopped;

	pthread_mutex_lock(&r->lock);
	stopped = r->stop;
	if (!stopped) {
		list_append(job->mem->size <= REGISTRAR_SMALL ? &r->small : &r->large, &job->link);
		/* Not one: it might be the thread that leaves large jobs alone. */
		pthread_cond_broadcast(&r->work);
	}
	pthread_mutex_unlock(&r->lock);
	if (stopped) {
		job->add = 0;
		job_run(r, job);
	}
}

void registrar_stop(struct registrar *r)
{
	struct registrar_job *job;

	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_broadcast(&r->work);
	pthread_mutex_unlock(&r->lock);
	for (unsigned int i = 0; i < REGISTRAR_THREADS; i++) {
		thread_join(&r->threads[i].thread);
	}
	/* Nobody else is there any more. */
	while ((job = job_take(r, false)) != NULL) {
		job->add = 0;
		job_run(r, job);
	}
}

struct registrar *registrar_free(struct registrar *r)
{
	if (r) {
		assert(list_empty(&r->small) && list_empty(&r->large));
		pthread_cond_destroy(&r->work);
		pthread_mutex_destroy(&r->lock);
		free(r);
	}
	return NULL;
}
