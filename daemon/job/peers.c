/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers: the set of links, its options, heartbeats and end
 *
 * Without a cluster key there are no links to other hosts. Two daemons on one machine (tests, or
 * two users) may still link over loopback; they use a key that anybody can read below. That
 * protects nothing, and need not: both ends are loopback addresses, checked when listening,
 * accepting and connecting, so only users of this machine can be there.
 *
 * One timer beats for all links. It sleeps while there is none.
 *
 * Thread: control      Owns: struct peers      Locks: none      See: peers_impl.h, PROTOCOL.md §7
 */
#include <assert.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "job/clusterkey.h"
#include "job/peers_impl.h"
#include "proto/base.h"
#include "proto/msg.h"
#include "util/log.h"

static const uint8_t loopback_key[TLS_KEY_SIZE] = "rocecomm loopback: not a secret";

void peers_hold(struct peers *peers)
{
	peers->handles++;
}

void peers_drop(struct peers *peers)
{
	if (--peers->handles == 0 && peers->closing) {
		peers->done(peers->done_arg);
	}
}

static void on_link_opened(struct link_host *host)
{
	peers_hold(container_of(host, struct peers, link_host));
}

static void on_link_gone(struct link_host *host)
{
	peers_drop(container_of(host, struct peers, link_host));
}

/**
 * peers_tls() - make the TLS context when it is first needed
 *
 * OpenSSL takes a megabyte or so, which a daemon of a single host never uses.
 */
int peers_tls(struct peers *peers)
{
	return peers->link_host.tls ? 0
				    : err_trace(tls_context_new(peers->key, &peers->link_host.tls));
}

static uint64_t last_heard(struct peers *peers, struct peer *peer)
{
	uint64_t heard = MAX(peer->heard, link_heard(peer->tls));

	return peers->events.heard && peer_is_up(peer)
		       ? MAX(heard, peers->events.heard(peers->arg, peer))
		       : heard;
}

/* Both sides of a link must have got something within peer_timeout_ms. */
static struct peer *find_silent(struct peers *peers, uint64_t now)
{
	list_for_each (i, &peers->all) {
		struct peer *peer = container_of(i, struct peer, link);

		if (peer->tls && last_heard(peers, peer) + peers->peer_timeout_ms <= now) {
			return peer;
		}
	}
	return NULL;
}

/* Beats if it is time, forgives a stall of our own. Return: when to look again; 0: no links. */
static uint64_t beat_all(struct peers *peers, uint64_t now)
{
	/* We slept (stopped, starved): what the others sent meanwhile is not read yet. */
	bool stalled = now > peers->beat_expected + peers->heartbeat_ms;
	bool due = now >= peers->beat_due;
	uint64_t next = 0;

	if (due) {
		peers->beat_due = now + peers->heartbeat_ms;
	}
	list_for_each (i, &peers->all) {
		struct peer *peer = container_of(i, struct peer, link);
		uint64_t end;

		if (!peer->tls) {
			continue;
		}
		if (due) {
			peer_beat(peer);
		}
		end = last_heard(peers, peer) + peers->peer_timeout_ms;
		if (stalled && end < now + peers->heartbeat_ms) {
			end = now + peers->heartbeat_ms;
			peer->heard = end - peers->peer_timeout_ms;
		}
		next = next == 0 ? MIN(peers->beat_due, end) : MIN(next, end);
	}
	return next;
}

static void on_beat(uv_timer_t *timer)
{
	struct peers *peers = timer->data;
	uint64_t now = uv_now(peers->loop), next = beat_all(peers, now);
	struct peer *peer;
	char cause[64];

	while ((peer = find_silent(peers, now)) != NULL) {
		snprintf(cause, sizeof(cause), "nothing heard from it for %u ms",
			 peers->peer_timeout_ms);
		peer_down(peer, STATUS_PEER_DIED, cause, cause);
	}
	if (next != 0 && !peers->stopped) {
		peers->beat_expected = MAX(next, now + 1);
		uv_timer_start(&peers->beat_timer, on_beat, peers->beat_expected - now, 0);
	}
}

