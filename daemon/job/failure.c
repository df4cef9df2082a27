/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Failure: implementation
 *
 * The engine says what it saw in numbers; here ranks get their host and pid, and operations their
 * names. An arrival time-out is a question to all hosts first: its sentence names who is missing.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "job/failure.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "job/bootstrap.h"
#include "job/comm.h"
#include "job/formation.h"
#include "job/member.h"
#include "job/split.h"
#include "job/survey.h"
#include "proto/base.h"
#include "proto/types.h"
#include "util/log.h"

#define LATE_NAMED 4 /* ranks that a sentence names one by one */

/* See failure.h. */
void failure_signature_text(const struct engine_signature *sig, char *buf, size_t size)
{
	int n;

	if (sig->kind == COLL_BARRIER) {
		snprintf(buf, size, "barrier");
		return;
	}
	n = snprintf(buf, size, "%s of %" PRIu64 " %s", coll_kind_name(sig->kind), sig->count,
		     dtype_name(sig->dtype));
	if (coll_kind_is_v(sig->kind)) {
		n = snprintf(buf, size, "%s of %s", coll_kind_name(sig->kind),
			     dtype_name(sig->dtype));
	}
	if (coll_kind_reduces(sig->kind) && n > 0 && (size_t)n < size) {
		n += snprintf(buf + n, size - (size_t)n, ", %s", redop_name(sig->op));
	}
	if (coll_kind_has_root(sig->kind) && n > 0 && (size_t)n < size) {
		snprintf(buf + n, size - (size_t)n, ", root %" PRIu32, sig->root);
	}
}

/* "rank 3 (...)", "host b", or "another rank" */
static void party_text(const struct communicator *c, int32_t rank, int32_t host, char *buf,
		       size_t size)
{
	if (rank >= 0 && (uint32_t)rank < c->size) {
		communicator_rank_text(c, (uint32_t)rank, buf, size);
	} else if (host >= 0 && (uint32_t)host < c->nhosts) {
		snprintf(buf, size, "host %s", c->plan->hosts[host]->name);
	} else {
		snprintf(buf, size, "another rank");
	}
}

static void failure_mismatch(const struct communicator *c, const struct engine_failure *f,
			     char *text, size_t size)
{
	char a[256], b[256], sig_a[128], sig_b[128];

	party_text(c, f->rank_a, (int32_t)c->host, a, sizeof(a));
	party_text(c, f->rank_b, f->host_b, b, sizeof(b));
	failure_signature_text(&f->a, sig_a, sizeof(sig_a));
	failure_signature_text(&f->b, sig_b, sizeof(sig_b));
	snprintf(
		text, size,
		"ranks disagree about operation %" PRIu64
		": %s posted %s, %s posted %s; all ranks must post the same operations in the same "
		"order",
		f->seq, a, sig_a, b, sig_b);
}

static void failure_length(const struct communicator *c, const struct engine_failure *f, char *text,
			   size_t size)
{
	char a[256], b[256];

	party_text(c, f->rank_a, (int32_t)c->host, a, sizeof(a));
	party_text(c, f->rank_b, f->host_b, b, sizeof(b));
	snprintf(text, size,
		 "ranks disagree about a length in operation %" PRIu64 ": %s has %" PRIu64
		 " bytes, %s has %" PRIu64 "%s%s",
		 f->seq, a, f->length_a, b, f->length_b, f->reason ? ": " : "",
		 f->reason ? f->reason : "");
}

static void failure_transfer(const struct communicator *c, const struct engine_failure *f,
			     char *text, size_t size)
{
	char b[256], sig[128];

	party_text(c, f->rank_b, f->host_b, b, sizeof(b));
	failure_signature_text(&f->a, sig, sizeof(sig));
	snprintf(text, size,
		 "operation %" PRIu64 " (%s): no byte has moved for %" PRIu32
		 " ms (transfer time-out)%s%s; the network between the hosts or a host is stuck",
		 f->seq, sig, c->plan->transfer_timeout_ms,
		 f->host_b >= 0 || f->rank_b >= 0 ? ", waiting for " : "",
		 f->host_b >= 0 || f->rank_b >= 0 ? b : "");
}

/* ---- arrival ------------------------------------------------------------------------------ */

struct arrival {
	struct jobs *jobs;
	uint8_t uid[UID_SIZE];
	uint64_t seq;
	struct engine_signature sig;
};

/* Appends. */
static void add(char *text, size_t size, const char *more)
{
	size_t n = strlen(text);

	if (n < size) {
		snprintf(text + n, size - n, "%s", more);
	}
}

