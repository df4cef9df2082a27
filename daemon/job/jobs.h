/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Jobs: the root object of membership
 *
 * Knows every communicator that this host has ranks in, every rank that waits to join one, every
 * meeting of ranks that this daemon is the root of, and the links that they need. What peers and
 * engine report comes in here and is handed to whom it concerns.
 *
 * One timer for all time-outs of this layer; it runs only while something may time out.
 *
 * Thread: control      Owns: what hangs on it      Locks: none
 */
#ifndef ROCECOMM_JOB_JOBS_H
#define ROCECOMM_JOB_JOBS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "coll/coll.h"
#include "config/config.h"
#include "engine/engine.h"
#include "job/peers.h"
#include "job/uniqueid.h"
#include "util/hashmap.h"
#include "util/list.h"

#define JOBS_TICK_MS 50
#define JOBS_VISIT_RANKS 1024
#define JOBS_USED_IDS 1024 /* unique ids that are remembered so that they are not used twice */

struct rails;

struct jobs_options {
	uv_loop_t *loop;
	struct engine *engine;
	const struct config *config; /* borrowed: the defaults of time-outs change at reload */
	const char *host;	     /* name, copied */
	uint8_t host_id[PEER_HOST_ID];
	const char *const *addresses; /* what other hosts are told, copied */
	size_t naddresses;
	/* Others are about to be told the addresses: jobs_set_addresses() if they are new. */
	void (*telling)(void *arg); /* NULL allowed */
	void *telling_arg;
	/* For tests; 0: as roster.h and JOBS_VISIT_RANKS say. */
	uint32_t mesh_hosts, fanout, visit_ranks;
};

struct jobs {
	uv_loop_t *loop;
	struct engine *engine;
	struct peers *peers;
	struct rails *rails; /* NULL: data goes by TCP */
	const struct config *config;
	Rocecomm__Peer__Host self; /* what others are told of this host */
	void (*telling)(void *arg);
	void *telling_arg;
	uint32_t mesh_hosts;	   /* communicators of more hosts are sparse (roster.h) ... */
	uint32_t fanout;	   /* ... and formed through a tree of this width */
	uint32_t visit_ranks;	   /* ranks of larger communicators visit their root (join.h) */
	struct coll_tuning tuning; /* algorithms: never changes while the daemon runs */

	struct hashmap comms;	   /* by uid */
	struct list joining;	   /* struct member.link */
	struct list ending;	   /* struct member.link */
	struct hashmap rendezvous; /* by the uid that ranks join under */
	struct list formations;
	struct list splits;
	struct list surveys;
	struct list checks;
	struct list links;
	uint8_t used[JOBS_USED_IDS][UID_SIZE];
	uint32_t next_used;
	uint64_t next_survey;

	uv_timer_t tick;
	uv_timer_t soon; /* for what must not happen inside a call */
	bool ticking;
	unsigned int closing; /* timers that are not closed yet */
	bool stopped;	      /* the engine is: nothing may be asked of it any more */
	void (*closed)(void *arg);
	void *closed_arg;
};

int jobs_new(const struct jobs_options *options, struct jobs **ret);
/* Before anything else is called; peers need jobs for their events and jobs need peers. */
void jobs_set_peers(struct jobs *jobs, struct peers *peers);
/* Before the first peer. @rails: borrowed until jobs_free(). */
void jobs_set_rails(struct jobs *jobs, struct rails *rails);
/* What other hosts are told from now on, copied. Return: 0, -ENOMEM: as before. */
int jobs_set_addresses(struct jobs *jobs, const char *const *addresses, size_t naddresses);
/* The daemon stops: every communicator fails with @status, here; every rank that waits is refused.
 */
void jobs_shutdown(struct jobs *jobs, enum status status, const char *reason);
/* The engine was stopped: all that is left can be given back at once. */
void jobs_engine_stopped(struct jobs *jobs);
/* All members have left. @closed: nothing of it is in the loop any more. */
void jobs_close(struct jobs *jobs, void (*closed)(void *arg), void *arg);
/* NULL allowed. Return: NULL. */
struct jobs *jobs_free(struct jobs *jobs);

/* Makes an id whose root is this daemon. Return: 0, negative errno. */
int jobs_unique_id(struct jobs *jobs, uint8_t ret[LIMIT_UNIQUE_ID]);

/* Events of peers; their argument is the struct jobs. */
extern const struct peers_events jobs_peers_events;
/* Events of the engine. */
void jobs_comm_failed(struct jobs *jobs, void *comm_user, const struct engine_failure *failure);
void jobs_peer_down(struct jobs *jobs, void *peer_user, const char *what, int error,
		    const char *reason);
void jobs_rail(struct jobs *jobs, void *peer_user, uint32_t rail, enum verbs_rail_state state,
	       const char *text);

/* ---- for this layer ----------------------------------------------------------------------- */

uint64_t jobs_now(const struct jobs *jobs); /* ms of the loop */
/* Others are about to be told jobs->self. */
void jobs_telling(struct jobs *jobs);
/* Something may time out: keeps the timer going. */
void jobs_tick(struct jobs *jobs);
/* formations_run() and join_run() from the loop, at once. */
void jobs_soon(struct jobs *jobs);
bool jobs_id_used(const struct jobs *jobs, const uint8_t uid[UID_SIZE]);
void jobs_id_use(struct jobs *jobs, const uint8_t uid[UID_SIZE]);

static inline const char *jobs_host(const struct jobs *jobs)
{
	return jobs->self.name;
}

#endif
