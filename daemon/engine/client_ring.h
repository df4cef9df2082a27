/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Client ring: a session as the progress thread sees it
 *
 * Descriptors are copied once out of the ring, then validated; nothing is read twice from memory
 * that the client can write. Buffers are named by id and offset and resolved here, once, into an
 * address and a reference on the region, which the operation holds until no transport can touch
 * the memory any more.
 *
 * Thread: progress      Owns: region slots      Locks: none      See: PROTOCOL.md §5, §6
 */
#ifndef ROCECOMM_ENGINE_CLIENT_RING_H
#define ROCECOMM_ENGINE_CLIENT_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/mailbox.h"
#include "engine/pin.h"
#include "proto/ring.h"
#include "util/list.h"

struct progress;
struct engine_comm;

/* A registered buffer; allocated by control, freed there when its removal is answered. */
struct engine_region {
	struct mailbox_msg msg;
	struct list all;       /* engine.regions; control's */
	struct list mine;      /* engine_session.registered */
	struct pin pin;	       /* control's, but for .mem when it is told; engine NULL: none */
	struct region *region; /* the reference is control's business */
	uint8_t *base;
	struct gpu_device *gpu; /* NULL: memory of the host */
	uint64_t size;
	uint32_t id;
	uint32_t users;
	uint32_t held;	 /* by descriptors that wait for their gates, or in the ring */
	bool remove_due; /* when these are taken */
	bool removing;
	bool staged;	 /* not registered for want of room: asks for it when it is used */
	bool wanted;	 /* `want` is under way, or not answered yet */
	bool leaving;	 /* control's: it has asked for the removal */
	bool knows_out;	 /* control's: `staged` says so, or will */
	uint64_t ask_at; /* ns: not before */
	struct mailbox_msg want;
	struct list fading; /* engine_session.fading */
	uint32_t after;	    /* there: what is in the ring before may name it */
	struct engine_session *session;
	engine_done_fn done;
	void *arg;
	engine_done_fn ready; /* control's: NULL: nobody waits */
	void *ready_arg;
	void (*gone)(struct engine *e, struct engine_region *r); /* control's */
};

/* A session's handle of a communicator. */
struct engine_handle {
	struct engine_comm *comm;	/* NULL: free */
	uint32_t local;			/* which of its local ranks this is */
	enum status failed;		/* free: how the last one that it named had failed, or 0 */
	struct engine_session *session; /* while descriptors wait */
	struct list gated;		/* progress.gated, while descriptors wait (gate.h) */
	uint32_t first, last;		/* of those: ticket + 1; first 0: none waits */
};

struct engine_session {
	struct list link;
	struct list dirty;
	struct comm_view *told; /* whose completions wait to be announced; NULL: of several */
	struct progress *progress;
	struct ring_consumer ring;
	uint32_t waiting; /* descriptors seen before the mailbox was last run */
	struct shm_cell *cells;
	_Atomic uint32_t *gates; /* [LIMIT_TICKETS]; NULL: the page has none */
	struct gate_hold *holds; /* [LIMIT_TICKETS], address space until it is used */
	int bell;
	int event;
	bool corrupt;
	bool removing;
	bool leaving;		 /* control's: it has asked for the removal */
	uint32_t regions_in_use; /* sum of users */
	struct quota *pinned;	 /* control's: of `tenant`; NULL: none */
	const char *tenant;
	struct list registered;		/* engine_region.mine: known to the devices */
	struct list fading;		/* engine_region.fading: removed once the ring is so far */
	struct mailbox_msg *remove_msg; /* waits until no operation uses its memory */
	uint32_t regions_left;		/* control's: that devices still have, at the end */
	engine_done_fn done;		/* then */
	void *arg;
	void *user;
	const char *reason; /* of corruption */
	struct mailbox_msg corrupt_msg;

	struct engine_region **regions; /* [LIMIT_SESSION_BUFFERS + 1] */
	struct engine_handle *handles;	/* [LIMIT_SESSION_COMMS + 1] */
};

/*
 * A descriptor may name a buffer or communicator of which the client has just been told, so it must
 * not overtake the mailbox: look at the ring, run the mailbox, then take what was seen.
 */
/* Takes a descriptor whose gate is open, or that has none. Its ticket is in range. */
void client_ring_take(struct engine_session *s, const struct shm_desc *d);
void session_corrupt(struct engine_session *s, const char *reason);
void client_ring_look(struct engine_session *s);
/* Takes descriptors that were seen; bounded work. Return: how many. */
int client_ring_poll(struct engine_session *s);
/*
 * Stores a result for the client; announced by client_ring_flush() at the end of the loop.
 * @view: of the communicator, NULL: of none
 */
void client_ring_complete(struct engine_session *s, struct comm_view *view, uint32_t ticket,
			  uint32_t generation, enum status status, uint64_t bytes);
void client_ring_flush(struct engine_session *s);

/*
 * Resolves (id, off, size) and takes a use of the region. @id 0 with @size 0 yields NULLs.
 * Return: true, or false when it is no memory of this session.
 */
bool client_ring_resolve(struct engine_session *s, uint32_t id, uint64_t off, uint64_t size,
			 uint8_t **ret_ptr, struct engine_region **ret_region);
/* Gives a use back; NULL is allowed. */
void engine_region_release(struct engine_region *r);
/* A descriptor that waits names it: it is found until that is taken. NULL: there is none. */
struct engine_region *engine_region_hold(struct engine_session *s, uint32_t id);
void engine_region_unhold(struct engine_region *r);
/*
 * Its client has given it back: when what it has posted before is taken, nothing finds it any more,
 * and it goes after the last use. r->msg is set.
 */
void engine_region_remove_soon(struct engine_region *r);
/* No descriptor of the ring is waited for any more: none will be taken. */
void client_ring_give_up(struct engine_session *s);

#endif
