/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Rails: RDMA between this host and its peers, as the control thread sees it
 *
 * Watches the RDMA devices, tells every peer the GIDs that it may use, agrees with it on pairs of
 * ports (one end, that with the smaller host_id, proposes them), and has the engine make the queue
 * pairs and try them. What came of it is kept for each pair, with the reason for what is not used.
 *
 * All messages between hosts are independent, so data takes a rail from the moment at which it is
 * up, and the data connections (TCP) again when the last one is lost, if that is allowed.
 *
 * A host without RDMA devices has no more of this than the list that says so.
 *
 * Thread: control      Owns: devices, what is known of rails      Locks: none
 * See: PROTOCOL.md §8b
 */
#ifndef ROCECOMM_JOB_RAILS_H
#define ROCECOMM_JOB_RAILS_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "job/peers.h"
#include "topo/rdma.h"
#include "transport/verbs/verbs.h"

struct jobs;
struct hostlink;
struct rails;

#define RAILS_NAME 64
#define RAILS_WAIT_MS 2000

enum rails_mode {
	RAILS_AUTO, /* RDMA where it works, else TCP */
	RAILS_RDMA, /* RDMA or an error: transport = rdma, or require = rdma */
	RAILS_TCP,  /* no device is looked at */
};

/* What the configuration says. Borrowed for rails_new(), but for `devices` and `api`. */
struct rails_options {
	enum rails_mode mode;
	/* Patterns allowed and denied; borrowed for the life of the rails. */
	struct rdma_options devices;
	/* Traffic class, hop limit, retries, time-outs, queue pairs; zeros: defaults. */
	struct verbs_options verbs;
	struct rdma_bounds bounds; /* of clients' memory, a device */
	uint32_t wait_ms;	   /* that a new communicator waits for trials; 0: RAILS_WAIT_MS */
	const struct verbs_api *api; /* NULL: the system's */
};

/* One way to one peer, used or not. A peer has one row for TCP and one for each pair of ports. */
struct rails_path {
	uint8_t host_id[PEER_HOST_ID];
	char peer[RAILS_NAME];
	bool tcp;    /* the data connections; of what is below only chosen, reason, address, and
		      * the bytes of live */
	bool chosen; /* new messages go this way now */
	/* A sentence: why it is used, or why it is not. Never empty. */
	char reason[VERBS_REASON];
	char address[RAILS_NAME]; /* TCP: "10.1.0.2:7470 via eth0" */

	int rail; /* number in the pair of hosts; -1: this port of ours has none there */
	char device[IBV_SYSFS_NAME_MAX]; /* ours; "": none at all, see reason */
	uint8_t port;
	char interface[IF_NAMESIZE];
	char gid[INET6_ADDRSTRLEN]; /* an IPv4 address as such; "": none */
	uint32_t mbps;		    /* of our port; 0: unknown */
	char remote_device[IBV_SYSFS_NAME_MAX];
	uint8_t remote_port;
	char remote_gid[INET6_ADDRSTRLEN];
	/*
	 * What the transport says. Without a rail what is known of the ports all the same:
	 * gid_index, local_mtu, remote_mtu.
	 */
	struct verbs_rail_info live;
};

typedef void (*rails_paths_fn)(void *arg, const struct rails_path *paths, size_t n);

/*
 * Looks for devices and hands them to the engine. @jobs: borrowed; has an engine. Return: 0, also
 * without any device; negative errno.
 */
int rails_new(const struct rails_options *options, struct jobs *jobs, struct rails **ret);
/* Looks again: after a change of the configuration. */
void rails_refresh(struct rails *rails);
/* The engine has stopped. @closed: nothing of it is in the loop any more. */
void rails_close(struct rails *rails, void (*closed)(void *arg), void *arg);
/* After engine_free(), for the devices are closed here. NULL allowed. Return: NULL. */
struct rails *rails_free(struct rails *rails);
/*
 * The devices of this host, each with what speaks against it; for `rocectl links`. NULL: with
 * transport = tcp nobody looks.
 */
const struct rdma *rails_devices(const struct rails *rails);
enum rails_mode rails_get_mode(const struct rails *rails);
/*
 * Collects all paths to the peers that are linked now; @done is called once, from the loop or at
 * once, unless the daemon stops before. @peer: of that name, host_id or address only; NULL: all.
 * Return: 0, -ENOMEM.
 */
int rails_paths(struct rails *rails, const char *peer, rails_paths_fn done, void *arg);

/* ---- for this layer; @rails may be NULL ---------------------------------------------------- */

/* The link is up: ports are exchanged. Return: 0, -ENOMEM. */
int rails_link_up(struct rails *rails, struct hostlink *l);
/* The peer goes; what hangs on the link is freed by rails_link_gone(). */
void rails_link_down(struct hostlink *l);
/* The engine has given the peer back. */
void rails_link_gone(struct hostlink *l);
/* Is it known what carries data on this link, or has it been waited for long enough? */
bool rails_link_settled(const struct hostlink *l);
/* Is there a rail in use? @why: if not, a sentence about it; NULL allowed. */
bool rails_link_uses(const struct hostlink *l, char *why, size_t size);
/* "rocea0 port 1, 10.47.0.1 to 10.47.0.2": the rails in use. */
void rails_link_text(const struct hostlink *l, char *buf, size_t size);
/* May data go by TCP? */
bool rails_tcp_allowed(const struct rails *rails);
/* Time-outs of links that are not settled. */
void rails_tick(struct rails *rails, uint64_t now);
/* An event of the engine. */
void rails_event(struct hostlink *l, uint32_t rail, enum verbs_rail_state state, const char *text);

/* Messages; see jobs.c. */
bool rails_on_ports(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);
bool rails_on_plan(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);
bool rails_on_open(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);
bool rails_on_opened(struct jobs *jobs, struct hostlink *l, ProtobufCMessage *msg);

#endif
