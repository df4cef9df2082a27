/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Autostart: implementation
 *
 * Everything that may allocate is prepared before fork(): the caller may have other threads, so
 * that the child may only make async-signal-safe calls. The middle process exits at once and is
 * reaped; the daemon is init's child, not the training process's.
 *
 * Its standard error is a memfd of fixed size rather than a pipe: what it said is there to be read
 * when it fails, and one that lives on neither blocks on it, nor gets SIGPIPE, nor fills memory.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/autostart.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "libclient/clock.h"
#include "libclient/error.h"
#include "libclient/path.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

#define SAID_SIZE 4096 /* what is kept of the daemon's standard error */
#define SAID_LINE 400  /* of that, in our sentence */

extern char **environ;

/* What the child tells before the pipe closes by exec: its pid, then, on failure, why. */
struct report {
	pid_t pid;
	int err;
};

static int executable(const char *file)
{
	struct stat st;

	return stat(file, &st) == 0 && S_ISREG(st.st_mode) && access(file, X_OK) == 0;
}

/* $ROCECOMMD, the directory it was installed to, PATH. */
static int find_daemon(char *buf, size_t size)
{
	const char *env = getenv("ROCECOMMD");
	const char *path = getenv("PATH");

	if (env && env[0] != '\0') {
		snprintf(buf, size, "%s", env);
		if (executable(buf)) {
			return 0;
		}
		return error_set(ROCE_ERR_NO_DAEMON,
				 "no daemon runs, and ROCECOMMD=%s is not a program", env);
	}
	snprintf(buf, size, "%s/rocecommd", ROCECOMM_SBINDIR);
	if (executable(buf)) {
		return 0;
	}
	while (path && path[0] != '\0') {
		size_t n = strcspn(path, ":");

		if (n > 0) {
			snprintf(buf, size, "%.*s/rocecommd", (int)MIN(n, size), path);
			if (executable(buf)) {
				return 0;
			}
		}
		path += n + (path[n] == ':');
	}
	return error_set(
		ROCE_ERR_NO_DAEMON,
		"no daemon runs, and no rocecommd to start was found in $ROCECOMMD, %s and "
		"PATH: install it, or name its socket in ROCECOMM_SOCKET",
		ROCECOMM_SBINDIR);
}

/* The environment, with XDG_RUNTIME_DIR as we found or chose it. *ret is to be freed. */
static int make_environ(char *xdg, size_t size, char ***ret)
{
	char dir[PATH_MAX];
	size_t n = 0, used = 0;
	char **env;
	int r;

	r = path_user_dir(dir, sizeof(dir), 1);
	if (r != 0) {
		return r;
	}
	snprintf(xdg, size, "XDG_RUNTIME_DIR=%s", dir);
	while (environ && environ[n]) {
		n++;
	}
	env = calloc(n + 2, sizeof(*env));
	if (!env) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory to start a daemon");
	}
	for (size_t i = 0; i < n; i++) {
		if (strncmp(environ[i], "XDG_RUNTIME_DIR=", 16) != 0) {
			env[used++] = environ[i];
		}
	}
	env[used] = xdg;
	*ret = env;
	return 0;
}

/* dup2() to 0, 1, 2 in the child must not hit what it still needs. Consumes @fd. */
static int move_up(int fd)
{
	int moved = fd;

	if (fd >= 0 && fd < 3) {
		moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		close(fd);
	}
	return moved;
}

