/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: buffers are registered and given back
 *
 * Charged before they are imported. A buffer that is given back keeps its number until the engine
 * has let go of it, so that a new one is never taken for it.
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

/* A buffer on its way out. */
struct leaving_buffer {
	struct list link; /* session.leaving_buffers */
	struct session *session;
	uint64_t serial;
	uint32_t id;
};

/* Checks and charges. Return: the region in @ret, or false: refused. */
static bool register_import(struct session *s, uint64_t serial, int fd,
			    const Rocecomm__BufferRegister *msg, struct region **ret)
{
	struct quota_charge charge = {0};
	char text[LIMIT_ERROR_TEXT];
	int r;

	if (registry_count(&s->buffers) >= s->tenant->max_buffers) {
		session_refuse(s, serial, STATUS_QUOTA,
			       "this client has registered %" PRIu32 " buffers, and max_buffers of "
			       "tenant %s is %" PRIu32 ": free some, or raise it in [tenant %s]",
			       registry_count(&s->buffers), s->tenant->name,
			       s->tenant->max_buffers, s->tenant->name);
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
void handle_register(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__BufferRegister *msg = m;
	Rocecomm__BufferReady ready = ROCECOMM__BUFFER_READY__INIT;
	cleanup_close int fd = fdset_take(fds, 0);
	struct region *region;
	uint32_t id;
	int r;

	if (msg->size == 0) {
		session_refuse(s, serial, STATUS_INVALID, "a buffer of 0 bytes: 1 at least is due");
		return;
	}
	if (!register_import(s, serial, fd, msg, &region)) {
		return;
	}
	r = registry_add(&s->buffers, region, &id);
	if (r != 0) {
		region_unref(region);
		session_refuse(s, serial, r > 0 ? STATUS_QUOTA : STATUS_NO_MEMORY,
			       r > 0 ? "all buffer numbers of this client are in use: free some"
				     : "the daemon has no memory");
		return;
	}
	r = engine_region_add(s->server->o.engine, s->engine, id, region);
	if (r < 0) {
		region_unref(registry_take(&s->buffers, id));
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	ready.buffer = id;
	session_send(s, MSG_BUFFER_READY, serial, &ready, NULL, 0);
}

static void deregister_gone(void *arg)
{
	struct leaving_buffer *b = arg;
	struct session *s = b->session;

	region_unref(registry_take(&s->buffers, b->id));
	session_done(s, b->serial);
	list_remove(&b->link);
	free(b);
	s->returning--;
	session_teardown(s);
}

static bool deregister_pending(const struct session *s, uint32_t id)
{
	list_for_each(at, &s->leaving_buffers) {
		if (container_of(at, struct leaving_buffer, link)->id == id) {
			return true;
		}
	}
	return false;
}

/* See handle.h. */
void handle_deregister(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__BufferDeregister *msg = m;
	struct leaving_buffer *b;

	if (!registry_get(&s->buffers, msg->buffer) || deregister_pending(s, msg->buffer)) {
		session_refuse(s, serial, STATUS_NOT_FOUND, "buffer %" PRIu32 " is not registered",
			       msg->buffer);
		return;
	}
	b = calloc(1, sizeof(*b));
	if (!b) {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	b->session = s;
	b->serial = serial;
	b->id = msg->buffer;
	list_append(&s->leaving_buffers, &b->link);
	s->returning++;
	engine_region_remove(s->server->o.engine, s->engine, msg->buffer, deregister_gone, b);
}
