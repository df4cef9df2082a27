/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer, connecting: try the addresses of a host until one leads to it
 *
 * In order of preference, a new one every PEERS_ATTEMPT_MS while earlier ones are still under way,
 * at once when they have failed. An address that looks right may lead elsewhere (docker0 has
 * 172.17.0.1 on every host, that is ourselves), so the first to show the host_id that we look for
 * wins, not the first that connects. The others stay until the acceptor has settled on the winner.
 * What every address answered is kept for the sentence that says why none did.
 *
 * Thread: control      Owns: attempts and their links      Locks: none      See: peers_impl.h
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "job/peers_impl.h"
#include "proto/base.h"
#include "proto/msg.h"

static void on_connect_timer(uv_timer_t *timer);

static void attempt_vfail(struct peer_attempt *a, enum status status, const char *fmt, va_list args)
{
	struct peer *peer = a->peer;

	vsnprintf(a->cause, sizeof(a->cause), fmt, args);
	a->status = status;
	a->fits = false;
	a->link = link_close(a->link, false);
	if (peer->winner == a) {
		peer->winner = NULL;
	}
}

/* Notes why an address is of no use. */
static attr_printf(3, 4) void attempt_fail(struct peer_attempt *a, enum status status,
					   const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	attempt_vfail(a, status, fmt, args);
	va_end(args);
}

/* The same, and goes on with what is left. */
static attr_printf(3, 4) void attempt_lost(struct peer_attempt *a, enum status status,
					   const char *fmt, ...)
{
	struct peer *peer = a->peer;
	va_list args;

	va_start(args, fmt);
	attempt_vfail(a, status, fmt, args);
	va_end(args);
	peer_connect_next(peer);
}

/* This link is the one: say so, by our LinkHello on it. */
static void attempt_choose(struct peer_attempt *a)
{
	struct peer *peer = a->peer;
	int r;

	r = peer_identify(peer, a->host_id, a->name);
	if (r == 0) {
		r = peer->visit
			    ? link_send_frame(a->link, peer->peers->hello_visit,
					      peer->peers->hello_visit_size)
			    : link_send_frame(a->link, peer->peers->hello, peer->peers->hello_size);
	}
	if (r < 0) {
		attempt_lost(a, STATUS_NO_MEMORY, "%s", strerror(-r));
		return;
	}
	peer->winner = a;
}

/* Settings differ: no other address would help. */
static void attempt_refuse(struct peer_attempt *a, const struct peer_hello *hello,
			   const char *differs)
{
	struct peer *peer = a->peer;
	char reason[PEER_REASON];

	peer_text_copy(peer->name, sizeof(peer->name), hello->name);
	snprintf(reason, sizeof(reason),
		 "hosts %s and %s must have the same settings, but as %s sees it %s",
		 peer->peers->name, hello->name, peer->peers->name, differs);
	peer_goodbye(a->link, reason);
	a->link = link_close(a->link, true);
	peer_down(peer, STATUS_MISMATCH, reason, NULL);
}

/* Who answers at this address? */
static void attempt_hello(struct peer_attempt *a, const struct peer_hello *hello)
{
	struct peer *peer = a->peer, *other;
	struct peers *peers = peer->peers;
	char differs[PEER_REASON / 2];

	if (memcmp(hello->host_id, peers->host_id, PEER_HOST_ID) == 0) {
		attempt_lost(a, STATUS_UNREACHABLE, "leads back to this host%s",
			     address_is_loopback(&a->address)
				     ? ", for that host has no key_file, or no address that it "
				       "can tell others: see its log"
				     : "");
		return;
	}
	if (!peer_id_is_zero(peer->host_id) &&
	    memcmp(hello->host_id, peer->host_id, PEER_HOST_ID) != 0) {
		attempt_lost(a, STATUS_UNREACHABLE,
			     "another daemon answers there (host %s; was it restarted?)",
			     hello->name);
		return;
	}
	other = peers_find(peers, hello->host_id);
	if (other && other != peer && !peer->visit) {
		peer_merge(peer, other);
		return;
	}
	if (peer_hello_differs(hello, peers->settings, peers->nsettings, differs,
			       sizeof(differs))) {
		attempt_refuse(a, hello, differs);
		return;
	}
	memcpy(a->host_id, hello->host_id, PEER_HOST_ID);
	snprintf(a->name, sizeof(a->name), "%s", hello->name);
	a->fits = true;
	if (!peer->winner) {
		attempt_choose(a);
	}
}

/* The acceptor has settled on this link. */
static void attempt_won(struct peer_attempt *a, const struct frame *frame)
{
	struct peer *peer = a->peer;
	struct peer_tokens tokens;

	if (peer_tokens_parse(frame->body, frame->length, &tokens) != 0) {
		attempt_lost(a, STATUS_PROTOCOL, "its tokens are damaged");
		return;
	}
	peer_adopt(peer, take_ptr(a->link), true);
	peer_streams_open(peer, &tokens);
	OPENSSL_cleanse(&tokens, sizeof(tokens));
}

