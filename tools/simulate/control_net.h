/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Control network: the links between daemons on virtual time
 *
 * A host has one control thread, which does one thing after the other, and one NIC. What it does
 * costs time by the model; what it sends leaves when it has come to that point. A connection is
 * made by the messages and handshakes of PROTOCOL.md §7, each of which costs its side time; a host
 * accepts as many at a time as the daemon does, the kernel keeps a backlog of others, and who finds
 * that full tries again after 1 s, 2 s, 4 s, as TCP does.
 *
 * What a host does is behind struct node_ops: the real code (control_real.c) or a script
 * (control_script.c).
 *
 * Thread: main      Owns: hosts, connections, messages on their way      Locks: none
 */
#ifndef ROCECOMM_SIMULATE_CONTROL_NET_H
#define ROCECOMM_SIMULATE_CONTROL_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/simulate/queue.h"
#include "util/hashmap.h"
#include "util/list.h"

/* Times in microseconds of CPU, but where it says otherwise. */
struct net_model {
	double latency_us; /* one way */
	double gbit;
	double recv_us, recv_byte_ns; /* of a message: system calls, TLS, unpacking */
	double send_us, send_byte_ns;
	double handshake_us; /* of TLS, on either side */
	double client_us;    /* a request of a local rank, or the answer to it */
	uint32_t incoming;   /* connections of unknown origin at a time */
	uint32_t backlog;
	double connect_timeout_ms;
};

struct net;
struct net_conn;
struct net_host;

/* A message's body, shared by all that it goes to. */
struct net_body {
	uint32_t refs;
	uint32_t size;
	uint8_t data[];
};

struct node_ops {
	void (*up)(struct net_host *host, struct net_conn *conn);
	/* Neither of these: it could not be made. */
	void (*failed)(struct net_host *host, struct net_conn *conn);
	void (*message)(struct net_host *host, struct net_conn *conn, uint16_t type,
			struct net_body *body);
	void (*closed)(struct net_host *host, struct net_conn *conn);
	/* Something of its own: see net_do(). */
	void (*act)(struct net_host *host, uint32_t what, uint32_t arg);
};

/* Something that waits for the host's thread. */
struct net_item;

struct net_host {
	struct net *net;
	const struct node_ops *ops;
	void *node; /* of ops */
	uint32_t index;
	struct list items;
	bool running;	       /* a turn is in the queue */
	uint64_t busy;	       /* ps, until when its thread is */
	uint64_t tx, rx;       /* likewise its NIC */
	struct list accepting; /* struct net_conn.link */
	uint32_t naccepting, nincoming;
	uint32_t links, most_links; /* made, visits included */
	uint32_t data_links;	    /* with data connections */
	uint64_t sent, received;    /* bytes */
	uint64_t nsent, nreceived;  /* messages */
	uint64_t work;		    /* ps of CPU */
};

struct net_conn {
	struct list link;
	struct net_host *end[2]; /* [0] has begun it */
	bool visit;
	uint8_t stage;
	uint8_t tries;
	bool up[2], closed[2];
	uint64_t begun; /* ps */
	void *user[2];
	struct list waiting[2]; /* items to send when up */
};

struct net {
	struct net_model model;
	struct queue queue;
	uint64_t now; /* ps; moves on while a host works */
	struct net_host *hosts;
	uint32_t nhosts;
	struct hashmap pairs; /* connections that are no visits */
	struct list conns;
	struct net_item **items; /* by the index in an event */
	uint32_t nitems;
	uint32_t *spare, nspare;
	uint64_t refused; /* connections that found the backlog full */
	uint64_t failed;
};

int net_new(const struct net_model *model, uint32_t hosts, struct net **ret);
struct net *net_free(struct net *net);
/* Until nothing is left to happen, or @end (ps). */
void net_run(struct net *net, uint64_t end);

/* Of the host that works: it takes so long. */
void net_work(struct net_host *host, double us);
/* ops->act() at that time (ps), when its thread is free. */
void net_do(struct net_host *host, uint64_t at, uint32_t what, uint32_t arg);

/* The connection to a host, or the beginning of one; a visit is always another. */
struct net_conn *net_connect(struct net_host *from, struct net_host *to, bool visit);
/* Which end is this? */
unsigned int net_side(const struct net_conn *conn, const struct net_host *host);
void net_send(struct net_host *from, struct net_conn *conn, uint16_t type, struct net_body *body);
void net_close(struct net_host *host, struct net_conn *conn);

/* @ret: refs 1 */
struct net_body *net_body_new(uint32_t size);
struct net_body *net_body_unref(struct net_body *body);

static inline double net_seconds(uint64_t ps)
{
	return (double)ps * 1e-12;
}

#endif