/* Return: a file that takes SAID_SIZE bytes and refuses more, or -1: not to be had here. */
static int said_new(void)
{
	cleanup_close int fd = memfd_create("rocecommd-stderr", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	/* Unbounded, it would collect the log of a daemon that runs for months. */
	if (fd < 0 || ftruncate(fd, SAID_SIZE) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0) {
		return -1;
	}
	return move_up(take_fd(&fd));
}

/* Picks the daemon's first error, else its last line. @buf: "" or ": it said: <line>". */
static void said_line(int fd, char *buf, size_t size)
{
	char text[SAID_SIZE + 1], *line = NULL, *save = NULL;
	ssize_t n = fd >= 0 ? pread(fd, text, SAID_SIZE, 0) : -1;

	buf[0] = '\0';
	/* The part that was not written is zeros. */
	text[MAX(n, 0)] = '\0';
	for (char *s = strtok_r(text, "\n", &save); s; s = strtok_r(NULL, "\n", &save)) {
		line = s;
		if (strncmp(s, "error: ", 7) == 0) {
			break;
		}
	}
	if (!line) {
		return;
	}
	for (char *c = line; *c != '\0'; c++) {
		if ((unsigned char)*c < ' ' || *c == 0x7f) {
			*c = '?';
		}
	}
	snprintf(buf, size, ": it said: %.*s", SAID_LINE, line);
}

/* The daemon-to-be: async-signal-safe calls only. Does not return. @said: or -1. */
static _Noreturn void run_daemon(const char *file, char *const *argv, char *const *env, int out,
				 int said)
{
	struct report report = {.pid = getpid()};
	struct sigaction dfl = {.sa_handler = SIG_DFL};
	sigset_t none;
	int null;

	if (write(out, &report, sizeof(report)) < 0) {
		_exit(1);
	}
	/* The caller's signal set-up is not the daemon's. */
	for (int sig = 1; sig < NSIG; sig++) {
		sigaction(sig, &dfl, NULL);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	null = open("/dev/null", O_RDWR);
	if (null >= 0 && chdir("/") == 0 && dup2(null, 0) >= 0 && dup2(null, 1) >= 0 &&
	    dup2(said >= 0 ? said : null, 2) >= 0) {
		/* Nothing but those three survives exec, the report pipe included. */
		close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
		execve(file, argv, env);
	}
	report.err = errno;
	if (write(out, &report, sizeof(report)) < 0) {
		_exit(1);
	}
	_exit(1);
}

/* Forks twice. @ret: pid of the daemon, and why exec failed. Return: 0 or a status. */
static int spawn(const char *file, char *const *env, int said, struct report *ret)
{
	char *const argv[] = {(char *)"rocecommd", (char *)"--user", NULL};
	cleanup_close int in = -1;
	struct report report;
	int fds[2];
	pid_t middle;

	if (pipe2(fds, O_CLOEXEC) < 0) {
		return error_set(ROCE_ERR_NO_MEMORY, "cannot make a pipe: %s", strerror(errno));
	}
	in = fds[0];
	fds[1] = move_up(fds[1]);
	middle = fork();
	if (middle == 0) {
		setsid();
		if (fork() == 0) {
			run_daemon(file, argv, env, fds[1], said);
		}
		_exit(0);
	}
	close(fds[1]);
	if (middle < 0) {
		return error_set(ROCE_ERR_NO_MEMORY, "cannot fork to start %s: %s", file,
				 strerror(errno));
	}
	while (waitpid(middle, NULL, 0) < 0 && errno == EINTR) {
	}
	/* Ends when exec closes the pipe, or with the reason why it could not. */
	while (read(in, &report, sizeof(report)) == (ssize_t)sizeof(report)) {
		*ret = report;
	}
	if (ret->err != 0) {
		return error_set(ROCE_ERR_NO_DAEMON, "cannot run %s: %s", file, strerror(ret->err));
	}
	return 0;
}

/* Only the rank whose daemon stayed speaks. */
static void announce(const char *path, int fd, pid_t pid)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.pid == pid) {
		dprintf(STDERR_FILENO,
			"rocecomm: started a user daemon (pid %d, socket %s); it exits when "
			"idle\n",
			(int)pid, path);
	}
}

/* Return: ROCE_ERR_NO_DAEMON, with what is known of the daemon that does not serve. */
static int not_served(const char *file, const char *path, pid_t pid, int said)
{
	char line[SAID_LINE + 32];

	said_line(said, line, sizeof(line));
	if (kill(pid, 0) < 0 && errno == ESRCH) {
		return error_set(ROCE_ERR_NO_DAEMON,
				 "started %s --user, but it exited without serving %s%s", file,
				 path, line[0] != '\0' ? line : ": run it by hand to see why");
	}
	return error_set(ROCE_ERR_NO_DAEMON,
			 "started %s --user (pid %d), but it does not serve %s after %d ms%s", file,
			 (int)pid, path, AUTOSTART_WAIT_MS, line);
}

int autostart_connect(const char *path, int *ret_fd)
{
	int64_t deadline = clock_deadline(AUTOSTART_WAIT_MS);
	char file[PATH_MAX], xdg[PATH_MAX + 32];
	cleanup_free char **env = NULL;
	struct report report = {.pid = 0};
	cleanup_close int said = -1;
	int r, status;

	r = find_daemon(file, sizeof(file));
	if (r == 0) {
		r = make_environ(xdg, sizeof(xdg), &env);
	}
	if (r == 0) {
		said = said_new();
		r = spawn(file, env, said, &report);
	}
	if (r != 0) {
		return r;
	}
	for (int pause_ms = 2;; pause_ms = MIN(2 * pause_ms, 50)) {
		r = path_connect(path, deadline, ret_fd, &status);
		if (r == 0) {
			announce(path, *ret_fd, report.pid);
			return 0;
		}
		if (r != PATH_E_ABSENT) {
			return status;
		}
		if (clock_left_ms(deadline) == 0) {
			return not_served(file, path, report.pid, said);
		}
		poll(NULL, 0, pause_ms);
	}
}
