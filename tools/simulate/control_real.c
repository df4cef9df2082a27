/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Real nodes: the daemon's job layer on virtual time
 *
 * Stands in for what daemon/job calls: peers.h, engine.h, and the four functions of libuv that its
 * timers use. They are found by the linker before the real ones, so this file must not be linked
 * with anything that runs a loop.
 *
 * Thread: main      Owns: struct real_node      Locks: none
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_gauge.h"
#include "engine/engine_rdma.h"
#include "job/comm.h"
#include "job/jobs.h"
#include "job/member.h"
#include "proto/base.h"
#include "proto/frame.h"
#include "proto/msg.h"
#include "tools/simulate/control_node.h"

#define ENGINE_US 30	 /* to install a communicator */
#define LIST_RANK_US 0.4 /* measured: a rank, when the root makes CommPrepare of its list */

enum act { ACT_JOIN, ACT_TICK, ACT_SOON, ACT_ENGINE, ACT_LEFT };

struct engine_peer {
	int unused;
};

struct engine_comm {
	int unused;
};

/* A done callback that is due. */
struct answer {
	struct list link;
	engine_done_fn done;
	void *arg;
};

struct engine {
	struct real_node *node;
	struct list answers;
};

struct peer {
	struct list link; /* real_node.peers or .left */
	struct real_node *node;
	struct net_conn *conn;
	bool leaving;
	uint8_t id[PEER_HOST_ID];
	char name[LIMIT_NAME];
	void *user;
};

struct peers {
	struct real_node *node;
	struct net_body *last; /* the frame that was sent last goes to many */
};

struct real_node {
	struct control *control;
	struct net_host *host;
	uv_loop_t loop; /* its clock is the host's */
	struct engine engine;
	struct peers peers;
	struct jobs *jobs;
	struct list known, left; /* struct peer.link */
	struct member *members;	 /* [ranks] */
	bool watched;
	size_t heap, most; /* bytes */
	bool closed;
};

static const struct node_ops real_ops;

/* ---- libuv -------------------------------------------------------------------------------- */

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer)
{
	memset(timer, 0, sizeof(*timer));
	timer->loop = loop;
	return 0;
}

uint64_t uv_now(const uv_loop_t *loop)
{
	const struct real_node *node = loop->data;

	return node->host->net->now / 1000000000u;
}

/* A later start makes an earlier one void: the number of starts is kept in `data`. */
int uv_timer_start(uv_timer_t *timer, uv_timer_cb cb, uint64_t ms, uint64_t repeat)
{
	struct real_node *node = timer->loop->data;
	uintptr_t number = (uintptr_t)timer->data + 1;

	timer->data = (void *)number;
	timer->timer_cb = cb;
	net_do(node->host, node->host->net->now + ms * 1000000000u,
	       timer == &node->jobs->soon ? ACT_SOON : ACT_TICK, (uint32_t)number);
	return 0;
}

void uv_close(uv_handle_t *handle, uv_close_cb cb)
{
	cb(handle);
}

static void timer_run(uv_timer_t *timer, uint32_t number)
{
	if ((uintptr_t)timer->data == number) {
		timer->timer_cb(timer);
	}
}

/* ---- peers -------------------------------------------------------------------------------- */

static struct peer *peer_of(struct real_node *node, struct net_conn *conn)
{
	unsigned int side = net_side(conn, node->host);
	struct peer *peer = conn->user[side];

	if (peer) {
		return peer;
	}
	peer = calloc(1, sizeof(*peer));
	if (!peer) {
		abort();
	}
	peer->node = node;
	peer->conn = conn;
	control_host_id(conn->end[!side]->index, peer->id);
	control_host_name(conn->end[!side]->index, peer->name, sizeof(peer->name));
	list_init(&peer->link);
	list_append(&node->known, &peer->link);
	conn->user[side] = peer;
	return peer;
}

static bool conn_is_up(const struct peer *peer)
{
	return peer->conn->up[net_side(peer->conn, peer->node->host)];
}

int peers_connect(struct peers *peers, const struct peer_host *host, struct peer **ret)
{
	struct net_host *from = peers->node->host;
	uint32_t other = control_host_of_id(host->host_id);
	uint64_t low = MIN(from->index, other), high = MAX(from->index, other);
	struct net_conn *conn = hashmap_get(&from->net->pairs, low << 32 | high);

	if (other >= from->net->nhosts || other == from->index) {
		return -EINVAL;
	}
	if (!conn || (host->visit && !conn->up[net_side(conn, from)])) {
		conn = net_connect(from, &from->net->hosts[other], host->visit);
	}
	*ret = peer_of(peers->node, conn);
	return 0;
}

static void peer_post(struct peer *peer, uint16_t type, struct net_body *body)
{
	net_send(peer->node->host, peer->conn, type, body);
}

