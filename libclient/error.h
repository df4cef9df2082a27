/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Error: the sentence of a thread's last failed call
 *
 * Every function of the library that fails leaves one sentence here: what was refused, the value,
 * the limit and the mend. Later steps of the same call may prefix it, never lose it.
 *
 * Thread: any; the text is thread-local      Owns: the text      Locks: none
 */
#ifndef ROCECLIENT_ERROR_H
#define ROCECLIENT_ERROR_H

#include "proto/base.h"

/* Stores the sentence of this thread. Return: @status, so that callers can `return error_set(...)`.
 */
int error_set(int status, const char *format, ...) attr_printf(2, 3);
/* Puts "prefix: " before the sentence that is there. Return: @status. */
int error_prefix(int status, const char *format, ...) attr_printf(2, 3);
const char *error_last(void);
/* Copies a sentence, cut to LIMIT_ERROR_TEXT. @to: that many bytes. */
void error_copy(char *to, const char *from);

#endif
