/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Seconds: an option's value
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/rocectl/rocectl.h"

#define SECONDS_MIN 0.1

int seconds_parse(const char *option, const char *text, unsigned int max, double *ret_seconds)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end != '\0' || !(seconds >= SECONDS_MIN) || seconds > max) {
		fprintf(stderr, "rocectl: --%s=%s: seconds are a number from %g to %u\n", option,
			text, SECONDS_MIN, max);
		return ROCECTL_USAGE;
	}
	*ret_seconds = seconds;
	return ROCECTL_OK;
}