int peer_send(struct peer *peer, uint16_t type, const ProtobufCMessage *msg)
{
	size_t size = protobuf_c_message_get_packed_size(msg);
	struct net_body *body = net_body_new((uint32_t)size);

	protobuf_c_message_pack(msg, body->data);
	peer_post(peer, type, body);
	net_body_unref(body);
	return 0;
}

int peer_send_frame(struct peer *peer, const uint8_t *frame, size_t size)
{
	struct peers *peers = &peer->node->peers;
	uint32_t length = (uint32_t)(size - FRAME_HEADER);

	if (!peers->last || peers->last->size != length ||
	    memcmp(peers->last->data, frame + FRAME_HEADER, length) != 0) {
		net_body_unref(peers->last);
		peers->last = net_body_new(length);
		memcpy(peers->last->data, frame + FRAME_HEADER, length);
	}
	peer_post(peer, (uint16_t)(frame[4] | frame[5] << 8), peers->last);
	return 0;
}

/* `down` follows from the loop. */
static void peer_leave(struct peer *peer)
{
	net_close(peer->node->host, peer->conn);
	peer->conn->user[net_side(peer->conn, peer->node->host)] = NULL;
	list_remove(&peer->link);
	list_append(&peer->node->left, &peer->link);
	net_do(peer->node->host, peer->node->host->net->now, ACT_LEFT, 0);
}

void peer_release(struct peer *peer)
{
	if (!peer->conn->visit || peer->leaving) {
		return;
	}
	peer->leaving = true;
	if (conn_is_up(peer)) {
		peer_leave(peer);
	}
}

void peer_break(struct peer *peer, const char *reason)
{
}

bool peer_is_up(const struct peer *peer)
{
	return conn_is_up(peer);
}

bool peer_is_visit(const struct peer *peer)
{
	return peer->conn->visit;
}

const uint8_t *peer_host_id(const struct peer *peer)
{
	return peer->id;
}

const char *peer_name(const struct peer *peer)
{
	return peer->name;
}

const char *peer_address(const struct peer *peer)
{
	return "simulated";
}

void peer_set_user(struct peer *peer, void *user)
{
	peer->user = user;
}

void *peer_user(const struct peer *peer)
{
	return peer->user;
}

uint16_t peers_port(const struct peers *peers)
{
	return 4870;
}

bool peers_is_self(const struct peers *peers, const struct peer_host *host)
{
	return control_host_of_id(host->host_id) == peers->node->host->index;
}

const struct peers_refusal *peers_last_refusal(const struct peers *peers)
{
	return NULL;
}

static void peer_gone(struct peer *peer, enum status status)
{
	struct real_node *node = peer->node;

	jobs_peers_events.down(node->jobs, peer, status, "the simulated link ended");
	list_remove(&peer->link);
	free(peer);
}

/* ---- engine ------------------------------------------------------------------------------- */

static void engine_answer(struct engine *engine, double us, engine_done_fn done, void *arg)
{
	struct net_host *host = engine->node->host;
	struct answer *a = calloc(1, sizeof(*a));

	if (!a) {
		abort();
	}
	a->done = done;
	a->arg = arg;
	list_append(&engine->answers, &a->link);
	net_do(host, host->net->now + (uint64_t)(us * 1e6), ACT_ENGINE, 0);
}

static void engine_answer_run(struct engine *engine)
{
	struct list *first = list_first(&engine->answers);
	struct answer *a = container_of(first, struct answer, link);

	list_remove(first);
	a->done(a->arg);
	free(a);
}

int engine_peer_add(struct engine *engine, void *user, struct engine_peer **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : err_origin(-ENOMEM);
}

int engine_peer_stream(struct engine *engine, struct engine_peer *peer, int fd, unsigned int index)
{
	return 0;
}

void engine_peer_remove(struct engine *engine, struct engine_peer *peer, engine_done_fn done,
			void *arg)
{
	free(peer);
	engine_answer(engine, 0, done, arg);
}

int engine_comm_add(struct engine *engine, const struct engine_comm_params *params,
		    engine_done_fn done, void *arg, struct engine_comm **ret)
{
	*ret = calloc(1, sizeof(**ret));
	if (!*ret) {
		return err_origin(-ENOMEM);
	}
	engine_answer(engine, ENGINE_US, done, arg);
	return 0;
}

void engine_comm_fail(struct engine *engine, struct engine_comm *comm, enum status status)
{
}

void engine_comm_detach(struct engine *engine, struct engine_comm *comm, uint32_t local,
			engine_done_fn done, void *arg)
{
	engine_answer(engine, 0, done, arg);
}

void engine_comm_remove(struct engine *engine, struct engine_comm *comm, engine_done_fn done,
			void *arg)
{
	free(comm);
	engine_answer(engine, 0, done, arg);
}

