/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Transport: moves messages between this host and a peer host; knows no collective
 *
 * A message is a 64-byte wire header and a payload of any length, gathered from the sender's
 * memory. Messages to one peer are cut into fragments that take turns (so that nobody waits for a
 * long one; messages of up to TRANSPORT_URGENT bytes go first) and go over whichever stream of the
 * peer is writable. There is no order between messages.
 *
 * The receiver decides where a message goes when its first fragment arrives: handler.recv_begin()
 * must yield a destination at once (memory, the per-fragment callback, or discard). The engine's
 * grants and eager credits (engine/conn.h) make sure that it always can.
 *
 * Thread: the progress thread that owns the context, for everything      Owns: its streams
 * Locks: none
 */
#ifndef ROCECOMM_TRANSPORT_H
#define ROCECOMM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "telemetry/counters.h"
#include "transport/wire.h"
#include "util/list.h"

#define TRANSPORT_URGENT 4096
#define TRANSPORT_MAX_IOV 64 /* pieces of one system call; messages may have more */

struct transport;      /* one per progress thread */
struct transport_peer; /* one per peer host */

/*
 * One message to send. Owned by the caller, untouched by him from transport_send() until `done` is
 * called. `done` may be called from inside transport_send().
 */
struct transport_send {
	struct wire_header header; /* filled by the caller, but for `length` and fragment fields */
	const struct iovec *iov;   /* borrowed until done; niov may be 0 */
	uint32_t niov;
	uint64_t length;	   /* sum of iov */
	struct comm_view *account; /* whose counters it goes to; NULL: nobody's */
	/* @status: 0: the memory may be reused; -ECONNRESET etc.: the peer is gone. */
	void (*done)(struct transport_send *send, int status);
	void *user;

	/* the transport's */
	struct list link;
	uint64_t queued;    /* bytes handed to streams as fragments so far */
	uint32_t in_flight; /* fragments on streams */
	uint32_t iov_index;
	size_t iov_offset;
};

/* Where an arriving message goes. Owned by the handler from recv_begin() until recv_done(). */
struct transport_recv {
	/*
	 * iov == NULL: every fragment goes through the transport's scratch and handler.fragment();
	 * else the payload lands in iov, whose sum is the header's length, and fragment() tells
	 * progress with data == NULL.
	 */
	const struct iovec *iov;
	uint32_t niov;
	bool discard;		   /* read and drop; after recv_begin() by transport_drop() */
	bool rdma;		   /* the caller's: it came over a rail */
	struct comm_view *account; /* as in transport_send; may become NULL at any time */
	uint64_t received;	   /* the transport's: bytes so far */
	void *user;
};

struct transport_handler {
	/*
	 * First fragment of a message. Must set *ret (which stays valid until recv_done, or until
	 * peer_down). Return 0, or negative errno: the peer broke the protocol and is closed.
	 */
	int (*recv_begin)(void *arg, struct transport_peer *peer, const struct wire_header *header,
			  struct transport_recv **ret);
	/*
	 * Bytes [offset, offset + size) are here; fragments may come in any order, and with data
	 * in parts. Both ends are multiples of 64, but for the end of the message.
	 */
	void (*fragment)(void *arg, struct transport_recv *recv, const void *data, uint64_t offset,
			 uint64_t size);
	/* All bytes are here. @recv belongs to the handler again. Also for zero-length messages. */
	void (*recv_done)(void *arg, struct transport_recv *recv);
	/*
	 * The peer is lost: no callback for it follows; every unfinished transport_recv of it is
	 * abandoned (the handler finds them by itself) and every queued send was completed with an
	 * error before.
	 */
	void (*peer_down)(void *arg, struct transport_peer *peer, int error, const char *reason);
};

struct transport_options {
	uint32_t fragment;   /* bytes of payload a fragment, a multiple of 64; default 256 KiB */
	char congestion[16]; /* TCP_CONGESTION, "": as the system has it */
	uint32_t io_threads; /* that make the system calls of bulk streams; 0: all by the caller */
	uint32_t io_spin_us; /* how long they look for more before they sleep */
	uint32_t user_timeout_ms; /* TCP_USER_TIMEOUT: bytes that are not acknowledged */
};

struct transport_stats {
	uint64_t bytes_sent, bytes_received; /* on the wire, headers included */
	uint64_t bytes_copied;		     /* payload out of read-ahead buffers */
	uint64_t syscalls;
};

int transport_new(const struct transport_options *options, const struct transport_handler *handler,
		  void *arg, struct transport **ret);
/* Closes all peers; queued sends complete with -ECANCELED. */
struct transport *transport_free(struct transport *t);

int transport_peer_new(struct transport *t, void *user, struct transport_peer **ret);
void *transport_peer_user(const struct transport_peer *peer);
/*
 * Adds a connected, authenticated stream. @fd: consumed on success. @bulk: may be served by an I/O
 * thread; false for the first of a peer, which carries what is urgent.
 */
int transport_peer_add_stream(struct transport_peer *peer, int fd, bool bulk);
/* Closes streams; queued sends complete with -ECANCELED; peer_down is not called. NULL allowed. */
struct transport_peer *transport_peer_free(struct transport_peer *peer);

/* Queues a message and sends what the streams take now. Never fails: errors come through done. */
void transport_send(struct transport_peer *peer, struct transport_send *send);
/*
 * Nobody waits for the message any more: what is still to come of it is read and dropped, and
 * recv_done() comes all the same. From the return on nothing is written to its memory.
 */
void transport_drop(struct transport_peer *peer, struct transport_recv *recv);
/*
 * Moves what can be moved, without blocking, with a bound on the work of one call.
 * Return: how many system calls moved bytes (0: nothing to do).
 */
int transport_poll(struct transport *t);
/*
 * A descriptor (epoll) that is readable when transport_poll() would have work; for sleeping.
 * transport_arm() prepares it (registers interest in writability where sends are queued); it
 * returns false if there is work already.
 */
int transport_fd(const struct transport *t);
bool transport_arm(struct transport *t);
/* The account is about to be freed: the transport forgets whom the present call served. */
void transport_forget(struct transport *t, const struct comm_view *account);
void transport_get_stats(const struct transport *t, struct transport_stats *ret);
/* What went to a peer and came from it, headers included. */
void transport_peer_bytes(const struct transport_peer *peer, uint64_t *ret_sent,
			  uint64_t *ret_received);

#endif