static void arrival_rank_text(const struct communicator *c, uint32_t rank,
			      const struct survey_rank *state, char *buf, size_t size)
{
	char who[256];

	communicator_rank_text(c, rank, who, sizeof(who));
	if (!state->known) {
		snprintf(buf, size, "%s (its host did not answer)", who);
	} else if (state->idle_ms == UINT64_MAX) {
		snprintf(buf, size, "%s (has posted nothing yet)", who);
	} else {
		snprintf(buf, size, "%s (has posted %" PRIu64 ", the last one %" PRIu64 " ms ago)",
			 who, state->posted, state->idle_ms);
	}
}

static void arrival_sentence(struct communicator *c, const struct arrival *a,
			     const struct survey *survey)
{
	char sig[128], one[400], text[LIMIT_ERROR_TEXT];
	uint32_t late = 0;

	failure_signature_text(&a->sig, sig, sizeof(sig));
	snprintf(text, sizeof(text),
		 "operation %" PRIu64 " (%s) was not posted by all ranks within %" PRIu32
		 " ms (arrival time-out); missing: ",
		 a->seq, sig, c->plan->arrival_timeout_ms);
	for (uint32_t i = 0; i < survey->nranks; i++) {
		if (survey->ranks[i].known && survey->ranks[i].posted > a->seq) {
			continue;
		}
		if (late < LATE_NAMED) {
			arrival_rank_text(c, i, &survey->ranks[i], one, sizeof(one));
			add(text, sizeof(text), late ? ", " : "");
			add(text, sizeof(text), one);
		}
		late++;
	}
	if (late == 0) {
		add(text, sizeof(text), "none any more: the last one came too late");
	} else if (late > LATE_NAMED) {
		snprintf(one, sizeof(one), " and %" PRIu32 " more", late - LATE_NAMED);
		add(text, sizeof(text), one);
	}
	snprintf(c->text, sizeof(c->text), "%s", text);
}

static void arrival_tell(struct communicator *c)
{
	enum status status = c->status;
	char text[LIMIT_ERROR_TEXT];

	snprintf(text, sizeof(text), "%s", c->text);
	c->status = STATUS_OK;
	c->state = COMMUNICATOR_READY;
	communicator_fail(c, COMMUNICATOR_TELL | COMMUNICATOR_ENGINE_KNOWS, status, text);
}

static void arrival_done(void *arg, struct survey *survey)
{
	struct arrival *a = arg;
	ProtobufCBinaryData uid = {.data = a->uid, .len = UID_SIZE};
	struct communicator *c = communicator_find(a->jobs, &uid);

	if (c && c->settling) {
		arrival_sentence(c, a, survey);
		arrival_tell(c);
		communicator_settled(c);
	}
	free(a);
}

/* The operations have ended; the sentence follows when the hosts have answered. */
static void failure_arrival(struct communicator *c, const struct engine_failure *f)
{
	struct arrival *a = calloc(1, sizeof(*a));
	struct survey *survey;

	if (!a) {
		communicator_fail(c, COMMUNICATOR_TELL | COMMUNICATOR_ENGINE_KNOWS, f->status,
				  "a rank has not posted in time (arrival time-out)");
		return;
	}
	a->jobs = c->jobs;
	a->seq = f->seq;
	a->sig = f->a;
	memcpy(a->uid, c->uid, UID_SIZE);
	if (survey_start(c, arrival_done, a, &survey) < 0) {
		free(a);
		communicator_fail(c, COMMUNICATOR_TELL | COMMUNICATOR_ENGINE_KNOWS, f->status,
				  "a rank has not posted in time (arrival time-out)");
		return;
	}
	c->status = f->status;
	c->seq = f->seq;
	c->state = COMMUNICATOR_FAILED;
	c->settling = true;
	snprintf(c->text, sizeof(c->text), "a rank has not posted in time (arrival time-out)");
}

static void failure_partner(const struct communicator *c, const struct engine_failure *f,
			    char *text, size_t size)
{
	bool sends = f->a.kind == COLL_SEND;
	char a[256], b[256];

	party_text(c, f->rank_a, -1, a, sizeof(a));
	party_text(c, f->rank_b, -1, b, sizeof(b));
	snprintf(text, size,
		 "%s has waited with its %s of %" PRIu64 " bytes (number %" PRIu64
		 ") for %s, which "
		 "has not posted the matching %s within the arrival time-out",
		 a, sends ? "send" : "receive", f->length_a, f->seq, b, sends ? "receive" : "send");
}