/* The simulated hosts have no rails: nobody calls these. */
int engine_rdma_start(struct engine *engine, const struct engine_rdma_options *options)
{
	abort();
}

void engine_device_add(struct engine *engine, struct engine_device *work, engine_done_fn done,
		       void *arg)
{
	abort();
}

void engine_device_event(struct engine *engine, struct rdma_device *device,
			 const struct rdma_event *event)
{
	abort();
}

void engine_device_remove(struct engine *engine, struct rdma_device *device, const char *text,
			  engine_done_fn done, void *arg)
{
	abort();
}

int engine_peer_rails(struct engine *engine, struct engine_peer *peer, const char *name,
		      bool initiator)
{
	abort();
}

void engine_peer_rail(struct engine *engine, struct engine_peer *peer, struct engine_rail *work,
		      engine_done_fn done, void *arg)
{
	abort();
}

void engine_peer_look(struct engine *engine, struct engine_peer *peer,
		      struct engine_rails_view *view, engine_done_fn done, void *arg)
{
	abort();
}

uint64_t engine_peer_heard(const struct engine_peer *peer)
{
	return 0;
}

void engine_gauge(struct engine *engine, struct engine_peer *peer, struct engine_gauge *gauge,
		  engine_done_fn done, void *arg)
{
	abort();
}

/* ---- what happens ------------------------------------------------------------------------- */

static size_t heap_now(const struct real_node *node)
{
	struct mallinfo2 info;

	if (!node->watched) {
		return 0;
	}
	info = mallinfo2();
	return info.uordblks + info.hblkhd;
}

/* @before: heap_now() */
static void heap_note(struct real_node *node, size_t before)
{
	node->heap += heap_now(node) - before;
	node->most = MAX(node->most, node->heap);
}

static void on_up(struct net_host *host, struct net_conn *conn)
{
	struct real_node *node = host->node;
	size_t before = heap_now(node);
	struct peer *peer = peer_of(node, conn);

	if (!conn->visit) {
		jobs_peers_events.stream(node->jobs, peer, -1, 0);
	}
	jobs_peers_events.up(node->jobs, peer);
	if (peer->leaving) {
		peer_leave(peer);
	}
	heap_note(node, before);
}

static void on_failed(struct net_host *host, struct net_conn *conn)
{
	struct real_node *node = host->node;
	struct peer *peer = peer_of(node, conn);

	conn->user[0] = NULL;
	peer_gone(peer, STATUS_UNREACHABLE);
}

/* The last rank on the root's list makes it go through all of them. */
static void note_join(struct real_node *node, const struct net_body *body)
{
	struct control *c = node->control;
	Rocecomm__Peer__Join *join = rocecomm__peer__join__unpack(NULL, body->size, body->data);

	if (!join) {
		abort();
	}
	c->listed += 1 + (uint32_t)join->n_more;
	if (c->listed == (c->hosts - 1) * c->ranks) {
		net_work(node->host, LIST_RANK_US * c->hosts * c->ranks);
		c->listed_at = node->host->net->now;
	}
	rocecomm__peer__join__free_unpacked(join, NULL);
}

static void on_message(struct net_host *host, struct net_conn *conn, uint16_t type,
		       struct net_body *body)
{
	struct real_node *node = host->node;
	size_t before = heap_now(node);

	if (host->index == 0 && type == PEER_MSG_JOIN) {
		note_join(node, body);
	}
	jobs_peers_events.message(node->jobs, peer_of(node, conn), type, body->data, body->size);
	heap_note(node, before);
}

static void on_closed(struct net_host *host, struct net_conn *conn)
{
	struct real_node *node = host->node;
	size_t before = heap_now(node);
	struct peer *peer = conn->user[net_side(conn, host)];

	if (peer) {
		conn->user[net_side(conn, host)] = NULL;
		peer_gone(peer, STATUS_PEER_DIED);
	}
	heap_note(node, before);
}

static void on_member_ready(struct member *m)
{
	struct real_node *node = m->jobs->loop->data;

	if (m == &node->members[0]) {
		control_tell(node->control, node->host);
	}
	control_ready(node->control, 1);
}

static void on_member_refused(struct member *m, enum status status, const char *text)
{
	struct real_node *node = m->jobs->loop->data;

	if (node->control->error[0] == '\0') {
		snprintf(node->control->error, sizeof(node->control->error), "%s", text);
	}
}

static const struct member_ops member_ops = {
	.ready = on_member_ready,
	.refused = on_member_refused,
};

