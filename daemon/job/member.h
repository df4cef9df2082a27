/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Member: one rank of this host, from asking to join until it has left
 *
 *	JOINING --CommPrepare--> BOUND --CommGo--> READY --member_leave()--> LEAVING --> done
 *	   |                       |
 *	   +-------- refused ------+
 *
 * Embedded in whatever speaks for the rank (control/session). After `ready` it is member of
 * m->comm until it leaves; after `refused`, or the `done` of member_leave(), nothing refers to it
 * any more. No callback is made from inside member_join*() and member_split(); they return the
 * refusal instead.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_JOB_MEMBER_H
#define ROCECOMM_JOB_MEMBER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "job/hostlink.h"
#include "job/jobs.h"
#include "proto/limits.h"
#include "proto/status.h"

struct communicator;
struct member;
struct tenant;

struct member_ops {
	void (*ready)(struct member *m);
	void (*refused)(struct member *m, enum status status, const char *text);
};

enum member_state {
	MEMBER_IDLE = 0,
	MEMBER_JOINING,
	MEMBER_BOUND,
	MEMBER_READY,
	MEMBER_REFUSED, /* the engine lets go of it, then it is told */
	MEMBER_ENDING,	/* leaves; its last operation may be about to end: looked at once more */
	MEMBER_LEAVING,
};

struct member {
	/* the owner's, set before joining */
	const struct member_ops *ops;
	struct engine_session *session;
	uint32_t handle;
	uint32_t pid;
	uid_t uid;
	const char *client; /* borrowed */
	const struct tenant *tenant;

	/* this layer's */
	struct jobs *jobs;
	enum member_state state;
	bool starting; /* inside member_join*(): keep a refusal for its return */
	uint8_t joined[UID_SIZE];
	bool has_parent; /* it splits off: */
	uint8_t parent[UID_SIZE];
	uint32_t rank;	       /* in the communicator, or in the parent while it splits */
	uint32_t local;	       /* among the ranks of this host */
	uint64_t splits;       /* done so far */
	uint64_t deadline;     /* ms; the root's own time-out comes before */
	bool at_root;	       /* this daemon collects the ranks */
	struct hostlink *root; /* NULL: here, or a visit that is over */
	char root_name[LIMIT_NAME];
	struct member_ask *ask; /* what it asks of another root; see join.c */
	struct list link;	/* jobs.joining; jobs.ending */
	const char *died;
	struct communicator *comm;
	enum status status; /* of a refusal that waits */
	char *text;
	void (*done)(void *arg);
	void *done_arg;
};

struct member_options {
	const char *name;	     /* of the communicator */
	uint32_t join_timeout_ms;    /* each 0: as configured */
	uint32_t arrival_timeout_ms; /* UINT32_MAX: never */
	uint32_t transfer_timeout_ms;
};

/* Where ranks meet that have exchanged no id. */
struct member_env {
	const char *name;
	char *const *roots; /* numeric addresses; none: this host */
	size_t nroots;
	uint32_t port; /* 0: as this daemon's */
	/*
	 * The user whose process asks, as the kernel says. Part of the uid, so that nobody else's
	 * process can take a rank of a meeting whose name it guesses.
	 */
	uint32_t user;
};

/**
 * member_join() - ask to join as a rank
 * @id, @id_size:  from jobs_unique_id() of some host
 * @text, @size:   the sentence when it is refused at once
 *
 * Return: STATUS_OK (ready or refused follows), or why not.
 */
enum status member_join(struct jobs *jobs, struct member *m, const uint8_t *id, size_t id_size,
			uint32_t rank, uint32_t size, const struct member_options *options,
			char *text, size_t text_size);
enum status member_join_env(struct jobs *jobs, struct member *m, const struct member_env *env,
			    uint32_t rank, uint32_t size, const struct member_options *options,
			    char *text, size_t text_size);
/*
 * Asks to join the communicator that splits off @parent. @ret_none: a negative colour joins none;
 * the others are told, and @m stays idle.
 */
enum status member_split(struct jobs *jobs, struct member *m, struct member *parent, int32_t color,
			 int32_t key, const struct member_options *options, bool *ret_none,
			 char *text, size_t text_size);
/**
 * member_leave() - let go, in whatever state
 * @died:  static; why the client is gone, as in "its process ended"; NULL: it leaves in order
 * @done:  the engine has let go and nothing refers to @m any more; may come from inside
 */
void member_leave(struct member *m, const char *died, void (*done)(void *arg), void *arg);

/* ---- for this layer ----------------------------------------------------------------------- */

/* Refuses; tells it when the engine has let go. */
void member_refuse(struct member *m, enum status status, const char *text);
/* The rank of this host that waits under @joined, or NULL. */
struct member *member_find(struct jobs *jobs, const uint8_t joined[UID_SIZE], uint32_t rank);
/* Refuses all (or one: @rank >= 0) that wait under @joined. */
void members_refuse(struct jobs *jobs, const uint8_t joined[UID_SIZE], int32_t rank,
		    enum status status, const char *text);
/* The same for those whose root is @l. */
void members_refuse_from(struct jobs *jobs, const struct hostlink *l,
			 const uint8_t joined[UID_SIZE], int32_t rank, enum status status,
			 const char *text);
/* Their root is lost, or turned out to be another link. */
void members_root_down(struct jobs *jobs, struct hostlink *l, enum status status,
		       const char *reason);
void members_root_merged(struct jobs *jobs, struct hostlink *from, struct hostlink *into);
void members_tick(struct jobs *jobs, uint64_t now);

#endif
