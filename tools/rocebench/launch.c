/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Launch: implementation
 *
 * Thread: main      Owns: see launch.h      Locks: none
 */
#include "tools/rocebench/launch.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base.h"
#include "proto/limits.h"

#define GRACE_MS 3000 /* for the others to end by themselves */
#define LOOK_MS 20

struct children {
	pid_t pids[LIMIT_LOCAL_RANKS]; /* 0: has ended */
	unsigned int n, left;
	int status; /* of the first that failed, else 0 */
};

static void set_number(const char *name, unsigned int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	setenv(name, text, 1);
}

static void set_environment(const struct options *o, unsigned int rank, pid_t parent)
{
	static const char *const not_ours[] = {"GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
					       "MASTER_PORT", "ROCECOMM_ROOT"};
	const char *name = o->job ? o->job : "rocebench";
	char job[256];

	for (size_t i = 0; i < ARRAY_SIZE(not_ours); i++) {
		unsetenv(not_ours[i]);
	}
	set_number("RANK", rank);
	set_number("WORLD_SIZE", o->ranks * o->hosts);
	set_number("LOCAL_WORLD_SIZE", o->ranks);
	if (o->root) {
		setenv("ROCECOMM_ROOT", o->root, 1);
	}
	if (o->hosts > 1) {
		snprintf(job, sizeof(job), "%s", name);
	} else {
		/* Several at once on one host do not meet. */
		snprintf(job, sizeof(job), "%.200s.%ld", name, (long)parent);
	}
	setenv("TORCHELASTIC_RUN_ID", job, 1);
}

static void child(const struct options *o, unsigned int local, pid_t parent,
		  int (*run)(const struct options *options))
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) {
		_exit(ROCEBENCH_FAILED);
	}
	set_environment(o, o->host * o->ranks + local, parent);
	exit(run(o));
}

static void child_ended(struct children *c, const struct options *o, pid_t pid, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : ROCEBENCH_FAILED;

	for (unsigned int i = 0; i < c->n; i++) {
		if (c->pids[i] != pid) {
			continue;
		}
		c->pids[i] = 0;
		c->left--;
		if (WIFSIGNALED(status) && c->status == 0) {
			fprintf(stderr, "rocebench: rank %u was ended by signal %d (%s)\n",
				o->host * o->ranks + i, WTERMSIG(status),
				strsignal(WTERMSIG(status)));
		}
		if (c->status == 0) {
			c->status = code;
		}
	}
}

static void kill_all(const struct children *c)
{
	for (unsigned int i = 0; i < c->n; i++) {
		if (c->pids[i] > 0) {
			kill(c->pids[i], SIGKILL);
		}
	}
}

static int wait_all(struct children *c, const struct options *o)
{
	int waited = 0, status;

	while (c->left > 0) {
		bool hurry = c->status != 0;
		pid_t pid = waitpid(-1, &status, hurry ? WNOHANG : 0);

		if (pid > 0) {
			child_ended(c, o, pid, status);
		} else if (pid == 0) {
			poll(NULL, 0, LOOK_MS);
			waited += LOOK_MS;
			if (waited == GRACE_MS) {
				kill_all(c);
			}
		} else if (errno != EINTR) {
			break;
		}
	}
	return c->status;
}

int launch(const struct options *options, int (*run)(const struct options *options))
{
	struct children c = {.n = 0};
	pid_t parent = getpid();

	fflush(NULL);
	for (unsigned int i = 0; i < options->ranks; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			child(options, i, parent, run);
		}
		if (pid < 0) {
			fprintf(stderr, "rocebench: cannot start rank %u of %u: %s\n", i,
				options->ranks, strerror(errno));
			c.status = ROCEBENCH_FAILED;
			kill_all(&c);
			break;
		}
		c.pids[c.n++] = pid;
		c.left++;
	}
	return wait_all(&c, options);
}
