/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Two hosts of the lab with rails between them: see lab_rails.h
 *
 * Thread: as lab_rails.h says      Owns: nothing      Locks: lock: the fake
 */
#include "tests/unit/engine/lab_rails.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static const uint32_t two_by_one[] = {0, 1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct verbs_api *fake; /* the calls are the same for all hosts */

/* ---- the fake, one at a time --------------------------------------------------------------- */

#define LOCKED(type, call)                   \
	({                                   \
		type result_;                \
		pthread_mutex_lock(&lock);   \
		result_ = fake->call;        \
		pthread_mutex_unlock(&lock); \
		result_;                     \
	})

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *user,
				struct ibv_comp_channel *channel)
{
	return LOCKED(struct ibv_cq *, create_cq(context, entries, user, channel));
}

static int destroy_cq(struct ibv_cq *cq)
{
	return LOCKED(int, destroy_cq(cq));
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret)
{
	return LOCKED(int, poll_cq(cq, count, ret));
}

static int notify_cq(struct ibv_cq *cq)
{
	return LOCKED(int, notify_cq(cq));
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret)
{
	return LOCKED(int, get_cq_event(channel, ret));
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return LOCKED(struct ibv_qp *, create_qp(pd, attr));
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return LOCKED(int, modify_qp(qp, attr, mask));
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		    struct ibv_qp_init_attr *init)
{
	return LOCKED(int, query_qp(qp, attr, mask, init));
}

static int destroy_qp(struct ibv_qp *qp)
{
	return LOCKED(int, destroy_qp(qp));
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return LOCKED(int, post_send(qp, wr, bad));
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return LOCKED(int, post_recv(qp, wr, bad));
}

static struct verbs_api locked_api(const struct verbs_api *api)
{
	struct verbs_api own = *api;

	own.create_cq = create_cq;
	own.destroy_cq = destroy_cq;
	own.poll_cq = poll_cq;
	own.notify_cq = notify_cq;
	own.get_cq_event = get_cq_event;
	own.create_qp = create_qp;
	own.modify_qp = modify_qp;
	own.query_qp = query_qp;
	own.destroy_qp = destroy_qp;
	own.post_send = post_send;
	own.post_recv = post_recv;
	return own;
}

static void *network(void *arg)
{
	struct lab_rails *n = arg;
	bool stop = false;

	while (!stop) {
		pthread_mutex_lock(&lock);
		for (int i = 0; i < 16 && !n->pause && fake_verbs_step(n->fake); i++) {
			/* one thing more */
		}
		stop = n->stop;
		pthread_mutex_unlock(&lock);
		sched_yield();
	}
	return NULL;
}

void lab_rails_link(struct lab_rails *n, uint32_t rail, bool up)
{
	pthread_mutex_lock(&lock);
	fake_verbs_link(n->devices[0][rail], up);
	pthread_mutex_unlock(&lock);
}

void lab_rails_mangle(struct lab_rails *n, uint32_t host, bool receive, uint32_t nth,
		      enum fake_mangle what)
{
	pthread_mutex_lock(&lock);
	fake_verbs_mangle(n->devices[host][0], receive, nth, what);
	pthread_mutex_unlock(&lock);
}

/* Bytes that devices lab_rails_delivered. */
uint64_t lab_rails_delivered(struct lab_rails *n)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&lock);
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			bytes += n->devices[h][r]->bytes;
		}
	}
	pthread_mutex_unlock(&lock);
	return bytes;
}

int lab_rails_made(struct lab_rails *n, bool qps)
{
	int total = 0;

	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			struct fake_mr_view view;

			fake_verbs_mrs(n->devices[h][r], &view);
			pthread_mutex_lock(&lock);
			total += qps ? n->devices[h][r]->qps : view.calls;
			pthread_mutex_unlock(&lock);
		}
	}
	return total;
}

/* ---- two hosts ----------------------------------------------------------------------------- */

void lab_rails_done(void *arg)
{
	struct lab_rails *n = arg;

	n->pending--;
}

