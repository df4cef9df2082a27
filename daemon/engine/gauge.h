/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Gauge: how fast messages reach a peer, measured with messages
 *
 * A message of type WIRE_GAUGE says nothing; who receives it drops its payload and answers with
 * WIRE_GAUGE_ACK when all of it is here. They take the same ways as all others: rails while some
 * are up, else the data connections. One at a time tells the latency, some at a time the bandwidth.
 *
 * Whoever measures keeps at most GAUGE_WINDOW messages under way; a peer that sends more breaks the
 * protocol. A measurement ends when its time is up, whatever is still under way: acknowledgements
 * of an earlier one are known by their number.
 *
 * With RDMA messages of up to GAUGE_DIRECT bytes are sent from registered memory of the daemon and
 * arrive in such, so that what is measured is what registered buffers of clients get. Nobody looks
 * at what is in it: all measurements share it.
 *
 * Thread: progress, but for what is said to be control's      Owns: answers
 * Locks: none      See: PROTOCOL.md §8
 */
#ifndef ROCECOMM_ENGINE_GAUGE_H
#define ROCECOMM_ENGINE_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/conn.h"
#include "engine/engine_gauge.h"

#define GAUGE_DIRECT (1u << 20)
#define GAUGE_MEMORY (2 * GAUGE_DIRECT) /* progress.gauge: to send from, to receive into */

struct gauge;

/* Control. Return: 0, -ENOMEM. */
int gauge_new(struct engine_peer *peer, struct gauge **ret);
struct gauge *gauge_free(struct gauge *g);
/* A message of one of its types begins; NULL: the peer broke the rules. */
struct transport_recv *gauge_recv_begin(struct engine_peer *peer, const struct wire_header *h);
void gauge_recv_done(void *object);
/* The peer is lost: what is measured ends. */
void gauge_abandon(struct gauge *g);
/* The thread ends: nothing moves any more, and what is measured is given back at once. */
void gauge_stop(struct gauge *g);
/* Looks whether it is time to give up; call it now and then. */
void gauge_check(struct gauge *g);

#endif
