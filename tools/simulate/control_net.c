/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Control network: implementation
 *
 * Thread: main      Owns: see control_net.h      Locks: none
 */
#include "tools/simulate/control_net.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/base.h"
#include "proto/frame.h"

#define PS_US 1e6
#define RETRY_US 1e6	    /* of a SYN that was dropped; doubles */
#define HANDSHAKE_BYTES 700 /* a flight of a handshake, with headers */
#define RECORD_BYTES 90	    /* TLS, TCP and IP around a message */

enum event_kind { EVENT_ARRIVES = 0, EVENT_TURN = 1, EVENT_KNOCKS = 2 };

enum item_kind { ITEM_STAGE, ITEM_MESSAGE, ITEM_CLOSE, ITEM_FAILED, ITEM_ACT };

struct net_item {
	struct list link; /* net_host.items, net_conn.waiting */
	enum item_kind kind;
	struct net_host *host;
	struct net_conn *conn;
	struct net_body *body;
	uint16_t type;
	uint32_t what, arg;
};

/*
 * Making a connection: whose turn it is, how many one-way times after the one before, what it costs
 * besides handshakes. Data connections begin with DATA.
 */
enum { STAGE_KNOCK = 1, STAGE_SETTLED = 5, STAGE_VISIT = 6, STAGE_DATA = 7, STAGE_UP = 8 };

static const struct {
	unsigned int side;
	double trips, us;
	bool handshake;
} stages[] = {
	{0, 0, 20, false}, /* connect() */
	{1, 3, 30, true},  /* SYN, SYN and ACK, ClientHello; accept() */
	{0, 1, 0, true},   /* ServerHello ... Finished */
	{1, 1, 25, false}, /* Finished, hello; LinkHello */
	{0, 1, 15, false}, /* LinkHello */
	{1, 1, 20, false}, /* DataTokens */
	{0, 1, 15, false}, /* a visit is up; else connect() for the data connection */
	{1, 3, 45, false}, /* accept(), token */
	{0, 1, 20, false}, /* 0x01 */
};

static uint64_t us_ps(double us)
{
	return (uint64_t)(us * PS_US);
}

struct net_body *net_body_new(uint32_t size)
{
	struct net_body *body = malloc(sizeof(*body) + size);

	if (!body) {
		abort();
	}
	body->refs = 1;
	body->size = size;
	return body;
}

struct net_body *net_body_unref(struct net_body *body)
{
	if (body && --body->refs == 0) {
		free(body);
	}
	return NULL;
}

/* A simulation without memory has no result. */
static void *must(void *p)
{
	if (!p) {
		fprintf(stderr, "rocecomm-simulate: out of memory\n");
		abort();
	}
	return p;
}

static struct net_item *item_new(enum item_kind kind, struct net_host *host, struct net_conn *conn)
{
	struct net_item *item = must(calloc(1, sizeof(*item)));

	item->kind = kind;
	item->host = host;
	item->conn = conn;
	list_init(&item->link);
	return item;
}

static void item_free(struct net_item *item)
{
	list_remove(&item->link);
	net_body_unref(item->body);
	free(item);
}

static void net_add(struct net *net, uint64_t at, enum event_kind kind, uint32_t host,
		    uint32_t index)
{
	struct event e = {.at = at, .kind = (uint16_t)kind, .host = host, .segment = index};

	if (queue_add(&net->queue, e) < 0) {
		must(NULL);
	}
}

/* Puts an item where an event can name it. */
static uint32_t item_keep(struct net *net, struct net_item *item)
{
	uint32_t index;

	if (net->nspare > 0) {
		index = net->spare[--net->nspare];
	} else {
		index = net->nitems++;
		if ((index & (index - 1)) == 0) {
			uint32_t room = index == 0 ? 1 : 2 * index;

			net->items = must(reallocarray(net->items, room, sizeof(*net->items)));
			net->spare = must(reallocarray(net->spare, room, sizeof(*net->spare)));
		}
	}
	net->items[index] = item;
	return index;
}

static struct net_item *item_fetch(struct net *net, uint32_t index)
{
	struct net_item *item = net->items[index];

	net->items[index] = NULL;
	net->spare[net->nspare++] = index;
	return item;
}

/* It reaches the host at that time. */
static void item_send(struct net *net, uint64_t at, enum event_kind kind, struct net_item *item)
{
	net_add(net, at, kind, item->host->index, item_keep(net, item));
}

static void host_turn(struct net_host *host)
{
	if (!host->running && !list_empty(&host->items)) {
		host->running = true;
		net_add(host->net, MAX(host->net->now, host->busy), EVENT_TURN, host->index, 0);
	}
}

static void host_take(struct net_host *host, struct net_item *item)
{
	list_append(&host->items, &item->link);
	host_turn(host);
}

void net_work(struct net_host *host, double us)
{
	host->net->now += us_ps(us);
	host->work += us_ps(us);
}

