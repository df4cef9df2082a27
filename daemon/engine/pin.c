/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Pin: implementation, and the devices that come and go
 *
 * Thread: control, but for the functions named on_*, which the progress thread runs
 * Owns: see pin.h      Locks: none
 */
#include "engine/pin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine_impl.h"
#include "engine/engine_rdma.h"
#include "engine/progress.h"
#include "engine/room.h"
#include "util/clock.h"
#include "util/log.h"

/* A device that comes or goes, until all memory has followed. */
struct device_wait {
	struct list link; /* pins.waits */
	struct rdma_device *device;
	struct engine_device *work; /* NULL: it goes */
	uint64_t before;	    /* number of the first pin that is not waited for */
	char *text;		    /* why it goes */
	engine_done_fn done;
	void *arg;
};

static void waits_look(struct engine *e);

static uint32_t device_bit(const struct rdma_device *d)
{
	return 1u << d->index;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* See pin.h. */
uint32_t pin_has(const struct pin *pin)
{
	uint32_t has = 0;

	for (uint32_t i = 0; pin->mem && i < RDMA_DEVICES_MAX; i++) {
		has |= pin->mem->mr[i] ? 1u << i : 0;
	}
	return has;
}

/* See pin.h. */
void pin_put_out(struct pin *pin, bool out)
{
	struct rdma_memory *memory = &pin->engine->rdma->memory;

	if (pin->out != out) {
		pin->out = out;
		memory->staged += out ? 1 : UINT32_MAX;
		memory->staged_bytes += out ? pin->size : -(uint64_t)pin->size;
	}
}

/* It has agreed to go: until it is gone nothing brings it back, for somebody waits for that. */
static bool is_going(const struct pin *pin)
{
	return !pin->told && pin->engine->pins.victim == pin;
}

/* What stays registered. */
static uint32_t pin_keeps(const struct pin *pin)
{
	bool nothing = pin->ending || (pin->out && !pin->told) || is_going(pin);

	return nothing ? 0 : pin->engine->pins.holding;
}

static void pin_over(struct pin *pin)
{
	list_remove(&pin->all);
	if (pin->out) {
		pin_put_out(pin, false);
	}
	room_leave(pin);
	pin->mem = rdma_mem_free(pin->mem);
	pin->ops->ended(pin);
}

/* See pin.h. */
void pin_step(struct pin *pin)
{
	struct pins *pins = &pin->engine->pins;
	uint32_t add, drop;

	if (pin->busy) {
		return; /* pin_back() comes here again */
	}
	pin->tried |= pin->out ? pins->registering : 0;
	add = pin->ending || is_going(pin) ? 0 : pins->registering & ~pin->tried;
	if (add && !pin->mem && rdma_mem_new(NULL, pin->base, pin->size, &pin->mem) < 0) {
		/* Without memory for the table it is staged. */
		pin->tried |= add;
		add = 0;
	}
	if (add && !room_take(pin, add)) {
		add = 0;
	}
	drop = pin_has(pin) & ~pin_keeps(pin);
	if (add || drop) {
		pin->tried |= add;
		pin->busy = true;
		pin->job.mem = pin->mem;
		pin->job.list = pin->engine->rdma;
		pin->job.add = add;
		pin->job.drop = drop;
		registrar_push(pins->registrar, &pin->job);
	} else if (pin->ending) {
		pin_over(pin);
	} else if (list_empty(&pin->wait)) {
		room_settled(pin);
		if (pin->ops->settled) {
			pin->ops->settled(pin);
		}
	}
}

/* Once a device: others will have the same cause, and rocectl links counts them. */
static void pin_tell(const struct pin *pin)
{
	struct engine *e = pin->engine;
	/* What waits for room may still get some. */
	uint32_t refused = pin->job.add & ~pin_has(pin) & ~pin->lacking & e->pins.registering;

	if (refused & ~e->pins.told && pin->mem->reason[0]) {
		e->pins.told |= refused;
		log_warn("%zu KiB of memory go through buffers of the daemon: %s", pin->size / 1024,
			 pin->mem->reason);
	}
}

static void pin_back(void *ctx, struct mailbox_msg *msg)
{
	struct pin *pin = container_of(msg, struct pin, job.msg);
	struct engine *e = ctx;

	pin->busy = false;
	room_back(pin);
	pin_tell(pin);
	room_look(e); /* who waits has what was given back before this one asks for it again */
	pin_step(pin);
	room_look(e);
	waits_look(e);
}

static void pins_step(struct engine *e)
{
	list_for_each_safe (l, &e->pins.all) {
		pin_step(container_of(l, struct pin, all));
	}
}

/* See pin.h. */
void pin_start(struct engine *e, struct pin *pin, void *base, size_t size,
	       const struct pin_ops *ops)
{
	pin->engine = e;
	pin->base = base;
	pin->size = size;
	pin->ops = ops;
	pin->number = e->pins.made++;
	pin->job.msg.run = pin_back;
	list_init(&pin->wait);
	/* relaxed, as all of it: a hint */
	atomic_store_explicit(&pin->used, clock_monotonic(), memory_order_relaxed);
	list_append(&e->pins.all, &pin->all);
	pin_step(pin);
	room_look(e);
}

/* See pin.h. */
void pin_end(struct pin *pin)
{
	struct engine *e = pin->engine;

	pin->ending = true;
	list_remove(&pin->wait);
	pin_step(pin);
	room_look(e);
}

/* See pin.h. */
void pin_let_go(struct pin *pin, bool gone)
{
	struct engine *e = pin->engine;

	if (gone) {
		pin->told = false;
		pin_put_out(pin, true);
		room_given(pin);
		pin_step(pin);
	} else if (e->pins.victim == pin) {
		e->pins.victim = NULL;
	}
	room_look(e);
	waits_look(e);
}

/* See pin.h. */
void pin_again(struct pin *pin)
{
	struct engine *e = pin->engine;

	if (!pin->out || pin->ending) {
		return;
	}
	pin_put_out(pin, false);
	pin->again = true;
	pin->tried = 0;
	pin_step(pin);
	room_look(e);
}

/* See pin.h. */
bool pin_is_under_way(const struct pin *pin)
{
	return pin->engine && (pin->busy || !list_empty(&pin->wait));
}

/* ---- devices ------------------------------------------------------------------------------ */

static struct device_wait *wait_new(struct engine *e, struct rdma_device *d, engine_done_fn done,
				    void *arg)
{
	struct device_wait *w;

	/* As hand_must(). */
	while (!(w = calloc(1, sizeof(*w)))) {
		usleep(1000);
	}
	list_init(&w->link);
	w->device = d;
	w->before = e->pins.made;
	w->done = done;
	w->arg = arg;
	return w;
}

static void wait_free(struct device_wait *w)
{
	free(w->text);
	free(w);
}

/* Has all memory followed? */
static bool wait_is_over(const struct device_wait *w, struct pins *pins)
{
	uint32_t bit = device_bit(w->device);

	list_for_each (l, &pins->all) {
		const struct pin *pin = container_of(l, struct pin, all);

		if (w->work) {
			/* Later ones are told to nobody before the device has them, too. */
			if (pin->number < w->before && !pin->ending && bit & pins->registering &&
			    (!(pin->tried & bit) || (pin->busy && pin->job.add & bit))) {
				return false;
			}
			continue;
		}
		/* While it is busy only what the job leaves alone may be looked at. */
		if (pin->busy ? (pin->job.add | pin->job.drop) & bit
			      : pin->mem && pin->mem->mr[w->device->index]) {
			return false;
		}
	}
	return true;
}

/* Nothing is registered with it from now on, and nothing stays so. */
static void device_leave(struct engine *e, struct device_wait *w)
{
	uint32_t bit = device_bit(w->device);

	w->work = NULL;
	e->pins.registering &= ~bit;
	e->pins.holding &= ~bit;
	e->pins.told &= ~bit;
	e->pins.told_room &= ~bit;
	list_append(&e->pins.waits, &w->link);
	list_for_each (l, &e->pins.all) {
		container_of(l, struct pin, all)->tried &= ~bit;
	}
	pins_step(e);
	room_look(e);
	waits_look(e);
}

static void on_device_add(struct progress *p, struct hand *h)
{
	const struct device_wait *w = h->object;

	w->work->result = verbs_device_add(p->verbs, w->device, w->work->why, sizeof(w->work->why));
	hand_return(p, h);
}

static void end_device_add(struct hand *h)
{
	struct device_wait *w = h->object;

	if (w->work->result < 0) {
		/* Who asked may close it when he hears of it. */
		h->done = NULL;
		device_leave(h->engine, w);
		return;
	}
	wait_free(w);
}

static void wait_over(struct engine *e, struct device_wait *w)
{
	engine_done_fn done = w->done;
	void *arg = w->arg;
	struct hand *h;

	list_remove(&w->link);
	if (w->work) {
		h = hand_must(e, on_device_add, w, done, arg);
		h->end = end_device_add;
		hand_go(h);
		return;
	}
	wait_free(w);
	if (done) {
		done(arg);
	}
}

static struct device_wait *wait_find_over(struct pins *pins)
{
	list_for_each (l, &pins->waits) {
		struct device_wait *w = container_of(l, struct device_wait, link);

		if (wait_is_over(w, pins)) {
			return w;
		}
	}
	return NULL;
}

static void waits_look(struct engine *e)
{
	struct device_wait *w;

	while ((w = wait_find_over(&e->pins)) != NULL) {
		wait_over(e, w);
	}
}

/**
 * engine_device_add() - register all memory with a device, then use it
 * @e:    borrowed; engine_rdma_start() was called
 * @work: borrowed until @done
 * @done: its result is there; if it is negative nothing of the device is in use
 * @arg:  for done
 */
void engine_device_add(struct engine *e, struct engine_device *work, engine_done_fn done, void *arg)
{
	struct device_wait *w = wait_new(e, work->device, done, arg);

	work->why[0] = '\0';
	w->work = work;
	e->pins.registering |= device_bit(work->device);
	e->pins.holding |= device_bit(work->device);
	list_append(&e->pins.waits, &w->link);
	pins_step(e);
	room_look(e);
	waits_look(e);
}

static void on_device_remove(struct progress *p, struct hand *h)
{
	const struct device_wait *w = h->object;

	verbs_device_lost(p->verbs, w->device, w->text ? w->text : "it was removed");
	hand_return(p, h);
}

static void end_device_remove(struct hand *h)
{
	device_leave(h->engine, h->object);
}

/**
 * engine_device_remove() - leave a device
 * @e:      borrowed
 * @device: borrowed until @done; it was added
 * @text:   why; copied
 * @done:   nothing uses it any more
 * @arg:    for done
 */
void engine_device_remove(struct engine *e, struct rdma_device *device, const char *text,
			  engine_done_fn done, void *arg)
{
	struct device_wait *w = wait_new(e, device, done, arg);
	struct hand *h = hand_must(e, on_device_remove, w, NULL, NULL);

	w->text = strdup(text);
	e->pins.registering &= ~device_bit(device);
	h->end = end_device_remove;
	hand_go(h);
}

/* ---- life --------------------------------------------------------------------------------- */

/* See pin.h. */
void pins_init(struct engine *e)
{
	list_init(&e->pins.all);
	list_init(&e->pins.waits);
	list_init(&e->pins.crowd);
}

/* See pin.h. */
void pins_deinit(struct engine *e)
{
	list_for_each_safe (l, &e->pins.waits) {
		struct device_wait *w = container_of(l, struct device_wait, link);

		list_remove(&w->link);
		wait_free(w);
	}
	e->pins.registrar = registrar_free(e->pins.registrar);
}
