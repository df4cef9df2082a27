/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Types: operations, data types and reductions as both ends of the ring number them
 *
 * roceclient.h repeats the values under public names; values are never reused.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_PROTO_TYPES_H
#define ROCECOMM_PROTO_TYPES_H

#include <stdbool.h>
#include <stdint.h>

enum coll_kind {
	COLL_ALLREDUCE = 0,
	COLL_REDUCE = 1,
	COLL_BROADCAST = 2,
	COLL_ALLGATHER = 3,
	COLL_REDUCE_SCATTER = 4,
	COLL_GATHER = 5,
	COLL_SCATTER = 6,
	COLL_ALLTOALL = 7,
	COLL_ALLGATHERV = 8,
	COLL_REDUCE_SCATTERV = 9,
	COLL_GATHERV = 10,
	COLL_SCATTERV = 11,
	COLL_ALLTOALLV = 12,
	COLL_BARRIER = 13,
	COLL_SEND = 14, /* point to point: matched by (source, destination) in posting order */
	COLL_RECV = 15,
	COLL_COUNT_
};

enum dtype {
	DTYPE_I8 = 0,
	DTYPE_U8 = 1,
	DTYPE_I16 = 2,
	DTYPE_U16 = 3,
	DTYPE_I32 = 4,
	DTYPE_U32 = 5,
	DTYPE_I64 = 6,
	DTYPE_U64 = 7,
	DTYPE_F16 = 8,
	DTYPE_BF16 = 9,
	DTYPE_F32 = 10,
	DTYPE_F64 = 11,
	DTYPE_F8E4M3 = 12, /* moved, never reduced */
	DTYPE_F8E5M2 = 13,
	DTYPE_COUNT_
};

enum redop {
	REDOP_SUM = 0,
	REDOP_PROD = 1,
	REDOP_MIN = 2,
	REDOP_MAX = 3,
	REDOP_AVG = 4,
	REDOP_PREMUL_SUM = 5, /* every rank's input times that rank's scalar, then the sum */
	REDOP_BAND = 6,	      /* bitwise, integers only */
	REDOP_BOR = 7,
	REDOP_BXOR = 8,
	REDOP_LAND = 9, /* logical, integers only; the result is 0 or 1 */
	REDOP_LOR = 10,
	REDOP_LXOR = 11,
	REDOP_COUNT_
};

const char *coll_kind_name(unsigned int kind);
const char *dtype_name(unsigned int dtype);
const char *redop_name(unsigned int op);

/* Size of one element in bytes, 0 for an unknown type. */
unsigned int dtype_size(unsigned int dtype);
bool dtype_is_float(unsigned int dtype);

/* Is (dtype, op) a combination that exists? One rule for library and daemon. */
bool redop_supports(unsigned int op, unsigned int dtype);

/* What a collective takes. */
bool coll_kind_reduces(unsigned int kind);  /* uses op */
bool coll_kind_has_root(unsigned int kind); /* uses root */
bool coll_kind_is_v(unsigned int kind);	    /* uses count and displacement arrays */
bool coll_kind_is_p2p(unsigned int kind);

#endif
