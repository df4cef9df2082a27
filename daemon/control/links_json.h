/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/* clang-format off: a table */
/*
 * Links and paths as JSON: what rocectl links and rocectl paths show
 *
 * links:
 *  host, transport, require   name; as configured
 *  reason         why there are no devices at all; null
 *  devices[]      name, used (some port is usable), reason (null), removed, software, driver,
 *                 firmware, pci, pci_path, numa (null: unknown)
 *   ports[]       number, usable, reason (null), state, physical, link_layer, rate, mbps, mtu
 *    gids[]       index, gid, type (v2, other), interface, interface_mtu, vlan (null), usable,
 *                 reason (null)
 *    counters     {name: value}: those that the driver has, under its names
 *    network      out_of_sequence, retransmits, timeouts, receiver_not_ready, cnp_sent,
 *                 cnp_handled, ecn_marked, paused, discards, errors, link_downed: sums of the
 *                 counters that say so; null where the driver has none
 *   memory        regions, bytes (registered now), regions_max, refused {cause: times}: memlock,
 *                 full, kind, other, bound, quota
 *   registrations made, evicted: so far
 *  memory         of clients, with all devices: evictions, returns (registered again), fallbacks
 *                 (found no room), staged, staged_bytes (without room now), reason (null)
 * paths:
 *  host, transport, require
 *  reason         why no device of this host can be used; null
 *  gpus[]         uuid, name, path (staged), reason
 *   devices[]     device, registers (dma-buf, peermem; null: does not), reason, stalled (the trial
 *                 did not end), warning (null: none), unseen (what cannot be known; null)
 *    pci          null, or iommu (type of the device's group; none: in no group; null: unknown),
 *                 virtual_machine, bridges[]: address, acs (bits that are set; null: unknown)
 *   peers[]       of other GPUs: uuid, path (direct, staged), reason, direct_mbytes_per_second,
 *                 host_mbytes_per_second (0: not measured)
 *  peers[]        host, host_id, transport (what new messages take now: rdma, tcp; null: nothing)
 *   paths[]       kind (rdma, tcp), chosen, state, reason, and of tcp: address; of rdma: rail
 * (null: none), device, port, interface, gid, gid_index, mbps, remote_device, remote_port,
 *                 remote_gid, mtu, local_mtu, remote_mtu, traffic_class, remote_traffic_class, qps,
 *                 udp_ports, bytes_sent, bytes_received, work_requests, completions,
 *                 bytes_per_second, failures, error (null)
 * check:
 *  host, transport, require, peer, linked, address, connect_ms, error (null)
 *  ok             everything that should work does
 *  verdict        in words
 *  findings[]     what (tcp, rdma, mtu, dscp, latency, bandwidth), ok, text
 *  paths[]        as above
 *  latency, bandwidth   null, or bytes, messages, elapsed_us, min_ns, median_ns, p99_ns; of
 * bandwidth also bytes_per_second
 *
 * Members are appended, never renamed. What is not known is null, not 0.
 *
 * Thread: control      Owns: nothing      Locks: none      See: rocectl(1)
 */
/* clang-format on */
#ifndef ROCECOMM_CONTROL_LINKS_JSON_H
#define ROCECOMM_CONTROL_LINKS_JSON_H

#include <stddef.h>

#include "control/gpu_paths.h"
#include "control/json.h"
#include "config/config.h"
#include "job/check.h"
#include "job/rails.h"
#include "topo/rdma.h"

/* @devices: NULL: nobody looks. Return: 0 and the text (to be freed), -ENOMEM. */
int links_json(const char *host, const struct config *config, const struct rdma *devices,
	       char **ret);
/*
 * @paths: those of one peer stand together. @devices: as above. @gpu, @gpu_paths: NULL: no GPU
 * memory is taken.
 */
int paths_json(const char *host, const struct config *config, const struct rdma *devices,
	       const struct rails_path *paths, size_t n, const struct gpu *gpu,
	       const struct gpu_paths *gpu_paths, char **ret);
int check_json(const char *host, const struct config *config, const struct rdma *devices,
	       const struct check_result *result, char **ret);

/* ---- for this layer ----------------------------------------------------------------------- */

void links_json_head(struct json *j, const char *host, const struct config *config);
/* Why no device of this host can be used; NULL: some can. */
const char *links_json_no_device(const struct rdma *devices);
void links_json_path(struct json *j, const struct rails_path *path);

#endif
