/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Criterion in miniature: runs the same test files in one plain process
 *
 * Criterion's processes do not start under ThreadSanitizer ("inheritable arena"). This header takes
 * its place there: tests register themselves, run one after the other in this process, and the
 * first failed assertion ends it with exit status 1. It knows the part of criterion that our tests
 * use.
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TESTS_MINI_CRITERION_H
#define ROCECOMM_TESTS_MINI_CRITERION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "" __VA_ARGS__ is how a macro takes an optional format. */
#pragma GCC diagnostic ignored "-Wformat-zero-length"

struct mini_options {
	double timeout;
	int signal;
	int exit_code;
	bool disabled;
	void (*init)(void);
	void (*fini)(void);
	const char *description;
};

struct mini_test {
	const char *suite;
	const char *name;
	void (*run)(void);
	struct mini_options options;
	struct mini_test *next;
};

void mini_register(struct mini_test *test);
void mini_fail(const char *file, int line, const char *what, const char *fmt, ...)
	__attribute__((format(printf, 4, 5), noreturn));

#define Test(suite_, name_, ...)                                                   \
	static void suite_##_##name_##_run(void);                                  \
	__attribute__((constructor)) static void suite_##_##name_##_register(void) \
	{                                                                          \
		static struct mini_test t = {.suite = #suite_,                     \
					     .name = #name_,                       \
					     .run = suite_##_##name_##_run,        \
					     .options = {__VA_ARGS__}};            \
		mini_register(&t);                                                 \
	}                                                                          \
	static void suite_##_##name_##_run(void)

#define mini_check(cond, what, ...)                                          \
	do {                                                                 \
		if (!(cond)) {                                               \
			mini_fail(__FILE__, __LINE__, what, "" __VA_ARGS__); \
		}                                                            \
	} while (0)

#define cr_fail(...) mini_fail(__FILE__, __LINE__, "failed", "" __VA_ARGS__)
#define cr_assert_fail(...) mini_fail(__FILE__, __LINE__, "failed", "" __VA_ARGS__)
#define cr_assert(c, ...) mini_check(c, #c, __VA_ARGS__)
#define cr_expect(c, ...) mini_check(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) mini_check(!(c), "not " #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) mini_check((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) mini_check((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) mini_check((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) mini_check((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) mini_check((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) mini_check((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...) mini_check((a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) mini_check((a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) mini_check(strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...) mini_check(memcmp(a, b, n) == 0, #a " is " #b, __VA_ARGS__)
#define cr_expect_null(a, ...) cr_assert_null(a, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) cr_assert_eq(a, b, __VA_ARGS__)
#define cr_skip_test(...) return

#endif