/**
 * peers_beat_start() - a link is in use: heartbeats begin, if they were asleep
 */
void peers_beat_start(struct peers *peers)
{
	if (!uv_is_active((uv_handle_t *)&peers->beat_timer)) {
		peers->beat_due = uv_now(peers->loop) + peers->heartbeat_ms;
		peers->beat_expected = peers->beat_due;
		uv_timer_start(&peers->beat_timer, on_beat, peers->heartbeat_ms, 0);
	}
}

/* Packs what we say first on every link. */
static int peers_pack_hello(struct peers *peers, const char *const *addresses, size_t naddresses,
			    bool visit, uint8_t **ret, size_t *ret_size)
{
	Rocecomm__Peer__LinkHello msg = ROCECOMM__PEER__LINK_HELLO__INIT;
	Rocecomm__Peer__Host host = ROCECOMM__PEER__HOST__INIT;
	Rocecomm__Peer__Setting setting[PEER_MAX_SETTINGS], *settings[PEER_MAX_SETTINGS];
	uint8_t *frame = NULL;
	size_t size = 0;
	int r;

	host.host_id = (ProtobufCBinaryData){.data = peers->host_id, .len = PEER_HOST_ID};
	host.name = peers->name;
	host.n_addresses = MIN(naddresses, (size_t)PEER_MAX_ADDRESSES);
	host.addresses = (char **)addresses;
	host.port = peers->port;
	for (size_t i = 0; i < peers->nsettings; i++) {
		rocecomm__peer__setting__init(&setting[i]);
		setting[i].key = (char *)peers->settings[i].key;
		setting[i].value = (char *)peers->settings[i].value;
		settings[i] = &setting[i];
	}
	msg.host = &host;
	msg.version = peers->version;
	msg.n_settings = peers->nsettings;
	msg.settings = settings;
	msg.visit = visit;
	r = frame_pack(PEER_MSG_LINK_HELLO, 0, 0, &msg, &frame, &size);
	if (r == FRAME_E_TOO_BIG || (r == 0 && size > FRAME_HEADER + LINK_BODY_MAX_FIRST)) {
		free(frame);
		log_error("the settings and addresses that other hosts must know take more than "
			  "%u bytes",
			  LINK_BODY_MAX_FIRST);
		return -EINVAL;
	}
	if (r != 0) {
		return err_fold(r);
	}
	*ret = frame;
	*ret_size = size;
	return 0;
}

/* See peers.h. */
int peers_set_addresses(struct peers *peers, const char *const *addresses, size_t naddresses)
{
	cleanup_free uint8_t *hello = NULL, *visit = NULL;
	size_t size, visit_size;
	int r;

	r = peers_pack_hello(peers, addresses, naddresses, false, &hello, &size);
	if (r == 0) {
		r = peers_pack_hello(peers, addresses, naddresses, true, &visit, &visit_size);
	}
	if (r < 0) {
		return r;
	}
	free(peers->hello);
	free(peers->hello_visit);
	peers->hello = take_ptr(hello);
	peers->hello_size = size;
	peers->hello_visit = take_ptr(visit);
	peers->hello_visit_size = visit_size;
	return 0;
}

static int peers_copy_settings(struct peers *peers, const struct peers_options *o)
{
	peers->settings = calloc(o->nsettings + 1, sizeof(*peers->settings));
	if (!peers->settings) {
		return err_origin(-ENOMEM);
	}
	for (size_t i = 0; i < o->nsettings; i++) {
		peers->nsettings = i + 1;
		peers->settings[i].key = strdup(o->settings[i].key);
		peers->settings[i].value = strdup(o->settings[i].value);
		if (!peers->settings[i].key || !peers->settings[i].value) {
			return err_origin(-ENOMEM);
		}
	}
	return 0;
}

