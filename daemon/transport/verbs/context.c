/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs backend: contexts, polling and sleeping
 *
 * Sleeping: completion queues are armed, then looked at once more; what is found then is kept for
 * the next verbs_poll(), and verbs_arm() says so. The event of an armed queue is taken off its
 * channel before the next sleep, with one read, for what woke us waits for an answer.
 *
 * Thread: the progress thread that owns the context      Owns: see verbs.h      Locks: none
 */
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#include "transport/verbs/verbs_impl.h"

#define DEFAULT(field, value)                                     \
	do {                                                      \
		if (o->field == 0) {                              \
			o->field = (__typeof__(o->field))(value); \
		}                                                 \
	} while (0)

static void set_defaults(struct verbs_options *o)
{
	DEFAULT(fragment, 256 * 1024);
	DEFAULT(direct, 1024 * 1024);
	DEFAULT(eager, 8192);
	DEFAULT(frames, 512);
	DEFAULT(chunks, 64);
	DEFAULT(bulk_qps, 2);
	DEFAULT(bulk_depth, 4);
	DEFAULT(credits, 64);
	DEFAULT(tickets, 128);
	DEFAULT(inline_max, 220);
	DEFAULT(mtu, 4096);
	DEFAULT(hop_limit, 64);
	DEFAULT(timeout, 16);
	DEFAULT(retry, 6);
	DEFAULT(rnr_retry, 6);
	DEFAULT(rnr_timer, 12);
	DEFAULT(wr_timeout_ms, 10000);
	DEFAULT(gap_ms, 1000);
	DEFAULT(drain_ms, 500);
	DEFAULT(probe_ms, 10000);
	DEFAULT(reopen_ms, 500);
	DEFAULT(reopen_max_ms, 30000);
	DEFAULT(recover_ms, 10000);
}

static bool options_valid(const struct verbs_options *o)
{
	return o->fragment % 64 == 0 && o->fragment <= 8u << 20 && o->direct <= 8u << 20 &&
	       o->eager >= 4096 && o->eager <= 1u << 20 && o->frames > VERBS_FRAMES_KEPT &&
	       o->frames <= 65536 && o->chunks >= 4 && o->chunks <= 65536 &&
	       o->bulk_qps < VERBS_QPS_MAX && o->bulk_depth <= 256 && o->credits >= 8 &&
	       o->credits <= 4096 && o->tickets <= VERBS_TICKET_MAX && o->mtu >= 256 &&
	       o->retry < 7 && o->rnr_retry < 7 && o->timeout < 32 && o->rnr_timer < 32 &&
	       o->service_level < 16;
}

static int make_fds(struct verbs *v)
{
	struct epoll_event event = {.events = EPOLLIN};

	v->epoll = epoll_create1(EPOLL_CLOEXEC);
	v->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (v->epoll < 0 || v->timer < 0 ||
	    epoll_ctl(v->epoll, EPOLL_CTL_ADD, v->timer, &event) < 0) {
		return err_origin(-errno);
	}
	return 0;
}

/**
 * verbs_new() - make a context
 * @options: borrowed; zeros mean defaults
 * @handler: copied
 * @arg:     for the handler
 * @clock:   borrowed
 * @ret:     new context, set on success only
 *
 * Return: 0, -EINVAL for options out of range, or negative errno.
 */
int verbs_new(const struct verbs_options *options, const struct verbs_handler *handler, void *arg,
	      const struct clock_source *clock, struct verbs **ret)
{
	struct verbs *v = calloc(1, sizeof(*v));
	int r;

	if (!v) {
		return err_origin(-ENOMEM);
	}
	v->options = *options;
	set_defaults(&v->options);
	v->handler = *handler;
	v->arg = arg;
	v->clock = clock;
	v->now = clock_now(clock);
	v->epoll = v->timer = -1;
	list_init(&v->peers);
	list_init(&v->dirty);
	list_init(&v->failed);
	list_init(&v->garbage);
	list_init(&v->flush);
	list_init(&v->free_frames);
	if (!options_valid(&v->options)) {
		verbs_free(v);
		return err_origin(-EINVAL);
	}
	if (getrandom(&v->seed, sizeof(v->seed), GRND_NONBLOCK) != sizeof(v->seed)) {
		v->seed = v->now;
	}
	v->qps = calloc(VERBS_QP_TABLE, sizeof(*v->qps));
	r = v->qps ? make_fds(v) : -ENOMEM;
	if (r == 0) {
		r = verbs_buffers_init(v);
	}
	if (r < 0) {
		verbs_free(v);
		return err_trace(r);
	}
	*ret = v;
	return 0;
}

