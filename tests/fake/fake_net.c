/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fake network: implementation
 *
 * Thread: the test's      Owns: see fake_net.h      Locks: none
 */
#include "tests/fake/fake_net.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base.h"
#include "proto/frame.h"
#include "tests/fake/fake_engine.h"
#include "util/list.h"
#include "util/log.h"

enum event_kind { EVENT_UP, EVENT_MESSAGE, EVENT_DOWN, EVENT_REFUSED };

struct event {
	struct list link;
	enum event_kind kind;
	uint16_t type;
	uint8_t *body;
	size_t size;
	struct peer *unknown; /* connected without a host id */
	struct peer *visit;   /* the receiver's end of one; NULL: for the peer of the host */
};

struct peer {
	struct peers *owner;
	unsigned int other;
	uint8_t id[PEER_HOST_ID];
	bool known;
	bool up;
	void *user;
	char name[32];
	struct list unsent; /* of an unknown one */

	struct list link; /* of a visit: peers.visits */
	bool visit, leaving, exposed;
	struct peer *twin; /* the other end; NULL: gone */
};

struct peers {
	struct fake_net *net;
	unsigned int index;
	struct peer *peer[FAKE_HOSTS];
	struct list inbox[FAKE_HOSTS]; /* struct event.link, by the other host */
	struct list visits;
};

struct fake_host {
	struct fake_net *net;
	unsigned int index;
	bool alive, unplugged;
	struct peers peers;
	struct engine engine;
	struct jobs *jobs;
	bool closed;
	struct fake_rank *ranks[FAKE_RANKS * 8];
	unsigned int nranks;
};

struct fake_net {
	uv_loop_t loop;
	uint64_t random;
	struct config *config;
	unsigned int nhosts;
	uint32_t mesh, fanout, visit_ranks;
	struct fake_host hosts[FAKE_HOSTS];
};

uint64_t fake_random(struct fake_net *net, uint64_t below)
{
	net->random = net->random * 6364136223846793005u + 1442695040888963407u;
	return below ? (net->random >> 33) % below : 0;
}

/* ---- peers -------------------------------------------------------------------------------- */

static struct peer *visit_free(struct peer *p)
{
	if (p->twin) {
		p->twin->twin = NULL;
	}
	list_remove(&p->link);
	free(p);
	return NULL;
}

static void event_free(struct event *e)
{
	list_remove(&e->link);
	if (e->kind == EVENT_UP && e->visit && !e->visit->exposed) {
		visit_free(e->visit); /* nobody has heard of it */
	}
	free(e->body);
	free(e);
}

static void push(struct fake_net *net, unsigned int to, unsigned int from, struct event *e)
{
	if (net->hosts[to].alive) {
		list_append(&net->hosts[to].peers.inbox[from], &e->link);
	} else {
		event_free(e);
	}
}

static struct event *event_new(enum event_kind kind)
{
	struct event *e = calloc(1, sizeof(*e));

	assert(e);
	e->kind = kind;
	list_init(&e->link);
	return e;
}

static struct peer *peer_make(struct peers *peers, unsigned int other)
{
	struct peer *p = calloc(1, sizeof(*p));

	assert(p);
	p->owner = peers;
	p->other = other;
	list_init(&p->unsent);
	list_init(&p->link);
	snprintf(p->name, sizeof(p->name), "host%u", other);
	memset(p->id, (int)other + 1, sizeof(p->id));
	return p;
}

uint16_t peers_port(const struct peers *peers)
{
	return (uint16_t)(1000 + peers->index);
}

bool peers_is_self(const struct peers *peers, const struct peer_host *host)
{
	return host->port == peers_port(peers);
}

const struct peers_refusal *peers_last_refusal(const struct peers *peers)
{
	return NULL;
}

/* Both ends are made at once, each is up when its event is delivered. */
static struct peer *visit_new(struct peers *peers, unsigned int other, bool reached)
{
	struct fake_net *net = peers->net;
	struct peer *p = peer_make(peers, other);
	struct event *e = event_new(reached ? EVENT_UP : EVENT_REFUSED);

