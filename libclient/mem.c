/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory: allocation, registration, look-up
 *
 * Freeing: the buffer first becomes invisible to look-ups, then the daemon is asked; its answer
 * comes when no operation uses the memory any more. Only then are results that still lie in a
 * mirror copied out and the mapping removed.
 *
 * Of memory that is shared in place, pages become private again; if the caller said how it is
 * freed, their content is lost, since nobody may look at it any more.
 *
 * Thread: any      Owns: see mem.h      Locks: the client's lock, taken inside
 */
#include "libclient/mem.h"

#include <stdio.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/error.h"
#include "libclient/gpu.h"
#include "libclient/request.h"
#include "libclient/roceclient.h"
#include "proto/base.h"

/* Index of the first buffer that begins above @ptr. */
static size_t mem_above(const struct mem_table *table, const void *ptr)
{
	size_t lo = 0, hi = table->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if ((uintptr_t)table->items[mid]->ptr <= (uintptr_t)ptr) {
			lo = mid + 1;
		} else {
			hi = mid;
		}
	}
	return lo;
}

enum mem_hit mem_find(const struct mem_table *table, const void *ptr, size_t size,
		      struct roce_buffer **ret)
{
	size_t i = mem_above(table, ptr);
	uintptr_t p = (uintptr_t)ptr;

	if (i > 0) {
		struct roce_buffer *b = table->items[i - 1];
		size_t off = p - (uintptr_t)b->ptr;

		if (off < b->size) {
			*ret = b;
			return size <= b->size - off ? MEM_INSIDE : MEM_PARTIAL;
		}
	}
	if (i < table->n && (uintptr_t)table->items[i]->ptr - p < size) {
		*ret = table->items[i];
		return MEM_PARTIAL;
	}
	return MEM_NONE;
}

static int mem_insert(struct mem_table *table, struct roce_buffer *buffer)
{
	size_t i;

	if (table->n == table->room) {
		size_t room = table->room ? 2 * table->room : 16;
		struct roce_buffer **items = realloc(table->items, room * sizeof(*items));

		if (!items) {
			return -ENOMEM;
		}
		table->items = items;
		table->room = room;
	}
	i = mem_above(table, buffer->ptr);
	memmove(&table->items[i + 1], &table->items[i], (table->n - i) * sizeof(*table->items));
	table->items[i] = buffer;
	table->n++;
	return 0;
}

static void mem_remove(struct mem_table *table, const struct roce_buffer *buffer)
{
	for (size_t i = 0; i < table->n; i++) {
		if (table->items[i] == buffer) {
			table->n--;
			memmove(&table->items[i], &table->items[i + 1],
				(table->n - i) * sizeof(*table->items));
			return;
		}
	}
}

/*
 * Makes a buffer of @span bytes; @ptr NULL: shared, else a mirror of the caller's memory, whose
 * first byte is byte @head of it.
 */
static int mem_new(struct roce_client *client, void *ptr, size_t size, size_t head, size_t span,
		   unsigned int flags, struct roce_buffer **ret)
{
	struct roce_buffer *buffer;
	int r;

	buffer = calloc(1, sizeof(*buffer));
	if (!buffer) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a buffer handle");
	}
	r = shmem_new(client, span, flags, &buffer->shm);
	if (r == ROCE_ERR_QUOTA) {
		/* Idle staging counts against the same limit. */
		staging_trim(client, 0);
		r = shmem_new(client, span, flags, &buffer->shm);
	}
	if (r != 0) {
		free(buffer);
		return r;
	}
	buffer->client = client;
	buffer->shared = !ptr;
	buffer->ptr = ptr ? ptr : buffer->shm.base;
	buffer->size = size;
	buffer->head = head;
	pthread_mutex_lock(&client->lock);
	r = mem_insert(&client->mem, buffer);
	pthread_mutex_unlock(&client->lock);
	if (r != 0) {
		shmem_deregister(client, &buffer->shm);
		shmem_free(&buffer->shm, false);
		free(buffer);
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for the buffer table");
	}
	*ret = buffer;
	return 0;
}

