/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * I/O threads: see tcp_io.h
 *
 * The sockets are watched edge-triggered: a lane stays readable or writable until the kernel says
 * EAGAIN, whoever waits for whom in between.
 *
 * Thread: I/O, but for the functions that tcp_io.h gives to the progress thread
 * Owns: epoll, bell      Locks: none
 */
#include "transport/tcp_io.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp.h"
#include "util/clock.h"

#define EVENTS 64
#define BELL UINT32_MAX /* epoll data of the bell */

/* Return: it slept, which took a system call. */
static bool bell_ring(struct tcp_bell *bell)
{
	uint64_t one = 1;

	/*
	 * seq_cst, as the store of the news before and both accesses of whoever announces sleep:
	 * either we see that it sleeps or it sees the news.
	 */
	if (!atomic_load_explicit(&bell->asleep, memory_order_seq_cst)) {
		return false;
	}
	/* Fails only when it is full: then it has been rung. */
	(void)!write(bell->fd, &one, sizeof(one));
	return true;
}

/* ---- I/O thread: one lane ------------------------------------------------------------------ */

static void lane_tell(struct tcp_lane *lane)
{
	struct tcp_io *io = lane->io;

	/* Releases what the lane says of itself to whoever sees the bit; seq_cst: bell_ring() */
	atomic_fetch_or_explicit(&io->ready[lane->index / 64], UINT64_C(1) << lane->index % 64,
				 memory_order_seq_cst);
	bell_ring(io->progress);
}

static void lane_fail(struct tcp_lane *lane, int error)
{
	lane->readable = false;
	lane->writable = false;
	/* release: the progress thread may look before it is told */
	atomic_store_explicit(&lane->error, error, memory_order_release);
	lane_tell(lane);
}

