/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Import: implementation
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#include "mem/import.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "proto/base.h"

attr_printf(4, 5) static int refuse(enum status status, char *err, size_t size, const char *fmt,
				    ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err, size, fmt, ap);
	va_end(ap);
	return (int)status;
}

/* Whatever is no memfd has no seals: F_GET_SEALS fails with EINVAL. */
static int check_seals(int fd, char *err, size_t err_size)
{
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0) {
		return refuse(STATUS_BAD_MEMORY, err, err_size,
			      "the buffer's file is not a memfd (no seals: %s); make it with "
			      "memfd_create(..., MFD_ALLOW_SEALING)",
			      strerror(errno));
	}
	if (!(seals & F_SEAL_SHRINK)) {
		return refuse(
			STATUS_BAD_MEMORY, err, err_size,
			"the buffer's memfd is not sealed against shrinking (seals 0x%x); add "
			"F_SEAL_SHRINK with fcntl(fd, F_ADD_SEALS, ...) before registering it",
			(unsigned int)seals);
	}
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
		return refuse(
			STATUS_BAD_MEMORY, err, err_size,
			"the buffer's memfd is sealed against writing (seals 0x%x); leave out "
			"F_SEAL_WRITE and F_SEAL_FUTURE_WRITE",
			(unsigned int)seals);
	}
	return 0;
}

static int check(int fd, uint64_t size, char *err, size_t err_size)
{
	struct statfs fs;
	struct stat st;
	int flags, r;

	if (size == 0 || size > INT64_MAX) {
		return refuse(STATUS_INVALID, err, err_size,
			      "a buffer of %" PRIu64 " bytes cannot be registered; 1 to %" PRId64
			      " are possible",
			      size, INT64_MAX);
	}
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0) {
		return refuse(STATUS_BAD_MEMORY, err, err_size,
			      "the buffer's file cannot be examined: %s", strerror(errno));
	}
	if (!S_ISREG(st.st_mode)) {
		return refuse(
			STATUS_BAD_MEMORY, err, err_size,
			"the buffer's descriptor is not a memfd (file type 0%o); make it with "
			"memfd_create(..., MFD_ALLOW_SEALING)",
			st.st_mode & S_IFMT);
	}
	if ((uint64_t)fs.f_type == HUGETLBFS_MAGIC) {
		return refuse(STATUS_BAD_MEMORY, err, err_size,
			      "the buffer is on hugetlbfs, where pages may be missing later; use a "
			      "plain memfd and madvise(MADV_HUGEPAGE)");
	}
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || (flags & O_ACCMODE) != O_RDWR || (flags & O_PATH)) {
		return refuse(STATUS_BAD_MEMORY, err, err_size,
			      "the buffer's memfd is not open for reading and writing; pass the "
			      "descriptor that memfd_create() gave");
	}
	/* After sealing the size can only grow, so the seals come first. */
	r = check_seals(fd, err, err_size);
	if (r != 0) {
		return r;
	}
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < size) {
		return refuse(STATUS_BAD_MEMORY, err, err_size,
			      "the buffer's memfd has %" PRId64 " bytes, %" PRIu64
			      " were to be registered; ftruncate() it first",
			      (int64_t)st.st_size, size);
	}
	return 0;
}

/* See import.h. */
int import_memfd(int fd, uint64_t size, struct quota_charge *charge, struct region **ret, char *err,
		 size_t err_size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t mapped;
	void *base;
	int r;

	r = check(fd, size, err, err_size);
	if (r != 0) {
		return r;
	}
	mapped = ALIGN_UP((size_t)size, page);
	base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		return refuse(errno == ENOMEM ? STATUS_NO_MEMORY : STATUS_BAD_MEMORY, err, err_size,
			      "the daemon cannot map the buffer of %" PRIu64 " bytes: %s%s", size,
			      strerror(errno),
			      errno == ENOMEM ? " (vm.max_map_count or address space)" : "");
	}
	/* A core file of the daemon is no place for tenants' data. */
	madvise(base, mapped, MADV_DONTDUMP);
	r = region_new(base, mapped, size, charge, ret);
	if (r < 0) {
		munmap(base, mapped);
		return err_trace(r);
	}
	return 0;
}
