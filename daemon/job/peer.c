/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer: one other host, from the first attempt to its end
 *
 * CONNECTING (addresses are tried) -> LINKED (both sides agree on one link) -> UP (all data
 * connections are there) -> GONE. A host that connects to us begins in LINKED. The acceptor is up
 * first, since it acknowledges every data connection; messages are sent only when up, so what comes
 * early can only come from the acceptor, and waits in `early`.
 *
 * Owner's callbacks may stop everything (peers_stop), so after each the state is looked at again; a
 * peer's memory is freed by the loop, later.
 *
 * Thread: control      Owns: struct peer, its link      Locks: none      See: peers_impl.h
 */
#include <errno.h>
#include <net/if.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "job/peers_impl.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

static const struct link_events linked_events;

static attr_printf(3, 4) void peer_log(const struct peer *peer, enum log_level level,
				       const char *fmt, ...)
{
	char field[ADDRESS_TEXT + 8], text[PEER_REASON + 256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	snprintf(field, sizeof(field), "PEER=%s", peer_name(peer));
	log_write(level, &(struct log_fields){.field = {field}}, "%s", text);
}

/**
 * peer_new() - a peer that does nothing yet; the set owns it
 */
int peer_new(struct peers *peers, struct peer **ret)
{
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer) {
		return err_origin(-ENOMEM);
	}
	peer->peers = peers;
	list_init(&peer->streams);
	list_init(&peer->queue);
	list_init(&peer->early);
	uv_timer_init(peers->loop, &peer->timer);
	peer->timer.data = peer;
	list_append(&peers->all, &peer->link);
	peers_hold(peers);
	*ret = peer;
	return 0;
}

static void messages_free(struct list *list)
{
	struct list *first;

	while ((first = list_first(list)) != NULL) {
		list_remove(first);
		free(container_of(first, struct peer_message, link));
	}
}

static void on_peer_closed(uv_handle_t *handle)
{
	struct peer *peer = handle->data;
	struct peers *peers = peer->peers;

	messages_free(&peer->queue);
	messages_free(&peer->early);
	free(peer->attempts);
	free(peer->broken);
	free(peer);
	peers_drop(peers);
}

static void peer_forget_tokens(struct peer *peer)
{
	if (peer->tokens) {
		OPENSSL_cleanse(peer->tokens, sizeof(*peer->tokens));
		free(take_ptr(peer->tokens));
	}
}

/* Takes the peer out of everything; its memory goes later. */
static void peer_retire(struct peer *peer, const char *goodbye)
{
	peer->state = PEER_GONE;
	list_remove(&peer->link);
	if (peer->id_known) {
		hashmap_remove16(&peer->peers->by_id, peer->host_id);
	}
	peer_connect_stop(peer);
	peer_streams_stop(peer);
	if (peer->tls && goodbye) {
		peer_goodbye(peer->tls, goodbye);
	}
	peer->tls = link_close(peer->tls, goodbye != NULL);
	peer_forget_tokens(peer);
	uv_close((uv_handle_t *)&peer->timer, on_peer_closed);
}

/**
 * peer_identify() - from now on this is the peer of @host_id
 */
int peer_identify(struct peer *peer, const uint8_t *host_id, const char *name)
{
	int r;

	if (name) {
		peer_text_copy(peer->name, sizeof(peer->name), name);
	}
	if (peer->visit) {
		memcpy(peer->host_id, host_id, PEER_HOST_ID);
		return 0;
	}
	if (peer->id_known) {
		return 0;
	}
	r = hashmap_put16(&peer->peers->by_id, host_id, peer);
	if (r != 0) {
		return err_fold(r);
	}
	memcpy(peer->host_id, host_id, PEER_HOST_ID);
	peer->id_known = true;
	return 0;
}

/**
 * peer_goodbye() - say why a link ends
 */
int peer_goodbye(struct link *link, const char *reason)
{
	Rocecomm__Peer__Goodbye msg = ROCECOMM__PEER__GOODBYE__INIT;

	msg.reason = (char *)reason;
	return link_send(link, PEER_MSG_GOODBYE, &msg.base);
}

/**
 * peer_beat() - send a heartbeat
 */
void peer_beat(struct peer *peer)
{
	Rocecomm__Peer__Heartbeat msg = ROCECOMM__PEER__HEARTBEAT__INIT;

	msg.sent_ns = uv_hrtime();
	link_send(peer->tls, PEER_MSG_HEARTBEAT, &msg.base);
}

