/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Count: allreduces between two pauses, so that a test can read counters before and after
 *
 * It says "ready" and waits for SIGUSR1, runs --iterations operations one after the other, says
 * "done" and waits again. --variant: shared (the default), in-place (shared as well) or plain.
 *
 * Thread: main      Owns: memory      Locks: none
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"
#include "tests/integration/collcheck/collcheck.h"

#define WARM_UP 8

static void pause_until_told(const char *word)
{
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	printf("%s %d\n", word, 0);
	fflush(stdout);
	sigwait(&set, &number);
}

static int count_memory(struct collcheck *cc, float **ret_in, float **ret_out)
{
	size_t size = MAX(cc->count, 1) * sizeof(float);
	void *in, *out;
	int r;

	if (strcmp(cc->variant, "plain") == 0) {
		*ret_in = calloc(1, size);
		*ret_out = calloc(1, size);
		return *ret_in && *ret_out ? ROCE_OK : ROCE_ERR_NO_MEMORY;
	}
	r = roce_mem_alloc(cc->client, size, 0, &in);
	if (r != ROCE_OK) {
		return r;
	}
	out = in;
	if (strcmp(cc->variant, "in-place") != 0) {
		r = roce_mem_alloc(cc->client, size, 0, &out);
		if (r != ROCE_OK) {
			return r;
		}
	}
	*ret_in = in;
	*ret_out = out;
	return ROCE_OK;
}

static int run(struct collcheck *cc, float *in, float *out, unsigned long n)
{
	float want = (float)cc->size * (float)(cc->size + 1) / 2;

	for (unsigned long i = 0; i < n; i++) {
		int r;

		for (size_t k = 0; k < cc->count && (in == out || i == 0); k++) {
			in[k] = (float)(cc->rank + 1);
		}
		r = roce_allreduce(in, out, cc->count, ROCE_F32, ROCE_SUM, cc->comm);
		if (r != ROCE_OK) {
			return collcheck_failed(cc, "allreduce", r);
		}
	}
	for (size_t k = 0; k < cc->count && n > 0; k++) {
		if (out[k] != want) {
			fprintf(stderr, "rank %u: element %zu is %g, must be %g\n", cc->rank, k,
				(double)out[k], (double)want);
			return 1;
		}
	}
	return 0;
}

int mode_count(struct collcheck *cc)
{
	float *in, *out;
	sigset_t set;
	int r;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	r = count_memory(cc, &in, &out);
	if (r != ROCE_OK) {
		return collcheck_failed(cc, "memory", r);
	}
	r = run(cc, in, out, WARM_UP);
	if (r != 0) {
		return r;
	}
	pause_until_told("ready");
	r = run(cc, in, out, cc->iterations);
	if (r != 0) {
		return r;
	}
	pause_until_told("done");
	if (strcmp(cc->variant, "plain") == 0) {
		free(in);
		free(out);
	}
	return 0;
}
