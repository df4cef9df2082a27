/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Descriptor sets: the implementation
 *
 * The control buffer of a receive holds LIMIT_FRAME_FDS descriptors and no more: the kernel drops
 * what a hostile sender adds and says so (MSG_CTRUNC), so surplus never occupies our table.
 *
 * Thread: any, one user at a time      Owns: the descriptors in a set      Locks: none
 * See: PROTOCOL.md §3
 */
#include "proto/fdpass.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "proto/base.h"

/* One SCM_RIGHTS message of at most LIMIT_FRAME_FDS descriptors, aligned for its header. */
union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int) * LIMIT_FRAME_FDS)];
};

/**
 * fdset_init() - make an empty set
 * @set:  uninitialised
 */
void fdset_init(struct fdset *set)
{
	set->n = 0;
	for (unsigned int i = 0; i < LIMIT_FRAME_FDS; i++) {
		set->fds[i] = -1;
	}
}

/**
 * fdset_deinit() - close what is left and make the set empty
 * @set:  initialised
 */
void fdset_deinit(struct fdset *set)
{
	for (unsigned int i = 0; i < set->n; i++) {
		base_close(set->fds[i]);
	}
	fdset_init(set);
}

/* See fdpass.h. Other descriptors keep their numbers in the set. */
int fdset_take(struct fdset *set, unsigned int i)
{
	return i < set->n ? take_fd(&set->fds[i]) : -1;
}

/* See fdpass.h. On failure both sets are as they were. */
int fdset_split(struct fdset *queue, unsigned int n, struct fdset *ret)
{
	if (n > queue->n) {
		return -EBADF;
	}
	fdset_init(ret);
	for (unsigned int i = 0; i < n; i++) {
		ret->fds[i] = queue->fds[i];
	}
	ret->n = n;
	queue->n -= n;
	memmove(queue->fds, queue->fds + n, queue->n * sizeof(queue->fds[0]));
	for (unsigned int i = queue->n; i < queue->n + n; i++) {
		queue->fds[i] = -1;
	}
	return 0;
}

/* See fdpass.h. */
ssize_t fd_send(int sock, const void *data, size_t size, const int *fds, unsigned int nfds)
{
	union fd_control control = {0};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	/* Without a byte of data the descriptors would travel with nothing. */
	if (nfds > LIMIT_FRAME_FDS || (nfds > 0 && size == 0)) {
		return -EINVAL;
	}
	if (nfds > 0) {
		struct cmsghdr *cmsg = &control.align;

		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
	}
	do {
		n = sendmsg(sock, &msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Moves the descriptors of one control message to the queue. Return: false if some did not fit. */
static bool queue_rights(struct fdset *queue, struct cmsghdr *cmsg)
{
	size_t count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	bool fits = true;
	int fd;

	for (size_t i = 0; i < count; i++) {
		memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
		if (queue->n < LIMIT_FRAME_FDS) {
			queue->fds[queue->n++] = fd;
		} else {
			base_close(fd);
			fits = false;
		}
	}
	return fits;
}

/* See fdpass.h. *ret_truncated is written whenever bytes or end of stream were received. */
ssize_t fd_recv(int sock, void *data, size_t size, struct fdset *queue, bool *ret_truncated)
{
	union fd_control control;
	struct iovec iov = {.iov_base = data, .iov_len = size};
	struct msghdr msg;
	bool truncated;
	ssize_t n;

	do {
		msg = (struct msghdr){
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control.bytes),
		};
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0) {
		return -errno;
	}
	truncated = (msg.msg_flags & MSG_CTRUNC) != 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		    !queue_rights(queue, c)) {
			truncated = true;
		}
	}
	*ret_truncated = truncated;
	return n;
}
