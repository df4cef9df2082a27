/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TCP backend: the progress thread's side of lanes (tcp_io.h)
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include <stdatomic.h>

#include "transport/tcp.h"

/* relaxed, where a counter is our own */
static uint32_t own(const _Atomic uint32_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static bool lane_put(struct tcp_lane *lane)
{
	uint32_t tail = own(&lane->tail);

	if (!tcp_take_bulk(lane->stream->peer, &lane->out[tail % TCP_LANE_OUT])) {
		return false;
	}
	/* release: the I/O thread reads the entry when it sees the count */
	atomic_store_explicit(&lane->tail, tail + 1, memory_order_release);
	tcp_io_kick(lane);
	return true;
}

/* How many have nothing to write. */
uint32_t tcp_lanes_idle(const struct transport_peer *peer)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < peer->stream_count; i++) {
		const struct tcp_lane *lane = peer->streams[i]->lane;

		n += lane && own(&lane->tail) == lane->reaped;
	}
	return n;
}

/* The lane with the least to write, in turn among equals; NULL: all have enough. */
static struct tcp_lane *lane_pick(struct transport_peer *peer)
{
	struct tcp_lane *best = NULL;
	uint32_t least = TCP_LANE_OUT;

	for (uint32_t i = 0; i < peer->stream_count; i++) {
		struct tcp_lane *lane =
			peer->streams[(peer->next_lane + i) % peer->stream_count]->lane;
		uint32_t has = lane ? own(&lane->tail) - lane->reaped : TCP_LANE_OUT;

		if (has < least) {
			least = has;
			best = lane;
		}
	}
	return best;
}

/**
 * tcp_lanes_fill() - hand bulk to the lanes of a peer, one fragment each in turn
 * @peer: borrowed
 *
 * A lane takes few at a time, so that a slow one holds back little. Messages often become ready one
 * by one: each begins at the next lane, or the first one would carry them all.
 */
void tcp_lanes_fill(struct transport_peer *peer)
{
	while (peer->lane_count > 0) {
		struct tcp_lane *lane = lane_pick(peer);

		if (!lane || !lane_put(lane)) {
			return;
		}
		peer->next_lane = lane->stream->index + 1;
	}
}

/* Takes written fragments back. Calls out. */
static void lane_reap(struct tcp_lane *lane)
{
	struct transport_peer *peer = lane->stream->peer;
	struct transport *t = peer->transport;
	/* acquire: pairs with the release store of the I/O thread */
	uint32_t sent = atomic_load_explicit(&lane->sent, memory_order_acquire);

	while (peer->state == TCP_PEER_OPEN && lane->reaped != sent) {
		const struct tcp_fragment *f = &lane->out[lane->reaped % TCP_LANE_OUT];
		struct transport_send *send = f->send;

		t->moved++;
		t->stats.bytes_sent += f->position;
		peer->bytes_sent += f->position;
		t->stats.syscalls += f->calls;
		if (send->account) {
			counter_add(&send->account->bytes_wire_sent, f->position);
			counter_add(&send->account->syscalls, f->calls);
		}
		lane->reaped++;
		tcp_fragment_done(send);
	}
}

/* A payload is where it belongs. Calls out. */
static void lane_take(struct tcp_lane *lane)
{
	struct tcp_stream *s = lane->stream;
	struct transport_peer *peer = s->peer;
	struct transport *t = peer->transport;
	struct transport_recv *recv = s->recv;
	uint32_t calls = atomic_load_explicit(&lane->calls, memory_order_relaxed);

	t->moved++;
	t->stats.bytes_received += WIRE_SIZE + s->size;
	peer->bytes_received += WIRE_SIZE + s->size;
	t->stats.syscalls += calls - lane->calls_seen;
	if (recv->account) {
		counter_add(&recv->account->syscalls, calls - lane->calls_seen);
	}
	lane->calls_seen = calls;
	lane->taken++;
	if (!recv->iov && !recv->discard && s->size > 0) {
		t->handler.fragment(t->arg, recv, lane->buffer, s->offset, s->size);
	}
	if (peer->state == TCP_PEER_OPEN) {
		tcp_fragment_end(s);
	}
}

