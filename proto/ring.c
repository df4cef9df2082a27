/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ring: the implementation; ring.h explains the order of stores once for all
 *
 * Thread: see ring.h      Owns: nothing      Locks: none
 */
#include "proto/ring.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

void shm_format(void *base)
{
	struct shm_header *h = base;

	h->magic = SHM_MAGIC;
	h->version = SHM_VERSION;
	h->size = SHM_SIZE;
	h->ring_off = SHM_RING_OFF;
	h->ring_slots = LIMIT_RING_SLOTS;
	h->slot_size = sizeof(struct shm_desc);
	h->cell_off = SHM_CELL_OFF;
	h->cell_count = LIMIT_TICKETS;
	/* Asleep until the progress thread has the session: the first post rings the bell. */
	atomic_store_explicit(&h->sleeping, 1, memory_order_relaxed);
}

int shm_check(const void *base, size_t size)
{
	const struct shm_header *h = base;

	if (size < SHM_SIZE || h->magic != SHM_MAGIC || h->version != SHM_VERSION ||
	    h->size != SHM_SIZE || h->ring_off != SHM_RING_OFF ||
	    h->ring_slots != LIMIT_RING_SLOTS || h->slot_size != sizeof(struct shm_desc) ||
	    h->cell_off != SHM_CELL_OFF || h->cell_count != LIMIT_TICKETS) {
		return -EPROTO;
	}
	if ((h->gate_off != 0 || h->gate_count != 0) &&
	    (h->gate_off != SHM_GATE_OFF || h->gate_count != LIMIT_TICKETS)) {
		return -EPROTO;
	}
	return 0;
}

struct shm_cell *shm_cells(void *base)
{
	return (struct shm_cell *)((char *)base + SHM_CELL_OFF);
}

void shm_format_gates(void *base)
{
	struct shm_header *h = base;

	h->gate_off = SHM_GATE_OFF;
	h->gate_count = LIMIT_TICKETS;
}

_Atomic uint32_t *shm_gates(void *base, size_t size)
{
	const struct shm_header *h = base;

	if (size < SHM_FULL_SIZE || h->gate_off != SHM_GATE_OFF || h->gate_count != LIMIT_TICKETS) {
		return NULL;
	}
	return (_Atomic uint32_t *)((char *)base + SHM_GATE_OFF);
}

void ring_producer_init(struct ring_producer *p, void *base)
{
	p->shm = base;
	p->slots = (struct shm_desc *)((char *)base + SHM_RING_OFF);
	p->mask = LIMIT_RING_SLOTS - 1;
	p->tail = 0;
}

int ring_push(struct ring_producer *p, const struct shm_desc *desc)
{
	/* acquire: pairs with the release store of head in ring_pop() */
	uint32_t head = atomic_load_explicit(&p->shm->head, memory_order_acquire);

	if (p->tail - head > p->mask) {
		return RING_E_FULL;
	}
	memcpy(&p->slots[p->tail & p->mask], desc, sizeof(*desc));
	p->tail++;
	return 0;
}

bool ring_publish(struct ring_producer *p)
{
	/* release: pairs with the acquire load of tail in ring_pop() and ring_sleep() */
	atomic_store_explicit(&p->shm->tail, p->tail, memory_order_release);
	/* full fence: pairs with the one in ring_sleep() */
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load_explicit(&p->shm->sleeping, memory_order_relaxed) != 0;
}

void ring_consumer_init(struct ring_consumer *c, void *base)
{
	c->shm = base;
	c->slots = (const struct shm_desc *)((const char *)base + SHM_RING_OFF);
	c->mask = LIMIT_RING_SLOTS - 1;
	c->head = 0;
}

uint32_t ring_waiting(struct ring_consumer *c)
{
	/* acquire: what the producer had seen before it published is seen here, too */
	return atomic_load_explicit(&c->shm->tail, memory_order_acquire) - c->head;
}

int ring_pop(struct ring_consumer *c, struct shm_desc *ret, unsigned int max)
{
	/* acquire: pairs with the release store of tail in ring_publish() */
	uint32_t tail = atomic_load_explicit(&c->shm->tail, memory_order_acquire);
	uint32_t n = tail - c->head;

	if (n == 0) {
		return 0;
	}
	if (n > c->mask + 1) {
		return -EPROTO;
	}
	if (n > max) {
		n = max;
	}
	for (uint32_t i = 0; i < n; i++) {
		memcpy(&ret[i], &c->slots[(c->head + i) & c->mask], sizeof(*ret));
	}
	c->head += n;
	/* release: the copies above are done before the producer sees the slots free */
	atomic_store_explicit(&c->shm->head, c->head, memory_order_release);
	return (int)n;
}

bool ring_sleep(struct ring_consumer *c)
{
	atomic_store_explicit(&c->shm->sleeping, 1, memory_order_relaxed);
	/* full fence: pairs with the one in ring_publish() */
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load_explicit(&c->shm->tail, memory_order_acquire) == c->head;
}

void ring_wake(struct ring_consumer *c)
{
	atomic_store_explicit(&c->shm->sleeping, 0, memory_order_relaxed);
}
