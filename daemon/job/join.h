/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Join: the way of a rank into a communicator, up to the root's list
 *
 * Ranks of this host that ask the same root for the same in one turn of the loop, or while the link
 * to it is being made, ask in one message. A root of very many ranks would have a link to every
 * host of a cluster: such ranks *visit* it, on a link without data connections that ends as soon as
 * the root has them on its list (JoinTaken). Whatever is to be said later needs another visit.
 * A root takes 0.25 ms for a visitor, and no more may wait at its door than the kernel keeps, so
 * the hosts of the largest communicators come one after the other, each when its id says.
 *
 * Thread: control      Owns: struct member_ask      Locks: none      See: PROTOCOL.md §6b
 */
#ifndef ROCECOMM_JOB_JOIN_H
#define ROCECOMM_JOB_JOIN_H

#include "job/hostlink.h"
#include "job/member.h"

/* So long a host waits before it visits the root of so many ranks. */
uint64_t join_delay_ms(const uint8_t *host_id, uint32_t size);
/* Begins visits whose time has come. */
void join_tick(struct jobs *jobs, uint64_t now);
/* From the loop: sends what waits, ends visits that are over. */
void join_run(struct jobs *jobs);
/* The root is told that a rank which asked to join is gone. */
void join_withdraw(struct member *m, enum status status, const char *text);
/* Is this the host where the rank waits? */
bool join_root_is(const struct member *m, const struct hostlink *l);
/* The rank waits no more. */
void join_forget(struct member *m);

bool join_on_taken(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
