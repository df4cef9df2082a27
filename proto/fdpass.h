/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Descriptor sets: the fds that travel with a frame, as one owned object
 *
 * All received descriptors are CLOEXEC. Fds arrive with the first byte of the sendmsg that carried
 * them; a receiver queues them and takes `nfds` of them when a frame is whole. A set closes what
 * was not taken.
 *
 * Thread: any, one user at a time      Owns: the descriptors in the set      Locks: none
 */
#ifndef ROCECOMM_PROTO_FDPASS_H
#define ROCECOMM_PROTO_FDPASS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/limits.h"

struct fdset {
	int fds[LIMIT_FRAME_FDS];
	unsigned int n;
};

void fdset_init(struct fdset *set);
/* Closes what is left. */
void fdset_deinit(struct fdset *set);
/* Takes fd number @i out of the set (the set no longer owns it), -1 if there is none. */
int fdset_take(struct fdset *set, unsigned int i);
/* Moves the first @n of @queue to the empty set @ret. Return: 0, or -EBADF if there are fewer. */
int fdset_split(struct fdset *queue, unsigned int n, struct fdset *ret);

/**
 * fd_send() - send bytes with descriptors
 * @fds, @nfds:  borrowed; sent with the first byte
 *
 * Return: bytes sent, or negative errno (-EAGAIN when the socket is full: nothing was sent).
 */
ssize_t fd_send(int sock, const void *data, size_t size, const int *fds, unsigned int nfds);

/**
 * fd_recv() - receive bytes, append descriptors to @queue
 * @queue:          arriving descriptors are appended; those that do not fit are closed
 * @ret_truncated:  set to true if descriptors were lost (MSG_CTRUNC, or queue full)
 *
 * Return: bytes, 0 at end of stream, negative errno.
 */
ssize_t fd_recv(int sock, void *data, size_t size, struct fdset *queue, bool *ret_truncated);

#endif
