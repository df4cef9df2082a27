/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Room: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "engine/room.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "engine/engine_impl.h"
#include "topo/rdma_mem.h"
#include "util/clock.h"
#include "util/log.h"

#define MEMLOCK_RESERVE 8 /* one part in so many is left to queues and receive buffers */
#define REGIONS_RESERVE 8 /* likewise, of the device's regions */

enum lack { LACK_NOTHING, LACK_QUOTA, LACK_BYTES, LACK_REGIONS, LACK_MEMLOCK, LACK_DEVICE };

/* What stands in the way of some memory. */
struct need {
	enum lack lack;
	uint32_t devices; /* where */
	bool never;	  /* also when nothing else is registered */
};

/* ---- sums --------------------------------------------------------------------------------- */

static bool is_clients(const struct pin *pin)
{
	return pin->ops->let_go != NULL;
}

static void count(struct pin *pin, uint32_t devices, bool more)
{
	struct pins *pins = &pin->engine->pins;
	struct pin_sum *sums = is_clients(pin) ? pins->clients : pins->own;

	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		if (devices & 1u << i) {
			assert(more || sums[i].regions > 0);
			sums[i].regions += more ? 1 : UINT64_MAX;
			sums[i].bytes += more ? pin->size : -(uint64_t)pin->size;
		}
	}
	pin->counted ^= devices;
}

/* Regions of clients that the device may have. */
static uint64_t regions_max(const struct pins *pins, const struct rdma_device *d)
{
	uint64_t all = d->attr.max_mr > 0 ? (uint64_t)d->attr.max_mr : UINT32_MAX, ours;

	if (pins->bounds.regions) {
		return pins->bounds.regions;
	}
	/* Those of the daemon, of its transport, and of rails. relaxed: as all that counts them */
	ours = pins->own[d->index].regions + 1 +
	       atomic_load_explicit(&d->receive_regions, memory_order_relaxed);
	all -= all / REGIONS_RESERVE;
	return all > ours ? all - ours : 0;
}

/* @alone: if nothing of clients were registered. */
static bool lacks_memlock(const struct pins *pins, uint64_t wanted, bool alone)
{
	uint64_t limit, have = 0;

	if (pins->bounds.bytes || !rdma_memlock_limited(&limit)) {
		return false;
	}
	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		have += alone ? 0 : pins->clients[i].bytes;
		have += pins->own[i].bytes + (pins->holding & 1u << i ? pins->fixed : 0);
	}
	limit -= limit / MEMLOCK_RESERVE;
	return have > limit || wanted > limit - have;
}

static enum lack lack_of(const struct pin *pin, uint32_t add, bool alone, uint32_t *ret_devices)
{
	const struct engine *e = pin->engine;
	const struct pins *pins = &e->pins;

	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		struct pin_sum sum = {0};

		if (!(add & 1u << i)) {
			continue;
		}
		sum = alone ? sum : pins->clients[i];
		*ret_devices = 1u << i;
		if (pins->bounds.bytes && (sum.bytes > pins->bounds.bytes ||
					   pin->size > pins->bounds.bytes - sum.bytes)) {
			return LACK_BYTES;
		}
		if (sum.regions >= regions_max(pins, e->rdma->devices[i])) {
			return LACK_REGIONS;
		}
	}
	*ret_devices = add;
	return add && lacks_memlock(pins, pin->size * (uint64_t)__builtin_popcount(add), alone)
		       ? LACK_MEMLOCK
		       : LACK_NOTHING;
}

/* Charges its tenant, if it is not yet. */
static bool charge(struct pin *pin)
{
	return !pin->quota || pin->charge.quota ||
	       quota_charge(pin->quota, pin->size, &pin->charge) == 0;
}

static struct need need_of(struct pin *pin)
{
	uint32_t add = pin->engine->pins.registering & ~pin->tried, devices;
	struct need need = {.devices = add};

	pin->lacking &= add;
	if (add && !charge(pin)) {
		need.lack = LACK_QUOTA;
		need.never = pin->size > quota_limit(pin->quota);
	} else if (pin->lacking) {
		need.lack = LACK_DEVICE;
		need.devices = pin->lacking;
		/* As much as it wants was given back, in vain. */
		need.never = pin->freed >= pin->size;
	} else {
		need.lack = lack_of(pin, add, false, &need.devices);
		need.never = need.lack && lack_of(pin, add, true, &devices) != LACK_NOTHING;
	}
	return need;
}

