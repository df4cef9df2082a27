/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of config/reload
 */
#include <criterion/criterion.h>
#include <string.h>

#include "config/reload.h"

static struct config *make(const char *text)
{
	struct config_report report = {0};
	struct config *c;

	cr_assert_eq(config_new(&c), 0);
	cr_assert_eq(config_parse(c, "f", text, strlen(text), &report), 0, "%s", report.text);
	cr_assert_eq(config_resolve(c, &report), 0, "%s", report.text);
	return c;
}

Test(reload, applies_what_may_change_and_names_the_rest)
{
	struct config *running = make("[daemon]\nlog_level = info\n[peer]\nport = 1\n");
	struct config *fresh = make("[peer]\nport = 2\n[daemon]\njoin_timeout_ms = 1000\n"
				    "[daemon]\nlog_level = debug\n[tenant x]\nusers = 0\n");
	struct reload_result result;

	reload_apply(running, fresh, &result);
	config_free(fresh);
	cr_assert_eq(running->log_level, LOG_LEVEL_DEBUG);
	cr_assert_eq(running->port, 1);
	cr_assert_eq(running->join_timeout_ms, 1000);
	cr_assert_eq(result.applied, 3);
	cr_assert_eq(result.waiting, 1);
	cr_assert_str_eq(result.waiting_text, "port (1 -> 2)");
	cr_assert(strstr(result.applied_text, "log_level (info -> debug)"));
	cr_assert(strstr(result.applied_text, "tenants"));
	cr_assert_str_eq(config_tenant_of(running, 0)->name, "x");
	config_free(running);
}

Test(reload, nothing_changed)
{
	struct config *running = make("[tenant x]\nusers = 0\n");
	struct config *fresh = make("\n\n[tenant x]\nusers = 0\n");
	struct reload_result result;

	reload_apply(running, fresh, &result);
	config_free(fresh);
	cr_assert_eq(result.applied, 0);
	cr_assert_eq(result.waiting, 0);
	cr_assert_eq(running->tenants[1].source[CONFIG_TENANT_KEY_users].line, 4);
	config_free(running);
}
