/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU: numbers of the messages that hand GPU memory to the daemon
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §5b
 */
#ifndef ROCECOMM_PROTO_GPU_H
#define ROCECOMM_PROTO_GPU_H

#include <stdbool.h>
#include <stdint.h>

#define GPU_UUID_BYTES 16
#define GPU_IPC_BYTES 64

/* Bits of Welcome.features. */
enum welcome_feature {
	WELCOME_GPU = 1u << 0, /* takes GpuAllocRegister; whether it has that GPU, it says then */
};

/* How an allocation is handed over; values are never reused. */
enum gpu_handle {
	GPU_HANDLE_VMM = 1,    /* POSIX descriptor of a cuMemCreate() allocation */
	GPU_HANDLE_DMABUF = 2, /* dma-buf of an address range: for the NIC only, no copy engine */
	GPU_HANDLE_IPC = 3,    /* legacy handle of a cuMemAlloc() allocation */
};

/* Has the stream written @generation into this gate? */
static inline bool gate_open(uint32_t gate, uint32_t generation)
{
	return gate == generation;
}

#endif