	p->visit = p->known = p->exposed = true;
	list_append(&peers->visits, &p->link);
	e->visit = p;
	push(net, peers->index, other, e);
	if (reached) {
		p->twin = peer_make(&net->hosts[other].peers, peers->index);
		p->twin->visit = p->twin->known = true;
		p->twin->twin = p;
		list_append(&net->hosts[other].peers.visits, &p->twin->link);
		e = event_new(EVENT_UP);
		e->visit = p->twin;
		push(net, other, peers->index, e);
	}
	return p;
}

int peers_connect(struct peers *peers, const struct peer_host *host, struct peer **ret)
{
	static const uint8_t none[PEER_HOST_ID];
	struct fake_net *net = peers->net;
	bool known = memcmp(host->host_id, none, sizeof(none)) != 0;
	unsigned int other = known ? host->host_id[0] - 1u : host->port - 1000u;
	bool reached = net->hosts[other].alive && !net->hosts[other].unplugged &&
		       !net->hosts[peers->index].unplugged;
	struct event *e;

	if (other == peers->index) {
		return -EINVAL;
	}
	if (peers->peer[other] && (host->visit ? peers->peer[other]->up : known)) {
		*ret = peers->peer[other];
		return 0;
	}
	if (host->visit) {
		*ret = visit_new(peers, other, reached);
		return 0;
	}
	*ret = peer_make(peers, other);
	e = event_new(reached ? EVENT_UP : EVENT_REFUSED);
	if (known) {
		peers->peer[other] = *ret;
		(*ret)->known = true;
	} else {
		e->unknown = *ret;
	}
	push(net, peers->index, other, e);
	if (reached) {
		push(net, other, peers->index, event_new(EVENT_UP));
	}
	return 0;
}

static struct event *message_new(uint16_t type, const ProtobufCMessage *msg)
{
	struct event *e = event_new(EVENT_MESSAGE);

	e->type = type;
	e->size = protobuf_c_message_get_packed_size(msg);
	e->body = malloc(e->size + 1);
	assert(e->body);
	protobuf_c_message_pack(msg, e->body);
	return e;
}

static void message_send(struct peer *peer, struct event *e)
{
	if (!peer->known) {
		list_append(&peer->unsent, &e->link);
	} else if (!peer->visit) {
		push(peer->owner->net, peer->other, peer->owner->index, e);
	} else if (peer->twin) {
		e->visit = peer->twin;
		push(peer->owner->net, peer->other, peer->owner->index, e);
	} else {
		event_free(e);
	}
}

int peer_send(struct peer *peer, uint16_t type, const ProtobufCMessage *msg)
{
	message_send(peer, message_new(type, msg));
	return 0;
}

int peer_send_frame(struct peer *peer, const uint8_t *frame, size_t size)
{
	struct event *e = event_new(EVENT_MESSAGE);

	e->type = (uint16_t)(frame[4] | frame[5] << 8);
	e->size = size - FRAME_HEADER;
	e->body = malloc(size);
	assert(e->body);
	memcpy(e->body, frame + FRAME_HEADER, e->size);
	message_send(peer, e);
	return 0;
}

bool peer_is_visit(const struct peer *peer)
{
	return peer->visit;
}

void peer_release(struct peer *peer)
{
	struct event *e;

	if (!peer->visit || peer->leaving) {
		return;
	}
	peer->leaving = true;
	if (peer->twin) {
		e = event_new(EVENT_DOWN);
		e->visit = peer->twin;
		push(peer->owner->net, peer->other, peer->owner->index, e);
	}
	e = event_new(EVENT_DOWN);
	e->visit = peer;
	push(peer->owner->net, peer->owner->index, peer->other, e);
}

void peer_break(struct peer *peer, const char *reason)
{
	push(peer->owner->net, peer->owner->index, peer->other, event_new(EVENT_DOWN));
	push(peer->owner->net, peer->other, peer->owner->index, event_new(EVENT_DOWN));
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
	return "fake";
}

bool peer_is_up(const struct peer *peer)
{
	return peer->up;
}

