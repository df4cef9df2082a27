/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Registrar: threads that register memory with devices and give registrations back
 *
 * Both pin or release every page of the memory: tens of milliseconds a GiB at best, seconds for
 * what a trainer brings. The control thread hands over a job and hears of it when it is done;
 * meanwhile it serves everybody else. One of the threads does nothing but small jobs, so that these
 * never wait for large ones, however many there are.
 *
 * A job is embedded in what it is for. Whoever hands jobs over sees to it that no two of the same
 * memory are under way, and that the devices named stay open until the job is back.
 *
 * Thread: control, but for the threads of its own      Owns: its threads
 * Locks: lock: the two queues and `stop`; nothing else is taken while it is held
 */
#ifndef ROCECOMM_ENGINE_REGISTRAR_H
#define ROCECOMM_ENGINE_REGISTRAR_H

#include <stdint.h>

#include "engine/mailbox.h"
#include "topo/rdma_mem.h"
#include "util/list.h"

#define REGISTRAR_THREADS 4
#define REGISTRAR_SMALL (64u << 20) /* bytes up to which a job is a small one */

struct registrar;

struct registrar_job {
	struct list link;	/* the registrar's */
	struct mailbox_msg msg; /* goes to the outbox when it is done; `run` is the caller's */
	struct rdma_mem *mem;	/* nobody else changes it meanwhile */
	struct rdma *list;
	uint32_t drop, add; /* devices, by bits of their indexes: first these, then those */
};

/* @outbox: borrowed. Threads are started. Return: 0, negative errno. */
int registrar_new(struct mailbox *outbox, struct registrar **ret);
/* Never blocks and never fails. After registrar_stop() it does the job itself. */
void registrar_push(struct registrar *r, struct registrar_job *job);
/*
 * Ends the threads, after the jobs that they have. Of what nobody has begun nothing is registered
 * any more. All jobs are in the outbox then.
 */
void registrar_stop(struct registrar *r);
/* It was stopped. NULL allowed. Return: NULL. */
struct registrar *registrar_free(struct registrar *r);

#endif
