/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Report: what rank 0 prints
 *
 * A table or one JSON object a row on standard output; on standard error, if it is a terminal and
 * the run is long, a bar that the next row wipes away.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_REPORT_H
#define ROCEBENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "libclient/roceclient.h"
#include "tools/rocebench/measure.h"
#include "tools/rocebench/options.h"

struct report {
	const struct options *options; /* borrowed */
	struct roce_comm *comm;	       /* borrowed */
	bool speaks;		       /* on rank 0 */
	bool bar;		       /* standard error is a terminal */
	bool bar_shown;
	double begin;
	size_t rows, done;
	enum bench_id id; /* what is measured now */
	size_t bytes;
};

/* @rows: how many will come. Prints the head. */
/* What carries data between hosts: "rdma", "tcp", or "shared" when there is one host only. */
const char *report_transport(struct roce_comm *comm);

void report_init(struct report *report, const struct options *options, struct roce_comm *comm,
		 size_t rows);
/* What is measured next. */
void report_next(struct report *report, enum bench_id id, size_t bytes);
/* @share: of it that is over. Between repetitions only; rare. */
void report_progress(struct report *report, double share);
void report_row(struct report *report, const struct row *row);
/* Wipes the bar away, and explains the table. Return: 0, or -EIO: a row was not written; said. */
int report_deinit(struct report *report);

#endif
