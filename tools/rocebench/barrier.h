/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Barrier: does it hold?
 *
 * The last rank enters only after all others have told it, by a message, that they were in and were
 * not let through for a while. Nobody's clock is compared, so a slow machine is no false alarm.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_BARRIER_H
#define ROCEBENCH_BARRIER_H

#include <stdint.h>

#include "libclient/roceclient.h"

/* Collective. *ret_wrong: 1 if this rank was let through early. Return: a roce status. */
int barrier_check(struct roce_comm *comm, int64_t *ret_wrong);

#endif
