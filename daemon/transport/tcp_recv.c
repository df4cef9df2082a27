/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TCP backend: receiving
 *
 * Small messages are read many at a time into the stream's buffer. The payload of a large fragment
 * is read straight into its destination, or into the thread's scratch from where the handler takes
 * it while it is in cache; the same recvmsg() takes the next header.
 *
 * What the handler gets in fragment() begins at a multiple of TCP_ALIGN in the message and, unless
 * the message ends there, ends at one: no element is ever cut. Nothing that a peer sends is trusted
 * before header_error() and tcp_fragment_begin() have looked at it.
 *
 * A message of several fragments has a slot of the peer's fixed table while it arrives. When the
 * table is full the stream that wants a slot is left alone until one comes free; when all streams
 * wait the peer is closed, since nothing could free one.
 *
 * Thread: the progress thread that owns the context      Owns: nothing      Locks: none
 */
#include "transport/tcp.h"

#include <string.h>
#include <sys/socket.h>

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/*
 * Summed over fragments that cover a message exactly once, the inner seams cancel out and what is
 * left is seam_hash(0, length); a fragment that came twice in place of another leaves more.
 */
static uint64_t seam_hash(uint64_t begin, uint64_t end)
{
	return mix(begin) - mix(end);
}

static uint32_t bucket_of(const struct wire_header *h)
{
	uint64_t x = mix(h->comm ^ ((uint64_t)h->seq << 32 | h->segment));

	x = mix(x ^ ((uint64_t)h->tag << 32 | h->root));
	return (uint32_t)(x ^ h->type ^ (uint32_t)h->kind << 4) & (TCP_BUCKETS - 1);
}

static bool same_message(const struct wire_header *a, const struct wire_header *b)
{
	return a->comm == b->comm && a->seq == b->seq && a->segment == b->segment &&
	       a->tag == b->tag && a->type == b->type && a->root == b->root && a->kind == b->kind;
}

static bool same_fields(const struct wire_header *a, const struct wire_header *b)
{
	return a->length == b->length && a->flags == b->flags && a->credits == b->credits &&
	       a->dtype == b->dtype && a->count == b->count && a->op == b->op && a->algo == b->algo;
}

static struct tcp_slot *slot_find(const struct transport_peer *peer, const struct wire_header *h)
{
	uint16_t i = peer->buckets[bucket_of(h)];

	while (i != 0) {
		struct tcp_slot *slot = &peer->slots[i - 1];

		if (same_message(&slot->header, h)) {
			return slot;
		}
		i = slot->next;
	}
	return NULL;
}

static void slot_add(struct transport_peer *peer, const struct wire_header *h,
		     struct transport_recv *recv, struct tcp_slot **ret)
{
	uint16_t *bucket = &peer->buckets[bucket_of(h)];
	uint16_t i = peer->slots_free;
	struct tcp_slot *slot;

	if (i != 0) {
		peer->slots_free = peer->slots[i - 1].next;
	} else {
		i = (uint16_t)++peer->slots_fresh;
	}
	slot = &peer->slots[i - 1];
	*slot = (struct tcp_slot){.header = *h, .recv = recv, .next = *bucket};
	*bucket = i;
	peer->slots_used++;
	*ret = slot;
}

/* Frees the slot; streams that wait for one go on. */
static void slot_remove(struct transport_peer *peer, struct tcp_slot *slot)
{
	uint16_t self = (uint16_t)(slot - peer->slots + 1);
	uint16_t *at = &peer->buckets[bucket_of(&slot->header)];

	while (*at != self) {
		at = &peer->slots[*at - 1].next;
	}
	*at = slot->next;
	slot->next = peer->slots_free;
	peer->slots_free = self;
	peer->slots_used--;
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		struct tcp_stream *s = peer->streams[i];

		if (s->stalled) {
			s->stalled = false;
			list_remove(&s->ready);
			list_append(&peer->transport->ready, &s->ready);
			tcp_stream_watch(s);
		}
	}
}

/* No slot is free for what comes next on this stream. */
static void stream_stall(struct tcp_stream *s)
{
	struct transport_peer *peer = s->peer;

	s->stalled = true;
	tcp_stream_watch(s);
	for (uint32_t i = 0; i < peer->stream_count; i++) {
		if (!peer->streams[i]->stalled) {
			return;
		}
	}
	tcp_peer_fail(peer, -EPROTO, "too many unfinished messages");
}

