/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Path: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/path.h"

#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "libclient/clock.h"
#include "libclient/error.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

static void group_name(gid_t gid, char *buf, size_t size)
{
	char scratch[4096];
	struct group group, *found = NULL;

	if (getgrgid_r(gid, &group, scratch, sizeof(scratch), &found) == 0 && found) {
		snprintf(buf, size, "%s", found->gr_name);
	} else {
		snprintf(buf, size, "%u", (unsigned int)gid);
	}
}

static void user_name(uid_t uid, char *buf, size_t size)
{
	char scratch[4096];
	struct passwd user, *found = NULL;

	if (getpwuid_r(uid, &user, scratch, sizeof(scratch), &found) == 0 && found) {
		snprintf(buf, size, "%s", found->pw_name);
	} else {
		snprintf(buf, size, "%u", (unsigned int)uid);
	}
}

/* Finds the first directory on the way that we may not pass. Return: length of it, 0: none. */
static size_t path_barrier(const char *path, char *dir, size_t size)
{
	for (size_t i = 1; path[i] != '\0' && i < size; i++) {
		if (path[i] != '/') {
			continue;
		}
		memcpy(dir, path, i);
		dir[i] = '\0';
		if (faccessat(AT_FDCWD, dir, X_OK, AT_EACCESS) < 0 && errno == EACCES) {
			return i;
		}
	}
	return 0;
}

static void path_say_permission(const char *path)
{
	char dir[PATH_MAX_SOCKET], group[64], user[64], mend[128];
	struct stat st;

	if (path_barrier(path, dir, sizeof(dir)) > 0) {
		if (stat(dir, &st) < 0) {
			error_set(ROCE_ERR_PERMISSION,
				  "cannot reach the daemon's socket %s: the directory %s is not "
				  "traversable for this user",
				  path, dir);
			return;
		}
		user_name(st.st_uid, user, sizeof(user));
		group_name(st.st_gid, group, sizeof(group));
		error_set(ROCE_ERR_PERMISSION,
			  "cannot reach the daemon's socket %s: the directory %s (mode %04o, owner "
			  "%s, group %s) is not traversable for this user: chmod o+x it, or join "
			  "the group",
			  path, dir, st.st_mode & 07777, user, group);
		return;
	}
	if (stat(path, &st) < 0) {
		error_set(ROCE_ERR_PERMISSION, "not allowed to connect to %s", path);
		return;
	}
	user_name(st.st_uid, user, sizeof(user));
	group_name(st.st_gid, group, sizeof(group));
	/* A group that may not write, or root's, is not worth joining. */
	if ((st.st_mode & S_IWGRP) && st.st_gid != 0) {
		snprintf(mend, sizeof(mend),
			 "join the group (usermod -aG %s USER, then log in anew)", group);
	} else {
		snprintf(mend, sizeof(mend),
			 "let this user write to it by socket_group and socket_mode in "
			 "rocecommd.conf");
	}
	error_set(ROCE_ERR_PERMISSION,
		  "not allowed to connect to %s: its mode is %04o, owner %s, group %s: %s", path,
		  st.st_mode & 07777, user, group, mend);
}

/* Says for a missing path which part of it is missing. */
static void path_say_absent(const char *path)
{
	char dir[PATH_MAX_SOCKET];
	struct stat st;

	for (size_t i = 1; path[i] != '\0' && i < sizeof(dir); i++) {
		if (path[i] != '/') {
			continue;
		}
		memcpy(dir, path, i);
		dir[i] = '\0';
		if (stat(dir, &st) < 0) {
			error_set(ROCE_ERR_NO_DAEMON,
				  "no daemon at %s: the directory %s does not exist", path, dir);
			return;
		}
	}
	error_set(ROCE_ERR_NO_DAEMON, "no daemon at %s: there is no such socket", path);
}

