/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Gate: see gate.h
 *
 * Thread: progress (gate_session_*: control)      Owns: nothing      Locks: none
 */
#include "engine/gate.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "engine/comm.h"
#include "engine/progress.h"
#include "proto/gpu.h"
#include "util/clock.h"

#define GATE_BATCH 64
#define GATE_MIN_NS (5 * CLOCK_NS_PER_US)
#define GATE_SOON_NS (50 * CLOCK_NS_PER_US)
/* Of the time that a gate has been shut, what is slept at once. */
#define GATE_SHARE 1000
#define GATE_MAX_NS (5 * CLOCK_NS_PER_MS)

static size_t holds_size(void)
{
	return LIMIT_TICKETS * sizeof(struct gate_hold);
}

int gate_session_init(struct engine_session *s, void *page)
{
	s->gates = shm_gates(page, SHM_FULL_SIZE);
	if (!s->gates) {
		return 0;
	}
	s->holds = mmap(NULL, holds_size(), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (s->holds == MAP_FAILED) {
		s->holds = NULL;
		return -ENOMEM;
	}
	return 0;
}

void gate_session_deinit(struct engine_session *s)
{
	if (s->holds) {
		munmap(s->holds, holds_size());
	}
}

static void hold_begin(struct engine_session *s, struct gate_hold *hold, const struct shm_desc *d)
{
	hold->desc = *d;
	hold->next = 0;
	hold->used = true;
	hold->regions[0] = engine_region_hold(s, d->send_buf);
	hold->regions[1] = engine_region_hold(s, d->recv_buf);
	hold->regions[2] = engine_region_hold(s, d->args_buf);
}

static void hold_end(struct gate_hold *hold)
{
	struct engine_region *regions[ARRAY_SIZE(hold->regions)];

	memcpy(regions, hold->regions, sizeof(regions));
	hold->used = false;
	for (uint32_t i = 0; i < ARRAY_SIZE(regions); i++) {
		engine_region_unhold(regions[i]);
	}
}

void gate_forget(struct engine_session *s)
{
	for (uint32_t i = 0; s->holds && i <= LIMIT_SESSION_COMMS; i++) {
		struct engine_handle *h = &s->handles[i];

		if (h->first) {
			list_remove(&h->gated);
		}
		while (h->first) {
			struct gate_hold *hold = &s->holds[h->first - 1];

			h->first = hold->next;
			hold_end(hold);
		}
	}
}

static bool is_open(const struct engine_session *s, const struct shm_desc *d)
{
	if (!(d->flags & SHM_DESC_GATED)) {
		return true;
	}
	/* acquire: pairs with the stream's write, which comes after its earlier work */
	return gate_open(atomic_load_explicit(&s->gates[d->ticket], memory_order_acquire),
			 d->generation);
}

bool gate_hold(struct engine_session *s, const struct shm_desc *d)
{
	struct progress *p = s->progress;
	struct engine_handle *h;
	struct gate_hold *hold;

	if ((d->flags & SHM_DESC_GATED) && !s->gates) {
		session_corrupt(s, "a descriptor names a gate, and its page has none");
		return true;
	}
	h = d->comm > 0 && d->comm <= LIMIT_SESSION_COMMS ? &s->handles[d->comm] : NULL;
	if (!h || !h->comm || (!h->first && is_open(s, d))) {
		return false;
	}
	hold = &s->holds[d->ticket];
	if (hold->used) {
		session_corrupt(s, "a descriptor has the ticket of one that waits for its gate");
		return true;
	}
	hold_begin(s, hold, d);
	if (h->first) {
		s->holds[h->last - 1].next = d->ticket + 1;
	} else {
		h->first = d->ticket + 1;
		h->session = s;
		list_init(&h->gated);
		list_append(&p->gated, &h->gated);
	}
	h->last = d->ticket + 1;
	p->gate_since = p->now;
	return true;
}

static int handle_poll(struct progress *p, struct engine_handle *h)
{
	struct engine_session *s = h->session;
	int n = 0;

	while (h->first && n < GATE_BATCH) {
		struct gate_hold *hold = &s->holds[h->first - 1];
		struct shm_desc d = hold->desc;

		if (h->comm && !h->comm->failed && !is_open(s, &d)) {
			break;
		}
		h->first = hold->next;
		if (!h->first) {
			list_remove(&h->gated);
		}
		p->gate_since = p->now;
		client_ring_take(s, &d);
		hold_end(hold);
		n++;
	}
	return n;
}

int gate_poll(struct progress *p)
{
	int n = 0;

	list_for_each_safe (e, &p->gated) {
		n += handle_poll(p, container_of(e, struct engine_handle, gated));
	}
	return n;
}

uint64_t gate_nap(uint64_t since)
{
	uint64_t soon = MIN(MAX(since / 8, GATE_MIN_NS), GATE_SOON_NS);

	return MIN(MAX(soon, since / GATE_SHARE), GATE_MAX_NS);
}

void gate_wait(struct progress *p, struct epoll_event *events, int max)
{
	uint64_t ns = gate_nap(clock_elapsed(p->now, p->gate_since));
	struct timespec t = {.tv_nsec = (long)ns};

	if (epoll_pwait2(p->epoll, events, max, &t, NULL) < 0 && errno == ENOSYS) {
		epoll_wait(p->epoll, events, max, 1); /* before Linux 5.11 */
	}
}
