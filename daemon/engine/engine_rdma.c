/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine, RDMA: implementation
 *
 * Thread: control, but for the functions named on_* and engine_rdma_unuse*(), which the progress
 * thread runs      Owns: see engine_rdma.h      Locks: none
 */
#include "engine/engine_rdma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "engine/client_ring.h"
#include "engine/engine_impl.h"
#include "engine/gauge.h"
#include "engine/progress.h"
#include "engine/relay.h"
#include "engine/room.h"
#include "engine/workers.h"
#include "topo/rdma_mem.h"

/* ---- regions ------------------------------------------------------------------------------ */

static void on_region_use(struct progress *p, struct hand *h)
{
	struct engine_region *r = h->object;

	if (p->verbs && verbs_mem_add(p->verbs, r->pin.mem) == 0) {
		list_append(&r->session->registered, &r->mine);
		counter_add(&p->view.rdma_registrations, 1);
	}
	r->staged = false;
	r->wanted = false;
	hand_return(p, h);
}

/* It is staged, until it is used after a while. */
static void on_region_out(struct progress *p, struct hand *h)
{
	struct engine_region *r = h->object;

	r->staged = true;
	r->wanted = false;
	r->ask_at = p->now + h->value;
	counter_add(&p->view.rdma_fallbacks, 1);
	hand_return(p, h);
}

static bool is_leaving(const struct engine_region *r)
{
	return r->leaving || r->session->leaving;
}

/* All devices were asked: the progress thread hears of it before the client does. */
static void region_settled(struct pin *pin)
{
	struct engine_region *r = container_of(pin, struct engine_region, pin);
	engine_done_fn ready = r->ready;
	struct hand *h;

	if (is_leaving(r)) {
		return;
	}
	if (pin->out && !r->knows_out) {
		r->knows_out = true;
		h = hand_must(pin->engine, on_region_out, r, NULL, NULL);
		h->value = room_rest_ns(&pin->engine->pins);
		hand_go(h);
	} else if (!pin->out && !pin->told && pin->mem) {
		pin->told = true;
		hand_go(hand_must(pin->engine, on_region_use, r, NULL, NULL));
	}
	r->ready = NULL;
	if (ready) {
		ready(r->ready_arg);
	}
}

static void region_ended(struct pin *pin)
{
	struct engine_region *r = container_of(pin, struct engine_region, pin);

	r->gone(pin->engine, r);
}

/* What an operation uses, or will at once, stays. */
static void on_region_let_go(struct progress *p, struct hand *h)
{
	struct engine_region *r = h->object;

	h->value = r->users == 0 && r->held == 0;
	if (h->value) {
		engine_rdma_unuse(p, r);
		r->staged = true;
		r->ask_at = 0;
		counter_add(&p->view.rdma_evictions, 1);
	}
	hand_return(p, h);
}

static void end_region_let_go(struct hand *h)
{
	struct engine_region *r = h->object;

	r->knows_out = h->value;
	pin_let_go(&r->pin, h->value);
}

/* Hands of a region go before its removal does, so it is still there when they are back. */
static bool region_let_go(struct pin *pin)
{
	struct engine_region *r = container_of(pin, struct engine_region, pin);
	struct hand *h;

	if (is_leaving(r)) {
		return false;
	}
	h = hand_must(pin->engine, on_region_let_go, r, NULL, NULL);
	h->end = end_region_let_go;
	hand_go(h);
	return true;
}

static void region_wanted(void *ctx, struct mailbox_msg *msg)
{
	struct engine_region *r = container_of(msg, struct engine_region, want);

	if (!is_leaving(r)) {
		r->knows_out = false;
		pin_again(&r->pin);
	}
}

void engine_rdma_want(struct progress *p, struct engine_region *r)
{
	if (!r->wanted && p->now >= r->ask_at) {
		r->wanted = true;
		r->want.run = region_wanted;
		progress_tell(p, &r->want);
	}
}

static const struct pin_ops region_ops = {
	.settled = region_settled,
	.ended = region_ended,
	.let_go = region_let_go,
};

void engine_rdma_register(struct engine *e, struct engine_region *r)
{
	list_append(&e->regions, &r->all);
	if (r->base && !r->gpu) {
		r->pin.quota = r->session->pinned;
		r->pin.tenant = r->session->tenant;
		pin_start(e, &r->pin, r->base, r->size, &region_ops);
	}
}

static struct engine_region *find_region(struct engine *e, const struct engine_session *s,
					 uint32_t id)
{
	list_for_each (l, &e->regions) {
		struct engine_region *r = container_of(l, struct engine_region, all);

		if (r->session == s && r->id == id && !r->leaving) {
			return r;
		}
	}
	return NULL;
}

