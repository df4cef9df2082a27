/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers fixture: daemons' ends of links in one loop, and what tests of them share
 *
 * Thread: the test's      Owns: struct side's sockets until side_close()      Locks: none
 */
#ifndef ROCECOMM_TEST_PEERS_FIXTURE_H
#define ROCECOMM_TEST_PEERS_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "job/peers.h"

#define STREAMS 3
#define MAX_FDS 16

/* One daemon. */
struct side {
	struct peers *peers;
	struct peer *peer; /* that the last call or event named */
	int ups, downs, messages, merges, closed;
	enum status status;
	char reason[1024];
	char body[64];
	int fd[MAX_FDS];
	unsigned int nfds;
	uint64_t data_until; /* ms of the loop: data comes from the peer until then */
};

extern uv_loop_t loop;
extern const struct peers_events events;
extern const char *const v4[1], *const v6[1];
extern const uint8_t id_a[PEER_HOST_ID], id_b[PEER_HOST_ID]; /* 0xa1..., 0xb2... */

/* For .init and .fini of a suite. */
void fixture_setup(void);
void fixture_teardown(void);

/* Options of a side; tests change what they are about. */
struct peers_options options(uint8_t id, const char *name);
void side_open(struct side *s, const struct peers_options *o);
void side_close(struct side *s);

/* Runs the loop until *what reaches @value, or for @ms. */
bool run_until(const int *what, int value, unsigned int ms);
void run_for(unsigned int ms);

/* Asks @from for a link to @to at these addresses. @id: NULL: unknown */
void dial(struct side *from, struct side *to, const uint8_t *id, const char *const *texts,
	  size_t n);
/* Opens both and links them, alpha (0xa1) to beta (0xb2). */
void link_up(struct side *a, struct side *b, const char *const *texts, const uint8_t *id);
void send_text(struct side *s, const char *text);
/* Every stream of one side is wired to the stream of the same index of the other. */
void check_streams(struct side *a, struct side *b);

/* Makes a key file of one digit. @path: mkstemp template */
void write_key(char *path, char digit);
/* A listener that never answers stands for an address that swallows packets. */
int silent_listener(const char *text, uint16_t port);

#endif
