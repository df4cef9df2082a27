/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Options: the command line, checked
 *
 * All that can be refused without a daemon is refused here, naming value, limit and mend.
 *
 * Thread: main      Owns: nothing (texts are those of argv)      Locks: none
 */
#ifndef ROCEBENCH_OPTIONS_H
#define ROCEBENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/rocebench/bench.h"
#include "tools/rocebench/size.h"

#define OPTIONS_SIZES_MAX 128
#define OPTIONS_REPS_MAX 1000000ul
#define OPTIONS_COMPUTE_MAX 4096u

/* Exit status; see rocebench(1). */
enum rocebench_exit {
	ROCEBENCH_OK = 0,
	ROCEBENCH_FAILED = 1,
	ROCEBENCH_USAGE = 2,
	ROCEBENCH_NO_DAEMON = 3,
	ROCEBENCH_WRONG = 4, /* a result is wrong */
};

struct options {
	/* what */
	bool chosen[BENCH_COUNT_];
	size_t sizes[OPTIONS_SIZES_MAX];
	size_t n_sizes;
	int dtype; /* enum dtype */
	int redop; /* enum redop */
	int root_rank;
	unsigned int inflight;
	bool plain;
	bool in_place;
	unsigned int compute; /* 0: none */

	/* how long */
	unsigned long warmup;
	bool warmup_given;  /* else a few, fewer of long ones */
	unsigned long reps; /* 0: as many as fit in .seconds */
	double seconds;

	/* output */
	bool verify;
	bool corrupt;
	bool json;

	/* where */
	bool launch; /* fork .ranks here; else one rank, as the environment says */
	unsigned int ranks;
	unsigned int hosts;
	unsigned int host;
	const char *root;
	const char *job; /* NULL: "rocebench" */
	const char *socket;
	const char *transport; /* that it must be; NULL: any */
};

/*
 * Return: 0, or -1 when the program is to end with *ret_exit: help was asked for, or something is
 * wrong and was said on standard error.
 */
int options_parse(int argc, char **argv, struct options *ret, int *ret_exit);

#endif
