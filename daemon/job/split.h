/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Split: ranks of a communicator form new ones by colour
 *
 * Collected at the host of the parent's rank 0, which every parent has. The ranks of one colour,
 * ordered by (key, rank in the parent), become a communicator; a duplicate is a split with one
 * colour. Several splits of one parent may be under way: each rank numbers its own.
 *
 * Thread: control      Owns: the lists      Locks: none
 */
#ifndef ROCECOMM_JOB_SPLIT_H
#define ROCECOMM_JOB_SPLIT_H

#include "job/hostlink.h"
#include "job/jobs.h"

struct communicator;

/* The uid that ranks wait under in the @number-th split of @parent. */
int split_uid(const uint8_t parent[UID_SIZE], uint64_t number, uint8_t ret[UID_SIZE]);
/* A rank's wish; @l: NULL: of this host. */
void split_join(struct jobs *jobs, struct hostlink *l, const Rocecomm__Peer__Split *msg);
/* The parent has failed or goes: what was collected is refused. */
void splits_parent_gone(struct communicator *parent, enum status status, const char *text);
/* A rank of this or another host gives up. */
void split_gone(struct jobs *jobs, const uint8_t joined[UID_SIZE], enum status status,
		const char *text);
void splits_tick(struct jobs *jobs, uint64_t now);
void splits_drop_all(struct jobs *jobs);

bool split_on_split(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
