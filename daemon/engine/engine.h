/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine: the data plane as the control thread sees it
 *
 * One progress thread interprets plans over transports; threads beside it may do large arithmetic
 * for it (workers.h), which nobody else sees. Control hands it plain objects through the
 * mailbox and gets events back; it never touches what the thread owns. Every function here is for
 * the control thread and returns at once; `done` callbacks and events run on the control thread in
 * engine_dispatch(), which control calls when engine_fd() is readable.
 *
 * Objects come back by their `done` callback when the progress thread has let go of them: only then
 * may the memory behind them (session page, region) be unmapped.
 *
 * Thread: control      Owns: the progress thread, everything added to it      Locks: none
 */
#ifndef ROCECOMM_ENGINE_H
#define ROCECOMM_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coll/coll.h"
#include "mem/region.h"
#include "proto/status.h"
#include "telemetry/counters.h"
#include "transport/verbs/verbs.h"

struct engine;
struct engine_session; /* a client's ring */
struct engine_peer;    /* a peer host's data connections */
struct engine_comm;    /* a communicator's local part */

typedef void (*engine_done_fn)(void *arg);

struct engine_options {
	uint32_t chunk;		 /* bytes of a message's fragment; the same on all hosts */
	uint32_t eager;		 /* largest message sent without a grant; the same on all hosts */
	uint32_t eager_credits;	 /* per peer; the same on all hosts */
	uint32_t spin_us;	 /* polls (yielding) this long before it sleeps */
	int cpu;		 /* pin to it, -1: nowhere */
	int reduce_threads;	 /* beside it; 0: none, < 0: as suits the CPUs */
	unsigned int io_threads; /* that make the system calls of bulk streams */
	uint32_t reduce_min;	 /* bytes of arithmetic that are worth handing to them */
	char congestion[16];	 /* TCP_CONGESTION */
	uint32_t user_timeout_ms;
};

/* Why a communicator failed, in full; control makes the sentence. */
enum engine_fail_cause {
	ENGINE_FAIL_MISMATCH_LOCAL = 1, /* two ranks of this host disagree: a, b */
	ENGINE_FAIL_MISMATCH_PEER,	/* host b's signature differs from ours: a */
	ENGINE_FAIL_INVALID,  /* rank_a posted a descriptor that does not validate: reason */
	ENGINE_FAIL_LENGTH,   /* v-counts or send/recv sizes disagree: rank_a, rank_b */
	ENGINE_FAIL_ARRIVAL,  /* arrival time-out: missing ranks in view */
	ENGINE_FAIL_TRANSFER, /* transfer time-out */
	ENGINE_FAIL_PARTNER,  /* rank_a's send or receive (a.kind) waits for rank_b's */
	ENGINE_FAIL_DEVICE,   /* rank_a's memory on a GPU cannot be copied: reason */
};
struct engine_signature {
	uint8_t kind, dtype, op, reserved;
	uint32_t root;
	uint64_t count;
};
struct engine_failure {
	enum engine_fail_cause cause;
	enum status status;
	uint64_t seq;
	int32_t rank_a, rank_b; /* global ranks, -1: none */
	int32_t host_b;		/* host index, -1: none */
	struct engine_signature a, b;
	uint64_t length_a, length_b; /* bytes */
	const char *reason;	     /* static text or NULL */
};

struct engine_events {
	/* The communicator has failed by itself; all its operations are already completed. */
	void (*comm_failed)(void *arg, void *comm_user, const struct engine_failure *failure);
	/* A session's ring is corrupt: close the session. */
	void (*session_corrupt)(void *arg, void *session_user, const char *reason);
	/* The @what of a peer are lost: "data connections" or "rails". */
	void (*peer_down)(void *arg, void *peer_user, const char *what, int error,
			  const char *reason);
	/* A rail is UP or DOWN (engine_rdma.h); @text says why. NULL allowed. */
	void (*rail)(void *arg, void *peer_user, uint32_t rail, enum verbs_rail_state state,
		     const char *text);
};

int engine_new(const struct engine_options *options, const struct engine_events *events, void *arg,
	       struct engine **ret);
/* Starts the progress thread. */
int engine_start(struct engine *engine);
/*
 * Stops the thread: every outstanding operation completes with @status first. Then runs all pending
 * done callbacks. After it only engine_free().
 */