void peer_set_user(struct peer *peer, void *user)
{
	peer->user = user;
}

void *peer_user(const struct peer *peer)
{
	return peer->user;
}

static void events_drop(struct list *list)
{
	while (!list_empty(list)) {
		event_free(container_of(list_first(list), struct event, link));
	}
}

/* What was on its way to it. */
static void visit_drop(struct peer *p)
{
	list_for_each_safe (at, &p->owner->inbox[p->other]) {
		struct event *e = container_of(at, struct event, link);

		if (e->visit == p) {
			e->visit = NULL;
			event_free(e);
		}
	}
	visit_free(p);
}

static void deliver_down(struct fake_host *h, struct peer *p, enum status status)
{
	jobs_peers_events.down(h->jobs, p, status, "the fake network lost it");
	if (p->visit) {
		visit_drop(p);
		return;
	}
	if (h->peers.peer[p->other] == p) {
		h->peers.peer[p->other] = NULL;
	}
	events_drop(&p->unsent);
	free(p);
}

static void deliver_up(struct fake_host *h, unsigned int other, struct peer *unknown)
{
	struct peer *p = h->peers.peer[other];

	if (unknown) {
		while (!list_empty(&unknown->unsent)) {
			struct event *e =
				container_of(list_first(&unknown->unsent), struct event, link);

			list_remove(&e->link);
			push(h->net, other, h->index, e);
		}
		if (p) {
			jobs_peers_events.merged(h->jobs, unknown, p);
			free(unknown);
		} else {
			unknown->known = true;
			h->peers.peer[other] = unknown;
			p = unknown;
		}
	}
	if (!p) {
		p = peer_make(&h->peers, other);
		p->known = true;
		h->peers.peer[other] = p;
	}
	if (!p->up) {
		jobs_peers_events.stream(h->jobs, p, dup(2), 0);
		p->up = true;
		jobs_peers_events.up(h->jobs, p);
	}
}

static void deliver_visit_up(struct fake_host *h, struct peer *p)
{
	p->exposed = true;
	p->up = true;
	jobs_peers_events.up(h->jobs, p);
}

static void deliver(struct fake_host *h, unsigned int other)
{
	struct event *e = container_of(list_first(&h->peers.inbox[other]), struct event, link);
	struct peer *p = e->visit ? e->visit : h->peers.peer[other];

	list_remove(&e->link);
	switch (e->kind) {
	case EVENT_UP:
		if (e->visit) {
			deliver_visit_up(h, e->visit);
		} else {
			deliver_up(h, other, e->unknown);
		}
		break;
	case EVENT_MESSAGE:
		if (p && p->up) {
			jobs_peers_events.message(h->jobs, p, e->type, e->body, e->size);
		}
		break;
	case EVENT_REFUSED:
		p = e->unknown ? e->unknown : p;
		if (p) {
			deliver_down(h, p, STATUS_UNREACHABLE);
		}
		break;
	case EVENT_DOWN:
		if (p) {
			deliver_down(h, p, STATUS_PEER_DIED);
		}
		break;
	}
	free(e->body);
	free(e);
}

/* ---- hosts -------------------------------------------------------------------------------- */

static void host_init(struct fake_net *net, unsigned int index)
{
	static const char *const address[] = {"192.0.2.1"};
	struct fake_host *h = &net->hosts[index];
	struct jobs_options options = {
		.loop = &net->loop,
		.engine = &h->engine,
		.config = net->config,
		.addresses = address,
		.naddresses = 1,
		.mesh_hosts = net->mesh,
		.fanout = net->fanout,
		.visit_ranks = net->visit_ranks,
	};
	char name[32];
	int r;

	snprintf(name, sizeof(name), "host%u", index);
	memset(options.host_id, (int)index + 1, sizeof(options.host_id));
	options.host = name;
	h->net = net;
	h->index = index;
	h->alive = true;
	h->peers.net = net;
	h->peers.index = index;
	list_init(&h->peers.visits);
	list_init(&h->engine.answers);
	list_init(&h->engine.peers);
	list_init(&h->engine.comms);
	for (unsigned int i = 0; i < FAKE_HOSTS; i++) {
		list_init(&h->peers.inbox[i]);
	}
	r = jobs_new(&options, &h->jobs);
	assert(r == 0);
	jobs_set_peers(h->jobs, &h->peers);
}

