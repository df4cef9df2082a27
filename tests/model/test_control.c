/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * How the control plane grows: starts of communicators on virtual time
 *
 * The goal is 10,000 hosts x 8 ranks in 5 s and 200 MB a daemon. That run takes a while; it is held
 * to here by smaller ones, whose times may not be more than their share.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "job/roster.h"
#include "proto/base.h"
#include "tools/simulate/control.h"
#include "tools/simulate/simulate.h"

#define RANKS 8
#define DAEMON_MAX 200e6

static unsigned int failed;

static void check(bool ok, uint32_t hosts, const char *what)
{
	if (!ok) {
		printf("  %u hosts: %s\n", hosts, what);
		failed++;
	}
}

/* @seconds: so long it may take */
static struct control_result start(uint32_t hosts, double skew_ms, double seconds)
{
	struct control_result r;

	check(control_run(&control_model, hosts, RANKS, 0, skew_ms, &r) == 0, hosts, r.error);
	printf("  %5u hosts %8.3f ms, %u links, %.1f MB a daemon\n", hosts, r.seconds * 1e3,
	       r.most_links, (double)r.daemon * 1e-6);
	check(r.seconds <= seconds, hosts, "it takes too long");
	check((double)r.daemon < DAEMON_MAX, hosts, "a daemon is too large");
	return r;
}

/* Four times the hosts: what a host holds and does may grow as much, not with its square. */
static void check_growth(const struct control_result *a, const struct control_result *b,
			 uint32_t hosts)
{
	check(b->host_heap <= 5 * a->host_heap, hosts, "a host's memory grows too fast");
	check(b->root_heap <= 5 * a->root_heap, hosts, "the root's memory grows too fast");
	check(b->most_bytes <= 5 * a->most_bytes, hosts, "the busiest host's bytes grow too fast");
	check(b->most_messages <= 5 * a->most_messages, hosts,
	      "the busiest host's messages grow too fast");
	check(b->most_links <= ROSTER_NEAR_MAX, hosts, "a host has too many links");
}

/* Lines that `control @words` prints, each an object, and its exit status. */
static void check_command(const char *words, int status, unsigned int lines)
{
	char text[256], *argv[16] = {(char[]){"control"}}, *at;
	int argc = 1, c, now;
	unsigned int n = 0;
	FILE *keep = stdout;
	FILE *out = tmpfile();

	snprintf(text, sizeof(text), "%s", words);
	for (char *word = strtok_r(text, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
		argv[argc++] = word;
	}
	if (!out) {
		check(false, 0, "no temporary file");
		return;
	}
	optind = 0;
	stdout = out;
	now = simulate_control(argc, argv);
	stdout = keep;
	rewind(out);
	while ((c = fgetc(out)) != EOF) {
		n += c == '\n';
	}
	fclose(out);
	printf("  control %s: %d, %u lines\n", words, now, n);
	check(now == status && n == lines, 0, words);
}

int main(void)
{
	struct control_result small, large, again;

	check_command("--json --hosts 2,3 --ranks 1", SIMULATE_OK, 2);
	check_command("--json --hosts 2 --ranks 2.5", SIMULATE_USAGE, 0);
	/* Who is never ready has no time, least of all 0. */
	check_command("--json --hosts 2,40 --ranks 1 --handshake-us 1000000", SIMULATE_FAILED, 1);
	start(2, 0, 0.005);
	start(64, 0, 0.1);
	small = start(600, 0, 0.3);
	again = start(600, 0, 0.3);
	/* Random numbers take a byte more or less. */
	check(small.seconds < again.seconds + 1e-6 && again.seconds < small.seconds + 1e-6, 600,
	      "two runs differ");
	start(600, 50, 0.35);
	large = start(2400, 0, 1.2);
	check_growth(&small, &large, 2400);
	check(large.refused == 0, 2400, "a backlog was full");
	printf("%u failed\n", failed);
	return failed ? 1 : 0;
}
