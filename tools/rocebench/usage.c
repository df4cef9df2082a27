/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Usage: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "tools/rocebench/usage.h"

static const char help[] =
	"usage: rocebench [OPTION...] [COLLECTIVE...]\n"
	"\n"
	"Latency and bandwidth of collectives over the rocecomm daemons. See rocebench(1).\n"
	"\n"
	"COLLECTIVE: allreduce (default), allgather, reduce_scatter, broadcast, reduce, gather,\n"
	"  scatter, alltoall, alltoallv, barrier, sendrecv, step:resnet50, step:gpt2, step:moe; "
	"all\n"
	"\n"
	"  -n, --ranks=N         fork N ranks on this host (1)\n"
	"  --hosts=H --host=I    this is host I (0 ..) of H; run rocebench on each with the same\n"
	"                        other options\n"
	"  --root=ADDRESS[:PORT] the daemon where the ranks of several hosts meet\n"
	"  --job=NAME            name of the meeting (rocebench)\n"
	"  --socket=PATH         of this host's daemon\n"
	"  --transport=KIND      rdma, tcp: what the daemons must have chosen, else it fails\n"
	"                        Without -n and --hosts, one process a rank under torchrun, Open\n"
	"                        MPI, PMIx or Slurm.\n"
	"  -b, --min=SIZE  -e, --max=SIZE  -f, --factor=F\n"
	"                        from SIZE to SIZE (8, 4M), each F times the one before (4)\n"
	"  --sizes=SIZE,...      these sizes; K, M, G: 1024, 1024^2, 1024^3\n"
	"  -d, --dtype=TYPE      i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 "
	"(f32)\n"
	"  -o, --op=OP           sum prod min max avg band bor bxor land lor lxor (sum)\n"
	"  --root-rank=R         root of broadcast, reduce, gather, scatter (0)\n"
	"  -D, --inflight=D      operations posted before all are waited for (1)\n"
	"  --memory=KIND         registered: roce_mem_alloc(); plain: malloc() (registered)\n"
	"  --inplace             in place, for what comes in place\n"
	"  -w, --warmup=N        repetitions before those that count (5)\n"
	"  -r, --reps=N          repetitions of a row; without it, as many as fit in --time\n"
	"  -t, --time=SECONDS    of a row (0.5); at least 10 repetitions are made\n"
	"  --no-verify           do not check results\n"
	"  --corrupt             flip one byte of a result before the check, which must then fail\n"
	"  --compute=N           an N x N matrix product in each rank before each operation\n"
	"  --create              time to create a communicator\n"
	"  --json                one object a row instead of a table\n"
	"  --help, --version\n"
	"\n"
	"Exit: 0 well, 1 failed, 2 wrong usage, 3 no daemon, 4 a result is wrong.\n";

const char *usage_text(void)
{
	return help;
}
