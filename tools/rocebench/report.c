/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Report: implementation
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include "tools/rocebench/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base.h"
#include "proto/types.h"
#include "tools/rocebench/stats.h"

#define BAR_WIDTH 30
#define BAR_AFTER 2.0 /* seconds that make a run a long one */

static void print_head(const struct report *report)
{
	const struct options *o = report->options;
	struct roce_comm *comm = report->comm;

	printf("# rocebench %s: %d ranks on %d hosts (", roce_version(), roce_comm_size(comm),
	       roce_comm_hosts(comm));
	for (int h = 0; h < roce_comm_hosts(comm); h++) {
		printf("%s%s", h ? ", " : "", roce_comm_host_name(comm, h));
	}
	printf(")\n# path: %s\n# %s memory, %s, %u in flight", roce_comm_path(comm),
	       o->plain ? "plain" : "registered", o->in_place ? "in place" : "out of place",
	       o->inflight);
	if (o->compute > 0) {
		printf(", %u x %u matrix product before each operation", o->compute, o->compute);
	}
	printf("\n%-14s %10s %10s %-7s %-5s %7s %11s %11s %11s %11s %8s %8s %s\n", "# collective",
	       "bytes", "count", "dtype", "op", "reps", "median us", "p99 us", "p99.9 us", "min us",
	       "algbw", "busbw", "verified");
	fflush(stdout);
}

const char *report_transport(struct roce_comm *comm)
{
	const char *path = roce_comm_path(comm);

	return strncmp(path, "rdma", 4) == 0  ? "rdma"
	       : strncmp(path, "tcp", 3) == 0 ? "tcp"
					      : "shared";
}

void report_init(struct report *report, const struct options *options, struct roce_comm *comm,
		 size_t rows)
{
	*report = (struct report){
		.options = options,
		.comm = comm,
		.speaks = roce_comm_rank(comm) == 0,
		.bar = roce_comm_rank(comm) == 0 && isatty(STDERR_FILENO),
		.begin = measure_now(),
		.rows = rows,
	};
	if (report->speaks && !options->json) {
		print_head(report);
	}
}

static void bar_wipe(struct report *report)
{
	if (report->bar_shown) {
		fputs("\r\033[K", stderr);
		report->bar_shown = false;
	}
}

static void bar_show(struct report *report, double share)
{
	double over = ((double)report->done + share) / (double)MAX(report->rows, 1);
	double passed = measure_now() - report->begin, left = 0;
	size_t full = (size_t)(BAR_WIDTH * MIN(over, 1));
	char bar[BAR_WIDTH + 1];

	if (over > 0) {
		left = passed / over - passed;
	} else {
		left = report->options->seconds * (double)report->rows;
	}
	if (passed + left < BAR_AFTER) {
		return;
	}
	memset(bar, '.', BAR_WIDTH);
	memset(bar, '#', full);
	bar[BAR_WIDTH] = '\0';
	fprintf(stderr, "\r\033[K[%s] %zu of %zu: %s", bar, report->done + 1, report->rows,
		bench_get(report->id)->name);
	if (report->bytes > 0) {
		fprintf(stderr, " %zu bytes", report->bytes);
	}
	fprintf(stderr, ", about %.0f s left", left);
	fflush(stderr);
	report->bar_shown = true;
}

void report_next(struct report *report, enum bench_id id, size_t bytes)
{
	report->id = id;
	report->bytes = bytes;
	report_progress(report, 0);
}

void report_progress(struct report *report, double share)
{
	if (report->bar) {
		bar_show(report, MAX(share, 0));
	}
}

/* Of one operation, or of all that are in flight together. */
static size_t row_bytes(const struct report *report, const struct row *row)
{
	return row->bytes * (row->id == BENCH_CREATE ? 1 : report->options->inflight);
}

static const char *row_op(const struct report *report, const struct row *row)
{
	return coll_kind_reduces((unsigned int)bench_get(row->id)->kind)
		       ? redop_name((unsigned int)report->options->redop)
		       : "none";
}

static const char *row_verdict(const struct row *row)
{
	if (!row->checked) {
		return "no";
	}
	return row->wrong == 0 ? "yes" : "WRONG";
}

static void print_text(const struct report *report, const struct row *row, double algbw,
		       double busbw)
{
	const struct stats *s = &row->seconds;

	printf("%-14s %10zu %10zu %-7s %-5s %7zu %11.2f %11.2f %11.2f %11.2f %8.3f %8.3f %s\n",
	       bench_get(row->id)->name, row->bytes, row->count,
	       dtype_name((unsigned int)report->options->dtype), row_op(report, row), row->reps,
	       s->median * 1e6, s->p99 * 1e6, s->p999 * 1e6, s->min * 1e6, algbw, busbw,
	       row_verdict(row));
}

static void print_json(const struct report *report, const struct row *row, double algbw,
		       double busbw)
{
	const struct options *o = report->options;
	const struct stats *s = &row->seconds;

	printf("{\"system\":\"rocecomm\",\"coll\":\"%s\",\"bytes\":%zu,\"dtype\":\"%s\","
	       "\"op\":\"%s\",\"hosts\":%d,\"ranks\":%d,\"inflight\":%u,\"memory\":\"%s\","
	       "\"inplace\":%s,\"transport\":\"%s\",\"reps\":%zu,",
	       bench_get(row->id)->name, row->bytes, dtype_name((unsigned int)o->dtype),
	       row_op(report, row), roce_comm_hosts(report->comm), roce_comm_size(report->comm),
	       o->inflight, o->plain ? "plain" : "registered", row->in_place ? "true" : "false",
	       report_transport(report->comm), row->reps);
	if (o->compute > 0) {
		printf("\"compute\":%u,", o->compute);
	}
	printf("\"min_us\":%.3f,\"median_us\":%.3f,\"p99_us\":%.3f,\"p999_us\":%.3f,"
	       "\"algbw_GBps\":%.6f,\"busbw_GBps\":%.6f,\"verified\":%s}\n",
	       s->min * 1e6, s->median * 1e6, s->p99 * 1e6, s->p999 * 1e6, algbw, busbw,
	       row->checked && row->wrong == 0 ? "true" : "false");
}

void report_row(struct report *report, const struct row *row)
{
	size_t bytes = row_bytes(report, row);
	double algbw = stats_algbw(bytes, row->seconds.median);
	double busbw = stats_busbw(bytes, row->seconds.median, bench_get(row->id)->bus,
				   roce_comm_size(report->comm));

	report->done++;
	if (!report->speaks) {
		return;
	}
	bar_wipe(report);
	if (report->options->json) {
		print_json(report, row, algbw, busbw);
	} else {
		print_text(report, row, algbw, busbw);
	}
	fflush(stdout);
	if (row->wrong > 0) {
		fprintf(stderr, "rocebench: %s of %zu bytes: %zu elements are wrong\n",
			bench_get(row->id)->name, row->bytes, row->wrong);
	}
}

int report_deinit(struct report *report)
{
	if (!report->speaks) {
		return 0;
	}
	bar_wipe(report);
	if (!report->options->json) {
		printf("# us: of one repetition, the slowest of all ranks; algbw, busbw: GB/s at "
		       "the median, as in nccl-tests. See rocebench(1).\n");
	}
	/* Rows are flushed one by one: the first failure may be an old one. */
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fputs("rocebench: standard output does not take what was measured\n", stderr);
		return -EIO;
	}
	return 0;
}
