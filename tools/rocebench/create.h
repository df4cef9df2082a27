/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Create: the time to make a communicator
 *
 * The daemons are connected already, by the communicator that all ranks are in. Its id reaches all
 * ranks before the clock starts, as through an application's store; timed is roce_comm_init() from
 * a barrier on, the longest of all ranks. A barrier over the new communicator checks it.
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCEBENCH_CREATE_H
#define ROCEBENCH_CREATE_H

#include "tools/rocebench/measure.h"

/* Return: a roce status. */
int create_measure(const struct measure *m, struct row *row);

#endif