/* relaxed, here and below: a thread reads its own counter */
static uint32_t own(const _Atomic uint32_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint32_t lane_map_out(struct tcp_lane *lane, uint32_t first, uint32_t end, struct iovec *iov)
{
	uint32_t n = 0;

	for (uint32_t i = first; i != end && n < TRANSPORT_MAX_IOV; i++) {
		const struct tcp_fragment *f = &lane->out[i % TCP_LANE_OUT];

		n += tcp_fragment_map(f, iov + n, TRANSPORT_MAX_IOV - n);
	}
	return n;
}

/* Accounts for written bytes. Return: true when a fragment is through. */
static bool lane_wrote(struct tcp_lane *lane, uint64_t bytes)
{
	uint32_t sent = own(&lane->sent);
	uint32_t before = sent;

	while (bytes > 0) {
		struct tcp_fragment *f = &lane->out[sent % TCP_LANE_OUT];
		uint64_t n = tcp_fragment_advance(f, bytes);

		bytes -= n;
		if (f->position < WIRE_SIZE + f->header.fragment) {
			break;
		}
		sent++;
	}
	/* release: the progress thread reads the entry when it sees the count */
	atomic_store_explicit(&lane->sent, sent, memory_order_release);
	return sent != before;
}

static void lane_send(struct tcp_lane *lane)
{
	/* acquire: pairs with the release store of the progress thread, which filled the entries */
	uint32_t tail = atomic_load_explicit(&lane->tail, memory_order_acquire);
	int64_t budget = TCP_LANE_BUDGET;

	while (lane->writable && own(&lane->sent) != tail && budget > 0) {
		struct iovec iov[TRANSPORT_MAX_IOV];
		struct msghdr msg = {.msg_iov = iov};
		ssize_t n;

		msg.msg_iovlen = lane_map_out(lane, own(&lane->sent), tail, iov);
		lane->out[own(&lane->sent) % TCP_LANE_OUT].calls++;
		n = sendmsg(lane->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n >= 0) {
			budget -= n;
			if (lane_wrote(lane, (uint64_t)n)) {
				lane_tell(lane);
			}
		} else if (errno == EAGAIN || errno == EWOULDBLOCK) {
			lane->writable = false;
		} else if (errno != EINTR) {
			lane_fail(lane, -errno);
		}
	}
}

/* May it read? Not while the place of a payload is being asked for. */
static bool lane_may_read(struct tcp_lane *lane)
{
	/* acquire: pairs with the release store of the progress thread, which filled `place` */
	return lane->readable &&
	       atomic_load_explicit(&lane->placed, memory_order_acquire) == own(&lane->asked);
}

static uint32_t lane_map_in(struct tcp_lane *lane, struct iovec *iov)
{
	const struct tcp_place *place = &lane->place;
	uint64_t covered = lane->left;
	uint32_t n = 0;

	if (lane->begun && place->iov) {
		n = tcp_cursor_map(lane->cursor, place->iov, place->niov, lane->left, iov,
				   TRANSPORT_MAX_IOV - 1);
		covered = 0;
		for (uint32_t i = 0; i < n; i++) {
			covered += iov[i].iov_len;
		}
	} else if (lane->begun) {
		iov[n].iov_base = lane->buffer + (place->size - lane->left);
		iov[n++].iov_len = lane->left;
	}
	if (!lane->begun || covered == lane->left) {
		iov[n].iov_base = (uint8_t *)&lane->header + lane->header_got;
		iov[n++].iov_len = WIRE_SIZE - lane->header_got;
	}
	return n;
}

static void lane_land(struct tcp_lane *lane)
{
	lane->begun = false;
	/* release: with the payload */
	atomic_store_explicit(&lane->landed, own(&lane->landed) + 1, memory_order_release);
}

/* Accounts for read bytes. Return: true when there is something to tell. */
static bool lane_got(struct tcp_lane *lane, uint64_t bytes)
{
	uint64_t payload = lane->begun ? MIN(bytes, lane->left) : 0;
	bool news = false;

	if (lane->begun) {
		if (lane->place.iov) {
			tcp_cursor_advance(&lane->cursor, lane->place.iov, lane->place.niov,
					   payload);
		}
		lane->left -= payload;
		if (lane->left == 0) {
			lane_land(lane);
			news = true;
		}
	}
	lane->header_got += (uint32_t)(bytes - payload);
	if (lane->header_got == WIRE_SIZE) {
		lane->header_got = 0;
		/* release: with the header */
		atomic_store_explicit(&lane->asked, own(&lane->asked) + 1, memory_order_release);
		news = true;
	}
	return news;
}

/* The progress thread has answered: the payload begins. */
static void lane_begin(struct tcp_lane *lane)
{
	lane->begun = true;
	lane->left = lane->place.size;
	lane->cursor = lane->place.cursor;
	if (lane->left == 0) {
		lane_land(lane);
		lane_tell(lane);
	}
}

static void lane_receive(struct tcp_lane *lane)
{
	int64_t budget = TCP_LANE_BUDGET;

	while (lane_may_read(lane) && budget > 0) {
		struct iovec iov[TRANSPORT_MAX_IOV];
		struct msghdr msg = {.msg_iov = iov};
		ssize_t n;

		if (!lane->begun && own(&lane->landed) != own(&lane->asked)) {
			lane_begin(lane);
			continue;
		}
		msg.msg_iovlen = lane_map_in(lane, iov);
		atomic_store_explicit(&lane->calls, own(&lane->calls) + 1, memory_order_relaxed);
		n = recvmsg(lane->fd, &msg, MSG_DONTWAIT);
		if (n > 0) {
			budget -= n;
			if (lane_got(lane, (uint64_t)n)) {
				lane_tell(lane);
			}
		} else if (n == 0) {
			lane_fail(lane, -ECONNRESET);
		} else if (errno == EAGAIN || errno == EWOULDBLOCK) {
			lane->readable = false;
		} else if (errno != EINTR) {
			lane_fail(lane, -errno);
		}
	}
}

static bool lane_busy(struct tcp_lane *lane)
{
	return (lane->writable &&
		own(&lane->sent) != atomic_load_explicit(&lane->tail, memory_order_relaxed)) ||
	       lane_may_read(lane);
}

/* ---- I/O thread: all lanes ----------------------------------------------------------------- */

static void io_forget(struct tcp_io *io, struct tcp_lane *lane)
{
	epoll_ctl(io->epoll, EPOLL_CTL_DEL, lane->fd, NULL);
	atomic_store_explicit(&io->lanes[lane->index], NULL, memory_order_relaxed);
	/* release: the last thing that this thread does with it */
	atomic_store_explicit(&lane->gone, true, memory_order_release);
}

/* The progress thread waits for it: the place is forgotten before anything else is read. */
static void lane_drop(struct tcp_lane *lane)
{
	/* acquire: with `place`, if it is new */
	uint32_t drops = atomic_load_explicit(&lane->drops, memory_order_acquire);

	if (drops != own(&lane->dropped)) {
		lane->place.iov = NULL;
		/* release: after the last byte that was written to the place */
		atomic_store_explicit(&lane->dropped, drops, memory_order_release);
	}
}

/* One turn of a lane. Return: true if it wants another. */
static bool io_serve(struct tcp_io *io, unsigned int index)
{
	/* acquire: pairs with tcp_io_add() */
	struct tcp_lane *lane = atomic_load_explicit(&io->lanes[index], memory_order_acquire);

	if (!lane) {
		return false;
	}
	if (atomic_load_explicit(&lane->quit, memory_order_acquire)) {
		io_forget(io, lane);
		return false;
	}
	lane_drop(lane);
	lane_send(lane);
	lane_receive(lane);
	return lane_busy(lane);
}

/* Waits for events of sockets. @timeout_ms: 0 looks only. */
static void io_events(struct tcp_io *io, int timeout_ms)
{
	struct epoll_event events[EVENTS];
	int n = epoll_wait(io->epoll, events, EVENTS, timeout_ms);

	for (int i = 0; i < n; i++) {
		uint32_t index = events[i].data.u32;
		struct tcp_lane *lane;

		if (index == BELL) {
			uint64_t count;

			(void)!read(io->bell.fd, &count, sizeof(count));
			continue;
		}
		lane = atomic_load_explicit(&io->lanes[index], memory_order_acquire);
		if (!lane) {
			continue;
		}
		/* Errors show in both calls. */
		lane->readable |= (events[i].events & ~(uint32_t)EPOLLOUT) != 0;
		lane->writable |= (events[i].events & ~(uint32_t)EPOLLIN) != 0;
		io->busy[index / 64] |= UINT64_C(1) << index % 64;
	}
}

/* Return: true if any lane had something to do. */
static bool io_turn(struct tcp_io *io)
{
	bool any = false;

	io_events(io, 0);
	for (unsigned int w = 0; w < TCP_IO_WORDS; w++) {
		uint64_t bits = io->busy[w];

		if (atomic_load_explicit(&io->kick[w], memory_order_relaxed)) {
			/* acquire: pairs with tcp_io_kick() */
			bits |= atomic_exchange_explicit(&io->kick[w], 0, memory_order_acquire);
		}
		io->busy[w] = 0;
		any |= bits != 0;
		while (bits) {
			unsigned int i = (unsigned int)__builtin_ctzll(bits);

			bits &= bits - 1;
			if (io_serve(io, w * 64 + i)) {
				io->busy[w] |= UINT64_C(1) << i;
			}
		}
	}
	return any;
}

static void io_sleep(struct tcp_io *io)
{
	bool news = false;

	/* seq_cst, all three: see bell_ring() */
	atomic_store_explicit(&io->bell.asleep, true, memory_order_seq_cst);
	for (unsigned int w = 0; w < TCP_IO_WORDS; w++) {
		news |= atomic_load_explicit(&io->kick[w], memory_order_seq_cst) != 0;
	}
	if (!news && !atomic_load_explicit(&io->stop, memory_order_seq_cst)) {
		io_events(io, -1);
	}
	atomic_store_explicit(&io->bell.asleep, false, memory_order_relaxed);
}

static void io_main(void *arg)
{
	struct tcp_io *io = arg;
	uint64_t idle_since = 0;

	while (!atomic_load_explicit(&io->stop, memory_order_acquire)) {
		uint64_t now;

		if (io_turn(io)) {
			idle_since = 0;
			continue;
		}
		now = clock_monotonic();
		if (idle_since == 0) {
			idle_since = now;
		}
		if (clock_elapsed(now, idle_since) < io->spin_ns) {
			sched_yield();
			continue;
		}
		io_sleep(io);
		idle_since = 0;
	}
}

/* ---- progress thread ------------------------------------------------------------------------ */

int tcp_io_new(struct tcp_bell *progress, uint32_t spin_us, unsigned int number,
	       struct tcp_io **ret)
{
	struct tcp_io *io = aligned_alloc(64, sizeof(*io));
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = BELL};
	char name[16];
	int r;

	if (!io) {
		return err_origin(-ENOMEM);
	}
	memset(io, 0, sizeof(*io));
	io->progress = progress;
	io->spin_ns = spin_us * CLOCK_NS_PER_US;
	io->bell.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	io->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (io->bell.fd < 0 || io->epoll < 0 ||
	    epoll_ctl(io->epoll, EPOLL_CTL_ADD, io->bell.fd, &event) < 0) {
		r = -errno;
		tcp_io_free(io);
		return err_origin(r);
	}
	snprintf(name, sizeof(name), "io-%u", number);
	r = thread_start(&io->thread, name, THREAD_ANY_CPU, io_main, io);
	if (r != 0) {
		tcp_io_free(io);
		return err_fold(r);
	}
	*ret = io;
	return 0;
}