int roce_mem_alloc(struct roce_client *client, size_t size, unsigned int flags, void **ret_ptr)
{
	struct roce_buffer *buffer;
	unsigned int f = SHMEM_RESERVE;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (!ret_ptr) {
		return error_set(ROCE_ERR_INVALID, "roce_mem_alloc: ret_ptr is NULL");
	}
	if (flags & ~(unsigned int)ROCE_MEM_HUGE) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_mem_alloc: flags 0x%x: only ROCE_MEM_HUGE (1) exists",
				 flags);
	}
	if (size == 0) {
		return error_set(ROCE_ERR_INVALID, "roce_mem_alloc: size is 0, at least 1 is due");
	}
	if (flags & ROCE_MEM_HUGE) {
		f |= SHMEM_HUGE;
	}
	r = mem_new(client, NULL, size, 0, size, f, &buffer);
	if (r != 0) {
		return error_prefix(r, "roce_mem_alloc");
	}
	*ret_ptr = buffer->ptr;
	return 0;
}

/* Withdraws, waits for the daemon, frees. @keep: the content of an alias is still wanted. */
static int mem_release(struct roce_client *client, struct roce_buffer *buffer, bool keep)
{
	int r;

	/* Also when the daemon is lost: then nobody but us maps the memory. */
	r = shmem_deregister(client, &buffer->shm);
	pthread_mutex_lock(&client->lock);
	request_harvest(client);
	pthread_mutex_unlock(&client->lock);
	if (!buffer->shared) {
		request_quiesce_mirror(client, buffer);
	}
	alias_deinit(&buffer->alias, keep);
	shmem_free(&buffer->shm, false);
	free(buffer);
	if (r == ROCE_ERR_NO_DAEMON || r == ROCE_ERR_SHUTDOWN) {
		r = 0;
	}
	return r;
}

int roce_mem_free(struct roce_client *client, void *ptr)
{
	struct roce_buffer *buffer;
	size_t i;
	int r;

	r = client_enter(client);
	if (r != 0 || !ptr) {
		return r;
	}
	pthread_mutex_lock(&client->lock);
	i = mem_above(&client->mem, ptr);
	buffer = i > 0 ? client->mem.items[i - 1] : NULL;
	if (!buffer || buffer->ptr != ptr || !buffer->shared) {
		pthread_mutex_unlock(&client->lock);
		return error_set(ROCE_ERR_NOT_FOUND,
				 "roce_mem_free: %p is not the start of memory from "
				 "roce_mem_alloc() of this client (freed twice?)",
				 ptr);
	}
	mem_remove(&client->mem, buffer);
	pthread_mutex_unlock(&client->lock);
	return mem_release(client, buffer, true);
}

/* Device memory: handed to the daemon now rather than at the first operation. */
static int mem_register_device(struct roce_client *client, void *ptr, size_t size,
			       struct roce_buffer **ret)
{
	struct roce_buffer *buffer = calloc(1, sizeof(*buffer));

	if (!buffer) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a buffer handle");
	}
	*buffer = (struct roce_buffer){
		.client = client, .ptr = ptr, .size = size, .device = true, .shm.fd = -1};
	pthread_mutex_lock(&client->lock);
	buffer->next = client->gpu.registered;
	client->gpu.registered = buffer;
	pthread_mutex_unlock(&client->lock);
	*ret = buffer;
	return 0;
}

static int mem_deregister_device(struct roce_buffer *buffer)
{
	struct roce_client *client = buffer->client;
	struct roce_buffer **p;
	int r;

	pthread_mutex_lock(&client->lock);
	for (p = &client->gpu.registered; *p != buffer; p = &(*p)->next) {
	}
	*p = buffer->next;
	pthread_mutex_unlock(&client->lock);
	r = gpu_forget(client, buffer->ptr, buffer->size);
	free(buffer);
	return r == ROCE_ERR_NO_DAEMON || r == ROCE_ERR_SHUTDOWN ? 0 : r;
}

/* Is it a range of the caller's memory that is in no buffer yet? Return: 0 or a status. */
static int mem_check_new(struct roce_client *client, const char *call, const void *ptr, size_t size,
			 struct roce_buffer *const *ret_buffer)
{
	struct roce_buffer *other;
	enum mem_hit hit;

