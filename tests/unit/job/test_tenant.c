/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of tenants
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <string.h>

#include "job/tenant.h"

static struct config *config_of(const char *text)
{
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_parse(c, "test", text, strlen(text), &report), 0, "%s", report.text);
	cr_assert_eq(config_resolve(c, &report), 0, "%s", report.text);
	config_report_deinit(&report);
	return c;
}

Test(tenant, users_share_limits)
{
	struct config *c = config_of("[tenant ml]\nusers = 1000, 1001\nmax_bytes = 1M\n"
				     "max_comms = 3\n");
	struct tenant *a, *b, *other;
	struct quota_charge charge = {0}, none = {0};
	struct tenants t;

	tenants_init(&t, c);
	cr_assert_eq(tenants_get(&t, 1000, &a), 0);
	cr_assert_eq(tenants_get(&t, 1001, &b), 0);
	cr_assert_eq(tenants_get(&t, 5000, &other), 0);
	cr_assert_eq(a, b);
	cr_assert_str_eq(a->name, "ml");
	cr_assert_eq(a->max_comms, 3);
	cr_assert_str_eq(other->name, "default");
	cr_assert_eq(quota_charge(&a->bytes, 1 << 20, &charge), 0);
	cr_assert_eq(quota_charge(&b->bytes, 1, &none), QUOTA_E_EXCEEDED);
	cr_assert_eq(quota_charge(&other->bytes, 1, &none), 0);
	quota_release(&none);
	quota_release(&charge);
	tenant_unref(a);
	tenant_unref(b);
	tenant_unref(other);
	tenants_deinit(&t);
	config_free(c);
}

Test(tenant, reload)
{
	struct config *c = config_of("[tenant ml]\nusers = 1000\nmax_bytes = 1M\n"
				     "max_pinned = 1M\n");
	struct tenant *a;
	struct tenants t;

	tenants_init(&t, c);
	cr_assert_eq(tenants_get(&t, 1000, &a), 0);
	for (size_t i = 0; i < c->ntenants; i++) {
		c->tenants[i].max_bytes = 4096;
		c->tenants[i].max_pinned = 8192;
	}
	tenants_reload(&t);
	cr_assert_eq(quota_limit(&a->bytes), 4096);
	cr_assert_eq(quota_limit(&a->pinned), 8192);
	tenant_unref(a);
	tenants_deinit(&t);
	config_free(c);
}
