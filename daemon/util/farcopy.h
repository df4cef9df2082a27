/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Far copy: for results that this CPU does not read again
 *
 * A store to memory that is not in the cache first reads the line that it replaces, and then pushes
 * out something else. When a result is larger than the cache both are waste: stores past the cache
 * took a third off an allreduce of 25 MiB with four ranks a host (daemon/README.md, "What was
 * tried"). When it is smaller its reader finds it in the cache, and plain stores are better.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_UTIL_FARCOPY_H
#define ROCECOMM_UTIL_FARCOPY_H

#include <stddef.h>
#include <stdint.h>

/*
 * As memmove() where ranges are apart; where they overlap in part the result is unspecified, but
 * nothing outside [dst, dst + size) is touched. What was written is visible to whoever sees a later
 * release store of the caller.
 */
void farcopy(void *dst, const void *src, size_t size);

/*
 * Results of at least that many bytes, all destinations together, are worth it: a quarter of the
 * last-level cache, since sources and other work want the rest; 8 MiB where its size is unknown.
 */
uint64_t farcopy_threshold(void);

#endif