void net_do(struct net_host *host, uint64_t at, uint32_t what, uint32_t arg)
{
	struct net_item *item = item_new(ITEM_ACT, host, NULL);

	item->what = what;
	item->arg = arg;
	item_send(host->net, at, EVENT_ARRIVES, item);
}

/* Sends so many bytes now. Return: when the last of them is there. */
static uint64_t net_wire(struct net_host *from, struct net_host *to, uint32_t bytes)
{
	struct net *net = from->net;
	uint64_t wire = (uint64_t)((double)bytes * 8e3 / net->model.gbit);
	uint64_t at;

	from->tx = MAX(from->tx, net->now) + wire;
	at = MAX(from->tx + us_ps(net->model.latency_us), to->rx + wire);
	to->rx = at;
	from->sent += bytes;
	to->received += bytes;
	return at;
}

/* ---- connections -------------------------------------------------------------------------- */

unsigned int net_side(const struct net_conn *conn, const struct net_host *host)
{
	return conn->end[0] == host ? 0 : 1;
}

static void conn_next(struct net_conn *conn, uint64_t from)
{
	struct net_host *host = conn->end[stages[conn->stage].side];
	struct net_item *item = item_new(ITEM_STAGE, host, conn);
	uint64_t trips = us_ps(stages[conn->stage].trips * host->net->model.latency_us);

	item_send(host->net, from + trips,
		  conn->stage == STAGE_KNOCK ? EVENT_KNOCKS : EVENT_ARRIVES, item);
}

struct net_conn *net_connect(struct net_host *from, struct net_host *to, bool visit)
{
	struct net *net = from->net;
	uint64_t low = MIN(from->index, to->index), high = MAX(from->index, to->index);
	struct net_conn *conn = visit ? NULL : hashmap_get(&net->pairs, low << 32 | high);

	if (conn) {
		return conn;
	}
	conn = must(calloc(1, sizeof(*conn)));
	list_init(&conn->link);
	list_append(&net->conns, &conn->link);
	conn->end[0] = from;
	conn->end[1] = to;
	conn->visit = visit;
	conn->begun = net->now;
	list_init(&conn->waiting[0]);
	list_init(&conn->waiting[1]);
	if (!visit && hashmap_put(&net->pairs, low << 32 | high, conn) != 0) {
		must(NULL);
	}
	conn_next(conn, net->now);
	return conn;
}

/* Takes from the backlog what there is room for. */
static void host_accept(struct net_host *host)
{
	struct list *first;

	while (host->nincoming < host->net->model.incoming &&
	       (first = list_first(&host->accepting)) != NULL) {
		struct net_item *item = container_of(first, struct net_item, link);

		list_remove(first);
		host->naccepting--;
		host->nincoming++;
		host_take(host, item);
	}
}

static void conn_fail(struct net_conn *conn)
{
	struct net_host *host = conn->end[0];

	host->net->failed++;
	host_take(host, item_new(ITEM_FAILED, host, conn));
}

/* A connection request reaches the kernel of its host. */
static void host_knocked(struct net_host *host, struct net_item *item)
{
	struct net *net = host->net;
	struct net_conn *conn = item->conn;
	uint64_t wait = us_ps(RETRY_US) << conn->tries;

	if (host->naccepting < net->model.backlog) {
		host->naccepting++;
		list_append(&host->accepting, &item->link);
		host_accept(host);
		return;
	}
	net->refused++;
	conn->tries++;
	if (net->now + wait - conn->begun > us_ps(net->model.connect_timeout_ms * 1e3)) {
		item_free(item);
		conn_fail(conn);
		return;
	}
	item_send(net, net->now + wait, EVENT_KNOCKS, item);
}

static void message_send(struct net_item *item, struct net_host *from)
{
	struct net *net = from->net;
	uint32_t size = item->body->size + FRAME_HEADER + RECORD_BYTES;

	net_work(from, net->model.send_us + net->model.send_byte_ns * item->body->size * 1e-3);
	from->nsent++;
	item_send(net, net_wire(from, item->host, size), EVENT_ARRIVES, item);
}

static void conn_up(struct net_conn *conn, unsigned int side)
{
	struct net_host *host = conn->end[side];
	struct list *first;

	conn->up[side] = true;
	host->links++;
	host->most_links = MAX(host->most_links, host->links);
	host->data_links += !conn->visit;
	while ((first = list_first(&conn->waiting[side])) != NULL) {
		list_remove(first);
		message_send(container_of(first, struct net_item, link), host);
	}
	host->ops->up(host, conn);
}

/* Its side does what the stage says. */
static void conn_stage(struct net_host *host, struct net_conn *conn)
{
	unsigned int stage = conn->stage;
	bool last = stage == (conn->visit ? STAGE_VISIT : STAGE_UP);

	net_work(host,
		 stages[stage].us + (stages[stage].handshake ? host->net->model.handshake_us : 0));
	if (stage == STAGE_SETTLED) {
		host->nincoming--;
		host_accept(host);
	}
	if (!last) {
		conn->stage++;
		net_wire(host, conn->end[stages[conn->stage].side], HANDSHAKE_BYTES);
		conn_next(conn, host->net->now);
	}
	if (last || stage == (conn->visit ? STAGE_SETTLED : STAGE_DATA)) {
		conn_up(conn, stages[stage].side);
	}
}

