/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * RDMA memory: one region, registered with every device that can
 *
 * A device that cannot register the region is no error: its bytes then go through buffers of the
 * transport, and `reason` says why. Registering pins pages and takes long (engine/registrar.h).
 *
 * Remote writes are allowed for as long as the region is registered. A peer that was told the key
 * may write anywhere in the region at any time, not only where and when it was asked to. Peers are
 * daemons of the same cluster that hold its key and deliver the contents of these regions anyway;
 * no client ever sees a key. Memory windows would bound it to a message at the cost of two work
 * requests each.
 *
 * Thread: whoever has the region, one at a time; what is registered is read by any
 * Owns: registrations      Locks: none
 */
#ifndef ROCECOMM_TOPO_RDMA_MEM_H
#define ROCECOMM_TOPO_RDMA_MEM_H

#include "topo/rdma.h"

struct rdma_mem {
	uint8_t *base;
	size_t size;
	struct ibv_mr *mr[RDMA_DEVICES_MAX]; /* by device index; NULL: not registered there */
	struct rdma_device *devices[RDMA_DEVICES_MAX]; /* of these */
	uint32_t full;		       /* devices that had no room, by bits of their indexes */
	char reason[RDMA_REASON + 96]; /* of the last device that refused; "" */
};

/* How memory of a GPU reached the device. */
enum rdma_mem_way {
	RDMA_MEM_NONE, /* only through host memory */
	RDMA_MEM_DMABUF,
	RDMA_MEM_PEER, /* by address, with a peer memory module */
};

int rdma_mem_new(struct rdma *list, void *base, size_t size, struct rdma_mem **ret);
struct rdma_mem *rdma_mem_free(struct rdma_mem *m);
/* Registers with one more device. Return: 0, or negative errno with m->reason. */
int rdma_mem_add_device(struct rdma_mem *m, struct rdma_device *d);
/* Gives the registration with one device back, before it is closed. */
void rdma_mem_drop_device(struct rdma_mem *m, struct rdma_device *d);
/*
 * Memory behind a dma-buf: tries the descriptor (where offset and address lie alike in their
 * pages), then the address. @fd: borrowed for the call; -1: there is none. Return: the way that
 * worked, with m->reason why the dma-buf did not; RDMA_MEM_NONE with m->reason: it is staged.
 */
enum rdma_mem_way rdma_mem_add_dmabuf(struct rdma_mem *m, struct rdma_device *d, int fd,
				      uint64_t offset);
/* What to tell the user who sees ENOMEM: names RLIMIT_MEMLOCK, and where to raise it. */
void rdma_memlock_hint(size_t size, char *buf, size_t len);
/* The same for a region of @d, which may have no more of them, too. */
void rdma_region_hint(const struct rdma_device *d, size_t size, char *buf, size_t len);
/* Does a limit of locked memory hold for this process? */
bool rdma_memlock_limited(uint64_t *ret_bytes);

#endif
