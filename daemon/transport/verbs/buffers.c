/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: the context's own buffers, and the table of registered memory
 *
 * Frames and chunks are one mapping that is registered with every device. Chunks serve for landing
 * (what is to be reduced or copied out) and for staging (what comes from memory that is not
 * registered). Landing never takes the last quarter: two hosts that land each other's messages in
 * all they have could not stage their own.
 *
 * Thread: the progress thread that owns the context      Owns: the mapping      Locks: none
 */
#include <string.h>
#include <sys/mman.h>

#include "transport/verbs/verbs_impl.h"

#define PAGE 4096u
#define HUGE_PAGE (2u << 20)

int verbs_buffers_init(struct verbs *v)
{
	const struct verbs_options *o = &v->options;
	size_t size;
	uint8_t *base;
	int r;

	/* The body of a frame begins so that payload behind the wire header is aligned to 64. */
	v->frame_size = (uint32_t)sizeof(struct verbs_frame_header) + WIRE_SIZE + o->eager;
	v->frame_stride = ALIGN_UP(v->frame_size + 32, 64);
	v->chunks_at = ALIGN_UP((size_t)v->frame_stride * o->frames, PAGE);
	size = ALIGN_UP(v->chunks_at + (size_t)o->fragment * o->chunks, HUGE_PAGE);
	v->frames = calloc(o->frames, sizeof(*v->frames));
	v->free_chunks = calloc(o->chunks, sizeof(*v->free_chunks));
	if (!v->frames || !v->free_chunks) {
		return err_origin(-ENOMEM);
	}
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED) {
		return err_origin(-errno);
	}
	madvise(base, size, MADV_HUGEPAGE);
	madvise(base, size, MADV_DONTFORK);
	r = rdma_mem_new(NULL, base, size, &v->buffers);
	if (r < 0) {
		munmap(base, size);
		return err_trace(r);
	}
	for (uint32_t i = 0; i < o->frames; i++) {
		v->frames[i].data = base + (size_t)i * v->frame_stride + 32;
		list_append(&v->free_frames, &v->frames[i].link);
	}
	v->nframes_free = o->frames;
	for (uint32_t i = 0; i < o->chunks; i++) {
		v->free_chunks[v->nchunks_free++] = o->chunks - 1 - i;
	}
	return 0;
}

size_t verbs_memory(const struct verbs *v)
{
	return v->buffers->size;
}

void verbs_buffers_deinit(struct verbs *v)
{
	if (v->buffers) {
		munmap(v->buffers->base, v->buffers->size);
		v->buffers = rdma_mem_free(v->buffers);
	}
	free(v->frames);
	free(v->free_chunks);
}

/* Return: -1 when there is none for this use. */
int32_t verbs_chunk_get(struct verbs *v, bool landing)
{
	if (v->nchunks_free == 0 ||
	    (landing && v->landing >= v->options.chunks - v->options.chunks / 4)) {
		return -1;
	}
	v->landing += landing;
	return (int32_t)v->free_chunks[--v->nchunks_free];
}

void verbs_chunk_put(struct verbs *v, int32_t chunk, bool landing)
{
	assert(v->nchunks_free < v->options.chunks);
	v->landing -= landing;
	v->free_chunks[v->nchunks_free++] = (uint32_t)chunk;
}

uint8_t *verbs_chunk_data(const struct verbs *v, int32_t chunk)
{
	return v->buffers->base + v->chunks_at + (size_t)chunk * v->options.fragment;
}

/* The first region that begins behind @base. */
static uint32_t mem_after(const struct verbs *v, const void *base)
{
	uint32_t lo = 0, hi = v->nmems;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if ((uintptr_t)v->mems[mid]->base <= (uintptr_t)base) {
			lo = mid + 1;
		} else {
			hi = mid;
		}
	}
	return lo;
}

const struct rdma_mem *verbs_mem_find(const struct verbs *v, const void *base, size_t size)
{
	uint32_t at = mem_after(v, base);
	const struct rdma_mem *m;
	size_t offset;

	if (at == 0) {
		return NULL;
	}
	m = v->mems[at - 1];
	offset = (uintptr_t)base - (uintptr_t)m->base;
	return offset <= m->size && size <= m->size - offset ? m : NULL;
}

bool verbs_mem_usable(const struct verbs_peer *peer, const void *base, size_t size)
{
	const struct rdma_mem *m = verbs_mem_find(peer->v, base, size);

	for (uint32_t i = 0; i < VERBS_RAILS_MAX && m; i++) {
		const struct verbs_rail *rail = peer->rails[i];

		if (rail && !rail->dev->lost && !m->mr[rail->dev->device->index]) {
			return false;
		}
	}
	return m != NULL;
}

/**
 * verbs_mem_add() - use a registered region
 * @v:   borrowed
 * @mem: borrowed until verbs_mem_remove()
 *
 * Return: 0, -EEXIST when it overlaps another, -ENOMEM.
 */
int verbs_mem_add(struct verbs *v, const struct rdma_mem *mem)
{
	uint32_t at = mem_after(v, mem->base);

	if ((at > 0 && v->mems[at - 1]->base + v->mems[at - 1]->size > mem->base) ||
	    (at < v->nmems && mem->base + mem->size > v->mems[at]->base)) {
		return err_origin(-EEXIST);
	}
	if (v->nmems == v->mems_room) {
		uint32_t room = MAX(64, 2 * v->mems_room);
		const struct rdma_mem **grown = realloc(v->mems, room * sizeof(*grown));

		if (!grown) {
			return err_origin(-ENOMEM);
		}
		v->mems = grown;
		v->mems_room = room;
	}
	memmove(&v->mems[at + 1], &v->mems[at], (v->nmems - at) * sizeof(*v->mems));
	v->mems[at] = mem;
	v->nmems++;
	return 0;
}

void verbs_mem_remove(struct verbs *v, const struct rdma_mem *mem)
{
	uint32_t at = mem_after(v, mem->base);

	if (at == 0 || v->mems[at - 1] != mem) {
		return;
	}
	memmove(&v->mems[at - 1], &v->mems[at], (v->nmems - at) * sizeof(*v->mems));
	v->nmems--;
}