static int peers_load_key(struct peers *peers, const char *path)
{
	char err[512];
	int r;

	static_assert(CLUSTERKEY_SIZE == TLS_KEY_SIZE, "one key");
	if (!path) {
		memcpy(peers->key, loopback_key, sizeof(peers->key));
		return 0;
	}
	r = clusterkey_load(path, peers->key, err, sizeof(err));
	if (r < 0) {
		log_error("%s", err);
		return r;
	}
	peers->has_key = true;
	return 0;
}

static int peers_check(const struct peers_options *o)
{
	if (peer_id_is_zero(o->host_id) || o->streams > PEER_MAX_STREAMS ||
	    o->nsettings > PEER_MAX_SETTINGS || o->nlisten > PEERS_MAX_LISTEN ||
	    o->heartbeat_ms == 0 || o->peer_timeout_ms <= o->heartbeat_ms ||
	    o->connect_timeout_ms == 0) {
		log_error("the options of the links between hosts are out of range: heartbeat "
			  "%u ms must be above 0 and below the time-out of %u ms, streams %u at "
			  "most %u",
			  o->heartbeat_ms, o->peer_timeout_ms, o->streams, PEER_MAX_STREAMS);
		return -EINVAL;
	}
	return 0;
}

static int peers_init(struct peers *peers, const struct peers_options *o)
{
	int r;

	memcpy(peers->host_id, o->host_id, PEER_HOST_ID);
	peer_text_copy(peers->name, sizeof(peers->name), o->name ? o->name : "");
	peer_text_copy(peers->version, sizeof(peers->version), o->version ? o->version : "");
	peers->streams = o->streams;
	peers->heartbeat_ms = o->heartbeat_ms;
	peers->peer_timeout_ms = o->peer_timeout_ms;
	peers->connect_timeout_ms = o->connect_timeout_ms;
	list_init(&peers->all);
	list_init(&peers->incoming);
	hashmap_init(&peers->by_id);
	r = peers_load_key(peers, o->key_path);
	if (r == 0) {
		r = peers_copy_settings(peers, o);
	}
	if (r == 0) {
		r = peers_listen(peers, o);
	}
	return r == 0 ? peers_set_addresses(peers, o->addresses, o->naddresses) : r;
}

/* See peers.h. */
int peers_new(uv_loop_t *loop, const struct peers_options *options,
	      const struct peers_events *events, void *arg, struct peers **ret)
{
	struct peers *peers;
	int r;

	r = peers_check(options);
	if (r < 0) {
		return r;
	}
	peers = calloc(1, sizeof(*peers));
	if (!peers) {
		return err_origin(-ENOMEM);
	}
	peers->loop = loop;
	peers->events = *events;
	peers->arg = arg;
	peers->link_host.loop = loop;
	peers->link_host.opened = on_link_opened;
	peers->link_host.gone = on_link_gone;
	r = peers_init(peers, options);
	if (r < 0) {
		peers_free(peers);
		return r;
	}
	uv_timer_init(loop, &peers->beat_timer);
	uv_timer_init(loop, &peers->listen_timer);
	peers->beat_timer.data = peers;
	peers->listen_timer.data = peers;
	peers->handles += 2;
	peers_listen_start(peers);
	*ret = peers;
	return 0;
}

/* See peers.h. */
void peers_stop(struct peers *peers, const char *reason)
{
	struct list *first;

	if (peers->stopped) {
		return;
	}
	peers->stopped = true;
	peers_listen_stop(peers);
	while ((first = list_first(&peers->all)) != NULL) {
		peer_down(container_of(first, struct peer, link), STATUS_SHUTDOWN, reason, reason);
	}
	uv_timer_stop(&peers->beat_timer);
}

static void on_timer_closed(uv_handle_t *handle)
{
	peers_drop(handle->data);
}

