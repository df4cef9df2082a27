/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Gate: descriptors that count as posted only when a GPU's stream says so
 *
 * A stream writes the gate of a descriptor when all its earlier work is done. Until then the
 * descriptor waits here, and behind it all later ones of that rank on that communicator, since they
 * are numbered. To everybody else the rank has not posted.
 *
 * No interrupt tells of a gate: the progress thread looks at the first one of each rank in every
 * turn, and when it sleeps meanwhile, then for 5 to 50 us at a time, longer the longer nothing has
 * happened; a gate that has been shut for more than 50 ms costs at most a thousandth of that time
 * more, or 5 ms, so that one that never opens costs 200 looks a second. With no descriptor waiting
 * none of this costs anything.
 *
 * Thread: progress (gate_session_*: control)      Owns: nothing      Locks: none
 * See: PROTOCOL.md §5
 */
#ifndef ROCECOMM_ENGINE_GATE_H
#define ROCECOMM_ENGINE_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "engine/client_ring.h"

/* A descriptor that waits. */
struct gate_hold {
	struct shm_desc desc;
	struct engine_region *regions[3]; /* that it names: they stay until it is taken; or NULL */
	uint32_t next;			  /* ticket + 1 of the one behind it, 0: none */
	bool used;
};

/* @page: SHM_FULL_SIZE bytes if it announces gates. Return: 0, -ENOMEM. */
int gate_session_init(struct engine_session *s, void *page);
void gate_session_deinit(struct engine_session *s);
/* The session goes: nothing of it waits any more. */
void gate_forget(struct engine_session *s);

/* Return: true when it has been taken care of: it waits, or is nonsense. */
bool gate_hold(struct engine_session *s, const struct shm_desc *d);
/* Takes those whose gates are open, or whose communicators have failed. Return: how many. */
int gate_poll(struct progress *p);
/* How long to sleep when nothing has happened at gates for @since ns. Pure. */
uint64_t gate_nap(uint64_t since);
/* Sleeps, while something waits. */
void gate_wait(struct progress *p, struct epoll_event *events, int max);

#endif