/* Says where the payload of the next fragment goes. Return: false if it cannot be told now. */
static bool lane_place(struct tcp_lane *lane)
{
	struct tcp_stream *s = lane->stream;
	struct wire_header header = lane->header;

	if (s->stalled || !tcp_fragment_begin(s, &header)) {
		return false;
	}
	lane->place.iov = s->recv->discard ? NULL : s->recv->iov;
	lane->place.niov = s->recv->niov;
	lane->place.cursor = s->cursor;
	lane->place.size = s->size;
	/* release: the I/O thread reads `place` when it sees the count */
	atomic_store_explicit(&lane->placed, own(&lane->placed) + 1, memory_order_release);
	tcp_io_kick(lane);
	return true;
}

/**
 * tcp_lane_poll() - look at what a lane has told
 * @lane: borrowed; calls out, and is gone if that closes its peer
 */
void tcp_lane_poll(struct tcp_lane *lane)
{
	struct tcp_stream *s = lane->stream;
	struct transport_peer *peer = s->peer;
	/* acquire, here and below: the I/O thread stores them with release */
	int error = atomic_load_explicit(&lane->error, memory_order_acquire);
	bool again = true;

	lane_reap(lane);
	while (again && peer->state == TCP_PEER_OPEN) {
		uint32_t asked = atomic_load_explicit(&lane->asked, memory_order_acquire);
		uint32_t landed = atomic_load_explicit(&lane->landed, memory_order_acquire);

		again = true;
		if (landed != lane->taken) {
			lane_take(lane);
		} else {
			again = asked != own(&lane->placed) && lane_place(lane);
		}
	}
	if (error != 0) {
		tcp_peer_fail(peer, error,
			      error == -ECONNRESET ? "connection closed by the peer"
						   : "a bulk connection failed");
	}
}

/**
 * tcp_lanes_poll() - look at all lanes that have told something
 * @t: borrowed; calls out
 */
void tcp_lanes_poll(struct transport *t)
{
	for (unsigned int i = 0; i < t->io_count; i++) {
		struct tcp_io *io = t->io[i];

		for (unsigned int w = 0; io->used > 0 && w < TCP_IO_WORDS; w++) {
			uint64_t bits = tcp_io_news(io, w);

			for (; bits; bits &= bits - 1) {
				unsigned int b = (unsigned int)__builtin_ctzll(bits);
				struct tcp_lane *lane = atomic_load_explicit(&io->lanes[w * 64 + b],
									     memory_order_relaxed);

				/* NULL: closed by a callback of one before it */
				if (lane) {
					tcp_lane_poll(lane);
				}
			}
		}
	}
}

/* An I/O thread may be writing where @recv says. */
static bool lane_has(const struct tcp_stream *s, const struct transport_recv *recv)
{
	return s->lane && s->recv == recv && own(&s->lane->placed) != s->lane->taken;
}

/**
 * transport_drop() - give up a message that is arriving
 * @peer: borrowed, whose message it is; NULL allowed
 * @recv: borrowed
 *
 * Waits for the system calls that are under way on lanes, and calls nothing back.
 */
void transport_drop(struct transport_peer *peer, struct transport_recv *recv)
{
	recv->discard = true;
	for (uint32_t i = 0; peer && i < peer->stream_count; i++) {
		if (lane_has(peer->streams[i], recv)) {
			tcp_io_drop_begin(peer->streams[i]->lane);
		}
	}
	for (uint32_t i = 0; peer && i < peer->stream_count; i++) {
		if (lane_has(peer->streams[i], recv)) {
			tcp_io_drop_end(peer->streams[i]->lane);
		}
	}
}
