/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Autostart: a daemon of this user, when no daemon runs
 *
 * As gpg-agent is started: on demand, detached, without the caller's descriptors. Several ranks
 * may do it at once; the daemon itself holds a lock, so that all but one of them exit and everybody
 * connects to the one that stayed.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECLIENT_AUTOSTART_H
#define ROCECLIENT_AUTOSTART_H

#define AUTOSTART_WAIT_MS 5000

/**
 * autostart_connect() - start `rocecommd --user`, wait for its socket
 * @path:    the user daemon's socket
 * @ret_fd:  connected, non-blocking
 *
 * Says once on standard error that a daemon was started, if it is the one that answers.
 *
 * Return: 0 or a status with its sentence.
 */
int autostart_connect(const char *path, int *ret_fd);

#endif
