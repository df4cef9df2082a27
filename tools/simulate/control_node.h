/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Nodes of the control simulation: hosts that run the real code, and hosts by script
 *
 * A real node is a struct jobs with everything below it, whose peers, engine and timers are stood
 * in for: messages are packed and unpacked as in the daemon. Ten thousand of them would need tens
 * of gigabytes, so of large clusters the root, one host in the middle of the tree and one leaf are
 * real, and the others answer as the protocol says, by a script.
 *
 * Thread: main      Owns: nodes      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_CONTROL_NODE_H
#define ROCECOMM_SIMULATE_CONTROL_NODE_H

#include "config/config.h"
#include "proto/limits.h"
#include "tools/simulate/control_net.h"

/* What all nodes share. */
struct control {
	struct net *net;
	const struct config *config;
	uint32_t hosts, ranks; /* ranks of each host */
	uint32_t fanout;       /* of the tree; 0: none */
	double skew_ms;	       /* ranks of the hosts begin within so long */
	uint8_t id[LIMIT_UNIQUE_ID];
	uint8_t joined[16];
	uint64_t ready;		      /* ranks that are */
	uint64_t ready_at;	      /* ps: the last of them */
	uint32_t listed;	      /* ranks of other hosts that the root knows */
	uint64_t listed_at;	      /* ps: all of them */
	char error[LIMIT_ERROR_TEXT]; /* why it failed; "": it did not */
};

struct real_node;

/* Hosts [0, hosts) become nodes; ids and names follow from their index. */
int real_node_new(struct control *c, uint32_t host, struct real_node **ret);
struct real_node *real_node_free(struct real_node *node);
/* The root's. Before anybody starts. */
int real_node_unique_id(struct real_node *node, uint8_t ret[LIMIT_UNIQUE_ID]);
/* Bytes that it holds, and the most that it held while it worked; 0: not known here. */
size_t real_node_memory(const struct real_node *node, size_t *ret_most);
/* Most bytes allocated by it are noted, which takes time. */
void real_node_watch(struct real_node *node);

int script_node_new(struct control *c, uint32_t host);
void script_node_free(struct net_host *host);

/* A rank of the host may compute from now on. */
void control_ready(struct control *c, uint32_t ranks);
/* CPU of telling that to its processes, which get the list of hosts. */
void control_tell(struct control *c, struct net_host *host);

/* 16 bytes. */
void control_host_id(uint32_t host, uint8_t *ret);
void control_host_name(uint32_t host, char *buf, size_t size);
uint32_t control_host_of_id(const uint8_t *id);
/* How long its visit to the root waits for its turn, ps: as join_delay_ms() has it. */
uint64_t control_visit_delay(const struct control *c, uint32_t host);
/* When its ranks begin, ps. */
uint64_t control_begins(const struct control *c, uint32_t host);

#endif
