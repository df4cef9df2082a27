/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Unique id: implementation
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "job/uniqueid.h"

#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#include "proto/base.h"

#define UNIQUEID_MAGIC "RCID"
#define UNIQUEID_VERSION 1
#define UNIQUEID_HOST (8 + UID_SIZE)
#define UNIQUEID_ROOM (LIMIT_UNIQUE_ID - UNIQUEID_HOST)

/* See uniqueid.h. */
int uniqueid_encode(const uint8_t uid[UID_SIZE], const Rocecomm__Peer__Host *host,
		    uint8_t ret[LIMIT_UNIQUE_ID])
{
	Rocecomm__Peer__Host h = *host;
	size_t length;

	while (rocecomm__peer__host__get_packed_size(&h) > UNIQUEID_ROOM) {
		if (h.n_addresses == 0) {
			return err_origin(-EMSGSIZE);
		}
		h.n_addresses--;
	}
	length = rocecomm__peer__host__get_packed_size(&h);
	memset(ret, 0, LIMIT_UNIQUE_ID);
	memcpy(ret, UNIQUEID_MAGIC, 4);
	ret[4] = UNIQUEID_VERSION;
	ret[6] = (uint8_t)length;
	ret[7] = (uint8_t)(length >> 8);
	memcpy(ret + 8, uid, UID_SIZE);
	rocecomm__peer__host__pack(&h, ret + UNIQUEID_HOST);
	return 0;
}

/* See uniqueid.h. */
int uniqueid_decode(const uint8_t *id, size_t size, uint8_t ret_uid[UID_SIZE],
		    Rocecomm__Peer__Host **ret_host)
{
	Rocecomm__Peer__Host *host;
	size_t length;

	if (size != LIMIT_UNIQUE_ID || memcmp(id, UNIQUEID_MAGIC, 4) != 0) {
		return UNIQUEID_E_FOREIGN;
	}
	if (id[4] != UNIQUEID_VERSION) {
		return UNIQUEID_E_VERSION;
	}
	length = id[6] | (size_t)id[7] << 8;
	if (length > UNIQUEID_ROOM) {
		return UNIQUEID_E_FOREIGN;
	}
	host = rocecomm__peer__host__unpack(NULL, length, id + UNIQUEID_HOST);
	if (!host) {
		return UNIQUEID_E_FOREIGN;
	}
	if (host->host_id.len != UID_SIZE || host->port > UINT16_MAX) {
		rocecomm__peer__host__free_unpacked(host, NULL);
		return UNIQUEID_E_FOREIGN;
	}
	memcpy(ret_uid, id + 8, UID_SIZE);
	*ret_host = host;
	return 0;
}

int uid_random(uint8_t ret[UID_SIZE])
{
	/* Up to 256 bytes come whole and are not interrupted. */
	if (getrandom(ret, UID_SIZE, 0) != UID_SIZE) {
		return err_origin(-errno);
	}
	return 0;
}

int uid_derive(const void *data, size_t size, uint8_t ret[UID_SIZE])
{
	uint8_t digest[EVP_MAX_MD_SIZE];

	if (EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL) != 1) {
		return err_origin(-ENOMEM);
	}
	memcpy(ret, digest, UID_SIZE);
	return 0;
}
