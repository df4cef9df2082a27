/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Launch: the ranks of this host as child processes
 *
 * Each child gets the environment of torchrun, so that one way of joining serves all launchers. A
 * rank that fails ends all: the others learn it from the daemon and have a moment to say so, then
 * they are killed. The children die with their parent.
 *
 * Thread: main      Owns: the children      Locks: none
 */
#ifndef ROCEBENCH_LAUNCH_H
#define ROCEBENCH_LAUNCH_H

#include "tools/rocebench/options.h"

/* @run: what a child does; its return value is its exit status. Return: the exit status. */
int launch(const struct options *options, int (*run)(const struct options *options));

#endif
