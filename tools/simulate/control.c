/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocecomm-simulate control: options and table
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/simulate/control.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base.h"
#include "proto/limits.h"
#include "tools/simulate/simulate.h"

#define SIZES_MAX 64

struct arguments {
	struct net_model model;
	uint32_t hosts[SIZES_MAX];
	size_t nhosts;
	uint32_t ranks, fanout;
	double skew_ms;
	bool json;
};

static const struct control_key {
	const char *name;
	size_t offset;
	const char *help;
} keys[] = {
	{"latency-us", offsetof(struct net_model, latency_us), "one way, with both kernels"},
	{"gbit", offsetof(struct net_model, gbit), "of a host's NIC"},
	{"handshake-us", offsetof(struct net_model, handshake_us), "CPU of TLS, on each side"},
	{"recv-us", offsetof(struct net_model, recv_us), "CPU to receive a message"},
	{"send-us", offsetof(struct net_model, send_us), "CPU to send one"},
};

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: rocecomm-simulate control [OPTION...]\n\n"
		     "  --hosts LIST        2,8,64,512,1000,10000\n"
		     "  --ranks N           of a host (8)\n"
		     "  --skew-ms MS        ranks begin within so long (0)\n"
		     "  --fanout N          of the tree above 512 hosts (16)\n"
		     "  --json              one object a line\n");
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		fprintf(out, "  --%-17s %s (%g)\n", keys[i].name, keys[i].help,
			*(const double *)((const char *)&control_model + keys[i].offset));
	}
	return status;
}

static int parse_hosts(const char *text, struct arguments *a)
{
	char *end;

	for (a->nhosts = 0; a->nhosts < SIZES_MAX; text = end + 1) {
		unsigned long n = strtoul(text, &end, 10);

		if (end == text || n < 1 || n > LIMIT_COMM_HOSTS || (*end && *end != ',')) {
			return -EINVAL;
		}
		a->hosts[a->nhosts++] = (uint32_t)n;
		if (!*end) {
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_number(const char *text, double least, double most, double *ret)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= least && value <= most)) {
		return -EINVAL;
	}
	*ret = value;
	return 0;
}

static int parse_whole(const char *text, uint32_t most, uint32_t *ret)
{
	double value = 0;

	if (parse_number(text, 1, most, &value) < 0 || value != (uint32_t)value) {
		return -EINVAL;
	}
	*ret = (uint32_t)value;
	return 0;
}

static int parse(struct arguments *a, int argc, char **argv)
{
	struct option options[ARRAY_SIZE(keys) + 7] = {
		{"hosts", required_argument, NULL, 'H'},   {"ranks", required_argument, NULL, 'r'},
		{"skew-ms", required_argument, NULL, 's'}, {"fanout", required_argument, NULL, 'f'},
		{"json", no_argument, NULL, 'j'},	   {"help", no_argument, NULL, 'h'},
	};
	int c, r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		options[6 + i] =
			(struct option){keys[i].name, required_argument, NULL, 1000 + (int)i};
	}
	while (r == 0 && (c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c == 'h') {
			return usage(stdout, SIMULATE_OK) + 1;
		} else if (c == 'j') {
			a->json = true;
		} else if (c == 'H') {
			r = parse_hosts(optarg, a);
		} else if (c == 'r') {
			r = parse_whole(optarg, LIMIT_LOCAL_RANKS, &a->ranks);
		} else if (c == 'f') {
			r = parse_whole(optarg, 64, &a->fanout);
		} else if (c == 's') {
			r = parse_number(optarg, 0, 1e5, &a->skew_ms);
		} else if (c >= 1000) {
			r = parse_number(optarg, 1e-3, 1e6,
					 (double *)((char *)&a->model + keys[c - 1000].offset));
		} else {
			r = -EINVAL;
		}
	}
	if (r < 0 || optind != argc) {
		fprintf(stderr, "rocecomm-simulate control: %s: not understood, see --help\n",
			optind > 1 && optind <= argc ? argv[optind - 1] : "arguments");
		return -EINVAL;
	}
	return 0;
}

static void print_json(uint32_t hosts, const struct arguments *a, const struct control_result *r)
{
	printf("{\"hosts\": %u, \"ranks\": %u, \"full\": %s, \"start_s\": %.6f, \"listed_s\": "
	       "%.6f, \"messages\": %llu, \"root_bytes\": %llu, \"most_bytes\": %llu, "
	       "\"most_messages\": %llu, \"most_cpu_s\": %.6f, \"most_links\": %u, \"root_heap\": "
	       "%zu, \"host_heap\": %zu, \"daemon_bytes\": %zu, \"backlog_full\": %llu}\n",
	       hosts, hosts * a->ranks, r->full ? "true" : "false", r->seconds, r->listed_s,
	       (unsigned long long)r->messages, (unsigned long long)r->root_bytes,
	       (unsigned long long)r->most_bytes, (unsigned long long)r->most_messages,
	       r->most_work_s, r->most_links, r->root_heap, r->host_heap, r->daemon,
	       (unsigned long long)r->refused);
}

static void print_row(uint32_t hosts, const struct arguments *a, const struct control_result *r)
{
	printf("%6u %7u %-7s %9.3f %9.3f %10llu %9.2f %8llu %7.3f %6u %8.1f %8.1f %8.1f\n", hosts,
	       hosts * a->ranks, r->full ? "full" : "partial", r->listed_s * 1e3, r->seconds * 1e3,
	       (unsigned long long)r->messages, (double)r->most_bytes * 1e-6,
	       (unsigned long long)r->most_messages, r->most_work_s, r->most_links,
	       (double)r->root_heap * 1e-6, (double)r->host_heap * 1e-6, (double)r->daemon * 1e-6);
	if (r->refused > 0) {
		printf("       %llu connections found a full backlog and were tried again\n",
		       (unsigned long long)r->refused);
	}
	fflush(stdout);
}

static void print_head(void)
{
	printf("                       all asked all ready            of the busiest daemon        "
	       "  "
	       "        heap of root and host, daemon\n"
	       " hosts   ranks real          ms        ms   messages        MB messages   CPU s  "
	       "links       MB       MB       MB\n");
}

int simulate_control(int argc, char **argv)
{
	struct arguments a = {
		.model = control_model,
		.hosts = {2, 8, 64, 512, 1000, 10000},
		.nhosts = 6,
		.ranks = 8,
	};
	int status = SIMULATE_OK;
	int r = parse(&a, argc, argv);

	if (r != 0) {
		return r > 0 ? SIMULATE_OK : SIMULATE_USAGE;
	}
	if (!a.json) {
		print_head();
	}
	for (size_t i = 0; i < a.nhosts; i++) {
		struct control_result result;

		if (a.hosts[i] * a.ranks > LIMIT_COMM_RANKS) {
			fprintf(stderr,
				"rocecomm-simulate control: %u hosts x %u ranks are more "
				"than %u\n",
				a.hosts[i], a.ranks, LIMIT_COMM_RANKS);
			return SIMULATE_USAGE;
		}
		r = control_run(&a.model, a.hosts[i], a.ranks, a.fanout, a.skew_ms, &result);
		if (r < 0) {
			fprintf(stderr, "rocecomm-simulate control: %u hosts: %s\n", a.hosts[i],
				r == -EIO ? result.error : "no memory");
			status = SIMULATE_FAILED;
			continue; /* there is no time to print */
		}
		if (a.json) {
			print_json(a.hosts[i], &a, &result);
		} else {
			print_row(a.hosts[i], &a, &result);
		}
	}
	return status;
}
