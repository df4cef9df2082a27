/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Link facts: what sysfs tells of RDMA devices and ports beyond what verbs do
 *
 * For people only: nothing is decided by it. Counters have other names with every driver; a row
 * here says what a name means. Which of them a port has is found by reading: a counter that is not
 * there is not 0.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TOPO_LINK_FACTS_H
#define ROCECOMM_TOPO_LINK_FACTS_H

#include <stddef.h>
#include <stdint.h>

#include "topo/rdma.h"

/* What a counter says about the network. */
enum link_counter_kind {
	LINK_OUT_OF_SEQUENCE, /* packets that came in the wrong order: loss on the way here */
	LINK_RETRANSMITS,     /* packets that were sent again, or came twice */
	LINK_TIMEOUTS,	      /* no acknowledgement in time */
	LINK_NOT_READY,	      /* the receiver had no buffer */
	LINK_CNP_SENT,	      /* congestion notifications, because marked packets came */
	LINK_CNP_HANDLED,     /* ... that made this port slow down */
	LINK_ECN_MARKED,      /* packets that a switch has marked */
	LINK_PAUSED,	      /* time or frames for which the port was told to wait */
	LINK_DISCARDS,
	LINK_ERRORS, /* given up, or broken packets */
	LINK_DOWN,   /* how often the link went down */
	LINK_KIND_COUNT_,
};

struct link_counter_row {
	const char *name; /* of the file */
	enum link_counter_kind kind;
	bool hw; /* below hw_counters, else counters */
};

struct link_device {
	char driver[32];    /* "" : unknown */
	char firmware[48];  /* "" : unknown */
	char pci_path[160]; /* from the root bridge to the device; "": not a PCI device */
};

/* In the kernel's words; "" where it says nothing. */
struct link_port {
	char state[24];
	char physical[24];
	char layer[24];
	char rate[48];
};

extern const struct link_counter_row link_counter_rows[];
extern const size_t link_counter_nrows;

/* "out_of_sequence": the key in JSON. */
const char *link_counter_kind_name(enum link_counter_kind kind);
void link_device_read(const struct rdma_device *d, struct link_device *ret);
void link_port_read(const struct rdma_port *port, struct link_port *ret);
/* Return: 0, -ENOENT when the port has no such counter, negative errno. */
int link_counter_read(const struct rdma_port *port, const struct link_counter_row *row,
		      uint64_t *ret);
/* MTU of a network interface in bytes; 0: unknown. */
uint32_t link_interface_mtu(const struct rdma_device *d, const char *interface);

#endif
