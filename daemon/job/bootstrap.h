/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Bootstrap: the meeting of ranks at their root daemon
 *
 * The root keeps a list of who has joined under an id. It refuses what cannot become a
 * communicator as soon as it shows, and tells everybody concerned; when all ranks are there it
 * hands the list to a formation (formation.h), and the id is used up.
 *
 * Memory grows with the ranks that have joined, not with the size that they claim.
 *
 * Thread: control      Owns: the lists      Locks: none
 */
#ifndef ROCECOMM_JOB_BOOTSTRAP_H
#define ROCECOMM_JOB_BOOTSTRAP_H

#include "job/jobs.h"

struct hostlink;

/* A rank joins; @l: NULL: of this host. A refusal goes to the rank's member or host. */
void rendezvous_join(struct jobs *jobs, struct hostlink *l, const Rocecomm__Peer__Join *join);
/* A rank that had joined is gone. */
void rendezvous_gone(struct jobs *jobs, const uint8_t joined[UID_SIZE], uint32_t rank,
		     enum status status, const char *text);
void rendezvous_link_down(struct jobs *jobs, struct hostlink *l, const char *reason);
/* All that have joined here are told; those of other hosts, too. */
void rendezvous_shutdown(struct jobs *jobs, enum status status, const char *reason);
void rendezvous_tick(struct jobs *jobs, uint64_t now);
void rendezvous_drop_all(struct jobs *jobs);

bool rendezvous_on_join(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
