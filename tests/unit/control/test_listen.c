/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of control/listen: who lives, and what is left alone
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "control/listen.h"

static char dir[64], path[100];
static char err[512];

static void make_dir(void)
{
	strcpy(dir, "/tmp/test_listen_XXXXXX");
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/sub/rocecomm.sock", dir);
	unsetenv("LISTEN_FDS");
}

static void remove_dir(void)
{
	char command[100];

	snprintf(command, sizeof(command), "rm -r %s", dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(listen, .init = make_dir, .fini = remove_dir);

static int try_open(struct listen_socket *l)
{
	struct listen_options options = {.path = path, .mode = 0666, .gid = -1};

	err[0] = '\0';
	return listen_open(&options, l, err, sizeof(err));
}

static int try_connect(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	int r;

	strcpy(addr.sun_path, path);
	r = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	close(fd);
	return r;
}

Test(listen, mode_whatever_the_umask_and_nothing_left)
{
	struct listen_socket l;
	struct stat st;

	for (int i = 0; i < 2; i++) {
		umask(i == 0 ? 077 : 0);
		cr_assert_eq(try_open(&l), 0, "%s", err);
		cr_assert_eq(stat(path, &st), 0);
		cr_assert_eq(st.st_mode & 07777, 0666);
		cr_assert_eq(try_connect(), 0);
		path[strlen(dir) + 4] = '\0';
		cr_assert_eq(stat(path, &st), 0);
		path[strlen(dir) + 4] = '/';
		cr_assert_eq(st.st_mode & 0777, 0755);
		listen_close(&l);
		listen_close(&l);
		path[strlen(dir) + 4] = '\0';
		cr_assert_eq(rmdir(path), 0, "not empty");
		path[strlen(dir) + 4] = '/';
	}
}

Test(listen, second_daemon_is_refused_and_names_the_first)
{
	struct listen_socket l, second;
	char pid[32];

	cr_assert_eq(try_open(&l), 0, "%s", err);
	cr_assert_eq(try_open(&second), LISTEN_E_BUSY);
	snprintf(pid, sizeof(pid), "(pid %d)", (int)getpid());
	cr_assert(strstr(err, pid), "%s", err);
	cr_assert_eq(try_connect(), 0);
	listen_close(&l);
	cr_assert_eq(try_open(&l), 0, "%s", err);
	listen_close(&l);
}

Test(listen, socket_of_a_killed_daemon_is_replaced)
{
	struct listen_socket l;
	int fds[2];
	char byte;
	pid_t pid;

	cr_assert_eq(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		byte = (char)try_open(&l);
		_exit(write(fds[1], &byte, 1) == 1 ? pause() : 1);
	}
	cr_assert_eq(read(fds[0], &byte, 1), 1);
	cr_assert_eq(byte, 0);
	kill(pid, SIGSTOP);
	cr_assert_eq(try_open(&l), LISTEN_E_BUSY, "stopped is alive");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	cr_assert_eq(try_connect(), -1);
	cr_assert_eq(try_open(&l), 0, "%s", err);
	cr_assert_eq(try_connect(), 0);
	listen_close(&l);
}

Test(listen, file_link_and_directory_are_left_alone)
{
	struct listen_socket l;
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/x", dir);
	fd = open(path, O_CREAT | O_WRONLY, 0644);
	cr_assert_eq(write(fd, "data", 4), 4);
	close(fd);
	cr_assert_eq(try_open(&l), LISTEN_E_REFUSED);
	cr_assert(strstr(err, "is a file, not a socket"), "%s", err);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, 4);
	unlink(path);
	cr_assert_eq(symlink("/etc/passwd", path), 0);
	cr_assert_eq(try_open(&l), LISTEN_E_REFUSED);
	cr_assert(strstr(err, "symbolic link"), "%s", err);
	cr_assert_eq(lstat(path, &st), 0);
	unlink(path);
	cr_assert_eq(mkdir(path, 0755), 0);
	cr_assert_eq(try_open(&l), LISTEN_E_REFUSED);
	cr_assert(strstr(err, "directory"), "%s", err);
}

/* Each child tells whether it serves, and lives on until the others have tried. */
Test(listen, of_many_at_once_one_survives)
{
	enum { CHILDREN = 8, ROUNDS = 20 };

	for (int round = 0; round < ROUNDS; round++) {
		int out[2], go[2], serving = 0;
		char byte;

		cr_assert_eq(pipe(out), 0);
		cr_assert_eq(pipe(go), 0);
		for (int i = 0; i < CHILDREN; i++) {
			if (fork() == 0) {
				struct listen_socket l = {.fd = -1, .lock_fd = -1};
				int r;

				close(go[1]);
				byte = try_open(&l) == 0;
				r = write(out[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 0;
				listen_close(&l);
				_exit(!r);
			}
		}
		for (int i = 0; i < CHILDREN; i++) {
			cr_assert_eq(read(out[0], &byte, 1), 1);
			serving += byte;
		}
		cr_assert_eq(serving, 1);
		close(go[1]);
		close(go[0]);
		close(out[0]);
		close(out[1]);
		while (wait(NULL) > 0) {
		}
	}
}

Test(listen, path_too_long)
{
	struct listen_socket l;
	char longer[200];
	struct listen_options options = {.path = longer, .mode = 0666, .gid = -1};

	memset(longer, 'a', sizeof(longer));
	longer[0] = '/';
	longer[150] = '\0';
	cr_assert_eq(listen_open(&options, &l, err, sizeof(err)), LISTEN_E_REFUSED);
	cr_assert(strstr(err, "150 bytes, at most 107"), "%s", err);
}

/* In a child, since descriptor 3 is the test framework's. Return: 0 or the line that fails. */
static int activated(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct listen_socket l;
	char pid[16];
	int fd;

	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 5) < 0 ||
	    dup2(fd, 3) != 3) {
		return __LINE__;
	}
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "1", 1);
	if (try_open(&l) != 0 || !l.activated || strcmp(l.path, path) != 0 || l.fd != 3 ||
	    getenv("LISTEN_FDS")) {
		return __LINE__;
	}
	listen_close(&l);
	return access(path, F_OK) == 0 ? 0 : __LINE__;
}

Test(listen, activation_by_systemd)
{
	int status;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/x", dir);
	pid = fork();
	if (pid == 0) {
		_exit(activated());
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "line %d", WEXITSTATUS(status));
}

Test(listen, user_path)
{
	char buf[108], expected[200];

	setenv("XDG_RUNTIME_DIR", dir, 1);
	cr_assert_eq(listen_user_path(buf, sizeof(buf), err, sizeof(err)), 0, "%s", err);
	snprintf(expected, sizeof(expected), "%s/rocecomm/rocecomm.sock", dir);
	cr_assert_str_eq(buf, expected);
	chmod(dir, 0777);
	cr_assert_eq(listen_user_path(buf, sizeof(buf), err, sizeof(err)), LISTEN_E_REFUSED);
	cr_assert(strstr(err, "XDG_RUNTIME_DIR"), "%s", err);
}