static void on_attempt_ready(void *arg, struct link *link)
{
	/* The acceptor speaks first. */
}

static void on_attempt_frame(void *arg, struct link *link, const struct frame *frame)
{
	struct peer_attempt *a = arg;
	char reason[PEER_REASON];
	struct peer_hello hello;

	if (frame->type == PEER_MSG_GOODBYE &&
	    peer_goodbye_parse(frame->body, frame->length, reason) == 0) {
		attempt_lost(a, STATUS_UNREACHABLE, "refused there: %s", reason);
	} else if (frame->type == PEER_MSG_LINK_HELLO && !a->fits) {
		if (peer_hello_parse(frame->body, frame->length, &hello) != 0) {
			attempt_lost(a, STATUS_PROTOCOL, "its first message is damaged");
			return;
		}
		attempt_hello(a, &hello);
		peer_hello_deinit(&hello);
	} else if (frame->type == PEER_MSG_DATA_TOKENS && a == a->peer->winner) {
		attempt_won(a, frame);
	} else {
		attempt_lost(a, STATUS_PROTOCOL, "a message came that does not belong there");
	}
}

static void on_attempt_closed(void *arg, struct link *link, enum status status, const char *cause)
{
	struct peer_attempt *a = arg;

	a->link = NULL;
	if (status == STATUS_UNREACHABLE && strcmp(cause, uv_strerror(UV_ECONNREFUSED)) == 0) {
		attempt_lost(a, status, "%s (does rocecommd run there, %sand on this port?)", cause,
			     address_is_loopback(&a->address)
				     ? ""
				     : "with a key_file - without one it listens on loopback "
				       "only - ");
		return;
	}
	attempt_lost(a, status == STATUS_PEER_DIED ? STATUS_UNREACHABLE : status, "%s", cause);
}

static const struct link_events attempt_events = {
	.ready = on_attempt_ready,
	.frame = on_attempt_frame,
	.closed = on_attempt_closed,
};

/* Begins with the next address. */
static void attempt_begin(struct peer_attempt *a)
{
	struct peers *peers = a->peer->peers;
	int r;

	a->begun = true;
	if (a->status != STATUS_OK) {
		return; /* refused when the list was made */
	}
	r = peers_tls(peers);
	if (r == 0) {
		r = link_new_connect(&peers->link_host, &a->address, &attempt_events, a, &a->link);
	}
	if (r < 0) {
		attempt_fail(a, STATUS_NO_MEMORY, "%s", strerror(-r));
	}
}

/* Fills an address of the list; one that cannot be tried says why at once. */
static void attempt_init(struct peer_attempt *a, struct peer *peer, const char *text, uint16_t port)
{
	a->peer = peer;
	if (address_parse(text, port, &a->address) < 0 || port == 0) {
		peer_text_copy(a->text, sizeof(a->text), text);
		attempt_fail(a, STATUS_UNREACHABLE, port ? "not a numeric address" : "no port");
		return;
	}
	address_format(&a->address, true, a->text, sizeof(a->text));
	if (!peer->peers->has_key && !address_is_loopback(&a->address)) {
		attempt_fail(a, STATUS_PERMISSION, PEERS_NO_KEY);
	}
}

/* The code that says most about all attempts. */
static enum status connect_status(const struct peer *peer)
{
	static const enum status order[] = {STATUS_MISMATCH, STATUS_VERSION, STATUS_PERMISSION};

	for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
		for (size_t k = 0; k < peer->nattempts; k++) {
			if (peer->attempts[k].status == order[i]) {
				return order[i];
			}
		}
	}
	return STATUS_UNREACHABLE;
}

/* Nothing is left to try: the sentence lists each address with its cause. */
static void connect_give_up(struct peer *peer)
{
	char text[PEER_REASON];
	size_t have = 0;

	snprintf(text, sizeof(text), "no address of it is known");
	for (size_t i = 0; i < peer->nattempts && have < sizeof(text); i++) {
		const struct peer_attempt *a = &peer->attempts[i];
		bool same = i > 0 && strcmp(a->cause, peer->attempts[i - 1].cause) == 0;
		bool again = i + 1 < peer->nattempts &&
			     strcmp(a->cause, peer->attempts[i + 1].cause) == 0;

		/* Addresses with the same cause share it: "a, b: cause; c: cause". */
		have += (size_t)snprintf(text + have, sizeof(text) - have, "%s%s%s%s",
					 i == 0 ? ""
					 : same ? ", "
						: "; ",
					 a->text, again ? "" : ": ", again ? "" : a->cause);
	}
	peer_down(peer, connect_status(peer), text, NULL);
}

