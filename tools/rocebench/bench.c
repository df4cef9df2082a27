/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Bench: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/rocebench/bench.h"

#include <assert.h>
#include <string.h>

#include "proto/types.h"

static const struct bench benches[BENCH_COUNT_] = {
	[BENCH_ALLREDUCE] = {"allreduce", COLL_ALLREDUCE, STATS_BUS_TWICE, .in_place = true},
	[BENCH_ALLGATHER] = {"allgather", COLL_ALLGATHER, STATS_BUS_SHARE, .blocks = true,
			     .in_place = true},
	[BENCH_REDUCE_SCATTER] = {"reduce_scatter", COLL_REDUCE_SCATTER, STATS_BUS_SHARE,
				  .blocks = true, .in_place = true},
	[BENCH_BROADCAST] = {"broadcast", COLL_BROADCAST, STATS_BUS_ONE, .in_place = true},
	[BENCH_REDUCE] = {"reduce", COLL_REDUCE, STATS_BUS_ONE, .in_place = true},
	[BENCH_GATHER] = {"gather", COLL_GATHER, STATS_BUS_SHARE, .blocks = true, .in_place = true},
	[BENCH_SCATTER] = {"scatter", COLL_SCATTER, STATS_BUS_SHARE, .blocks = true,
			   .in_place = true},
	[BENCH_ALLTOALL] = {"alltoall", COLL_ALLTOALL, STATS_BUS_SHARE, .blocks = true,
			    .in_place = true},
	[BENCH_ALLTOALLV] = {"alltoallv", COLL_ALLTOALLV, STATS_BUS_SHARE, .blocks = true},
	[BENCH_BARRIER] = {"barrier", COLL_BARRIER, STATS_BUS_NONE, .one_row = true},
	[BENCH_SENDRECV] = {"sendrecv", COLL_SEND, STATS_BUS_ONE},
	[BENCH_RESNET50] = {"step:resnet50", COLL_ALLREDUCE, STATS_BUS_TWICE, .one_row = true,
			    .always = true},
	[BENCH_GPT2] = {"step:gpt2", COLL_ALLREDUCE, STATS_BUS_TWICE, .one_row = true,
			.always = true},
	[BENCH_MOE] = {"step:moe", COLL_ALLTOALLV, STATS_BUS_SHARE, .one_row = true},
	[BENCH_CREATE] = {"create", COLL_BARRIER, STATS_BUS_NONE, .one_row = true},
};

const struct bench *bench_get(enum bench_id id)
{
	assert(id < BENCH_COUNT_);
	return &benches[id];
}

enum bench_id bench_find(const char *name, size_t length)
{
	for (unsigned int i = 0; i < BENCH_COUNT_; i++) {
		if (strlen(benches[i].name) == length &&
		    memcmp(benches[i].name, name, length) == 0) {
			return i;
		}
	}
	return BENCH_COUNT_;
}
