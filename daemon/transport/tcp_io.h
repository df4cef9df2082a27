/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * I/O threads: the system calls of bulk streams, beside the progress thread
 *
 * What limits TCP on a fast link, or between two daemons of one machine, is the copying inside
 * sendmsg() and recvmsg(). A stream that is a *lane* has these calls made by an I/O thread. Nothing
 * else moves there: messages are split, placed, counted and completed by the progress thread, so
 * that everything above sees one thread.
 *
 * Sending: the progress thread puts fragments into lane.out, the I/O thread writes them and says
 * how many are through. Receiving: the I/O thread reads a header and asks; the progress thread says
 * where the payload goes (lane.place); the I/O thread reads it there, and the next header behind
 * it, and says that it has landed. Counters that run free tell who owns what: each has one writer.
 *
 * News in either direction are bits of a map, one bit a lane, and a bell for a reader that has
 * announced that it sleeps.
 *
 * Thread: as said      Owns: threads, lanes' buffers      Locks: none
 */
#ifndef ROCECOMM_TRANSPORT_TCP_IO_H
#define ROCECOMM_TRANSPORT_TCP_IO_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"
#include "transport/wire.h"
#include "util/thread.h"

#define TCP_LANE_OUT 4	  /* fragments that a lane has taken and not given back */
#define TCP_IO_LANES 1024 /* of one thread; streams beyond it are the progress thread's */
#define TCP_IO_WORDS (TCP_IO_LANES / 64)
#define TCP_LANE_BUDGET (1024 * 1024) /* bytes each way before the next lane has its turn */

struct tcp_cursor {
	uint32_t index;
	size_t offset;
};

/* One fragment on its way out. */
struct tcp_fragment {
	struct wire_header header;
	struct transport_send *send;
	struct tcp_cursor cursor; /* the first payload byte that is not sent yet */
	uint64_t position;	  /* bytes sent, header included */
	uint32_t calls;		  /* system calls that a lane made for it */
};

/* Where the payload of the fragment goes that the lane has asked about. */
struct tcp_place {
	const struct iovec *iov; /* NULL: into the lane's buffer */
	uint32_t niov;
	struct tcp_cursor cursor;
	uint64_t size;
};

struct tcp_stream;
struct tcp_io;

struct tcp_lane {
	struct tcp_stream *stream;
	struct tcp_io *io;
	uint8_t *buffer; /* one fragment, for what has no place of its own */
	uint32_t index;	 /* in io */
	int fd;

	/* Writer: progress thread. An entry of `out` is the I/O thread's from `tail` to `sent`. */
	alignas(64) _Atomic uint32_t tail; /* fragments put into out */
	_Atomic uint32_t placed;	   /* headers answered */
	_Atomic uint32_t drops;		   /* payloads whose place is taken back */
	_Atomic bool quit;
	uint32_t reaped; /* fragments taken back */
	uint32_t taken;	 /* payloads taken */
	uint32_t calls_seen;
	struct tcp_place place;
	struct tcp_fragment out[TCP_LANE_OUT];

	/* Writer: I/O thread. */
	alignas(64) _Atomic uint32_t sent; /* fragments written */
	_Atomic uint32_t asked;		   /* headers read */
	_Atomic uint32_t landed;	   /* payloads read */
	_Atomic uint32_t dropped;	   /* of drops: `place` is the buffer now */
	_Atomic int error;		   /* negative errno, once */
	_Atomic bool gone;		   /* quit was seen: it touches nothing any more */
	bool readable, writable;
	bool begun; /* the payload of `place` is being read */
	uint32_t header_got;
	_Atomic uint32_t calls; /* system calls of receiving, with all before */
	uint64_t left;		/* bytes of payload to read */
	struct tcp_cursor cursor;
	struct wire_header header;
};

/* What the progress thread sleeps on. */
struct tcp_bell {
	_Atomic bool asleep;
	int fd;
};

struct tcp_io {
	struct thread thread;
	struct tcp_bell *progress;
	uint64_t spin_ns;
	uint32_t used; /* progress thread: lanes */
	int epoll;
	struct tcp_bell bell; /* the thread's own */
	_Atomic bool stop;
	uint64_t busy[TCP_IO_WORDS]; /* I/O thread: lanes with something to do */
	alignas(64) _Atomic uint64_t kick[TCP_IO_WORDS];  /* progress -> I/O: look at it */
	alignas(64) _Atomic uint64_t ready[TCP_IO_WORDS]; /* I/O -> progress: look at it */
	_Atomic(struct tcp_lane *) lanes[TCP_IO_LANES];
};

/* Progress thread (or whoever makes and frees the transport). */
int tcp_io_new(struct tcp_bell *progress, uint32_t spin_us, unsigned int number,
	       struct tcp_io **ret);
struct tcp_io *tcp_io_free(struct tcp_io *io);
/* Makes a lane of a connected, non-blocking socket. Return: 0, -ENOSPC, -ENOMEM, other errno. */
int tcp_io_add(struct tcp_io *io, struct tcp_stream *stream, int fd, uint32_t fragment,
	       struct tcp_lane **ret);
/* Takes it from the thread and frees it; waits for the system call that is under way, if any. */
struct tcp_lane *tcp_io_remove(struct tcp_lane *lane);
/*
 * Takes a place back: what is left of the payload goes into the lane's buffer. After _end() nothing
 * is written to the place; waits for the system call that is under way, if any.
 */
void tcp_io_drop_begin(struct tcp_lane *lane);
void tcp_io_drop_end(struct tcp_lane *lane);
/* tail, placed, drops or quit has changed. */
void tcp_io_kick(struct tcp_lane *lane);
/* Lanes with news in word @w; cleared. */
uint64_t tcp_io_news(struct tcp_io *io, unsigned int w);
bool tcp_io_has_news(struct tcp_io *io);

#endif