static void connect_arm(struct peer *peer)
{
	uint64_t now = uv_now(peer->peers->loop), at = peer->deadline;

	if (peer->next < peer->nattempts) {
		at = MIN(at, peer->next_at);
	}
	uv_timer_start(&peer->timer, on_connect_timer, at > now ? at - now : 0, 0);
}

/* See peers_impl.h. */
void peer_connect_next(struct peer *peer)
{
	bool live = false;

	if (peer->state != PEER_CONNECTING) {
		return;
	}
	if (!peer->winner && peer_adopt_parked(peer)) {
		return;
	}
	for (size_t i = 0; i < peer->nattempts && !peer->winner; i++) {
		if (peer->attempts[i].fits) {
			attempt_choose(&peer->attempts[i]); /* comes back here if that fails */
			return;
		}
	}
	for (size_t i = 0; i < peer->nattempts; i++) {
		live = live || peer->attempts[i].link;
	}
	while (!live && peer->next < peer->nattempts) {
		struct peer_attempt *a = &peer->attempts[peer->next++];

		attempt_begin(a);
		peer->next_at = uv_now(peer->peers->loop) + PEERS_ATTEMPT_MS;
		live = a->link != NULL;
	}
	if (live) {
		connect_arm(peer);
	} else {
		connect_give_up(peer);
	}
}

/* Time is up for all attempts. */
static void connect_timed_out(struct peer *peer)
{
	for (size_t i = 0; i < peer->nattempts; i++) {
		struct peer_attempt *a = &peer->attempts[i];

		if (a->link && a == peer->winner) {
			attempt_fail(a, STATUS_UNREACHABLE, "did not accept the link within %u ms",
				     peer->peers->connect_timeout_ms);
		} else if (a->link) {
			attempt_fail(a, STATUS_UNREACHABLE, "no answer within %u ms",
				     peer->peers->connect_timeout_ms);
		} else if (!a->begun && a->status == STATUS_OK) {
			attempt_fail(a, STATUS_UNREACHABLE, "not tried");
		}
	}
	peer->next = peer->nattempts;
	peer_connect_next(peer); /* takes a parked link, or gives up */
}

static void on_connect_timer(uv_timer_t *timer)
{
	struct peer *peer = timer->data;
	uint64_t now = uv_now(peer->peers->loop);

	if (now >= peer->deadline) {
		connect_timed_out(peer);
		return;
	}
	if (peer->next < peer->nattempts && now >= peer->next_at) {
		attempt_begin(&peer->attempts[peer->next++]);
		peer->next_at = now + PEERS_ATTEMPT_MS;
	}
	peer_connect_next(peer);
}

/**
 * peer_connect_start() - begin; the first address is tried from the loop
 */
int peer_connect_start(struct peer *peer, const struct peer_host *host)
{
	size_t n = MIN(host->naddresses, (size_t)PEER_MAX_ADDRESSES);
	int r;

	peer->attempts = calloc(n + 1, sizeof(*peer->attempts));
	if (!peer->attempts) {
		return err_origin(-ENOMEM);
	}
	for (size_t i = 0; i < n; i++) {
		attempt_init(&peer->attempts[i], peer, host->addresses[i], host->port);
	}
	peer->nattempts = n;
	if (!peer_id_is_zero(host->host_id)) {
		r = peer_identify(peer, host->host_id, host->name);
		if (r < 0) {
			return r;
		}
	} else if (host->name) {
		peer_text_copy(peer->name, sizeof(peer->name), host->name);
	}
	peer->next_at = uv_now(peer->peers->loop);
	peer->deadline = peer->next_at + peer->peers->connect_timeout_ms;
	uv_timer_start(&peer->timer, on_connect_timer, 0, 0);
	return 0;
}

/**
 * peer_connect_stop() - drop all attempts; what they were is kept for peer_name()
 */
void peer_connect_stop(struct peer *peer)
{
	for (size_t i = 0; i < peer->nattempts; i++) {
		peer->attempts[i].link = link_close(peer->attempts[i].link, false);
		peer->attempts[i].fits = false;
	}
	peer->winner = NULL;
	uv_timer_stop(&peer->timer);
}

/**
 * peer_connect_same() - is this peer being looked for at the same addresses?
 */
bool peer_connect_same(const struct peer *peer, const struct peer_host *host)
{
	struct sockaddr_storage address;

	if (peer->nattempts != host->naddresses || peer->nattempts == 0) {
		return false;
	}
	for (size_t i = 0; i < peer->nattempts; i++) {
		if (address_parse(host->addresses[i], host->port, &address) < 0 ||
		    address_port(&address) != address_port(&peer->attempts[i].address) ||
		    !address_equal(&address, &peer->attempts[i].address)) {
			return false;
		}
	}
	return true;
}
