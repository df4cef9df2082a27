/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Layout: public structs and constants as programs have compiled them in
 *
 * Everything is checked when this file is compiled; the program has nothing left to do. Fields are
 * only ever appended: change a line here only together with the soname.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "libclient/roceclient.h"

#include <assert.h>

static_assert(sizeof(void *) == 8, "the numbers are those of 64-bit systems");

static_assert(sizeof(struct roce_unique_id) == 256, "roce_unique_id");
static_assert(_Alignof(struct roce_unique_id) == 1, "roce_unique_id");

static_assert(offsetof(struct roce_client_options, size) == 0, "roce_client_options");
static_assert(offsetof(struct roce_client_options, name) == 8, "roce_client_options");
static_assert(offsetof(struct roce_client_options, autostart) == 16, "roce_client_options");
static_assert(offsetof(struct roce_client_options, timeout_ms) == 20, "roce_client_options");
static_assert(sizeof(struct roce_client_options) == 24, "roce_client_options");

static_assert(offsetof(struct roce_comm_options, size) == 0, "roce_comm_options");
static_assert(offsetof(struct roce_comm_options, name) == 8, "roce_comm_options");
static_assert(offsetof(struct roce_comm_options, join_timeout_ms) == 16, "roce_comm_options");
static_assert(offsetof(struct roce_comm_options, arrival_timeout_ms) == 20, "roce_comm_options");
static_assert(offsetof(struct roce_comm_options, transfer_timeout_ms) == 24, "roce_comm_options");
static_assert(sizeof(struct roce_comm_options) == 32, "roce_comm_options");

static_assert(offsetof(struct roce_allreduce_args, size) == 0, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, send) == 8, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, recv) == 16, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, count) == 24, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, comm) == 32, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, dtype) == 40, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, op) == 44, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, timeout_ms) == 48, "roce_allreduce_args");
static_assert(offsetof(struct roce_allreduce_args, request) == 56, "roce_allreduce_args");
static_assert(sizeof(struct roce_allreduce_args) == 64, "roce_allreduce_args");

static_assert(ROCE_OK == 0 && ROCE_IN_PROGRESS == 1 && ROCE_ERR_INVALID == 2, "roce_status");
static_assert(ROCE_ERR_UNSUPPORTED == 3 && ROCE_ERR_MISMATCH == 4, "roce_status");
static_assert(ROCE_ERR_PEER_DIED == 5 && ROCE_ERR_ABORTED == 6, "roce_status");
static_assert(ROCE_ERR_TIMEOUT == 7 && ROCE_ERR_QUOTA == 8, "roce_status");
static_assert(ROCE_ERR_NO_MEMORY == 9 && ROCE_ERR_NO_DAEMON == 10, "roce_status");
static_assert(ROCE_ERR_PERMISSION == 11 && ROCE_ERR_VERSION == 12, "roce_status");
static_assert(ROCE_ERR_PROTOCOL == 13 && ROCE_ERR_FD_MISSING == 14, "roce_status");
static_assert(ROCE_ERR_BAD_MEMORY == 15 && ROCE_ERR_UNREACHABLE == 16, "roce_status");
static_assert(ROCE_ERR_FORKED == 17 && ROCE_ERR_SHUTDOWN == 18, "roce_status");
static_assert(ROCE_ERR_EXISTS == 19 && ROCE_ERR_NOT_FOUND == 20, "roce_status");
static_assert(ROCE_ERR_INTERNAL == 21, "roce_status");

static_assert(ROCE_I8 == 0 && ROCE_U8 == 1 && ROCE_I16 == 2 && ROCE_U16 == 3, "roce_dtype");
static_assert(ROCE_I32 == 4 && ROCE_U32 == 5 && ROCE_I64 == 6 && ROCE_U64 == 7, "roce_dtype");
static_assert(ROCE_F16 == 8 && ROCE_BF16 == 9 && ROCE_F32 == 10 && ROCE_F64 == 11, "roce_dtype");
static_assert(ROCE_F8E4M3 == 12 && ROCE_F8E5M2 == 13, "roce_dtype");

static_assert(ROCE_SUM == 0 && ROCE_PROD == 1 && ROCE_MIN == 2 && ROCE_MAX == 3, "roce_op");
static_assert(ROCE_AVG == 4 && ROCE_BAND == 6 && ROCE_BOR == 7 && ROCE_BXOR == 8, "roce_op");
static_assert(ROCE_LAND == 9 && ROCE_LOR == 10 && ROCE_LXOR == 11, "roce_op");
static_assert(ROCE_OP_USER == 0x10000, "roce_op");
static_assert(ROCE_MEM_HUGE == 1, "roce_mem_flags");

int main(void)
{
	return 0;
}
