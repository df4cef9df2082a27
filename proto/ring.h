/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ring: single-producer single-consumer descriptors over a session page
 *
 * The barriers, once for all users:
 *  - Producer: write the slots, then store `tail` (release). Consumer: load `tail` (acquire), copy
 *    the slots, then store `head` (release). Producer loads `head` (acquire) before reuse.
 *  - Bell: the consumer that wants to sleep stores `sleeping` = 1, then a full fence, then looks at
 *    `tail` once more. The producer stores `tail`, then a full fence, then looks at `sleeping`. One
 *    of the two sees the other's store, so a wake-up cannot be lost.
 *
 * Each side keeps private copies of everything it owns; of the shared words it only reads those
 * that the other side writes, and never believes them beyond the mask.
 *
 * Thread: producer functions: the client, under its own lock; consumer functions: the progress
 * thread that owns the session.      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_PROTO_RING_H
#define ROCECOMM_PROTO_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/shm_layout.h"

enum { RING_E_FULL = 1, RING_E_CORRUPT = 2 };

struct ring_producer {
	struct shm_header *shm;
	struct shm_desc *slots;
	uint32_t mask;
	uint32_t tail; /* next slot to write; published up to shm->tail */
};

struct ring_consumer {
	struct shm_header *shm;
	const struct shm_desc *slots;
	uint32_t mask;
	uint32_t head;
};

/* Fills a new page: header, zeroed ring and cells. @base: SHM_SIZE bytes, zeroed. */
void shm_format(void *base);
/* Checks a page that somebody else formatted. @size: of the mapping. Return: 0 or -EPROTO. */
int shm_check(const void *base, size_t size);
struct shm_cell *shm_cells(void *base);
/* Announces the gates behind a page that shm_format() filled. @base: SHM_FULL_SIZE bytes. */
void shm_format_gates(void *base);
/* @size: of the mapping. Return: [LIMIT_TICKETS], or NULL when the page has none. */
_Atomic uint32_t *shm_gates(void *base, size_t size);

void ring_producer_init(struct ring_producer *p, void *base);
/* Copies one descriptor into the ring without publishing it. Return: 0 or RING_E_FULL. */
int ring_push(struct ring_producer *p, const struct shm_desc *desc);
/* Publishes all pushed descriptors. Return: true when the consumer sleeps and needs the bell. */
bool ring_publish(struct ring_producer *p);

void ring_consumer_init(struct ring_consumer *c, void *base);
/* How many descriptors wait, as the producer says (not to be believed beyond ring_pop's check). */
uint32_t ring_waiting(struct ring_consumer *c);
/*
 * Copies at most @max descriptors out. Return: number copied, or -EPROTO when the producer's tail
 * is impossible (the session is then to be closed).
 */
int ring_pop(struct ring_consumer *c, struct shm_desc *ret, unsigned int max);
/* Announces sleep. Return: true when the ring is empty and sleeping is safe. */
bool ring_sleep(struct ring_consumer *c);
void ring_wake(struct ring_consumer *c);

#endif