static struct fake_net *net_new(unsigned int hosts, uint64_t seed, uint32_t mesh, uint32_t fanout,
				uint32_t visit_ranks)
{
	struct fake_net *net = calloc(1, sizeof(*net));

	assert(net && hosts <= FAKE_HOSTS);
	net->random = seed * 2654435761u + 12345;
	net->nhosts = hosts;
	net->mesh = mesh;
	net->fanout = fanout;
	net->visit_ranks = visit_ranks;
	log_set_level(LOG_LEVEL_ERROR);
	uv_loop_init(&net->loop);
	if (config_new(&net->config) < 0) {
		abort();
	}
	for (unsigned int i = 0; i < hosts; i++) {
		host_init(net, i);
	}
	return net;
}

struct fake_net *fake_net_new(unsigned int hosts, uint64_t seed)
{
	return net_new(hosts, seed, 0, 0, 0);
}

struct fake_net *fake_net_new_wide(unsigned int hosts, uint64_t seed, uint32_t mesh,
				   uint32_t fanout)
{
	return net_new(hosts, seed, mesh, fanout, 1);
}

static void host_on_closed(void *arg)
{
	struct fake_host *h = arg;

	h->closed = true;
}

static void host_answers(struct fake_host *h)
{
	while (!list_empty(&h->engine.answers)) {
		fake_engine_answer(&h->engine);
	}
}

static void host_close(struct fake_host *h)
{
	struct fake_net *net = h->net;

	h->alive = false;
	for (unsigned int i = 0; i < net->nhosts; i++) {
		events_drop(&h->peers.inbox[i]);
		if (h->peers.peer[i]) {
			deliver_down(h, h->peers.peer[i], STATUS_SHUTDOWN);
		}
	}
	while (!list_empty(&h->peers.visits)) {
		deliver_down(h, container_of(list_first(&h->peers.visits), struct peer, link),
			     STATUS_SHUTDOWN);
	}
	host_answers(h);
	jobs_close(h->jobs, host_on_closed, h);
	while (!h->closed) {
		uv_run(&net->loop, UV_RUN_NOWAIT);
	}
	host_answers(h);
	h->jobs = jobs_free(h->jobs);
	while (!list_empty(&h->engine.peers)) {
		struct engine_peer *p =
			container_of(list_first(&h->engine.peers), struct engine_peer, link);

		list_remove(&p->link);
		free(p);
	}
	while (!list_empty(&h->engine.comms)) {
		struct engine_comm *c =
			container_of(list_first(&h->engine.comms), struct engine_comm, link);

		list_remove(&c->link);
		free(c);
	}
}

struct fake_net *fake_net_free(struct fake_net *net)
{
	fake_run(net);
	for (unsigned int i = 0; i < net->nhosts; i++) {
		if (net->hosts[i].alive) {
			host_close(&net->hosts[i]);
		}
	}
	uv_loop_close(&net->loop);
	config_free(net->config);
	free(net);
	return NULL;
}

uv_loop_t *fake_loop(struct fake_net *net)
{
	return &net->loop;
}

struct engine *fake_engine(struct fake_net *net, unsigned int host)
{
	return &net->hosts[host].engine;
}

struct peers *fake_peers(struct fake_net *net, unsigned int host)
{
	return &net->hosts[host].peers;
}

void fake_inject(struct fake_net *net, unsigned int host, unsigned int from, uint16_t type,
		 const uint8_t *body, size_t size)
{
	struct event *e = event_new(EVENT_MESSAGE);

	e->type = type;
	e->size = size;
	e->body = malloc(size + 1);
	assert(e->body);
	if (size > 0) {
		memcpy(e->body, body, size);
	}
	push(net, host, from, e);
}

struct jobs *fake_jobs(struct fake_net *net, unsigned int host)
{
	return net->hosts[host].jobs;
}

struct config *fake_config(struct fake_net *net)
{
	return net->config;
}

