/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Shared memory: one memfd that client and daemon both map
 *
 * The unit under everything that is handed to the daemon: allocations of the user (mem.c), the
 * mirrors of registered pointers (mem.c) and the staging slabs (staging.c). The memfd is sealed
 * against shrinking and growing before the daemon sees it. The descriptor of the user's memory is
 * kept, so that it could be handed to a restarted daemon.
 *
 * Thread: any      Owns: mapping, descriptor, the daemon's registration      Locks: none; makes
 * requests: the client's lock must not be held
 */
#ifndef ROCECLIENT_SHMEM_H
#define ROCECLIENT_SHMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roce_client;

struct shmem {
	uint8_t *base;
	size_t size; /* whole pages */
	int fd;
	uint32_t id; /* the daemon's name for it; 0: not registered */
	bool internal;
	int pin_device;
	struct roce_client *pinned; /* whose GPU driver has it page-locked (gpu.c) */
};

enum {
	SHMEM_INTERNAL = 1u << 0, /* the library's own: not inherited over fork() */
	SHMEM_HUGE = 1u << 1,	  /* ask for huge pages */
	SHMEM_RESERVE = 1u << 2,  /* have the kernel provide all pages now */
};

/* Creates, maps and registers @size bytes, zeroed. Return: 0 or a status with its sentence. */
int shmem_new(struct roce_client *client, size_t size, unsigned int flags, struct shmem *ret);
/* Deregisters: returns when the daemon no longer uses it. Return: 0 or a status. */
int shmem_deregister(struct roce_client *client, struct shmem *shm);
/* Unmaps and closes. @forked: this is a child, where internal mappings do not exist. */
void shmem_free(struct shmem *shm, bool forked);

#endif
