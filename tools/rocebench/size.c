/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Size: see size.h
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/rocebench/size.h"

#include <string.h>

int options_size(const char *text, size_t length, size_t *ret)
{
	static const char units[] = "KMG";
	size_t value = 0, i = 0;

	for (; i < length && text[i] >= '0' && text[i] <= '9'; i++) {
		value = value * 10 + (size_t)(text[i] - '0');
		if (value > OPTIONS_SIZE_MAX) {
			return -1;
		}
	}
	if (i == 0 || length - i > 1) {
		return -1;
	}
	if (i < length) {
		const char *unit = strchr(units, text[i] & ~0x20);

		if (!unit || *unit == '\0') {
			return -1;
		}
		value <<= 10 * (unit - units + 1);
	}
	if (value > OPTIONS_SIZE_MAX) {
		return -1;
	}
	*ret = value;
	return 0;
}
