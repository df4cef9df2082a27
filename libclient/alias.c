/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Alias: implementation
 *
 * Pages are always prepared elsewhere and then moved into place by mremap(): for other threads
 * that is one step, and it fails, for want of memory or mappings, before anything has changed.
 *
 * Thread: any      Owns: see alias.h      Locks: none
 */
#include "libclient/alias.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libclient/error.h"
#include "libclient/roceclient.h"
#include "libclient/shmem.h"
#include "proto/base.h"

/* One line of /proc/self/maps. */
struct map {
	uintptr_t begin;
	uintptr_t end;
	char rights[5];
	unsigned long inode;
	bool stack;
};

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

size_t alias_head(const void *ptr)
{
	return (uintptr_t)ptr % page_size();
}

size_t alias_span(const void *ptr, size_t size)
{
	return ALIGN_UP(alias_head(ptr) + size, page_size());
}

static bool map_parse(const char *line, struct map *ret)
{
	int path = 0;

	if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %lu %n", &ret->begin, &ret->end,
		   ret->rights, &ret->inode, &path) != 4) {
		return false;
	}
	ret->stack = path > 0 && strncmp(line + path, "[stack", 6) == 0;
	return true;
}

/* Is [begin, end) private, anonymous memory that can be written? Return: 0 or a status. */
static int maps_check(uintptr_t begin, uintptr_t end)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t at = begin;
	char *line = NULL;
	size_t room = 0;
	struct map map;

	if (!maps) {
		return error_set(ROCE_ERR_UNSUPPORTED, "/proc/self/maps cannot be read: %s",
				 strerror(errno));
	}
	while (at < end && getline(&line, &room, maps) > 0) {
		if (!map_parse(line, &map) || map.end <= at) {
			continue;
		}
		if (map.begin > at || strcmp(map.rights, "rw-p") != 0 || map.inode != 0 ||
		    map.stack) {
			break;
		}
		at = map.end;
	}
	free(line);
	fclose(maps);
	return at >= end ? 0
			 : error_set(ROCE_ERR_UNSUPPORTED,
				     "the memory at 0x%" PRIxPTR " is not private, anonymous and "
				     "writable: a file's or another's pages are not replaced",
				     at);
}

static int alias_failed(size_t size, const char *call)
{
	return error_set(ROCE_ERR_NO_MEMORY, "cannot map %zu bytes: %s: %s (see vm.max_map_count)",
			 size, call, strerror(errno));
}

int alias_init(struct alias *alias, struct shmem *shm, uint8_t *ptr, size_t size)
{
	size_t page = page_size();
	uintptr_t begin = ALIGN_UP((uintptr_t)ptr, page);
	uintptr_t end = ((uintptr_t)ptr + size) / page * page;
	size_t n = end > begin ? end - begin : 0;
	off_t off = (off_t)(begin - (uintptr_t)ptr / page * page);
	void *pages;
	int r;

	if (n == 0) {
		return error_set(ROCE_ERR_UNSUPPORTED, "%zu bytes from %p hold no whole page", size,
				 (void *)ptr);
	}
	r = maps_check(begin, end);
	if (r != 0) {
		return r;
	}
	memcpy(shm->base + off, (void *)begin, n);
	pages = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, shm->fd, off);
	if (pages == MAP_FAILED) {
		return alias_failed(n, "mmap");
	}
	/* First on the list: a child that another thread forks must find no shared page. */
	alias->range = (struct fork_range){
		.base = (void *)begin, .size = n, .fd = &shm->fd, .off = (uint64_t)off};
	fork_range_add(&alias->range);
	if (mremap(pages, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)begin) == MAP_FAILED) {
		r = alias_failed(n, "mremap");
		fork_range_remove(&alias->range);
		alias->range.base = NULL;
		munmap(pages, n);
		return r;
	}
	return 0;
}

void alias_deinit(struct alias *alias, bool keep)
{
	struct fork_range *range = &alias->range;
	void *pages;

	if (!range->base) {
		return;
	}
	/* If there is no room, the memfd's pages stay: memory like any other, but for fork(). */
	pages = mmap(NULL, range->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages != MAP_FAILED) {
		if (keep) {
			memcpy(pages, range->base, range->size);
		}
		if (mremap(pages, range->size, range->size, MREMAP_MAYMOVE | MREMAP_FIXED,
			   range->base) == MAP_FAILED) {
			munmap(pages, range->size);
		}
	}
	fork_range_remove(range);
	range->base = NULL;
}
