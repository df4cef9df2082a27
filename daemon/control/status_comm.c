/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Status of one communicator: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "control/status_comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coll/coll.h"
#include "job/roster.h"
#include "proto/types.h"
#include "util/clock.h"

#define RANKS_SHOWN 1024 /* a communicator; those of this host come first */
#define LATE_SHOWN 64

/* What is known of the ranks, and what follows from it. */
struct progress_view {
	const struct communicator *c;
	const struct status_survey *survey;
	bool waits; /* some operation has not been posted by all */
	bool here;  /* this host knows the operation */
	uint64_t seq;
	uint64_t waiting_ms;
};

int status_comm_compare(const void *a, const void *b)
{
	const struct communicator *x = *(const struct communicator *const *)a;
	const struct communicator *y = *(const struct communicator *const *)b;
	int r = strcmp(x->plan->name, y->plan->name);

	return r != 0 ? r : x->since < y->since ? -1 : x->since > y->since;
}

/* State of a rank as far as it is known. */
static struct survey_rank rank_state(const struct progress_view *v, uint32_t rank)
{
	const struct communicator *c = v->c;
	struct survey_rank state = {.known = false, .pid = c->plan->pids[rank]};
	uint64_t last;

	if (c->layout->host_of[rank] == c->host) {
		const struct comm_rank_view *view = &c->view->ranks[c->layout->local_of[rank]];

		last = counter_get(&view->last_post_ns);
		state.known = true;
		state.posted = counter_get(&view->posted);
		state.idle_ms = last ? clock_elapsed(clock_monotonic(), last) / CLOCK_NS_PER_MS
				     : UINT64_MAX;
	} else if (v->survey && v->survey->ranks[rank].known) {
		state = v->survey->ranks[rank];
	}
	return state;
}

static void progress_find(struct progress_view *v)
{
	uint64_t least = UINT64_MAX, most = 0, idle = 0;

	if (v->c->state != COMMUNICATOR_READY) {
		return;
	}
	v->here = communicator_waits(v->c, &v->waiting_ms);
	for (uint32_t i = 0; i < v->c->size; i++) {
		struct survey_rank state = rank_state(v, i);

		if (state.known && !v->c->gone[i]) {
			least = state.posted < least ? state.posted : least;
			most = state.posted > most ? state.posted : most;
		}
	}
	v->waits = v->here || (least != UINT64_MAX && most > least);
	v->seq = v->here ? counter_get(&v->c->view->completed) : least;
	if (v->here || !v->waits) {
		return;
	}
	for (uint32_t i = 0; i < v->c->size; i++) {
		struct survey_rank state = rank_state(v, i);

		if (state.known && state.posted > v->seq && state.idle_ms != UINT64_MAX &&
		    state.idle_ms > idle) {
			idle = state.idle_ms;
		}
	}
	v->waiting_ms = idle;
}

static void put_state(struct json *j, const struct survey_rank *state)
{
	if (state->known) {
		json_uint(j, "posted", state->posted);
	} else {
		json_null(j, "posted");
	}
	if (state->known && state->idle_ms != UINT64_MAX) {
		json_uint(j, "idle_ms", state->idle_ms);
	} else {
		json_null(j, "idle_ms");
	}
}

static void put_rank(struct json *j, const struct progress_view *v, uint32_t rank)
{
	const struct communicator *c = v->c;
	struct survey_rank state = rank_state(v, rank);

	json_open(j, NULL);
	json_uint(j, "rank", rank);
	json_string(j, "host", c->plan->hosts[c->layout->host_of[rank]]->name);
	json_uint(j, "pid", c->plan->pids[rank]);
	json_string(j, "client", roster_client(c->plan, rank));
	json_bool(j, "local", c->layout->host_of[rank] == c->host);
	json_bool(j, "gone", c->gone[rank]);
	put_state(j, &state);
	json_close(j);
}

static void put_ranks(struct json *j, const struct progress_view *v)
{
	const struct communicator *c = v->c;
	uint32_t room = RANKS_SHOWN - c->nlocal, left_out = 0;

	json_open_array(j, "ranks");
	for (uint32_t i = 0; i < c->size; i++) {
		if (c->layout->host_of[i] == c->host) {
			put_rank(j, v, i);
		} else if (room > 0) {
			put_rank(j, v, i);
			room--;
		} else {
			left_out++;
		}
	}
	json_close_array(j);
	json_uint(j, "ranks_left_out", left_out);
}