/* ---- who goes, and who stays out ---------------------------------------------------------- */

/* See room.h. */
uint64_t room_rest_ns(const struct pins *pins)
{
	return (pins->bounds.rest_ms ? pins->bounds.rest_ms : PIN_REST_MS) * CLOCK_NS_PER_MS;
}

static uint64_t used_at(const struct pin *pin)
{
	/* relaxed: a hint, whoever uses it says no */
	return atomic_load_explicit(&pin->used, memory_order_relaxed);
}

static bool may_go(const struct pin *v, const struct pin *pin, const struct need *need)
{
	if (v == pin || !is_clients(v) || !v->told || v->busy || v->ending || v->leaving ||
	    v->round == pin->round || !list_empty(&v->wait) || !v->counted) {
		return false;
	}
	if (need->lack == LACK_QUOTA) {
		return v->quota == pin->quota;
	}
	return need->lack == LACK_MEMLOCK || v->counted & need->devices;
}

/* Return: NULL: there is none. */
static struct pin *pick(const struct pin *pin, const struct need *need)
{
	struct pins *pins = &pin->engine->pins;
	struct pin *best = NULL;

	list_for_each (l, &pins->all) {
		struct pin *v = container_of(l, struct pin, all);

		if (may_go(v, pin, need) && (!best || used_at(v) < used_at(best))) {
			best = v;
		}
	}
	if (best && pin->again &&
	    clock_elapsed(clock_monotonic(), used_at(best)) < room_rest_ns(pins)) {
		return NULL;
	}
	return best;
}

static void explain(const struct pin *pin, const struct need *need, char *buf, size_t size)
{
	const struct pins *pins = &pin->engine->pins;
	const struct rdma_device *d =
		need->devices ? pin->engine->rdma->devices[__builtin_ctz(need->devices)] : NULL;
	const char *name = d ? d->name : "?";
	const char *busy = need->never ? "" : "; nothing of it can be given back now";

	switch (need->lack) {
	case LACK_QUOTA:
		quota_describe(pin->quota, pin->tenant, pin->size, buf, size);
		break;
	case LACK_BYTES:
		snprintf(buf, size,
			 "%s: max_pinned of [rdma] is %" PRIu64 " KiB, %" PRIu64
			 " KiB are registered and %zu KiB were asked for%s",
			 name, pins->bounds.bytes / 1024, pins->clients[d->index].bytes / 1024,
			 pin->size / 1024, busy);
		break;
	case LACK_REGIONS:
		snprintf(buf, size, "%s: %" PRIu64 " buffers are registered, %s%s", name,
			 pins->clients[d->index].regions,
			 pins->bounds.regions ? "which is max_regions of [rdma]"
					      : "and the device takes no more",
			 busy);
		break;
	case LACK_MEMLOCK:
		rdma_memlock_hint(pin->size, buf, size);
		break;
	case LACK_DEVICE:
		snprintf(buf, size, "%s", pin->mem ? pin->mem->reason : name);
		break;
	case LACK_NOTHING:
		break;
	}
}

static void tell(struct pin *pin, const struct need *need)
{
	struct pins *pins = &pin->engine->pins;
	struct rdma_memory *memory = &pin->engine->rdma->memory;
	bool news = need->lack == LACK_QUOTA ? !pins->told_quota : need->devices & ~pins->told_room;

	memory->fallbacks++;
	explain(pin, need, memory->reason, sizeof(memory->reason));
	for (uint32_t i = 0; need->lack != LACK_DEVICE && i < RDMA_DEVICES_MAX; i++) {
		if (need->devices & 1u << i) {
			/* relaxed: only rocectl reads it; what the device refused is counted */
			atomic_fetch_add_explicit(
				&pin->engine->rdma->devices[i]
					 ->refused[need->lack == LACK_QUOTA ? RDMA_REFUSED_QUOTA
									    : RDMA_REFUSED_BOUND],
				1, memory_order_relaxed);
		}
	}
	if (news) {
		log_warn("%zu KiB of memory go through buffers of the daemon: %s", pin->size / 1024,
			 memory->reason);
	}
	if (need->lack == LACK_QUOTA) {
		pins->told_quota = true;
	} else {
		pins->told_room |= need->devices;
	}
}

