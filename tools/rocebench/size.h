/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Size: sizes as people write them; of rocebench and gpu-rank
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_SIZE_H
#define ROCEBENCH_SIZE_H

#include <stddef.h>

#define OPTIONS_SIZE_MAX ((size_t)1 << 40)

/* "4096", "64K", "25M", "1G" (powers of 1024). Return: 0 or -1. */
int options_size(const char *text, size_t length, size_t *ret);

#endif
