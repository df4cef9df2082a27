/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * A user daemon started on demand, by several ranks at once
 *
 * This program is its own stand-in for rocecommd: started as `... --user` it takes the lock, serves
 * the user's socket and exits when nobody is connected. It writes down what it inherited. With
 * STAND_IN_SAYS in the environment it says that on standard error and exits instead.
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 6 /* fewer than FAKE_SESSIONS */

static struct fake fake;

static void write_down(const char *dir)
{
	char path[200];
	sigset_t mask;
	FILE *f;
	int fds = count_fds() - 4; /* ., .., the directory itself, the lock */

	snprintf(path, sizeof(path), "%s/seen", dir);
	f = fopen(path, "w");
	sigprocmask(SIG_SETMASK, NULL, &mask);
	fprintf(f, "%d %d %d %d %d\n", (int)getpid(), fds, (int)getsid(0),
		sigismember(&mask, SIGUSR1), signal(SIGUSR2, SIG_DFL) == SIG_DFL);
	fclose(f);
}

static bool any_session(void)
{
	bool any = false;

	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < FAKE_SESSIONS; i++) {
		any = any || fake.sessions[i].fd >= 0;
	}
	pthread_mutex_unlock(&fake.lock);
	return any;
}

/* Runs before the test runner's main(). */
__attribute__((constructor)) static void stand_in(int argc, char **argv)
{
	char dir[100], path[120];
	int lock;

	if (argc != 2 || strcmp(argv[1], "--user") != 0) {
		return;
	}
	if (getenv("STAND_IN_SAYS")) {
		fputs(getenv("STAND_IN_SAYS"), stderr);
		_exit(1);
	}
	snprintf(dir, sizeof(dir), "%s/rocecomm", getenv("XDG_RUNTIME_DIR"));
	mkdir(dir, 0700);
	snprintf(path, sizeof(path), "%s/lock", dir);
	lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (flock(lock, LOCK_EX | LOCK_NB) < 0) {
		_exit(1);
	}
	write_down(dir);
	/* A talkative daemon: neither blocks nor dies. */
	for (int i = 0; i < 10000; i++) {
		fputs("warning: this log goes nowhere\n", stderr);
	}
	/* A slow start: the ranks have to wait. */
	poll(NULL, 0, 200);
	snprintf(path, sizeof(path), "%s/rocecomm.sock", dir);
	unlink(path);
	fake_start_at(&fake, path);
	for (int idle = 0; idle < 50; idle++) {
		poll(NULL, 0, 10);
		idle = any_session() ? 0 : idle;
	}
	fake_stop(&fake);
	_exit(0);
}

