/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Pin: memory and its registrations with devices, as the control thread sees them
 *
 * Says what each piece of memory is to be registered with, and has the registrar do it, one job at
 * a time. What changes meanwhile (a device comes or goes, the client dies, the buffer is given
 * back) is looked at when the job is back. A pin is over when no device has the memory any more:
 * only then may it be unmapped.
 *
 * Two sets of devices: memory is registered with those of `registering`, and keeps registrations
 * with those of `holding`. A device that leaves is first taken out of the one, and out of the other
 * when the progress thread does not use it any more.
 *
 * Memory of clients takes room before it is registered, and may lose its registrations to others
 * (room.h): it is `out` then, until it is used again.
 *
 * Thread: control      Owns: registrations      Locks: none
 */
#ifndef ROCECOMM_ENGINE_PIN_H
#define ROCECOMM_ENGINE_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/registrar.h"
#include "util/list.h"
#include "util/quota.h"

#define PIN_REST_MS 1000 /* see struct rdma_bounds */

struct engine;
struct pin;

struct pin_ops {
	/* All devices that there are were asked, or it is out; may come again. NULL allowed. */
	void (*settled)(struct pin *pin);
	void (*ended)(struct pin *pin); /* it may be freed */
	/*
	 * Asks the progress thread to use it no more; pin_let_go() follows, with what it says.
	 * Return: false: it is about to end. NULL: the memory is the daemon's own, which needs no
	 * room and stays registered.
	 */
	bool (*let_go)(struct pin *pin);
};

struct pin {
	struct list all; /* pins.all */
	struct engine *engine;
	uint8_t *base; /* borrowed until it has ended */
	size_t size;
	struct rdma_mem *mem; /* NULL: there was no device yet */
	struct registrar_job job;
	uint64_t number; /* in the order of their making */
	uint32_t tried;	 /* devices that were asked, by bits of their indexes */
	bool busy;	 /* the job is under way */
	bool ending;
	bool told; /* the progress thread may use the registrations: set by the owner */
	const struct pin_ops *ops;

	/* What room.c needs to know of memory of clients. */
	struct list wait;    /* pins.crowd */
	struct quota *quota; /* NULL: none; of `tenant` */
	const char *tenant;
	struct quota_charge charge;
	_Atomic uint64_t used; /* when an operation last used it, ns; progress writes */
	uint64_t freed;	       /* bytes that were given back for it */
	uint64_t round;	       /* in which it was served, or asked to go */
	uint32_t counted;      /* in sums of these devices */
	uint32_t lacking;      /* these had no room, by their own words */
	bool out;	       /* not registered, for want of room */
	bool again;	       /* it was, and comes back */
	bool leaving;	       /* it is about to end */
};

struct pin_sum {
	uint64_t regions, bytes;
};

/* Of an engine. */
struct pins {
	struct list all;   /* pin.all */
	struct list waits; /* device_wait.link: devices that come or go */
	struct registrar *registrar;
	uint64_t made;
	uint32_t registering, holding, told;

	struct list crowd;  /* pin.wait: waits for room */
	struct pin *victim; /* is asked to make some, or gives it back; NULL: none */
	uint64_t rounds;
	struct rdma_bounds bounds;
	size_t fixed; /* bytes that the transport has registered with each device */
	struct pin_sum clients[RDMA_DEVICES_MAX], own[RDMA_DEVICES_MAX];
	uint32_t told_room; /* as told: the log has a reason */
	bool told_quota;
};

void pins_init(struct engine *e);
/* The engine has stopped, and so has the registrar. */
void pins_deinit(struct engine *e);
/*
 * @pin: zeroed, but for its quota. Registers @size bytes at @base, now and with each device that
 * comes. Callbacks may come before this returns, and before pin_end() does.
 */
void pin_start(struct engine *e, struct pin *pin, void *base, size_t size,
	       const struct pin_ops *ops);
/* The progress thread does not use it any more. */
void pin_end(struct pin *pin);
/* What the progress thread says to ops.let_go(): it uses it no more; or an operation does. */
void pin_let_go(struct pin *pin, bool gone);
/* It is used: registers it if it is out and there is room, else settled() says so. */
void pin_again(struct pin *pin);
/* Is it registered, waited for or being registered? */
bool pin_is_under_way(const struct pin *pin);

/* ---- for room.c ---------------------------------------------------------------------------- */

/* Has the next job done, if there is one. The pin may be gone afterwards. */
void pin_step(struct pin *pin);
/* Devices that it is registered with, by bits of their indexes; it is not busy. */
uint32_t pin_has(const struct pin *pin);
void pin_put_out(struct pin *pin, bool out);

#endif