/* Return: what is wrong with the header by itself, or NULL. */
static const char *header_error(const struct transport *t, const struct wire_header *h)
{
	if (h->magic != WIRE_MAGIC) {
		return "bad magic number";
	}
	if (h->type < WIRE_DATA || h->type >= WIRE_TYPE_COUNT_) {
		return "unknown message type";
	}
	if (h->fragment > t->options.fragment) {
		return "fragment is longer than agreed";
	}
	if (h->offset > h->length || h->fragment > h->length - h->offset) {
		return "fragment is outside its message";
	}
	if (h->fragment == 0 && h->length > 0) {
		return "empty fragment";
	}
	if (h->offset % TCP_ALIGN != 0 ||
	    (h->fragment % TCP_ALIGN != 0 && h->offset + h->fragment != h->length)) {
		return "fragment is not aligned";
	}
	return NULL;
}

/* Begins a message with its first fragment. Return: false if the stream cannot go on. */
static bool message_begin(struct tcp_stream *s, const struct wire_header *h,
			  struct transport_recv **ret_recv, struct tcp_slot **ret_slot)
{
	struct transport_peer *peer = s->peer;
	struct transport *t = peer->transport;
	struct transport_recv *recv = NULL;
	bool whole = h->fragment == h->length;
	int r;

	if (!whole && peer->slots_used == TCP_SLOTS) {
		stream_stall(s);
		return false;
	}
	r = t->handler.recv_begin(t->arg, peer, h, &recv);
	if (peer->state != TCP_PEER_OPEN) {
		return false;
	}
	if (r < 0) {
		tcp_peer_fail(peer, r, "message refused");
		return false;
	}
	assert(recv);
	recv->received = 0;
	*ret_recv = recv;
	if (!whole) {
		slot_add(peer, h, recv, ret_slot);
	}
	return true;
}

/* Return: false if the stream cannot go on; then the header is not consumed. */
bool tcp_fragment_begin(struct tcp_stream *s, const struct wire_header *h)
{
	struct transport_peer *peer = s->peer;
	const char *error = header_error(peer->transport, h);
	struct transport_recv *recv = NULL;
	struct tcp_slot *slot = NULL;

	if (!error && peer->slots_used > 0) {
		slot = slot_find(peer, h);
		if (slot && !same_fields(&slot->header, h)) {
			error = "fragments of a message contradict each other";
		} else if (slot && h->fragment > h->length - slot->claimed) {
			error = "fragment came twice";
		}
	}
	if (error) {
		tcp_peer_fail(peer, -EPROTO, error);
		return false;
	}
	if (slot) {
		recv = slot->recv;
	} else if (!message_begin(s, h, &recv, &slot)) {
		return false;
	}
	tcp_served(peer->transport, recv->account);
	if (recv->account) {
		counter_add(&recv->account->bytes_wire_received, WIRE_SIZE + h->fragment);
	}
	s->recv = recv;
	s->slot = slot;
	s->offset = s->position = h->offset;
	s->size = s->left = h->fragment;
	if (h->fragment > 0) { /* grants come between large fragments: they tell nothing */
		s->large = h->fragment > TCP_LARGE;
	}
	s->carried = 0;
	s->cursor = (struct tcp_cursor){0, 0};
	if (!slot) {
		return true;
	}
	slot->claimed += h->fragment;
	slot->seams += seam_hash(h->offset, h->offset + h->fragment);
	if (recv->iov && !recv->discard) {
		uint64_t skip = h->offset;

		if (slot->cursor_at <= h->offset) {
			s->cursor = slot->cursor;
			skip -= slot->cursor_at;
		}
		tcp_cursor_advance(&s->cursor, recv->iov, recv->niov, skip);
		slot->cursor = s->cursor;
		slot->cursor_at = h->offset;
	}
	return true;
}

