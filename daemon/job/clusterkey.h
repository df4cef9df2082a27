/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Cluster key: the secret that all daemons of a cluster share
 *
 * A file of one line, 32 random bytes in hexadecimal, that only its owner may read. Whoever has it
 * may join every job of the cluster, so a file that others could have read is refused.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_CLUSTERKEY_H
#define ROCECOMM_JOB_CLUSTERKEY_H

#include <stddef.h>
#include <stdint.h>

#define CLUSTERKEY_SIZE 32

/*
 * Reads a key file.
 * @ret_key:  CLUSTERKEY_SIZE bytes; the caller wipes them
 * @err:      on failure a sentence with path, cause and mend
 * Return: 0, -EACCES (mode or owner), -EINVAL (content), or another negative errno.
 */
int clusterkey_load(const char *path, uint8_t *ret_key, char *err, size_t err_size);

#endif
