/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * PCI lab: a made-up /sys and /proc with PCI devices, bridges and their configuration spaces
 *
 * Thread: the test's      Owns: a folder below /tmp      Locks: none
 */
#ifndef ROCECOMM_TESTS_PCI_LAB_H
#define ROCECOMM_TESTS_PCI_LAB_H

#include "topo/pci_route.h"

struct pci_lab {
	char dir[64], sys[80], proc[80];
	struct pci_tree tree;
};

void pci_lab_init(struct pci_lab *lab);
void pci_lab_deinit(struct pci_lab *lab);
/* @path: from the root: "pci0000:00/0000:00:01.0/0000:3b:00.0". @iommu: type; NULL: no group. */
void pci_lab_device(struct pci_lab *lab, const char *path, const char *iommu);
/* @acs: the control register; -1: no such capability. */
void pci_lab_bridge(struct pci_lab *lab, const char *path, int acs);
/* Writes a word of a bridge's configuration space. */
void pci_lab_word(struct pci_lab *lab, const char *address, uint32_t at, uint32_t word);
/* A configuration space of no more than @size bytes. */
void pci_lab_cut(struct pci_lab *lab, const char *address, uint32_t size);
/* From now on without CAP_SYS_ADMIN. */
void pci_lab_unprivileged(struct pci_lab *lab);
/* "cmdline", "cpuinfo" */
void pci_lab_proc(struct pci_lab *lab, const char *name, const char *text);

#endif
