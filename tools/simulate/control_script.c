/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Scripted nodes: hosts that answer as PROTOCOL.md §6b says, without the memory of a daemon
 *
 * Their messages are packed by the same code and have the same sizes; only CommPrepare is not
 * unpacked but passed on as it came, its cost being in the model. They know what a real host would
 * read in it: who is near, who is above and below.
 *
 * Thread: main      Owns: struct script      Locks: none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/roster.h"
#include "peer.pb-c.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "tools/simulate/control_node.h"

#define ENGINE_US 30
#define UID 16

enum act { ACT_JOIN, ACT_VISIT, ACT_INSTALLED };

struct script {
	struct control *control;
	uint32_t asking;	/* ranks that have asked it */
	struct net_conn *above; /* whom to answer */
	uint8_t uid[UID];
	uint32_t nnear, near[ROSTER_NEAR_MAX];
	uint32_t nbelow, below[ROSTER_FANOUT_MAX];
	uint32_t linking; /* near hosts that are not linked yet */
	uint32_t pending; /* hosts below, and itself */
	bool prepared;
};

static const struct node_ops script_ops;

static void script_send(struct net_host *host, struct net_conn *conn, uint16_t type,
			const ProtobufCMessage *msg)
{
	struct net_body *body = net_body_new((uint32_t)protobuf_c_message_get_packed_size(msg));

	protobuf_c_message_pack(msg, body->data);
	net_send(host, conn, type, body);
	net_body_unref(body);
}

/* All ranks of the host in one message, as they ask while the connection is made. */
static void script_join(struct net_host *host, struct net_conn *conn)
{
	struct script *s = host->node;
	struct control *c = s->control;
	Rocecomm__Peer__Join msg = ROCECOMM__PEER__JOIN__INIT;
	Rocecomm__Peer__Host info = ROCECOMM__PEER__HOST__INIT;
	Rocecomm__Peer__Rank rank[LIMIT_LOCAL_RANKS], *more[LIMIT_LOCAL_RANKS];
	char name[LIMIT_NAME], address[32], *addresses[] = {address};
	uint8_t id[UID];

	control_host_id(host->index, id);
	control_host_name(host->index, name, sizeof(name));
	snprintf(address, sizeof(address), "10.%u.%u.%u", host->index >> 16, host->index >> 8 & 255,
		 host->index & 255);
	info.host_id = (ProtobufCBinaryData){.data = id, .len = sizeof(id)};
	info.name = name;
	info.addresses = addresses;
	info.n_addresses = 1;
	info.port = 4870;
	for (uint32_t i = 0; i < c->ranks; i++) {
		rocecomm__peer__rank__init(&rank[i]);
		rank[i].rank = host->index * c->ranks + i;
		rank[i].pid = 10000 + host->index % 20000 + i;
		rank[i].client = (char *)(uintptr_t) "train.py";
		more[i] = &rank[i];
	}
	msg.uid = (ProtobufCBinaryData){.data = c->joined, .len = UID};
	msg.size = c->hosts * c->ranks;
	msg.rank = more[0];
	msg.more = more + 1;
	msg.n_more = c->ranks - 1;
	msg.name = (char *)(uintptr_t) "job";
	msg.host = &info;
	msg.join_timeout_ms = c->config->join_timeout_ms;
	msg.arrival_timeout_ms = c->config->arrival_timeout_ms;
	msg.transfer_timeout_ms = c->config->transfer_timeout_ms;
	script_send(host, conn, PEER_MSG_JOIN, &msg.base);
}

/* Are it and all below it ready? Then those above hear it. */
static void script_check(struct net_host *host)
{
	struct script *s = host->node;
	Rocecomm__Peer__CommPrepared msg = ROCECOMM__PEER__COMM_PREPARED__INIT;

	if (s->pending > 0 || s->prepared) {
		return;
	}
	s->prepared = true;
	msg.uid = (ProtobufCBinaryData){.data = s->uid, .len = UID};
	script_send(host, s->above, PEER_MSG_COMM_PREPARED, &msg.base);
}

static void script_linked(struct net_host *host)
{
	net_do(host, host->net->now + ENGINE_US * UINT64_C(1000000), ACT_INSTALLED, 0);
}