/* All bytes of the stream's fragment are here. Calls out. */
void tcp_fragment_end(struct tcp_stream *s)
{
	struct transport_peer *peer = s->peer;
	struct transport *t = peer->transport;
	struct transport_recv *recv = s->recv;
	struct tcp_slot *slot = s->slot;
	bool complete = true;

	s->recv = NULL;
	s->slot = NULL;
	recv->received += s->size;
	if (slot) {
		complete = recv->received == slot->header.length;
		if (complete && slot->seams != seam_hash(0, slot->header.length)) {
			tcp_peer_fail(peer, -EPROTO, "fragment came twice");
			return;
		}
	}
	if (recv->iov && !recv->discard && s->size > 0) {
		t->handler.fragment(t->arg, recv, NULL, s->offset, s->size);
		if (peer->state != TCP_PEER_OPEN) {
			return;
		}
	}
	if (!complete) {
		return;
	}
	if (slot) {
		slot_remove(peer, slot);
	}
	t->handler.recv_done(t->arg, recv);
}

/*
 * Gives the handler what has arrived of the fragment, but for what would cut an element.
 * @data: the carried bytes, then the new ones; s->left counts no longer the new ones
 */
static void fragment_deliver(struct tcp_stream *s, const uint8_t *data, size_t size)
{
	struct transport *t = s->peer->transport;
	size_t whole = s->left > 0 ? size - size % TCP_ALIGN : size;
	uint64_t position = s->position;

	s->carried = (uint32_t)(size - whole);
	memcpy(s->carry, data + whole, s->carried);
	s->position += whole;
	if (whole > 0) {
		t->handler.fragment(t->arg, s->recv, data, position, whole);
	}
}

static void count_copied(struct tcp_stream *s, uint64_t n)
{
	s->peer->transport->stats.bytes_copied += n;
	if (s->recv->account) {
		counter_add(&s->recv->account->bytes_copied, n);
	}
}

/* Takes payload from the stream's buffer. Calls out. */
static void payload_from_buffer(struct tcp_stream *s)
{
	struct transport_recv *recv = s->recv;
	uint8_t *scratch = s->peer->transport->scratch;
	size_t n = MIN(s->end - s->start, s->left);
	const uint8_t *data = s->buffer + s->start;

	s->start += (uint32_t)n;
	s->left -= n;
	if (recv->discard) {
		/* dropped */
	} else if (recv->iov) {
		count_copied(s, n);
		for (size_t done = 0; done < n;) {
			struct iovec to;

			tcp_cursor_map(s->cursor, recv->iov, recv->niov, n - done, &to, 1);
			memcpy(to.iov_base, data + done, to.iov_len);
			tcp_cursor_advance(&s->cursor, recv->iov, recv->niov, to.iov_len);
			done += to.iov_len;
		}
	} else if (s->carried == 0 && (uintptr_t)data % 16 == 0) {
		fragment_deliver(s, data, n);
	} else {
		count_copied(s, s->carried + n);
		memcpy(scratch, s->carry, s->carried);
		memcpy(scratch + s->carried, data, n);
		fragment_deliver(s, scratch, s->carried + n);
	}
	if (s->recv && s->left == 0) {
		tcp_fragment_end(s);
	}
}

/**
 * tcp_stream_parse() - take what is in the stream's buffer
 * @s: borrowed; calls out
 *
 * Leaves less than a header, unless the stream stalls or its peer is lost.
 */
void tcp_stream_parse(struct tcp_stream *s)
{
	while (s->peer->state == TCP_PEER_OPEN && !s->stalled) {
		struct wire_header header;

		if (s->recv) {
			if (s->start == s->end) {
				break;
			}
			payload_from_buffer(s);
			continue;
		}
		if (s->end - s->start < WIRE_SIZE) {
			break;
		}
		memcpy(&header, s->buffer + s->start, WIRE_SIZE);
		if (!tcp_fragment_begin(s, &header)) {
			break;
		}
		s->start += WIRE_SIZE;
		if (s->left == 0) {
			tcp_fragment_end(s);
		}
	}
	if (s->start == s->end) {
		s->start = s->end = 0;
	}
}

