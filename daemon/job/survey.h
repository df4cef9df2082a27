/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Survey: what every rank of a communicator has posted, asked of the hosts that are linked
 *
 * For rocectl and for the sentence of an arrival time-out: whoever waits wants to know for whom.
 * Hosts that have not answered within SURVEY_TIMEOUT_MS are left unknown.
 *
 * Thread: control      Owns: surveys      Locks: none
 */
#ifndef ROCECOMM_JOB_SURVEY_H
#define ROCECOMM_JOB_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "job/hostlink.h"
#include "job/jobs.h"

#define SURVEY_TIMEOUT_MS 300

struct communicator;

struct survey_rank {
	bool known;
	uint32_t pid;
	uint64_t posted;
	uint64_t idle_ms; /* UINT64_MAX: has never posted */
};

struct survey {
	struct list link; /* jobs.surveys */
	uint64_t id;
	uint8_t uid[UID_SIZE];
	uint32_t nranks;
	struct survey_rank *ranks;
	uint32_t nasked;
	struct hostlink **asked; /* [nasked]; NULL: answered, or not asked */
	uint32_t pending;
	uint64_t deadline;
	bool ready;
	void (*done)(void *arg, struct survey *survey);
	void *arg;
};

/* @done: from the loop, never from inside; the survey is freed when it returns. -ENOMEM. */
int survey_start(struct communicator *c, void (*done)(void *arg, struct survey *survey), void *arg,
		 struct survey **ret);
/* Gives up on it: @done is not called. NULL allowed. Return: NULL. */
struct survey *survey_free(struct survey *survey);
void surveys_link_down(struct jobs *jobs, struct hostlink *l);
void surveys_tick(struct jobs *jobs, uint64_t now);
void surveys_drop_all(struct jobs *jobs);

bool survey_on_query(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);
bool survey_on_answer(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
