/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Wait: until something that the daemon does has happened
 *
 * Adaptive: look, spin for some 100 us with sched_yield() at every poll, then sleep on the futex
 * `completions` of the session page in slices, and look after each slice whether the daemon lives.
 *
 * Thread: any; no lock may be held      Owns: nothing      Locks: none
 */
#ifndef ROCECLIENT_WAIT_H
#define ROCECLIENT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct roce_client;

/* Slices: for what bumps `completions`, and for what does not (room in the ring). */
#define WAIT_SLICE_NS INT64_C(100000000)
#define WAIT_SLICE_SHORT_NS INT64_C(500000)

/* May do what it waits for: it is not called again once it has yielded true. */
typedef bool (*wait_fn)(void *arg);

/**
 * wait_until() - wait until @fn(@arg) yields true
 * @timeout_ms:  -1: for ever; 0: look once
 *
 * Return: 0, ROCE_IN_PROGRESS when time is up, or the sticky status of a lost daemon (no sentence).
 */
int wait_until(struct roce_client *client, wait_fn fn, void *arg, int timeout_ms, int64_t slice);

#endif