bool engine_region_ready(struct engine *e, struct engine_session *s, uint32_t id,
			 engine_done_fn ready, void *arg)
{
	struct engine_region *r = find_region(e, s, id);

	if (!r || !pin_is_under_way(&r->pin)) {
		return true;
	}
	r->ready = ready;
	r->ready_arg = arg;
	return false;
}

void engine_rdma_leaving(struct engine *e, const struct engine_session *s, uint32_t id)
{
	struct engine_region *r = find_region(e, s, id);

	if (r) {
		r->leaving = true;
	}
}

void engine_rdma_unregister(struct engine *e, struct engine_region *r,
			    void (*gone)(struct engine *e, struct engine_region *r))
{
	list_remove(&r->all);
	r->gone = gone;
	if (r->pin.engine) {
		pin_end(&r->pin);
	} else {
		gone(e, r);
	}
}

void engine_rdma_unuse(struct progress *p, struct engine_region *r)
{
	if (!list_empty(&r->mine)) {
		list_remove(&r->mine);
		verbs_mem_remove(p->verbs, r->pin.mem);
	}
}

void engine_rdma_unuse_all(struct engine_session *s)
{
	list_for_each_safe (l, &s->registered) {
		engine_rdma_unuse(s->progress, container_of(l, struct engine_region, mine));
	}
}

/* ---- start -------------------------------------------------------------------------------- */

static void on_start(struct progress *p, struct hand *h)
{
	struct epoll_event ev = {.events = EPOLLIN};

	p->verbs = h->object;
	p->rdma_only = h->value;
	/* If it cannot be watched it is still polled, while there is work. */
	(void)epoll_ctl(p->epoll, EPOLL_CTL_ADD, verbs_fd(p->verbs), &ev);
	hand_return(p, h);
}

static void on_own_use(struct progress *p, struct hand *h)
{
	(void)verbs_mem_add(p->verbs, h->object);
	hand_return(p, h);
}

static void on_gauge_use(struct progress *p, struct hand *h)
{
	p->gauge = h->object;
	hand_return(p, h);
}

static void own_ended(struct pin *pin)
{
}

static const struct pin_ops own_ops = {.ended = own_ended};

/* Memory of the daemon's own, which is known to the progress thread before any device. */
static void own_start(struct engine *e, struct pin *pin, uint8_t *base, size_t size)
{
	/* Without memory for the table it is staged. */
	if (rdma_mem_new(NULL, base, size, &pin->mem) == 0) {
		pin_start(e, pin, base, size, &own_ops);
		hand_go(hand_must(e, on_own_use, pin->mem, NULL, NULL));
	}
}

static void own_free(struct pin *pin)
{
	if (pin->mem) {
		list_remove(&pin->all);
		pin->mem = rdma_mem_free(pin->mem);
	}
}

