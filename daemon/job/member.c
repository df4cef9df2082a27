/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Member: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "job/member.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/comm.h"
#include "job/join.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

/* ---- ways out ----------------------------------------------------------------------------- */

/* Nothing refers to it any more: tells it. */
static void member_over(struct member *m)
{
	enum status status = m->status;
	cleanup_free char *text = take_ptr(m->text);
	void (*done)(void *arg) = m->done;

	list_remove(&m->link);
	m->comm = NULL;
	m->done = NULL;
	m->state = MEMBER_IDLE;
	join_forget(m);
	if (done) {
		done(m->done_arg);
	} else {
		m->ops->refused(m, status, text ? text : status_text(status));
	}
}

/* See comm.h. */
void member_detached(struct member *m)
{
	member_over(m);
}

/* See member.h. */
void member_refuse(struct member *m, enum status status, const char *text)
{
	struct communicator *c = m->comm;

	if (m->state != MEMBER_JOINING && m->state != MEMBER_BOUND) {
		return;
	}
	m->status = status;
	free(take_ptr(m->text));
	m->text = strdup(text);
	m->state = MEMBER_REFUSED;
	list_remove(&m->link);
	if (m->starting) {
		return;
	}
	if (c) {
		communicator_detach(c, m);
	} else {
		member_over(m);
	}
}

static void member_leave_joining(struct member *m, const char *died)
{
	char text[LIMIT_ERROR_TEXT];

	m->state = MEMBER_LEAVING;
	list_remove(&m->link);
	snprintf(text, sizeof(text),
		 "rank %" PRIu32 " (host %s, pid %" PRIu32 ", %s) gave up while the communicator "
		 "was being formed: %s",
		 m->rank, jobs_host(m->jobs), m->pid, m->client, died ? died : "it left");
	join_withdraw(m, STATUS_PEER_DIED, text);
	member_over(m);
}

/* Has the rank operations in flight? The view lags behind what its client was told, a little. */
static bool member_in_flight(const struct member *m, uint64_t *ret_completed)
{
	const struct comm_view *v = m->comm->view;

	*ret_completed = counter_get(&v->completed);
	return counter_get(&v->ranks[m->local].posted) != *ret_completed;
}

static void member_leave_now(struct member *m)
{
	struct communicator *c = m->comm;
	const char *died = m->died;
	char rank[256], text[LIMIT_ERROR_TEXT];
	bool forming = m->state == MEMBER_BOUND;
	uint64_t completed;
	bool in_flight = member_in_flight(m, &completed);

	m->state = MEMBER_LEAVING;
	communicator_rank_text(c, m->rank, rank, sizeof(rank));
	if (forming) {
		snprintf(text, sizeof(text),
			 "%s gave up while the communicator was being formed: %s", rank,
			 died ? died : "it left");
		communicator_fail(c, COMMUNICATOR_TELL, STATUS_PEER_DIED, text);
	} else if (died) {
		snprintf(text, sizeof(text), "%s died: %s", rank, died);
		if (in_flight) {
			communicator_fail(c, COMMUNICATOR_TELL, STATUS_PEER_DIED, text);
		}
		communicator_doom(c, m->rank, true, completed, text, true);
	} else {
		snprintf(text, sizeof(text), "%s has destroyed the communicator", rank);
		communicator_doom(c, m->rank, false, completed, text, true);
	}
	communicator_detach(c, m);
}

static void member_leave_comm(struct member *m, const char *died)
{
	uint64_t completed;

	m->died = died;
	if (m->state == MEMBER_READY && m->comm->status == STATUS_OK && !m->jobs->stopped &&
	    member_in_flight(m, &completed)) {
		m->state = MEMBER_ENDING;
		list_append(&m->jobs->ending, &m->link);
		jobs_tick(m->jobs);
	} else {
		member_leave_now(m);
	}
}

