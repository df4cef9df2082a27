/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Options: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocebench/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/limits.h"
#include "proto/types.h"
#include "tools/rocebench/usage.h"

#define SECONDS_DEFAULT 0.5
#define SECONDS_MAX 86400.0
#define WARMUP_MAX 100000

/* Long options without a letter. */
enum option_id {
	OPTION_HOSTS = 256,
	OPTION_HOST,
	OPTION_ROOT,
	OPTION_JOB,
	OPTION_SOCKET,
	OPTION_TRANSPORT,
	OPTION_SIZES,
	OPTION_ROOT_RANK,
	OPTION_MEMORY,
	OPTION_INPLACE,
	OPTION_VERIFY,
	OPTION_NO_VERIFY,
	OPTION_CORRUPT,
	OPTION_COMPUTE,
	OPTION_CREATE,
	OPTION_JSON,
};

static const struct option long_options[] = {
	{"ranks", required_argument, NULL, 'n'},
	{"hosts", required_argument, NULL, OPTION_HOSTS},
	{"host", required_argument, NULL, OPTION_HOST},
	{"root", required_argument, NULL, OPTION_ROOT},
	{"job", required_argument, NULL, OPTION_JOB},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"transport", required_argument, NULL, OPTION_TRANSPORT},
	{"min", required_argument, NULL, 'b'},
	{"max", required_argument, NULL, 'e'},
	{"factor", required_argument, NULL, 'f'},
	{"sizes", required_argument, NULL, OPTION_SIZES},
	{"dtype", required_argument, NULL, 'd'},
	{"op", required_argument, NULL, 'o'},
	{"root-rank", required_argument, NULL, OPTION_ROOT_RANK},
	{"inflight", required_argument, NULL, 'D'},
	{"memory", required_argument, NULL, OPTION_MEMORY},
	{"inplace", no_argument, NULL, OPTION_INPLACE},
	{"warmup", required_argument, NULL, 'w'},
	{"reps", required_argument, NULL, 'r'},
	{"time", required_argument, NULL, 't'},
	{"verify", no_argument, NULL, OPTION_VERIFY},
	{"no-verify", no_argument, NULL, OPTION_NO_VERIFY},
	{"corrupt", no_argument, NULL, OPTION_CORRUPT},
	{"compute", required_argument, NULL, OPTION_COMPUTE},
	{"create", no_argument, NULL, OPTION_CREATE},
	{"json", no_argument, NULL, OPTION_JSON},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{NULL, 0, NULL, 0},
};

static int refuse(const char *format, ...) attr_printf(1, 2);
static int refuse(const char *format, ...)
{
	va_list ap;

	fputs("rocebench: ", stderr);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	return -1;
}

static int parse_size(const char *name, const char *text, size_t length, size_t *ret)
{
	if (options_size(text, length, ret) < 0) {
		return refuse("%s %.*s: a size is a number up to %zu with K, M, G or nothing "
			      "behind it, such as 64K",
			      name, (int)length, text, OPTIONS_SIZE_MAX);
	}
	return 0;
}

static int parse_number(const char *name, const char *text, unsigned long min, unsigned long max,
			unsigned long *ret)
{
	char *end = NULL;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || v < min || v > max) {
		return refuse("%s %s: give a number from %lu to %lu", name, text, min, max);
	}
	*ret = v;
	return 0;
}

static int parse_unsigned(const char *name, const char *text, unsigned long min, unsigned long max,
			  unsigned int *ret)
{
	unsigned long v = 0;

	if (parse_number(name, text, min, max, &v) < 0) {
		return -1;
	}
	*ret = (unsigned int)v;
	return 0;
}

static int parse_seconds(const char *text, double *ret)
{
	char *end = NULL;
	double v = strtod(text, &end);

	if (end == text || *end != '\0' || !(v > 0 && v <= SECONDS_MAX)) {
		return refuse("--time %s: give seconds above 0 and up to %.0f", text, SECONDS_MAX);
	}
	*ret = v;
	return 0;
}

/* The number of a name among those that @name_of yields for 0 .. count - 1. */
static int parse_name(const char *option, const char *text,
		      const char *(*name_of)(unsigned int number), unsigned int count, int *ret)
{
	for (unsigned int i = 0; i < count; i++) {
		if (strcmp(text, name_of(i)) == 0) {
			*ret = (int)i;
			return 0;
		}
	}
	return refuse("%s %s: there is none of that name; rocebench --help lists them", option,
		      text);
}

static int parse_transport(const char *text, const char **ret)
{
	if (strcmp(text, "rdma") != 0 && strcmp(text, "tcp") != 0) {
		return refuse("--transport %s: it is 'rdma' or 'tcp'", text);
	}
	*ret = text;
	return 0;
}

static int parse_memory(const char *text, bool *ret_plain)
{
	if (strcmp(text, "registered") != 0 && strcmp(text, "plain") != 0) {
		return refuse("--memory %s: it is 'registered' or 'plain'", text);
	}
	*ret_plain = text[0] == 'p';
	return 0;
}