struct tcp_io *tcp_io_free(struct tcp_io *io)
{
	if (io) {
		atomic_store_explicit(&io->stop, true, memory_order_seq_cst);
		bell_ring(&io->bell);
		thread_join(&io->thread);
		base_close(io->epoll);
		base_close(io->bell.fd);
		free(io);
	}
	return NULL;
}

int tcp_io_add(struct tcp_io *io, struct tcp_stream *stream, int fd, uint32_t fragment,
	       struct tcp_lane **ret)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
	struct tcp_lane *lane;
	uint32_t i = 0;

	/* relaxed: a slot that reads as free stays free until this thread takes it */
	while (i < TCP_IO_LANES && atomic_load_explicit(&io->lanes[i], memory_order_relaxed)) {
		i++;
	}
	if (i == TCP_IO_LANES) {
		return err_origin(-ENOSPC);
	}
	lane = aligned_alloc(64, sizeof(*lane));
	if (!lane) {
		return err_origin(-ENOMEM);
	}
	memset(lane, 0, sizeof(*lane));
	lane->buffer = aligned_alloc(TCP_ALIGN, fragment);
	if (!lane->buffer) {
		free(lane);
		return err_origin(-ENOMEM);
	}
	lane->stream = stream;
	lane->io = io;
	lane->index = i;
	lane->fd = fd;
	event.data.u32 = i;
	/* release: pairs with io_serve() and io_events() */
	atomic_store_explicit(&io->lanes[i], lane, memory_order_release);
	io->used++;
	if (epoll_ctl(io->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
		int r = -errno;

		tcp_io_remove(lane); /* its thread may have it in hand already */
		return err_origin(r);
	}
	*ret = lane;
	return 0;
}

