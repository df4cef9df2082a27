/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Stats: order statistics of repetitions, and the bandwidths that follow from a time
 *
 * Percentiles are by nearest rank: the smallest sample that at least that share of the samples does
 * not exceed. Hence p99.9 is the maximum unless there are a thousand samples.
 *
 * Bandwidths, in 10^9 bytes a second, are those of nccl-tests: algbw = bytes / time is what the
 * caller sees; busbw = algbw x factor is what the busiest link must carry, and can be held against
 * the speed of that link whatever the number of ranks.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_STATS_H
#define ROCEBENCH_STATS_H

#include <stddef.h>

/* How busbw follows from algbw, n being the number of ranks. */
enum stats_bus {
	STATS_BUS_NONE,	 /* 0: moves nothing */
	STATS_BUS_ONE,	 /* 1: broadcast, reduce, send and receive */
	STATS_BUS_SHARE, /* (n-1)/n: what moves all blocks but the own one */
	STATS_BUS_TWICE, /* 2(n-1)/n: allreduce, which is reduce-scatter and allgather */
	STATS_BUS_COUNT_
};

struct stats {
	double min, median, p99, p999;
};

/* Sorts @samples, of which there is at least one. */
void stats_make(double *samples, size_t n, struct stats *ret);
/* @sorted: ascending, at least one; @share: 0 .. 1. */
double stats_percentile(const double *sorted, size_t n, double share);
/* In 10^9 bytes a second; 0 without bytes. */
double stats_algbw(size_t bytes, double seconds);
double stats_busbw(size_t bytes, double seconds, enum stats_bus bus, int ranks);

#endif
