/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of fdpass: what arrives is owned, what is surplus is closed, nothing leaks
 *
 * Every test counts /proc/self/fd before and after.
 *
 * Thread: any      Owns: its descriptors      Locks: none
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "proto/base.h"
#include "proto/fdpass.h"

#define MANY_FDS 40

/* Writes one character an open descriptor ('x') up to 1024. Criterion's own are in it too. */
static void fd_map(char *map)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	cr_assert_not_null(dir);
	memset(map, '.', 1024);
	while ((entry = readdir(dir))) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && fd != dirfd(dir) && fd < 1024) {
			map[fd] = 'x';
		}
	}
	closedir(dir);
}

struct pair {
	char before[1024];
	int sock[2];
	int fds[MANY_FDS];
	struct fdset queue;
};

static void pair_init(struct pair *p, int nonblock)
{
	fd_map(p->before);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | nonblock, 0, p->sock), 0);
	for (unsigned int i = 0; i < MANY_FDS; i++) {
		/* The count tells descriptors apart after they travelled. */
		p->fds[i] = eventfd(100 + i, EFD_CLOEXEC | EFD_NONBLOCK);
		cr_assert_geq(p->fds[i], 0);
	}
	fdset_init(&p->queue);
}

static void pair_deinit(struct pair *p)
{
	char after[1024];

	fdset_deinit(&p->queue);
	base_close(p->sock[0]);
	base_close(p->sock[1]);
	for (unsigned int i = 0; i < MANY_FDS; i++) {
		base_close(p->fds[i]);
	}
	fd_map(after);
	cr_assert_arr_eq(p->before, after, sizeof(after), "descriptors leaked");
}

/* The descriptor is eventfd number @i, and CLOEXEC. Leaves the count in place. */
static void check_fd(int fd, unsigned int i)
{
	uint64_t count = 0;

	cr_assert_geq(fd, 0);
	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	cr_assert_eq(read(fd, &count, sizeof(count)), (ssize_t)sizeof(count));
	cr_assert_eq(count, 100 + i);
	cr_assert_eq(write(fd, &count, sizeof(count)), (ssize_t)sizeof(count));
}

/* A sender that is not bound by fd_send()'s limit. */
static void send_raw(int sock, const void *data, size_t size, const int *fds, unsigned int n)
{
	char control[CMSG_SPACE(sizeof(int) * MANY_FDS)] __attribute__((aligned(16))) = {0};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = CMSG_SPACE(n * sizeof(int))};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(cmsg), fds, n * sizeof(int));
	cr_assert_eq(sendmsg(sock, &msg, 0), (ssize_t)size);
}

Test(fdpass, counts)
{
	struct pair p;

	pair_init(&p, 0);
	for (unsigned int n = 0; n <= LIMIT_FRAME_FDS; n++) {
		bool truncated = true;
		char buf[16] = "";

		cr_assert_eq(fd_send(p.sock[0], "hello", 5, p.fds, n), 5);
		cr_assert_eq(fd_recv(p.sock[1], buf, sizeof(buf), &p.queue, &truncated), 5);
		cr_assert_str_eq(buf, "hello");
		cr_assert_not(truncated);
		cr_assert_eq(p.queue.n, n);
		for (unsigned int i = 0; i < n; i++) {
			check_fd(p.queue.fds[i], i);
		}
		fdset_deinit(&p.queue);
		cr_assert_eq(p.queue.n, 0);
	}
	pair_deinit(&p);
}

Test(fdpass, sender_is_limited)
{
	struct pair p;

	pair_init(&p, 0);
	cr_assert_eq(fd_send(p.sock[0], "x", 1, p.fds, LIMIT_FRAME_FDS + 1), -EINVAL);
	cr_assert_eq(fd_send(p.sock[0], "", 0, p.fds, 1), -EINVAL);
	pair_deinit(&p);
}

/* More in one message than a frame may carry: the kernel or we drop it, and it is told. */
Test(fdpass, surplus_in_one_message)
{
	struct pair p;

	pair_init(&p, 0);
	for (unsigned int n = LIMIT_FRAME_FDS + 1; n <= MANY_FDS; n++) {
		bool truncated = false;
		char buf[4];

		send_raw(p.sock[0], "x", 1, p.fds, n);
		cr_assert_eq(fd_recv(p.sock[1], buf, sizeof(buf), &p.queue, &truncated), 1);
		cr_assert(truncated, "%u descriptors", n);
		cr_assert_leq(p.queue.n, LIMIT_FRAME_FDS);
		fdset_deinit(&p.queue);
	}
	pair_deinit(&p);
}