/* See room.h. */
void room_settled(struct pin *pin)
{
	if (!pin->counted) {
		quota_release(&pin->charge);
	}
}

/* It is staged from now on, or not registered with a device that came later. */
static void refuse(struct pin *pin, const struct need *need)
{
	tell(pin, need);
	pin->lacking = 0;
	pin->freed = 0;
	pin->round = 0;
	if (pin->told) {
		pin->tried |= pin->engine->pins.registering;
	} else {
		pin_put_out(pin, true);
	}
	room_settled(pin);
}

/* ---- the crowd ---------------------------------------------------------------------------- */

/* See room.h. */
bool room_take(struct pin *pin, uint32_t add)
{
	struct pins *pins = &pin->engine->pins;

	if (is_clients(pin) && pin->engine->running) {
		if (!list_empty(&pin->wait)) {
			return false;
		}
		if (need_of(pin).lack != LACK_NOTHING) {
			pin->round = 0; /* not that in which it was asked to go itself */
			list_append(&pins->crowd, &pin->wait);
			return false;
		}
	}
	count(pin, add & ~pin->counted, true);
	return true;
}

/* What was asked of the progress thread is given back, or nothing that is in the way. */
static void victim_over(struct pin *pin)
{
	struct pins *pins = &pin->engine->pins;
	struct list *l = list_first(&pins->crowd);

	if (pins->victim != pin || pin->busy || pin->counted) {
		return;
	}
	pins->victim = NULL;
	if (l) {
		struct pin *first = container_of(l, struct pin, wait);

		first->freed += pin->size;
		first->lacking = 0;
	}
}

/* See room.h. */
void room_back(struct pin *pin)
{
	struct pins *pins = &pin->engine->pins;
	uint32_t has = pin_has(pin), full;

	count(pin, pin->counted & ~has, false);
	full = pin->mem->full & pin->job.add & ~has & pins->registering;
	if (full && is_clients(pin) && !pin->ending && pin->engine->running) {
		pin->lacking = full;
		pin->tried &= ~full;
		list_prepend(&pins->crowd, &pin->wait);
	} else if (pin->job.add & has && pins->victim != pin) {
		pin->engine->rdma->memory.returns += pin->again;
		pin->again = false;
		pin->freed = 0;
		pin->round = 0;
	}
	if (!pin->counted && list_empty(&pin->wait)) {
		quota_release(&pin->charge);
	}
	victim_over(pin);
}

/* See room.h. */
void room_given(struct pin *pin)
{
	struct engine *e = pin->engine;

	e->rdma->memory.evictions++;
	for (uint32_t i = 0; i < RDMA_DEVICES_MAX; i++) {
		if (pin->counted & 1u << i) {
			/* relaxed: only rocectl reads it */
			atomic_fetch_add_explicit(&e->rdma->devices[i]->evictions, 1,
						  memory_order_relaxed);
		}
	}
	victim_over(pin);
}

/* See room.h. */
void room_leave(struct pin *pin)
{
	list_remove(&pin->wait);
	quota_release(&pin->charge);
	victim_over(pin);
}

/* See room.h. */
void room_look(struct engine *e)
{
	struct pins *pins = &e->pins;
	struct list *l;

	while (!pins->victim && (l = list_first(&pins->crowd)) != NULL) {
		struct pin *pin = container_of(l, struct pin, wait);
		struct need need = need_of(pin);
		struct pin *victim;

		pin->round = pin->round ? pin->round : ++pins->rounds;
		if (need.lack == LACK_NOTHING) {
			list_remove(&pin->wait);
			pin_step(pin);
			continue;
		}
		victim = need.never || !e->running ? NULL : pick(pin, &need);
		if (!victim) {
			list_remove(&pin->wait);
			refuse(pin, &need);
			pin_step(pin);
			continue;
		}
		victim->round = pin->round;
		if (victim->ops->let_go(victim)) {
			pins->victim = victim;
		} else {
			victim->leaving = true;
		}
	}
}
