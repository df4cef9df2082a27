/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tenant: whose limits a client is under
 *
 * The kernel says which user a client is (SO_PEERCRED), the configuration which tenant that user
 * belongs to. This is the policy; util/quota is the mechanism. Bytes and sessions are counted for
 * all clients of a tenant together, buffers and communicators for each session.
 *
 * A tenant object lives as long as something refers to it, also when a reload removes its section:
 * it then keeps the limits that it had.
 *
 * Thread: control      Owns: tenants and their quotas      Locks: none
 */
#ifndef ROCECOMM_JOB_TENANT_H
#define ROCECOMM_JOB_TENANT_H

#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "util/list.h"
#include "util/quota.h"

struct tenants {
	const struct config *config; /* borrowed */
	struct list list;
};

struct tenant {
	struct list link; /* tenants.list */
	char *name;
	unsigned int refs;
	struct quota bytes;
	struct quota pinned; /* of these, with RDMA devices */
	struct quota sessions;
	uint32_t max_buffers; /* a session */
	uint32_t max_comms;   /* a session */
};

void tenants_init(struct tenants *t, const struct config *config);
/* All references are back. */
void tenants_deinit(struct tenants *t);
/* Takes the limits of a changed configuration over. */
void tenants_reload(struct tenants *t);

/* Return: 0 and a new reference, or -ENOMEM. */
int tenants_get(struct tenants *t, uid_t uid, struct tenant **ret);
/* NULL allowed. Return: NULL. */
struct tenant *tenant_unref(struct tenant *tenant);

#endif
