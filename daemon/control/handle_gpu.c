/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory of GPUs: allocations are imported, buffers made of them, and all of it given back
 *
 * The work is done by the "gpu" thread (gpu/gpu.h); answers come when it has been. An allocation is
 * charged, like any other registered memory, before it is imported and until it is unmapped, which
 * may be after its client has released it or is gone: the session lives as long
 * (session.returning).
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "control/handle.h"
#include "gpu/gpu.h"
#include "job/jobs.h"
#include "job/rails.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

/* Of a session at a time: each holds memory, may hold a descriptor, and takes the driver's time. */
#define GPU_PENDING_MAX 64

/* An allocation of a client, from the request to import it until it is unmapped. */
struct session_alloc {
	struct session *session;
	uint64_t serial;
	uint32_t id; /* 0: released */
	struct gpu_alloc *alloc;
	struct quota_charge charge;
	struct quota_charge rest; /* what it is larger than the client said */
	int fd;
	struct gpu_request request;
};

/* A buffer that is being mapped. */
struct session_map {
	struct session *session;
	uint64_t serial;
	struct gpu_request request;
	struct gpu_piece pieces[];
};

static bool closing(const struct session *s)
{
	return s->unmapping;
}

/* May it ask for one more thing? Return: false: refused. */
static bool pending_check(struct session *s, uint64_t serial)
{
	if (s->gpu_pending < GPU_PENDING_MAX) {
		return true;
	}
	session_refuse(s, serial, STATUS_QUOTA,
		       "%d requests of this client for GPU memory are under way already; wait for "
		       "an answer",
		       GPU_PENDING_MAX);
	return false;
}

/* ---- allocations -------------------------------------------------------------------------- */

static void alloc_forget(struct session_alloc *a)
{
	if (a->id) {
		hashmap_remove(&a->session->gpu_allocs, a->id);
		idpool_release(&a->session->gpu_ids, a->id);
		a->session->gpu_bytes -= a->charge.amount + a->rest.amount;
		a->id = 0;
	}
}

static void alloc_free(struct session_alloc *a)
{
	quota_release(&a->charge);
	quota_release(&a->rest);
	base_close(a->fd);
	free(a);
}

/* It is unmapped. */
static void alloc_gone(void *arg)
{
	struct session_alloc *a = arg;
	struct session *s = a->session;

	alloc_free(a);
	session_return(s);
}

/* The client has no name for it any more. */
static void alloc_release(struct session_alloc *a)
{
	alloc_forget(a);
	a->alloc = gpu_alloc_unref(a->alloc); /* alloc_gone() comes */
}

/* Charges what it is larger than its client said. Return: false: refused. */
static bool alloc_charge_rest(struct session_alloc *a)
{
	uint64_t rest = a->request.size - a->charge.amount;
	struct session *s = a->session;
	char text[LIMIT_ERROR_TEXT];

	if (rest && quota_charge(&s->tenant->bytes, rest, &a->rest) != 0) {
		quota_describe(&s->tenant->bytes, s->tenant->name, rest, text, sizeof(text));
		session_refuse(s, a->serial, STATUS_QUOTA, "%s", text);
		return false;
	}
	s->gpu_bytes += rest;
	return true;
}

static void alloc_opened(struct gpu_request *request)
{
	struct session_alloc *a = request->arg;
	struct session *s = a->session;
	Rocecomm__GpuAllocReady ready = ROCECOMM__GPU_ALLOC_READY__INIT;

	s->gpu_pending--;
	a->fd = base_close(a->fd);
	if (request->status != STATUS_OK) {
		session_refuse(s, a->serial, request->status, "%s", request->text);
		alloc_forget(a);
		alloc_free(a);
		session_return(s);
		return;
	}
	a->alloc = request->alloc;
	if (closing(s) || !alloc_charge_rest(a)) {
		alloc_release(a);
		return;
	}
	ready.alloc = a->id;
	session_send(s, MSG_GPU_ALLOC_READY, a->serial, &ready, NULL, 0);
}

