/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Alias: pages of the caller's memory that are the daemon's, too
 *
 * The pages that lie wholly inside the caller's range are replaced by pages of a memfd, at the same
 * addresses and with the same content: every pointer stays good. The bytes before the first and
 * after the last of them share their pages with memory of others and stay where they are.
 *
 * Thread: any; nobody may write to the range during alias_init()      Owns: the mapping
 * Locks: none; the process's list of ranges is fork.c's
 */
#ifndef ROCECLIENT_ALIAS_H
#define ROCECLIENT_ALIAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/fork.h"

struct shmem;

struct alias {
	struct fork_range range; /* range.base NULL: there is none */
};

/* Bytes of [ptr, ptr + size) that alias_init() would leave alone before its first page. */
size_t alias_head(const void *ptr);
/* Size of a memfd that holds all pages that [ptr, ptr + size) touches. */
size_t alias_span(const void *ptr, size_t size);

/*
 * Moves the whole pages of [ptr, ptr + size) to @shm, which has alias_span() bytes; @shm lives at
 * least as long. Return: 0 or a status with its sentence: ROCE_ERR_UNSUPPORTED for what is not
 * private, anonymous memory.
 */
int alias_init(struct alias *alias, struct shmem *shm, uint8_t *ptr, size_t size);
/* Puts private pages there again. @keep: with the content; else it is undefined. */
void alias_deinit(struct alias *alias, bool keep);

#endif
