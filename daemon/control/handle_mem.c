/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: buffers are registered and given back
 *
 * Charged before they are imported. A buffer that is given back keeps its number until the engine
 * has let go of it, so that a new one is never taken for it.
 *
 * RDMA devices take seconds to register what is large. The client is answered when they have it,
 * or after REGISTER_WAIT_MS: it can be used meanwhile, only not without copies.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "control/handle.h"
#include "mem/import.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

#define REGISTER_WAIT_MS 2000 /* clients wait for 10 s at least */

/* What goes with a buffer through its removal; made with it, so that removal cannot fail. */
struct session_buffer {
	struct session *session;
	uint64_t serial; /* of the request that makes it, then of that which removes it */
	uint32_t id;
	bool coming; /* devices are taking it: the client does not know its number yet */
	bool leaving;
	bool timed; /* the timer is in the loop */
	uv_timer_t timer;
};

static void on_timer_closed(uv_handle_t *handle)
{
	free(container_of((uv_timer_t *)handle, struct session_buffer, timer));
}

static void buffer_free(struct session_buffer *b)
{
	if (b->timed) {
		uv_close((uv_handle_t *)&b->timer, on_timer_closed);
	} else {
		free(b);
	}
}

/* See handle.h. */
bool handle_mem_admit(struct session *s, uint64_t serial)
{
	uint32_t have = registry_count(&s->buffers) + s->gpu_maps;

	if (have < s->tenant->max_buffers) {
		return true;
	}
	session_refuse(s, serial, STATUS_QUOTA,
		       "this client has registered %" PRIu32 " buffers, and max_buffers of "
		       "tenant %s is %" PRIu32 ": free some, or raise it in [tenant %s]",
		       have, s->tenant->name, s->tenant->max_buffers, s->tenant->name);
	return false;
}

/* Checks and charges. Return: the region in @ret, or false: refused. */
static bool register_import(struct session *s, uint64_t serial, int fd,
			    const Rocecomm__BufferRegister *msg, struct region **ret)
{
	struct quota_charge charge = {0};
	char text[LIMIT_ERROR_TEXT];
	int r;

	if (!handle_mem_admit(s, serial)) {
		return false;
	}
	if (quota_charge(&s->tenant->bytes, msg->size, &charge) != 0) {
		quota_describe(&s->tenant->bytes, s->tenant->name, msg->size, text, sizeof(text));
		session_refuse(s, serial, STATUS_QUOTA, "%s", text);
		return false;
	}
	r = import_memfd(fd, msg->size, &charge, ret, text, sizeof(text));
	if (r == 0) {
		(*ret)->internal = msg->internal;
		return true;
	}
	quota_release(&charge);
	if (r > 0) {
		session_refuse(s, serial, (enum status)r, "%s", text);
	} else {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
	}
	return false;
}

/* See handle.h. */
int handle_mem_add(struct session *s, struct region *region, uint32_t *ret_id)
{
	struct session_buffer *b = calloc(1, sizeof(*b));
	int r;

	if (!b) {
		region_unref(region);
		return err_origin(-ENOMEM);
	}
	b->session = s;
	r = registry_add(&s->buffers, region, &b->id);
	if (r != 0) {
		region_unref(region);
		free(b);
		return r;
	}
	r = hashmap_put(&s->buffer_map, b->id, b);
	if (r == 0) {
		r = engine_region_add(s->server->o.engine, s->engine, b->id, region);
	}
	if (r != 0) {
		hashmap_remove(&s->buffer_map, b->id);
		region_unref(registry_take(&s->buffers, b->id));
		free(b);
		return err_fold(r);
	}
	*ret_id = b->id;
	return 0;
}

static void register_answer(struct session *s, uint64_t serial, uint32_t id)
{
	Rocecomm__BufferReady ready = ROCECOMM__BUFFER_READY__INIT;

	ready.buffer = id;
	session_send(s, MSG_BUFFER_READY, serial, &ready, NULL, 0);
}

static void register_ready(void *arg)
{
	struct session_buffer *b = arg;

	if (b->coming) {
		b->coming = false;
		uv_timer_stop(&b->timer);
		register_answer(b->session, b->serial, b->id);
	}
}

static void register_late(uv_timer_t *timer)
{
	register_ready(container_of(timer, struct session_buffer, timer));
}

static void register_wait(struct session_buffer *b)
{
	uv_timer_init(b->session->server->o.loop, &b->timer);
	b->timed = true;
	b->coming = true;
	uv_timer_start(&b->timer, register_late, REGISTER_WAIT_MS, 0);
}

/* See handle.h. */
void handle_register(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__BufferRegister *msg = m;
	cleanup_close int fd = fdset_take(fds, 0);
	struct session_buffer *b;
	struct region *region;
	uint32_t id = 0;
	int r;

	if (msg->size == 0) {
		session_refuse(s, serial, STATUS_INVALID, "a buffer of 0 bytes: 1 at least is due");
		return;
	}
	if (!register_import(s, serial, fd, msg, &region)) {
		return;
	}
	r = handle_mem_add(s, region, &id);
	if (r != 0) {
		session_refuse(s, serial, r > 0 ? STATUS_QUOTA : STATUS_NO_MEMORY,
			       r > 0 ? "all buffer numbers of this client are in use: free some"
				     : "the daemon has no memory");
		return;
	}
	b = hashmap_get(&s->buffer_map, id);
	b->serial = serial;
	if (engine_region_ready(s->server->o.engine, s->engine, id, register_ready, b)) {
		register_answer(s, serial, id);
	} else {
		register_wait(b);
	}
}

static void deregister_gone(void *arg)
{
	struct session_buffer *b = arg;
	struct session *s = b->session;

	region_unref(registry_take(&s->buffers, b->id));
	hashmap_remove(&s->buffer_map, b->id);
	session_done(s, b->serial);
	buffer_free(b);
	session_return(s);
}

static void deregister_start(struct session_buffer *b, uint64_t serial)
{
	struct session *s = b->session;

	b->serial = serial;
	b->coming = false;
	b->leaving = true;
	s->returning++;
	if (s->server->o.jobs->stopped) {
		deregister_gone(b);
	} else {
		engine_region_remove(s->server->o.engine, s->engine, b->id, deregister_gone, b);
	}
}

/* See handle.h. */
void handle_deregister(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__BufferDeregister *msg = m;
	struct session_buffer *b = hashmap_get(&s->buffer_map, msg->buffer);

	if (!b || b->leaving || b->coming) {
		session_refuse(s, serial, STATUS_NOT_FOUND, "buffer %" PRIu32 " is not registered",
			       msg->buffer);
		return;
	}
	deregister_start(b, serial);
}

/* See handle.h. */
void handle_mem_teardown(struct session *s)
{
	struct session_buffer *b;
	size_t iter = 0;

	/* Removal is answered later, or, without an engine, changes the map: look anew then. */
	while ((b = hashmap_next(&s->buffer_map, &iter)) != NULL) {
		if (!b->leaving) {
			deregister_start(b, 0);
			iter = s->server->o.jobs->stopped ? 0 : iter;
		}
	}
}
