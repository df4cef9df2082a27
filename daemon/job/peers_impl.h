/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers, inside: what the files peers*.c and peer*.c share
 *
 *	peers.c		the set: options, start and stop, heartbeats, look-up
 *	peers_listen.c	accepted connections until it is known whose they are
 *	peer.c		one host: agreeing on a link, up and down, messages
 *	peer_connect.c	trying the addresses of a host
 *	peer_stream.c	data connections
 *	peer_wire.c	the link's own messages
 *
 * How two sides agree on one link: the acceptor sends LinkHello first; the initiator answers on the
 * one connection that it wants (the winner); the acceptor settles it by DataTokens. An acceptor
 * whose own connection to the same host has no winner gives that up. If it has one, both sides
 * wait for each other: then the one with the smaller host_id keeps its own link and lets the other
 * wait (parked), the one with the larger id accepts. A link that arrives while another is in use is
 * parked too: either the other side drops it (it accepted ours meanwhile), or the one in use is
 * about to be found dead.
 *
 * Thread: control      Owns: see each struct      Locks: none      See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_PEERS_IMPL_H
#define ROCECOMM_JOB_PEERS_IMPL_H

#include "job/address.h"
#include "job/link.h"
#include "job/peer_wire.h"
#include "job/peers.h"
#include "util/hashmap.h"
#include "util/list.h"

#define PEERS_MAX_LISTEN 16
#define PEERS_MAX_INCOMING 64	      /* accepted connections of unknown origin */
#define PEERS_INCOMING_MS 5000	      /* so long may one stay unknown */
#define PEERS_EVICT_MS 1000	      /* so long when others want its place */
#define PEERS_ATTEMPT_MS 200	      /* then the next address is tried as well */
#define PEER_EARLY_MAX (16u << 20)    /* bytes of messages that come before up */
#define PEER_QUEUE_MAX LINK_QUEUE_MAX /* bytes of messages that wait for up */

#define PEERS_NO_KEY \
	"no cluster key: run `rocectl key new` and copy /etc/rocecomm/cluster.key to all hosts"

struct peers_listener {
	struct peers *peers;
	uv_poll_t poll;
	int fd;
	bool open; /* poll is in the loop */
};

struct peers {
	struct link_host link_host;
	uv_loop_t *loop;
	struct peers_events events;
	void *arg;

	uint8_t host_id[PEER_HOST_ID];
	char name[LIMIT_NAME];
	char version[LIMIT_NAME];
	uint16_t port;
	bool has_key;
	uint8_t key[TLS_KEY_SIZE];
	unsigned int streams, heartbeat_ms, peer_timeout_ms, connect_timeout_ms;
	struct peers_setting *settings; /* owned, as are the strings */
	size_t nsettings;
	uint8_t *hello; /* our LinkHello as a frame, owned */
	size_t hello_size;
	uint8_t *hello_visit; /* the same for a visit, owned */
	size_t hello_visit_size;

	struct list all;      /* struct peer */
	struct hashmap by_id; /* struct peer whose host_id is known */
	struct list incoming; /* oldest first */
	unsigned int nincoming;
	struct peers_listener listener[PEERS_MAX_LISTEN];
	size_t nlisteners;
	uv_timer_t listen_timer; /* while listening is paused ... */
	bool full;		 /* ... until an incoming connection has gone */

	uv_timer_t beat_timer; /* while a link is in use */
	uint64_t beat_due, beat_expected;
	uint64_t warned; /* log_rate() */
	struct peers_refusal refusal;
	struct sockaddr_storage refused; /* whose it is; family 0: nobody's */

	unsigned int handles; /* things of ours that the loop has not let go of */
	bool stopped, closing;
	void (*done)(void *arg);
	void *done_arg;
};

/* One address of a host. */
struct peer_attempt {
	struct peer *peer;
	struct sockaddr_storage address;
	char text[ADDRESS_TEXT];
	struct link *link; /* owned; NULL: not begun or failed */
	bool begun, fits;  /* fits: its LinkHello shows the host that we want */
	char name[LIMIT_NAME];
	uint8_t host_id[PEER_HOST_ID];
	enum status status;
	char cause[PEER_REASON];
};

struct peer_message {
	struct list link;
	uint16_t type;
	size_t size;
	uint8_t data[];
};

enum peer_state { PEER_CONNECTING, PEER_LINKED, PEER_UP, PEER_GONE };

struct peer {
	struct list link; /* in peers.all */
	struct peers *peers;
	enum peer_state state;
	bool exposed; /* the owner knows it: down is due */
	bool visit;   /* not the one of its host: no data connections, not in by_id */
	bool leaving; /* a visit that is over */
	bool id_known;
	uint8_t host_id[PEER_HOST_ID];
	char name[LIMIT_NAME];
	char address[ADDRESS_TEXT + 32];
	void *user;

	/* until linked */
	struct peer_attempt *attempts;
	size_t nattempts, next;
	struct peer_attempt *winner;
	uint64_t deadline, next_at;
	uv_timer_t timer;

	struct link *tls;
	bool initiator;
	struct sockaddr_storage local, remote;
	struct link *parked;
	struct peer_hello parked_hello;

	struct peer_tokens *tokens; /* unused ones, until up; at the acceptor, owned */
	bool token_used[PEER_MAX_STREAMS];
	unsigned int nstreams, streams_ready;
	struct list streams; /* struct peer_stream, under way */

	struct list queue; /* to send when up */
	size_t queue_size;
	struct list early; /* came before up */
	size_t early_size;
	char *broken;	/* owned; by peer_break() */
	uint64_t heard; /* raised above link_heard() after a stall of our own */
};

/* peers.c */
void peers_hold(struct peers *peers);
void peers_drop(struct peers *peers);
int peers_tls(struct peers *peers);
void peers_beat_start(struct peers *peers);

/* peers_listen.c */
int peers_listen(struct peers *peers, const struct peers_options *options);
void peers_listen_start(struct peers *peers);
void peers_listen_stop(struct peers *peers);

/* peer.c */
int peer_new(struct peers *peers, struct peer **ret);
/* A visitor comes in. @link: consumed */
void peer_visited(struct peers *peers, struct link *link, const struct peer_hello *hello);
int peer_identify(struct peer *peer, const uint8_t *host_id, const char *name);
/* @link: consumed; goes on as the peer's. */
void peer_adopt(struct peer *peer, struct link *link, bool initiator);
/* @link: consumed. @hello: content is moved. */
void peer_park(struct peer *peer, struct link *link, struct peer_hello *hello);
bool peer_adopt_parked(struct peer *peer);
void peer_merge(struct peer *from, struct peer *into);
void peer_check_up(struct peer *peer);
void peer_beat(struct peer *peer);
/* The end of a peer, whatever its state; tells the owner if he knows it. @goodbye: or NULL. */
void peer_down(struct peer *peer, enum status status, const char *reason, const char *goodbye);
int peer_goodbye(struct link *link, const char *reason);

/* peer_connect.c */
int peer_connect_start(struct peer *peer, const struct peer_host *host);
void peer_connect_stop(struct peer *peer);
/* The winner is lost or gone: chooses another, tries the next, or gives up. */
void peer_connect_next(struct peer *peer);
bool peer_connect_same(const struct peer *peer, const struct peer_host *host);

/* peer_stream.c */
void peer_streams_open(struct peer *peer, const struct peer_tokens *tokens);
void peer_streams_stop(struct peer *peer);
/* Is it a data connection of ours? @fd: consumed if so. */
bool peers_stream_accept(struct peers *peers, const uint8_t *hello, int fd);

#endif
