/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TCP backend, inside view: contexts, peers, streams
 *
 * A peer has up to TCP_STREAMS_MAX streams (connected sockets). Its queues hold whole messages; a
 * stream that can write takes the next fragments from them, so a slow stream holds back only what
 * it has already taken. Receiving is per stream; messages of several fragments meet in the peer's
 * table of open receives.
 *
 * Re-entrancy: every callback may call transport_send() and transport_peer_free(). Therefore a peer
 * is freed only when no function of the transport is on the stack (`depth`), and whoever called out
 * looks at peer->state before he goes on.
 *
 * Thread: the progress thread that owns the context      Owns: see transport.h      Locks: none
 */
#ifndef ROCECOMM_TRANSPORT_TCP_H
#define ROCECOMM_TRANSPORT_TCP_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "transport/tcp_io.h"
#include "transport/transport.h"
#include "transport/wire.h"
#include "util/list.h"

#define TCP_STREAMS_MAX 16
#define TCP_BATCH 24		 /* fragments that one sendmsg may carry */
#define TCP_BATCH_BYTES 65536	 /* a batch takes no further fragment from here on */
#define TCP_TURNS 256		 /* messages whose fragments take turns; fewer than TCP_SLOTS */
#define TCP_SLOTS 4096		 /* receives of several fragments that one peer may have open */
#define TCP_BUCKETS 1024	 /* power of two */
#define TCP_BUFFER 65536	 /* read-ahead of one stream */
#define TCP_LARGE 16384		 /* fragments above this go straight to their destination */
#define TCP_BUDGET (1024 * 1024) /* bytes that one stream moves in one call */
#define TCP_DIRECT 4		 /* up to that many streams are read without asking epoll */
#define TCP_IO_MAX 16		 /* I/O threads */
#define TCP_BULK 131072		 /* messages above this go to lanes, where there are any */
#define TCP_PIECE 65536		 /* the least of a message that a lane shares with others */
#define TCP_ALIGN 64		 /* of fragments within a message */

enum tcp_peer_state {
	TCP_PEER_OPEN,
	TCP_PEER_FAILED, /* broken; sends and peer_down still to be told by transport_poll() */
	TCP_PEER_DEAD,	 /* streams closed, queues empty */
};

/* A message of several fragments that is arriving. */
struct tcp_slot {
	struct wire_header header; /* of its first fragment */
	struct transport_recv *recv;
	uint64_t claimed;	  /* bytes of all fragments that began */
	uint64_t seams;		  /* see seam_hash() */
	struct tcp_cursor cursor; /* where the last fragment that began starts in iov */
	uint64_t cursor_at;	  /* and in the message */
	uint16_t next;		  /* chain of a bucket or of free slots: index + 1 */
};

/* Messages without a short one's privilege. */
struct tcp_queue {
	struct list waiting; /* no fragment taken yet */
	struct list turns;   /* some fragments taken */
	uint32_t turn_count;
	bool turn; /* whose turn is it: turns (true) or waiting */
};

struct tcp_stream {
	struct transport_peer *peer;
	struct tcp_lane *lane; /* an I/O thread makes its system calls; NULL: we do */
	struct list link;      /* transport.streams, if it is not a lane */
	struct list ready;     /* transport.ready: may go on without new bytes */
	int fd;
	uint32_t index;
	uint32_t events; /* registered with epoll */
	bool blocked;	 /* the socket took less than it was offered */
	bool stalled;	 /* its next header needs a slot, and none is free */

	uint32_t batch_head, batch_count;
	struct tcp_fragment batch[TCP_BATCH];

	/* The fragment that is arriving; recv == NULL: a header is next. */
	struct transport_recv *recv;
	struct tcp_slot *slot; /* NULL: the fragment is the whole message */
	uint64_t offset, size; /* of the fragment */
	uint64_t left;	       /* of it to read */
	uint64_t position;     /* in the message: the next byte to tell handler.fragment() */
	struct tcp_cursor cursor;
	bool large; /* the last fragment was */
	uint32_t carried;
	uint8_t carry[TCP_ALIGN]; /* bytes behind the last whole TCP_ALIGN of a fragment's part */
	uint32_t start, end;	  /* of what is unread in buffer */
	uint8_t *buffer;
};

struct transport_peer {
	struct transport *transport;
	void *user;
	struct list link;    /* transport.peers or, freed, transport.garbage */
	struct list sending; /* transport.sending: has something to send */
	struct list fresh;   /* transport.fresh: got it during transport_poll() */
	struct list failed;  /* transport.failed */
	enum tcp_peer_state state;
	bool freed;
	bool flushing;
	int error;
	const char *reason;

	uint32_t stream_count, next_stream;
	uint32_t next_lane;  /* the stream that bulk goes to next, if it has least to write */
	uint32_t lane_count; /* of the streams */
	struct tcp_stream *streams[TCP_STREAMS_MAX];

	struct list urgent;	/* short messages */
	struct tcp_queue small; /* the others that our own streams carry */
	struct tcp_queue bulk;	/* those that lanes carry */

	uint32_t slots_used;
	uint32_t slots_fresh; /* the slots from here on were never used */
	uint16_t slots_free;
	uint16_t buckets[TCP_BUCKETS];
	struct tcp_slot *slots;

	uint64_t bytes_sent, bytes_received;
};