void lab_rails_settle(struct lab_rails *n)
{
	for (int i = 0; i < 20000 && n->pending; i++) {
		lab_pump(n->lab);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(n->pending, 0);
}

static void start_host(struct lab_rails *n, uint32_t h)
{
	static const struct rdma_options all = {NULL, NULL};
	struct engine_rdma_options o = {
		.verbs = {.fragment = 16 << 10,
			  .direct = 32 << 10,
			  .eager = 4096,
			  .chunks = 16,
			  .gap_ms = 200,
			  .wr_timeout_ms = 3000,
			  .drain_ms = 200,
			  .reopen_ms = 50,
			  .reopen_max_ms = 200},
	};

	n->api[h] = locked_api(fake_verbs_api(n->fake, h));
	cr_assert_eq(rdma_new(&n->api[h], &all, &n->list[h]), 0);
	o.list = n->list[h];
	o.bounds = n->bounds;
	cr_assert_eq(engine_rdma_start(n->lab->engines[h], &o), 0);
	for (uint32_t r = 0; r < n->rails; r++) {
		n->added[h][r].device = n->list[h]->devices[r];
		n->pending++;
		engine_device_add(n->lab->engines[h], &n->added[h][r], lab_rails_done, n);
	}
	lab_rails_settle(n);
	cr_assert_eq(
		engine_peer_rails(n->lab->engines[h], n->lab->peers[h][!h], h ? "a" : "b", h == 0),
		0);
}

void lab_rails_pause(struct lab_rails *n, bool pause)
{
	pthread_mutex_lock(&lock);
	n->pause = pause;
	pthread_mutex_unlock(&lock);
}

/* Nothing moves before both ends have done it. */
static void act(struct lab_rails *n, unsigned int what)
{
	lab_rails_pause(n, true);
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			struct engine_rail *w = &n->rail[h][r];

			w->act = what;
			w->rail = r;
			w->params = (struct verbs_rail_params){n->list[h]->devices[r], 1,
							       fake_verbs_gid(r, h), 0};
			if (what == ENGINE_RAIL_CONNECT) {
				w->remote = n->rail[!h][r].local;
			}
			n->pending++;
			engine_peer_rail(n->lab->engines[h], n->lab->peers[h][!h], w,
					 lab_rails_done, n);
		}
	}
	lab_rails_settle(n);
	lab_rails_pause(n, false);
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			cr_assert_eq(n->rail[h][r].result, 0, "%s", n->rail[h][r].why);
		}
	}
}

/* How many rails are up on the host where there are the fewest. */
static uint32_t lab_rails_up(struct lab_rails *n)
{
	struct engine_rails_view view[HOSTS];
	uint32_t least = n->rails;

	for (uint32_t h = 0; h < HOSTS; h++) {
		uint32_t up = 0;

		n->pending++;
		engine_peer_look(n->lab->engines[h], n->lab->peers[h][!h], &view[h], lab_rails_done,
				 n);
		lab_rails_settle(n);
		for (uint32_t r = 0; r < n->rails; r++) {
			up += view[h].rails[r].state == VERBS_RAIL_UP;
		}
		least = up < least ? up : least;
	}
	return least;
}

void lab_rails_wait_up(struct lab_rails *n)
{
	for (int i = 0; i < 5000 && lab_rails_up(n) < n->rails; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(lab_rails_up(n), n->rails);
}

void lab_rails_init(struct lab_rails *n, uint64_t seed, uint32_t rails)
{
	static const struct rdma_bounds none;

	lab_rails_init_bounded(n, seed, rails, &none);
}

void lab_rails_init_bounded(struct lab_rails *n, uint64_t seed, uint32_t rails,
			    const struct rdma_bounds *bounds)
{
	char name[16];

	memset(n, 0, sizeof(*n));
	n->bounds = *bounds;
	n->rails = rails;
	n->fake = fake_verbs_new(seed);
	fake = fake_verbs_api(n->fake, 0);
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < rails; r++) {
			snprintf(name, sizeof(name), "roce%c%u", 'a' + h, r);
			n->devices[h][r] = fake_verbs_device(n->fake, h, name, r);
		}
	}
	n->lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	cr_assert_eq(pthread_create(&n->thread, NULL, network, n), 0);
	for (uint32_t h = 0; h < HOSTS; h++) {
		start_host(n, h);
	}
	act(n, ENGINE_RAIL_OPEN);
	act(n, ENGINE_RAIL_CONNECT);
	lab_rails_wait_up(n);
}

void lab_rails_fini(struct lab_rails *n)
{
	lab_free(n->lab);
	pthread_mutex_lock(&lock);
	n->stop = true;
	pthread_mutex_unlock(&lock);
	pthread_join(n->thread, NULL);
	cr_assert_eq(fake_verbs_rnr(n->fake), 0, "a receiver was overrun");
	for (uint32_t h = 0; h < HOSTS; h++) {
		rdma_free(n->list[h]);
	}
	fake_verbs_free(n->fake);
}