/* Without it, measuring goes through copies. */
static void gauge_start(struct engine *e)
{
	void *base = mmap(NULL, GAUGE_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	if (base != MAP_FAILED) {
		madvise(base, GAUGE_MEMORY, MADV_DONTFORK);
		e->gauge.base = base;
		own_start(e, &e->gauge, base, GAUGE_MEMORY);
		hand_go(hand_must(e, on_gauge_use, base, NULL, NULL));
	}
}

void engine_rdma_free(struct engine *e)
{
	own_free(&e->stages);
	own_free(&e->gauge);
	if (e->gauge.base) {
		munmap(e->gauge.base, GAUGE_MEMORY);
	}
	pins_deinit(e);
}

/**
 * engine_rdma_start() - be ready for devices
 * @e:       borrowed
 * @options: borrowed for the call
 *
 * Once, before the first device.
 *
 * Return: 0, -EINVAL for options out of range, or negative errno.
 */
int engine_rdma_start(struct engine *e, const struct engine_rdma_options *options)
{
	struct hand *h = hand_new(e, on_start, NULL, NULL, NULL);
	struct verbs *v = NULL;
	uint8_t *base;
	size_t size;
	int r;

	if (!h) {
		return err_origin(-ENOMEM);
	}
	r = verbs_new(&options->verbs, options->only ? &relay_handler_only : &relay_handler,
		      e->progress, options->clock ? options->clock : &clock_system, &v);
	if (r == 0) {
		r = registrar_new(&e->inbox, &e->pins.registrar);
	}
	if (r < 0) {
		verbs_free(v);
		free(h);
		return err_trace(r);
	}
	e->rdma = options->list;
	e->frame_max = verbs_control_max(v);
	e->tickets = verbs_tickets(v);
	e->pins.bounds = options->bounds;
	e->pins.fixed = verbs_memory(v);
	if (!options->clock) {
		verbs_set_clock(v, &e->progress->clock);
	}
	h->object = v;
	h->value = options->only;
	hand_go(h);
	if (e->progress->workers) {
		workers_stages(e->progress->workers, &base, &size);
		own_start(e, &e->stages, base, size);
	}
	gauge_start(e);
	return 0;
}

/* ---- events of devices (see pin.c for the others) ----------------------------------------- */

struct device_event {
	struct rdma_device *device;
	struct rdma_event event;
};

static void on_device_event(struct progress *p, struct hand *h)
{
	const struct device_event *ev = h->object;

	verbs_device_event(p->verbs, ev->device, &ev->event);
	hand_return(p, h);
}

static void end_free_object(struct hand *h)
{
	free(h->object);
}

void engine_device_event(struct engine *e, struct rdma_device *device,
			 const struct rdma_event *event)
{
	struct device_event *copy = calloc(1, sizeof(*copy));
	struct hand *h;

	if (!copy) {
		return; /* what an event says shows in completions, too, if later */
	}
	copy->device = device;
	copy->event = *event;
	h = hand_must(e, on_device_event, copy, NULL, NULL);
	h->end = end_free_object;
	hand_go(h);
}

/* ---- rails -------------------------------------------------------------------------------- */

static void on_peer_rails(struct progress *p, struct hand *h)
{
	struct engine_peer *peer = h->object;

	peer->relay = h->more;
	if (!peer->down) {
		/* Without memory for it every rail is refused. */
		(void)relay_start(peer->relay);
	}
	hand_return(p, h);
}

/**
 * engine_peer_rails() - from now on a peer may have rails
 * @e:         borrowed; engine_rdma_start() was called
 * @peer:      borrowed; once
 * @name:      of its host, for texts; copied
 * @initiator: exactly one end of each pair is
 *
 * Return: 0, or -ENOMEM.
 */
int engine_peer_rails(struct engine *e, struct engine_peer *peer, const char *name, bool initiator)
{
	struct hand *h = hand_new(e, on_peer_rails, peer, NULL, NULL);
	struct relay *relay;
	int r;

	if (!h) {
		return err_origin(-ENOMEM);
	}
	r = relay_new(peer, name, initiator, e->frame_max, e->tickets, &relay);
	if (r < 0) {
		free(h);
		return err_trace(r);
	}
	h->more = relay;
	hand_go(h);
	return 0;
}

static int rail_act(struct verbs_peer *vp, struct engine_rail *w)
{
	int r = 0;

	if (w->act & ENGINE_RAIL_OPEN) {
		r = verbs_rail_open(vp, w->rail, &w->params, &w->local, w->why, sizeof(w->why));
	}
	if (r == 0 && w->act & ENGINE_RAIL_CONNECT) {
		r = verbs_rail_connect(vp, w->rail, &w->remote, w->why, sizeof(w->why));
	}
	if (r == 0 && w->act & ENGINE_RAIL_MOVE) {
		r = verbs_rail_move(vp, w->rail, &w->params, w->why, sizeof(w->why));
	}
	if (r == 0 && w->act & ENGINE_RAIL_DROP) {
		verbs_rail_drop(vp, w->rail);
	}
	return r;
}

static void on_peer_rail(struct progress *p, struct hand *h)
{
	struct engine_rail *w = h->more;
	struct engine_peer *peer = h->object;

	if (peer->relay && peer->relay->verbs) {
		w->result = rail_act(peer->relay->verbs, w);
	} else {
		w->result = -ENOTCONN;
		snprintf(w->why, sizeof(w->why), "the peer is lost");
	}
	hand_return(p, h);
}

void engine_peer_rail(struct engine *e, struct engine_peer *peer, struct engine_rail *work,
		      engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_peer_rail, peer, done, arg);

	work->why[0] = '\0';
	h->more = work;
	hand_go(h);
}

static void on_peer_look(struct progress *p, struct hand *h)
{
	const struct engine_peer *peer = h->object;
	struct engine_rails_view *view = h->more;

	memset(view, 0, sizeof(*view));
	view->up = !peer->down && relay_takes(peer);
	if (peer->transport) {
		transport_peer_bytes(peer->transport, &view->tcp_sent, &view->tcp_received);
	}
	for (uint32_t i = 0; peer->relay && peer->relay->verbs && i < VERBS_RAILS_MAX; i++) {
		verbs_rail_info(peer->relay->verbs, i, &view->rails[i]);
	}
	hand_return(p, h);
}

void engine_peer_look(struct engine *e, struct engine_peer *peer, struct engine_rails_view *view,
		      engine_done_fn done, void *arg)
{
	struct hand *h = hand_must(e, on_peer_look, peer, done, arg);

	h->more = view;
	hand_go(h);
}