/* Finds the words for a failed connect(). */
static int path_failed(const char *path, int err, int *ret_status)
{
	struct stat st;

	switch (err) {
	case ENOENT:
	case ENOTDIR:
		path_say_absent(path);
		*ret_status = ROCE_ERR_NO_DAEMON;
		return PATH_E_ABSENT;
	case ECONNREFUSED:
		*ret_status = ROCE_ERR_NO_DAEMON;
		if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
			error_set(ROCE_ERR_NO_DAEMON, "%s is not a socket", path);
			return PATH_E_REFUSED;
		}
		error_set(ROCE_ERR_NO_DAEMON,
			  "no daemon listens at %s (the socket is left over): start rocecommd",
			  path);
		return PATH_E_ABSENT;
	case EACCES:
	case EPERM:
		path_say_permission(path);
		*ret_status = ROCE_ERR_PERMISSION;
		return PATH_E_REFUSED;
	case EAGAIN:
		*ret_status = ROCE_ERR_TIMEOUT;
		error_set(ROCE_ERR_TIMEOUT,
			  "the daemon at %s does not accept connections: is it stopped?", path);
		return PATH_E_REFUSED;
	default:
		*ret_status = err == EPROTOTYPE ? ROCE_ERR_PROTOCOL : ROCE_ERR_NO_DAEMON;
		error_set(*ret_status, "cannot connect to %s: %s", path, strerror(err));
		return PATH_E_REFUSED;
	}
}

int path_connect(const char *path, int64_t deadline, int *ret_fd, int *ret_status)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	cleanup_close int fd = -1;
	size_t len = strlen(path);

	if (len == 0 || len >= sizeof(addr.sun_path)) {
		*ret_status = error_set(ROCE_ERR_INVALID,
					"the socket path has %zu bytes, 1 to %zu are possible: %s",
					len, sizeof(addr.sun_path) - 1, path);
		return PATH_E_REFUSED;
	}
	memcpy(addr.sun_path, path, len);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		*ret_status = error_set(ROCE_ERR_NO_MEMORY, "cannot make a socket: %s (ulimit -n?)",
					strerror(errno));
		return PATH_E_REFUSED;
	}
	while (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		if (errno == EINTR) {
			continue;
		}
		if (errno != EAGAIN || clock_left_ms(deadline) == 0) {
			return path_failed(path, errno, ret_status);
		}
		/* The backlog is full: the daemon is alive but slow. */
		poll(NULL, 0, 10);
	}
	*ret_fd = take_fd(&fd);
	return 0;
}

static int own_dir(const char *dir)
{
	struct stat st;

	return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

int path_user_dir(char *buf, size_t size, int create)
{
	const char *xdg = getenv("XDG_RUNTIME_DIR");
	unsigned int uid = (unsigned int)geteuid();

	if (xdg && xdg[0] == '/') {
		snprintf(buf, size, "%s", xdg);
		return 0;
	}
	snprintf(buf, size, "/run/user/%u", uid);
	if (own_dir(buf)) {
		return 0;
	}
	snprintf(buf, size, "/tmp/rocecomm-%u", uid);
	if (create && mkdir(buf, 0700) < 0 && errno != EEXIST) {
		return error_set(ROCE_ERR_NO_DAEMON, "cannot make %s: %s; set XDG_RUNTIME_DIR", buf,
				 strerror(errno));
	}
	/* Also when only connecting: /tmp is everybody's, and so might be a daemon in there. */
	if (!own_dir(buf) && (create || access(buf, F_OK) == 0)) {
		return error_set(ROCE_ERR_PERMISSION,
				 "%s is not a directory of this user; set XDG_RUNTIME_DIR", buf);
	}
	return 0;
}

int path_user_socket(char *buf, size_t size, int create)
{
	char dir[PATH_MAX];
	int r = path_user_dir(dir, sizeof(dir), create);

	if (r != 0) {
		return r;
	}
	if ((size_t)snprintf(buf, size, "%s/rocecomm/rocecomm.sock", dir) >= size) {
		return error_set(ROCE_ERR_INVALID,
				 "XDG_RUNTIME_DIR=%s is too long for a socket path (%zu bytes)",
				 dir, size - 1);
	}
	return 0;
}
