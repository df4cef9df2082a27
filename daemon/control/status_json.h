/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/* clang-format off: a table */
/*
 * Status as JSON: all that rocectl shows
 *
 *  daemon         version, protocol, host, host_id, pid, uptime_ms, port, addresses, sessions,
 *                 buffers, buffer_bytes, all (does this reader see everybody's jobs?)
 *  tenants[]      name, sessions, bytes (each used, limit or null), max_buffers, max_comms,
 *                 pinned (of bytes, those that RDMA devices have)
 *  clients[]      session, name, pid, uid, tenant, library, buffers, bytes, communicators,
 *                 gpu_allocations, gpu_bytes, connected_ms, bytes_staged (copied by the library
 *                 to and from plain memory)
 *  jobs[]         name, communicators[], and counters: sums of the communicators' that exist
 *   name, uid, size, state (forming, ready, failed), status, error, age_ms, path
 *   hosts[]       name, state (self, up, lost), ranks
 *   ranks[]       rank, host, pid, client, local, gone, posted, idle_ms (null: not known);
 *                 ranks_left_out
 *   operation     null, or seq and, where it is known here, kind, dtype, op, count, root,
 *                 algorithm
 *   waiting_ms    how long the operation waits; 0
 *   waiting_for[] rank, host, pid, posted, idle_ms, reason (null; why nothing is known);
 *                 waiting_for_left_out
 *   ops, bytes_sent, bytes_received, bytes_copied, bytes_local, bytes_reduced, bytes_wire_sent,
 *   bytes_wire_received, syscalls, wakeups: see telemetry/counters.def
 *  joining[]      rank, pid, client, root: ranks that wait for others to join
 *  peers[]        host, address, state (connecting, up, broken)
 *  interfaces[]   name, address, usable, reason (null when usable)
 *  thread         the daemon's totals, also of what is gone: loops, wakeups, syscalls, yields,
 *                 client_wakeups, bytes_copied, bytes_local, bytes_reduced, bytes_wire_sent,
 *                 bytes_wire_received
 *  reduce_threads[] loops, wakeups, syscalls, yields, bytes_local, bytes_reduced: each one's part
 *                 of the bytes in thread, calls of its own
 *  gpus[]         those in use: uuid, name, bus, numa_node (or null), path (staged), allocations,
 *                 bytes (of clients), staging_limit, staging_used, staging_peak, staging_pinned,
 *                 bytes_from_gpu, bytes_to_gpu, copies, copies_failed, copies_waiting, error (null;
 *                 why its context is spoilt)
 *  gpu_reason     null; why memory of GPUs was refused first
 *
 * Members are appended, never renamed. Numbers that this daemon does not know are null, not 0.
 *
 * Thread: control      Owns: nothing      Locks: none      See: rocectl(1)
 */
/* clang-format on */
#ifndef ROCECOMM_CONTROL_STATUS_JSON_H
#define ROCECOMM_CONTROL_STATUS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/session.h"
#include "job/comm.h"
#include "job/survey.h"

/* What the hosts of one communicator have answered. */
struct status_survey {
	uint8_t uid[UID_SIZE];
	uint32_t nranks;
	struct survey_rank *ranks;
};

/* May this reader see it? */
bool status_sees(const struct session *s, bool all, const struct communicator *c);
/* @surveys: borrowed. Return: 0 and the text (to be freed), -ENOMEM. */
int status_json(const struct session *s, bool all, const struct status_survey *surveys,
		size_t nsurveys, char **ret);

#endif
