/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Formation: a complete list of ranks becomes a communicator on all hosts at once
 *
 * The root sends CommPrepare to every host, its own included, waits until all have connected and
 * installed it, then lets go with CommGo. One host that cannot: all are told why. Ranks that come
 * from a rendezvous and those that come from a split are formed alike.
 *
 * On many hosts (roster.h) the messages go through a tree: a host with others below it has a
 * formation, too, which passes CommPrepare and CommGo down and answers when all below have.
 *
 * Thread: control      Owns: formations      Locks: none      See: PROTOCOL.md §6b
 */
#ifndef ROCECOMM_JOB_FORMATION_H
#define ROCECOMM_JOB_FORMATION_H

#include "job/hostlink.h"
#include "job/jobs.h"

#define FORMATION_TIMEOUT_MS 20000

/**
 * formation_start() - form a communicator
 * @plan:   borrowed; all but uid, wire and tree are set
 * @text:   the sentence on a positive return
 *
 * May fail later: the hosts are told, and through them the ranks.
 *
 * Return: 0, enum status (positive; nobody was told).
 */
int formation_start(struct jobs *jobs, Rocecomm__Peer__CommPrepare *plan, char *text,
		    size_t text_size);
/*
 * Passes what came from @up on to the hosts below this one, if there are any.
 * Return: 0, enum status (positive): nobody below was told.
 */
int formation_relay(struct jobs *jobs, struct hostlink *up, const Rocecomm__Peer__CommPrepare *plan,
		    char *text, size_t text_size);
/* Is one on its way for ranks that joined under this? */
bool formation_pending(struct jobs *jobs, const uint8_t joined[UID_SIZE]);
/* A host's answer; @l: NULL: this one's. Return: there was such a formation. */
bool formation_prepared(struct jobs *jobs, struct hostlink *l,
			const Rocecomm__Peer__CommPrepared *msg);
/* CommGo came from @l. Return: there was such a formation, and it was passed on. */
bool formation_go_from(struct jobs *jobs, struct hostlink *l, const ProtobufCBinaryData *uid);
/* A host says that it has failed. Return: there was such a formation. */
bool formation_failed(struct jobs *jobs, const ProtobufCBinaryData *uid, enum status status,
		      const char *text);
void formations_link_down(struct jobs *jobs, struct hostlink *l, const char *reason);
/* Hands plans to this host's own part. */
void formations_run(struct jobs *jobs);
void formations_tick(struct jobs *jobs, uint64_t now);
void formations_drop_all(struct jobs *jobs);

bool formation_on_prepared(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
