/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Import: from a client's file descriptor to a region, or to a sentence why not
 *
 * The daemon reads and writes this memory for as long as operations run, so a client must not be
 * able to take it away: only memfds that are sealed against shrinking are taken, and no huge page
 * file systems (where a page may be missing at the time of the fault). There is no SIGBUS handler.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_MEM_IMPORT_H
#define ROCECOMM_MEM_IMPORT_H

#include <stddef.h>
#include <stdint.h>

#include "mem/region.h"
#include "proto/status.h"

/*
 * @fd: borrowed; the mapping does not need it. @size: bytes wanted, at least 1.
 * @charge: for @size bytes, moved into the region on success.
 * @err: the sentence for a positive return.
 * Return: 0, enum status (positive), -ENOMEM.
 */
int import_memfd(int fd, uint64_t size, struct quota_charge *charge, struct region **ret, char *err,
		 size_t err_size);

#endif
