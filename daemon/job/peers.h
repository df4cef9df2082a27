/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peers: the links from this daemon to the daemons of other hosts
 *
 * One link a pair of hosts, shared by all jobs: a TLS 1.3 connection for messages, and `streams`
 * data connections that were proved by one-time tokens from inside it and then belong to whoever
 * takes them from events.stream(). Everything goes over one TCP port. Who connects first does not
 * matter: when both sides do at once, both keep the link that the smaller host_id initiated.
 *
 * Who only has a few words for another host may *visit* it: on a link of its own, without data
 * connections, beside the one that jobs share.
 *
 * There is at most one struct peer a host, not counting visits. It exists from peers_connect(), or
 * from the first event that names it, until events.down() or events.merged() has returned; nothing
 * may use it afterwards. No call blocks, looks up a name, or calls an event before it returns
 * (peers_stop() does: it tells `down` for every peer).
 *
 * The program must ignore SIGPIPE: libuv writes to sockets with write().
 *
 * Thread: control      Owns: sockets, TLS state, peers      Locks: none      See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_PEERS_H
#define ROCECOMM_JOB_PEERS_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "proto/status.h"

#define PEER_HOST_ID 16	      /* bytes */
#define PEER_MAX_STREAMS 64   /* data connections of one peer */
#define PEER_MAX_ADDRESSES 32 /* candidates of one host that are tried */
#define PEER_MAX_SETTINGS 64
#define PEERS_CAUSE 512 /* bytes of why a host was refused */

struct peers;
struct peer;

/* A value that must be the same on both hosts. */
struct peers_setting {
	const char *key;
	const char *value;
};

/* All pointers are borrowed during peers_new() only. */
struct peers_options {
	uint8_t host_id[PEER_HOST_ID];
	const char *name;	      /* of this host, for other hosts' error sentences */
	const char *version;	      /* of this daemon, for other hosts' logs; NULL: "" */
	const char *const *addresses; /* numeric, what this host tells others to try, best first */
	size_t naddresses;
	uint16_t port;		   /* 0: any free one, see peers_port() */
	const char *const *listen; /* numeric; none: all with a key, 127.0.0.1 and ::1 without */
	size_t nlisten;
	const char *key_path; /* NULL: no key, loopback only */
	unsigned int streams; /* data connections a peer, up to PEER_MAX_STREAMS */
	unsigned int heartbeat_ms;
	unsigned int peer_timeout_ms; /* nothing heard for so long: down */
	unsigned int connect_timeout_ms;
	const struct peers_setting *settings;
	size_t nsettings;
};

struct peers_events {
	/* The link is agreed on and all data connections were handed over. At most once a peer. */
	void (*up)(void *arg, struct peer *peer);
	/*
	 * The peer was up and is lost, or could not be connected. Once, the last event of a peer
	 * that peers_connect() returned or that an event named; the peer is freed when this
	 * returns.
	 * @reason: a sentence that names the host and the cause
	 */
	void (*down)(void *arg, struct peer *peer, enum status status, const char *reason);
	/* A message other than those that keep the link. Never before up. @body: borrowed. */
	void (*message)(void *arg, struct peer *peer, uint16_t type, const uint8_t *body,
			size_t size);
	/*
	 * An authenticated data connection (blocking mode unspecified, close-on-exec). Before up,
	 * once for every index from 0, in any order. @fd: consumed.
	 */
	void (*stream)(void *arg, struct peer *peer, int fd, unsigned int index);
	/*
	 * @from was connected to without a known host_id, and turned out to be the host of @into:
	 * use
	 * @into instead. What was queued on @from is queued on @into. If peer_is_up(@into), `up`
	 * was called for it before and is not called again; else it follows. @from is freed when
	 * this returns, without `down`.
	 */
	void (*merged)(void *arg, struct peer *from, struct peer *into);
	/*
	 * When data came from the peer last, in ms of the loop; 0: not known. A host whose data
	 * arrives is alive, though the link be silent: it may go over an interface that is down
	 * while data takes another. NULL allowed.
	 */
	uint64_t (*heard)(void *arg, struct peer *peer);
};

