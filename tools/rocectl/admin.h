/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Admin: rocectl's connection to the daemon
 *
 * A session without ring and buffers (ClientHello.admin). It never starts a daemon: somebody who
 * asks what runs must not change it. Failures are printed here, in the daemon's or the library's
 * words, and come back as exit codes.
 *
 * Thread: main      Owns: the connection      Locks: none
 */
#ifndef ROCECTL_ADMIN_H
#define ROCECTL_ADMIN_H

#include <stdbool.h>

#include "rocecomm.pb-c.h"
#include "tools/rocectl/rocectl.h"

struct admin;

/**
 * admin_new() - connect and say hello
 * @ret:  to be freed with admin_free()
 *
 * Return: ROCECTL_OK, ROCECTL_NO_DAEMON or ROCECTL_FAILED (printed).
 */
int admin_new(const struct rocectl *ctl, struct admin **ret);
struct admin *admin_free(struct admin *admin);

/* Where it is connected to, and what the daemon said of itself. */
const char *admin_path(const struct admin *admin);
const Rocecomm__Welcome *admin_welcome(const struct admin *admin);

/*
 * The status of all jobs, or of the caller's own where the daemon does not allow more (*ret_own is
 * then true). *ret_json is to be freed. Return: as admin_new().
 */
int admin_status(struct admin *admin, char **ret_json, bool *ret_own);
/* RDMA devices; ways to other hosts, or to @peer ("": all). As admin_status(). */
int admin_links(struct admin *admin, char **ret_json);
int admin_paths(struct admin *admin, const char *peer, char **ret_json);
/* Tests the ways to a host for so long (0: as the daemon likes). *ret_unknown: it is not linked,
 * and no numeric address; not printed then. As admin_status().
 */
int admin_check(struct admin *admin, const char *peer, unsigned int ms, char **ret_json,
		bool *ret_unknown);
/* The configuration; to be freed with rocecomm__config_reply__free_unpacked(). */
int admin_config(struct admin *admin, Rocecomm__ConfigReply **ret);

#endif
