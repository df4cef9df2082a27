/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Progress: the loop
 *
 * Spinning yields on every poll: on a small machine the process that it waits for may need this
 * very CPU (pause-spinning was measured to be ten times slower there), and on a large one yielding
 * costs less than a microsecond. Waking a sleeping CPU costs up to 40 us, which is why it spins at
 * all.
 *
 * Thread: progress      Owns: see progress.h      Locks: none
 */
#include "engine/progress.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine/client_ring.h"
#include "engine/comm.h"
#include "engine/conn.h"
#include "engine/gauge.h"
#include "engine/gate.h"
#include "engine/op.h"
#include "engine/p2p.h"
#include "engine/relay.h"
#include "engine/workers.h"
#include "util/clock.h"
#include "util/farcopy.h"

/*
 * Turns in vain before the CPU is given away, while an operation is under way: a peer's message is
 * often there by then, and every process on the CPU has its turn before we look again.
 */
#define LOOKS 3 /* of a machine with one CPU: 1, for no peer on it works meanwhile */
/* So often have rails brought something and sockets nothing when these are looked at less often. */
#define SILENT 16
#define SILENT_TURNS 8
#define RUNS_PER_LOOP 8
#define CHECK_INTERVAL (100 * CLOCK_NS_PER_MS)
#define SLEEP_MS 200 /* while operations are in flight, so that time-outs are seen */

static int epoll_watch(int epoll, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? err_origin(-errno) : 0;
}

static int make_workers(struct progress *p)
{
	int n = p->options.reduce_threads;
	struct workers_options o = {
		.threads = n < 0 ? workers_suit(thread_cpus()) : (unsigned int)n,
		.spin_us = p->options.spin_us,
		.stage = p->options.chunk,
		.bell = p->inbox.fd,
		.syscalls = &p->view.syscalls,
		.run = slice_run,
	};

	return o.threads ? workers_new(&o, &p->workers) : 0;
}

static uint64_t turn_began(void *arg)
{
	const struct progress *p = arg;

	return p->now;
}

int progress_new(const struct engine_options *options, struct mailbox *outbox,
		 struct progress **ret)
{
	struct progress *p = calloc(1, sizeof(*p));
	struct transport_options t = {
		.fragment = options->chunk,
		.io_threads = options->io_threads,
		.io_spin_us = options->spin_us,
		.user_timeout_ms = options->user_timeout_ms,
	};
	int r;

	if (!p) {
		return err_origin(-ENOMEM);
	}
	p->options = *options;
	p->outbox = outbox;
	p->far_bytes = farcopy_threshold();
	/* Not thread_cpus(): a peer may be on a CPU that is kept from us. */
	p->looks = sysconf(_SC_NPROCESSORS_ONLN) == 1 ? 1 : LOOKS;
	p->clock = (struct clock_source){turn_began, p};
	p->inbox.fd = -1;
	for (size_t i = 0; i < sizeof(t.congestion); i++) {
		t.congestion[i] = options->congestion[i];
	}
	list_init(&p->sessions);
	list_init(&p->dirty);
	list_init(&p->comms);
	list_init(&p->peers);
	list_init(&p->runnable);
	list_init(&p->gated);
	p->epoll = epoll_create1(EPOLL_CLOEXEC);
	r = p->epoll < 0 ? err_origin(-errno) : mailbox_init(&p->inbox);
	if (r == 0) {
		r = transport_new(&t, &conn_handler, p, &p->transport);
	}
	if (r == 0) {
		r = make_workers(p);
	}
	if (r == 0) {
		r = epoll_watch(p->epoll, p->inbox.fd, EPOLLIN);
	}
	if (r == 0) {
		r = epoll_watch(p->epoll, transport_fd(p->transport), EPOLLIN);
	}
	if (r != 0) {
		progress_free(p);
		return err_fold(r);
	}
	p->copies.bell = p->inbox.fd;
	p->now = clock_monotonic();
	*ret = p;
	return 0;
}

struct progress *progress_free(struct progress *p)
{
	if (p) {
		transport_free(p->transport);
		verbs_free(p->verbs);
		workers_free(p->workers);
		mailbox_deinit(&p->inbox);
		base_close(p->epoll);
		free(p);
	}
	return NULL;
}

void progress_tell(struct progress *p, struct mailbox_msg *msg)
{
	if (mailbox_post(p->outbox, msg)) {
		counter_add(&p->view.syscalls, 1);
	}
}

/* Steps of operations: a bounded number, in turn. */
static int run_steps(struct progress *p)
{
	int n = 0;

	while (n < RUNS_PER_LOOP && !list_empty(&p->runnable)) {
		struct op_run *run = container_of(p->runnable.next, struct op_run, link);

		list_remove(&run->link);
		op_run_steps(run);
		n++;
	}
	return n;
}