/* Where the next bytes go: the rest of the payload, then the buffer. */
static uint32_t receive_map(struct tcp_stream *s, struct iovec *iov, uint64_t *ret_bytes)
{
	struct transport_recv *recv = s->recv;
	uint64_t covered = 0;
	uint32_t n = 0;

	if (!recv) {
		memmove(s->buffer, s->buffer + s->start, s->end - s->start);
		s->end -= s->start;
		s->start = 0;
	} else if (recv->iov && !recv->discard) {
		n = tcp_cursor_map(s->cursor, recv->iov, recv->niov, s->left, iov,
				   TRANSPORT_MAX_IOV - 1);
	} else {
		iov[n].iov_base = s->peer->transport->scratch + s->carried;
		iov[n++].iov_len = s->left;
	}
	for (uint32_t i = 0; i < n; i++) {
		covered += iov[i].iov_len;
	}
	*ret_bytes = covered;
	if (recv && covered < s->left) {
		return n;
	}
	/*
	 * Behind a large fragment probably comes another: take its header only, since every
	 * byte of payload in the buffer is copied once more.
	 */
	iov[n].iov_base = s->buffer + s->end;
	iov[n].iov_len = TCP_BUFFER - s->end;
	if (s->large) {
		assert(s->end < WIRE_SIZE); /* or tcp_stream_parse() had taken it */
		iov[n].iov_len = WIRE_SIZE - s->end;
	}
	*ret_bytes += iov[n++].iov_len;
	return n;
}

/* Accounts for @n bytes read to where receive_map() said. Calls out. */
static void receive_advance(struct tcp_stream *s, uint64_t n)
{
	struct transport_recv *recv = s->recv;
	uint8_t *scratch = s->peer->transport->scratch;
	uint64_t payload = recv ? MIN(n, s->left) : 0;

	s->end += (uint32_t)(n - payload);
	tcp_served_begin(s->peer->transport);
	if (recv) {
		tcp_served(s->peer->transport, recv->account);
		s->left -= payload;
		if (recv->discard) {
			/* dropped */
		} else if (recv->iov) {
			tcp_cursor_advance(&s->cursor, recv->iov, recv->niov, payload);
		} else {
			count_copied(s, s->carried);
			memcpy(scratch, s->carry, s->carried);
			fragment_deliver(s, scratch, s->carried + payload);
		}
		if (s->recv && s->left == 0) {
			tcp_fragment_end(s);
		}
	}
	tcp_stream_parse(s);
}

/* Return: bytes read; 0 if there are none or the peer is lost. */
static uint64_t stream_read(struct tcp_stream *s, uint64_t *ret_want)
{
	struct transport *t = s->peer->transport;
	struct iovec iov[TRANSPORT_MAX_IOV];
	struct msghdr msg = {.msg_iov = iov};
	ssize_t n;

	msg.msg_iovlen = receive_map(s, iov, ret_want);
	do {
		n = recvmsg(s->fd, &msg, MSG_DONTWAIT);
		t->stats.syscalls++;
	} while (n < 0 && errno == EINTR);
	if (n == 0) {
		tcp_peer_fail(s->peer, -ECONNRESET,
			      s->recv || s->end > 0 ? "connection closed in the middle of a message"
						    : "connection closed by the peer");
		return 0;
	}
	if (n < 0) {
		if (errno != EAGAIN && errno != EWOULDBLOCK) {
			tcp_peer_broke(s->peer, errno, "receiving failed");
		}
		return 0;
	}
	t->moved++;
	t->stats.bytes_received += (uint64_t)n;
	s->peer->bytes_received += (uint64_t)n;
	return (uint64_t)n;
}

/**
 * tcp_stream_receive() - read until the socket is empty or the budget is used
 * @s: borrowed; calls out, must be open
 */
void tcp_stream_receive(struct tcp_stream *s)
{
	struct transport_peer *peer = s->peer;
	int64_t budget = TCP_BUDGET;

	/* It was waiting for a slot: what it has comes first, and makes room to read. */
	if (!list_empty(&s->ready)) {
		list_remove(&s->ready);
		tcp_stream_parse(s);
	}
	while (budget > 0 && peer->state == TCP_PEER_OPEN && !s->stalled) {
		uint64_t want;
		uint64_t n = stream_read(s, &want);

		if (n == 0) {
			return;
		}
		receive_advance(s, n);
		tcp_served_end(peer->transport);
		tcp_flush_fresh(peer->transport);
		budget -= (int64_t)n;
		if (n < want) {
			return; /* the socket is empty */
		}
	}
}
