/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TCP backend: sending
 *
 * A stream takes a batch of fragments from its peer's queues, and writes it with as few sendmsg()
 * as the socket allows: one large fragment, or many small messages together. Short messages go
 * first. Among the others those that have begun and those that have not alternate, and those that
 * have begun take turns; no more than TCP_TURNS do, so that the receiver's table of open receives
 * cannot overflow. Where a peer has lanes (tcp_io.h) they carry what is larger than TCP_BULK, and
 * our own streams the rest, which so never waits behind it. Lanes that have nothing to do share the
 * next message in pieces, since what a lane does with one is copying, which takes its time.
 *
 * Messages that callbacks send during transport_poll() are written when the callbacks of one read
 * are through, so that the answers to many small messages share one system call.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include "transport/tcp.h"

#include <sys/socket.h>

void tcp_queue_init(struct tcp_queue *q)
{
	list_init(&q->waiting);
	list_init(&q->turns);
}

static bool queue_empty(const struct tcp_queue *q)
{
	return list_empty(&q->waiting) && list_empty(&q->turns);
}

/* Those that our own streams carry. */
static bool queues_empty(const struct transport_peer *peer)
{
	return list_empty(&peer->urgent) && queue_empty(&peer->small);
}

static bool batch_empty(const struct tcp_stream *s)
{
	return s->batch_head == s->batch_count;
}

/* Is there anything that this stream could write? */
bool tcp_stream_wants(const struct tcp_stream *s)
{
	return !batch_empty(s) || !queues_empty(s->peer);
}

static bool peer_wants(const struct transport_peer *peer)
{
	if (!queues_empty(peer) || !queue_empty(&peer->bulk)) {
		return true;
	}
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		if (!batch_empty(peer->streams[i])) {
			return true;
		}
	}
	return false;
}

/* The message whose fragment is next; the caller takes one. */
static struct transport_send *queue_next(struct tcp_queue *q)
{
	bool fresh = !list_empty(&q->waiting) && q->turn_count < TCP_TURNS;
	struct list *l;

	q->turn = !q->turn;
	if (fresh && (!q->turn || list_empty(&q->turns))) {
		l = list_first(&q->waiting);
	} else {
		l = list_first(&q->turns);
	}
	return l ? container_of(l, struct transport_send, link) : NULL;
}

static struct transport_send *next_send(struct transport_peer *peer)
{
	struct list *l = list_first(&peer->urgent);

	return l ? container_of(l, struct transport_send, link) : queue_next(&peer->small);
}

/* Takes one fragment of up to @max bytes and puts the rest of the message back in the queue. */
static void take_fragment(struct tcp_queue *q, struct transport_send *send, uint32_t max,
			  struct tcp_fragment *ret)
{
	struct tcp_cursor cursor = {send->iov_index, send->iov_offset};
	uint64_t left = send->length - send->queued;
	uint32_t size = (uint32_t)MIN(left, max);

	ret->header = send->header;
	ret->header.magic = WIRE_MAGIC;
	ret->header.length = send->length;
	ret->header.offset = send->queued;
	ret->header.fragment = size;
	ret->send = send;
	ret->cursor = cursor;
	ret->position = 0;
	ret->calls = 0;

	if (send->queued > 0) {
		q->turn_count--;
	}
	list_remove(&send->link);
	send->in_flight++;
	send->queued += size;
	if (size == left) {
		return;
	}
	tcp_cursor_advance(&cursor, send->iov, send->niov, size);
	send->iov_index = cursor.index;
	send->iov_offset = cursor.offset;
	list_append(&q->turns, &send->link);
	q->turn_count++;
}

bool tcp_take_bulk(struct transport_peer *peer, struct tcp_fragment *ret)
{
	struct transport_send *send = queue_next(&peer->bulk);
	uint64_t share;

	if (!send) {
		return false;
	}
	share = DIV_UP(send->length - send->queued, MAX(tcp_lanes_idle(peer), 1));
	share = MAX(ALIGN_UP(share, TCP_ALIGN), TCP_PIECE);
	take_fragment(&peer->bulk, send, (uint32_t)MIN(share, peer->transport->options.fragment),
		      ret);
	return true;
}

static bool batch_fill(struct tcp_stream *s)
{
	struct transport_peer *peer = s->peer;
	uint64_t bytes = 0;

	s->batch_head = s->batch_count = 0;
	while (s->batch_count < TCP_BATCH && bytes < TCP_BATCH_BYTES) {
		struct transport_send *send = next_send(peer);
		struct tcp_fragment *f = &s->batch[s->batch_count];

		if (!send) {
			break;
		}
		/* A large fragment behind small ones would only delay them. */
		if (bytes > 0 && send->length - send->queued > TCP_BATCH_BYTES) {
			break;
		}
		take_fragment(&peer->small, send, peer->transport->options.fragment, f);
		s->batch_count++;
		bytes += WIRE_SIZE + f->header.fragment;
	}
	return s->batch_count > 0;
}

