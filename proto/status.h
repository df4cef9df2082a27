/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status: the result codes that cross the socket, the ring and the public API
 *
 * One list for all three, so that a code never needs translating. roceclient.h repeats the values
 * under their public names (a static assertion in libclient keeps them equal). Values are never
 * reused; new ones are appended.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_PROTO_STATUS_H
#define ROCECOMM_PROTO_STATUS_H

enum status {
	STATUS_OK = 0,
	STATUS_IN_PROGRESS = 1,	 /* not finished yet (test, wait with a time-out) */
	STATUS_INVALID = 2,	 /* an argument is wrong */
	STATUS_UNSUPPORTED = 3,	 /* a combination that does not exist, such as fp8 sum */
	STATUS_MISMATCH = 4,	 /* ranks disagree about an operation or a communicator */
	STATUS_PEER_DIED = 5,	 /* another rank or its daemon died or left */
	STATUS_ABORTED = 6,	 /* somebody called abort */
	STATUS_TIMEOUT = 7,	 /* a rank never arrived, or bytes stopped */
	STATUS_QUOTA = 8,	 /* the tenant's limit is reached */
	STATUS_NO_MEMORY = 9,	 /* the system has no memory, descriptors, ... */
	STATUS_NO_DAEMON = 10,	 /* no daemon at the socket, or it went away */
	STATUS_PERMISSION = 11,	 /* not allowed */
	STATUS_VERSION = 12,	 /* the two sides share no protocol version */
	STATUS_PROTOCOL = 13,	 /* a message or descriptor that breaks the protocol */
	STATUS_FD_MISSING = 14,	 /* a descriptor that a message promised did not arrive */
	STATUS_BAD_MEMORY = 15,	 /* a memfd that is unsealed, too small or of a wrong kind */
	STATUS_UNREACHABLE = 16, /* no address of another host answers */
	STATUS_FORKED = 17,	 /* handle of the parent used in a forked child */
	STATUS_SHUTDOWN = 18,	 /* the daemon is stopping */
	STATUS_EXISTS = 19,	 /* the unique id or rank is taken */
	STATUS_NOT_FOUND = 20,	 /* no such communicator, buffer, ... */
	STATUS_INTERNAL = 21,	 /* a fault of rocecomm itself */
	STATUS_COUNT_
};

const char *status_name(unsigned int status);
const char *status_text(unsigned int status);
enum status status_from_errno(int err);

#endif
