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
	uint32_t wait_ms; /* that a new communicator waits for trials; 0: RAILS_WAIT_MS */
	const struct verbs_api *api; /* NULL: the system's */
};

/* One way to one peer, used or not. A peer has one row for TCP and one for each pair of ports. */
struct rails_path {
	uint8_t host_id[PEER_HOST_ID];
	char peer[RAILS_NAME];
	bool tcp;    /* the data connections; of the fields below only address, chosen, reason */
	bool chosen; /* new messages go this way now */
	/* A sentence: why it is used, or why it is not. Never empty. */
	char reason[VERBS_REASON];
	char address[RAILS_NAME]; /* TCP: "10.1.0.2:7470 via eth0" */

	int rail; /* number in the pair of hosts; -1: this port of ours has none there */
	enum verbs_rail_state state;
	char device[IBV_SYSFS_NAME_MAX]; /* ours; "": none at all, see reason */
	uint8_t port;
	char interface[IF_NAMESIZE];
	char gid[INET6_ADDRSTRLEN]; /* an IPv4 address as such; "": none */
	uint32_t gid_index;
	uint32_t mbps; /* of our port; 0: unknown */
	char remote_device[IBV_SYSFS_NAME_MAX];
	uint8_t remote_port;
	char remote_gid[INET6_ADDRSTRLEN];
	uint32_t mtu, local_mtu, remote_mtu; /* bytes: agreed, and of each end; 0: not known */
	uint8_t traffic_class, remote_traffic_class;
	uint32_t nqps;
	uint16_t udp_ports[VERBS_QPS_MAX]; /* source ports, where the device derives them so */
	uint64_t bytes_sent, bytes_received;
	uint64_t work_requests, completions;
	uint64_t bytes_per_second; /* that it delivered lately; 0: unknown */
	uint32_t failures;	   /* how often it was left */
	char error[VERBS_REASON];  /* why it was left last; "" */
};

typedef void (*rails_paths_fn)(void *arg, const struct rails_path *paths, size_t n);

/* Looks for devices. Return: 0, also without any; negative errno. */
int rails_new(const struct rails_options *options, struct jobs *jobs, struct rails **ret);
/*
 * The devices of this host, each with what speaks against it; for `rocectl links`. NULL: with
 * transport = tcp nobody looks.
 */
const struct rdma *rails_devices(const struct rails *rails);
enum rails_mode rails_get_mode(const struct rails *rails);
/*
 * Collects all paths to the peers that are linked now; @done is called once, from the loop or at
 * once, unless the daemon stops before. @peer: of that name, host_id or address only; NULL: all.
 */
int rails_paths(struct rails *rails, const char *peer, rails_paths_fn done, void *arg);

#endif