struct transport {
	struct transport_options options;
	struct transport_handler handler;
	void *arg;
	int epoll;
	uint32_t depth; /* functions of the transport on the stack that call out */
	bool polling;
	int moved;	       /* system calls of this transport_poll() that moved bytes */
	uint32_t stream_count; /* without lanes */
	unsigned int io_count;
	struct tcp_io *io[TCP_IO_MAX];
	struct tcp_bell bell; /* what I/O threads ring */
	struct list peers, streams;
	struct list sending, fresh, failed, ready, garbage;
	uint8_t *scratch; /* one fragment and what was carried */
	struct transport_stats stats;
	struct comm_view *served; /* whose bytes the present recvmsg() brought */
	bool served_others;	  /* and there were some of others */
};

/* tcp.c */
void tcp_enter(struct transport *t);
void tcp_leave(struct transport *t);
void tcp_peer_fail(struct transport_peer *peer, int error, const char *reason);
/* The same after a system call on one of its sockets. @error: errno. */
void tcp_peer_broke(struct transport_peer *peer, int error, const char *reason);

/* tcp_stream.c */
void tcp_stream_watch(struct tcp_stream *s);
void tcp_stream_close(struct tcp_stream *s);

/* tcp_send.c */
void tcp_queue_init(struct tcp_queue *q);
/* Takes one fragment of a message for lanes. Return: false if there is none. */
bool tcp_take_bulk(struct transport_peer *peer, struct tcp_fragment *ret);
/* A fragment is through; calls out. */
void tcp_fragment_done(struct transport_send *send);
bool tcp_stream_wants(const struct tcp_stream *s);
void tcp_peer_flush(struct transport_peer *peer);
void tcp_flush_fresh(struct transport *t);
void tcp_flush_sending(struct transport *t);
void tcp_peer_cancel(struct transport_peer *peer, int status);

/* tcp_lane.c */
uint32_t tcp_lanes_idle(const struct transport_peer *peer);
void tcp_lanes_fill(struct transport_peer *peer);
void tcp_lanes_poll(struct transport *t);
void tcp_lane_poll(struct tcp_lane *lane);

/* tcp_recv.c */
bool tcp_fragment_begin(struct tcp_stream *s, const struct wire_header *h);
void tcp_fragment_end(struct tcp_stream *s);
void tcp_stream_receive(struct tcp_stream *s);
void tcp_stream_parse(struct tcp_stream *s);

/* Whom does the present system call serve? */
static inline void tcp_served_begin(struct transport *t)
{
	t->served = NULL;
	t->served_others = false;
}

static inline void tcp_served(struct transport *t, struct comm_view *account)
{
	if (!account || (t->served && t->served != account)) {
		t->served_others = true;
	} else {
		t->served = account;
	}
}

/* It is over, and belongs to whom it served alone. */
static inline void tcp_served_end(struct transport *t)
{
	if (t->served && !t->served_others) {
		counter_add(&t->served->syscalls, 1);
	}
	tcp_served_begin(t);
}

/* Moves on by @n bytes; the pieces must have them. */
static inline void tcp_cursor_advance(struct tcp_cursor *c, const struct iovec *iov, uint32_t niov,
				      uint64_t n)
{
	while (n > 0) {
		size_t piece;

		assert(c->index < niov);
		piece = iov[c->index].iov_len - c->offset;
		if (n < piece) {
			c->offset += n;
			return;
		}
		n -= piece;
		c->index++;
		c->offset = 0;
	}
}

/* Writes the pieces of the next @n bytes to @out, at most @max of them, and returns how many. */
static inline uint32_t tcp_cursor_map(struct tcp_cursor c, const struct iovec *iov, uint32_t niov,
				      uint64_t n, struct iovec *out, uint32_t max)
{
	uint32_t count = 0;

	while (n > 0 && count < max) {
		size_t piece;

		assert(c.index < niov);
		piece = MIN(iov[c.index].iov_len - c.offset, n);
		if (piece > 0) {
			out[count].iov_base = (uint8_t *)iov[c.index].iov_base + c.offset;
			out[count++].iov_len = piece;
			n -= piece;
		}
		c.index++;
		c.offset = 0;
	}
	return count;
}

/* The pieces of what is left of a fragment: header, then payload; at most @max (> 0) of them. */
static inline uint32_t tcp_fragment_map(const struct tcp_fragment *f, struct iovec *out,
					uint32_t max)
{
	uint64_t payload = f->header.fragment;
	uint32_t n = 0;

	if (f->position < WIRE_SIZE) {
		out[n].iov_base = (uint8_t *)(uintptr_t)&f->header + f->position;
		out[n++].iov_len = WIRE_SIZE - f->position;
	} else {
		payload -= f->position - WIRE_SIZE;
	}
	return n +
	       tcp_cursor_map(f->cursor, f->send->iov, f->send->niov, payload, out + n, max - n);
}

/* Up to @bytes of a fragment are written. Return: how many were this fragment's. */
static inline uint64_t tcp_fragment_advance(struct tcp_fragment *f, uint64_t bytes)
{
	uint64_t n = MIN(bytes, WIRE_SIZE + f->header.fragment - f->position);
	uint64_t head = f->position < WIRE_SIZE ? MIN(n, WIRE_SIZE - f->position) : 0;

	f->position += n;
	tcp_cursor_advance(&f->cursor, f->send->iov, f->send->niov, n - head);
	return n;
}

#endif