/* The link that waited behind the one that just ended goes on as a new peer of that host. */
static void peer_succeed(struct peers *peers, struct link *link, struct peer_hello *hello)
{
	struct peer *peer = peers_find(peers, hello->host_id);

	if (peer && peer->state == PEER_CONNECTING && !peer->winner) {
		peer_adopt(peer, link, false); /* the owner asked for the host again meanwhile */
		return;
	}
	if (peers->stopped || peer || peer_new(peers, &peer) < 0) {
		link_close(link, false);
		return;
	}
	if (peer_identify(peer, hello->host_id, hello->name) < 0) {
		link_close(link, false);
		peer_down(peer, STATUS_NO_MEMORY, "no memory", NULL);
		return;
	}
	peer_adopt(peer, link, false);
}

/* See peers_impl.h. */
void peer_down(struct peer *peer, enum status status, const char *reason, const char *goodbye)
{
	struct peers *peers = peer->peers;
	struct link *parked = take_ptr(peer->parked);
	bool linked = peer->state == PEER_LINKED || peer->state == PEER_UP;
	struct peer_hello hello = peer->parked_hello;
	char text[PEER_REASON + LIMIT_NAME + 256];

	if (peer->state == PEER_GONE) {
		return;
	}
	peer->parked_hello.msg = NULL;
	if (linked) {
		snprintf(text, sizeof(text), "link to host %s (%s) is lost: %s", peer_name(peer),
			 peer->address, reason);
	} else {
		snprintf(text, sizeof(text), "host %s cannot be reached: %s", peer_name(peer),
			 reason);
	}
	peer_retire(peer, goodbye);
	if (status != STATUS_SHUTDOWN && (linked || peer->exposed)) {
		peer_log(peer, peer->visit && linked ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, "%s",
			 text);
	}
	if (peer->exposed) {
		peers->events.down(peers->arg, peer, status, text);
	}
	if (parked) {
		link_set_events(parked, &linked_events, NULL);
		peer_succeed(peers, parked, &hello);
	}
	peer_hello_deinit(&hello);
}

/**
 * peer_merge() - @from is the host of @into: hand over what waits, and the owner
 */
void peer_merge(struct peer *from, struct peer *into)
{
	struct peers *peers = from->peers;
	struct list *first;

	while ((first = list_first(&from->queue)) != NULL) {
		struct peer_message *m = container_of(first, struct peer_message, link);

		list_remove(first);
		if (into->state == PEER_UP) {
			link_send_frame(into->tls, m->data, m->size);
			free(m);
		} else {
			list_append(&into->queue, first);
			into->queue_size += m->size;
		}
	}
	peer_retire(from, NULL);
	if (from->exposed) {
		into->exposed = true;
		peers->events.merged(peers->arg, from, into);
	}
}

/* Gives the owner what came early. */
static void peer_deliver_early(struct peer *peer)
{
	struct list *first;

	while (peer->state == PEER_UP && (first = list_first(&peer->early)) != NULL) {
		struct peer_message *m = container_of(first, struct peer_message, link);

		list_remove(first);
		peer->peers->events.message(peer->peers->arg, peer, m->type, m->data, m->size);
		free(m);
	}
	peer->early_size = 0;
}

static void on_left(uv_timer_t *timer)
{
	peer_down(timer->data, STATUS_PEER_DIED, "the visit is over", "the visit is over");
}

static void peer_leave(struct peer *peer)
{
	uv_timer_start(&peer->timer, on_left, 0, 0);
}

/* See peers.h. */
void peer_release(struct peer *peer)
{
	if (!peer->visit || peer->leaving || peer->state == PEER_GONE) {
		return;
	}
	peer->leaving = true;
	if (peer->state == PEER_UP) {
		peer_leave(peer);
	}
}

/**
 * peer_check_up() - up, if the last data connection is there
 */
void peer_check_up(struct peer *peer)
{
	struct list *first;

	if (peer->state != PEER_LINKED || peer->broken || peer->streams_ready < peer->nstreams) {
		return;
	}
	peer->state = PEER_UP;
	peer->exposed = true;
	uv_timer_stop(&peer->timer);
	peer_forget_tokens(peer);
	free(take_ptr(peer->attempts));
	peer->nattempts = 0;
	peer_log(peer, peer->visit ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO,
		 "host %s is linked: %s %s, %u data connections", peer_name(peer),
		 peer->initiator ? "reached at" : "it came from", peer->address, peer->nstreams);
	while ((first = list_first(&peer->queue)) != NULL) {
		struct peer_message *m = container_of(first, struct peer_message, link);

		list_remove(first);
		link_send_frame(peer->tls, m->data, m->size);
		free(m);
	}
	peer->queue_size = 0;
	peer->peers->events.up(peer->peers->arg, peer);
	peer_deliver_early(peer);
	if (peer->leaving && peer->state == PEER_UP) {
		peer_leave(peer);
	}
}

