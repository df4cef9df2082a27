/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Hello: 32 bytes that never change, so that any two versions can tell each other theirs
 *
 *      0          8        10       12       16                      32
 *      +----------+--------+--------+--------+-----------------------+
 *      | magic    | min    | max    | flags  | zero                  |
 *      +----------+--------+--------+--------+-----------------------+
 *      8 bytes    u16 LE   u16 LE   u32 LE   16 bytes
 *
 * Both sides of a client socket, and both ends of a daemon-to-daemon link (inside TLS), send one
 * first. The common version is the smaller of the two max; if it is below either min, both sides
 * know both ranges and say so.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §2
 */
#ifndef ROCECOMM_PROTO_HELLO_H
#define ROCECOMM_PROTO_HELLO_H

#include <stdint.h>

#define HELLO_SIZE 32
#define HELLO_MAGIC_CLIENT "ROCECOMM"
#define HELLO_MAGIC_PEER "ROCEPEER"

/* Between client and daemon. */
#define PROTOCOL_VERSION_MIN 1
#define PROTOCOL_VERSION_MAX 1
/* Between daemons. */
#define PROTOCOL_PEER_VERSION_MIN 3
#define PROTOCOL_PEER_VERSION_MAX 3

enum { HELLO_E_MAGIC = 1, HELLO_E_VERSION = 2 };

struct hello {
	uint16_t min;
	uint16_t max;
	uint32_t flags; /* none defined; unknown ones are ignored */
};

void hello_encode(uint8_t *buf, const char *magic, const struct hello *hello);
/*
 * Reads a hello and agrees on a version with ours. ret_theirs is set whenever the magic matches.
 * Return: 0, HELLO_E_MAGIC (not a rocecomm peer), HELLO_E_VERSION (no common version).
 */
int hello_decode(const uint8_t *buf, const char *magic, const struct hello *ours,
		 struct hello *ret_theirs, uint16_t *ret_version);

#endif