/* ---- events ------------------------------------------------------------------------------- */

/* See failure.h. */
void failure_from_engine(struct communicator *c, const struct engine_failure *f)
{
	char text[LIMIT_ERROR_TEXT], a[256];

	if (c->status != STATUS_OK) {
		return;
	}
	switch (f->cause) {
	case ENGINE_FAIL_MISMATCH_LOCAL:
	case ENGINE_FAIL_MISMATCH_PEER:
		failure_mismatch(c, f, text, sizeof(text));
		break;
	case ENGINE_FAIL_LENGTH:
		failure_length(c, f, text, sizeof(text));
		break;
	case ENGINE_FAIL_TRANSFER:
		failure_transfer(c, f, text, sizeof(text));
		break;
	case ENGINE_FAIL_PARTNER:
		failure_partner(c, f, text, sizeof(text));
		break;
	case ENGINE_FAIL_ARRIVAL:
		failure_arrival(c, f);
		return;
	case ENGINE_FAIL_DEVICE:
		party_text(c, f->rank_a, -1, a, sizeof(a));
		snprintf(text, sizeof(text), "operation %" PRIu64 " of %s failed: %s", f->seq, a,
			 f->reason);
		break;
	default:
		party_text(c, f->rank_a, -1, a, sizeof(a));
		snprintf(text, sizeof(text), "%s posted an operation that is refused: %s", a,
			 f->reason ? f->reason : status_text(f->status));
		break;
	}
	c->seq = f->seq;
	communicator_fail(c, COMMUNICATOR_TELL | COMMUNICATOR_ENGINE_KNOWS, f->status, text);
}

static enum status fail_status(uint32_t status)
{
	return status > STATUS_IN_PROGRESS && status < STATUS_COUNT_ ? (enum status)status
								     : STATUS_INTERNAL;
}

static bool communicator_has(const struct communicator *c, const struct hostlink *l)
{
	for (uint32_t i = 0; i < c->nnear; i++) {
		if (c->links[c->near[i]] == l) {
			return true;
		}
	}
	return c->root == l;
}

/* Does this rank live where the message comes from? (Or, passed on, somewhere behind that.) */
static bool rank_is_on(const struct communicator *c, int32_t rank, const struct hostlink *l)
{
	if (rank < 0 || (uint32_t)rank >= c->size) {
		return false;
	}
	return communicator_is_sparse(c) ? communicator_has(c, l)
					 : c->links[c->plan->host_of[rank]] == l;
}

bool failure_on_fail(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__CommFail *fail = (const Rocecomm__Peer__CommFail *)msg;
	struct communicator *c = communicator_find(jobs, &fail->uid);
	enum status status = fail_status(fail->status);
	bool pass_on = c && communicator_is_sparse(c);

	if (fail->uid.len != UID_SIZE) {
		return false;
	}
	if (c) {
		if (fail->died && rank_is_on(c, fail->rank, l)) {
			communicator_doom(c, (uint32_t)fail->rank, true, fail->completed,
					  fail->text, pass_on);
		} else if (!fail->died && communicator_has(c, l)) {
			communicator_fail(c, pass_on ? COMMUNICATOR_TELL : 0, status, fail->text);
		}
		return false;
	}
	if (formation_failed(jobs, &fail->uid, status, fail->text)) {
		return false;
	}
	/* To the root: a rank gives up. From the root: ranks are refused. */
	if (fail->rank >= 0) {
		rendezvous_gone(jobs, fail->uid.data, (uint32_t)fail->rank, status, fail->text);
		split_gone(jobs, fail->uid.data, status, fail->text);
	}
	members_refuse_from(jobs, l, fail->uid.data, fail->rank, status, fail->text);
	return false;
}

bool failure_on_leave(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg)
{
	const Rocecomm__Peer__CommLeave *leave = (const Rocecomm__Peer__CommLeave *)msg;
	struct communicator *c = communicator_find(jobs, &leave->uid);
	char rank[256], text[LIMIT_ERROR_TEXT];

	if (!c || leave->rank > INT32_MAX || !rank_is_on(c, (int32_t)leave->rank, l)) {
		return false;
	}
	communicator_rank_text(c, leave->rank, rank, sizeof(rank));
	snprintf(text, sizeof(text), "%s has destroyed the communicator", rank);
	communicator_doom(c, leave->rank, false, leave->completed, text, false);
	return false;
}