static void on_linked_timeout(uv_timer_t *timer)
{
	struct peer *peer = timer->data;
	char cause[128];

	snprintf(cause, sizeof(cause), "%u of %u data connections are there after %u ms",
		 peer->streams_ready, peer->nstreams, peer->peers->connect_timeout_ms);
	peer_down(peer, STATUS_UNREACHABLE, cause, cause);
}

/* Acceptor: the link is settled, and these tokens prove the data connections. */
static int peer_send_tokens(struct peer *peer)
{
	Rocecomm__Peer__DataTokens msg = ROCECOMM__PEER__DATA_TOKENS__INIT;
	ProtobufCBinaryData data[PEER_MAX_STREAMS];

	peer->tokens = calloc(1, sizeof(*peer->tokens));
	if (!peer->tokens) {
		return err_origin(-ENOMEM);
	}
	peer->tokens->n = peer->nstreams = peer->visit ? 0 : peer->peers->streams;
	for (unsigned int i = 0; i < peer->nstreams; i++) {
		if (getrandom(peer->tokens->token[i], DATA_HELLO_TOKEN, GRND_NONBLOCK) !=
		    DATA_HELLO_TOKEN) {
			return err_origin(-EAGAIN);
		}
		data[i].data = peer->tokens->token[i];
		data[i].len = DATA_HELLO_TOKEN;
	}
	msg.n_tokens = peer->nstreams;
	msg.tokens = data;
	return link_send(peer->tls, PEER_MSG_DATA_TOKENS, &msg.base);
}

/* "10.1.0.2:7470 via eth0" */
static void peer_note_address(struct peer *peer)
{
	char remote[ADDRESS_TEXT], interface[IF_NAMESIZE];

	link_get_addresses(peer->tls, &peer->local, &peer->remote);
	address_format(&peer->remote, true, remote, sizeof(remote));
	if (address_interface(&peer->local, interface, sizeof(interface))) {
		snprintf(peer->address, sizeof(peer->address), "%s via %s", remote, interface);
	} else {
		snprintf(peer->address, sizeof(peer->address), "%s", remote);
	}
}

/* See peers_impl.h. */
void peer_adopt(struct peer *peer, struct link *link, bool initiator)
{
	peer->state = PEER_LINKED;
	peer->tls = link;
	peer->initiator = initiator;
	peer->heard = 0;
	peer_connect_stop(peer);
	link_set_events(link, &linked_events, peer);
	link_trust(link);
	peer_note_address(peer);
	peers_beat_start(peer->peers);
	uv_timer_start(&peer->timer, on_linked_timeout, peer->peers->connect_timeout_ms, 0);
	if (initiator) {
		return; /* peer_streams_open() follows */
	}
	if (peer_send_tokens(peer) < 0) {
		peer_down(peer, STATUS_NO_MEMORY, "no memory or random numbers for its tokens",
			  NULL);
		return;
	}
	peer_check_up(peer);
}

/* See peers_impl.h. */
void peer_visited(struct peers *peers, struct link *link, const struct peer_hello *hello)
{
	struct peer *peer;

	if (peer_new(peers, &peer) < 0) {
		link_close(link, false);
		return;
	}
	peer->visit = true;
	peer_identify(peer, hello->host_id, hello->name);
	peer_adopt(peer, link, false);
}

/* A message that is not the link's own. */
static void peer_message(struct peer *peer, const struct frame *frame)
{
	struct peer_message *m;

	if (peer->state == PEER_UP) {
		peer->peers->events.message(peer->peers->arg, peer, frame->type, frame->body,
					    frame->length);
		return;
	}
	m = peer->early_size + frame->length > PEER_EARLY_MAX ? NULL
							      : malloc(sizeof(*m) + frame->length);
	if (!m) {
		peer_down(peer, STATUS_NO_MEMORY, "it sends too much before it is up", NULL);
		return;
	}
	m->type = frame->type;
	m->size = frame->length;
	if (m->size > 0) {
		memcpy(m->data, frame->body, m->size);
	}
	peer->early_size += m->size;
	list_append(&peer->early, &m->link);
}