/* Return: true: it can be asked for; else it is refused. */
static bool alloc_check(struct session *s, uint64_t serial, const Rocecomm__GpuAllocRegister *msg,
			int fd)
{
	if (!s->server->o.gpu) {
		session_refuse(s, serial, STATUS_UNSUPPORTED, "this daemon takes no GPU memory");
		return false;
	}
	if (msg->device.len != GPU_UUID_BYTES) {
		session_refuse(s, serial, STATUS_INVALID, "a GPU's UUID has %d bytes, not %zu",
			       GPU_UUID_BYTES, msg->device.len);
		return false;
	}
	if (msg->size == 0 || msg->size > INT64_MAX) {
		session_refuse(s, serial, STATUS_INVALID,
			       "an allocation of %" PRIu64 " bytes cannot be registered",
			       msg->size);
		return false;
	}
	if (msg->kind == GPU_HANDLE_IPC && msg->ipc.len != GPU_IPC_BYTES) {
		session_refuse(s, serial, STATUS_INVALID, "an IPC handle has %d bytes, not %zu",
			       GPU_IPC_BYTES, msg->ipc.len);
		return false;
	}
	if (msg->kind != GPU_HANDLE_IPC && fd < 0) {
		session_refuse(s, serial, STATUS_FD_MISSING,
			       "GpuAllocRegister came without the descriptor that its kind has");
		return false;
	}
	return true;
}

/* Gives it a number. Return: false: refused. */
static bool alloc_enter(struct session *s, struct session_alloc *a)
{
	int r = idpool_take(&s->gpu_ids, &a->id);

	if (r == 0) {
		r = hashmap_put(&s->gpu_allocs, a->id, a);
		if (r != 0) {
			idpool_release(&s->gpu_ids, a->id);
			a->id = 0;
		}
	}
	if (r != 0) {
		session_refuse(s, a->serial, r > 0 ? STATUS_QUOTA : STATUS_NO_MEMORY,
			       r > 0 ? "this client has as many GPU allocations as there are "
				       "numbers: release some"
				     : "the daemon has no memory");
		return false;
	}
	s->gpu_bytes += a->charge.amount;
	return true;
}

