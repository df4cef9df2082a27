/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * RDMA: devices, ports and GIDs of this host, and what each of them is good for
 *
 * All devices are in the list, also those that cannot be used; these have a reason, for
 * `rocectl paths` and for the error that says why RDMA is out. A device keeps its index as long as
 * the list lives, also after it was removed: registrations are kept by that index. One of the same
 * name that comes after it was closed takes its place.
 *
 * A GID is never taken by its index: it is found by type (RoCE v2) and by the address of this host
 * that reaches the peer. Indexes differ between hosts and change when addresses do.
 *
 * Thread: control; progress threads read devices that they were given      Owns: contexts, PDs
 * Locks: none
 */
#ifndef ROCECOMM_TOPO_RDMA_H
#define ROCECOMM_TOPO_RDMA_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config/value.h"
#include "topo/verbs_api.h"

#define RDMA_DEVICES_MAX 16
#define RDMA_PORTS_MAX 4
#define RDMA_REASON 192

struct rdma_gid {
	union ibv_gid gid;
	uint32_t index;
	uint32_t ifindex;
	char interface[IF_NAMESIZE]; /* "": unknown */
	uint16_t vlan;		     /* 0: none */
	bool v2;
	char text[INET6_ADDRSTRLEN]; /* an IPv4 address as such */
	const char *reason;	     /* static; NULL: usable */
};

struct rdma_port {
	struct rdma_device *device;
	uint8_t number;
	bool up;
	bool usable;
	bool denied;		  /* the configuration leaves it out */
	char reason[RDMA_REASON]; /* when it is not usable */
	uint32_t mtu;		  /* active, bytes; 0: unknown */
	uint32_t mbps;		  /* 0: unknown */
	struct rdma_gid *gids;	  /* [ngids] valid entries of the table */
	uint32_t ngids;
};

/* Why a device did not register memory. */
enum rdma_refusal {
	RDMA_REFUSED_MEMLOCK, /* the limit of locked memory of this process */
	RDMA_REFUSED_FULL,    /* the device takes no more regions */
	RDMA_REFUSED_KIND,    /* not this kind of memory, or not so aligned */
	RDMA_REFUSED_OTHER,
	RDMA_REFUSED_BOUND, /* not asked: max_pinned or max_regions of [rdma], or the limits above
			     */
	RDMA_REFUSED_QUOTA, /* not asked: max_pinned of a tenant */
	RDMA_REFUSAL_COUNT_
};

struct rdma_device {
	const struct verbs_api *api;
	uint32_t index; /* in rdma.devices */
	char name[IBV_SYSFS_NAME_MAX];
	char pci[32];	   /* "": not a PCI device */
	int numa;	   /* -1: unknown */
	bool software;	   /* rxe, siw: not for speed */
	_Atomic bool gone; /* was removed; progress threads look, too */
	char reason[RDMA_REASON];
	struct ibv_context *context; /* NULL: cannot be opened */
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	struct rdma_port ports[RDMA_PORTS_MAX];
	uint32_t nports;
	/* Memory that rdma_mem.c has registered now, and how often it was refused; any thread. */
	_Atomic uint32_t regions;
	_Atomic uint64_t region_bytes;
	_Atomic uint32_t receive_regions; /* beside these: receive buffers of rails */
	_Atomic uint32_t refused[RDMA_REFUSAL_COUNT_];
	_Atomic uint64_t registrations; /* so far */
	_Atomic uint64_t evictions;	/* of these, given back so that others had room */
};

/* What clients may have registered with each device at a time. */
struct rdma_bounds {
	uint64_t bytes;	  /* 0: what the limit of locked memory leaves; UINT64_MAX: all */
	uint32_t regions; /* 0: what the device takes, but for some */
	uint32_t rest_ms; /* unused so long a registration goes for one that comes again; 0: 1000 */
};

/* Memory of clients that found no room; the engine's, on the control thread. */
struct rdma_memory {
	uint64_t evictions; /* buffers whose registrations were given back for others */
	uint64_t returns;   /* of these, buffers that were registered again */
	uint64_t fallbacks; /* how often one found no room */
	uint32_t staged;    /* buffers without registration now, for want of room */
	uint64_t staged_bytes;
	char reason[RDMA_REASON + 96]; /* of the last fallback; "" */
};

struct rdma_options {
	/* Patterns of device names, PCI addresses, interfaces. Borrowed; NULL or empty: all, none.
	 */
	const struct value_list *allow, *deny;
};