void engine_stop(struct engine *engine, enum status status);
struct engine *engine_free(struct engine *engine);
int engine_fd(const struct engine *engine);
void engine_dispatch(struct engine *engine);
/* Thread-wide counters; relaxed atomics, readable at any time. */
const struct thread_view *engine_thread_view(const struct engine *engine);
/* The same of reduction thread @index, from 0; NULL: there are no more. */
const struct thread_view *engine_worker_view(const struct engine *engine, unsigned int index);

/* ---- sessions, buffers -------------------------------------------------------------------- */

/*
 * @page:    session page (SHM_SIZE, or SHM_FULL_SIZE with gates, formatted), mapped until the
 * session's removal is done
 * @bell:    eventfd that the client writes; borrowed until removal is done
 * @event:   eventfd written when the client asked for it (want_event); borrowed likewise
 */
int engine_session_add(struct engine *engine, void *page, int bell, int event, void *user,
		       struct engine_session **ret);
/*
 * What of its regions may be registered with devices; before the first of them. @quota, @tenant:
 * borrowed until the session's removal is done.
 */
void engine_session_quota(struct engine_session *session, struct quota *quota, const char *tenant);
/*
 * Its ranks are detached or their communicators removed first. Its regions go with it; @done when
 * no stream reads or writes them any more.
 */
void engine_session_remove(struct engine *engine, struct engine_session *session,
			   engine_done_fn done, void *arg);
/* @region: the engine takes its own reference. @id: 1 .. LIMIT_SESSION_BUFFERS. */
int engine_region_add(struct engine *engine, struct engine_session *session, uint32_t id,
		      struct region *region);
/*
 * Is it registered with all devices that are there, or refused by them? Else @ready is called when
 * it is, but not after the removal of region or session was asked for. Return: false: @ready comes.
 */
bool engine_region_ready(struct engine *engine, struct engine_session *session, uint32_t id,
			 engine_done_fn ready, void *arg);
/* @done when no operation uses it any more; new descriptors that name it are refused at once. */
void engine_region_remove(struct engine *engine, struct engine_session *session, uint32_t id,
			  engine_done_fn done, void *arg);

/* ---- peers -------------------------------------------------------------------------------- */

int engine_peer_add(struct engine *engine, void *user, struct engine_peer **ret);
/* @fd: consumed. @index: of the connection, the same on both ends; 0 carries what is urgent. */
int engine_peer_stream(struct engine *engine, struct engine_peer *peer, int fd, unsigned int index);
void engine_peer_remove(struct engine *engine, struct engine_peer *peer, engine_done_fn done,
			void *arg);
/* When the last message from it began, by clock_monotonic(); 0: none did. */
uint64_t engine_peer_heard(const struct engine_peer *peer);

/* ---- communicators ------------------------------------------------------------------------ */

struct engine_comm_rank {
	struct engine_session *session;
	uint32_t handle; /* the session's number for this communicator (descriptor.comm) */
	uint32_t rank;	 /* global */
};

struct engine_comm_params {
	uint64_t uid;			      /* on the wire */
	const struct coll_layout *layout;     /* borrowed until removal is done */
	const struct coll_tuning *tuning;     /* likewise */
	uint32_t host;			      /* ours in the layout */
	struct engine_peer *const *peers;     /* [nhosts], ours NULL; copied */
	const struct engine_comm_rank *ranks; /* [nlocal] in layout order; copied */
	struct comm_view *view;		      /* [nlocal]; borrowed until removal is done */
	uint32_t arrival_timeout_ms;	      /* 0: never */
	uint32_t transfer_timeout_ms;
	void *user;
};

/* @done: installed; peers may send and clients may post. */
int engine_comm_add(struct engine *engine, const struct engine_comm_params *params,
		    engine_done_fn done, void *arg, struct engine_comm **ret);
/* Completes all operations with @status, now and in future; idempotent; no event follows. */
void engine_comm_fail(struct engine *engine, struct engine_comm *comm, enum status status);
/* One rank lets go of its handle: its operations end with STATUS_ABORTED, descriptors are refused.
 */
void engine_comm_detach(struct engine *engine, struct engine_comm *comm, uint32_t local,
			engine_done_fn done, void *arg);
/* @done when nothing of it is in flight. */
void engine_comm_remove(struct engine *engine, struct engine_comm *comm, engine_done_fn done,
			void *arg);

#endif
