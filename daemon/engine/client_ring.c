/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Client ring: see client_ring.h
 *
 * Thread: progress      Owns: nothing      Locks: none
 */
#include "engine/client_ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/comm.h"
#include "engine/gate.h"
#include "engine/engine_impl.h"
#include "engine/progress.h"

#define RING_BATCH 64

void session_corrupt(struct engine_session *s, const char *reason)
{
	if (!s->corrupt) {
		s->corrupt = true;
		s->reason = reason;
		progress_tell(s->progress, &s->corrupt_msg);
	}
}

void client_ring_take(struct engine_session *s, const struct shm_desc *d)
{
	struct engine_handle *h;

	h = d->comm > 0 && d->comm <= LIMIT_SESSION_COMMS ? &s->handles[d->comm] : NULL;
	if (!h || !h->comm) {
		client_ring_complete(s, NULL, d->ticket, d->generation,
				     h && h->failed ? h->failed : STATUS_NOT_FOUND, 0);
		return;
	}
	comm_post(h->comm, h->local, d);
}

void client_ring_look(struct engine_session *s)
{
	s->waiting = ring_waiting(&s->ring);
}

/* Those removals for which the ring is far enough; @all: all. */
static void fade(struct engine_session *s, bool all)
{
	list_for_each_safe (l, &s->fading) {
		struct engine_region *r = container_of(l, struct engine_region, fading);

		/* A client may also take back what it said was in the ring. */
		if (all || (int32_t)(s->ring.head - r->after) >= 0 || ring_waiting(&s->ring) == 0) {
			list_remove(&r->fading);
			engine_region_unhold(r);
		}
	}
}

void client_ring_give_up(struct engine_session *s)
{
	fade(s, true);
}

static int take_seen(struct engine_session *s)
{
	struct shm_desc batch[RING_BATCH];
	int n;

	if (s->waiting == 0 || s->corrupt || s->removing) {
		return 0;
	}
	n = ring_pop(&s->ring, batch, MIN(s->waiting, RING_BATCH));
	if (n < 0) {
		session_corrupt(s, "the submission ring's tail is impossible");
		return 0;
	}
	for (int i = 0; i < n; i++) {
		if (batch[i].ticket >= LIMIT_TICKETS) {
			session_corrupt(s, "a descriptor's ticket is out of range");
			return i;
		}
		if (!gate_hold(s, &batch[i])) {
			client_ring_take(s, &batch[i]);
		}
	}
	return n;
}

int client_ring_poll(struct engine_session *s)
{
	int n = take_seen(s);

	if (!list_empty(&s->fading)) {
		fade(s, s->corrupt || s->removing);
	}
	return n;
}

void client_ring_complete(struct engine_session *s, struct comm_view *view, uint32_t ticket,
			  uint32_t generation, enum status status, uint64_t bytes)
{
	struct shm_cell *cell = &s->cells[ticket];

	cell->status = status;
	cell->bytes = bytes;
	/* release: pairs with the client's acquire load of generation */
	atomic_store_explicit(&cell->generation, generation, memory_order_release);
	if (s->removing) {
		return; /* nobody waits, and it must not be found in the list when it is freed */
	}
	if (list_empty(&s->dirty)) {
		list_append(&s->progress->dirty, &s->dirty);
		s->told = view;
	} else if (s->told != view) {
		s->told = NULL;
	}
}

/* A system call that announces completions. */
static void count_announcement(struct engine_session *s)
{
	counter_add(&s->progress->view.syscalls, 1);
	counter_add(&s->progress->view.client_wakeups, 1);
	if (s->told) {
		counter_add(&s->told->syscalls, 1);
		counter_add(&s->told->wakeups, 1);
	}
}

/* One increment and at most one wake-up for all completions of a loop. */
void client_ring_flush(struct engine_session *s)
{
	struct shm_header *h = s->ring.shm;

	list_remove(&s->dirty);
	atomic_fetch_add_explicit(&h->completions, 1, memory_order_seq_cst);
	/* seq_cst on both sides: a client that counted itself in sees the new value or is seen here
	 */
	if (atomic_load_explicit(&h->waiters, memory_order_seq_cst) != 0) {
		syscall(SYS_futex, &h->completions, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		count_announcement(s);
	}
	if (atomic_load_explicit(&h->want_event, memory_order_seq_cst) != 0) {
		uint64_t one = 1;

		/* Fails only when the counter is full: then it is readable anyway. */
		(void)!write(s->event, &one, sizeof(one));
		count_announcement(s);
	}
}

/* For those that look for memory which nobody needs. relaxed: a hint (room.c) */
static void region_used(struct engine_region *r)
{
	atomic_store_explicit(&r->pin.used, r->session->progress->now, memory_order_relaxed);
}

bool client_ring_resolve(struct engine_session *s, uint32_t id, uint64_t off, uint64_t size,
			 uint8_t **ret_ptr, struct engine_region **ret_region)
{
	struct engine_region *r;

	if (id == 0) {
		*ret_ptr = NULL;
		*ret_region = NULL;
		return size == 0;
	}
	if (id > LIMIT_SESSION_BUFFERS) {
		return false;
	}
	r = s->regions[id];
	if (!r || r->removing || off > r->size || size > r->size - off) {
		return false;
	}
	r->users++;
	s->regions_in_use++;
	region_used(r);
	if (r->staged) {
		engine_rdma_want(s->progress, r);
	}
	*ret_ptr = r->base + off;
	*ret_region = r;
	return true;
}

struct engine_region *engine_region_hold(struct engine_session *s, uint32_t id)
{
	struct engine_region *r = id > 0 && id <= LIMIT_SESSION_BUFFERS ? s->regions[id] : NULL;

	if (r) {
		r->held++;
	}
	return r;
}

static void region_remove_now(struct engine_region *r)
{
	struct engine_session *s = r->session;

	if (s->regions[r->id] == r) {
		s->regions[r->id] = NULL;
	}
	r->remove_due = false;
	r->removing = true;
	if (r->users == 0) {
		engine_rdma_unuse(s->progress, r);
		progress_tell(s->progress, &r->msg);
	}
}

void engine_region_unhold(struct engine_region *r)
{
	if (r && --r->held == 0 && r->remove_due) {
		region_remove_now(r);
	}
}

void engine_region_remove_soon(struct engine_region *r)
{
	struct engine_session *s = r->session;
	bool last = s->corrupt || s->removing || s->progress->stop;
	uint32_t waiting = last ? 0 : ring_waiting(&s->ring);

	if (waiting) {
		/* A client that lies about its tail is found out before that. */
		r->after = s->ring.head + MIN(waiting, s->ring.mask + 1);
		r->held++;
		list_append(&s->fading, &r->fading);
	}
	if (r->held) {
		r->remove_due = true; /* its number is not another's as long */
	} else {
		region_remove_now(r);
	}
}

void engine_region_release(struct engine_region *r)
{
	struct engine_session *s;

	if (!r) {
		return;
	}
	s = r->session;
	region_used(r);
	r->users--;
	s->regions_in_use--;
	if (r->removing && r->users == 0) {
		engine_rdma_unuse(s->progress, r);
		progress_tell(s->progress, &r->msg);
	}
	if (s->remove_msg && s->regions_in_use == 0) {
		struct mailbox_msg *msg = s->remove_msg;

		s->remove_msg = NULL;
		engine_rdma_unuse_all(s);
		progress_tell(s->progress, msg);
	}
}
