/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Stats: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/rocebench/stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static int stats_less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double stats_percentile(const double *sorted, size_t n, double share)
{
	/* 0.999 x 1000 is a little more than 999 in binary: that must not be the 1000th. */
	double rank = ceil(share * (double)n - 1e-9 * (double)n);

	assert(n > 0);
	if (rank < 1) {
		return sorted[0];
	}
	return sorted[rank >= (double)n ? n - 1 : (size_t)rank - 1];
}

void stats_make(double *samples, size_t n, struct stats *ret)
{
	assert(n > 0);
	qsort(samples, n, sizeof(*samples), stats_less);
	ret->min = samples[0];
	ret->median = n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
	ret->p99 = stats_percentile(samples, n, 0.99);
	ret->p999 = stats_percentile(samples, n, 0.999);
}

double stats_algbw(size_t bytes, double seconds)
{
	return bytes > 0 && seconds > 0 ? (double)bytes / seconds * 1e-9 : 0;
}

double stats_busbw(size_t bytes, double seconds, enum stats_bus bus, int ranks)
{
	double n = ranks, factor = 0;

	switch (bus) {
	case STATS_BUS_ONE:
		factor = 1;
		break;
	case STATS_BUS_SHARE:
		factor = (n - 1) / n;
		break;
	case STATS_BUS_TWICE:
		factor = 2 * (n - 1) / n;
		break;
	default:
		break;
	}
	return stats_algbw(bytes, seconds) * factor;
}
