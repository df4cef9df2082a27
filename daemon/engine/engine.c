/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine: hands objects of the control thread to the progress thread and back
 *
 * Thread: control, but for the functions named on_*, which the progress thread runs
 * Owns: the hands in flight      Locks: none
 */
#include "engine/engine_impl.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/client_ring.h"
#include "engine/comm.h"
#include "engine/conn.h"
#include "engine/gauge.h"
#include "engine/gate.h"
#include "engine/progress.h"
#include "engine/workers.h"

static void hand_back(void *ctx, struct mailbox_msg *msg)
{
	struct hand *h = container_of(msg, struct hand, msg);

	if (h->end) {
		h->end(h);
	}
	if (h->done) {
		h->done(h->arg);
	}
	h->engine->hands--;
	free(h);
}

struct mailbox_msg *hand_keep(struct hand *h)
{
	h->msg.run = hand_back;
	return &h->msg;
}

void hand_return(struct progress *p, struct hand *h)
{
	progress_tell(p, hand_keep(h));
}

static void hand_run(void *ctx, struct mailbox_msg *msg)
{
	struct hand *h = container_of(msg, struct hand, msg);

	h->act(ctx, h);
}

struct hand *hand_new(struct engine *e, void (*act)(struct progress *, struct hand *), void *object,
		      engine_done_fn done, void *arg)
{
	struct hand *h = calloc(1, sizeof(*h));

	assert(pthread_equal(e->owner, pthread_self()));
	if (h) {
		h->msg.run = hand_run;
		h->engine = e;
		h->act = act;
		h->object = object;
		h->done = done;
		h->arg = arg;
		h->fd = -1;
	}
	return h;
}

void hand_go(struct hand *h)
{
	h->engine->hands++;
	mailbox_post(&h->engine->progress->inbox, &h->msg);
}

struct hand *hand_must(struct engine *e, void (*act)(struct progress *, struct hand *),
		       void *object, engine_done_fn done, void *arg)
{
	struct hand *h;

	while (!(h = hand_new(e, act, object, done, arg))) {
		usleep(1000);
	}
	return h;
}

/* ---- life --------------------------------------------------------------------------------- */

int engine_new(const struct engine_options *options, const struct engine_events *events, void *arg,
	       struct engine **ret)
{
	struct engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e) {
		return err_origin(-ENOMEM);
	}
	e->inbox.fd = -1;
	e->events = *events;
	e->arg = arg;
	e->owner = pthread_self();
	list_init(&e->regions);
	pins_init(e);
	r = mailbox_init(&e->inbox);
	if (r == 0) {
		r = progress_new(options, &e->inbox, &e->progress);
	}
	if (r < 0) {
		engine_free(e);
		return err_trace(r);
	}
	*ret = e;
	return 0;
}

int engine_start(struct engine *e)
{
	int r = progress_start(e->progress);

	e->running = r == 0;
	return r;
}

static void on_stop(struct progress *p, struct hand *h)
{
	for (struct engine_comm *c = comm_walk(p); c; c = comm_walk_next(p)) {
		comm_fail(c, h->status);
	}
	while (gate_poll(p) > 0) {
		/* Nothing has to wait any more: each time fewer do. */
	}
	list_for_each (l, &p->sessions) {
		struct engine_session *s = container_of(l, struct engine_session, link);

		client_ring_give_up(s);
		atomic_store_explicit(&s->ring.shm->daemon_state, SHM_DAEMON_STOPPING,
				      memory_order_release);
		if (list_empty(&s->dirty)) {
			list_append(&p->dirty, &s->dirty);
			s->told = NULL;
		}
	}
	list_for_each (l, &p->peers) {
		gauge_stop(container_of(l, struct engine_peer, link)->gauge);
	}
	p->stop = true;
	hand_return(p, h);
}

/* The thread is gone: this one now speaks for it, so that what is under way can end. */
static void run_all(struct engine *e)
{
	while (!mailbox_empty(&e->inbox) || !mailbox_empty(&e->progress->inbox)) {
		mailbox_run(&e->inbox, e);
		mailbox_run(&e->progress->inbox, e->progress);
	}
}

void engine_stop(struct engine *e, enum status status)
{
	struct hand *h;

	if (!e->running) {
		return;
	}
	h = hand_must(e, on_stop, NULL, NULL, NULL);
	h->status = status;
	hand_go(h);
	progress_join(e->progress);
	e->running = false;
	if (e->pins.registrar) {
		registrar_stop(e->pins.registrar);
	}
	run_all(e);
}

struct engine *engine_free(struct engine *e)
{
	if (e) {
		assert(!e->running);
		progress_free(e->progress);
		engine_rdma_free(e);
		mailbox_deinit(&e->inbox);
		free(e);
	}
	return NULL;
}

int engine_fd(const struct engine *e)
{
	return e->inbox.fd;
}

void engine_dispatch(struct engine *e)
{
	mailbox_clear(&e->inbox);
	if (e->running) {
		mailbox_run(&e->inbox, e);
	} else {
		run_all(e);
	}
}

const struct thread_view *engine_thread_view(const struct engine *e)
{
	return &e->progress->view;
}

const struct thread_view *engine_worker_view(const struct engine *e, unsigned int index)
{
	return e->progress->workers ? workers_view(e->progress->workers, index) : NULL;
}

void engine_tell_comm_failed(void *ctx, void *comm_user, const struct engine_failure *failure)
{
	struct engine *e = ctx;

	e->events.comm_failed(e->arg, comm_user, failure);
}

