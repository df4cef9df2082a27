/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tensor: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/model/tensor.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

void tensor_add(struct tensor_list *list, size_t count, const char *format, ...)
{
	struct tensor *t;
	va_list ap;

	assert(list->n < TENSORS_MAX);
	t = &list->tensors[list->n++];
	va_start(ap, format);
	vsnprintf(t->name, sizeof(t->name), format, ap);
	va_end(ap);
	t->count = count;
}

size_t tensor_total(const struct tensor_list *list)
{
	size_t total = 0;

	for (size_t i = 0; i < list->n; i++) {
		total += list->tensors[i].count;
	}
	return total;
}
