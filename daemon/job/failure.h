/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Failure: from what was found to the sentence that users read, and on to the other hosts
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_JOB_FAILURE_H
#define ROCECOMM_JOB_FAILURE_H

#include "engine/engine.h"
#include "job/hostlink.h"
#include "job/jobs.h"

struct communicator;

/* The engine has failed a communicator. */
void failure_from_engine(struct communicator *c, const struct engine_failure *failure);
/* "allreduce of 1024 f32, sum" */
void failure_signature_text(const struct engine_signature *sig, char *buf, size_t size);

bool failure_on_fail(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);
bool failure_on_leave(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
