/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake engine: implementation
 *
 * Thread: the test's      Owns: see fake_engine.h      Locks: none
 */
#include "tests/fake/fake_engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/engine_gauge.h"
#include "engine/engine_rdma.h"
#include "proto/base.h"

static void answer(struct engine *engine, engine_done_fn done, void *arg)
{
	struct answer *a = calloc(1, sizeof(*a));

	assert(a);
	a->done = done;
	a->arg = arg;
	list_append(&engine->answers, &a->link);
}

void fake_engine_answer(struct engine *engine)
{
	struct answer *a = container_of(list_first(&engine->answers), struct answer, link);

	list_remove(&a->link);
	a->done(a->arg);
	free(a);
}

struct engine_session {
	unsigned int regions;
};

int engine_session_add(struct engine *engine, void *page, int bell, int event, void *user,
		       struct engine_session **ret)
{
	*ret = calloc(1, sizeof(**ret));
	assert(*ret);
	return 0;
}

void engine_session_quota(struct engine_session *session, struct quota *quota, const char *tenant)
{
}

void engine_session_remove(struct engine *engine, struct engine_session *session,
			   engine_done_fn done, void *arg)
{
	assert(session->regions == 0);
	free(session);
	answer(engine, done, arg);
}

int engine_region_add(struct engine *engine, struct engine_session *session, uint32_t id,
		      struct region *region)
{
	session->regions++;
	return 0;
}

bool engine_region_ready(struct engine *engine, struct engine_session *session, uint32_t id,
			 engine_done_fn ready, void *arg)
{
	if (!engine->slow) {
		return true;
	}
	engine->ready = ready;
	engine->ready_arg = arg;
	return false;
}

void fake_engine_slow(struct engine *engine, bool slow)
{
	engine->slow = slow;
}

void fake_engine_ready(struct engine *engine)
{
	engine_done_fn ready = engine->ready;

	engine->ready = NULL;
	if (ready) {
		ready(engine->ready_arg);
	}
}

void engine_region_remove(struct engine *engine, struct engine_session *session, uint32_t id,
			  engine_done_fn done, void *arg)
{
	assert(session->regions > 0);
	session->regions--;
	engine->ready = NULL;
	answer(engine, done, arg);
}

void engine_dispatch(struct engine *engine)
{
}

const struct thread_view *engine_thread_view(const struct engine *engine)
{
	static const struct thread_view view;

	return &view;
}

const struct thread_view *engine_worker_view(const struct engine *engine, unsigned int index)
{
	return NULL;
}

int engine_peer_add(struct engine *engine, void *user, struct engine_peer **ret)
{
	*ret = calloc(1, sizeof(**ret));
	assert(*ret);
	list_append(&engine->peers, &(*ret)->link);
	return 0;
}

int engine_peer_stream(struct engine *engine, struct engine_peer *peer, int fd, unsigned int index)
{
	close(fd);
	return 0;
}

void engine_peer_remove(struct engine *engine, struct engine_peer *peer, engine_done_fn done,
			void *arg)
{
	list_remove(&peer->link);
	free(peer);
	answer(engine, done, arg);
}

int engine_comm_add(struct engine *engine, const struct engine_comm_params *params,
		    engine_done_fn done, void *arg, struct engine_comm **ret)
{
	*ret = calloc(1, sizeof(**ret));
	assert(*ret);
	list_append(&engine->comms, &(*ret)->link);
	assert(params->peers[params->host] == NULL);
	answer(engine, done, arg);
	return 0;
}

void engine_comm_fail(struct engine *engine, struct engine_comm *comm, enum status status)
{
	if (comm->failed == STATUS_OK) {
		comm->failed = status;
	}
}

void engine_comm_detach(struct engine *engine, struct engine_comm *comm, uint32_t local,
			engine_done_fn done, void *arg)
{
	comm->detached++;
	answer(engine, done, arg);
}

void engine_comm_remove(struct engine *engine, struct engine_comm *comm, engine_done_fn done,
			void *arg)
{
	list_remove(&comm->link);
	free(comm);
	answer(engine, done, arg);
}

/* ---- RDMA: there is none ------------------------------------------------------------------- */

int engine_rdma_start(struct engine *engine, const struct engine_rdma_options *options)
{
	return -ENOTSUP;
}

void engine_device_add(struct engine *engine, struct engine_device *work, engine_done_fn done,
		       void *arg)
{
	work->result = -ENOTSUP;
	answer(engine, done, arg);
}

void engine_device_event(struct engine *engine, struct rdma_device *device,
			 const struct rdma_event *event)
{
}

void engine_device_remove(struct engine *engine, struct rdma_device *device, const char *text,
			  engine_done_fn done, void *arg)
{
	answer(engine, done, arg);
}

int engine_peer_rails(struct engine *engine, struct engine_peer *peer, const char *name,
		      bool initiator)
{
	return -ENOTSUP;
}

void engine_peer_rail(struct engine *engine, struct engine_peer *peer, struct engine_rail *work,
		      engine_done_fn done, void *arg)
{
	work->result = -ENOTSUP;
	answer(engine, done, arg);
}

void engine_peer_look(struct engine *engine, struct engine_peer *peer,
		      struct engine_rails_view *view, engine_done_fn done, void *arg)
{
	answer(engine, done, arg);
}

uint64_t engine_peer_heard(const struct engine_peer *peer)
{
	return 0;
}

void engine_gauge(struct engine *engine, struct engine_peer *peer, struct engine_gauge *gauge,
		  engine_done_fn done, void *arg)
{
	gauge->result = -ECONNRESET;
	answer(engine, done, arg);
}