/* See peers.h. */
void peers_close(struct peers *peers, void (*done)(void *arg), void *arg)
{
	peers_stop(peers, "the daemon stops");
	peers->closing = true;
	peers->done = done;
	peers->done_arg = arg;
	uv_close((uv_handle_t *)&peers->beat_timer, on_timer_closed);
	uv_close((uv_handle_t *)&peers->listen_timer, on_timer_closed);
}

/* See peers.h. */
struct peers *peers_free(struct peers *peers)
{
	if (!peers) {
		return NULL;
	}
	for (size_t i = 0; i < peers->nlisteners; i++) {
		base_close(peers->listener[i].fd);
	}
	for (size_t i = 0; i < peers->nsettings; i++) {
		free((char *)peers->settings[i].key);
		free((char *)peers->settings[i].value);
	}
	free(peers->settings);
	free(peers->hello);
	free(peers->hello_visit);
	hashmap_deinit(&peers->by_id);
	tls_context_free(peers->link_host.tls);
	OPENSSL_cleanse(peers->key, sizeof(peers->key));
	free(peers);
	return NULL;
}

/* See peers.h. */
uint16_t peers_port(const struct peers *peers)
{
	return peers->port;
}

/* See peers.h. */
bool peers_is_self(const struct peers *peers, const struct peer_host *host)
{
	struct sockaddr_storage address;
	char interface[64];

	if (!peer_id_is_zero(host->host_id)) {
		return memcmp(host->host_id, peers->host_id, PEER_HOST_ID) == 0;
	}
	for (size_t i = 0; host->port == peers->port && i < host->naddresses; i++) {
		if (address_parse(host->addresses[i], host->port, &address) == 0 &&
		    (address_is_loopback(&address) ||
		     address_interface(&address, interface, sizeof(interface)))) {
			return true;
		}
	}
	return false;
}

/* See peers.h. */
const struct peers_refusal *peers_last_refusal(const struct peers *peers)
{
	return peers->refused.ss_family != 0 ? &peers->refusal : NULL;
}

/* See peers.h. */
struct peer *peers_find(struct peers *peers, const uint8_t *host_id)
{
	return hashmap_get16(&peers->by_id, host_id);
}

/* A peer that is being looked for at the same addresses, or was reached at one of them. */
static struct peer *peers_find_address(struct peers *peers, const struct peer_host *host)
{
	struct sockaddr_storage address;

	list_for_each (i, &peers->all) {
		struct peer *peer = container_of(i, struct peer, link);

		if (peer->visit) {
			continue;
		}
		if (peer->state == PEER_CONNECTING && peer_connect_same(peer, host)) {
			return peer;
		}
		for (size_t k = 0; peer->initiator && peer->tls && k < host->naddresses; k++) {
			if (address_parse(host->addresses[k], host->port, &address) == 0 &&
			    address_port(&address) == address_port(&peer->remote) &&
			    address_equal(&address, &peer->remote)) {
				return peer;
			}
		}
	}
	return NULL;
}

/* See peers.h. */
int peers_connect(struct peers *peers, const struct peer_host *host, struct peer **ret)
{
	bool known = !peer_id_is_zero(host->host_id);
	struct peer *peer;
	int r;

	if (peers->stopped) {
		return -ESHUTDOWN;
	}
	if (known && memcmp(host->host_id, peers->host_id, PEER_HOST_ID) == 0) {
		return err_origin(-EINVAL);
	}
	peer = known ? peers_find(peers, host->host_id) : peers_find_address(peers, host);
	if (!peer || (host->visit && peer->state != PEER_UP)) {
		r = peer_new(peers, &peer);
		if (r < 0) {
			return err_trace(r);
		}
		peer->visit = host->visit;
		r = peer_connect_start(peer, host);
		if (r < 0) {
			peer_down(peer, STATUS_NO_MEMORY, "no memory", NULL);
			return err_trace(r);
		}
	}
	peer->exposed = true;
	*ret = peer;
	return 0;
}