struct tcp_lane *tcp_io_remove(struct tcp_lane *lane)
{
	if (lane) {
		atomic_store_explicit(&lane->quit, true, memory_order_release);
		tcp_io_kick(lane);
		/* Bounded by one turn of the other lanes: its thread never waits for anybody. */
		while (!atomic_load_explicit(&lane->gone, memory_order_acquire)) {
			sched_yield();
		}
		/* What it told last, nobody looks at: it must not keep transport_arm() awake. */
		atomic_fetch_and_explicit(&lane->io->ready[lane->index / 64],
					  ~(UINT64_C(1) << lane->index % 64), memory_order_relaxed);
		lane->io->used--;
		free(lane->buffer);
		free(lane);
	}
	return NULL;
}

void tcp_io_drop_begin(struct tcp_lane *lane)
{
	/* release: pairs with lane_drop() */
	atomic_store_explicit(&lane->drops, own(&lane->drops) + 1, memory_order_release);
	tcp_io_kick(lane);
}

void tcp_io_drop_end(struct tcp_lane *lane)
{
	/* As in tcp_io_remove(). acquire: `place` and what is in it are ours again */
	while (atomic_load_explicit(&lane->dropped, memory_order_acquire) != own(&lane->drops)) {
		sched_yield();
	}
}

void tcp_io_kick(struct tcp_lane *lane)
{
	struct tcp_io *io = lane->io;

	/* Releases what the lane is told to io_turn(); seq_cst: bell_ring() */
	atomic_fetch_or_explicit(&io->kick[lane->index / 64], UINT64_C(1) << lane->index % 64,
				 memory_order_seq_cst);
	if (bell_ring(&io->bell)) {
		lane->stream->peer->transport->stats.syscalls++;
	}
}

uint64_t tcp_io_news(struct tcp_io *io, unsigned int w)
{
	if (!atomic_load_explicit(&io->ready[w], memory_order_relaxed)) {
		return 0;
	}
	/* acquire: pairs with lane_tell() */
	return atomic_exchange_explicit(&io->ready[w], 0, memory_order_acquire);
}

bool tcp_io_has_news(struct tcp_io *io)
{
	for (unsigned int w = 0; w < TCP_IO_WORDS; w++) {
		/* seq_cst: see bell_ring() */
		if (atomic_load_explicit(&io->ready[w], memory_order_seq_cst)) {
			return true;
		}
	}
	return false;
}
