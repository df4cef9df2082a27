/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of unique ids
 *
 * Thread: main      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "job/uniqueid.h"
#include "proto/base.h"

static char addresses_text[40][48];
static char *addresses[40];
static uint8_t host_id[UID_SIZE] = {1, 2, 3};

static Rocecomm__Peer__Host host_with(size_t n)
{
	static char name[] = "gpu-node-0001";
	Rocecomm__Peer__Host host = ROCECOMM__PEER__HOST__INIT;

	for (size_t i = 0; i < n; i++) {
		snprintf(addresses_text[i], sizeof(addresses_text[i]),
			 "2001:db8:1234:5678:9abc:def0:1234:%04zx", i);
		addresses[i] = addresses_text[i];
	}
	host.host_id.data = host_id;
	host.host_id.len = UID_SIZE;
	host.name = name;
	host.addresses = addresses;
	host.n_addresses = n;
	host.port = 4870;
	return host;
}

Test(uniqueid, round_trip)
{
	Rocecomm__Peer__Host host = host_with(2), *back;
	uint8_t uid[UID_SIZE], got[UID_SIZE], id[LIMIT_UNIQUE_ID];

	cr_assert_eq(uid_random(uid), 0);
	cr_assert_eq(uniqueid_encode(uid, &host, id), 0);
	cr_assert_eq(uniqueid_decode(id, sizeof(id), got, &back), 0);
	cr_assert_eq(memcmp(uid, got, UID_SIZE), 0);
	cr_assert_str_eq(back->name, "gpu-node-0001");
	cr_assert_eq(back->n_addresses, 2);
	cr_assert_str_eq(back->addresses[1], addresses_text[1]);
	cr_assert_eq(back->port, 4870);
	rocecomm__peer__host__free_unpacked(back, NULL);
}

Test(uniqueid, leaves_out_what_does_not_fit)
{
	Rocecomm__Peer__Host host = host_with(40), *back;
	uint8_t uid[UID_SIZE] = {7}, got[UID_SIZE], id[LIMIT_UNIQUE_ID];

	cr_assert_eq(uniqueid_encode(uid, &host, id), 0);
	cr_assert_eq(host.n_addresses, 40, "the caller's is untouched");
	cr_assert_eq(uniqueid_decode(id, sizeof(id), got, &back), 0);
	cr_assert(back->n_addresses >= 3 && back->n_addresses < 40);
	cr_assert_str_eq(back->addresses[0], addresses_text[0], "the preferred ones stay");
	rocecomm__peer__host__free_unpacked(back, NULL);
}

Test(uniqueid, refuses)
{
	Rocecomm__Peer__Host host = host_with(1), *back;
	uint8_t uid[UID_SIZE] = {7}, got[UID_SIZE], id[LIMIT_UNIQUE_ID];

	cr_assert_eq(uniqueid_encode(uid, &host, id), 0);
	cr_assert_eq(uniqueid_decode(id, 255, got, &back), UNIQUEID_E_FOREIGN);
	id[4] = 2;
	cr_assert_eq(uniqueid_decode(id, sizeof(id), got, &back), UNIQUEID_E_VERSION);
	id[4] = 1;
	id[7] = 1;
	cr_assert_eq(uniqueid_decode(id, sizeof(id), got, &back), UNIQUEID_E_FOREIGN);
}

/* Whatever is in it, decoding ends well. */
Test(uniqueid, noise)
{
	Rocecomm__Peer__Host host = host_with(2);
	uint8_t uid[UID_SIZE] = {7}, got[UID_SIZE], id[LIMIT_UNIQUE_ID], bad[LIMIT_UNIQUE_ID];
	uint32_t random = 1;

	cr_assert_eq(uniqueid_encode(uid, &host, id), 0);
	for (int round = 0; round < 20000; round++) {
		Rocecomm__Peer__Host *back = NULL;

		memcpy(bad, id, sizeof(bad));
		for (int i = 0; i < 3; i++) {
			random = random * 1664525 + 1013904223;
			bad[(random >> 8) % sizeof(bad)] = (uint8_t)(random >> 20);
		}
		if (uniqueid_decode(bad, sizeof(bad), got, &back) == 0) {
			cr_assert_eq(back->host_id.len, UID_SIZE);
			rocecomm__peer__host__free_unpacked(back, NULL);
		}
	}
}

Test(uniqueid, derived_names)
{
	uint8_t a[UID_SIZE], b[UID_SIZE], c[UID_SIZE];

	cr_assert_eq(uid_derive("job:0", 5, a), 0);
	cr_assert_eq(uid_derive("job:0", 5, b), 0);
	cr_assert_eq(uid_derive("job:1", 5, c), 0);
	cr_assert_eq(memcmp(a, b, UID_SIZE), 0);
	cr_assert_neq(memcmp(a, c, UID_SIZE), 0);
}