	if (!ptr || !ret_buffer) {
		return error_set(ROCE_ERR_INVALID, "%s: %s is NULL", call,
				 ptr ? "ret_buffer" : "ptr");
	}
	if (size == 0 || (uintptr_t)ptr + size < (uintptr_t)ptr) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: %zu bytes from %p are not a range of memory", call, size,
				 ptr);
	}
	pthread_mutex_lock(&client->lock);
	hit = mem_find(&client->mem, ptr, size, &other);
	pthread_mutex_unlock(&client->lock);
	if (hit != MEM_NONE) {
		return error_set(ROCE_ERR_EXISTS, "%s: [%p, +%zu) overlaps [%p, +%zu), which is %s",
				 call, ptr, size, (void *)other->ptr, other->size,
				 other->shared ? "from roce_mem_alloc()" : "registered already");
	}
	return 0;
}

int roce_mem_register(struct roce_client *client, void *ptr, size_t size,
		      struct roce_buffer **ret_buffer)
{
	struct roce_buffer *buffer;
	struct gpu_place place;
	int r;

	r = client_enter(client);
	if (r == 0) {
		r = mem_check_new(client, "roce_mem_register", ptr, size, ret_buffer);
	}
	if (r != 0) {
		return r;
	}
	r = gpu_find(client, ptr, size, &place);
	if (r == 0) {
		gpu_drop(place.used);
		r = place.kind != GPU_HOST
			    ? mem_register_device(client, ptr, size, &buffer)
			    : mem_new(client, ptr, size, 0, size, SHMEM_INTERNAL, &buffer);
	}
	if (r != 0) {
		return error_prefix(r, "roce_mem_register");
	}
	*ret_buffer = buffer;
	return 0;
}

int roce_mem_deregister(struct roce_buffer *buffer)
{
	struct roce_client *client;
	int r;

	if (!buffer) {
		return error_set(ROCE_ERR_INVALID, "roce_mem_deregister: the buffer is NULL");
	}
	client = buffer->client;
	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (buffer->shared || buffer->alias.range.base) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_mem_deregister: memory from %s() is given back by %s()",
				 buffer->shared ? "roce_mem_alloc" : "roce_mem_share",
				 buffer->shared ? "roce_mem_free" : "roce_mem_unshare");
	}
	if (buffer->device) {
		return mem_deregister_device(buffer);
	}
	pthread_mutex_lock(&client->lock);
	mem_remove(&client->mem, buffer);
	pthread_mutex_unlock(&client->lock);
	return mem_release(client, buffer, true);
}

/* Does an operation in flight still write there, or copy there? */
static bool mem_written(struct roce_client *client, const void *ptr, size_t size)
{
	bool written;

	pthread_mutex_lock(&client->lock);
	request_harvest(client);
	written = request_writes_any(client, ptr, size);
	pthread_mutex_unlock(&client->lock);
	return written;
}

/* Makes a mirror of the right size and moves the pages. Return: 0 or a status. */
static int mem_share(struct roce_client *client, void *ptr, size_t size, struct roce_buffer **ret)
{
	struct roce_buffer *buffer;
	int r;

	r = mem_new(client, ptr, size, alias_head(ptr), alias_span(ptr, size), SHMEM_RESERVE,
		    &buffer);
	if (r != 0) {
		return r;
	}
	r = alias_init(&buffer->alias, &buffer->shm, ptr, size);
	if (r != 0) {
		char text[LIMIT_ERROR_TEXT];

		error_copy(text, error_last());
		pthread_mutex_lock(&client->lock);
		mem_remove(&client->mem, buffer);
		pthread_mutex_unlock(&client->lock);
		mem_release(client, buffer, true);
		return error_set(r, "%s", text);
	}
	*ret = buffer;
	return 0;
}

int roce_mem_share(struct roce_client *client, void *ptr, size_t size, void (*free_fn)(void *arg),
		   void *arg, struct roce_buffer **ret_buffer)
{
	struct roce_buffer *buffer;
	int r;

	r = client_enter(client);
	if (r == 0) {
		r = mem_check_new(client, "roce_mem_share", ptr, size, ret_buffer);
	}
	if (r != 0) {
		return r;
	}
	if (mem_written(client, ptr, size)) {
		return error_set(ROCE_ERR_EXISTS,
				 "roce_mem_share: an operation in flight writes to [%p, +%zu): "
				 "wait for it first",
				 ptr, size);
	}
	r = mem_share(client, ptr, size, &buffer);
	if (r != 0) {
		return error_prefix(r, "roce_mem_share");
	}
	buffer->free_fn = free_fn;
	buffer->free_arg = arg;
	*ret_buffer = buffer;
	return 0;
}

