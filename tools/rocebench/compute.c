/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Compute: implementation
 *
 * Thread: main      Owns: see compute.h      Locks: none
 */
#include "tools/rocebench/compute.h"

#include "proto/base.h"

/* Rows of B that stay in the first-level cache while all rows of A pass. */
#define BLOCK 16u

int compute_init(struct compute *compute, unsigned int n)
{
	size_t cells = (size_t)n * n;

	*compute = (struct compute){.n = n};
	if (n == 0) {
		return 0;
	}
	compute->a = calloc(cells, sizeof(float));
	compute->b = calloc(cells, sizeof(float));
	compute->c = calloc(cells, sizeof(float));
	if (!compute->a || !compute->b || !compute->c) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < cells; i++) {
		compute->a[i] = (float)(i % 7) * 0.125f;
		compute->b[i] = (float)(i % 5) * 0.25f;
	}
	return 0;
}

void compute_deinit(struct compute *compute)
{
	free(take_ptr(compute->a));
	free(take_ptr(compute->b));
	free(take_ptr(compute->c));
}

static void row_add(float *restrict c, const float *restrict b, float a, unsigned int n)
{
	for (unsigned int j = 0; j < n; j++) {
		c[j] += a * b[j];
	}
}

void compute_run(struct compute *compute)
{
	size_t n = compute->n;

	for (size_t block = 0; block < n; block += BLOCK) {
		for (size_t i = 0; i < n; i++) {
			for (size_t k = block; k < MIN(block + BLOCK, n); k++) {
				row_add(compute->c + i * n, compute->b + k * n,
					compute->a[i * n + k], compute->n);
			}
		}
	}
}
