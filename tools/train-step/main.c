/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * train-step: the communication of ResNet-50's data-parallel training, checked and timed
 *
 * Run one process a rank with the environment of torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT), Open MPI, PMIx or Slurm. One step to warm up, some timed steps with exact values,
 * one with arbitrary floats; every element of every step is checked. Rank 0 prints the medians.
 *
 * Thread: main      Owns: client and communicator      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/roceclient.h"
#include "proto/base.h"
#include "tools/train-step/step.h"

#define STEPS_DEFAULT 5
#define STEPS_MAX 1000

struct times {
	double ready[STEPS_MAX];
	double took[STEPS_MAX];
};

struct result {
	size_t steps;
	double whole[STEPS_MAX];
	double first_to_last[STEPS_MAX];
	struct times buckets[BUCKETS_MAX];
};

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), less);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void result_add(struct result *result, const struct step *step)
{
	size_t i = result->steps++;

	result->whole[i] = step->whole;
	result->first_to_last[i] = step->first_to_last;
	for (size_t b = 0; b < step->n_buckets; b++) {
		result->buckets[b].ready[i] = step->ready[b];
		result->buckets[b].took[i] = step->took[b];
	}
}

static void print_row(const char *name, size_t tensors, size_t count, double ready, double took,
		      int size)
{
	double bytes = (double)count * sizeof(float);
	double algbw = bytes / took * 1e-9;

	printf("%-8s %8zu %9.2f %10.1f %9.1f %12.2f %12.2f\n", name, tensors, bytes / (1 << 20),
	       ready * 1e3, took * 1e3, algbw, algbw * 2 * (size - 1) / size);
}

static void result_print(struct result *result, const struct step *step)
{
	int size = roce_comm_size(step->comm);
	size_t n = result->steps;
	char name[24];

	printf("\n%-8s %8s %9s %10s %9s %12s %12s\n", "bucket", "tensors", "MiB", "ready ms",
	       "time ms", "algbw GB/s", "busbw GB/s");
	for (size_t b = 0; b < step->n_buckets; b++) {
		const struct bucket *bucket = &step->buckets[b];

		snprintf(name, sizeof(name), "%zu", b);
		print_row(name, bucket->tensors, bucket->count, median(result->buckets[b].ready, n),
			  median(result->buckets[b].took, n), size);
	}
	print_row("step", RESNET50_TENSORS, RESNET50_PARAMETERS, 0,
		  median(result->first_to_last, n), size);
	printf("\nMedian of %zu steps, each the slowest of %d ranks. ready: the backward pass has "
	       "made the bucket and posts it;\ntime: from there until it is complete (step: from "
	       "the first post to the last completion; with the backward\npass it is %.1f ms). "
	       "algbw = bytes / time, busbw = algbw x 2(n-1)/n, n = %d.\n",
	       n, size, median(result->whole, n) * 1e3, size);
}

static void print_begin(const struct step *step)
{
	struct roce_comm *comm = step->comm;

	printf("ResNet-50: %d gradient tensors, 25,557,032 parameters, f32, %zu buckets; %d ranks "
	       "on %d hosts (",
	       RESNET50_TENSORS, step->n_buckets, roce_comm_size(comm), roce_comm_hosts(comm));
	for (int h = 0; h < roce_comm_hosts(comm); h++) {
		printf("%s%s", h ? ", " : "", roce_comm_host_name(comm, h));
	}
	printf(")\npath: %s\n", roce_comm_path(comm));
	fflush(stdout);
}

/* One step and its check on all ranks. Return: 0, a roce status, or -1 when elements are wrong. */
static int run_one(struct step *step, const struct values *values)
{
	int64_t bad;
	int r;

	r = step_run(step, values);
	if (r != ROCE_OK) {
		return r;
	}
	bad = (int64_t)step_check(step, values);
	r = roce_allreduce(&bad, &bad, 1, ROCE_I64, ROCE_SUM, step->comm);
	if (r != ROCE_OK) {
		return r;
	}
	if (bad > 0 && roce_comm_rank(step->comm) == 0) {
		fprintf(stderr, "train-step: %lld elements are wrong\n", (long long)bad);
	}
	return bad > 0 ? -1 : 0;
}

static int run(struct step *step, struct result *result, unsigned int steps)
{
	struct values values = {.size = (unsigned int)roce_comm_size(step->comm), .exact = true};
	int first = roce_comm_rank(step->comm) == 0;
	int r;

	r = run_one(step, &values);
	for (values.step = 1; r == 0 && values.step <= steps; values.step++) {
		r = run_one(step, &values);
		if (r == 0) {
			result_add(result, step);
		}
		if (r == 0 && first) {
			printf("step %u: %.1f ms\n", values.step, step->whole * 1e3);
			fflush(stdout);
		}
	}
	if (r != 0) {
		return r;
	}
	values.exact = false;
	r = run_one(step, &values);
	if (r == 0 && first) {
		result_print(result, step);
		printf("Checked on every rank: %u steps x 25,557,032 averages equal to the "
		       "reference to the last bit, and one step\nof arbitrary floats within the "
		       "rounding of %u additions.\n",
		       steps + 1, values.size);
	}
	return r;
}

static int failed(int r)
{
	if (r > 0) {
		fprintf(stderr, "train-step: %s: %s\n", roce_status_name(r), roce_last_error());
	}
	return 1;
}

static int train(struct roce_client *client, unsigned int steps)
{
	cleanup_free struct result *result = calloc(1, sizeof(*result));
	struct roce_comm_options options = {.size = sizeof(options), .name = "resnet50"};
	struct roce_comm *comm;
	struct step step;
	int r;

	if (!result) {
		fprintf(stderr, "train-step: no memory\n");
		return 1;
	}
	r = roce_comm_init_env(client, &options, &comm);
	if (r != ROCE_OK) {
		return failed(r);
	}
	r = step_init(&step, client, comm);
	if (r == ROCE_OK) {
		if (roce_comm_rank(comm) == 0) {
			print_begin(&step);
		}
		r = run(&step, result, steps);
	}
	if (r != ROCE_OK) {
		failed(r);
	}
	step_deinit(&step);
	roce_comm_destroy(comm);
	return r == ROCE_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
	unsigned long steps = STEPS_DEFAULT;
	struct roce_client *client;
	char *end = NULL;
	int r;

	if (argc == 2) {
		steps = strtoul(argv[1], &end, 10);
	}
	if (argc > 2 || (end && (*end != '\0' || steps < 1 || steps > STEPS_MAX))) {
		fprintf(stderr, "usage: train-step [STEPS]   (1 to %d, default %d)\n", STEPS_MAX,
			STEPS_DEFAULT);
		return 2;
	}
	r = roce_connect(NULL, NULL, &client);
	if (r != ROCE_OK) {
		return failed(r);
	}
	r = train(client, (unsigned int)steps);
	roce_disconnect(client);
	return r;
}
