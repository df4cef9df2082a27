/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status as text: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocectl/status_text.h"

#include <stdio.h>
#include <string.h>

#include "proto/base.h"

#define SHOW_WAIT_MS 50 /* shorter waits are the ordinary course of things */
#define TEXT 32

static void print_daemon(const struct snapshot *s)
{
	const json_t *daemon = json_object_get(s->root, "daemon");
	char up[TEXT], bytes[TEXT];
	json_t *peer;
	size_t i;

	printf("rocecommd %s on %s (pid %lld), up %s: %zu clients, %s in %lld buffers\n",
	       snapshot_string(daemon, "version"), snapshot_string(daemon, "host"),
	       (long long)snapshot_number(daemon, "pid"),
	       text_ms(snapshot_number(daemon, "uptime_ms"), up, sizeof(up)),
	       json_array_size(json_object_get(s->root, "clients")),
	       text_bytes((double)snapshot_number(daemon, "buffer_bytes"), bytes, sizeof(bytes)),
	       (long long)snapshot_number(daemon, "buffers"));
	json_array_foreach(json_object_get(s->root, "peers"), i, peer)
	{
		printf("%s%s %s (%s)", i == 0 ? "peers: " : ", ", snapshot_string(peer, "host"),
		       snapshot_string(peer, "address"), snapshot_string(peer, "state"));
	}
	if (i > 0) {
		putchar('\n');
	}
	if (s->own) {
		printf("(your own jobs; those of all users are for members of admin_group)\n");
	}
}

/* "rank 3 on hostB (pid 77, 4 posted, idle 1.2 s)" for each rank that is waited for. */
static void print_late(const json_t *comm)
{
	const json_t *operation = json_object_get(comm, "operation");
	const char *kind = snapshot_string(operation, "kind");
	json_int_t more = snapshot_number(comm, "waiting_for_left_out");
	char text[TEXT];
	json_t *late;
	size_t i;

	printf("  seq %lld%s%s: waiting %s for ", (long long)snapshot_number(operation, "seq"),
	       kind[0] ? " " : "", kind,
	       text_ms(snapshot_number(comm, "waiting_ms"), text, sizeof(text)));
	json_array_foreach(json_object_get(comm, "waiting_for"), i, late)
	{
		const char *reason = snapshot_string(late, "reason");
		json_t *idle = json_object_get(late, "idle_ms");

		printf("%srank %lld on %s (pid %lld", i == 0 ? "" : ", ",
		       (long long)snapshot_number(late, "rank"), snapshot_string(late, "host"),
		       (long long)snapshot_number(late, "pid"));
		if (reason[0]) {
			printf(", %s)", reason);
			continue;
		}
		printf(", %lld posted", (long long)snapshot_number(late, "posted"));
		if (json_is_integer(idle)) {
			printf(", idle %s", text_ms(json_integer_value(idle), text, sizeof(text)));
		}
		putchar(')');
	}
	if (more > 0) {
		printf(" and %lld more", (long long)more);
	}
	putchar('\n');
}

static void print_operation(const json_t *comm)
{
	const json_t *operation = json_object_get(comm, "operation");
	const char *op = snapshot_string(operation, "op");
	const char *algorithm = snapshot_string(operation, "algorithm");

	if (!json_is_object(operation) || !snapshot_string(operation, "kind")[0]) {
		return;
	}
	printf("  running: seq %lld %s%s%s %s x %lld%s%s%s\n",
	       (long long)snapshot_number(operation, "seq"), snapshot_string(operation, "kind"),
	       op[0] ? " " : "", op, snapshot_string(operation, "dtype"),
	       (long long)snapshot_number(operation, "count"), algorithm[0] ? " (" : "", algorithm,
	       algorithm[0] ? ")" : "");
}

static double rate(const json_t *comm, const json_t *old, const char *key, double seconds)
{
	return (double)(snapshot_number(comm, key) - snapshot_number(old, key)) / seconds;
}

