/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Suit: what "auto" means for keys whose best value depends on the machine
 *
 * daemon/README.md has what was measured. reduce_threads is the engine's own (workers_suit()).
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_SUIT_H
#define ROCECOMM_SUIT_H

#include "config/config.h"

/* @cpus: that the daemon may use. */
unsigned int suit_io_threads(const struct config *c, unsigned int cpus);
unsigned int suit_streams(const struct config *c, unsigned int cpus);
uint32_t suit_spin_us(const struct config *c, unsigned int cpus);

#endif
