/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * PCI route: what lies between two PCI devices that are to reach each other straight
 *
 * Bridges whose access control services (ACS) send requests of one device to another up to the root
 * complex, and an IOMMU that translates what the network device asks for, make a transfer crawl or
 * hang. Neither shows when memory is registered. This looks and says it; nothing is decided by it,
 * and nothing is guessed: what this process may not read, or a virtual machine does not show, is
 * said to be unknown.
 *
 * Thread: any; files of sysfs are read      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TOPO_PCI_ROUTE_H
#define ROCECOMM_TOPO_PCI_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PCI_ADDRESS 24
#define PCI_BRIDGES_MAX 24
#define PCI_ROUTE_TEXT 1280 /* has room for what is said of one */

/* Where to look; a test has its own. */
struct pci_tree {
	const char *sys;
	const char *proc;
	ssize_t (*pread)(int fd, void *buf, size_t size, off_t at); /* of configuration spaces */
};

extern const struct pci_tree pci_tree_system;

/* Bits of the control register, as the PCI Express specification has them. */
enum pci_acs {
	PCI_ACS_SOURCE_VALIDATION = 0x01,
	PCI_ACS_REQUEST_REDIRECT = 0x04,
	PCI_ACS_COMPLETION_REDIRECT = 0x08,
	PCI_ACS_UPSTREAM_FORWARDING = 0x10,
};

enum pci_acs_state {
	PCI_ACS_ABSENT,	  /* the bridge has no such capability */
	PCI_ACS_READ,	  /* see control */
	PCI_ACS_REFUSED,  /* beyond the first bytes only CAP_SYS_ADMIN may read */
	PCI_ACS_NO_SPACE, /* the kernel reaches no extended configuration space here */
};

struct pci_bridge {
	char address[PCI_ADDRESS];
	enum pci_acs_state state;
	uint16_t control;
};

enum pci_iommu {
	PCI_IOMMU_NONE,	      /* the device is in no group: no IOMMU is in its way */
	PCI_IOMMU_IDENTITY,   /* passed through */
	PCI_IOMMU_TRANSLATED, /* DMA, DMA-FQ */
	PCI_IOMMU_UNKNOWN,
};

struct pci_route {
	bool found; /* both are in sysfs; else the rest is void */
	bool vm;
	uint32_t nbridges; /* below what both have in common, of the first device before those of
			      the other */
	struct pci_bridge bridges[PCI_BRIDGES_MAX];
	enum pci_iommu iommu; /* of the network device: it is the one that reads and writes */
	char iommu_type[16];  /* in the kernel's words; "": none */
	char parameters[96];  /* of the kernel's command line, that concern it */
};

/* @nic, @gpu: PCI addresses, in any case. */
void pci_route_read(const struct pci_tree *tree, const char *nic, const char *gpu,
		    struct pci_route *ret);
/* Is transfer between the two affected? Then a text with the mend; else "". */
bool pci_route_warning(const struct pci_route *route, char *text, size_t size);
/* What cannot be seen from here; else "". Return: false: all is known. */
bool pci_route_unseen(const struct pci_route *route, char *text, size_t size);
/* The bits that are set, as lspci names them: "SrcValid ReqRedir"; "": none. */
void pci_acs_text(uint16_t control, char *text, size_t size);

#endif
