/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Work: implementation
 *
 * Thread: any      Owns: see work.h      Locks: none
 */
#include "tools/benchmark/work.h"

#include <stdlib.h>

#define N 128
#define BLOCK 32

struct work {
	float a[N][N];
	float b[N][N];
	float c[N][N];
};

struct work *work_new(void)
{
	struct work *work = calloc(1, sizeof(*work));

	if (!work) {
		return NULL;
	}
	for (size_t i = 0; i < N; i++) {
		for (size_t j = 0; j < N; j++) {
			work->a[i][j] = (float)((i + 2 * j) % 7) / 8;
			work->b[i][j] = (float)((3 * i + j) % 5) / 8;
		}
	}
	return work;
}

struct work *work_free(struct work *work)
{
	free(work);
	return NULL;
}

static void product(struct work *work)
{
	for (size_t kk = 0; kk < N; kk += BLOCK) {
		for (size_t i = 0; i < N; i++) {
			for (size_t k = kk; k < kk + BLOCK; k++) {
				float a = work->a[i][k];

				for (size_t j = 0; j < N; j++) {
					work->c[i][j] += a * work->b[k][j];
				}
			}
		}
	}
}

float work_run(struct work *work, size_t products)
{
	for (size_t n = 0; n < products; n++) {
		product(work);
		/* The next product needs this one, and no element grows without bound. */
		for (size_t i = 0; i < N; i++) {
			work->a[i][n % N] = work->c[i][i] / 1024;
			work->c[i][i] = 0;
		}
	}
	return work->c[N - 1][0] + work->a[0][0];
}
