/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of peers: the daemon at the other end, a child process, is stopped or killed
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peers_fixture.h"

TestSuite(peers_death, .init = fixture_setup, .fini = fixture_teardown, .timeout = 60);

/* A child with side b. Return: its pid; its port in *ret_port. */
static pid_t spawn_beta(uint16_t *ret_port)
{
	int pipefd[2];
	pid_t pid;

	cr_assert_eq(pipe(pipefd), 0);
	pid = fork();
	if (pid == 0) {
		struct peers_options ob = options(0xb2, "beta");
		struct side b;
		uint16_t port;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		uv_loop_init(&loop);
		side_open(&b, &ob);
		port = peers_port(b.peers);
		(void)!write(pipefd[1], &port, sizeof(port));
		run_for(30000);
		_exit(0);
	}
	cr_assert_eq(read(pipefd[0], ret_port, sizeof(*ret_port)), sizeof(*ret_port));
	close(pipefd[0]);
	close(pipefd[1]);
	return pid;
}

static pid_t link_child(struct side *a, unsigned int timeout_ms)
{
	struct peers_options oa = options(0xa1, "alpha");
	struct peer_host host = {.addresses = v4, .naddresses = 1};
	pid_t pid = spawn_beta(&host.port);

	oa.peer_timeout_ms = timeout_ms;
	side_open(a, &oa);
	cr_assert_eq(peers_connect(a->peers, &host, &a->peer), 0);
	cr_assert(run_until(&a->ups, 1, 2000), "%s", a->reason);
	return pid;
}

static void reap(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

Test(peers_death, heartbeat_lost)
{
	struct side a;
	pid_t pid = link_child(&a, 400);
	uint64_t start, took;

	run_for(300);
	start = uv_hrtime();
	kill(pid, SIGSTOP);
	cr_assert(run_until(&a.downs, 1, 2000));
	took = (uv_hrtime() - start) / 1000000;
	cr_assert(took >= 300 && took < 600, "%lu ms", (unsigned long)took);
	cr_assert_eq(a.status, STATUS_PEER_DIED);
	cr_assert(strstr(a.reason, "beta") && strstr(a.reason, "nothing heard"), "%s", a.reason);
	reap(pid);
	side_close(&a);
}

/* The link is silent, as over an interface that is down, while data comes over another. */
Test(peers_death, data_is_life)
{
	struct side a;
	pid_t pid = link_child(&a, 400);
	uint64_t start, took;

	run_for(300);
	uv_update_time(&loop);
	a.data_until = uv_now(&loop) + 1000;
	start = uv_hrtime();
	kill(pid, SIGSTOP);
	cr_assert(run_until(&a.downs, 1, 4000));
	took = (uv_hrtime() - start) / 1000000;
	cr_assert(took >= 1300 && took < 1700, "%lu ms", (unsigned long)took);
	reap(pid);
	side_close(&a);
}

Test(peers_death, killed)
{
	struct side a;
	pid_t pid = link_child(&a, 400);
	uint64_t start = uv_hrtime();

	reap(pid);
	cr_assert(run_until(&a.downs, 1, 2000));
	cr_assert_lt((uv_hrtime() - start) / 1000000, 200);
	cr_assert_eq(a.status, STATUS_PEER_DIED);
	side_close(&a);
}

/* We were stopped ourselves: that says nothing about the others. */
Test(peers_death, own_stall_is_forgiven)
{
	struct side a;
	pid_t pid = link_child(&a, 120);

	for (int i = 0; i < 3; i++) {
		usleep(250 * 1000); /* the other side's patience is 400 ms */
		run_for(60);
	}
	cr_assert_eq(a.downs, 0, "%s", a.reason);
	reap(pid);
	side_close(&a);
}