static void script_prepare(struct net_host *host, struct net_conn *conn, struct net_body *body)
{
	struct script *s = host->node;
	struct net *net = host->net;
	Rocecomm__Peer__CommPrepare tree = ROCECOMM__PEER__COMM_PREPARE__INIT;

	/* Field 1, 16 bytes: the uid. */
	if (body->size < 2 + UID || body->data[0] != 0x0a || body->data[1] != UID) {
		abort();
	}
	memcpy(s->uid, body->data + 2, UID);
	s->above = conn;
	tree.n_hosts = s->control->hosts;
	tree.fanout = s->control->fanout;
	s->nbelow = roster_children(&tree, host->index, s->below);
	s->nnear = roster_near(&tree, host->index, s->near);
	s->pending = s->nbelow + 1;
	for (uint32_t i = 0; i < s->nbelow; i++) {
		net_send(host, net_connect(host, &net->hosts[s->below[i]], false),
			 PEER_MSG_COMM_PREPARE, body);
	}
	for (uint32_t i = 0; i < s->nnear; i++) {
		struct net_conn *near = net_connect(host, &net->hosts[s->near[i]], false);

		s->linking += !near->up[net_side(near, host)];
	}
	if (s->linking == 0) {
		script_linked(host);
	}
}

static void script_go(struct net_host *host)
{
	struct script *s = host->node;
	Rocecomm__Peer__CommGo msg = ROCECOMM__PEER__COMM_GO__INIT;

	msg.uid = (ProtobufCBinaryData){.data = s->uid, .len = UID};
	for (uint32_t i = 0; i < s->nbelow; i++) {
		script_send(host, net_connect(host, &host->net->hosts[s->below[i]], false),
			    PEER_MSG_COMM_GO, &msg.base);
	}
	control_tell(s->control, host);
	control_ready(s->control, s->control->ranks);
}

static void on_up(struct net_host *host, struct net_conn *conn)
{
	struct script *s = host->node;

	if (conn->visit) {
		script_join(host, conn);
		return;
	}
	for (uint32_t i = 0; s->linking > 0 && i < s->nnear; i++) {
		if (conn->end[!net_side(conn, host)]->index == s->near[i]) {
			s->linking--;
			if (s->linking == 0) {
				script_linked(host);
			}
		}
	}
}

static void on_failed(struct net_host *host, struct net_conn *conn)
{
	struct script *s = host->node;
	char other[LIMIT_NAME];

	control_host_name(conn->end[1]->index, other, sizeof(other));
	if (s->control->error[0] == '\0') {
		snprintf(s->control->error, sizeof(s->control->error),
			 "host %s cannot be reached within %.0f ms", other,
			 host->net->model.connect_timeout_ms);
	}
}

static void on_message(struct net_host *host, struct net_conn *conn, uint16_t type,
		       struct net_body *body)
{
	struct script *s = host->node;

	switch (type) {
	case PEER_MSG_JOIN_TAKEN:
		net_close(host, conn);
		break;
	case PEER_MSG_COMM_PREPARE:
		script_prepare(host, conn, body);
		break;
	case PEER_MSG_COMM_PREPARED:
		s->pending--;
		script_check(host);
		break;
	case PEER_MSG_COMM_GO:
		script_go(host);
		break;
	case PEER_MSG_COMM_FAIL:
		if (s->control->error[0] == '\0') {
			snprintf(s->control->error, sizeof(s->control->error),
				 "a real host has failed it");
		}
		break;
	default:
		break;
	}
}

static void on_closed(struct net_host *host, struct net_conn *conn)
{
}

static void on_act(struct net_host *host, uint32_t what, uint32_t arg)
{
	struct script *s = host->node;

	switch ((enum act)what) {
	case ACT_JOIN:
		net_work(host, host->net->model.client_us);
		if (s->asking++ == 0) {
			net_do(host, host->net->now + control_visit_delay(s->control, host->index),
			       ACT_VISIT, 0);
		}
		break;
	case ACT_VISIT:
		net_connect(host, &host->net->hosts[0], true);
		break;
	case ACT_INSTALLED:
		s->pending--;
		script_check(host);
		break;
	}
}

static const struct node_ops script_ops = {
	.up = on_up,
	.failed = on_failed,
	.message = on_message,
	.closed = on_closed,
	.act = on_act,
};

int script_node_new(struct control *c, uint32_t host)
{
	struct net_host *h = &c->net->hosts[host];
	struct script *s = calloc(1, sizeof(*s));

	if (!s) {
		return err_origin(-ENOMEM);
	}
	s->control = c;
	h->ops = &script_ops;
	h->node = s;
	for (uint32_t i = 0; i < c->ranks; i++) {
		net_do(h, control_begins(c, host), ACT_JOIN, i);
	}
	return 0;
}

void script_node_free(struct net_host *host)
{
	free(host->node);
	host->node = NULL;
}
