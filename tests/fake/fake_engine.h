/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake engine: takes what control hands over and answers when the test says so
 *
 * It moves no bytes. The fake network (fake_net.h) has one a host, lets it answer in any order with
 * everything else that happens, and looks at what was never given back.
 *
 * Thread: the test's      Owns: what was added and not removed      Locks: none
 */
#ifndef ROCECOMM_TESTS_FAKE_ENGINE_H
#define ROCECOMM_TESTS_FAKE_ENGINE_H

#include "engine/engine.h"
#include "util/list.h"

struct answer {
	struct list link;
	engine_done_fn done;
	void *arg;
};

struct engine {
	struct list answers;
	struct list peers; /* what was never given back */
	struct list comms;
	bool slow;	      /* regions take their time: until fake_engine_ready() */
	engine_done_fn ready; /* of the last one; NULL: nobody waits */
	void *ready_arg;
};
struct engine_peer {
	struct list link;
};
struct engine_comm {
	struct list link;
	enum status failed;
	uint32_t detached;
};

/* Calls the oldest `done` that is due; there must be one (engine.answers). */
void fake_engine_answer(struct engine *engine);
/* From now on regions are not ready when they are added. */
void fake_engine_slow(struct engine *engine, bool slow);
/* The last one is, if somebody waits for it. */
void fake_engine_ready(struct engine *engine);

#endif
