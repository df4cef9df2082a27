/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * collcheck: arguments, connection, communicator
 *
 * The unique id goes from rank 0 to the others through a file, as it would go through a store.
 *
 * Thread: main      Owns: client and communicator      Locks: none
 */
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/base.h"
#include "tests/integration/collcheck/collcheck.h"

static const struct {
	const char *name;
	int (*run)(struct collcheck *cc);
} modes[] = {
	{"matrix", mode_matrix},     {"bits", mode_bits},   {"random", mode_random},
	{"flow", mode_flow},	     {"loop", mode_loop},   {"post", mode_post},
	{"mismatch", mode_mismatch}, {"churn", mode_churn}, {"quota", mode_quota},
	{"comms", mode_comms},	     {"count", mode_count}, {"buffers", mode_buffers},
};

int collcheck_failed(const struct collcheck *cc, const char *what, int status)
{
	fprintf(stderr, "rank %u: %s: %s: %s\n", cc->rank, what, roce_status_name(status),
		roce_last_error());
	return 1;
}

int collcheck_stopped(int status, double seconds)
{
	printf("error %s %.0f %s\n", roce_status_name(status), seconds * 1e3, roce_last_error());
	fflush(stdout);
	return COLLCHECK_STOPPED;
}

double collcheck_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int id_write(const char *path, const struct roce_unique_id *id)
{
	char temp[512];
	FILE *f;
	bool ok;

	snprintf(temp, sizeof(temp), "%s.new", path);
	f = fopen(temp, "w");
	if (!f) {
		return -errno;
	}
	ok = fwrite(id, sizeof(*id), 1, f) == 1;
	ok = fclose(f) == 0 && ok;
	return ok && rename(temp, path) == 0 ? 0 : -EIO;
}

static int id_read(const char *path, struct roce_unique_id *ret_id)
{
	for (int i = 0; i < 3000; i++) {
		FILE *f = fopen(path, "r");

		if (f) {
			bool ok = fread(ret_id, sizeof(*ret_id), 1, f) == 1;

			fclose(f);
			return ok ? 0 : -EIO;
		}
		poll(NULL, 0, 10);
	}
	return -ETIMEDOUT;
}

int collcheck_join(struct collcheck *cc, unsigned int number, struct roce_comm **ret)
{
	struct roce_comm_options options = {
		.size = sizeof(options),
		.name = cc->name,
		.join_timeout_ms = cc->join_ms,
		.arrival_timeout_ms = cc->arrival_ms,
	};
	struct roce_unique_id id;
	char path[480];
	int r;

	snprintf(path, sizeof(path), "%s.%u", cc->id_file, number);
	if (cc->rank == 0) {
		r = roce_get_unique_id(cc->client, &id);
		if (r != ROCE_OK) {
			return r;
		}
		if (id_write(path, &id) < 0) {
			return ROCE_ERR_INTERNAL;
		}
	} else if (id_read(path, &id) < 0) {
		return ROCE_ERR_NOT_FOUND;
	}
	return roce_comm_init(cc->client, &id, (int)cc->rank, (int)cc->size, &options, ret);
}

static int run(struct collcheck *cc, const char *mode)
{
	int r;

	for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
		if (strcmp(modes[i].name, mode) != 0) {
			continue;
		}
		r = roce_connect(cc->socket, NULL, &cc->client);
		if (r != ROCE_OK) {
			return collcheck_failed(cc, "connect", r);
		}
		r = collcheck_join(cc, 0, &cc->comm);
		if (r != ROCE_OK) {
			return collcheck_failed(cc, "join", r);
		}
		r = roce_op_create_premul(cc->comm, value_scalar(cc->rank), &cc->premul);
		if (r != ROCE_OK) {
			return collcheck_failed(cc, "premul", r);
		}
		r = modes[i].run(cc);
		if (r == 0) {
			roce_comm_destroy(cc->comm);
			roce_disconnect(cc->client);
		}
		return r;
	}
	fprintf(stderr, "collcheck: there is no mode %s\n", mode);
	return 2;
}

static int usage(void)
{
	fprintf(stderr, "usage: collcheck --id=FILE --rank=R --size=N [OPTION...] MODE\n");
	return 2;
}

static void option(struct collcheck *cc, int c)
{
	switch (c) {
	case 's':
		cc->socket = optarg;
		break;
	case 'i':
		cc->id_file = optarg;
		break;
	case 'n':
		cc->name = optarg;
		break;
	case 'v':
		cc->variant = optarg;
		break;
	case 'r':
		cc->rank = (unsigned int)atoi(optarg);
		break;
	case 'z':
		cc->size = (unsigned int)atoi(optarg);
		break;
	case 'd':
		cc->seed = strtoull(optarg, NULL, 0);
		break;
	case 'c':
		cc->count = strtoull(optarg, NULL, 0);
		break;
	case 'I':
		cc->iterations = strtoul(optarg, NULL, 0);
		break;
	case 'S':
		cc->seconds = (unsigned int)atoi(optarg);
		break;
	case 'C':
		cc->comms = (unsigned int)atoi(optarg);
		break;
	case 'b':
		cc->buffers = (unsigned int)atoi(optarg);
		break;
	case 'l':
		sscanf(optarg, "%d:%u", &cc->late_rank, &cc->late_ms);
		break;
	case 'a':
		cc->arrival_ms = atoi(optarg);
		break;
	case 'j':
		cc->join_ms = atoi(optarg);
		break;
	default: /* 'q' */
		cc->is_short = true;
		break;
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"id", required_argument, NULL, 'i'},
		{"name", required_argument, NULL, 'n'},
		{"variant", required_argument, NULL, 'v'},
		{"rank", required_argument, NULL, 'r'},
		{"size", required_argument, NULL, 'z'},
		{"seed", required_argument, NULL, 'd'},
		{"count", required_argument, NULL, 'c'},
		{"iterations", required_argument, NULL, 'I'},
		{"seconds", required_argument, NULL, 'S'},
		{"comms", required_argument, NULL, 'C'},
		{"buffers", required_argument, NULL, 'b'},
		{"late", required_argument, NULL, 'l'},
		{"arrival-ms", required_argument, NULL, 'a'},
		{"join-ms", required_argument, NULL, 'j'},
		{"short", no_argument, NULL, 'q'},
		{NULL, 0, NULL, 0},
	};
	struct collcheck cc = {
		.name = "collcheck",
		.variant = "",
		.count = 1024,
		.iterations = 1000,
		.seconds = 5,
		.comms = 1,
		.buffers = 16,
		.late_rank = -1,
		.join_ms = 30000,
		.seed = 1,
	};
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == '?') {
			return usage();
		}
		option(&cc, c);
	}
	if (optind + 1 != argc || !cc.id_file || cc.size == 0 || cc.size > CASE_RANKS_MAX ||
	    cc.rank >= cc.size) {
		return usage();
	}
	r = run(&cc, argv[optind]);
	if (r != 0) {
		/* Failed in the middle of something: what it holds is no leak. */
		fflush(NULL);
		_exit(r);
	}
	return 0;
}
