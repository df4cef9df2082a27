/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake ranks: what clients would have the hosts of a fake network do
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "tests/fake/fake_engine.h"
#include "tests/fake/fake_net.h"

static void rank_ready(struct member *m)
{
	struct fake_rank *r = container_of(m, struct fake_rank, m);

	assert(r->state == FAKE_JOINING);
	r->state = FAKE_READY;
}

static void rank_refused(struct member *m, enum status status, const char *text)
{
	struct fake_rank *r = container_of(m, struct fake_rank, m);

	assert(r->state == FAKE_JOINING);
	r->state = FAKE_REFUSED;
	r->status = status;
	snprintf(r->text, sizeof(r->text), "%s", text);
}

static const struct member_ops rank_ops = {.ready = rank_ready, .refused = rank_refused};

static const struct member_options rank_options = {.name = "test"};

static void rank_init(struct fake_net *net, struct fake_rank *r, unsigned int host)
{
	memset(r, 0, sizeof(*r));
	r->m.ops = &rank_ops;
	r->m.pid = 100 + fake_host_enter(net, host, r);
	r->m.client = "fake";
	r->state = FAKE_JOINING;
}

static void rank_started(struct fake_rank *r, enum status status)
{
	if (status != STATUS_OK) {
		assert(r->state == FAKE_JOINING);
		r->state = FAKE_REFUSED;
		r->status = status;
	}
}

void fake_join(struct fake_net *net, struct fake_rank *r, unsigned int host,
	       const uint8_t id[LIMIT_UNIQUE_ID], uint32_t rank, uint32_t size)
{
	rank_init(net, r, host);
	rank_started(r, member_join(fake_host_jobs(r->host), &r->m, id, LIMIT_UNIQUE_ID, rank, size,
				    &rank_options, r->text, sizeof(r->text)));
}

void fake_join_env(struct fake_net *net, struct fake_rank *r, unsigned int host, unsigned int root,
		   const char *name, uint32_t rank, uint32_t size)
{
	char address[] = "192.0.2.1";
	char *roots[] = {address};
	struct member_env env = {.name = name, .roots = roots, .nroots = 1, .port = 1000 + root};

	rank_init(net, r, host);
	rank_started(r, member_join_env(fake_host_jobs(r->host), &r->m, &env, rank, size,
					&rank_options, r->text, sizeof(r->text)));
}

bool fake_split(struct fake_net *net, struct fake_rank *r, struct fake_rank *parent, int32_t color,
		int32_t key)
{
	bool none = false;
	enum status status;

	rank_init(net, r, fake_host_index(parent->host));
	status = member_split(fake_host_jobs(r->host), &r->m, &parent->m, color, key, &rank_options,
			      &none, r->text, sizeof(r->text));
	rank_started(r, status);
	if (none && status == STATUS_OK) {
		r->state = FAKE_LEFT;
	}
	return none;
}

static void rank_left(void *arg)
{
	struct fake_rank *r = arg;

	assert(r->state == FAKE_LEAVING);
	r->state = FAKE_LEFT;
}

void fake_leave(struct fake_rank *r, const char *died)
{
	if (r->state == FAKE_JOINING || r->state == FAKE_READY) {
		r->state = FAKE_LEAVING;
		member_leave(&r->m, died, rank_left, r);
	}
}

void fake_post(struct fake_rank *r, uint64_t posted, uint64_t completed)
{
	struct comm_view *v = r->m.comm->view;

	counter_set(&v->ranks[r->m.local].posted, posted);
	counter_set(&v->completed, completed);
}

enum status fake_failed(const struct fake_rank *r)
{
	return r->m.comm->engine->failed;
}
