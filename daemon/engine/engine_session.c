/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine: sessions and their regions, added and given back
 *
 * Thread: control, but for the functions named on_*, which the progress thread runs
 * Owns: sessions, regions      Locks: none
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "engine/client_ring.h"
#include "engine/engine_impl.h"
#include "engine/gate.h"
#include "engine/progress.h"
#include "gpu/gpu.h"

/* ---- sessions ----------------------------------------------------------------------------- */

static void session_free(struct engine_session *s)
{
	free(s->regions);
	gate_session_deinit(s);
	free(s->handles);
	free(s);
}

static void session_corrupt_run(void *ctx, struct mailbox_msg *msg)
{
	struct engine_session *s = container_of(msg, struct engine_session, corrupt_msg);

	engine_tell_session_corrupt(ctx, s->user, s->reason);
}

static void on_session_add(struct progress *p, struct hand *h)
{
	struct engine_session *s = h->object;
	/* Edge triggered: the bell is never read, every ring of it is an edge. */
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};

	if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, s->bell, &ev) < 0) {
		s->corrupt = true;
		s->reason = "its bell cannot be watched";
		progress_tell(p, &s->corrupt_msg);
	}
	list_append(&p->sessions, &s->link);
	ring_wake(&s->ring);
	hand_return(p, h);
}

int engine_session_add(struct engine *e, void *page, int bell, int event, void *user,
		       struct engine_session **ret)
{
	struct engine_session *s = calloc(1, sizeof(*s));
	struct hand *h = hand_new(e, on_session_add, s, NULL, NULL);

	if (!s || !h) {
		free(s);
		free(h);
		return err_origin(-ENOMEM);
	}
	s->regions = calloc(LIMIT_SESSION_BUFFERS + 1, sizeof(struct engine_region *));
	s->handles = calloc(LIMIT_SESSION_COMMS + 1, sizeof(*s->handles));
	if (!s->regions || !s->handles || gate_session_init(s, page) < 0) {
		session_free(s);
		free(h);
		return err_origin(-ENOMEM);
	}
	s->progress = e->progress;
	s->bell = bell;
	s->event = event;
	s->user = user;
	s->cells = shm_cells(page);
	s->corrupt_msg.run = session_corrupt_run;
	list_init(&s->link);
	list_init(&s->dirty);
	list_init(&s->registered);
	list_init(&s->fading);
	ring_consumer_init(&s->ring, page);
	hand_go(h);
	*ret = s;
	return 0;
}

void engine_session_quota(struct engine_session *s, struct quota *quota, const char *tenant)
{
	s->pinned = quota;
	s->tenant = tenant;
}

static void on_session_remove(struct progress *p, struct hand *h)
{
	struct engine_session *s = h->object;

	s->removing = true;
	list_remove(&s->link);
	list_remove(&s->dirty);
	gate_forget(s);
	client_ring_give_up(s);
	epoll_ctl(p->epoll, EPOLL_CTL_DEL, s->bell, NULL);
	if (s->regions_in_use == 0) {
		engine_rdma_unuse_all(s);
		hand_return(p, h);
		return;
	}
	/* A failed operation of a communicator that lives on still has its memory on a stream. */
	s->remove_msg = hand_keep(h);
}

/* One of its regions less that devices have; or one more reason to keep it is over. */
static void session_less(struct engine_session *s)
{
	engine_done_fn done = s->done;
	void *arg = s->arg;

	if (--s->regions_left == 0) {
		session_free(s);
		if (done) {
			done(arg);
		}
	}
}

static void session_region_gone(struct engine *e, struct engine_region *r)
{
	struct engine_session *s = r->session;

	region_unref(r->region);
	free(r);
	session_less(s);
}

/* Buffers that the client had not given back go with its session. */
static void end_session_remove(struct hand *h)
{
	struct engine_session *s = h->object;

	s->done = h->done;
	s->arg = h->arg;
	h->done = NULL;
	s->regions_left = 1; /* until all are under way */
	for (uint32_t id = 1; id <= LIMIT_SESSION_BUFFERS; id++) {
		if (s->regions[id]) {
			s->regions_left++;
			engine_rdma_unregister(h->engine, s->regions[id], session_region_gone);
		}
	}
	session_less(s);
}

void engine_session_remove(struct engine *e, struct engine_session *s, engine_done_fn done,
			   void *arg)
{
	struct hand *h = hand_must(e, on_session_remove, s, done, arg);

	s->leaving = true;
	h->end = end_session_remove;
	hand_go(h);
}

/* ---- regions ------------------------------------------------------------------------------ */

static void region_gone(struct engine *e, struct engine_region *r)
{
	e->hands--;
	region_unref(r->region);
	if (r->done) {
		r->done(r->arg);
	}
	free(r);
}

static void region_back(void *ctx, struct mailbox_msg *msg)
{
	engine_rdma_unregister(ctx, container_of(msg, struct engine_region, msg), region_gone);
}

static void on_region_add(void *ctx, struct mailbox_msg *msg)
{
	struct engine_region *r = container_of(msg, struct engine_region, msg);

	r->session->regions[r->id] = r;
}

int engine_region_add(struct engine *e, struct engine_session *s, uint32_t id,
		      struct region *region)
{
	struct engine_region *r = calloc(1, sizeof(*r));

	assert(id >= 1 && id <= LIMIT_SESSION_BUFFERS);
	if (!r) {
		return err_origin(-ENOMEM);
	}
	r->region = region_ref(region);
	r->base = region->base;
	r->gpu = region->gpu ? gpu_memory_device(region->gpu) : NULL;
	r->size = region->size;
	r->id = id;
	r->session = s;
	r->msg.run = on_region_add;
	list_init(&r->mine);
	mailbox_post(&e->progress->inbox, &r->msg);
	engine_rdma_register(e, r);
	return 0;
}

static void on_region_remove(struct progress *p, struct hand *h)
{
	struct engine_session *s = h->object;
	struct engine_region *r = s->regions[h->value];

	r->done = h->done;
	r->arg = h->arg;
	r->msg.run = region_back;
	h->done = NULL;
	hand_return(p, h);
	engine_region_remove_soon(r);
}

void engine_region_remove(struct engine *e, struct engine_session *s, uint32_t id,
			  engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_region_remove, s, done, arg);

	h->value = id;
	engine_rdma_leaving(e, s, id);
	e->hands++; /* the region itself */
	hand_go(h);
}