static void look_at_rings(struct progress *p)
{
	list_for_each (e, &p->sessions) {
		client_ring_look(container_of(e, struct engine_session, link));
	}
}

static int poll_rings(struct progress *p)
{
	int n = 0;

	list_for_each (e, &p->sessions) {
		n += client_ring_poll(container_of(e, struct engine_session, link));
	}
	return n;
}

/* Credits, or ends of conflicts: everything that was waiting is looked at again. */
static int rescan(struct progress *p)
{
	if (!p->rescan) {
		return 0;
	}
	p->rescan = false;
	for (struct engine_comm *c = comm_walk(p); c; c = comm_walk_next(p)) {
		for (uint32_t seq = c->done; !c->failed && seq != c->started; seq++) {
			struct op *op = &c->ops[seq % LIMIT_COMM_WINDOW];

			if (op->state == OP_ACTIVE && op->seq == seq) {
				op_retry(op);
			}
		}
		if (!c->failed) {
			comm_advance(c);
			p2p_advance(c);
		}
	}
	return 1;
}

static void flush(struct progress *p)
{
	while (!list_empty(&p->dirty)) {
		p->answered = true;
		client_ring_flush(container_of(p->dirty.next, struct engine_session, dirty));
	}
}

static void check_timeouts(struct progress *p)
{
	if (p->now < p->next_check) {
		return;
	}
	p->next_check = p->now + CHECK_INTERVAL;
	for (struct engine_comm *c = comm_walk(p); c; c = comm_walk_next(p)) {
		comm_check_timeouts(c);
	}
	list_for_each (e, &p->peers) {
		gauge_check(container_of(e, struct engine_peer, link)->gauge);
	}
}

/* Announces sleep to all clients. Return: true when none has posted meanwhile. */
static bool arm(struct progress *p)
{
	bool empty = true;

	list_for_each (e, &p->sessions) {
		struct engine_session *s = container_of(e, struct engine_session, link);

		if (!ring_sleep(&s->ring) && !s->corrupt) {
			empty = false;
		}
	}
	if (p->workers && !workers_arm(p->workers)) {
		empty = false;
	}
	if (!gpu_channel_arm(&p->copies)) {
		empty = false;
	}
	if (!transport_arm(p->transport)) {
		empty = false;
	}
	if (p->verbs && (p->notes_due || !verbs_arm(p->verbs))) {
		empty = false;
	}
	return empty && mailbox_empty(&p->inbox);
}

static void disarm(struct progress *p)
{
	if (p->workers) {
		workers_disarm(p->workers);
	}
	gpu_channel_disarm(&p->copies);
	list_for_each (e, &p->sessions) {
		ring_wake(&container_of(e, struct engine_session, link)->ring);
	}
}

/* Return: whether the mailbox rang, or may have. */
static bool wait_for_event(struct progress *p)
{
	struct epoll_event events[16];
	bool rang = false;
	int n;

	counter_add(&p->view.syscalls, 1);
	counter_add(&p->view.wakeups, 1);
	if (!list_empty(&p->gated)) {
		p->skipped = SILENT_TURNS;
		gate_wait(p, events, ARRAY_SIZE(events));
		return true;
	}
	n = epoll_wait(p->epoll, events, ARRAY_SIZE(events), p->busy ? SLEEP_MS : -1);
	for (int i = 0; i < n; i++) {
		rang = rang || events[i].data.fd == p->inbox.fd;
		if (events[i].data.fd == transport_fd(p->transport)) {
			p->skipped = SILENT_TURNS;
		}
	}
	return rang || n < 0;
}

static void sleep_until_event(struct progress *p)
{
	bool rang = arm(p) ? wait_for_event(p) : true;

	disarm(p);
	if (rang) {
		mailbox_clear(&p->inbox);
		counter_add(&p->view.syscalls, 1);
	}
}

/* Does a slice that no worker has taken yet. */
static bool help(struct progress *p)
{
	struct slice_moved moved;

	return p->workers && workers_help(p->workers, &moved);
}

/* Everything has failed; what workers and GPUs still hold comes back first. */
static void finish_workers(struct progress *p)
{
	while (p->workers && workers_out(p->workers)) {
		if (!op_reap(p) && !help(p)) {
			sched_yield();
		}
	}
	while (p->copying || !gpu_channel_quiet(&p->copies)) {
		if (!device_reap(p)) {
			sched_yield();
		}
	}
}

static int poll_verbs(struct progress *p)
{
	int n = verbs_poll(p->verbs);

	if (p->notes_due) {
		p->notes_due = false;
		list_for_each (e, &p->peers) {
			struct relay *r = container_of(e, struct engine_peer, link)->relay;

			p->notes_due |= r && relay_tell(r);
		}
	}
	return n;
}

