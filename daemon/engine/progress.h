/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Progress: the thread that owns operations and connections
 *
 * The loop: mailbox, rings of the clients, runnable steps, transport, completions; when nothing
 * moved it yields for `spin_us` and then sleeps on mailbox, bells and transport together.
 *
 * Thread: progress (but for progress_new/free)      Owns: transport, lists below      Locks: none
 */
#ifndef ROCECOMM_ENGINE_PROGRESS_H
#define ROCECOMM_ENGINE_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/mailbox.h"
#include "gpu/gpu.h"
#include "telemetry/counters.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/thread.h"

struct workers;

#define PROGRESS_BUCKETS 256

struct progress {
	struct engine_options options;
	struct mailbox inbox;	/* control -> here */
	struct mailbox *outbox; /* here -> control */
	struct transport *transport;
	struct workers *workers;   /* NULL: none */
	struct gpu_channel copies; /* jobs of GPUs come back */
	uint32_t copying;	   /* that are not back */
	struct verbs *verbs;	   /* NULL: no RDMA */
	bool rdma_only;		   /* no message may go by TCP */
	uint8_t *gauge;		   /* registered memory to measure with (gauge.h); NULL: none */
	bool notes_due;		   /* control has not heard all of rails */
	int epoll;
	bool stop;
	bool rescan; /* credits came back: look at blocked messages of all operations */

	struct list sessions; /* engine_session.link */
	struct list dirty;    /* engine_session.dirty: completions to announce */
	struct list comms;    /* engine_comm.link */
	struct list *walk;    /* the next one of a comm_walk() */
	struct list peers;    /* engine_peer.link */
	struct list runnable; /* op_run.link: a step is ready */
	struct list gated;    /* engine_handle.gated: a gate is waited for */
	uint64_t gate_since;  /* ns: when one was last added or opened */
	struct engine_comm *buckets[PROGRESS_BUCKETS];

	uint64_t now; /* ns, refreshed once a loop */
	struct clock_source
		clock;	      /* that, for the verbs backend: reading it may be a system call */
	unsigned int looks;   /* in vain, before the CPU is given away */
	unsigned int silent;  /* turns in which rails brought something, and sockets nothing */
	unsigned int skipped; /* turns without a look at sockets */
	uint64_t next_check;
	uint64_t far_bytes; /* farcopy_threshold() */
	uint32_t busy;	    /* operations posted and not finished, over all communicators */
	bool answered;	    /* clients were told of completions in this turn */
	struct thread_view view;
	struct transport_stats told; /* what of the transport's numbers is in view */
	struct verbs_stats verbs_told;
	struct thread thread;
};

int progress_new(const struct engine_options *options, struct mailbox *outbox,
		 struct progress **ret);
struct progress *progress_free(struct progress *p);
/* Control: starts the thread, and workers beside it. Return: as thread_start(). */
int progress_start(struct progress *p);
/* Control: waits for the end of all of them, after p->stop. */
void progress_join(struct progress *p);

/* Events run on the control thread with the engine as context (engine.c). */
void engine_tell_comm_failed(void *engine, void *comm_user, const struct engine_failure *failure);
void engine_tell_session_corrupt(void *engine, void *session_user, const char *reason);
void engine_tell_peer_down(void *engine, void *peer_user, const char *what, int error,
			   const char *reason);
void engine_tell_rail(void *engine, void *peer_user, uint32_t rail, enum verbs_rail_state state,
		      const char *text);

/* Sends an event to control. @msg: see mailbox.h on ownership. */
void progress_tell(struct progress *p, struct mailbox_msg *msg);

#endif