struct rdma {
	const struct verbs_api *api;
	struct rdma_device *devices[RDMA_DEVICES_MAX];
	uint32_t count;
	char reason[RDMA_REASON]; /* why there are no devices at all */
	struct rdma_memory memory;
};

/* Return: 0 (also without any device), negative errno. */
int rdma_new(const struct verbs_api *api, const struct rdma_options *options, struct rdma **ret);
struct rdma *rdma_free(struct rdma *list);
/* Closes one that is gone, when nothing of it is in use any more; its index stays taken. */
void rdma_device_close(struct rdma_device *d);
/*
 * Looks again: new devices are added, missing ones are marked, ports and GIDs read afresh.
 * Return: 0, negative errno.
 */
int rdma_refresh(struct rdma *list, const struct rdma_options *options);
/* Reads ports and GIDs again, after an event. */
int rdma_device_update(struct rdma_device *d, const struct rdma_options *options);
struct rdma_port *rdma_device_port(struct rdma_device *d, uint8_t number);

/* ---- events (rdma_event.c) --------------------------------------------------------------- */

enum rdma_event_kind {
	RDMA_EVENT_OTHER, /* nothing to do */
	RDMA_EVENT_PORT_DOWN,
	RDMA_EVENT_PORT_UP,
	RDMA_EVENT_GIDS, /* addresses or routes of the port changed */
	RDMA_EVENT_QP,	 /* one queue pair is broken */
	RDMA_EVENT_FATAL,
};

struct rdma_event {
	enum rdma_event_kind kind;
	uint8_t port;
	uint32_t qpn;
	char text[64];
};

/* The descriptor that is readable when rdma_device_event() has something; -1: none. */
int rdma_device_fd(const struct rdma_device *d);
/* Takes the next event, without blocking. Return: 0, -EAGAIN, or negative errno. */
int rdma_device_event(struct rdma_device *d, struct rdma_event *ret);

/* ---- GIDs (rdma_gid.c) ------------------------------------------------------------------- */

/* @addr: AF_INET or AF_INET6 */
int rdma_gid_from_address(const struct sockaddr *addr, union ibv_gid *ret);
void rdma_gid_to_address(const union ibv_gid *gid, struct sockaddr_storage *ret);
void rdma_gid_text(const union ibv_gid *gid, char text[INET6_ADDRSTRLEN]);
/* The verdict on one entry of a table. Return: static reason, or NULL: usable. */
const char *rdma_gid_judge(const struct ibv_gid_entry *entry);
/*
 * The RoCE v2 entry of this address. Return: NULL when the port has none; @why (may be NULL) then
 * is a part of a sentence.
 */
const struct rdma_gid *rdma_port_find_gid(const struct rdma_port *port, const union ibv_gid *gid,
					  char *why, size_t size);
/*
 * Looks in the device's table. @index: where it was last seen, and where it is. Return: 0, -ENOENT,
 * negative errno.
 */
int rdma_gid_lookup(struct rdma_device *d, uint8_t port, const union ibv_gid *gid, uint32_t *index);

/* ---- pairs of rails (rdma_pair.c) -------------------------------------------------------- */

struct rdma_pair {
	struct rdma_port *port;
	const struct rdma_gid *gid;
	uint32_t remote; /* index into the peer's GIDs */
};

/*
 * Does a packet from @from (interface @ifindex) reach @to as the routing table stands? Return: 0,
 * negative errno.
 */
typedef int (*rdma_route_fn)(void *arg, uint32_t ifindex, const union ibv_gid *from,
			     const union ibv_gid *to);
/* Asks the kernel, with an unconnected UDP socket; nothing is sent. */
int rdma_route_system(void *arg, uint32_t ifindex, const union ibv_gid *from,
		      const union ibv_gid *to);
/* A GID of the peer; those of one of its ports have the same number. */
struct rdma_remote {
	union ibv_gid gid;
	uint32_t port;
};
/*
 * Pairs our ports with the peer's, each at most once, those with the longest common prefix of their
 * addresses first. One end decides, for both. @have: pairs that are there already come first in
 * @ret and keep their ports; one whose GID the peer has no more has `remote` = @nremote. Return:
 * how many there are then.
 */
uint32_t rdma_pair_rails(struct rdma *list, const struct rdma_remote *remote, uint32_t nremote,
			 rdma_route_fn route, void *arg, struct rdma_pair *ret, uint32_t have,
			 uint32_t max);

#endif
