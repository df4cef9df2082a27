/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Step: the communication of one training step
 *
 * The backward pass is played by writing known gradients, tensor by tensor from the last to the
 * first; a bucket is posted as a non-blocking average as soon as its last tensor is written, while
 * the pass goes on. The step ends when the last bucket is complete.
 *
 * Thread: main      Owns: gradient memory, times      Locks: none
 */
#ifndef TRAIN_STEP_STEP_H
#define TRAIN_STEP_STEP_H

#include "libclient/roceclient.h"
#include "tools/model/buckets.h"
#include "tools/model/resnet50.h"
#include "tools/train-step/values.h"

struct step {
	struct roce_client *client; /* borrowed, as is comm */
	struct roce_comm *comm;
	struct tensor tensors[RESNET50_TENSORS]; /* in backward order */
	struct bucket buckets[BUCKETS_MAX];
	float *gradients[BUCKETS_MAX]; /* roce_mem_alloc() */
	size_t n_buckets;

	/* Of the last run, in seconds since the step began; the worst of all ranks. */
	double ready[BUCKETS_MAX]; /* posted */
	double took[BUCKETS_MAX];  /* from posted to complete */
	double first_to_last;	   /* from the first post to the last completion */
	double whole;
};

/* Return: 0 or a roce status. Release with step_deinit() in either case. */
int step_init(struct step *step, struct roce_client *client, struct roce_comm *comm);
void step_deinit(struct step *step);
/* Runs one step with these values. Collective. Return: 0 or a roce status. */
int step_run(struct step *step, const struct values *values);
/* Checks every element of every bucket; prints the first wrong one. Return: wrong elements. */
size_t step_check(const struct step *step, const struct values *values);

#endif
