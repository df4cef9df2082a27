/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of mem/: what is taken from clients, and what is not
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem/import.h"
#include "mem/registry.h"

static int make_memfd(off_t size, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, size), 0);
	if (seals) {
		cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	}
	return fd;
}

/* Consumes @fd. */
static void refuse(int fd, uint64_t size, int status, const char *expected)
{
	struct quota_charge charge = {0};
	struct region *region;
	char err[512] = "";

	cr_assert_eq(import_memfd(fd, size, &charge, &region, err, sizeof(err)), status);
	cr_assert(strstr(err, expected), "%s not in %s", expected, err);
	close(fd);
}

Test(import, maps_and_gives_everything_back)
{
	int fd = make_memfd(10000, F_SEAL_SHRINK);
	struct quota_charge charge = {0};
	struct region *region;
	struct quota quota;
	char err[512];
	uint8_t byte = 0;

	quota_init(&quota, "max_bytes", 1 << 20);
	cr_assert_eq(quota_charge(&quota, 9000, &charge), 0);
	cr_assert_eq(import_memfd(fd, 9000, &charge, &region, err, sizeof(err)), 0);
	cr_assert_null(charge.quota);
	cr_assert_eq(region->size, 9000);
	region->base[8999] = 42;
	cr_assert_eq(pread(fd, &byte, 1, 8999), 1);
	cr_assert_eq(byte, 42);
	region_ref(region);
	cr_assert_null(region_unref(region));
	cr_assert_eq(quota_used(&quota), 9000);
	region_unref(region);
	region_unref(NULL);
	cr_assert_eq(quota_used(&quota), 0);
	close(fd);
}

Test(import, refusals)
{
	int fds[2];

	refuse(make_memfd(4096, 0), 4096, STATUS_BAD_MEMORY, "add F_SEAL_SHRINK");
	refuse(make_memfd(4096, F_SEAL_GROW), 4096, STATUS_BAD_MEMORY, "add F_SEAL_SHRINK");
	refuse(make_memfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE), 1, STATUS_BAD_MEMORY,
	       "sealed against writing");
	refuse(make_memfd(4096, F_SEAL_SHRINK), 4097, STATUS_BAD_MEMORY,
	       "has 4096 bytes, 4097 were");
	refuse(make_memfd(4096, F_SEAL_SHRINK), 0, STATUS_INVALID, "0 bytes");
	refuse(make_memfd(4096, F_SEAL_SHRINK), UINT64_MAX, STATUS_INVALID, "1 to");
	refuse(open("/dev/zero", O_RDWR), 4096, STATUS_BAD_MEMORY, "is not a memfd");
	refuse(open("/tmp", O_RDONLY), 4096, STATUS_BAD_MEMORY, "is not a memfd");
	cr_assert_eq(pipe(fds), 0);
	close(fds[1]);
	refuse(fds[0], 4096, STATUS_BAD_MEMORY, "is not a memfd");
}

Test(import, plain_file_and_read_only)
{
	char path[] = "/var/tmp/test_import_XXXXXX", self[64];
	int fd = mkstemp(path), memfd = make_memfd(4096, F_SEAL_SHRINK);

	cr_assert_geq(fd, 0);
	unlink(path);
	cr_assert_eq(ftruncate(fd, 4096), 0);
	refuse(fd, 4096, STATUS_BAD_MEMORY, "sea");
	snprintf(self, sizeof(self), "/proc/self/fd/%d", memfd);
	refuse(open(self, O_RDONLY), 4096, STATUS_BAD_MEMORY, "not open for reading and writing");
	close(memfd);
}

Test(import, hugetlb)
{
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

	if (fd < 0) {
		cr_skip_test("no hugetlb here");
	}
	refuse(fd, 4096, STATUS_BAD_MEMORY, "hugetlbfs");
}

static struct region *make_region(uint64_t size)
{
	struct quota_charge charge = {0};
	struct region *region;
	int fd = make_memfd((off_t)size, F_SEAL_SHRINK);
	char err[512];

	cr_assert_eq(import_memfd(fd, size, &charge, &region, err, sizeof(err)), 0);
	close(fd);
	return region;
}

Test(registry, bounds_cannot_overflow)
{
	struct registry r;
	uint8_t *at;
	uint32_t id;

	registry_init(&r, 3);
	cr_assert_eq(registry_add(&r, make_region(5000), &id), 0);
	cr_assert_eq(id, 1);
	cr_assert_eq(registry_resolve(&r, 1, 0, 5000, &at), 0);
	cr_assert_eq(at, registry_get(&r, 1)->base);
	cr_assert_eq(registry_resolve(&r, 1, 5000, 0, &at), 0);
	cr_assert_eq(registry_resolve(&r, 1, 5001, 0, &at), REGISTRY_E_BOUNDS);
	cr_assert_eq(registry_resolve(&r, 1, 1, 5000, &at), REGISTRY_E_BOUNDS);
	cr_assert_eq(registry_resolve(&r, 1, UINT64_MAX, 2, &at), REGISTRY_E_BOUNDS);
	cr_assert_eq(registry_resolve(&r, 1, 2, UINT64_MAX, &at), REGISTRY_E_BOUNDS);
	cr_assert_eq(registry_resolve(&r, 0, 0, 0, &at), REGISTRY_E_NOT_FOUND);
	cr_assert_eq(registry_resolve(&r, 2, 0, 0, &at), REGISTRY_E_NOT_FOUND);
	cr_assert_eq(registry_resolve(&r, UINT32_MAX, 0, 0, &at), REGISTRY_E_NOT_FOUND);
	registry_deinit(&r);
}

Test(registry, full_then_reused)
{
	struct region *region = make_region(100);
	struct registry r;
	uint32_t id;

	registry_init(&r, 20);
	for (uint32_t i = 1; i <= 20; i++) {
		cr_assert_eq(registry_add(&r, region_ref(region), &id), 0);
		cr_assert_eq(id, i);
	}
	cr_assert_eq(registry_add(&r, region, &id), REGISTRY_E_FULL);
	cr_assert_eq(r.bytes, 2000);
	region_unref(registry_take(&r, 7));
	cr_assert_null(registry_take(&r, 7));
	cr_assert_eq(registry_count(&r), 19);
	cr_assert_eq(registry_add(&r, region, &id), 0);
	cr_assert_eq(id, 7);
	registry_deinit(&r);
}