bool fake_alive(const struct fake_net *net, unsigned int host)
{
	return net->hosts[host].alive;
}

void fake_unplug(struct fake_net *net, unsigned int host)
{
	net->hosts[host].unplugged = true;
}

static void inbox_lost(struct fake_host *h, unsigned int other)
{
	struct list *inbox = &h->peers.inbox[other];

	while (!list_empty(inbox)) {
		struct event *e = container_of(list_first(inbox), struct event, link);
		struct peer *unknown = e->unknown;

		event_free(e);
		if (unknown) {
			deliver_down(h, unknown, STATUS_UNREACHABLE);
		}
	}
}

static void visits_lost(struct fake_host *h, unsigned int other)
{
	list_for_each (at, &h->peers.visits) {
		struct peer *p = container_of(at, struct peer, link);

		if (p->other == other) {
			struct event *e = event_new(EVENT_DOWN);

			e->visit = p;
			push(h->net, h->index, other, e);
		}
	}
}

void fake_kill(struct fake_net *net, unsigned int host)
{
	struct fake_host *h = &net->hosts[host];

	/* Its words still on the way are lost, and it hears nothing any more. */
	h->alive = false;
	for (unsigned int i = 0; i < net->nhosts; i++) {
		if (net->hosts[i].alive) {
			inbox_lost(&net->hosts[i], host);
			visits_lost(&net->hosts[i], host);
			push(net, i, host, event_new(EVENT_DOWN));
		}
	}
	host_answers(h);
	jobs_engine_stopped(h->jobs);
	for (unsigned int i = 0; i < h->nranks; i++) {
		fake_leave(h->ranks[i], "its host died");
	}
	host_close(h);
}

/* ---- steps -------------------------------------------------------------------------------- */

bool fake_step(struct fake_net *net)
{
	struct {
		struct fake_host *host;
		unsigned int other;
	} choice[FAKE_HOSTS * (FAKE_HOSTS + 1)];
	unsigned int n = 0, pick;

	uv_run(&net->loop, UV_RUN_NOWAIT);
	for (unsigned int i = 0; i < net->nhosts; i++) {
		struct fake_host *h = &net->hosts[i];

		for (unsigned int j = 0; h->alive && j < net->nhosts; j++) {
			if (!list_empty(&h->peers.inbox[j])) {
				choice[n].host = h;
				choice[n++].other = j;
			}
		}
		if (h->alive && !list_empty(&h->engine.answers)) {
			choice[n].host = h;
			choice[n++].other = UINT32_MAX;
		}
	}
	if (n == 0) {
		return false;
	}
	pick = (unsigned int)fake_random(net, n);
	if (choice[pick].other == UINT32_MAX) {
		fake_engine_answer(&choice[pick].host->engine);
	} else {
		deliver(choice[pick].host, choice[pick].other);
	}
	return true;
}

void fake_run(struct fake_net *net)
{
	bool more = true;

	/* A timer of 0 ms may bring more. */
	while (more) {
		more = false;
		while (fake_step(net)) {
			more = true;
		}
		uv_run(&net->loop, UV_RUN_NOWAIT);
	}
}

void fake_run_ms(struct fake_net *net, unsigned int ms)
{
	uint64_t end;

	uv_update_time(&net->loop);
	end = uv_now(&net->loop) + ms;
	do {
		fake_run(net);
		usleep(5000);
		uv_update_time(&net->loop);
	} while (uv_now(&net->loop) < end);
	fake_run(net);
}

/* ---- for fake_rank.c ----------------------------------------------------------------------- */

unsigned int fake_host_enter(struct fake_net *net, unsigned int host, struct fake_rank *r)
{
	struct fake_host *h = &net->hosts[host];

	assert(h->nranks < ARRAY_SIZE(h->ranks));
	r->host = h;
	h->ranks[h->nranks] = r;
	return h->nranks++;
}

unsigned int fake_host_index(const struct fake_host *h)
{
	return h->index;
}

struct jobs *fake_host_jobs(const struct fake_host *h)
{
	return h->jobs;
}