/**
 * verbs_free() - close all peers and free the context
 * @v: consumed; NULL allowed; not from inside a callback
 *
 * Return: NULL
 */
struct verbs *verbs_free(struct verbs *v)
{
	struct list *l;

	if (!v) {
		return NULL;
	}
	assert(v->depth == 0);
	while ((l = list_first(&v->peers))) {
		verbs_peer_free(container_of(l, struct verbs_peer, link));
	}
	for (uint32_t i = 0; i < v->ndevs; i++) {
		if (v->devs[i].device) {
			rdma_mem_drop_device(v->buffers, v->devs[i].device);
			verbs_dev_close(&v->devs[i]);
		}
	}
	verbs_buffers_deinit(v);
	base_close(v->timer);
	base_close(v->epoll);
	free(v->mems);
	free(v->qps);
	free(v);
	return NULL;
}

void verbs_set_clock(struct verbs *v, const struct clock_source *clock)
{
	v->clock = clock;
}

void verbs_enter(struct verbs *v)
{
	if (v->depth++ == 0) {
		v->now = clock_now(v->clock);
	}
}

static void post_prepared(struct verbs *v)
{
	struct list *l;

	while ((l = list_first(&v->flush))) {
		verbs_qp_flush(container_of(l, struct verbs_qp, flush));
	}
}

/* The outermost leaves: what was prepared is posted, and what was freed goes. */
void verbs_leave(struct verbs *v)
{
	if (v->depth == 1) {
		post_prepared(v);
	}
	verbs_leave_later(v);
}

void verbs_leave_later(struct verbs *v)
{
	struct list *l;

	if (--v->depth > 0) {
		return;
	}
	while ((l = list_first(&v->garbage))) {
		list_remove(l);
		verbs_peer_destroy(container_of(l, struct verbs_peer, link));
	}
}

/**
 * verbs_flush() - post what verbs_send() has prepared
 * @v: borrowed
 */
void verbs_flush(struct verbs *v)
{
	if (!list_empty(&v->flush)) {
		verbs_enter(v);
		verbs_leave(v);
	}
}

static void take_event(struct verbs *v, struct verbs_dev *dev)
{
	struct ibv_cq *which;

	if (dev->api->get_cq_event(dev->channel, &which) != 0) {
		return;
	}
	dev->api->ack_cq_events(which, 1);
	v->stats.events++;
	for (struct verbs_cq *cq = dev->cqs; cq; cq = cq->next) {
		if (cq->cq == which) {
			cq->armed = false;
		}
	}
}

static int poll_cq(struct verbs *v, struct verbs_cq *cq)
{
	struct ibv_wc wc[VERBS_POLL];
	int total = 0, n;

	for (uint32_t i = 0; i < cq->nstash; i++) {
		verbs_qp_complete(v, &cq->stash[i]);
	}
	total = (int)cq->nstash;
	cq->nstash = 0;
	for (int turn = 0; turn < VERBS_POLL_TURNS; turn++) {
		n = cq->dev->api->poll_cq(cq->cq, VERBS_POLL, wc);
		v->stats.polls++;
		for (int i = 0; i < n; i++) {
			verbs_qp_complete(v, &wc[i]);
		}
		total += MAX(n, 0);
		if (n < VERBS_POLL) {
			break;
		}
	}
	cq->found = cq->found || total > 0;
	return total;
}

/* Of a device that is left for good: what it had brought counts, for its sender knows that. */
void verbs_dev_finish(struct verbs *v, struct verbs_dev *dev)
{
	for (struct verbs_cq *cq = dev->cqs; cq; cq = cq->next) {
		for (uint32_t n = 0; n <= cq->size / VERBS_POLL && poll_cq(v, cq) > 0; n++) {
			/* more */
		}
	}
}

