/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer wire: the messages that keep a link, checked and as plain values
 *
 * Another host has the cluster key, but may still be of another version, damaged or taken over:
 * every length is checked here, and text is made fit for a log before anybody sees it.
 *
 * Thread: any      Owns: nothing but struct peer_hello      Locks: none      See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_PEER_WIRE_H
#define ROCECOMM_JOB_PEER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "job/datahello.h"
#include "job/peers.h"
#include "peer.pb-c.h"
#include "proto/limits.h"

#define PEER_REASON 512

enum { PEER_WIRE_E_INVALID = 1 };

/* A LinkHello. */
struct peer_hello {
	uint8_t host_id[PEER_HOST_ID]; /* never all zero */
	char name[LIMIT_NAME];	       /* never empty */
	char version[32];
	Rocecomm__Peer__LinkHello *msg; /* owned; the settings are read from it */
};

struct peer_tokens {
	unsigned int n;
	uint8_t token[PEER_MAX_STREAMS][DATA_HELLO_TOKEN];
};

/* Return: 0, PEER_WIRE_E_INVALID. */
int peer_hello_parse(const uint8_t *body, size_t size, struct peer_hello *ret);
void peer_hello_deinit(struct peer_hello *hello);
/*
 * Compares settings with ours; both hosts must have the same keys and values.
 * @buf: a clause that names every difference. Return: true if there is one.
 */
bool peer_hello_differs(const struct peer_hello *hello, const struct peers_setting *ours, size_t n,
			char *buf, size_t size);
/* Return: 0, PEER_WIRE_E_INVALID. */
int peer_tokens_parse(const uint8_t *body, size_t size, struct peer_tokens *ret);
/* @reason: PEER_REASON bytes; never empty. Return: 0, PEER_WIRE_E_INVALID. */
int peer_goodbye_parse(const uint8_t *body, size_t size, char *reason);

bool peer_id_is_zero(const uint8_t *host_id);
/* Copies text of another host: cut to size, control characters replaced. */
void peer_text_copy(char *dst, size_t size, const char *src);

#endif
