/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * gpu-rank: options, start and end
 *
 * usage: gpu-rank --socket=PATH --id=FILE --rank=R --size=N [OPTION...] MODE
 *
 *   check   every operation on every kind of memory: {"cases": ...} at the end
 *   bench   collectives on a stream, --ops=allreduce,... --sizes=8,1M,...: a JSON line each
 *   loop    allreduces of --bytes until --seconds are over or something fails
 *   churn   allocates, uses, frees, again
 *
 * --device=D: on the process's GPU D (0). Rank 0 writes the communicator's id to FILE. Exit status
 * 0: all was right.
 *
 * Thread: main      Owns: struct rank      Locks: none
 */
#include "rank.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct {
	const char *name;
	int (*run)(struct rank *r);
} modes[] = {{"check", run_check}, {"bench", run_bench}, {"loop", run_loop}, {"churn", run_churn}};

void die(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "gpu-rank: ");
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	exit(1);
}

void must(int status, const char *what)
{
	if (status != ROCE_OK) {
		die("%s: %s: %s", what, roce_status_name(status), roce_last_error());
	}
}

void must_cuda(struct rank *r, CUresult result, const char *what)
{
	char text[200];

	if (result != CUDA_SUCCESS) {
		die("%s: %s", what, cuda_abi_error(&r->cu, result, text, sizeof(text)));
	}
}

double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* Rank 0 makes the id; the others wait for the file. */
static void exchange(struct rank *r, const char *path, struct roce_unique_id *id)
{
	char part[4096];
	FILE *f;

	if (r->rank == 0) {
		must(roce_get_unique_id(r->client, id), "roce_get_unique_id");
		snprintf(part, sizeof(part), "%s.part", path);
		f = fopen(part, "wb");
		if (!f || fwrite(id, sizeof(*id), 1, f) != 1 || fclose(f) != 0 ||
		    rename(part, path) != 0) {
			die("cannot write %s", path);
		}
		return;
	}
	for (int i = 0; i < 3000; i++) {
		f = fopen(path, "rb");
		if (f) {
			if (fread(id, sizeof(*id), 1, f) != 1) {
				die("cannot read %s", path);
			}
			fclose(f);
			return;
		}
		usleep(10000);
	}
	die("no %s after 30 s", path);
}

static void start(struct rank *r, const char *socket, const char *id_path)
{
	struct roce_unique_id id;
	char err[256];
	CUdevice dev;

	if (cuda_abi_open(NULL, &r->cu, err, sizeof(err)) != 0) {
		fprintf(stderr, "gpu-rank: %s\n", err);
		exit(77);
	}
	must_cuda(r, r->cu.Init(0), "cuInit");
	must_cuda(r, r->cu.DeviceGet(&dev, r->device), "cuDeviceGet");
	must_cuda(r, r->cu.DevicePrimaryCtxRetain(&r->ctx, dev), "cuDevicePrimaryCtxRetain");
	must_cuda(r, r->cu.CtxSetCurrent(r->ctx), "cuCtxSetCurrent");
	must_cuda(r, r->cu.StreamCreate(&r->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	must(roce_connect(socket, NULL, &r->client), "roce_connect");
	exchange(r, id_path, &id);
	must(roce_comm_init(r->client, &id, r->rank, r->size, NULL, &r->comm), "roce_comm_init");
}

/* Ends the process if it is none from @min to @max. */
static double number(const char *name, const char *text, double min, double max)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end != '\0' || !(v >= min && v <= max)) {
		die("--%s: '%s' is no number from %g to %g", name, text, min, max);
	}
	return v;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"id", required_argument, NULL, 'i'},
		{"rank", required_argument, NULL, 'r'},
		{"size", required_argument, NULL, 'n'},
		{"device", required_argument, NULL, 'd'},
		{"bytes", required_argument, NULL, 'b'},
		{"sizes", required_argument, NULL, 'z'},
		{"seconds", required_argument, NULL, 't'},
		{"short", no_argument, NULL, 'S'},
		{"ops", required_argument, NULL, 'o'},
		{NULL, 0, NULL, 0},
	};
	struct rank r = {
		.size = 1, .seconds = 1, .sizes = "8,1M", .ops = "allreduce", .bytes = 1 << 20};
	const char *socket = NULL, *id = NULL;
	int c, status = 2;

	while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (c) {
		case 's':
			socket = optarg;
			break;
		case 'i':
			id = optarg;
			break;
		case 'r':
			r.rank = (int)number("rank", optarg, 0, 65535);
			break;
		case 'n':
			r.size = (int)number("size", optarg, 1, 65536);
			break;
		case 'd':
			r.device = (int)number("device", optarg, 0, 1023);
			break;
		case 'b':
			r.bytes = (size_t)number("bytes", optarg, 1, 1L << 36);
			break;
		case 'z':
			r.sizes = optarg;
			break;
		case 'o':
			r.ops = optarg;
			break;
		case 't':
			r.seconds = number("seconds", optarg, 0, 3600);
			break;
		case 'S':
			r.brief = true;
			break;
		default:
			return 2;
		}
	}
	if (!id || optind + 1 != argc) {
		die("--id=FILE and one MODE are due");
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(argv[optind], modes[i].name) == 0) {
			start(&r, socket, id);
			status = modes[i].run(&r);
			roce_disconnect(r.client);
			return status;
		}
	}
	die("no mode %s", argv[optind]);
}
