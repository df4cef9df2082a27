/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of the JSON writer
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "control/json.h"

static void expect_string(const char *value, const char *quoted)
{
	struct json j;
	char *text;

	json_init(&j);
	json_string(&j, NULL, value);
	cr_assert_eq(json_finish(&j, &text), 0);
	cr_assert_str_eq(text, quoted);
	free(text);
}

Test(json, structure)
{
	static const uint8_t bytes[] = {0, 0xab};
	struct json j;
	char *text;

	json_init(&j);
	json_open(&j, NULL);
	json_open_array(&j, "a");
	json_uint(&j, NULL, 1);
	json_uint(&j, NULL, UINT64_MAX);
	json_open(&j, NULL);
	json_close(&j);
	json_close_array(&j);
	json_bool(&j, "b", true);
	json_null(&j, "c");
	json_hex(&j, "d", bytes, sizeof(bytes));
	json_close(&j);
	cr_assert_eq(json_finish(&j, &text), 0);
	cr_assert_str_eq(text, "{\"a\":[1,18446744073709551615,{}],\"b\":true,\"c\":null,"
			       "\"d\":\"00ab\"}");
	free(text);
}

Test(json, escapes)
{
	expect_string("a\"b\\c", "\"a\\\"b\\\\c\"");
	expect_string("\n\t\x01\x7f", "\"\\u000a\\u0009\\u0001\\u007f\"");
	expect_string("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80",
		      "\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"");
}

Test(json, bytes_that_are_no_text)
{
	expect_string("\xff", "\"\\ufffd\"");
	expect_string("\xc3", "\"\\ufffd\"");
	expect_string("\xe2\x82", "\"\\ufffd\\ufffd\"");
	expect_string("\xc0\xaf", "\"\\ufffd\\ufffd\"");
	expect_string("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"");
	expect_string("\xf4\x90\x80\x80x", "\"\\ufffd\\ufffd\\ufffd\\ufffdx\"");
}

Test(json, grows)
{
	struct json j;
	char *text;

	json_init(&j);
	json_open_array(&j, NULL);
	for (int i = 0; i < 10000; i++) {
		json_string(&j, NULL, "0123456789");
	}
	json_close_array(&j);
	cr_assert_eq(json_finish(&j, &text), 0);
	cr_assert_eq(strlen(text), 2 + 10000 * 12 + 9999);
	free(text);
}