/* See member.h. */
void member_leave(struct member *m, const char *died, void (*done)(void *arg), void *arg)
{
	m->done = done;
	m->done_arg = arg;
	switch (m->state) {
	case MEMBER_JOINING:
		member_leave_joining(m, died);
		break;
	case MEMBER_BOUND:
	case MEMBER_READY:
		member_leave_comm(m, died);
		break;
	case MEMBER_ENDING:
		m->died = died ? died : m->died;
		break;
	case MEMBER_REFUSED:
	case MEMBER_LEAVING:
		break; /* on its way: member_over() finds `done` */
	default:
		m->done = NULL;
		done(arg);
		break;
	}
}

/* ---- all that join ------------------------------------------------------------------------ */

struct member *member_find(struct jobs *jobs, const uint8_t joined[UID_SIZE], uint32_t rank)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (m->rank == rank && memcmp(m->joined, joined, UID_SIZE) == 0) {
			return m;
		}
	}
	return NULL;
}

/* The next one that a refusal is for, or NULL. */
static struct member *members_next(struct jobs *jobs, const uint8_t joined[UID_SIZE], int32_t rank)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (memcmp(m->joined, joined, UID_SIZE) == 0 &&
		    (rank < 0 || m->rank == (uint32_t)rank)) {
			return m;
		}
	}
	return NULL;
}

/*
 * Refusing calls out, and whoever is called may let others go: each round looks anew for one that
 * fits. Refused ones leave the list, so it ends.
 */
void members_refuse(struct jobs *jobs, const uint8_t joined[UID_SIZE], int32_t rank,
		    enum status status, const char *text)
{
	struct member *m;

	while ((m = members_next(jobs, joined, rank)) != NULL) {
		member_refuse(m, status, text);
	}
}

void members_refuse_from(struct jobs *jobs, const struct hostlink *l,
			 const uint8_t joined[UID_SIZE], int32_t rank, enum status status,
			 const char *text)
{
	const struct member *m = members_next(jobs, joined, rank);

	/* All that wait under one uid have the same root. */
	if (m && !m->at_root && join_root_is(m, l)) {
		members_refuse(jobs, joined, rank, status, text);
		jobs_soon(jobs); /* a visit may be over */
	}
}

/* The reason of a host that was never reached says its name, and that it cannot be reached. */
static void root_down_text(const struct member *m, const struct hostlink *l, const char *reason,
			   char *buf, size_t size)
{
	if (l->reached) {
		snprintf(buf, size, "host %s, where the ranks meet, is lost: %s", m->root_name,
			 reason);
	} else {
		snprintf(buf, size, "cannot join where the ranks meet: %s", reason);
	}
}

void members_root_down(struct jobs *jobs, struct hostlink *l, enum status status,
		       const char *reason)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->joining) {
			struct member *m = container_of(at, struct member, link);

			if (m->root == l) {
				m->root = NULL;
				root_down_text(m, l, reason, text, sizeof(text));
				member_refuse(m, status, text);
				found = true;
				break;
			}
		}
	}
}

void members_root_merged(struct jobs *jobs, struct hostlink *from, struct hostlink *into)
{
	list_for_each (at, &jobs->joining) {
		struct member *m = container_of(at, struct member, link);

		if (m->root == from) {
			m->root = into;
		}
	}
}

void members_tick(struct jobs *jobs, uint64_t now)
{
	char text[LIMIT_ERROR_TEXT];
	bool found = true;

	while (!list_empty(&jobs->ending)) {
		struct member *m = container_of(list_first(&jobs->ending), struct member, link);

		list_remove(&m->link);
		member_leave_now(m);
	}
	join_tick(jobs, now);
	while (found) {
		found = false;
		list_for_each (at, &jobs->joining) {
			struct member *m = container_of(at, struct member, link);

			if (m->deadline <= now) {
				snprintf(text, sizeof(text),
					 "host %s, where the ranks meet, has not answered in time",
					 m->at_root ? jobs_host(jobs) : m->root_name);
				join_withdraw(m, STATUS_TIMEOUT, text);
				member_refuse(m, STATUS_TIMEOUT, text);
				found = true;
				break;
			}
		}
	}
	if (!list_empty(&jobs->joining)) {
		jobs_tick(jobs);
	}
}
