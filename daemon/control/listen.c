/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Listen: implementation
 *
 * Thread: control      Owns: see listen.h      Locks: none
 */
#include "control/listen.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include "proto/base.h"

#define LOCK_SUFFIX ".lock"

attr_printf(4, 5) static int refuse(int code, char *err, size_t size, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err, size, fmt, ap);
	va_end(ap);
	return code;
}

/* ---- lock --------------------------------------------------------------------------------- */

/* The holder writes its pid just after it has the lock: a moment of patience finds it. */
static long read_pid(int fd)
{
	for (int i = 0; i < 10; i++) {
		char buf[16] = "";
		long pid = 0;

		if (pread(fd, buf, sizeof(buf) - 1, 0) > 0) {
			pid = strtol(buf, NULL, 10);
		}
		if (pid > 0) {
			return pid;
		}
		poll(NULL, 0, 10);
	}
	return 0;
}

static int write_pid(int fd)
{
	char buf[16];
	int n = snprintf(buf, sizeof(buf), "%d\n", (int)getpid());

	return ftruncate(fd, 0) == 0 && pwrite(fd, buf, (size_t)n, 0) == n ? 0 : -errno;
}

/* Is what lies at @path still the file behind @fd? A daemon that ended has removed its lock. */
static bool same_file(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
	       a.st_ino == b.st_ino;
}

static int take_lock(const char *path, int *ret_fd, char *err, size_t err_size)
{
	char lock[LISTEN_PATH_SIZE + sizeof(LOCK_SUFFIX)];
	cleanup_close int fd = -1;

	snprintf(lock, sizeof(lock), "%s" LOCK_SUFFIX, path);
	do {
		base_close(fd);
		/* 0600: whoever can open it could hold the lock and keep every daemon out. */
		fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
		if (fd < 0) {
			return refuse(LISTEN_E_REFUSED, err, err_size,
				      "cannot open the lock file %s: %s", lock, strerror(errno));
		}
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			long pid = errno == EWOULDBLOCK ? read_pid(fd) : 0;

			if (errno != EWOULDBLOCK && pid == 0) {
				return refuse(LISTEN_E_REFUSED, err, err_size, "cannot lock %s: %s",
					      lock, strerror(errno));
			}
			return refuse(LISTEN_E_BUSY, err, err_size,
				      "a rocecommd (pid %ld) serves %s already; stop that one, or "
				      "give this one another --socket",
				      pid, path);
		}
	} while (!same_file(fd, lock));
	if (write_pid(fd) < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size, "cannot write %s: %s", lock,
			      strerror(errno));
	}
	*ret_fd = take_fd(&fd);
	return 0;
}

/* ---- directory ---------------------------------------------------------------------------- */

/* Makes the last directory of @path when it is missing; checks it when it must be private. */
static int prepare_dir(const struct listen_options *o, char *err, size_t err_size)
{
	char dir[LISTEN_PATH_SIZE];
	mode_t mode = o->private_dir ? 0700 : 0755;
	struct stat st;
	char *slash;

	snprintf(dir, sizeof(dir), "%s", o->path);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir) {
		return 0;
	}
	*slash = '\0';
	if (mkdir(dir, mode) == 0) {
		if (chmod(dir, mode) < 0) { /* the umask has cut it */
			return refuse(LISTEN_E_REFUSED, err, err_size, "cannot chmod %s: %s", dir,
				      strerror(errno));
		}
	} else if (errno != EEXIST) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "cannot make the socket's directory %s: %s%s", dir, strerror(errno),
			      errno == EACCES ? "; as a plain user, run rocecommd --user" : "");
	}
	if (!o->private_dir) {
		return 0;
	}
	if (lstat(dir, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & 022)) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "%s is not a directory that only this user can write to; remove it, "
			      "or set XDG_RUNTIME_DIR",
			      dir);
	}
	return 0;
}

static bool own_dir(const char *dir)
{
	struct stat st;

	return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & 022);
}

/* See listen.h. */
int listen_user_path(char *buf, size_t size, char *err, size_t err_size)
{
	const char *xdg = getenv("XDG_RUNTIME_DIR");
	unsigned int uid = (unsigned int)geteuid();
	char dir[PATH_MAX];

	if (xdg && xdg[0] == '/') {
		snprintf(dir, sizeof(dir), "%s", xdg);
	} else {
		snprintf(dir, sizeof(dir), "/run/user/%u", uid);
		if (!own_dir(dir)) {
			snprintf(dir, sizeof(dir), "/tmp/rocecomm-%u", uid);
			if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
				return refuse(LISTEN_E_REFUSED, err, err_size,
					      "cannot make %s: %s; set XDG_RUNTIME_DIR", dir,
					      strerror(errno));
			}
		}
	}
	if (!own_dir(dir)) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "%s is not a directory that only this user can write to; set "
			      "XDG_RUNTIME_DIR to one",
			      dir);
	}
	if ((size_t)snprintf(buf, size, "%s/rocecomm/rocecomm.sock", dir) >= size) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "XDG_RUNTIME_DIR=%.200s is too long for a socket's path (%zu bytes)",
			      dir, size - 1);
	}
	return 0;
}