static void on_linked_ready(void *arg, struct link *link)
{
}

static void on_linked_frame(void *arg, struct link *link, const struct frame *frame)
{
	struct peer *peer = arg;
	char reason[PEER_REASON], text[PEER_REASON + 64];

	switch (frame->type) {
	case PEER_MSG_HEARTBEAT:
		break; /* that it came is all */
	case PEER_MSG_GOODBYE:
		if (peer_goodbye_parse(frame->body, frame->length, reason) != 0) {
			snprintf(reason, sizeof(reason), "no reason given");
		}
		snprintf(text, sizeof(text), "its daemon said goodbye: %s", reason);
		peer_down(peer, STATUS_PEER_DIED, text, NULL);
		break;
	case PEER_MSG_LINK_HELLO:
	case PEER_MSG_DATA_TOKENS:
		peer_down(peer, STATUS_PROTOCOL, "a message came that does not belong there",
			  "a message came that does not belong there");
		break;
	default:
		if (frame->type < PEER_MSG_COUNT_) {
			peer_message(peer, frame);
		} else {
			peer_log(peer, LOG_LEVEL_DEBUG, "host %s sent a message of unknown type %u",
				 peer_name(peer), frame->type);
		}
		break;
	}
}

static void on_linked_closed(void *arg, struct link *link, enum status status, const char *cause)
{
	struct peer *peer = arg;

	peer->tls = NULL;
	peer_down(peer, status, cause, NULL);
}

static const struct link_events linked_events = {
	.ready = on_linked_ready,
	.frame = on_linked_frame,
	.closed = on_linked_closed,
};

/* Keeps a packed message until the peer is up. */
static int peer_queue(struct peer *peer, const uint8_t *frame, size_t size)
{
	struct peer_message *m;

	if (peer->queue_size + size > PEER_QUEUE_MAX) {
		return err_origin(-ENOBUFS);
	}
	m = malloc(sizeof(*m) + size);
	if (!m) {
		return err_origin(-ENOMEM);
	}
	m->type = 0; /* of no use: it is packed */
	m->size = size;
	memcpy(m->data, frame, size);
	peer->queue_size += size;
	list_append(&peer->queue, &m->link);
	return 0;
}

/* See peers.h. */
int peer_send(struct peer *peer, uint16_t type, const ProtobufCMessage *msg)
{
	uint8_t *frame = NULL;
	size_t size;
	int r;

	r = frame_pack_limit(type, 0, 0, msg, LIMIT_PEER_BODY, &frame, &size);
	if (r != 0) {
		return r == FRAME_E_TOO_BIG ? -EMSGSIZE : err_trace(r);
	}
	r = peer_send_frame(peer, frame, size);
	free(frame);
	return r;
}

/* See peers.h. */
int peer_send_frame(struct peer *peer, const uint8_t *frame, size_t size)
{
	if (peer->state == PEER_UP) {
		return link_send_frame(peer->tls, frame, size);
	}
	return peer->state == PEER_GONE ? -EPIPE : peer_queue(peer, frame, size);
}

static void on_broken(uv_timer_t *timer)
{
	struct peer *peer = timer->data;

	peer_down(peer, STATUS_PEER_DIED, peer->broken ? peer->broken : "it was given up",
		  peer->broken);
}

/* See peers.h. */
void peer_break(struct peer *peer, const char *reason)
{
	if (peer->state == PEER_GONE || peer->broken) {
		return;
	}
	peer->broken = strdup(reason);
	uv_timer_start(&peer->timer, on_broken, 0, 0);
}

/* See peers.h. */
const uint8_t *peer_host_id(const struct peer *peer)
{
	return peer->host_id;
}

/* See peers.h. */
const char *peer_name(const struct peer *peer)
{
	if (peer->name[0] != '\0') {
		return peer->name;
	}
	return peer->nattempts > 0 ? peer->attempts[0].text : "(unknown)";
}

/* See peers.h. */
const char *peer_address(const struct peer *peer)
{
	return peer->address;
}

/* See peers.h. */
bool peer_is_up(const struct peer *peer)
{
	return peer->state == PEER_UP;
}

/* See peers.h. */
bool peer_is_visit(const struct peer *peer)
{
	return peer->visit;
}

/* See peers.h. */
void peer_set_user(struct peer *peer, void *user)
{
	peer->user = user;
}

/* See peers.h. */
void *peer_user(const struct peer *peer)
{
	return peer->user;
}
