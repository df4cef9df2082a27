/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status: names, meanings, and what an errno becomes
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "proto/status.h"

#include "proto/base.h"

static const struct {
	const char *name;
	const char *text;
} statuses[STATUS_COUNT_] = {
	[STATUS_OK] = {"ok", "success"},
	[STATUS_IN_PROGRESS] = {"in-progress", "the operation has not finished yet"},
	[STATUS_INVALID] = {"invalid", "an argument is wrong"},
	[STATUS_UNSUPPORTED] = {"unsupported", "this combination of arguments does not exist"},
	[STATUS_MISMATCH] = {"mismatch", "ranks disagree about an operation or a communicator"},
	[STATUS_PEER_DIED] = {"peer-died", "another rank or its daemon died or left"},
	[STATUS_ABORTED] = {"aborted", "the communicator was aborted"},
	[STATUS_TIMEOUT] = {"timeout", "a rank never arrived, or bytes stopped moving"},
	[STATUS_QUOTA] = {"quota", "a limit that the configuration sets for this user is reached"},
	[STATUS_NO_MEMORY] = {"no-memory", "the system has no memory or descriptors left"},
	[STATUS_NO_DAEMON] = {"no-daemon", "no daemon answers at the socket, or it went away"},
	[STATUS_PERMISSION] = {"permission", "the caller is not allowed to do this"},
	[STATUS_VERSION] = {"version", "the two sides share no protocol version"},
	[STATUS_PROTOCOL] = {"protocol", "a message or descriptor broke the protocol"},
	[STATUS_FD_MISSING] = {"fd-missing", "a file descriptor that was promised did not arrive"},
	[STATUS_BAD_MEMORY] = {"bad-memory",
			       "the memory is unsealed, too small or of a wrong kind"},
	[STATUS_UNREACHABLE] = {"unreachable", "no address of another host answers"},
	[STATUS_FORKED] = {"forked", "a handle of the parent was used in a forked child"},
	[STATUS_SHUTDOWN] = {"shutdown", "the daemon is stopping"},
	[STATUS_EXISTS] = {"exists", "the unique id or the rank is taken already"},
	[STATUS_NOT_FOUND] = {"not-found", "no such communicator, buffer or other object"},
	[STATUS_INTERNAL] = {"internal", "a fault of rocecomm itself; please report it"},
};

/**
 * status_name() - short name of a status, for logs and tables
 *
 * Return: a constant, also for a value that does not exist.
 */
const char *status_name(unsigned int status)
{
	return status < STATUS_COUNT_ ? statuses[status].name : "unknown";
}

/**
 * status_text() - meaning of a status, one line without a full stop
 *
 * Return: a constant, also for a value that does not exist.
 */
const char *status_text(unsigned int status)
{
	return status < STATUS_COUNT_ ? statuses[status].text
				      : "a status that this version does not know";
}

/**
 * status_from_errno() - the status that tells a user most about an errno
 * @err:  errno, of either sign; 0 is success
 *
 * ECONNREFUSED is about another host here. A library that fails to reach the daemon's socket says
 * STATUS_NO_DAEMON by itself.
 */
enum status status_from_errno(int err)
{
	switch (err < 0 ? -err : err) {
	case 0:
		return STATUS_OK;
	case EINVAL:
	case ERANGE:
	case EDOM:
		return STATUS_INVALID;
	case EOPNOTSUPP:
	case ENOSYS:
		return STATUS_UNSUPPORTED;
	case ENOMEM:
	case ENOBUFS:
	case EMFILE:
	case ENFILE:
	case ENOSPC:
		return STATUS_NO_MEMORY;
	case EACCES:
	case EPERM:
		return STATUS_PERMISSION;
	case ETIMEDOUT:
		return STATUS_TIMEOUT;
	case EDQUOT:
		return STATUS_QUOTA;
	case EPROTO:
	case EBADMSG:
	case EMSGSIZE:
		return STATUS_PROTOCOL;
	case EBADF:
		return STATUS_FD_MISSING;
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case EHOSTDOWN:
	case ENETUNREACH:
	case ENETDOWN:
		return STATUS_UNREACHABLE;
	case ECONNRESET:
	case ECONNABORTED:
	case EPIPE:
		return STATUS_PEER_DIED;
	case ECANCELED:
		return STATUS_ABORTED;
	case ESHUTDOWN:
		return STATUS_SHUTDOWN;
	case EEXIST:
	case EADDRINUSE:
		return STATUS_EXISTS;
	case ENOENT:
	case ESRCH:
		return STATUS_NOT_FOUND;
	case EAGAIN:
	case EINPROGRESS:
		return STATUS_IN_PROGRESS;
	default:
		return STATUS_INTERNAL;
	}
}
