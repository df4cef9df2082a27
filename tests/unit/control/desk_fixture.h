/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Desk: a server over fakes, and clients that say one frame at a time
 *
 * Thread: the test's      Owns: the server, its clients' sockets      Locks: none
 */
#ifndef ROCECOMM_TESTS_DESK_FIXTURE_H
#define ROCECOMM_TESTS_DESK_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "control/server.h"
#include "gpu/gpu.h"
#include "proto/frame.h"
#include "tests/fake/fake_net.h"

struct desk {
	struct fake_net *net;
	struct server *server;
	struct gpu *gpu; /* NULL: none */
	int listen_fd;
	bool stopped;
};

struct desk_client {
	struct desk *desk;
	struct frame_decoder decoder;
	int fd;
	void (*take)(struct desk_client *c, const struct frame *frame); /* each answer */
};

/* @gpu: owned from now on, NULL allowed. */
void desk_begin(struct desk *d, struct gpu *gpu);
/* All clients have hung up. */
void desk_end(struct desk *d);
/* Connects and says hello. */
void desk_client_begin(struct desk_client *c, struct desk *d,
		       void (*take)(struct desk_client *c, const struct frame *frame));
void desk_client_end(struct desk_client *c);
/* @fd: goes with it, unless it is negative; borrowed. */
void desk_say(struct desk_client *c, uint16_t type, uint64_t serial, const void *msg, int fd);
/* Runs the loop and takes what comes. */
void desk_turn(struct desk_client *c);

#endif