/* The queue is part full: what fits is kept in order, the rest is closed. */
Test(fdpass, surplus_over_two_messages)
{
	bool truncated = false;
	struct pair p;
	char buf[4];

	pair_init(&p, 0);
	cr_assert_eq(fd_send(p.sock[0], "a", 1, p.fds, 5), 1);
	cr_assert_eq(fd_send(p.sock[0], "b", 1, p.fds + 5, 5), 1);
	cr_assert_eq(fd_recv(p.sock[1], buf, 1, &p.queue, &truncated), 1);
	cr_assert_not(truncated);
	cr_assert_eq(fd_recv(p.sock[1], buf, 1, &p.queue, &truncated), 1);
	cr_assert(truncated);
	cr_assert_eq(p.queue.n, LIMIT_FRAME_FDS);
	for (unsigned int i = 0; i < LIMIT_FRAME_FDS; i++) {
		check_fd(p.queue.fds[i], i);
	}
	pair_deinit(&p);
}

/* Descriptors that nobody received die with the socket. */
Test(fdpass, never_received)
{
	struct pair p;

	pair_init(&p, 0);
	cr_assert_eq(fd_send(p.sock[0], "abc", 3, p.fds, 8), 3);
	pair_deinit(&p);
}

/* They come with the first byte, also when the reader takes one byte at a time. */
Test(fdpass, first_byte)
{
	bool truncated;
	struct pair p;
	char c;

	pair_init(&p, 0);
	cr_assert_eq(fd_send(p.sock[0], "abc", 3, p.fds, 2), 3);
	for (unsigned int i = 0; i < 3; i++) {
		cr_assert_eq(fd_recv(p.sock[1], &c, 1, &p.queue, &truncated), 1);
		cr_assert_eq(c, "abc"[i]);
		cr_assert_eq(p.queue.n, 2);
	}
	pair_deinit(&p);
}

Test(fdpass, split_and_take)
{
	struct fdset set;
	bool truncated;
	struct pair p;
	char c;
	int fd;

	pair_init(&p, 0);
	cr_assert_eq(fd_send(p.sock[0], "a", 1, p.fds, 5), 1);
	cr_assert_eq(fd_recv(p.sock[1], &c, 1, &p.queue, &truncated), 1);

	fdset_init(&set);
	cr_assert_eq(fdset_split(&p.queue, 6, &set), -EBADF);
	cr_assert_eq(p.queue.n, 5);
	cr_assert_eq(fdset_split(&p.queue, 0, &set), 0);
	cr_assert_eq(set.n, 0);
	cr_assert_eq(fdset_split(&p.queue, 3, &set), 0);
	cr_assert_eq(set.n, 3);
	cr_assert_eq(p.queue.n, 2);
	check_fd(set.fds[2], 2);
	check_fd(p.queue.fds[0], 3);
	check_fd(p.queue.fds[1], 4);

	fd = fdset_take(&set, 1);
	check_fd(fd, 1);
	cr_assert_eq(fdset_take(&set, 1), -1, "taken twice");
	cr_assert_eq(fdset_take(&set, 3), -1);
	fdset_deinit(&set);
	check_fd(fd, 1); /* still ours */
	base_close(fd);
	pair_deinit(&p);
}

Test(fdpass, end_and_errors)
{
	cleanup_free char *big = calloc(1, 1 << 20);
	bool truncated;
	struct pair p;
	ssize_t n;
	char c;

	pair_init(&p, SOCK_NONBLOCK);
	cr_assert_not_null(big);
	cr_assert_eq(fd_recv(p.sock[1], &c, 1, &p.queue, &truncated), -EAGAIN);
	do {
		n = fd_send(p.sock[0], big, 1 << 20, p.fds, 1);
	} while (n > 0);
	cr_assert_eq(n, -EAGAIN);
	p.sock[0] = base_close(p.sock[0]);
	do {
		n = fd_recv(p.sock[1], big, 1 << 20, &p.queue, &truncated);
	} while (n > 0);
	cr_assert_eq(n, 0);
	/* The other end is gone: an error, and no SIGPIPE. */
	cr_assert_eq(fd_send(p.sock[1], "x", 1, NULL, 0), -EPIPE);
	cr_assert_eq(fd_recv(-1, &c, 1, &p.queue, &truncated), -EBADF);
	pair_deinit(&p);
}