void roce_mem_unshare(void *arg)
{
	struct roce_buffer *buffer = arg;
	struct roce_client *client = buffer ? buffer->client : NULL;
	void (*free_fn)(void *) = buffer ? buffer->free_fn : NULL;
	void *free_arg = buffer ? buffer->free_arg : NULL;

	if (client && client->fork_gen == fork_generation()) {
		pthread_mutex_lock(&client->lock);
		mem_remove(&client->mem, buffer);
		pthread_mutex_unlock(&client->lock);
		mem_release(client, buffer, !free_fn);
	} else if (!client) {
		free(buffer);
	}
	if (free_fn) {
		free_fn(free_arg);
	}
}

int roce_mem_forget(struct roce_client *client, const void *ptr, size_t size)
{
	int r = client_enter(client);

	if (r != 0) {
		return r;
	}
	if (size > 0 && (!ptr || (uintptr_t)ptr + size < (uintptr_t)ptr)) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_mem_forget: %zu bytes from %p are not a range of memory",
				 size, ptr);
	}
	return gpu_forget(client, ptr, size);
}

int roce_mem_path(struct roce_client *client, const void *ptr, char *text, size_t text_size)
{
	struct roce_buffer *buffer;
	struct gpu_place place;
	enum mem_hit hit;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (!ptr || !text || text_size == 0) {
		return error_set(ROCE_ERR_INVALID, "roce_mem_path: %s is NULL or empty",
				 ptr ? "text" : "ptr");
	}
	pthread_mutex_lock(&client->lock);
	hit = mem_find(&client->mem, ptr, 1, &buffer);
	pthread_mutex_unlock(&client->lock);
	if (hit != MEM_NONE) {
		snprintf(text, text_size, "%s",
			 buffer->shared		    ? "shared with the daemon"
			 : buffer->alias.range.base ? "shared with the daemon in place"
						    : "registered, copied by this process");
		return ROCE_OK;
	}
	r = gpu_find(client, ptr, 1, &place);
	gpu_drop(place.used);
	if (r == 0 && place.kind == GPU_HOST) {
		snprintf(text, text_size, "copied by this process");
	} else if (r == 0) {
		gpu_describe(client, ptr, text, text_size);
	}
	return r;
}

int roce_mem_lookup(struct roce_client *client, const void *ptr, size_t size,
		    struct roce_buffer **ret_buffer)
{
	struct roce_buffer *buffer = NULL;
	enum mem_hit hit;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (!ret_buffer) {
		return error_set(ROCE_ERR_INVALID, "roce_mem_lookup: ret_buffer is NULL");
	}
	pthread_mutex_lock(&client->lock);
	hit = mem_find(&client->mem, ptr, MAX(size, (size_t)1), &buffer);
	pthread_mutex_unlock(&client->lock);
	if (hit == MEM_PARTIAL) {
		return error_set(ROCE_ERR_NOT_FOUND,
				 "roce_mem_lookup: [%p, +%zu) is only partly inside [%p, +%zu)",
				 ptr, size, (void *)buffer->ptr, buffer->size);
	}
	if (hit == MEM_NONE) {
		return error_set(ROCE_ERR_NOT_FOUND,
				 "roce_mem_lookup: %p is neither registered nor from "
				 "roce_mem_alloc() of this client",
				 ptr);
	}
	*ret_buffer = buffer;
	return 0;
}

void *roce_buffer_ptr(const struct roce_buffer *buffer)
{
	return buffer ? buffer->ptr : NULL;
}

size_t roce_buffer_size(const struct roce_buffer *buffer)
{
	return buffer ? buffer->size : 0;
}

int roce_buffer_is_shared(const struct roce_buffer *buffer)
{
	return buffer ? buffer->shared || buffer->alias.range.base : 0;
}

void mem_deinit(struct mem_table *table, bool forked)
{
	for (size_t i = 0; i < table->n; i++) {
		struct roce_buffer *buffer = table->items[i];

		if (!forked) {
			alias_deinit(&buffer->alias, true);
		}
		shmem_free(&buffer->shm, forked);
		if (buffer->free_fn) {
			/* roce_mem_unshare() is still to come. */
			buffer->client = NULL;
		} else {
			free(buffer);
		}
	}
	free(take_ptr(table->items));
	table->n = 0;
}