/* See handle.h. */
void handle_gpu_alloc(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__GpuAllocRegister *msg = m;
	cleanup_close int fd = fds->n ? fdset_take(fds, 0) : -1;
	char text[LIMIT_ERROR_TEXT];
	struct session_alloc *a;

	if (!alloc_check(s, serial, msg, fd) || !pending_check(s, serial)) {
		return;
	}
	a = calloc(1, sizeof(*a));
	if (!a) {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	a->session = s;
	a->serial = serial;
	a->fd = -1;
	a->request.size = msg->size;
	if (quota_charge(&s->tenant->bytes, msg->size, &a->charge) != 0) {
		quota_describe(&s->tenant->bytes, s->tenant->name, msg->size, text, sizeof(text));
		session_refuse(s, serial, STATUS_QUOTA, "%s", text);
		alloc_free(a);
		return;
	}
	if (!alloc_enter(s, a)) {
		alloc_free(a);
		return;
	}
	a->fd = take_fd(&fd);
	a->request.fd = a->fd;
	a->request.handle = (enum gpu_handle)msg->kind;
	a->request.buffer_id = msg->buffer_id;
	memcpy(a->request.uuid, msg->device.data, GPU_UUID_BYTES);
	if (msg->ipc.len == GPU_IPC_BYTES) {
		memcpy(a->request.ipc, msg->ipc.data, GPU_IPC_BYTES);
	}
	a->request.done = alloc_opened;
	a->request.arg = a;
	a->request.gone = alloc_gone;
	a->request.gone_arg = a;
	s->returning++;
	s->gpu_pending++;
	gpu_open(s->server->o.gpu, &a->request);
}

/* An allocation that is ready, or NULL. */
static struct session_alloc *alloc_find(const struct session *s, uint32_t id)
{
	struct session_alloc *a = hashmap_get(&s->gpu_allocs, id);

	return a && a->alloc ? a : NULL;
}

/* See handle.h. */
void handle_gpu_release(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__GpuAllocRelease *msg = m;
	struct session_alloc *a = alloc_find(s, msg->alloc);

	if (!a) {
		session_refuse(s, serial, STATUS_NOT_FOUND,
			       "GPU allocation %" PRIu32 " is not registered", msg->alloc);
		return;
	}
	alloc_release(a);
	session_done(s, serial);
}

/* ---- buffers ------------------------------------------------------------------------------ */

static void paths_known(void *arg)
{
	session_return(arg);
}

/* A GPU may have come into use: which devices reach it? */
static void paths_look(struct session *s)
{
	struct server *server = s->server;

	s->returning++;
	gpu_paths_look(&server->gpu_paths, server->o.gpu, rails_devices(server->o.jobs->rails),
		       paths_known, s);
}

/* How the memory is reached, as the client is told. */
static void map_answer(struct session_map *map, uint32_t id, const struct gpu_memory *memory)
{
	Rocecomm__GpuBufferReady ready = ROCECOMM__GPU_BUFFER_READY__INIT;
	char reason[960], why[800];

	gpu_paths_reason(&map->session->server->gpu_paths, gpu_memory_uuid(memory), why,
			 sizeof(why));
	snprintf(reason, sizeof(reason),
		 "%s memory, copied by the GPU's copy engines through pinned memory of the host: "
		 "%s",
		 gpu_memory_kind(memory), why);
	ready.buffer = id;
	ready.path = (char *)(uintptr_t) "staged";
	ready.reason = reason;
	session_send(map->session, MSG_GPU_BUFFER_READY, map->serial, &ready, NULL, 0);
}

/* Makes it a buffer of the session. The memory's reference is consumed. */
static void map_enter(struct session_map *map)
{
	struct session *s = map->session;
	struct gpu_memory *memory = map->request.memory;
	struct region *region;
	uint32_t id = 0;
	int r = region_new_gpu(memory, &region);

	if (r < 0) {
		gpu_memory_unref(memory);
	} else {
		r = handle_mem_add(s, region, &id);
	}
	if (r != 0) {
		session_refuse(s, map->serial, r > 0 ? STATUS_QUOTA : STATUS_NO_MEMORY,
			       r > 0 ? "this client has as many buffers as there are numbers"
				     : "the daemon has no memory");
		return;
	}
	map_answer(map, id, memory);
	paths_look(s);
}

static void map_done(struct gpu_request *request)
{
	struct session_map *map = request->arg;
	struct session *s = map->session;

	s->gpu_pending--;
	s->gpu_maps--;
	if (request->status != STATUS_OK) {
		session_refuse(s, map->serial, request->status, "%s", request->text);
	} else if (closing(s)) {
		gpu_memory_unref(request->memory);
	} else {
		map_enter(map);
	}
	for (uint32_t i = 0; i < request->npieces; i++) {
		gpu_alloc_unref(map->pieces[i].alloc);
	}
	free(map);
	session_return(s);
}

/* Return: false: refused. */
static bool map_pieces(struct session_map *map, const Rocecomm__GpuBufferRegister *msg)
{
	for (size_t i = 0; i < msg->n_pieces; i++) {
		struct session_alloc *a = alloc_find(map->session, msg->pieces[i]->alloc);

		if (!a) {
			session_refuse(map->session, map->serial, STATUS_NOT_FOUND,
				       "GPU allocation %" PRIu32 " is not registered",
				       msg->pieces[i]->alloc);
			return false;
		}
		map->pieces[i].alloc = a->alloc;
		map->pieces[i].offset = msg->pieces[i]->offset;
		map->pieces[i].size = msg->pieces[i]->size;
	}
	return true;
}

/* See handle.h. */
void handle_gpu_buffer(struct session *s, uint64_t serial, const void *m, struct fdset *fds)
{
	const Rocecomm__GpuBufferRegister *msg = m;
	struct session_map *map;

	if (msg->n_pieces == 0 || msg->n_pieces > LIMIT_GPU_PIECES) {
		session_refuse(s, serial, STATUS_INVALID,
			       "a GPU buffer has 1 to %d pieces, this one has %zu",
			       LIMIT_GPU_PIECES, msg->n_pieces);
		return;
	}
	if (!handle_mem_admit(s, serial) || !pending_check(s, serial)) {
		return;
	}
	map = calloc(1, sizeof(*map) + msg->n_pieces * sizeof(map->pieces[0]));
	if (!map) {
		session_refuse(s, serial, STATUS_NO_MEMORY, "the daemon has no memory");
		return;
	}
	map->session = s;
	map->serial = serial;
	if (!map_pieces(map, msg)) {
		free(map);
		return;
	}
	map->request.npieces = (uint32_t)msg->n_pieces;
	map->request.pieces = map->pieces;
	map->request.done = map_done;
	map->request.arg = map;
	for (uint32_t i = 0; i < map->request.npieces; i++) {
		gpu_alloc_ref(map->pieces[i].alloc);
	}
	s->returning++;
	s->gpu_pending++;
	s->gpu_maps++;
	gpu_map(s->server->o.gpu, &map->request);
}

/* See handle.h. Those that are being imported follow when they are. */
void handle_gpu_teardown(struct session *s)
{
	struct session_alloc *a;
	size_t iter = 0;

	while ((a = hashmap_next(&s->gpu_allocs, &iter)) != NULL) {
		if (a->alloc) {
			alloc_release(a);
			iter = 0; /* the map has changed */
		}
	}
}
