/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * PCI lab: implementation
 *
 * Thread: the test's      Owns: see pci_lab.h      Locks: none
 */
#include "tests/unit/topo/pci_lab.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPACE 4096

static void make_dirs(const char *path)
{
	char text[512];

	snprintf(text, sizeof(text), "%s", path);
	for (char *at = strchr(text + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		mkdir(text, 0755);
		*at = '/';
	}
	mkdir(text, 0755);
}

static void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	cr_assert(f, "%s", path);
	fputs(text, f);
	fclose(f);
}

void pci_lab_init(struct pci_lab *lab)
{
	char path[128];

	memset(lab, 0, sizeof(*lab));
	snprintf(lab->dir, sizeof(lab->dir), "/tmp/rocecomm-pci-XXXXXX");
	cr_assert(mkdtemp(lab->dir));
	snprintf(lab->sys, sizeof(lab->sys), "%s/sys", lab->dir);
	snprintf(lab->proc, sizeof(lab->proc), "%s/proc", lab->dir);
	snprintf(path, sizeof(path), "%s/bus/pci/devices", lab->sys);
	make_dirs(path);
	make_dirs(lab->proc);
	lab->tree = (struct pci_tree){lab->sys, lab->proc, pread};
	pci_lab_proc(lab, "cpuinfo", "processor\t: 0\nflags\t\t: fpu vme sse2\n");
	pci_lab_proc(lab, "cmdline", "BOOT_IMAGE=/vmlinuz quiet\n");
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void pci_lab_deinit(struct pci_lab *lab)
{
	nftw(lab->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void pci_lab_proc(struct pci_lab *lab, const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", lab->proc, name);
	put(path, text);
}

static void config_path(const struct pci_lab *lab, const char *address, char *buf, size_t size)
{
	snprintf(buf, size, "%s/bus/pci/devices/%s/config", lab->sys, address);
}

void pci_lab_device(struct pci_lab *lab, const char *path, const char *iommu)
{
	char dir[384], to[400], link[512];
	const char *address = strrchr(path, '/') + 1;

	snprintf(dir, sizeof(dir), "%s/devices/%s", lab->sys, path);
	make_dirs(dir);
	snprintf(link, sizeof(link), "%s/bus/pci/devices/%s", lab->sys, address);
	snprintf(to, sizeof(to), "../../../devices/%s", path);
	cr_assert_eq(symlink(to, link), 0);
	config_path(lab, address, link, sizeof(link));
	put(link, "");
	cr_assert_eq(truncate(link, SPACE), 0);
	if (iommu) {
		snprintf(to, sizeof(to), "%s/iommu_group", dir);
		make_dirs(to);
		snprintf(link, sizeof(link), "%s/type", to);
		snprintf(to, sizeof(to), "%s\n", iommu);
		put(link, to);
	}
}

void pci_lab_word(struct pci_lab *lab, const char *address, uint32_t at, uint32_t word)
{
	uint8_t b[4] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16),
			(uint8_t)(word >> 24)};
	char path[256];
	int fd;

	config_path(lab, address, path, sizeof(path));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pwrite(fd, b, sizeof(b), at), (ssize_t)sizeof(b));
	close(fd);
}

/* Advanced error reporting stands before ACS, as it does in real ones. */
void pci_lab_bridge(struct pci_lab *lab, const char *path, int acs)
{
	const char *address = strrchr(path, '/') + 1;

	pci_lab_device(lab, path, NULL);
	pci_lab_word(lab, address, 0x100, 0x0001 | 1u << 16 | (acs < 0 ? 0 : 0x148u << 20));
	if (acs >= 0) {
		pci_lab_word(lab, address, 0x148, 0x000d | 1u << 16);
		pci_lab_word(lab, address, 0x14c, 0x005f | (uint32_t)acs << 16);
	}
}

void pci_lab_cut(struct pci_lab *lab, const char *address, uint32_t size)
{
	char path[256];

	config_path(lab, address, path, sizeof(path));
	cr_assert_eq(truncate(path, size), 0);
}

/* What the kernel does then: nothing beyond the first 64 bytes. */
static ssize_t read_head(int fd, void *buf, size_t size, off_t at)
{
	return at >= 64 ? 0 : pread(fd, buf, size, at);
}

void pci_lab_unprivileged(struct pci_lab *lab)
{
	lab->tree.pread = read_head;
}
