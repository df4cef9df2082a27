/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU paths: which network device can reach which GPU's memory, found out by trial
 *
 * Each pair of a GPU in use and an RDMA device is tried once, in order: the device registers memory
 * of the GPU by its dma-buf, or by its address (a peer memory module). What comes of it is kept,
 * with the reason for what did not work. Bytes are moved through pinned memory of the host in any
 * case, since CPUs make the sums: the trial says whether that is for want of another way. Where a
 * device could reach the memory itself, or its trial did not end, what lies between the two on PCI
 * is looked at, too (topo/pci_route.h).
 *
 * Thread: control      Owns: what is known      Locks: none
 */
#ifndef ROCECOMM_CONTROL_GPU_PATHS_H
#define ROCECOMM_CONTROL_GPU_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/json.h"
#include "gpu/gpu.h"
#include "topo/pci_route.h"
#include "topo/rdma_mem.h"

struct gpu_path {
	uint8_t gpu[GPU_UUID_BYTES];
	uint32_t index; /* of the device */
	char device[IBV_SYSFS_NAME_MAX];
	enum rdma_mem_way way;
	bool stalled;		      /* the trial did not end */
	char reason[720];	      /* a sentence, never empty */
	char warning[PCI_ROUTE_TEXT]; /* what makes it slow or hang, and the mend; "": nothing that
					 is known */
	char unseen[PCI_ROUTE_TEXT];  /* what of that cannot be known; "" */
	struct pci_route route;
};

struct gpu_paths_look;

struct gpu_paths {
	struct gpu_path *rows;
	size_t n;
	struct gpu_paths_look *looks, *last; /* the first one is under way */
	const struct pci_tree *tree;	     /* NULL: this machine's */
	unsigned int trial_ms;		     /* 0: GPU_ROUND_MS */
};

/* No look is under way. */
void gpu_paths_deinit(struct gpu_paths *paths);
/*
 * Tries what is not tried yet. @done: when all is, or cannot be, from gpu_dispatch() or at once;
 * all arguments live until then. @gpu and @devices: NULL: there are none.
 */
void gpu_paths_look(struct gpu_paths *paths, struct gpu *gpu, const struct rdma *devices,
		    void (*done)(void *arg), void *arg);
/* Why this GPU's memory goes through the host: the second half of a sentence. */
void gpu_paths_reason(const struct gpu_paths *paths, const uint8_t *gpu, char *text, size_t size);
/* Member "gpus" of an open object. */
void gpu_paths_json(struct json *j, const struct gpu_paths *paths, const struct gpu *gpu);

#endif
