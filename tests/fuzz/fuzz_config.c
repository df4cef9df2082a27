/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the configuration parser: every file is refused with words, or its values survive being
 * written down and read again
 *
 * Input: the file's text. Users and groups are not looked up.
 *
 * Thread: one      Owns: its configurations      Locks: none
 */
#include <string.h>

#include "config/config.h"
#include "tests/fuzz/fuzz.h"

static const void *value_of(const struct config *c, size_t index)
{
	size_t i = index - CONFIG_NKEYS;

	if (index < CONFIG_NKEYS) {
		return (const char *)c + config_keys[index].offset;
	}
	return (const char *)&c->tenants[i / CONFIG_NTENANT_KEYS] +
	       config_tenant_keys[i % CONFIG_NTENANT_KEYS].offset;
}

static void check_round_trip(const struct config *c)
{
	struct config_item item;

	for (size_t i = 0; config_item(c, i, &item) == 0; i++) {
		/* All zero is a valid value of each type. */
		union {
			struct value_list list;
			struct value_group group;
			uint64_t number;
		} again = {0};
		char err[256];

		fuzz_check(value_parse(item.key, item.value, &again, err, sizeof(err)) == 0);
		if (item.key->type == VALUE_GROUP) {
			again.group.gid = -1;
		}
		fuzz_check(value_equal(item.key, value_of(c, i), &again));
		value_free(item.key, &again);
		free(item.value);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config_report report = {0};
	struct config *c;
	int r;

	if (config_new(&c) < 0) {
		return 0;
	}
	r = config_parse(c, "fuzz", (const char *)data, size, &report);
	fuzz_check((r == CONFIG_E_INVALID) == (report.errors > 0));
	fuzz_check(r != CONFIG_E_INVALID || report.text);
	/* Also after errors: what was refused must not have damaged the defaults. */
	check_round_trip(c);
	config_report_deinit(&report);
	config_free(c);
	return 0;
}
