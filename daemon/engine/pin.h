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
 * Thread: control      Owns: registrations      Locks: none
 */
#ifndef ROCECOMM_ENGINE_PIN_H
#define ROCECOMM_ENGINE_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/registrar.h"
#include "util/list.h"

struct engine;

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
	/* All devices that there are were asked; may come again. NULL allowed. */
	void (*settled)(struct pin *pin);
	void (*ended)(struct pin *pin); /* it may be freed */
};

/* Of an engine. */
struct pins {
	struct list all;   /* pin.all */
	struct list waits; /* device_wait.link: devices that come or go */
	struct registrar *registrar;
	uint64_t made;
	uint32_t registering, holding, told;
};

void pins_init(struct engine *e);
/* The engine has stopped, and so has the registrar. */
void pins_deinit(struct engine *e);
/*
 * @pin: zeroed. Registers @size bytes at @base, now and with each device that comes. @settled and
 * @ended may be called before this returns, and before pin_end() does.
 */
void pin_start(struct engine *e, struct pin *pin, void *base, size_t size,
	       void (*settled)(struct pin *pin), void (*ended)(struct pin *pin));
/* The progress thread does not use it any more. */
void pin_end(struct pin *pin);

#endif
