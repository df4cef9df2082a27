/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine, RDMA: devices, registered memory and rails as the control thread hands them over
 *
 * Control opens devices and registers memory; the progress thread makes queue pairs and uses both.
 * Without a call of engine_rdma_start() there is none of it, and nothing of it is allocated.
 *
 * Order: a device is added when all regions were registered with it, and it is gone when the
 * progress thread has left it; then the registrations go, then the device. Threads of the registrar
 * do both, so all of it takes its time (pin.h).
 *
 * Thread: control; done callbacks as engine.h says      Owns: registrations of regions
 * Locks: none
 */
#ifndef ROCECOMM_ENGINE_ENGINE_RDMA_H
#define ROCECOMM_ENGINE_ENGINE_RDMA_H

#include "engine/engine.h"
#include "topo/rdma.h"
#include "transport/verbs/verbs.h"
#include "util/clock.h"

struct engine_rdma_options {
	struct rdma *list; /* borrowed until engine_free() */
	struct verbs_options verbs;
	bool only;			  /* no message may go by TCP */
	struct rdma_bounds bounds;	  /* of clients' memory */
	const struct clock_source *clock; /* NULL: the system's */
};

/* Return: 0, -EINVAL for options out of range, negative errno. */
int engine_rdma_start(struct engine *engine, const struct engine_rdma_options *options);

/* Results are there when `done` is called; both are the caller's until then. */
struct engine_device {
	struct rdma_device *device;
	int result;
	char why[VERBS_REASON];
};
/* Registers all regions with it, then has it used. When that failed nothing of it is in use. */
void engine_device_add(struct engine *engine, struct engine_device *work, engine_done_fn done,
		       void *arg);
void engine_device_event(struct engine *engine, struct rdma_device *device,
			 const struct rdma_event *event);
/* @text: why, copied. When it is done nothing uses the device any more. */
void engine_device_remove(struct engine *engine, struct rdma_device *device, const char *text,
			  engine_done_fn done, void *arg);

/* From now on the peer may have rails. @name: copied. Return: 0, -ENOMEM. */
int engine_peer_rails(struct engine *engine, struct engine_peer *peer, const char *name,
		      bool initiator);

enum engine_rail_act {
	ENGINE_RAIL_OPEN = 1u << 0,    /* with params; yields `local` */
	ENGINE_RAIL_CONNECT = 1u << 1, /* with `remote` */
	ENGINE_RAIL_MOVE = 1u << 2,    /* to params */
	ENGINE_RAIL_DROP = 1u << 3,    /* opened, but the peer does not want it */
};
struct engine_rail {
	unsigned int act;
	uint32_t rail;
	struct verbs_rail_params params;
	struct verbs_blob local, remote;
	int result; /* of the first act that failed */
	char why[VERBS_REASON];
};
void engine_peer_rail(struct engine *engine, struct engine_peer *peer, struct engine_rail *work,
		      engine_done_fn done, void *arg);

/* What there is to say of the ways to a peer now. */
struct engine_rails_view {
	bool up;			 /* messages go by RDMA */
	uint64_t tcp_sent, tcp_received; /* bytes over the data connections, headers included */
	struct verbs_rail_info rails[VERBS_RAILS_MAX];
};
void engine_peer_look(struct engine *engine, struct engine_peer *peer,
		      struct engine_rails_view *view, engine_done_fn done, void *arg);

#endif
