/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fixture of the TCP tests: an end is a context with one peer, a message carries its own check
 *
 * Payload bytes depend on the message and on their place, so that a misplaced byte shows. The
 * receiving end chooses by itself, message by message, whether it takes the bytes in pieces of
 * memory, through the fragment callback, or not at all.
 *
 * Thread: one an end      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_TESTS_TRANSPORT_TCP_FIXTURE_H
#define ROCECOMM_TESTS_TRANSPORT_TCP_FIXTURE_H

#include "transport/transport.h"

enum mode { MODE_IOV, MODE_FRAGMENT, MODE_DISCARD, MODE_MIXED };
enum callback { CALL_NONE, CALL_BEGIN, CALL_FRAGMENT, CALL_DONE, CALL_SENT, CALL_DOWN };

struct message {
	struct transport_send send;
	struct transport_recv recv;
	uint64_t length;
	uint8_t *out, *in;
	struct iovec *out_iov, *in_iov;
	uint32_t pieces;
	int sent, received, status;
};

struct end {
	struct transport *t;
	struct transport_peer *peer;
	struct message *incoming; /* by header.seq */
	uint32_t incoming_count;
	enum mode mode;
	enum callback free_in; /* frees the peer in this callback */
	bool verify;
	unsigned int begun, done, down, sent;
	int down_error;
	char reason[64];
};

extern const struct transport_handler test_handler;

uint64_t test_random(uint64_t *state);
void message_init(struct message *m, uint32_t id, uint64_t length, uint32_t pieces,
		  struct end *from);
void messages_free(struct message *m, uint32_t n);
void end_init(struct end *e, uint32_t fragment, enum mode mode);
void end_join(struct end *a, struct end *b, unsigned int streams, bool tcp);
int end_join_raw(struct end *e);
/* Are I/O threads under test, too (LAB_IO_THREADS)? */
bool end_lanes(void);
/*
 * Polls until all is said: a few times, or with I/O threads until the peer is down or nothing has
 * moved for 50 ms; with @down until it is down.
 */
void end_settle(struct end *e, bool down);
/* Polls until @counter, one of @e, has reached @value, for a long time: is it exactly @value? */
bool end_until(struct end *e, const unsigned int *counter, unsigned int value);
void end_fini(struct end *e);
struct message *end_expect(struct end *e, uint32_t n, uint64_t length);
uint8_t test_pattern(uint32_t message, uint64_t offset);

#endif
