/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tenant: implementation
 *
 * Thread: control      Owns: see tenant.h      Locks: none
 */
#include "job/tenant.h"

#include <assert.h>
#include <string.h>

#include "proto/base.h"

void tenants_init(struct tenants *t, const struct config *config)
{
	t->config = config;
	list_init(&t->list);
}

void tenants_deinit(struct tenants *t)
{
	assert(list_empty(&t->list));
}

static void tenant_limits(struct tenant *tenant, const struct config_tenant *c)
{
	quota_set_limit(&tenant->bytes, c->max_bytes);
	quota_set_limit(&tenant->pinned, c->max_pinned);
	quota_set_limit(&tenant->sessions, c->max_sessions);
	tenant->max_buffers = c->max_buffers;
	tenant->max_comms = c->max_comms;
}

void tenants_reload(struct tenants *t)
{
	list_for_each (at, &t->list) {
		struct tenant *tenant = container_of(at, struct tenant, link);

		for (size_t i = 0; i < t->config->ntenants; i++) {
			if (strcmp(t->config->tenants[i].name, tenant->name) == 0) {
				tenant_limits(tenant, &t->config->tenants[i]);
			}
		}
	}
}

static int tenant_new(struct tenants *t, const struct config_tenant *c, struct tenant **ret)
{
	struct tenant *tenant = calloc(1, sizeof(*tenant));

	if (!tenant) {
		return err_origin(-ENOMEM);
	}
	tenant->name = strdup(c->name);
	if (!tenant->name) {
		free(tenant);
		return err_origin(-ENOMEM);
	}
	tenant->refs = 1;
	quota_init(&tenant->bytes, "max_bytes", c->max_bytes);
	quota_init(&tenant->pinned, "max_pinned", c->max_pinned);
	quota_init(&tenant->sessions, "max_sessions", c->max_sessions);
	tenant_limits(tenant, c);
	list_append(&t->list, &tenant->link);
	*ret = tenant;
	return 0;
}

/**
 * tenants_get() - the tenant of a user
 * @t:    borrowed
 * @uid:  as the kernel says
 * @ret:  new reference
 *
 * Return: 0, -ENOMEM
 */
int tenants_get(struct tenants *t, uid_t uid, struct tenant **ret)
{
	const struct config_tenant *c = config_tenant_of(t->config, uid);

	list_for_each (at, &t->list) {
		struct tenant *tenant = container_of(at, struct tenant, link);

		if (strcmp(tenant->name, c->name) == 0) {
			tenant->refs++;
			*ret = tenant;
			return 0;
		}
	}
	return err_trace(tenant_new(t, c, ret));
}

struct tenant *tenant_unref(struct tenant *tenant)
{
	if (!tenant || --tenant->refs > 0) {
		return NULL;
	}
	list_remove(&tenant->link);
	quota_deinit(&tenant->bytes);
	quota_deinit(&tenant->pinned);
	quota_deinit(&tenant->sessions);
	free(tenant->name);
	free(tenant);
	return NULL;
}
