/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Criterion in miniature: the runner (see criterion/criterion.h here)
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include <stdarg.h>
#include <unistd.h>

#include "criterion/criterion.h"

static struct mini_test *first_test;
static const struct mini_test *running;

void mini_register(struct mini_test *test)
{
	test->next = first_test;
	first_test = test;
}

void mini_fail(const char *file, int line, const char *what, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: %s::%s: %s ", file, line, running->suite, running->name, what);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	fflush(NULL);
	_exit(1);
}

int main(void)
{
	int n = 0;

	for (const struct mini_test *t = first_test; t; t = t->next) {
		running = t;
		fprintf(stderr, "%s::%s\n", t->suite, t->name);
		alarm(300);
		if (t->options.init) {
			t->options.init();
		}
		t->run();
		if (t->options.fini) {
			t->options.fini();
		}
		n++;
	}
	printf("%d passed, 0 failed\n", n);
	return 0;
}
