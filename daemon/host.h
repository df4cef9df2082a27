/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Host: who this daemon is for other hosts
 *
 * A name, an id that is new at every start, and the addresses that others are told. Without a
 * cluster key these are of loopback. With one they are what the interfaces have; when they have
 * none that will do the host is alone: it goes on with loopback, and looks again whenever others
 * are about to be told, since a daemon often starts before the network does.
 *
 * Thread: control      Owns: the list of interfaces      Locks: none
 */
#ifndef ROCECOMM_HOST_H
#define ROCECOMM_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "job/address.h"
#include "job/jobs.h"
#include "proto/limits.h"
#include "topo/interfaces.h"

struct host {
	char name[LIMIT_NAME];
	uint8_t id[PEER_HOST_ID];
	struct interfaces *interfaces; /* stays in its place */
	char text[PEER_MAX_ADDRESSES][ADDRESS_TEXT];
	const char *addresses[PEER_MAX_ADDRESSES]; /* of text, best first; at least one */
	size_t naddresses;
	bool alone; /* there is a key, but no address that others can be told */
};

/* @host: all zero. Return: 0, negative errno; host_deinit() in any case. */
int host_init(struct host *host, const struct config *config);
void host_deinit(struct host *host);
/* Looks at the interfaces again, and tells @jobs and @peers if the addresses are not as before. */
void host_refresh(struct host *host, const struct config *config, struct jobs *jobs,
		  struct peers *peers);

#endif