void engine_tell_session_corrupt(void *ctx, void *session_user, const char *reason)
{
	struct engine *e = ctx;

	e->events.session_corrupt(e->arg, session_user, reason);
}

void engine_tell_peer_down(void *ctx, void *peer_user, const char *what, int error,
			   const char *reason)
{
	struct engine *e = ctx;

	e->events.peer_down(e->arg, peer_user, what, error, reason);
}

void engine_tell_rail(void *ctx, void *peer_user, uint32_t rail, enum verbs_rail_state state,
		      const char *text)
{
	struct engine *e = ctx;

	if (e->events.rail) {
		e->events.rail(e->arg, peer_user, rail, state, text);
	}
}

/* ---- peers -------------------------------------------------------------------------------- */

static void on_peer_add(struct progress *p, struct hand *h)
{
	struct engine_peer *peer = h->object;

	list_append(&p->peers, &peer->link);
	hand_return(p, h);
}

int engine_peer_add(struct engine *e, void *user, struct engine_peer **ret)
{
	struct engine_peer *peer;
	struct hand *h;
	int r = conn_new(e->progress, user, &peer);

	if (r < 0) {
		return err_trace(r);
	}
	h = hand_new(e, on_peer_add, peer, NULL, NULL);
	if (!h) {
		conn_free(peer);
		return err_origin(-ENOMEM);
	}
	hand_go(h);
	*ret = peer;
	return 0;
}

static void on_peer_stream(struct progress *p, struct hand *h)
{
	struct engine_peer *peer = h->object;
	int r = 0;

	if (!peer->transport && !peer->down) {
		r = transport_peer_new(p->transport, peer, &peer->transport);
	}
	if (r == 0 && !peer->down) {
		r = transport_peer_add_stream(peer->transport, h->fd, h->value > 0);
		if (r == 0) {
			h->fd = -1;
		}
	}
	h->fd = base_close(h->fd);
	if (r < 0) {
		conn_lose(peer, r, "a data connection cannot be added");
	}
	hand_return(p, h);
}

int engine_peer_stream(struct engine *e, struct engine_peer *peer, int fd, unsigned int index)
{
	struct hand *h = hand_new(e, on_peer_stream, peer, NULL, NULL);

	if (!h) {
		base_close(fd);
		return err_origin(-ENOMEM);
	}
	h->fd = fd;
	h->value = index;
	hand_go(h);
	return 0;
}

static void on_peer_remove(struct progress *p, struct hand *h)
{
	struct engine_peer *peer = h->object;

	conn_shut(peer);
	list_remove(&peer->link);
	hand_return(p, h);
}

static void end_peer_remove(struct hand *h)
{
	conn_free(h->object);
}

void engine_peer_remove(struct engine *e, struct engine_peer *peer, engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_peer_remove, peer, done, arg);

	h->end = end_peer_remove;
	hand_go(h);
}

uint64_t engine_peer_heard(const struct engine_peer *peer)
{
	return atomic_load_explicit(&peer->heard, memory_order_relaxed);
}

/* ---- communicators ------------------------------------------------------------------------ */

static void on_comm_add(struct progress *p, struct hand *h)
{
	struct engine_comm *c = h->object;

	comm_insert(c);
	for (uint32_t l = 0; l < c->nlocal; l++) {
		struct engine_handle *handle = &c->ranks[l].session->handles[c->ranks[l].handle];

		handle->comm = c;
		handle->local = l;
	}
	for (uint32_t i = 0; i < c->nhosts; i++) {
		if (c->params.peers[i] && c->params.peers[i]->down) {
			comm_fail(c, STATUS_PEER_DIED);
		}
	}
	hand_return(p, h);
}

int engine_comm_add(struct engine *e, const struct engine_comm_params *params, engine_done_fn done,
		    void *arg, struct engine_comm **ret)
{
	struct engine_comm *c;
	struct hand *h;
	int r = comm_new(params, e->progress, &c);

	if (r < 0) {
		return err_trace(r);
	}
	h = hand_new(e, on_comm_add, c, done, arg);
	if (!h) {
		comm_free(c);
		return err_origin(-ENOMEM);
	}
	hand_go(h);
	*ret = c;
	return 0;
}

static void on_comm_fail(struct progress *p, struct hand *h)
{
	struct engine_comm *c = h->object;

	c->fail_told = true; /* control knows the cause: no event */
	comm_fail(c, h->status);
	hand_return(p, h);
}

void engine_comm_fail(struct engine *e, struct engine_comm *c, enum status status)
{
	struct hand *h = hand_must(e, on_comm_fail, c, NULL, NULL);

	h->status = status;
	hand_go(h);
}

static void on_comm_detach(struct progress *p, struct hand *h)
{
	struct engine_comm *c = h->object;

	comm_detach(c, (uint32_t)h->value);
	hand_return(p, h);
}

void engine_comm_detach(struct engine *e, struct engine_comm *c, uint32_t local,
			engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_comm_detach, c, done, arg);

	h->value = local;
	hand_go(h);
}

static void on_comm_remove(struct progress *p, struct hand *h)
{
	struct engine_comm *c = h->object;

	for (uint32_t l = 0; l < c->nlocal; l++) {
		if (!c->ranks[l].detached) {
			comm_detach(c, l);
		}
	}
	comm_fail(c, STATUS_ABORTED);
	c->removing = true;
	c->remove_msg = hand_keep(h);
	comm_try_remove(c);
}

static void end_comm_remove(struct hand *h)
{
	comm_free(h->object);
}

void engine_comm_remove(struct engine *e, struct engine_comm *c, engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_comm_remove, c, done, arg);

	h->end = end_comm_remove;
	hand_go(h);
}
