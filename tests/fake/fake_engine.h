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

#endif