static int parse_sizes(const char *text, struct options *o)
{
	o->n_sizes = 0;
	for (;;) {
		size_t length = strcspn(text, ",");

		if (o->n_sizes == OPTIONS_SIZES_MAX) {
			return refuse("--sizes: more than %d sizes", OPTIONS_SIZES_MAX);
		}
		if (parse_size("--sizes", text, length, &o->sizes[o->n_sizes++]) < 0) {
			return -1;
		}
		if (text[length] == '\0') {
			return 0;
		}
		text += length + 1;
	}
}

/* From @min to @max. */
static int make_sizes(struct options *o, size_t min, size_t max, unsigned int factor)
{
	if (min == 0 || max < min) {
		return refuse("-b %zu -e %zu: the first size is at least 1 and not above the last",
			      min, max);
	}
	for (size_t size = min; size <= max; size *= factor) {
		if (o->n_sizes == OPTIONS_SIZES_MAX) {
			return refuse("-b -e -f: more than %d sizes", OPTIONS_SIZES_MAX);
		}
		o->sizes[o->n_sizes++] = size;
	}
	return 0;
}

/* Names, also several with commas between them. */
static int parse_benches(const char *text, struct options *o)
{
	for (;;) {
		size_t length = strcspn(text, ",");
		enum bench_id id = bench_find(text, length);

		if (length == 3 && memcmp(text, "all", 3) == 0) {
			for (unsigned int i = 0; i < BENCH_CREATE; i++) {
				o->chosen[i] = true;
			}
		} else if (id == BENCH_COUNT_) {
			return refuse("there is no collective '%.*s'; rocebench --help lists them",
				      (int)length, text);
		} else {
			o->chosen[id] = true;
		}
		if (text[length] == '\0') {
			return 0;
		}
		text += length + 1;
	}
}

struct range {
	size_t min, max;
	unsigned int factor;
};

static int parse_what(struct options *o, struct range *range, int c)
{
	switch (c) {
	case 'b':
		return parse_size("-b", optarg, strlen(optarg), &range->min);
	case 'e':
		return parse_size("-e", optarg, strlen(optarg), &range->max);
	case 'f':
		return parse_unsigned("-f", optarg, 2, 1024, &range->factor);
	case OPTION_SIZES:
		return parse_sizes(optarg, o);
	case 'd':
		return parse_name("--dtype", optarg, dtype_name, DTYPE_COUNT_, &o->dtype);
	case 'o':
		return parse_name("--op", optarg, redop_name, REDOP_COUNT_, &o->redop);
	case 'D':
		return parse_unsigned("--inflight", optarg, 1, LIMIT_COMM_WINDOW, &o->inflight);
	case OPTION_MEMORY:
		return parse_memory(optarg, &o->plain);
	case OPTION_COMPUTE:
		return parse_unsigned("--compute", optarg, 1, OPTIONS_COMPUTE_MAX, &o->compute);
	case 'w':
		o->warmup_given = true;
		return parse_number("--warmup", optarg, 0, WARMUP_MAX, &o->warmup);
	case 'r':
		return parse_number("--reps", optarg, 1, OPTIONS_REPS_MAX, &o->reps);
	default:
		return parse_seconds(optarg, &o->seconds);
	}
}

static int parse_where(struct options *o, int c)
{
	unsigned int root_rank = 0;

	switch (c) {
	case 'n':
		o->launch = true;
		return parse_unsigned("-n", optarg, 1, LIMIT_LOCAL_RANKS, &o->ranks);
	case OPTION_HOSTS:
		o->launch = true;
		return parse_unsigned("--hosts", optarg, 1, LIMIT_COMM_HOSTS, &o->hosts);
	case OPTION_HOST:
		return parse_unsigned("--host", optarg, 0, LIMIT_COMM_HOSTS - 1, &o->host);
	case OPTION_ROOT_RANK:
		if (parse_unsigned("--root-rank", optarg, 0, LIMIT_COMM_RANKS - 1, &root_rank) <
		    0) {
			return -1;
		}
		o->root_rank = (int)root_rank;
		return 0;
	case OPTION_ROOT:
		o->root = optarg;
		return 0;
	case OPTION_JOB:
		o->job = optarg;
		return 0;
	case OPTION_TRANSPORT:
		return parse_transport(optarg, &o->transport);
	default:
		o->socket = optarg;
		return 0;
	}
}

static void parse_flag(struct options *o, int c)
{
	switch (c) {
	case OPTION_INPLACE:
		o->in_place = true;
		break;
	case OPTION_VERIFY:
	case OPTION_NO_VERIFY:
		o->verify = c == OPTION_VERIFY;
		break;
	case OPTION_CORRUPT:
		o->corrupt = true;
		break;
	case OPTION_CREATE:
		o->chosen[BENCH_CREATE] = true;
		break;
	default:
		o->json = true;
		break;
	}
}

static bool flag_is(int c)
{
	return c == OPTION_INPLACE || c == OPTION_VERIFY || c == OPTION_NO_VERIFY ||
	       c == OPTION_CORRUPT || c == OPTION_CREATE || c == OPTION_JSON;
}

