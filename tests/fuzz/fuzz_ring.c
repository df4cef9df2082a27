/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the ring's consumer: a producer that writes anything anywhere in the page, at any time
 *
 * Input: records of 8 bytes: a byte that says what to do, a byte of argument, 2 bytes of offset,
 * 4 bytes of value. The page has its exact size, so a read outside it is found by ASan. A pop
 * returns -EPROTO and changes nothing, or copies of just the slots that were due.
 *
 * Thread: one      Owns: the page      Locks: none
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "proto/base.h"
#include "proto/ring.h"
#include "tests/fuzz/fuzz.h"

#define RECORD 8
#define POP_MAX 64

enum action { ACTION_POP, ACTION_TAIL, ACTION_AHEAD, ACTION_WRITE, ACTION_SLEEP, ACTION_COUNT_ };

static void check_pop(struct ring_consumer *c, unsigned int max)
{
	struct shm_desc out[POP_MAX + 1];
	uint32_t head = c->head;
	uint32_t due = atomic_load(&c->shm->tail) - head;
	int n;

	memset(out, 0x5a, sizeof(out));
	n = ring_pop(c, out, max);
	if (due > LIMIT_RING_SLOTS) {
		fuzz_check(n == -EPROTO);
		fuzz_check(c->head == head);
		return;
	}
	fuzz_check(n >= 0 && (uint32_t)n == MIN(due, max));
	fuzz_check(c->head == head + (uint32_t)n);
	fuzz_check(n == 0 || atomic_load(&c->shm->head) == c->head);
	for (int i = 0; i < n; i++) {
		uint32_t slot = (head + (uint32_t)i) % LIMIT_RING_SLOTS;

		fuzz_check(memcmp(&out[i], &c->slots[slot], sizeof(out[i])) == 0);
	}
	for (size_t i = 0; i < sizeof(out[0]); i++) {
		fuzz_check(((uint8_t *)&out[n])[i] == 0x5a);
	}
}

static void step(struct ring_consumer *c, uint8_t *page, const uint8_t *record)
{
	uint16_t offset;
	uint32_t value;

	memcpy(&offset, record + 2, sizeof(offset));
	memcpy(&value, record + 4, sizeof(value));
	switch ((enum action)(record[0] % ACTION_COUNT_)) {
	case ACTION_POP:
		check_pop(c, record[1] % (POP_MAX + 1));
		break;
	case ACTION_TAIL:
		atomic_store(&c->shm->tail, value);
		break;
	case ACTION_AHEAD:
		atomic_store(&c->shm->tail, c->head + value % (LIMIT_RING_SLOTS + 2));
		break;
	case ACTION_WRITE:
		/* Header words and, by the argument, any place of ring and cells. */
		memcpy(page + (offset + ((size_t)record[1] << 10)) % (SHM_SIZE - 3), &value, 4);
		break;
	case ACTION_SLEEP:
		fuzz_check(ring_sleep(c) == (atomic_load(&c->shm->tail) == c->head));
		ring_wake(c);
		break;
	case ACTION_COUNT_:
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free uint8_t *page = aligned_alloc(64, SHM_SIZE);
	struct ring_consumer c;

	fuzz_check(page);
	memset(page, 0, SHM_SIZE);
	shm_format(page);
	fuzz_check(shm_check(page, SHM_SIZE) == 0);
	ring_consumer_init(&c, page);
	for (; size >= RECORD; size -= RECORD, data += RECORD) {
		step(&c, page, data);
	}
	/* A client checks the page of a daemon that it does not trust either. */
	(void)shm_check(page, SHM_SIZE);
	return 0;
}
