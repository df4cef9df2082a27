/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Buffers that devices take long to register: who is answered when
 *
 * The engine is a fake; its regions are ready when the test says so.
 *
 * Thread: the test's      Owns: the server      Locks: none
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/control/desk_fixture.h"

#define TYPES 256

struct client {
	struct desk_client link;
	unsigned int answers[TYPES]; /* by type */
	uint32_t buffer;	     /* of the last BufferReady */
};

static void take(struct desk_client *link, const struct frame *frame)
{
	struct client *c = container_of(link, struct client, link);
	Rocecomm__BufferReady *ready;

	cr_assert_lt(frame->type, TYPES);
	c->answers[frame->type]++;
	if (frame->type == MSG_BUFFER_READY) {
		ready = rocecomm__buffer_ready__unpack(NULL, frame->length, frame->body);
		cr_assert(ready);
		c->buffer = ready->buffer;
		rocecomm__buffer_ready__free_unpacked(ready, NULL);
	}
}

static void client_begin(struct client *c, struct desk *d)
{
	*c = (struct client){0};
	desk_client_begin(&c->link, d, take);
	cr_assert_eq(c->answers[MSG_WELCOME], 1);
}

static void ask(struct client *c, uint64_t serial)
{
	Rocecomm__BufferRegister msg = ROCECOMM__BUFFER_REGISTER__INIT;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_eq(ftruncate(fd, 4096), 0);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	msg.size = 4096;
	desk_say(&c->link, MSG_BUFFER_REGISTER, serial, &msg, fd);
	close(fd);
}

static void give_back(struct client *c, uint64_t serial, uint32_t buffer)
{
	Rocecomm__BufferDeregister msg = ROCECOMM__BUFFER_DEREGISTER__INIT;

	msg.buffer = buffer;
	desk_say(&c->link, MSG_BUFFER_DEREGISTER, serial, &msg, -1);
}

static void slow_begin(struct desk *d)
{
	desk_begin(d, NULL);
	fake_engine_slow(fake_engine(d->net, 0), true);
}

/* The client waits for its answer, nobody else does. */
Test(register, answered_when_ready, .timeout = 60)
{
	struct client slow, other;
	struct desk d;

	slow_begin(&d);
	client_begin(&slow, &d);
	client_begin(&other, &d);
	ask(&slow, 2);
	cr_assert_eq(slow.answers[MSG_BUFFER_READY], 0);
	/* A number that nobody was told is no buffer's. */
	give_back(&slow, 3, 1);
	cr_assert_eq(slow.answers[MSG_ERROR], 1);
	fake_engine_slow(fake_engine(d.net, 0), false);
	ask(&other, 2);
	cr_assert_eq(other.answers[MSG_BUFFER_READY], 1);
	fake_engine_ready(fake_engine(d.net, 0));
	desk_turn(&slow.link);
	cr_assert_eq(slow.answers[MSG_BUFFER_READY], 1);
	give_back(&slow, 4, slow.buffer);
	desk_turn(&slow.link);
	cr_assert_eq(slow.answers[MSG_DONE], 1);
	desk_client_end(&slow.link);
	desk_client_end(&other.link);
	desk_end(&d);
}

/* It can be used before devices have it: the client does not wait for ever, and is told once. */
Test(register, answered_in_time, .timeout = 60)
{
	struct client c;
	struct desk d;

	slow_begin(&d);
	client_begin(&c, &d);
	ask(&c, 2);
	for (int i = 0; i < 100 && c.answers[MSG_BUFFER_READY] == 0; i++) {
		fake_run_ms(d.net, 100);
		desk_turn(&c.link);
	}
	cr_assert_eq(c.answers[MSG_BUFFER_READY], 1);
	fake_engine_ready(fake_engine(d.net, 0));
	desk_turn(&c.link);
	cr_assert_eq(c.answers[MSG_BUFFER_READY], 1);
	desk_client_end(&c.link);
	desk_end(&d);
}

/* The client dies before its memory is ready. */
Test(register, client_dies, .timeout = 60)
{
	struct client c;
	struct desk d;

	slow_begin(&d);
	client_begin(&c, &d);
	ask(&c, 2);
	desk_client_end(&c.link);
	desk_end(&d);
}
