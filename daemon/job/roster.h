/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Roster: which ranks and hosts a communicator has, as CommPrepare says it, and who talks to whom
 *
 * On few hosts the root sends CommPrepare to each of them, and all hosts are linked with each
 * other. From ROSTER_MESH_HOSTS on neither would do: the message goes down a tree of hosts, and a
 * host is linked with its *near* hosts only: those that the plans of collectives pass data to
 * (distances of powers of two, the partners of halving and doubling) and its neighbours in the
 * tree. Their number grows with the logarithm of the hosts.
 *
 *	tree: the position of a host is (host - first) mod hosts; the children of position p are
 *	p * fanout + 1 ... p * fanout + fanout
 *
 * Thread: any      Owns: see struct roster      Locks: none      See: PROTOCOL.md §6b
 */
#ifndef ROCECOMM_JOB_ROSTER_H
#define ROCECOMM_JOB_ROSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "peer.pb-c.h"
#include "util/hashmap.h"

#define ROSTER_MESH_HOSTS 512 /* so many are all linked with each other, more are not */
#define ROSTER_FANOUT 16
#define ROSTER_FANOUT_MAX 64
/* Both distances and the partner of each power of two, the fold, the tree. */
#define ROSTER_NEAR_MAX (3 * 14 + 1 + ROSTER_FANOUT_MAX + 1)

/* A roster that is being made. All but name, uids and time-outs of @plan. */
struct roster {
	Rocecomm__Peer__CommPrepare plan; /* its arrays are ours, hosts and names are borrowed */
	struct hashmap clients;		  /* index + 1 by hash of the name */
};

/* Arrays for so many. Return: 0, -ENOMEM; deinit in both cases. */
int roster_init(struct roster *r, uint32_t nranks, uint32_t nhosts);
void roster_deinit(struct roster *r);
/* Return: its index. */
uint32_t roster_add_host(struct roster *r, Rocecomm__Peer__Host *host);
/* The next rank. @client: borrowed for the roster's life */
void roster_add_rank(struct roster *r, uint32_t host, uint32_t pid, const char *client);

/* Is it complete, and is @host_id in it once? Return: NULL, or what is wrong with it. */
const char *roster_check(const Rocecomm__Peer__CommPrepare *plan, const uint8_t *host_id);
const char *roster_client(const Rocecomm__Peer__CommPrepare *plan, uint32_t rank);
/* The number that a rank waits under: that in the parent for a split. */
uint32_t roster_waiting_rank(const Rocecomm__Peer__CommPrepare *plan, uint32_t rank);
/* Return: LIMIT_COMM_HOSTS when it has none of this id. */
uint32_t roster_find(const Rocecomm__Peer__CommPrepare *plan, const uint8_t *host_id);

/* To be freed with rocecomm__peer__host__free_unpacked(). Return: NULL: no memory. */
Rocecomm__Peer__Host *roster_host_copy(const Rocecomm__Peer__Host *host);

/* Not all hosts are linked with each other. */
static inline bool roster_sparse(const Rocecomm__Peer__CommPrepare *plan)
{
	return plan->fanout > 0;
}

/* The host above in the tree; LIMIT_COMM_HOSTS for that at the top. */
uint32_t roster_parent(const Rocecomm__Peer__CommPrepare *plan, uint32_t host);
/* Those below. @list: ROSTER_FANOUT_MAX. Return: how many. */
uint32_t roster_children(const Rocecomm__Peer__CommPrepare *plan, uint32_t host, uint32_t *list);
/* Near hosts of a sparse roster, each once. @list: ROSTER_NEAR_MAX. Return: how many. */
uint32_t roster_near(const Rocecomm__Peer__CommPrepare *plan, uint32_t host, uint32_t *list);

#endif