void net_send(struct net_host *from, struct net_conn *conn, uint16_t type, struct net_body *body)
{
	unsigned int side = net_side(conn, from);
	struct net_item *item = item_new(ITEM_MESSAGE, conn->end[!side], conn);

	item->type = type;
	item->body = body;
	body->refs++;
	if (conn->up[side]) {
		message_send(item, from);
	} else {
		list_append(&conn->waiting[side], &item->link);
	}
}

static void conn_free(struct net_conn *conn)
{
	for (unsigned int side = 0; side < 2; side++) {
		while (!list_empty(&conn->waiting[side])) {
			item_free(container_of(list_first(&conn->waiting[side]), struct net_item,
					       link));
		}
	}
	list_remove(&conn->link);
	free(conn);
}

void net_close(struct net_host *host, struct net_conn *conn)
{
	struct net *net = host->net;
	unsigned int side = net_side(conn, host);

	if (conn->closed[side]) {
		return;
	}
	conn->closed[side] = true;
	host->links--;
	net_work(host, net->model.send_us);
	item_send(net, net_wire(host, conn->end[!side], RECORD_BYTES), EVENT_ARRIVES,
		  item_new(ITEM_CLOSE, conn->end[!side], conn));
}

/* ---- time --------------------------------------------------------------------------------- */

static void host_message(struct net_host *host, struct net_item *item)
{
	const struct net_model *model = &host->net->model;

	if (item->conn->closed[net_side(item->conn, host)]) {
		return;
	}
	net_work(host, model->recv_us + model->recv_byte_ns * item->body->size * 1e-3);
	host->nreceived++;
	host->ops->message(host, item->conn, item->type, item->body);
}

static void host_do(struct net_host *host, struct net_item *item)
{
	struct net_conn *conn = item->conn;

	switch (item->kind) {
	case ITEM_STAGE:
		conn_stage(host, conn);
		break;
	case ITEM_MESSAGE:
		host_message(host, item);
		break;
	case ITEM_CLOSE:
		net_work(host, host->net->model.recv_us);
		if (!conn->closed[net_side(conn, host)]) {
			conn->closed[net_side(conn, host)] = true;
			host->links--;
			host->ops->closed(host, conn);
		}
		break;
	case ITEM_FAILED:
		host->ops->failed(host, conn);
		break;
	case ITEM_ACT:
		host->ops->act(host, item->what, item->arg);
		break;
	}
	item_free(item);
}

void net_run(struct net *net, uint64_t end)
{
	struct event e;

	while (queue_take(&net->queue, &e) && e.at <= end) {
		struct net_host *host = &net->hosts[e.host];

		net->now = e.at;
		if (e.kind == EVENT_ARRIVES) {
			host_take(host, item_fetch(net, e.segment));
		} else if (e.kind == EVENT_KNOCKS) {
			host_knocked(host, item_fetch(net, e.segment));
		} else {
			struct net_item *item =
				container_of(list_first(&host->items), struct net_item, link);

			list_remove(&item->link);
			host_do(host, item);
			host->busy = net->now;
			host->running = false;
			host_turn(host);
		}
	}
}

int net_new(const struct net_model *model, uint32_t hosts, struct net **ret)
{
	struct net *net = calloc(1, sizeof(*net));

	if (!net) {
		return err_origin(-ENOMEM);
	}
	net->model = *model;
	net->nhosts = hosts;
	net->hosts = calloc(hosts, sizeof(*net->hosts));
	hashmap_init(&net->pairs);
	list_init(&net->conns);
	if (!net->hosts) {
		net_free(net);
		return err_origin(-ENOMEM);
	}
	for (uint32_t h = 0; h < hosts; h++) {
		net->hosts[h].net = net;
		net->hosts[h].index = h;
		list_init(&net->hosts[h].items);
		list_init(&net->hosts[h].accepting);
	}
	*ret = net;
	return 0;
}

struct net *net_free(struct net *net)
{
	if (!net) {
		return NULL;
	}
	for (uint32_t i = 0; i < net->nitems; i++) {
		if (net->items[i]) {
			item_free(net->items[i]);
		}
	}
	for (uint32_t h = 0; net->hosts && h < net->nhosts; h++) {
		struct net_host *host = &net->hosts[h];

		while (!list_empty(&host->items)) {
			item_free(container_of(list_first(&host->items), struct net_item, link));
		}
		while (!list_empty(&host->accepting)) {
			item_free(
				container_of(list_first(&host->accepting), struct net_item, link));
		}
	}
	while (!list_empty(&net->conns)) {
		conn_free(container_of(list_first(&net->conns), struct net_conn, link));
	}
	hashmap_deinit(&net->pairs);
	queue_deinit(&net->queue);
	free(net->items);
	free(net->spare);
	free(net->hosts);
	free(net);
	return NULL;
}