static void put_operation(struct json *j, const struct progress_view *v)
{
	const struct comm_view *view = v->c->view;
	uint32_t kind = counter_get32(&view->cur_kind);

	if (!v->waits) {
		json_null(j, "operation");
		return;
	}
	json_open(j, "operation");
	json_uint(j, "seq", v->seq);
	if (v->here) {
		uint32_t algo = counter_get32(&view->cur_algo);

		json_string(j, "kind", coll_kind_name(kind));
		json_string(j, "dtype", dtype_name(counter_get32(&view->cur_dtype)));
		if (coll_kind_reduces(kind)) {
			json_string(j, "op", redop_name(counter_get32(&view->cur_op)));
		}
		json_uint(j, "count", counter_get(&view->cur_count));
		if (coll_kind_has_root(kind)) {
			json_uint(j, "root", counter_get32(&view->cur_root));
		}
		if (algo != COLL_ALGO_AUTO) {
			json_string(j, "algorithm", coll_algo_name(algo));
		} else {
			json_null(j, "algorithm");
		}
	}
	json_close(j);
}

static void put_late(struct json *j, const struct progress_view *v)
{
	const struct communicator *c = v->c;
	uint32_t shown = 0, left_out = 0;
	char text[256];

	json_open_array(j, "waiting_for");
	for (uint32_t i = 0; v->waits && i < c->size; i++) {
		struct survey_rank state = rank_state(v, i);
		const char *host = c->plan->hosts[c->layout->host_of[i]]->name;

		if ((state.known && state.posted > v->seq) || c->gone[i]) {
			continue;
		}
		if (shown == LATE_SHOWN) {
			left_out++;
			continue;
		}
		shown++;
		json_open(j, NULL);
		json_uint(j, "rank", i);
		json_string(j, "host", host);
		json_uint(j, "pid", state.pid);
		put_state(j, &state);
		if (state.known) {
			json_null(j, "reason");
		} else {
			snprintf(text, sizeof(text), "unknown (host %s did not answer)", host);
			json_string(j, "reason", text);
		}
		json_close(j);
	}
	json_close_array(j);
	json_uint(j, "waiting_for_left_out", left_out);
}

static void put_hosts(struct json *j, const struct communicator *c)
{
	json_open_array(j, "hosts");
	for (uint32_t h = 0; h < c->nhosts; h++) {
		json_open(j, NULL);
		json_string(j, "name", c->plan->hosts[h]->name);
		json_string(j, "state", communicator_host_state(c, h));
		json_uint(j, "ranks", coll_nlocal(c->layout, h));
		json_close(j);
	}
	json_close_array(j);
}

static void put_counters(struct json *j, const struct communicator *c)
{
	for (size_t i = 0; i < counter_comm_nrows; i++) {
		json_uint(j, counter_comm_rows[i].name,
			  counter_row_get(&counter_comm_rows[i], c->view));
	}
}

/* See status_comm.h. */
void status_comm_put(struct json *j, const struct communicator *c,
		     const struct status_survey *survey)
{
	struct progress_view v = {.c = c, .survey = survey};
	char text[512];

	progress_find(&v);
	snprintf(text, sizeof(text), "%016" PRIx64, c->plan->wire);
	json_open(j, NULL);
	json_string(j, "name", c->plan->name);
	json_string(j, "uid", text);
	json_uint(j, "size", c->size);
	json_string(j, "state",
		    c->state == COMMUNICATOR_READY    ? "ready"
		    : c->state == COMMUNICATOR_FAILED ? "failed"
						      : "forming");
	json_string(j, "status", status_name(c->status));
	json_string(j, "error", c->text);
	json_uint(j, "age_ms", jobs_now(c->jobs) - c->since);
	communicator_path_text(c, text, sizeof(text));
	json_string(j, "path", text);
	put_hosts(j, c);
	put_ranks(j, &v);
	put_operation(j, &v);
	json_uint(j, "waiting_ms", v.waits ? v.waiting_ms : 0);
	put_late(j, &v);
	put_counters(j, c);
	json_close(j);
}