/* What the operations have cost this host. */
static void print_costs(const json_t *comm)
{
	char copied[TEXT], local[TEXT], reduced[TEXT];

	printf("  here: reduced %s, copied %s between ranks and %s besides; %lld system calls, "
	       "%lld "
	       "wake-ups\n",
	       text_bytes((double)snapshot_number(comm, "bytes_reduced"), reduced, sizeof(reduced)),
	       text_bytes((double)snapshot_number(comm, "bytes_local"), local, sizeof(local)),
	       text_bytes((double)snapshot_number(comm, "bytes_copied"), copied, sizeof(copied)),
	       (long long)snapshot_number(comm, "syscalls"),
	       (long long)snapshot_number(comm, "wakeups"));
}

static void print_traffic(const json_t *comm, const struct snapshot *now,
			  const struct snapshot *before)
{
	const json_t *old = before ? snapshot_same_comm(before, comm) : NULL;
	char sent[TEXT], received[TEXT];

	printf("  %lld operations, sent %s, received %s", (long long)snapshot_number(comm, "ops"),
	       text_bytes((double)snapshot_number(comm, "bytes_sent"), sent, sizeof(sent)),
	       text_bytes((double)snapshot_number(comm, "bytes_received"), received,
			  sizeof(received)));
	if (old && now->at > before->at) {
		double seconds = now->at - before->at;

		printf("; now %.0f operations/s, sending %s/s, receiving %s/s",
		       rate(comm, old, "ops", seconds),
		       text_bytes(rate(comm, old, "bytes_sent", seconds), sent, sizeof(sent)),
		       text_bytes(rate(comm, old, "bytes_received", seconds), received,
				  sizeof(received)));
	}
	putchar('\n');
	print_costs(comm);
}

static void print_ranks(const json_t *comm)
{
	int host = (int)strlen("HOST"), client = (int)strlen("CLIENT");
	json_t *ranks = json_object_get(comm, "ranks");
	json_int_t more = snapshot_number(comm, "ranks_left_out");
	char idle[TEXT], posted[TEXT];
	json_t *rank;
	size_t i;

	json_array_foreach(ranks, i, rank)
	{
		host = MAX(host, (int)strlen(snapshot_string(rank, "host")));
		client = MAX(client, (int)strlen(snapshot_string(rank, "client")));
	}
	printf("  %5s  %-*s  %8s  %-*s  %9s  %s\n", "RANK", host, "HOST", "PID", client, "CLIENT",
	       "POSTED", "IDLE");
	json_array_foreach(ranks, i, rank)
	{
		json_t *ms = json_object_get(rank, "idle_ms");
		bool gone = json_is_true(json_object_get(rank, "gone"));

		snprintf(posted, sizeof(posted), "%lld",
			 (long long)snapshot_number(rank, "posted"));
		printf("  %5lld  %-*s  %8lld  %-*s  %9s  %s\n",
		       (long long)snapshot_number(rank, "rank"), host,
		       snapshot_string(rank, "host"), (long long)snapshot_number(rank, "pid"),
		       client, snapshot_string(rank, "client"),
		       json_is_integer(json_object_get(rank, "posted")) ? posted : "?",
		       gone		     ? "gone"
		       : json_is_integer(ms) ? text_ms(json_integer_value(ms), idle, sizeof(idle))
					     : "-");
	}
	if (more > 0) {
		printf("  and %lld more\n", (long long)more);
	}
}

static void print_head(const json_t *comm)
{
	json_t *host;
	size_t i;

	printf("%s [%.8s]: %lld ranks on ", snapshot_string(comm, "name"),
	       snapshot_string(comm, "uid"), (long long)snapshot_number(comm, "size"));
	json_array_foreach(json_object_get(comm, "hosts"), i, host)
	{
		bool lost = strcmp(snapshot_string(host, "state"), "lost") == 0;

		printf("%s%s (%lld%s)", i == 0 ? "" : ", ", snapshot_string(host, "name"),
		       (long long)snapshot_number(host, "ranks"), lost ? ", lost" : "");
	}
	printf(", %s\n", snapshot_string(comm, "state"));
}