static bool where_is(int c)
{
	return c == 'n' || (c >= OPTION_HOSTS && c <= OPTION_TRANSPORT) || c == OPTION_ROOT_RANK;
}

static int check_redop(const struct options *o, const struct bench *bench)
{
	const char *mend = "bitwise and logical operations take integers: give another --op";

	if (!coll_kind_reduces((unsigned int)bench->kind) ||
	    (o->redop != REDOP_PREMUL_SUM &&
	     redop_supports((unsigned int)o->redop, (unsigned int)o->dtype))) {
		return 0;
	}
	if (o->redop == REDOP_PREMUL_SUM) {
		mend = "it takes a scalar a rank, for which there is no option: give --op sum";
	} else if (!redop_supports(REDOP_SUM, (unsigned int)o->dtype)) {
		mend = "this type is moved, never reduced: give another --dtype";
	}
	return refuse("%s: no --op %s of --dtype %s: %s", bench->name,
		      redop_name((unsigned int)o->redop), dtype_name((unsigned int)o->dtype), mend);
}

static int check_benches(const struct options *o)
{
	for (unsigned int i = 0; i < BENCH_COUNT_; i++) {
		if (o->chosen[i] && check_redop(o, bench_get(i)) < 0) {
			return -1;
		}
	}
	if (o->chosen[BENCH_SENDRECV] && o->inflight > LIMIT_P2P_WINDOW / 2) {
		return refuse("sendrecv: --inflight %u: at most %u, since each is a send and a "
			      "receive",
			      o->inflight, LIMIT_P2P_WINDOW / 2);
	}
	if ((o->chosen[BENCH_RESNET50] || o->chosen[BENCH_GPT2]) && o->inflight > 32) {
		return refuse("step: --inflight %u: at most 32 steps", o->inflight);
	}
	return 0;
}

static int check_where(struct options *o)
{
	static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
					    "SLURM_PROCID"};
	const char *found = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(ranks) && !found; i++) {
		found = getenv(ranks[i]) ? ranks[i] : NULL;
	}
	if (!found) {
		o->launch = true;
	} else if (!o->launch && (o->root || o->job)) {
		return refuse(
			"--%s %s: a launcher has started this rank (%s is set) and says where "
			"it meets the others; with --ranks or --hosts rocebench starts ranks "
			"itself",
			o->root ? "root" : "job", o->root ? o->root : o->job, found);
	}
	if (o->host >= o->hosts) {
		return refuse("--host %u: hosts are numbered 0 .. %u (--hosts %u)", o->host,
			      o->hosts - 1, o->hosts);
	}
	if (o->hosts > 1 && !o->root) {
		return refuse("--hosts %u: say with --root=ADDRESS[:PORT] on every host where the "
			      "ranks meet: an address of one host that all reach, with the "
			      "daemon's port if it is not the default",
			      o->hosts);
	}
	if (o->launch && (unsigned int)o->root_rank >= o->ranks * o->hosts) {
		return refuse("--root-rank %d: ranks are numbered 0 .. %u", o->root_rank,
			      o->ranks * o->hosts - 1);
	}
	if (o->corrupt && !o->verify) {
		return refuse("--corrupt with --no-verify: nothing would notice");
	}
	return check_benches(o);
}

static int check(struct options *o, const struct range *range, char **names)
{
	bool any = o->chosen[BENCH_CREATE];

	for (; *names; names++) {
		if (parse_benches(*names, o) < 0) {
			return -1;
		}
		any = true;
	}
	if (!any) {
		o->chosen[BENCH_ALLREDUCE] = true;
	}
	if (o->n_sizes == 0 && make_sizes(o, range->min, range->max, range->factor) < 0) {
		return -1;
	}
	return check_where(o);
}

int options_parse(int argc, char **argv, struct options *ret, int *ret_exit)
{
	struct options o = {
		.dtype = DTYPE_F32,
		.redop = REDOP_SUM,
		.inflight = 1,
		.seconds = SECONDS_DEFAULT,
		.verify = true,
		.ranks = 1,
		.hosts = 1,
	};
	struct range range = {.min = 8, .max = 4u << 20, .factor = 4};
	int c, r = 0;

	*ret_exit = ROCEBENCH_USAGE;
	while (r == 0 &&
	       (c = getopt_long(argc, argv, "n:b:e:f:d:o:D:w:r:t:hV", long_options, NULL)) != -1) {
		if (c == 'h' || c == 'V') {
			*ret_exit = ROCEBENCH_OK;
			if (c == 'h') {
				fputs(usage_text(), stdout);
			} else {
				printf("rocebench %s\n", roce_version());
			}
			return -1;
		}
		if (c == '?') {
			fputs("rocebench --help lists the options\n", stderr);
			return -1;
		}
		if (flag_is(c)) {
			parse_flag(&o, c);
		} else if (where_is(c)) {
			r = parse_where(&o, c);
		} else {
			r = parse_what(&o, &range, c);
		}
	}
	if (r == 0) {
		r = check(&o, &range, argv + optind);
	}
	if (r < 0) {
		return r;
	}
	*ret = o;
	return 0;
}
