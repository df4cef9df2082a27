/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Survey: implementation
 *
 * Thread: control      Owns: see survey.h      Locks: none
 */
#include "job/survey.h"

#include <stdlib.h>
#include <string.h>

#include "job/comm.h"
#include "job/member.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/clock.h"

struct survey *survey_free(struct survey *survey)
{
	if (!survey) {
		return NULL;
	}
	list_remove(&survey->link);
	free(survey->ranks);
	free(survey->asked);
	free(survey);
	return NULL;
}

static uint64_t idle_ms(const struct comm_rank_view *v)
{
	uint64_t last = counter_get(&v->last_post_ns);

	return last == 0 ? UINT64_MAX : clock_elapsed(clock_monotonic(), last) / CLOCK_NS_PER_MS;
}

static void survey_own(struct survey *s, const struct communicator *c)
{
	const uint32_t *ours = &c->layout->by_host[c->layout->host_first[c->host]];

	for (uint32_t i = 0; i < c->nlocal; i++) {
		s->ranks[ours[i]] = (struct survey_rank){
			.known = true,
			.pid = c->plan->pids[ours[i]],
			.posted = counter_get(&c->view->ranks[i].posted),
			.idle_ms = idle_ms(&c->view->ranks[i]),
		};
	}
}

static void survey_ask(struct survey *s, struct communicator *c)
{
	Rocecomm__Peer__StatusQuery msg = ROCECOMM__PEER__STATUS_QUERY__INIT;

	msg.id = s->id;
	msg.uid.data = c->uid;
	msg.uid.len = UID_SIZE;
	for (uint32_t i = 0; i < c->nnear; i++) {
		struct hostlink *l = c->links[c->near[i]];

		if (l) {
			s->asked[i] = l;
			s->pending++;
			hostlink_send(l, PEER_MSG_STATUS_QUERY, &msg.base);
		}
	}
}

/* See survey.h. */
int survey_start(struct communicator *c, void (*done)(void *arg, struct survey *survey), void *arg,
		 struct survey **ret)
{
	struct jobs *jobs = c->jobs;
	struct survey *s = calloc(1, sizeof(*s));

	if (!s) {
		return err_origin(-ENOMEM);
	}
	list_init(&s->link);
	s->id = ++jobs->next_survey;
	s->nranks = c->size;
	s->nasked = c->nnear;
	s->done = done;
	s->arg = arg;
	s->deadline = jobs_now(jobs) + SURVEY_TIMEOUT_MS;
	memcpy(s->uid, c->uid, UID_SIZE);
	s->ranks = calloc(c->size, sizeof(*s->ranks));
	s->asked = calloc((size_t)c->nnear + 1, sizeof(struct hostlink *));
	if (!s->ranks || !s->asked) {
		survey_free(s);
		return err_origin(-ENOMEM);
	}
	list_append(&jobs->surveys, &s->link);
	survey_own(s, c);
	survey_ask(s, c);
	jobs_tick(jobs);
	*ret = s;
	return 0;
}

static void survey_over(struct survey *s)
{
	list_remove(&s->link);
	s->done(s->arg, s);
	survey_free(s);
}

void surveys_tick(struct jobs *jobs, uint64_t now)
{
	bool found = true;

	while (found) {
		found = false;
		list_for_each (at, &jobs->surveys) {
			struct survey *s = container_of(at, struct survey, link);

			if (s->pending == 0 || s->deadline <= now) {
				survey_over(s);
				found = true;
				break;
			}
		}
	}
	if (!list_empty(&jobs->surveys)) {
		jobs_tick(jobs);
	}
}

void surveys_link_down(struct jobs *jobs, struct hostlink *l)
{
	list_for_each (at, &jobs->surveys) {
		struct survey *s = container_of(at, struct survey, link);

		for (uint32_t h = 0; h < s->nasked; h++) {
			if (s->asked[h] == l) {
				s->asked[h] = NULL;
				s->pending--;
			}
		}
	}
}

void surveys_drop_all(struct jobs *jobs)
{
	while (!list_empty(&jobs->surveys)) {
		survey_over(container_of(list_first(&jobs->surveys), struct survey, link));
	}
}

/* ---- the other side ----------------------------------------------------------------------- */

bool survey_on_query(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__StatusQuery *query = (const Rocecomm__Peer__StatusQuery *)msg;
	Rocecomm__Peer__StatusAnswer answer = ROCECOMM__PEER__STATUS_ANSWER__INIT;
	Rocecomm__Peer__RankState states[LIMIT_LOCAL_RANKS], *list[LIMIT_LOCAL_RANKS];
	const struct communicator *c = communicator_find(jobs, &query->uid);

	answer.id = query->id;
	answer.uid = query->uid;
	answer.ranks = list;
	for (uint32_t i = 0; c && i < c->nlocal; i++) {
		uint32_t rank = c->layout->by_host[c->layout->host_first[c->host] + i];

		rocecomm__peer__rank_state__init(&states[i]);
		states[i].rank = rank;
		states[i].pid = c->plan->pids[rank];
		states[i].posted = counter_get(&c->view->ranks[i].posted);
		states[i].idle_ms = idle_ms(&c->view->ranks[i]);
		list[answer.n_ranks++] = &states[i];
	}
	hostlink_send(l, PEER_MSG_STATUS_ANSWER, &answer.base);
	return false;
}

bool survey_on_answer(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__StatusAnswer *answer = (const Rocecomm__Peer__StatusAnswer *)msg;

	list_for_each (at, &jobs->surveys) {
		struct survey *s = container_of(at, struct survey, link);
		uint32_t h = 0;

		while (h < s->nasked && s->asked[h] != l) {
			h++;
		}
		if (s->id != answer->id || h == s->nasked) {
			continue;
		}
		for (size_t i = 0; i < answer->n_ranks; i++) {
			const Rocecomm__Peer__RankState *state = answer->ranks[i];

			if (state->rank < s->nranks) {
				s->ranks[state->rank] = (struct survey_rank){
					.known = true,
					.pid = state->pid,
					.posted = state->posted,
					.idle_ms = state->idle_ms,
				};
			}
		}
		s->asked[h] = NULL;
		if (--s->pending == 0) {
			survey_over(s);
		}
		return false;
	}
	return false;
}