static int rank_main(const char *log, int go)
{
	struct roce_client *client;
	struct roce_unique_id id;
	sigset_t mask;
	char byte;
	int fd;

	fd = open(log, O_WRONLY | O_APPEND);
	dup2(fd, STDERR_FILENO);
	/* Not to be seen in the daemon: */
	signal(SIGUSR2, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	if (dup2(fd, 77) != 77 || read(go, &byte, 1) != 0) {
		return 3;
	}
	if (roce_connect(NULL, NULL, &client) != ROCE_OK) {
		fprintf(stderr, "FAILED %s\n", roce_last_error());
		return 1;
	}
	if (roce_get_unique_id(client, &id) != ROCE_OK) {
		return 2;
	}
	poll(NULL, 0, 100);
	roce_disconnect(client);
	/* Its zombie must not be left to us. */
	return waitpid(-1, NULL, WNOHANG) == -1 ? 0 : 4;
}

static void use_self_as_daemon(const char *dir)
{
	char self[300];
	ssize_t n;

	if (access("/run/rocecomm/rocecomm.sock", F_OK) == 0) {
		cr_skip_test("a system daemon runs here");
	}
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	cr_assert_gt(n, 0);
	self[n] = '\0';
	unsetenv("ROCECOMM_SOCKET");
	setenv("XDG_RUNTIME_DIR", dir, 1);
	setenv("ROCECOMMD", self, 1);
}

Test(autostart, many_ranks_at_once, .timeout = 60)
{
	char dir[] = "/tmp/roce-test-XXXXXX", log[64], seen[64], text[2000], want[200];
	int pid, fds, session, blocked, dfl, go[2], status;
	ssize_t n;
	FILE *f;

	cr_assert(mkdtemp(dir));
	use_self_as_daemon(dir);
	snprintf(log, sizeof(log), "%s/log", dir);
	close(open(log, O_CREAT | O_WRONLY, 0600));
	cr_assert_eq(pipe(go), 0);
	for (int i = 0; i < RANKS; i++) {
		if (fork() == 0) {
			close(go[1]);
			_exit(rank_main(log, go[0]));
		}
	}
	close(go[0]);
	close(go[1]);
	for (int i = 0; i < RANKS; i++) {
		wait(&status);
		cr_assert_eq(status, 0, "a rank ended with %x", status);
	}
	/* Said once, by the rank whose daemon stayed. */
	snprintf(seen, sizeof(seen), "%s/rocecomm/seen", dir);
	f = fopen(seen, "r");
	cr_assert(f);
	cr_assert_eq(fscanf(f, "%d %d %d %d %d", &pid, &fds, &session, &blocked, &dfl), 5);
	fclose(f);
	f = fopen(log, "r");
	n = (ssize_t)fread(text, 1, sizeof(text) - 1, f);
	text[n] = '\0';
	fclose(f);
	snprintf(want, sizeof(want),
		 "rocecomm: started a user daemon (pid %d, socket %s/rocecomm/rocecomm.sock); it "
		 "exits when idle\n",
		 pid, dir);
	cr_assert_str_eq(text, want);
	cr_assert_eq(fds, 3, "the daemon inherited %d descriptors", fds);
	cr_assert(!blocked && dfl);
	cr_assert_neq(session, (int)getsid(0));
	/* It exits by itself; then everything goes. */
	for (int i = 0; i < 500 && kill(pid, 0) == 0; i++) {
		poll(NULL, 0, 10);
	}
	snprintf(text, sizeof(text), "rm -r %s", dir);
	cr_assert_eq(system(text), 0);
}

/* Starts a daemon that says @says and exits. Checks that the sentence ends with @want. */
static void check_said(const char *says, const char *want)
{
	char dir[] = "/tmp/roce-test-XXXXXX";
	struct roce_client *client;
	const char *text;

	cr_assert(mkdtemp(dir));
	use_self_as_daemon(dir);
	setenv("STAND_IN_SAYS", says, 1);
	cr_assert_eq(roce_connect(NULL, NULL, &client), ROCE_ERR_NO_DAEMON);
	text = roce_last_error();
	cr_assert_geq(strlen(text), strlen(want));
	cr_assert_str_eq(text + strlen(text) - strlen(want), want, "%s", text);
	cr_assert_eq(rmdir(dir), 0);
}

Test(autostart, says_the_daemons_first_error, .timeout = 60)
{
	check_said("warning: old\nerror: rocecommd.conf:3: no such key\nerror: cannot go on\n",
		   "rocecomm.sock: it said: error: rocecommd.conf:3: no such key");
}

Test(autostart, says_the_last_line_without_an_error, .timeout = 60)
{
	check_said("one\ncannot load libuv\033.so\n\n",
		   "rocecomm.sock: it said: cannot load libuv?.so");
}

Test(autostart, says_a_cut_line, .timeout = 60)
{
	char says[10000], want[500];

	memset(says, 'x', sizeof(says) - 1);
	says[sizeof(says) - 1] = '\0';
	snprintf(want, sizeof(want), "rocecomm.sock: it said: %.400s", says);
	check_said(says, want);
}

Test(autostart, says_how_to_see_it_of_a_silent_daemon, .timeout = 60)
{
	check_said("", "rocecomm.sock: run it by hand to see why");
}