static int poll_devices(struct verbs *v)
{
	int total = 0;

	for (uint32_t i = 0; i < v->ndevs; i++) {
		for (struct verbs_cq *cq = v->devs[i].cqs; cq; cq = cq->next) {
			total += poll_cq(v, cq);
		}
	}
	v->stats.completions += (uint64_t)total;
	return total;
}

static void clear_timer(struct verbs *v)
{
	uint64_t n;

	if (!v->timer_set || v->now < v->timer_at) {
		return;
	}
	/* Nothing to read only means that it has not fired yet. */
	if (read(v->timer, &n, sizeof(n)) >= 0 || errno != EAGAIN) {
		v->timer_set = false;
	}
}

/**
 * verbs_poll() - move what can be moved
 * @v: borrowed; not from inside a callback
 *
 * Return: how many completions there were.
 */
int verbs_poll(struct verbs *v)
{
	struct list *l;
	int total;

	assert(!v->polling);
	verbs_enter(v);
	v->polling = true;
	post_prepared(v);
	clear_timer(v);
	verbs_tell_failed(v);
	total = poll_devices(v);
	if (v->now >= v->tick_at) {
		v->tick_at = v->now + VERBS_TICK_MS * CLOCK_NS_PER_MS;
		verbs_watch(v);
	}
	/* A peer that cannot do its work now puts itself on the list again, for the next time. */
	for (uint32_t n = v->npeers; n > 0 && (l = list_first(&v->dirty)); n--) {
		list_remove(l);
		verbs_peer_work(container_of(l, struct verbs_peer, dirty));
	}
	verbs_tell_failed(v);
	v->polling = false;
	verbs_leave(v);
	return total;
}

int verbs_fd(const struct verbs *v)
{
	return v->epoll;
}

/* Takes what came since the last time; each armed queue has at most one. */
static void take_events(struct verbs *v, struct verbs_dev *dev)
{
	for (struct verbs_cq *cq = dev->cqs; cq; cq = cq->next) {
		if (cq->armed && cq->found) {
			take_event(v, dev);
		}
	}
}

/* Return: false when there is work already. */
static bool arm_cq(struct verbs *v, struct verbs_cq *cq)
{
	int n;

	if (cq->armed || cq->nstash > 0) {
		return cq->nstash == 0;
	}
	if (cq->dev->api->notify_cq(cq->cq) != 0) {
		return false;
	}
	cq->armed = true;
	cq->found = false;
	v->stats.notifies++;
	n = cq->dev->api->poll_cq(cq->cq, VERBS_POLL, cq->stash);
	v->stats.polls++;
	cq->nstash = (uint32_t)MAX(n, 0);
	cq->found = cq->nstash > 0;
	return cq->nstash == 0;
}

static void arm_timer(struct verbs *v)
{
	struct itimerspec at = {.it_value.tv_nsec = 2 * VERBS_TICK_MS * (long)CLOCK_NS_PER_MS};

	if (v->timer_set || !verbs_watch_needed(v)) {
		return;
	}
	v->timer_at = clock_now(v->clock) + 2 * VERBS_TICK_MS * CLOCK_NS_PER_MS;
	if (timerfd_settime(v->timer, 0, &at, NULL) == 0) {
		v->timer_set = true;
	}
}

/**
 * verbs_arm() - prepare verbs_fd() for sleeping
 * @v: borrowed; not from inside a callback
 *
 * Return: false when there is work already: poll instead.
 */
bool verbs_arm(struct verbs *v)
{
	bool idle;

	verbs_flush(v);
	idle = list_empty(&v->failed);
	for (uint32_t i = 0; i < v->ndevs && idle; i++) {
		take_events(v, &v->devs[i]);
		for (struct verbs_cq *cq = v->devs[i].cqs; cq && idle; cq = cq->next) {
			idle = arm_cq(v, cq);
		}
	}
	if (idle) {
		arm_timer(v);
	}
	return idle;
}

void verbs_get_stats(const struct verbs *v, struct verbs_stats *ret)
{
	*ret = v->stats;
}
