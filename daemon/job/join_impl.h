/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Join, inside: what a rank has asked for (member_join.c), and how it gets there (join.c)
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_JOB_JOIN_IMPL_H
#define ROCECOMM_JOB_JOIN_IMPL_H

#include "job/join.h"
#include "peer.pb-c.h"

enum ask_kind { ASK_JOIN, ASK_SPLIT };

/* What a rank asks of the root on another host. */
struct member_ask {
	enum ask_kind kind;
	bool sent;		       /* the root may have it */
	bool taken;		       /* the root has it, and the visit is over */
	Rocecomm__Peer__Host *host;    /* the root, for a visit ... */
	uint64_t due;		       /* ... that begins then, ms */
	uint8_t root_id[PEER_HOST_ID]; /* when taken */
	uint32_t size, join_timeout_ms, arrival_timeout_ms, transfer_timeout_ms;
	bool env;
	char name[LIMIT_NAME];
	int32_t color, key; /* of a split */
	uint64_t number;
};

/*
 * The way to the root; m->ask is there. @visit: on a link that ends with the asking. Return:
 * STATUS_OK, or why not, with @text.
 */
enum status join_connect(struct member *m, const Rocecomm__Peer__Host *host, bool visit, char *text,
			 size_t text_size);

#endif
