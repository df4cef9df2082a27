/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Compute: what a trainer does between operations
 *
 * C += A x B with square f32 matrices: 2 N^3 floating-point operations on 12 N^2 bytes, single
 * threaded, in loops that the compiler vectorises.
 *
 * Thread: main      Owns: the matrices      Locks: none
 */
#ifndef ROCEBENCH_COMPUTE_H
#define ROCEBENCH_COMPUTE_H

struct compute {
	unsigned int n; /* 0: does nothing */
	float *a, *b, *c;
};

/* Return: 0 or -ENOMEM; release in either case. */
int compute_init(struct compute *compute, unsigned int n);
void compute_deinit(struct compute *compute);
void compute_run(struct compute *compute);

#endif