static bool has_failed(const json_t *comm)
{
	return strcmp(snapshot_string(comm, "state"), "failed") == 0;
}

static void print_error(const json_t *comm)
{
	printf("  %s: %s\n", snapshot_string(comm, "status"), snapshot_string(comm, "error"));
}

static void print_comm(const json_t *comm, const struct snapshot *now,
		       const struct snapshot *before)
{
	putchar('\n');
	print_head(comm);
	printf("  path: %s\n", snapshot_string(comm, "path"));
	if (has_failed(comm)) {
		print_error(comm);
	} else if (snapshot_is_late(comm, SHOW_WAIT_MS)) {
		print_late(comm);
	} else {
		print_operation(comm);
	}
	print_traffic(comm, now, before);
	print_ranks(comm);
}

static void print_joining(const struct snapshot *s)
{
	json_t *rank;
	size_t i;

	json_array_foreach(json_object_get(s->root, "joining"), i, rank)
	{
		printf("%sjoining: rank %lld (%s, pid %lld) waits for the others; root is %s\n",
		       i == 0 ? "\n" : "", (long long)snapshot_number(rank, "rank"),
		       snapshot_string(rank, "client"), (long long)snapshot_number(rank, "pid"),
		       snapshot_string(rank, "root"));
	}
}

void status_text_print(const struct snapshot *now, const struct snapshot *before)
{
	json_t *job, *comm;
	size_t i, k, n = 0;

	print_daemon(now);
	json_array_foreach(json_object_get(now->root, "jobs"), i, job)
	{
		json_array_foreach(json_object_get(job, "communicators"), k, comm)
		{
			print_comm(comm, now, before);
			n++;
		}
	}
	print_joining(now);
	if (n == 0) {
		printf("no communicators\n");
	}
}

bool status_text_print_wrong(const struct snapshot *now)
{
	json_t *job, *comm;
	bool wrong = false;
	size_t i, k;

	json_array_foreach(json_object_get(now->root, "jobs"), i, job)
	{
		json_array_foreach(json_object_get(job, "communicators"), k, comm)
		{
			if (has_failed(comm)) {
				print_head(comm);
				print_error(comm);
				wrong = true;
			} else if (snapshot_is_late(comm, STATUS_LATE_MS)) {
				print_head(comm);
				print_late(comm);
				wrong = true;
			}
		}
	}
	return wrong;
}

void status_text_print_jobs(const struct snapshot *now)
{
	char sent[TEXT], received[TEXT], age[TEXT];
	json_t *job, *comm;
	size_t i, k;

	printf("%-20s %-16s %6s %5s %-8s %9s %10s %11s %11s\n", "JOB", "COMMUNICATOR", "RANKS",
	       "HOSTS", "STATE", "AGE", "OPERATIONS", "SENT", "RECEIVED");
	json_array_foreach(json_object_get(now->root, "jobs"), i, job)
	{
		json_array_foreach(json_object_get(job, "communicators"), k, comm)
		{
			bool late = snapshot_is_late(comm, STATUS_LATE_MS);

			printf("%-20s %-16s %6lld %5zu %-8s %9s %10lld %11s %11s\n",
			       snapshot_string(comm, "name"), snapshot_string(comm, "uid"),
			       (long long)snapshot_number(comm, "size"),
			       json_array_size(json_object_get(comm, "hosts")),
			       late ? "waits" : snapshot_string(comm, "state"),
			       text_ms(snapshot_number(comm, "age_ms"), age, sizeof(age)),
			       (long long)snapshot_number(comm, "ops"),
			       text_bytes((double)snapshot_number(comm, "bytes_sent"), sent,
					  sizeof(sent)),
			       text_bytes((double)snapshot_number(comm, "bytes_received"), received,
					  sizeof(received)));
		}
	}
}