static void node_join(struct real_node *node, uint32_t i)
{
	struct control *c = node->control;
	struct member *m = &node->members[i];
	const struct member_options options = {.name = "job"};
	char text[LIMIT_ERROR_TEXT];

	net_work(node->host, c->net->model.client_us);
	m->ops = &member_ops;
	m->pid = 10000 + node->host->index % 20000 + i;
	m->client = "train.py";
	if (member_join(node->jobs, m, c->id, sizeof(c->id), node->host->index * c->ranks + i,
			c->hosts * c->ranks, &options, text, sizeof(text)) != STATUS_OK) {
		on_member_refused(m, STATUS_INTERNAL, text);
	}
}

static void on_act(struct net_host *host, uint32_t what, uint32_t arg)
{
	struct real_node *node = host->node;
	size_t before = heap_now(node);

	switch ((enum act)what) {
	case ACT_JOIN:
		node_join(node, arg);
		break;
	case ACT_TICK:
		timer_run(&node->jobs->tick, arg);
		break;
	case ACT_SOON:
		timer_run(&node->jobs->soon, arg);
		break;
	case ACT_ENGINE:
		engine_answer_run(&node->engine);
		break;
	case ACT_LEFT:
		peer_gone(container_of(list_first(&node->left), struct peer, link),
			  STATUS_PEER_DIED);
		break;
	}
	heap_note(node, before);
}

static const struct node_ops real_ops = {
	.up = on_up,
	.failed = on_failed,
	.message = on_message,
	.closed = on_closed,
	.act = on_act,
};

/* ---- life --------------------------------------------------------------------------------- */

int real_node_new(struct control *c, uint32_t host, struct real_node **ret)
{
	char name[LIMIT_NAME], address[32];
	const char *addresses[] = {address};
	struct jobs_options options = {
		.config = c->config,
		.host = name,
		.addresses = addresses,
		.naddresses = 1,
	};
	struct real_node *node = calloc(1, sizeof(*node));
	int r;

	if (!node) {
		return err_origin(-ENOMEM);
	}
	node->members = calloc(c->ranks, sizeof(*node->members));
	if (!node->members) {
		free(node);
		return err_origin(-ENOMEM);
	}
	node->control = c;
	node->host = &c->net->hosts[host];
	node->loop.data = node;
	node->engine.node = node;
	node->peers.node = node;
	list_init(&node->engine.answers);
	list_init(&node->known);
	list_init(&node->left);
	control_host_name(host, name, sizeof(name));
	snprintf(address, sizeof(address), "10.%u.%u.%u", host >> 16, host >> 8 & 255, host & 255);
	control_host_id(host, options.host_id);
	options.loop = &node->loop;
	options.engine = &node->engine;
	options.mesh_hosts = c->fanout ? 1 : UINT32_MAX;
	options.fanout = c->fanout;
	r = jobs_new(&options, &node->jobs);
	if (r < 0) {
		free(node->members);
		free(node);
		return err_trace(r);
	}
	jobs_set_peers(node->jobs, &node->peers);
	node->host->ops = &real_ops;
	node->host->node = node;
	for (uint32_t i = 0; i < c->ranks; i++) {
		net_do(node->host, control_begins(c, host), ACT_JOIN, i);
	}
	*ret = node;
	return 0;
}

int real_node_unique_id(struct real_node *node, uint8_t ret[LIMIT_UNIQUE_ID])
{
	return jobs_unique_id(node->jobs, ret);
}

size_t real_node_memory(const struct real_node *node, size_t *ret_most)
{
	*ret_most = node->most;
	return node->heap;
}

void real_node_watch(struct real_node *node)
{
	node->watched = true;
}

static void on_left(void *arg)
{
}

static void on_jobs_closed(void *arg)
{
	struct real_node *node = arg;

	node->closed = true;
}

/* Time stands still: nothing that this sends arrives anywhere. */
struct real_node *real_node_free(struct real_node *node)
{
	if (!node) {
		return NULL;
	}
	for (uint32_t i = 0; i < node->control->ranks; i++) {
		member_leave(&node->members[i], NULL, on_left, NULL);
	}
	while (!list_empty(&node->engine.answers)) {
		engine_answer_run(&node->engine);
	}
	while (!list_empty(&node->known)) {
		struct peer *peer = container_of(list_first(&node->known), struct peer, link);

		peer->conn->user[net_side(peer->conn, node->host)] = NULL;
		peer_gone(peer, STATUS_SHUTDOWN);
	}
	while (!list_empty(&node->left)) {
		peer_gone(container_of(list_first(&node->left), struct peer, link),
			  STATUS_SHUTDOWN);
	}
	jobs_close(node->jobs, on_jobs_closed, node);
	while (!list_empty(&node->engine.answers)) {
		engine_answer_run(&node->engine);
	}
	jobs_free(node->jobs);
	net_body_unref(node->peers.last);
	free(node->members);
	free(node);
	return NULL;
}
