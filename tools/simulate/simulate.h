/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocecomm-simulate: what its commands share
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_H
#define ROCECOMM_SIMULATE_H

/* Exit status. */
enum {
	SIMULATE_OK = 0,
	SIMULATE_FAILED = 1,
	SIMULATE_USAGE = 2,
};

/* The data plane: plans on virtual time. argv[0] is the name of the command. */
int simulate_data(int argc, char **argv);
/* The control plane: the start of a communicator. */
int simulate_control(int argc, char **argv);

#endif
