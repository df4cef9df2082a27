/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs pair: two processes that talk over the verbs backend, on real devices
 *
 * What the daemons do over their authenticated connection happens here over a plain TCP one: GIDs,
 * pairs of rails and blobs are exchanged, then the rails are connected.
 *
 * Thread: one      Owns: its context      Locks: none
 */
#ifndef ROCECOMM_TESTS_DEVICE_PAIR_H
#define ROCECOMM_TESTS_DEVICE_PAIR_H

#include "topo/rdma.h"
#include "topo/rdma_mem.h"
#include "transport/verbs/verbs.h"

/* What the connecting end wants; told to the other. */
struct pair_plan {
	char mode[16];	/* lat, bw, check */
	uint32_t rails; /* at most */
	uint64_t size;
	uint32_t count;
	uint32_t window;  /* messages in flight */
	uint32_t land;	  /* the receiver takes it fragment by fragment */
	uint32_t plain;	  /* memory is not registered */
	uint32_t seconds; /* check: runs for so long */
	struct verbs_options options;
};

struct pair {
	struct pair_plan plan;
	bool listens;
	int tcp;
	struct rdma *devices;
	struct verbs *v;
	struct verbs_peer *peer;
	uint32_t nrails;
	struct rdma_mem *mem;
	uint8_t *memory;
	size_t memory_size;
	bool down;
	uint32_t barriers; /* that the other end has reached, less ours */
	uint32_t downs;	   /* rails that went down */
	char reason[VERBS_REASON];
	void *run; /* of the mode */
};

/* Each exits with a message when it fails. */
void pair_meet(struct pair *p, const char *address, const char *port);
void pair_open(struct pair *p, const struct verbs_handler *handler);
void pair_close(struct pair *p);
/* Polls, and sleeps when there was nothing. */
void pair_turn(struct pair *p);
/* Both ends are here. */
void pair_barrier(struct pair *p);
/* For the handler: over the TCP connection. */
bool pair_control(void *arg, struct verbs_peer *peer, const void *data, size_t size);
void pair_die(const char *fmt, ...) attr_printf(1, 2) __attribute__((noreturn));

#endif
