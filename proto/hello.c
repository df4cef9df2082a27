/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Hello: the implementation
 *
 * Unknown flags and the reserved bytes are ignored, so that a later version may use them. A range
 * whose min is above its max shares no version with anybody.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §2
 */
#include "proto/hello.h"

#include <string.h>

#include "proto/base.h"

#define HELLO_MAGIC_SIZE 8

/**
 * hello_encode() - write a hello
 * @buf:    HELLO_SIZE bytes
 * @magic:  HELLO_MAGIC_*
 * @hello:  borrowed
 */
void hello_encode(uint8_t *buf, const char *magic, const struct hello *hello)
{
	memset(buf, 0, HELLO_SIZE);
	memcpy(buf, magic, HELLO_MAGIC_SIZE);
	buf[8] = (uint8_t)hello->min;
	buf[9] = (uint8_t)(hello->min >> 8);
	buf[10] = (uint8_t)hello->max;
	buf[11] = (uint8_t)(hello->max >> 8);
	for (unsigned int i = 0; i < 4; i++) {
		buf[12 + i] = (uint8_t)(hello->flags >> (8 * i));
	}
}

/* See hello.h. */
int hello_decode(const uint8_t *buf, const char *magic, const struct hello *ours,
		 struct hello *ret_theirs, uint16_t *ret_version)
{
	struct hello theirs = {0};
	uint16_t version;

	if (memcmp(buf, magic, HELLO_MAGIC_SIZE) != 0) {
		return HELLO_E_MAGIC;
	}
	theirs.min = (uint16_t)(buf[8] | buf[9] << 8);
	theirs.max = (uint16_t)(buf[10] | buf[11] << 8);
	for (unsigned int i = 0; i < 4; i++) {
		theirs.flags |= (uint32_t)buf[12 + i] << (8 * i);
	}
	*ret_theirs = theirs;
	version = MIN(ours->max, theirs.max);
	if (version < ours->min || version < theirs.min) {
		return HELLO_E_VERSION;
	}
	*ret_version = version;
	return 0;
}
