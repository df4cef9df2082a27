/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine, gauge: latency and bandwidth to a peer, as the control thread asks for them
 *
 * Thread: control; done callbacks as engine.h says      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_ENGINE_GAUGE_H
#define ROCECOMM_ENGINE_ENGINE_GAUGE_H

#include <stdint.h>

#include "engine/engine.h"

#define GAUGE_WINDOW 16
#define GAUGE_MESSAGE_MAX (4u << 20)
#define GAUGE_TIMES 2048 /* of messages that are kept, the latest */

/* Filled by control; results are there when `done` is called, and it belongs to the caller again.
 */
struct engine_gauge {
	uint32_t message; /* bytes, up to GAUGE_MESSAGE_MAX */
	uint32_t window;  /* messages at a time, up to GAUGE_WINDOW */
	uint64_t ns;	  /* for so long, and at least one message */
	uint64_t give_up; /* ns: without any answer for so long, it ends */

	int result; /* 0; -EBUSY: another is under way; -ETIMEDOUT; negative errno: the peer is lost
		     */
	uint64_t messages; /* that were acknowledged */
	uint64_t elapsed;  /* ns, from the first to the last acknowledgement */
	uint32_t ntimes;
	uint64_t times[GAUGE_TIMES]; /* ns a message took, there and back */
};

/* Control: measures; @done is called once. */
void engine_gauge(struct engine *engine, struct engine_peer *peer, struct engine_gauge *gauge,
		  engine_done_fn done, void *arg);

#endif
