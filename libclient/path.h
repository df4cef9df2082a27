/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Path: from a socket's path to a connected socket, or to a sentence why not
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECLIENT_PATH_H
#define ROCECLIENT_PATH_H

#include <stddef.h>
#include <stdint.h>

#define PATH_SYSTEM_SOCKET "/run/rocecomm/rocecomm.sock"
#define PATH_MAX_SOCKET 108 /* sizeof(sun_path) */

enum {
	PATH_E_ABSENT = 1,  /* nobody listens there: missing or left behind; sentence set */
	PATH_E_REFUSED = 2, /* the sentence and *ret_status say why */
};

/**
 * path_connect() - connect a non-blocking socket
 * @deadline:    a daemon with a full backlog is waited for until then (clock.h)
 * @ret_status:  a roce status, set for positive returns
 *
 * Return: 0, PATH_E_ABSENT, PATH_E_REFUSED.
 */
int path_connect(const char *path, int64_t deadline, int *ret_fd, int *ret_status);
/*
 * The user's directory for sockets: $XDG_RUNTIME_DIR, else /run/user/UID, else /tmp/rocecomm-UID
 * (made when @create). Return: 0 or a status with its sentence.
 */
int path_user_dir(char *buf, size_t size, int create);
/* The user daemon's socket in there. */
int path_user_socket(char *buf, size_t size, int create);

#endif
