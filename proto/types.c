/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Types: the tables behind types.h
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "proto/types.h"

#include "proto/base.h"

static const char *const kind_names[COLL_COUNT_] = {
	[COLL_ALLREDUCE] = "allreduce",
	[COLL_REDUCE] = "reduce",
	[COLL_BROADCAST] = "broadcast",
	[COLL_ALLGATHER] = "allgather",
	[COLL_REDUCE_SCATTER] = "reduce-scatter",
	[COLL_GATHER] = "gather",
	[COLL_SCATTER] = "scatter",
	[COLL_ALLTOALL] = "alltoall",
	[COLL_ALLGATHERV] = "allgatherv",
	[COLL_REDUCE_SCATTERV] = "reduce-scatterv",
	[COLL_GATHERV] = "gatherv",
	[COLL_SCATTERV] = "scatterv",
	[COLL_ALLTOALLV] = "alltoallv",
	[COLL_BARRIER] = "barrier",
	[COLL_SEND] = "send",
	[COLL_RECV] = "recv",
};

static const struct {
	const char *name;
	uint8_t size;
	bool is_float;
	bool reduces;
} dtypes[DTYPE_COUNT_] = {
	[DTYPE_I8] = {"i8", 1, false, true},	     [DTYPE_U8] = {"u8", 1, false, true},
	[DTYPE_I16] = {"i16", 2, false, true},	     [DTYPE_U16] = {"u16", 2, false, true},
	[DTYPE_I32] = {"i32", 4, false, true},	     [DTYPE_U32] = {"u32", 4, false, true},
	[DTYPE_I64] = {"i64", 8, false, true},	     [DTYPE_U64] = {"u64", 8, false, true},
	[DTYPE_F16] = {"f16", 2, true, true},	     [DTYPE_BF16] = {"bf16", 2, true, true},
	[DTYPE_F32] = {"f32", 4, true, true},	     [DTYPE_F64] = {"f64", 8, true, true},
	[DTYPE_F8E4M3] = {"f8e4m3", 1, true, false}, [DTYPE_F8E5M2] = {"f8e5m2", 1, true, false},
};

static const char *const op_names[REDOP_COUNT_] = {
	[REDOP_SUM] = "sum",   [REDOP_PROD] = "prod", [REDOP_MIN] = "min",
	[REDOP_MAX] = "max",   [REDOP_AVG] = "avg",   [REDOP_PREMUL_SUM] = "premul-sum",
	[REDOP_BAND] = "band", [REDOP_BOR] = "bor",   [REDOP_BXOR] = "bxor",
	[REDOP_LAND] = "land", [REDOP_LOR] = "lor",   [REDOP_LXOR] = "lxor",
};

const char *coll_kind_name(unsigned int kind)
{
	return kind < COLL_COUNT_ ? kind_names[kind] : "unknown operation";
}

const char *dtype_name(unsigned int dtype)
{
	return dtype < DTYPE_COUNT_ ? dtypes[dtype].name : "unknown dtype";
}

const char *redop_name(unsigned int op)
{
	return op < REDOP_COUNT_ ? op_names[op] : "unknown reduction";
}

unsigned int dtype_size(unsigned int dtype)
{
	return dtype < DTYPE_COUNT_ ? dtypes[dtype].size : 0;
}

bool dtype_is_float(unsigned int dtype)
{
	return dtype < DTYPE_COUNT_ && dtypes[dtype].is_float;
}

bool redop_supports(unsigned int op, unsigned int dtype)
{
	if (op >= REDOP_COUNT_ || dtype >= DTYPE_COUNT_ || !dtypes[dtype].reduces) {
		return false;
	}
	return op < REDOP_BAND || !dtypes[dtype].is_float;
}

bool coll_kind_reduces(unsigned int kind)
{
	return kind == COLL_ALLREDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER ||
	       kind == COLL_REDUCE_SCATTERV;
}

bool coll_kind_has_root(unsigned int kind)
{
	return kind == COLL_REDUCE || kind == COLL_BROADCAST || kind == COLL_GATHER ||
	       kind == COLL_SCATTER || kind == COLL_GATHERV || kind == COLL_SCATTERV;
}

bool coll_kind_is_v(unsigned int kind)
{
	return kind >= COLL_ALLGATHERV && kind <= COLL_ALLTOALLV;
}

bool coll_kind_is_p2p(unsigned int kind)
{
	return kind == COLL_SEND || kind == COLL_RECV;
}