/* A host that wanted a link and did not get one: what those who wait for it should know. */
struct peers_refusal {
	char address[64]; /* without port */
	uint64_t at;	  /* uv_now() of the loop */
	char cause[PEERS_CAUSE];
};

/* Where another daemon may be. Borrowed during peers_connect(). */
struct peer_host {
	uint8_t host_id[PEER_HOST_ID]; /* all zero: unknown, any but our own will do */
	const char *name;	       /* for sentences; NULL: unknown */
	const char *const *addresses;  /* numeric, in order of preference */
	size_t naddresses;
	uint16_t port;
	bool visit; /* no data connections are needed */
};

/*
 * Loads the key, listens. What is wrong is logged as a sentence. Events come from the loop.
 * Return: 0, or negative errno (-EACCES: key file, -EADDRINUSE: port, -EINVAL: an option).
 */
int peers_new(uv_loop_t *loop, const struct peers_options *options,
	      const struct peers_events *events, void *arg, struct peers **ret);
/* Says goodbye with @reason to all, stops listening, calls down(STATUS_SHUTDOWN) for each peer. */
void peers_stop(struct peers *peers, const char *reason);
/* Stops (if peers_stop() was not called) and calls @done when nothing is left in the loop. */
void peers_close(struct peers *peers, void (*done)(void *arg), void *arg);
/* After peers_close() is done. NULL allowed. */
struct peers *peers_free(struct peers *peers);

/* The port that is listened on. */
uint16_t peers_port(const struct peers *peers);
/* Does @host name this daemon: by host_id, or, when that is unknown, by a local address and port?
 */
bool peers_is_self(const struct peers *peers, const struct peer_host *host);
/* From now on others are told these addresses. Return: 0, -EINVAL (too long), -ENOMEM. */
int peers_set_addresses(struct peers *peers, const char *const *addresses, size_t naddresses);
/* The last one of a host that has not been let in since; NULL: none. */
const struct peers_refusal *peers_last_refusal(const struct peers *peers);
/* The peer of a host, connecting or up; or NULL. */
struct peer *peers_find(struct peers *peers, const uint8_t *host_id);

/**
 * peers_connect() - have a link to a host
 * @host:  borrowed; must not be this daemon (-EINVAL)
 * @ret:   the existing peer of that host (if peer_is_up(), no event follows), or one that is being
 *         connected: up, down or merged follows. With @host->visit: that peer, if it is up already,
 *         else a new visit
 *
 * Return: 0, -EINVAL, -ESHUTDOWN after peers_stop(), -ENOMEM.
 */
int peers_connect(struct peers *peers, const struct peer_host *host, struct peer **ret);

/*
 * Queues a message; it is sent when the peer is up (so at once, then), in order.
 * Return: 0, -EMSGSIZE (body above LIMIT_PEER_BODY), -ENOBUFS (the peer does not read; it will go
 * down), -ENOMEM.
 */
int peer_send(struct peer *peer, uint16_t type, const ProtobufCMessage *msg);
/* The same for a message that is packed already, header and body. */
int peer_send_frame(struct peer *peer, const uint8_t *frame, size_t size);
/* Ends a visit, when what was queued is sent; `down` follows from the loop. */
void peer_release(struct peer *peer);
/*
 * Ends the link, because its data connections are of no use any more: the other host is told
 * @reason, and `down` follows from the loop. The next peers_connect() makes a new one.
 */
void peer_break(struct peer *peer, const char *reason);

/* PEER_HOST_ID bytes; all zero while unknown. */
const uint8_t *peer_host_id(const struct peer *peer);
/* Never NULL; what the host calls itself, or the caller's name for it, or its first address. */
const char *peer_name(const struct peer *peer);
/* "10.1.0.2:7470 via eth0"; "" while connecting. */
const char *peer_address(const struct peer *peer);
bool peer_is_up(const struct peer *peer);
/* Of either side. */
bool peer_is_visit(const struct peer *peer);
/* A pointer of the caller's, NULL at first. */
void peer_set_user(struct peer *peer, void *user);
void *peer_user(const struct peer *peer);

#endif
