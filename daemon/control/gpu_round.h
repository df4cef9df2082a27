/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU round: the trial of one GPU's memory with several network devices, in bounded time
 *
 * Registering memory of a GPU goes through three drivers, and where they do not get on with each
 * other the call may not return. So each device has a thread for its trial, and a context of its
 * own, so that the device can go away meanwhile. One more thread waits for them, at most
 * GPU_ROUND_MS. A trial that is not over then is abandoned: its thread keeps what it uses, and
 * frees it should the call ever return.
 *
 * Thread: control      Owns: threads, contexts and protection domains      Locks: none
 */
#ifndef ROCECOMM_CONTROL_GPU_ROUND_H
#define ROCECOMM_CONTROL_GPU_ROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "topo/pci_route.h"
#include "topo/rdma_mem.h"

#define GPU_ROUND_MS 1500 /* a stop of the daemon waits for it, and may take 1800 */

struct gpu_round;

struct gpu_round_result {
	uint32_t index; /* of the device */
	char device[IBV_SYSFS_NAME_MAX];
	enum rdma_mem_way way;
	bool stalled;			       /* registering has not returned */
	bool untried;			       /* see refusal */
	char refusal[RDMA_REASON + 96];	       /* why the last way did not work; "" */
	uint32_t refused[RDMA_REFUSAL_COUNT_]; /* how often; not counted at the device */
	struct pci_route route;
};

/* @ms: GPU_ROUND_MS, or less in a test. Return: 0, -ENOMEM. */
int gpu_round_new(struct gpu *gpu, const struct gpu_trial *trial, const struct pci_tree *tree,
		  const char *bus, struct gpu_round **ret);
/* One device more; borrowed for the call. */
void gpu_round_add(struct gpu_round *round, const struct rdma_device *d);
/* @done: from gpu_dispatch(), or at once: the results are there until gpu_round_free(). */
void gpu_round_run(struct gpu_round *round, unsigned int ms, void (*done)(void *arg), void *arg);
/* @ret: NULL: only how many. Return: how many devices. */
uint32_t gpu_round_results(const struct gpu_round *round, const struct gpu_round_result **ret);
/* Not while it runs. NULL allowed. Return: NULL. */
struct gpu_round *gpu_round_free(struct gpu_round *round);

#endif
