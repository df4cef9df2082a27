/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unique id: the meeting place of the ranks of a new communicator
 *
 * 256 bytes that a client carries to the other ranks without looking inside: which daemon collects
 * the ranks and where it is reached, and a name that is random. Ranks that meet by their
 * environment derive the name from what they all know instead.
 *
 *      0        4     5     6        8             24
 *      +--------+-----+-----+--------+-------------+---------------------- - -
 *      | "RCID" | ver | 0   | length | uid         | peer.proto Host, zeros
 *      +--------+-----+-----+--------+-------------+---------------------- - -
 *      4 bytes  u8    u8    u16 LE   16 bytes      `length` bytes
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §6b
 */
#ifndef ROCECOMM_JOB_UNIQUEID_H
#define ROCECOMM_JOB_UNIQUEID_H

#include <stddef.h>
#include <stdint.h>

#include "peer.pb-c.h"
#include "proto/limits.h"

#define UID_SIZE 16

enum {
	UNIQUEID_E_FOREIGN = 1, /* not one of ours, or damaged */
	UNIQUEID_E_VERSION = 2, /* of a newer version */
};

/*
 * Addresses that do not fit are left out, the least preferred first.
 * Return: 0, -ENOMEM, -EMSGSIZE (the name alone does not fit: never with LIMIT_NAME).
 */
int uniqueid_encode(const uint8_t uid[UID_SIZE], const Rocecomm__Peer__Host *host,
		    uint8_t ret[LIMIT_UNIQUE_ID]);
/* @ret_host: to be freed with rocecomm__peer__host__free_unpacked(). */
int uniqueid_decode(const uint8_t *id, size_t size, uint8_t ret_uid[UID_SIZE],
		    Rocecomm__Peer__Host **ret_host);

/* Return: 0 or negative errno. */
int uid_random(uint8_t ret[UID_SIZE]);
/* The first bytes of SHA-256 of @data. Return: 0, -ENOMEM. */
int uid_derive(const void *data, size_t size, uint8_t ret[UID_SIZE]);

#endif