static uint32_t batch_map(const struct tcp_stream *s, struct iovec *iov, uint64_t *ret_bytes)
{
	uint32_t n = 0;

	/* A fragment with more pieces than one call takes is the last that fits. */
	for (uint32_t i = s->batch_head; i < s->batch_count && n < TRANSPORT_MAX_IOV; i++) {
		n += tcp_fragment_map(&s->batch[i], iov + n, TRANSPORT_MAX_IOV - n);
	}
	*ret_bytes = 0;
	for (uint32_t i = 0; i < n; i++) {
		*ret_bytes += iov[i].iov_len;
	}
	return n;
}

/* Tells the counters of the messages what one sendmsg() did for them. */
static void batch_count(const struct tcp_stream *s, uint64_t sent)
{
	struct transport *t = s->peer->transport;

	tcp_served_begin(t);
	for (uint32_t i = s->batch_head; sent > 0; i++) {
		const struct tcp_fragment *f = &s->batch[i];
		uint64_t n = MIN(sent, WIRE_SIZE + f->header.fragment - f->position);

		if (f->send->account) {
			counter_add(&f->send->account->bytes_wire_sent, n);
		}
		tcp_served(t, f->send->account);
		sent -= n;
	}
	tcp_served_end(t);
}

void tcp_fragment_done(struct transport_send *send)
{
	send->in_flight--;
	if (send->in_flight == 0 && send->queued == send->length && list_empty(&send->link)) {
		send->done(send, 0);
	}
}

/* Accounts for bytes that the socket took; completes sends. Calls out. */
static void batch_advance(struct tcp_stream *s, uint64_t sent)
{
	/* The batch is emptied when a callback closes the peer. */
	while (!batch_empty(s)) {
		struct tcp_fragment *f = &s->batch[s->batch_head];

		sent -= tcp_fragment_advance(f, sent);
		if (f->position < WIRE_SIZE + f->header.fragment) {
			return;
		}
		s->batch_head++;
		tcp_fragment_done(f->send);
	}
}

/* Writes once. Return: bytes that the socket took. */
static uint64_t stream_write(struct tcp_stream *s)
{
	struct transport *t = s->peer->transport;
	struct iovec iov[TRANSPORT_MAX_IOV];
	struct msghdr msg = {.msg_iov = iov};
	uint64_t want;
	ssize_t n;

	msg.msg_iovlen = batch_map(s, iov, &want);
	do {
		n = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		t->stats.syscalls++;
	} while (n < 0 && errno == EINTR);
	if (n < 0) {
		s->blocked = true;
		if (errno != EAGAIN && errno != EWOULDBLOCK) {
			tcp_peer_broke(s->peer, errno, "sending failed");
		}
		return 0;
	}
	s->blocked = (uint64_t)n < want;
	t->moved++;
	t->stats.bytes_sent += (uint64_t)n;
	s->peer->bytes_sent += (uint64_t)n;
	batch_count(s, (uint64_t)n);
	batch_advance(s, (uint64_t)n);
	return (uint64_t)n;
}

/* The next stream that can write something; long messages go round the streams. */
static struct tcp_stream *next_stream(struct transport_peer *peer)
{
	bool queued = !queues_empty(peer);
	uint32_t first = list_empty(&peer->urgent) ? peer->next_stream : 0;

	for (uint32_t i = 0; i < peer->stream_count; i++) {
		struct tcp_stream *s = peer->streams[(first + i) % peer->stream_count];

		if (!s->lane && !s->blocked && (queued || !batch_empty(s))) {
			return s;
		}
	}
	return NULL;
}

/* Keeps transport.sending right. In the end every peer that wants to send is in it. */
static void peer_update(struct transport_peer *peer)
{
	if (peer->state != TCP_PEER_OPEN || !peer_wants(peer)) {
		list_remove(&peer->sending);
	} else if (list_empty(&peer->sending)) {
		list_append(&peer->transport->sending, &peer->sending);
	}
}

/**
 * tcp_peer_flush() - write until the sockets are full, nothing is left, or the budget is used
 * @peer: borrowed; calls out, the peer may be freed when the transport is left
 */
