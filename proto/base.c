/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Base: the slow path of the err_* macros
 *
 * Prints nothing by itself: a library must not write to its user's terminal. The daemon installs
 * a hook that writes debug lines; the hook is set once, before any thread starts.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "proto/base.h"

static err_hook_fn err_hook;

/**
 * err_set_hook() - install the function that is told of every unexpected error
 * @hook:  called in the failing thread, must not fail or block; NULL removes it
 */
void err_set_hook(err_hook_fn hook)
{
	err_hook = hook;
}

/**
 * err_trace_slow() - report one pass of an unexpected error, and return it
 */
int err_trace_slow(const char *file, int line, const char *func, int r)
{
	int saved = errno;

	if (err_hook) {
		err_hook(file, line, func, r);
	}
	errno = saved;
	return r;
}
