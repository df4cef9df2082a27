/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * collcheck: one rank of an integration test
 *
 * Each mode is a file with one function. Everything a test wants to know is one line of standard
 * output that begins with a word (ready, digest, error, done); what is wrong goes to standard error
 * and makes the exit status 1.
 *
 * Thread: main      Owns: see struct collcheck      Locks: none
 */
#ifndef COLLCHECK_H
#define COLLCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/roceclient.h"
#include "tests/integration/collcheck/case.h"

#define COLLCHECK_TIMEOUT_MS 60000
/* A status came from a wait, as the test may expect: exit with this instead of 1. */
#define COLLCHECK_STOPPED 10

struct collcheck {
	struct roce_client *client;
	struct roce_comm *comm;
	unsigned int rank, size;
	int premul; /* op of the pre-multiplied sum */

	/* options */
	const char *socket;
	const char *id_file;
	const char *name;
	const char *variant;
	uint64_t seed;
	size_t count;
	unsigned long iterations;
	unsigned int seconds;
	unsigned int comms;
	unsigned int buffers;
	int late_rank; /* -1: none */
	unsigned int late_ms;
	int arrival_ms;
	int join_ms;
	bool is_short;
};

/* Each returns an exit status. */
int mode_matrix(struct collcheck *cc);
int mode_bits(struct collcheck *cc);
int mode_random(struct collcheck *cc);
int mode_loop(struct collcheck *cc);
int mode_flow(struct collcheck *cc);
int mode_post(struct collcheck *cc);
int mode_mismatch(struct collcheck *cc);
int mode_churn(struct collcheck *cc);
int mode_quota(struct collcheck *cc);
int mode_comms(struct collcheck *cc);
int mode_count(struct collcheck *cc);
int mode_buffers(struct collcheck *cc);

/* Says "rank R: what: STATUS: sentence". Return: 1. */
int collcheck_failed(const struct collcheck *cc, const char *what, int status);
/* Prints the line that a test expects when an operation ends with an error. Return: the exit code.
 */
int collcheck_stopped(int status, double seconds);
double collcheck_now(void);
/* Joins another communicator of the same ranks by an id in file "ID.<number>". */
int collcheck_join(struct collcheck *cc, unsigned int number, struct roce_comm **ret);

#endif