/* ---- socket ------------------------------------------------------------------------------- */

/* Holding the lock, a socket at the path is a dead daemon's; anything else is not ours. */
static int remove_stale(const char *path, char *err, size_t err_size)
{
	struct stat st;

	if (lstat(path, &st) < 0) {
		return errno == ENOENT ? 0
				       : refuse(LISTEN_E_REFUSED, err, err_size,
						"cannot examine %s: %s", path, strerror(errno));
	}
	if (!S_ISSOCK(st.st_mode)) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "%s is a %s, not a socket: it is left as it is; remove it, or give "
			      "another --socket",
			      path,
			      S_ISLNK(st.st_mode)   ? "symbolic link"
			      : S_ISDIR(st.st_mode) ? "directory"
						    : "file");
	}
	if (unlink(path) < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size, "cannot replace %s: %s", path,
			      strerror(errno));
	}
	return 0;
}

/* Nobody gets in before listen(), so that mode and group are in place when anybody does. */
static int bind_socket(const struct listen_options *o, struct listen_socket *l, char *err,
		       size_t err_size)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct stat st;

	memcpy(addr.sun_path, o->path, strlen(o->path));
	if (bind(l->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || lstat(o->path, &st) < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size, "cannot bind %s: %s", o->path,
			      strerror(errno));
	}
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	if (o->gid >= 0 &&
	    fchownat(AT_FDCWD, o->path, (uid_t)-1, (gid_t)o->gid, AT_SYMLINK_NOFOLLOW) < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "cannot give %s to group %u (socket_group): %s", o->path,
			      (unsigned int)o->gid, strerror(errno));
	}
	if (chmod(o->path, o->mode) < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "cannot set the mode of %s to %04o (socket_mode): %s", o->path,
			      o->mode, strerror(errno));
	}
	if (listen(l->fd, SOMAXCONN) < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size, "cannot listen on %s: %s", o->path,
			      strerror(errno));
	}
	return 0;
}

static int make_socket(const struct listen_options *o, struct listen_socket *l, char *err,
		       size_t err_size)
{
	int r;

	if (strlen(o->path) >= sizeof(l->path)) {
		return refuse(LISTEN_E_REFUSED, err, err_size,
			      "the socket's path has %zu bytes, at most %zu are possible: %s",
			      strlen(o->path), sizeof(l->path) - 1, o->path);
	}
	snprintf(l->path, sizeof(l->path), "%s", o->path);
	r = prepare_dir(o, err, err_size);
	if (r == 0) {
		r = take_lock(o->path, &l->lock_fd, err, err_size);
	}
	if (r == 0) {
		r = remove_stale(o->path, err, err_size);
	}
	if (r != 0) {
		return r;
	}
	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0) {
		return refuse(LISTEN_E_REFUSED, err, err_size, "cannot make a socket: %s",
			      strerror(errno));
	}
	return bind_socket(o, l, err, err_size);
}

/* One stream socket that listens; where it is bound is systemd's affair. */
static int adopt_socket(int count, struct listen_socket *l, char *err, size_t err_size)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(addr);
	int fd = SD_LISTEN_FDS_START, r;

	if (count != 1 || sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) <= 0) {
		return refuse(
			LISTEN_E_REFUSED, err, err_size,
			"systemd passed %d descriptors where one listening Unix stream socket "
			"is wanted; see ListenStream= in rocecommd.socket",
			count);
	}
	l->fd = fd;
	l->activated = true;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	if (getsockname(fd, (struct sockaddr *)&addr, &len) == 0 && addr.sun_path[0] == '/') {
		snprintf(l->path, sizeof(l->path), "%.*s", (int)sizeof(l->path) - 1, addr.sun_path);
	}
	if (l->path[0] != '\0') {
		r = take_lock(l->path, &l->lock_fd, err, err_size);
		/* A directory that we may not write to cannot hold another daemon's lock either. */
		return r == LISTEN_E_BUSY ? r : 0;
	}
	return 0;
}

/* See listen.h. */
int listen_open(const struct listen_options *options, struct listen_socket *ret, char *err,
		size_t err_size)
{
	struct listen_socket l = {.fd = -1, .lock_fd = -1};
	int n, r;

	n = sd_listen_fds(1);
	if (n > 0) {
		r = adopt_socket(n, &l, err, err_size);
	} else {
		r = make_socket(options, &l, err, err_size);
	}
	if (r != 0) {
		listen_close(&l);
		return r;
	}
	*ret = l;
	return 0;
}

/* See listen.h. */
void listen_close(struct listen_socket *l)
{
	char lock[LISTEN_PATH_SIZE + sizeof(LOCK_SUFFIX)];
	struct stat st;

	if (l->ino != 0 && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino) {
		unlink(l->path);
	}
	l->fd = base_close(l->fd);
	if (l->lock_fd >= 0) {
		/* While it is held: the next daemon then makes a new one. */
		snprintf(lock, sizeof(lock), "%s" LOCK_SUFFIX, l->path);
		unlink(lock);
		l->lock_fd = base_close(l->lock_fd);
	}
}
