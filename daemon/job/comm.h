/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Communicator: the part of it that this host has
 *
 * Made from the root's CommPrepare, which says who is where; installed in the engine when the links
 * to all other hosts are up; usable from CommGo on. A failure is sticky and comes with the sentence
 * that clients are told. It lives until its last local rank has left.
 *
 * A rank that leaves or ends after it has completed everything must not disturb operations that
 * others are still finishing. Therefore both are a *doom*: operations from a number on need the
 * rank that is gone and fail; those before may end. A death is followed by failure in any case,
 * within DOOM_GRACE_MS.
 *
 * Thread: control      Owns: layout, view, plan message, the engine's communicator
 * Locks: none
 */
#ifndef ROCECOMM_JOB_COMM_H
#define ROCECOMM_JOB_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "job/hostlink.h"
#include "job/jobs.h"
#include "job/member.h"
#include "telemetry/counters.h"

#define DOOM_GRACE_MS 1000

enum communicator_state {
	COMMUNICATOR_LINKING = 0, /* waits for links */
	COMMUNICATOR_INSTALLING,  /* waits for the engine */
	COMMUNICATOR_PREPARED,	  /* waits for CommGo */
	COMMUNICATOR_READY,
	COMMUNICATOR_FAILED,
};

struct communicator_doom {
	bool on;
	bool died;
	uint32_t rank;
	uint64_t limit;	   /* collectives from this number on need it */
	uint64_t deadline; /* ms; 0: none */
	char text[LIMIT_ERROR_TEXT];
};

/* Somebody who wants to know the error once its sentence is complete. */
struct communicator_wait {
	struct list link;
	void (*settled)(struct communicator_wait *wait);
};

struct communicator {
	struct jobs *jobs;
	uint8_t uid[UID_SIZE];
	uint8_t joined[UID_SIZE];
	Rocecomm__Peer__CommPrepare *plan;
	enum communicator_state state;
	struct hostlink *root; /* who sent its plan; NULL: this daemon, or lost */
	uint32_t size, nhosts;
	uint32_t host;		 /* ours */
	uint32_t *near;		 /* [nnear] hosts that this one is linked with (roster.h) */
	uint32_t nnear;		 /* all others, unless it is sparse */
	struct hostlink **links; /* [nhosts]; NULL: ours, lost, or not near */
	bool *gone;		 /* [size]: left or died */
	struct coll_layout *layout;
	struct comm_view *view;
	uint32_t nlocal;
	struct member **locals; /* [nlocal]; NULL: has left */
	uint32_t attached;	/* of them not NULL */
	struct engine_comm *engine;
	uint64_t since; /* ms */

	enum status status; /* of the failure */
	uint64_t seq;
	bool settling; /* the sentence is being completed */
	char text[LIMIT_ERROR_TEXT];
	struct list waits;
	struct communicator_doom doom;
};

enum communicator_fail_flags {
	COMMUNICATOR_TELL = 1u << 0,	     /* the other hosts, too */
	COMMUNICATOR_ENGINE_KNOWS = 1u << 1, /* it found out by itself */
};

/**
 * communicator_new() - the object, bound to the local ranks that wait for it
 * @plan:  consumed on success; checked
 * @root:  who sent it; NULL: this daemon
 * @text:  the sentence on a positive return
 *
 * Return: 0, enum status (positive), -ENOMEM.
 */
int communicator_new(struct jobs *jobs, Rocecomm__Peer__CommPrepare *plan, struct hostlink *root,
		     struct communicator **ret, char *text, size_t text_size);
struct communicator *communicator_find(struct jobs *jobs, const ProtobufCBinaryData *uid);
/* Connects what is missing, goes on when all is there. @c may have failed and be gone afterwards.
 */
void communicator_link(struct communicator *c);
/* Installs it in the engine when all links are up. Return: false: failed, and it may be gone. */
bool communicator_link_check(struct communicator *c);
void communicator_go(struct communicator *c);
/* The first failure stays. */
void communicator_fail(struct communicator *c, unsigned int flags, enum status status,
		       const char *text);
/* Not all hosts are linked with each other: what concerns all goes from host to host. */
bool communicator_is_sparse(const struct communicator *c);
/* Detaches a local rank from the engine, then member_detached(). */
void communicator_detach(struct communicator *c, struct member *m);
/* A rank is gone; see above. @tell: the other hosts */
void communicator_doom(struct communicator *c, uint32_t rank, bool died, uint64_t completed,
		       const char *text, bool tell);
/* All fail, here only: the other hosts hear from the link. */
void communicators_shutdown(struct jobs *jobs, enum status status, const char *reason);
void communicators_tick(struct jobs *jobs, uint64_t now);
void communicators_link_up(struct jobs *jobs, struct hostlink *l);
void communicators_link_down(struct jobs *jobs, struct hostlink *l, enum status status,
			     const char *reason);

/* "rank 3 (host b, pid 42, train.py)" */
void communicator_rank_text(const struct communicator *c, uint32_t rank, char *buf, size_t size);
/* "tcp (...): 2 hosts, b at 10.1.0.2:4870 via eth0": what is in use, and why */
void communicator_path_text(const struct communicator *c, char *buf, size_t size);
/* "self", "up", "lost", or "far": not linked with this one (roster.h). */
const char *communicator_host_state(const struct communicator *c, uint32_t host);
/* Whether some operation of it waits, and since when (ms ago). */
bool communicator_waits(const struct communicator *c, uint64_t *ret_ms);
/* Calls back at once when nothing is open. */
void communicator_when_settled(struct communicator *c, struct communicator_wait *wait);
void communicator_settled(struct communicator *c);

/* member.c */
void member_detached(struct member *m);

#endif