/*
 * Where rails carry everything sockets are silent, and each look is a system call a connection. One
 * in SILENT_TURNS turns is enough then; asleep the thread hears of them at once.
 */
static int poll_sockets(struct progress *p, int rails)
{
	int n;

	if (p->silent >= SILENT && ++p->skipped < SILENT_TURNS) {
		return 0;
	}
	n = transport_poll(p->transport);
	p->skipped = 0;
	if (n > 0) {
		p->silent = 0;
	} else if (rails > 0 && p->silent < SILENT) {
		p->silent++;
	}
	return n;
}

/* What was sent in this turn goes together. */
static void flush_verbs(struct progress *p)
{
	if (p->verbs) {
		verbs_flush(p->verbs);
	}
}

static void count_verbs(struct progress *p)
{
	struct verbs_stats now;

	verbs_get_stats(p->verbs, &now);
	counter_add(&p->view.bytes_copied, now.bytes_copied - p->verbs_told.bytes_copied);
	counter_add(&p->view.bytes_rdma_sent, now.bytes_sent - p->verbs_told.bytes_sent);
	counter_add(&p->view.bytes_rdma_received,
		    now.bytes_received - p->verbs_told.bytes_received);
	counter_add(&p->view.rdma_work_requests,
		    now.send_wrs + now.recv_wrs - p->verbs_told.send_wrs - p->verbs_told.recv_wrs);
	counter_add(&p->view.rdma_doorbells, now.send_doorbells + now.recv_doorbells -
						     p->verbs_told.send_doorbells -
						     p->verbs_told.recv_doorbells);
	counter_add(&p->view.rdma_completions, now.completions - p->verbs_told.completions);
	p->verbs_told = now;
}

/* The transport's numbers since the last time. */
static void count_transport(struct progress *p)
{
	struct transport_stats now;

	transport_get_stats(p->transport, &now);
	counter_add(&p->view.syscalls, now.syscalls - p->told.syscalls);
	counter_add(&p->view.bytes_copied, now.bytes_copied - p->told.bytes_copied);
	counter_add(&p->view.bytes_wire_sent, now.bytes_sent - p->told.bytes_sent);
	counter_add(&p->view.bytes_wire_received, now.bytes_received - p->told.bytes_received);
	p->told = now;
}

static int turn(struct progress *p)
{
	int n = 0, rails = 0;

	p->now = clock_monotonic();
	look_at_rings(p);
	if (!mailbox_empty(&p->inbox)) {
		n += mailbox_run(&p->inbox, p);
	}
	n += poll_rings(p);
	n += gate_poll(p);
	if (p->workers) {
		n += op_reap(p);
	}
	if (p->copying) {
		n += device_reap(p);
	}
	n += run_steps(p);
	flush_verbs(p);
	flush(p);
	if (p->verbs) {
		rails = poll_verbs(p);
	}
	n += rails + poll_sockets(p, rails);
	n += rescan(p);
	n += run_steps(p);
	if (p->busy) {
		check_timeouts(p);
	}
	flush_verbs(p);
	flush(p); /* last: nothing may wait here while the thread sleeps */
	count_transport(p);
	if (p->verbs) {
		count_verbs(p);
	}
	counter_add(&p->view.loops, 1);
	return n;
}

static void progress_main(void *arg)
{
	struct progress *p = arg;
	uint64_t spin = p->options.spin_us * CLOCK_NS_PER_US;
	uint64_t idle_since = 0;
	unsigned int looks = 0;

	/* Waits for gates are shorter than what the kernel adds to others. */
	prctl(PR_SET_TIMERSLACK, 1000);
	while (!p->stop) {
		p->answered = false;
		if (turn(p) || help(p)) {
			idle_since = 0;
			/* What comes next is up to the clients: they may need this very CPU. */
			if (p->answered && p->busy == 0) {
				sched_yield();
				counter_add(&p->view.yields, 1);
			}
			looks = 0;
			continue;
		}
		if (p->busy > 0 && ++looks < p->looks) {
			continue;
		}
		looks = 0;
		if (idle_since == 0) {
			idle_since = p->now;
		}
		if (clock_elapsed(p->now, idle_since) < spin) {
			sched_yield();
			counter_add(&p->view.yields, 1);
			continue;
		}
		sleep_until_event(p);
		idle_since = 0;
	}
	finish_workers(p);
	flush(p);
}

int progress_start(struct progress *p)
{
	int r = p->workers ? workers_start(p->workers) : 0;

	if (r != 0) {
		return r;
	}
	r = thread_start(&p->thread, "progress", p->options.cpu, progress_main, p);
	if (r != 0 && p->workers) {
		workers_stop(p->workers);
	}
	return r;
}

void progress_join(struct progress *p)
{
	thread_join(&p->thread);
	if (p->workers) {
		workers_stop(p->workers);
	}
}
