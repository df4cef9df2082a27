/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz membership: a peer daemon that says anything
 *
 * Three hosts form a communicator, one rank splits, another waits to join; then host 1 sends host 0
 * what the input says: messages of 1 byte type, 1 byte length, body. In a body sixteen letters U
 * stand for the uid of the communicator, J for that of a rendezvous, S for that of the split.
 * Whatever happens, all ranks of host 0 can leave and nothing is left.
 *
 * Thread: one      Owns: the fake network      Locks: none
 */
#include <string.h>

#include "job/split.h"
#include "proto/base.h"
#include "tests/fake/fake_net.h"
#include "tests/fuzz/fuzz.h"

static void replace(uint8_t *body, size_t size, char letter, const uint8_t uid[UID_SIZE])
{
	uint8_t mark[UID_SIZE];
	uint8_t *at;

	memset(mark, letter, sizeof(mark));
	while ((at = memmem(body, size, mark, sizeof(mark))) != NULL) {
		memcpy(at, uid, UID_SIZE);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct fake_rank ranks[6];
	struct fake_net *net = fake_net_new(3, 1);
	uint8_t uid[UID_SIZE], joined[UID_SIZE], split[UID_SIZE];

	memset(ranks, 0, sizeof(ranks));
	for (uint32_t i = 0; i < 3; i++) {
		fake_join_env(net, &ranks[i], i, 0, "fuzz", i, 3);
	}
	fake_run(net);
	fuzz_check(ranks[0].state == FAKE_READY);
	memcpy(uid, ranks[0].m.comm->uid, UID_SIZE);
	fuzz_check(split_uid(uid, 0, split) == 0 && uid_derive("next", 4, joined) == 0);
	fake_split(net, &ranks[3], &ranks[0], 0, 0);
	fake_join_env(net, &ranks[4], 0, 0, "next", 0, 2);
	fake_run(net);
	while (size >= 2) {
		uint8_t body[256];
		size_t n = MIN((size_t)data[1], size - 2);

		memcpy(body, data + 2, n);
		replace(body, n, 'U', uid);
		replace(body, n, 'J', joined);
		replace(body, n, 'S', split);
		fake_inject(net, 0, 1, data[0], body, n);
		fake_run(net);
		data += 2 + n;
		size -= 2 + n;
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(ranks); i++) {
		fake_leave(&ranks[i], i % 2 ? "its process ended" : NULL);
	}
	fake_run(net);
	for (unsigned int i = 0; i < ARRAY_SIZE(ranks); i++) {
		fuzz_check(ranks[i].state != FAKE_LEAVING && ranks[i].state != FAKE_JOINING);
	}
	fake_net_free(net);
	return 0;
}
