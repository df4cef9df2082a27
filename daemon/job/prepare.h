/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Prepare: what a host does with CommPrepare and CommGo
 *
 * The message is another daemon's, so it is checked whole before anything is made of it. A host
 * that cannot follow answers why and refuses its own ranks with the same words.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_JOB_PREPARE_H
#define ROCECOMM_JOB_PREPARE_H

#include "job/hostlink.h"
#include "job/jobs.h"

struct communicator;

/* @plan: consumed. @l: the root; NULL: this daemon. */
void prepare_plan(struct jobs *jobs, struct hostlink *l, Rocecomm__Peer__CommPrepare *plan);
/* Refuses the ranks of this host that wait for it. @plan: borrowed. */
void prepare_refuse(struct jobs *jobs, const Rocecomm__Peer__CommPrepare *plan, enum status status,
		    const char *text);
/* Tells the root how it went. */
void prepare_answer(struct communicator *c, enum status status, const char *text);

bool prepare_on_prepare(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);
bool prepare_on_go(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
