/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Scramble: numbers that look random and can be made again anywhere, for what tools send and check
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TOOLS_MODEL_SCRAMBLE_H
#define ROCECOMM_TOOLS_MODEL_SCRAMBLE_H

#include <stdint.h>

/* A permutation of 32-bit numbers: every bit of @x reaches every bit of the result. */
static inline uint32_t scramble(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	x *= 0x846ca68bu;
	x ^= x >> 16;
	return x;
}

#endif
