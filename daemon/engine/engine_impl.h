/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine, inside: what the files that hand objects to the progress thread share
 *
 * Every crossing is a `struct hand`: allocated by control, run by the progress thread, which may
 * keep it until the object is free, then run by control, which calls `done` and frees it.
 *
 * Thread: control, but for `act` and hand_return(), which are the progress thread's
 * Owns: the hands in flight      Locks: none
 */
#ifndef ROCECOMM_ENGINE_ENGINE_IMPL_H
#define ROCECOMM_ENGINE_ENGINE_IMPL_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/mailbox.h"
#include "engine/pin.h"
#include "topo/rdma.h"
#include "util/list.h"

struct progress;

struct engine {
	struct mailbox inbox; /* progress -> here */
	struct progress *progress;
	struct engine_events events;
	void *arg;
	bool running;
	pthread_t owner;
	uint32_t hands; /* on their way */

	struct list regions; /* engine_region.all */
	struct rdma *rdma;   /* borrowed; NULL: regions are not registered */
	struct pins pins;
	struct pin stages; /* those of the workers; base NULL: none, or no RDMA */
	struct pin gauge;  /* what is sent and received to measure; likewise */
	size_t frame_max;  /* what relays carry */
	uint32_t tickets;
};

struct hand {
	struct mailbox_msg msg;
	struct engine *engine;
	void (*act)(struct progress *p, struct hand *h); /* progress thread */
	void (*end)(struct hand *h);			 /* control, before done; or NULL */
	engine_done_fn done;
	void *arg;
	void *object;
	void *more;
	uint64_t value;
	int fd;
	enum status status;
};

/* NULL: no memory. */
struct hand *hand_new(struct engine *e, void (*act)(struct progress *, struct hand *), void *object,
		      engine_done_fn done, void *arg);
/* For what must not fail: tries until the system has 100 bytes again. */
struct hand *hand_must(struct engine *e, void (*act)(struct progress *, struct hand *),
		       void *object, engine_done_fn done, void *arg);
void hand_go(struct hand *h);
/* Progress thread: it is done with later, when the message goes to progress_tell(). */
struct mailbox_msg *hand_keep(struct hand *h);
/* Progress thread: it is done with. */
void hand_return(struct progress *p, struct hand *h);

/* ---- engine_rdma.c ------------------------------------------------------------------------ */

struct engine_region;
struct engine_session;

/* Control: has a region registered, which was just added; what cannot be is staged. */
void engine_rdma_register(struct engine *e, struct engine_region *r);
/* Control: its removal is on the way. */
void engine_rdma_leaving(struct engine *e, const struct engine_session *s, uint32_t id);
/* Control: nothing uses the region any more. @gone: no device has it any more; may come at once. */
void engine_rdma_unregister(struct engine *e, struct engine_region *r,
			    void (*gone)(struct engine *e, struct engine_region *r));
/* Control: what engine_rdma_start() has made, after the progress thread. */
void engine_rdma_free(struct engine *e);
/* Progress: the transport may not use it any more. */
void engine_rdma_unuse(struct progress *p, struct engine_region *r);
/* The same for all of a session. */
void engine_rdma_unuse_all(struct engine_session *s);
/* Progress: a region that is staged for want of room is used; asks for it again. */
void engine_rdma_want(struct progress *p, struct engine_region *r);

#endif