void tcp_peer_flush(struct transport_peer *peer)
{
	int64_t budget = (int64_t)peer->stream_count * TCP_BUDGET;
	struct tcp_stream *s;

	/* A callback of the loop below: the loop takes what was queued. */
	if (peer->flushing) {
		return;
	}
	tcp_enter(peer->transport);
	peer->flushing = true;
	tcp_lanes_fill(peer);
	while (budget > 0 && peer->state == TCP_PEER_OPEN && (s = next_stream(peer))) {
		bool urgent = !list_empty(&peer->urgent);

		if (batch_empty(s) && !batch_fill(s)) {
			break;
		}
		budget -= (int64_t)stream_write(s) + WIRE_SIZE;
		if (!urgent) {
			peer->next_stream = (s->index + 1) % peer->stream_count;
		}
	}
	peer->flushing = false;
	peer_update(peer);
	tcp_leave(peer->transport);
}

/* Writes what callbacks have queued since the last call; the rest waits for the next one. */
void tcp_flush_fresh(struct transport *t)
{
	for (int i = 0; i < 64; i++) {
		struct list *l = list_first(&t->fresh);

		if (!l) {
			return;
		}
		list_remove(l);
		tcp_peer_flush(container_of(l, struct transport_peer, fresh));
	}
}

/* One round over all peers that have something to send. */
void tcp_flush_sending(struct transport *t)
{
	struct list round;
	struct list *l;

	/* Move the whole list to `round`; a flush puts the peer back if need be. */
	if (list_empty(&t->sending)) {
		return;
	}
	list_prepend(&t->sending, &round);
	list_remove(&t->sending);
	while ((l = list_first(&round))) {
		struct transport_peer *peer = container_of(l, struct transport_peer, sending);

		list_remove(l);
		tcp_peer_flush(peer);
		if (t->stream_count <= TCP_DIRECT || peer->state != TCP_PEER_OPEN) {
			continue;
		}
		for (uint32_t i = 0; i < peer->stream_count; i++) {
			if (peer->streams[i]->blocked) {
				tcp_stream_watch(peer->streams[i]);
			}
		}
	}
}

/**
 * tcp_peer_cancel() - complete all sends of a peer
 * @peer:   borrowed; its state is TCP_PEER_DEAD already
 * @status: for the sends
 */
void tcp_peer_cancel(struct transport_peer *peer, int status)
{
	struct list *queues[] = {&peer->urgent, &peer->small.waiting, &peer->small.turns,
				 &peer->bulk.waiting, &peer->bulk.turns};
	struct list all;
	struct list *l;

	list_init(&all);
	for (size_t i = 0; i < ARRAY_SIZE(queues); i++) {
		while ((l = list_first(queues[i]))) {
			list_remove(l);
			list_append(&all, l);
		}
	}
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		struct tcp_stream *s = peer->streams[i];

		for (; !batch_empty(s); s->batch_head++) {
			struct transport_send *send = s->batch[s->batch_head].send;

			if (list_empty(&send->link)) {
				list_append(&all, &send->link);
			}
		}
	}
	peer->small.turn_count = 0;
	peer->bulk.turn_count = 0;
	while ((l = list_first(&all))) {
		struct transport_send *send = container_of(l, struct transport_send, link);

		list_remove(l);
		send->done(send, status);
	}
}

/* Messages of collectives are no larger than a fragment: those of full size are bulk, too. */
static uint64_t bulk_from(uint32_t fragment)
{
	return MIN(TCP_BULK, MAX(fragment / 2, TCP_LARGE));
}

/**
 * transport_send() - queue a message
 * @peer: borrowed
 * @send: borrowed until its done() is called, which may be before this returns
 */
void transport_send(struct transport_peer *peer, struct transport_send *send)
{
	struct transport *t = peer->transport;
	bool urgent = send->length <= MIN(TRANSPORT_URGENT, t->options.fragment);
	bool bulk = send->length > bulk_from(t->options.fragment) && peer->lane_count > 0;

	list_init(&send->link);
	send->queued = 0;
	send->in_flight = 0;
	send->iov_index = 0;
	send->iov_offset = 0;
	if (peer->state == TCP_PEER_DEAD) {
		send->done(send, peer->error < 0 ? peer->error : -ECANCELED);
		return;
	}
	list_append(urgent ? &peer->urgent
		    : bulk ? &peer->bulk.waiting
			   : &peer->small.waiting,
		    &send->link);
	if (peer->state != TCP_PEER_OPEN) {
		return; /* transport_poll() completes it */
	}
	if (list_empty(&peer->sending)) {
		list_append(&t->sending, &peer->sending);
	}
	if (!t->polling) {
		tcp_peer_flush(peer);
	} else if (!peer->flushing && list_empty(&peer->fresh)) {
		list_append(&t->fresh, &peer->fresh);
	}
}
