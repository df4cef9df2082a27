/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * The engine over rails: whole operations on fake devices that lose, double and swap completions
 *
 * Two hosts of the lab with two rails between them. A thread is the network; it and both progress
 * threads take turns at the fake by a lock, for the fake has none. Sockets between the hosts are
 * there, too, so what can be moved to them must be.
 *
 * Thread: the test's, the engines' and the network's      Owns: nothing      Locks: lock: the fake
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/engine_rdma.h"
#include "mem/region.h"
#include "tests/fake/verbs/fake_verbs.h"
#include "tests/unit/engine/lab.h"

#define HOSTS 2
#define RAILS 2
#define MEM (8u << 20)
#define HALF (MEM / 2)
#define ITEMS (HALF / sizeof(int64_t))

static const uint32_t two_by_one[] = {0, 1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct verbs_api *fake; /* the calls are the same for all hosts */

struct net {
	struct lab *lab;
	struct fake_net *fake;
	struct fake_device *devices[HOSTS][RAILS];
	struct verbs_api api[HOSTS];
	struct rdma *list[HOSTS];
	struct engine_device added[HOSTS][RAILS];
	struct engine_rail rail[HOSTS][RAILS];
	uint32_t rails;
	int pending;
	pthread_t thread;
	bool stop; /* lock */
};

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
	struct net *n = arg;
	bool stop = false;

	while (!stop) {
		pthread_mutex_lock(&lock);
		for (int i = 0; i < 16 && fake_verbs_step(n->fake); i++) {
			/* one thing more */
		}
		stop = n->stop;
		pthread_mutex_unlock(&lock);
		sched_yield();
	}
	return NULL;
}

static void set_link(struct net *n, uint32_t rail, bool up)
{
	pthread_mutex_lock(&lock);
	fake_verbs_link(n->devices[0][rail], up);
	pthread_mutex_unlock(&lock);
}

static void mangle(struct net *n, uint32_t host, bool receive, uint32_t nth, enum fake_mangle what)
{
	pthread_mutex_lock(&lock);
	fake_verbs_mangle(n->devices[host][0], receive, nth, what);
	pthread_mutex_unlock(&lock);
}

/* Bytes that devices delivered. */
static uint64_t delivered(struct net *n)
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

/* ---- two hosts ----------------------------------------------------------------------------- */

static void one_less(void *arg)
{
	struct net *n = arg;

	n->pending--;
}

static void settle(struct net *n)
{
	for (int i = 0; i < 20000 && n->pending; i++) {
		lab_pump(n->lab);
		poll(NULL, 0, 1);
	}
	cr_assert_eq(n->pending, 0);
}

static void start_host(struct net *n, uint32_t h)
{
	static const struct rdma_options all = {NULL, NULL};
	struct engine_rdma_options o = {
		.verbs = {.fragment = 16 << 10,
			  .direct = 32 << 10,
			  .eager = 4096,
			  .chunks = 16,
			  .gap_ms = 200,
			  .wr_timeout_ms = 1000,
			  .drain_ms = 200,
			  .reopen_ms = 50,
			  .reopen_max_ms = 200},
	};

	n->api[h] = locked_api(fake_verbs_api(n->fake, h));
	cr_assert_eq(rdma_new(&n->api[h], &all, &n->list[h]), 0);
	o.list = n->list[h];
	cr_assert_eq(engine_rdma_start(n->lab->engines[h], &o), 0);
	for (uint32_t r = 0; r < n->rails; r++) {
		n->added[h][r].device = n->list[h]->devices[r];
		n->pending++;
		engine_device_add(n->lab->engines[h], &n->added[h][r], one_less, n);
	}
	settle(n);
	cr_assert_eq(
		engine_peer_rails(n->lab->engines[h], n->lab->peers[h][!h], h ? "a" : "b", h == 0),
		0);
}

static void act(struct net *n, unsigned int what)
{
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			struct engine_rail *w = &n->rail[h][r];

			w->act = what;
			w->rail = r;
			w->params = (struct verbs_rail_params){n->list[h]->devices[r], 1,
							       fake_verbs_gid(r, h), 0};
			w->remote = n->rail[!h][r].local;
			n->pending++;
			engine_peer_rail(n->lab->engines[h], n->lab->peers[h][!h], w, one_less, n);
		}
	}
	settle(n);
	for (uint32_t h = 0; h < HOSTS; h++) {
		for (uint32_t r = 0; r < n->rails; r++) {
			cr_assert_eq(n->rail[h][r].result, 0, "%s", n->rail[h][r].why);
		}
	}
}

/* How many rails are up on the host where there are the fewest. */
static uint32_t rails_up(struct net *n)
{
	struct engine_rails_view view[HOSTS];
	uint32_t least = n->rails;

	for (uint32_t h = 0; h < HOSTS; h++) {
		uint32_t up = 0;

		n->pending++;
		engine_peer_look(n->lab->engines[h], n->lab->peers[h][!h], &view[h], one_less, n);
		settle(n);
		for (uint32_t r = 0; r < n->rails; r++) {
			up += view[h].rails[r].state == VERBS_RAIL_UP;
		}
		least = up < least ? up : least;
	}
	return least;
}

static void wait_up(struct net *n)
{
	for (int i = 0; i < 5000 && rails_up(n) < n->rails; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(rails_up(n), n->rails);
}

static void net_init(struct net *n, uint64_t seed, uint32_t rails)
{
	char name[16];

	memset(n, 0, sizeof(*n));
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
	wait_up(n);
}

static void net_fini(struct net *n)
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

/* ---- operations ---------------------------------------------------------------------------- */

static int64_t value(uint32_t rank, uint64_t i, uint32_t round)
{
	return (int64_t)((i + round) * 64 + rank + 1);
}

static int64_t *at(struct net *n, uint32_t r, size_t off)
{
	return (int64_t *)(n->lab->ranks[r].mem + off);
}

static void post(struct net *n, uint64_t items, uint32_t round, uint32_t tickets[HOSTS])
{
	for (uint32_t r = 0; r < HOSTS; r++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .dtype = DTYPE_I64,
				     .op = REDOP_SUM,
				     .count = items,
				     .send_buf = 1,
				     .recv_buf = 1,
				     .recv_off = HALF};

		for (uint64_t i = 0; i < items; i++) {
			at(n, r, 0)[i] = value(r, i, round);
			at(n, r, HALF)[i] = -1;
		}
		tickets[r] = lab_post(n->lab, r, &d);
	}
}

static void check(struct net *n, uint64_t items, uint32_t round)
{
	for (uint32_t r = 0; r < HOSTS; r++) {
		for (uint64_t i = 0; i < items; i++) {
			cr_assert_eq(at(n, r, HALF)[i], value(0, i, round) + value(1, i, round),
				     "rank %u [%zu]", r, (size_t)i);
		}
	}
}

static void allreduce(struct net *n, uint64_t items, uint32_t round)
{
	uint32_t tickets[HOSTS];

	post(n, items, round, tickets);
	for (uint32_t r = 0; r < HOSTS; r++) {
		int status = lab_wait(n->lab, r, tickets[r]);

		cr_assert_eq(status, STATUS_OK, "status %d in round %u", status, round);
	}
	check(n, items, round);
}

static const uint64_t sizes[] = {1, 100, 511, 513, 8192, 100003, ITEMS};

Test(engine_rails, right_bits_over_rails, .timeout = 120)
{
	for (uint32_t rails = 1; rails <= RAILS; rails++) {
		struct net n;

		net_init(&n, rails, rails);
		for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
			uint64_t before = delivered(&n);

			allreduce(&n, sizes[i], i);
			/* Two hosts send half of it twice. */
			cr_assert_geq(delivered(&n) - before, 2 * sizes[i] * sizeof(int64_t));
		}
		cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
		net_fini(&n);
	}
}

static uint64_t counted(struct net *n, uint32_t h, size_t counter)
{
	const struct thread_view *v = engine_thread_view(n->lab->engines[h]);

	return counter_get((const _Atomic uint64_t *)((const uint8_t *)v + counter));
}

/*
 * What an operation costs: 4 MiB are 64 messages of 64 KiB here and as many there, each of them
 * four writes, and a receive for each; requests and grants share the rest.
 */
Test(engine_rails, work_of_an_operation_is_bounded, .timeout = 60)
{
	static const struct {
		size_t counter;
		uint64_t limit;
		const char *name;
	} limits[] = {
		{offsetof(struct thread_view, rdma_work_requests), 850, "work requests"},
		{offsetof(struct thread_view, rdma_doorbells), 400, "doorbells"},
		{offsetof(struct thread_view, rdma_completions), 750, "completions"},
		{offsetof(struct thread_view, bytes_copied), 65536, "bytes copied"},
	};
	uint64_t before[ARRAY_SIZE(limits)];
	struct net n;

	net_init(&n, 3, 1);
	allreduce(&n, ITEMS, 0);
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		before[i] = counted(&n, 0, limits[i].counter);
	}
	allreduce(&n, ITEMS, 1);
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		uint64_t now = counted(&n, 0, limits[i].counter) - before[i];

		cr_log_info("%zu %s", (size_t)now, limits[i].name);
		cr_assert_leq(now, limits[i].limit, "%zu %s", (size_t)now, limits[i].name);
	}
	net_fini(&n);
}

/* Completions that come twice or in another order change nothing. */
Test(engine_rails, completions_doubled_and_swapped, .timeout = 120)
{
	struct net n;

	net_init(&n, 5, RAILS);
	for (uint32_t round = 0; round < 40; round++) {
		mangle(&n, round % 2, round & 2, round * 3 % 17,
		       round & 4 ? FAKE_DOUBLE : FAKE_SWAP);
		allreduce(&n, 60000, round);
	}
	cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
	net_fini(&n);
}

/*
 * One that never comes: later ones stand for it, the rail is left, or the peer is, with an error
 * and in time; what is completed is right.
 */
static void lose(uint64_t seed, bool receive, uint32_t nth)
{
	uint32_t tickets[HOSTS];
	struct net n;
	int status[HOSTS];

	net_init(&n, seed, RAILS);
	mangle(&n, 0, receive, nth, FAKE_DROP);
	post(&n, ITEMS, nth, tickets);
	for (uint32_t r = 0; r < HOSTS; r++) {
		status[r] = lab_wait(n.lab, r, tickets[r]);
		cr_assert(status[r] == STATUS_OK || status[r] == STATUS_PEER_DIED, "status %d",
			  status[r]);
		if (status[r] != STATUS_OK) {
			/* The other daemon hears of it through this one's. */
			for (uint32_t h = 0; h < HOSTS; h++) {
				engine_comm_fail(n.lab->engines[h], n.lab->comms[h],
						 STATUS_PEER_DIED);
			}
		}
	}
	if (status[0] == STATUS_OK && status[1] == STATUS_OK) {
		check(&n, ITEMS, nth);
	}
	net_fini(&n);
}

Test(engine_rails, completions_lost, .timeout = 120)
{
	for (uint32_t nth = 0; nth < 6; nth++) {
		lose(20 + nth, nth % 2, nth * 7);
	}
}

/* A rail goes in the middle, then both: the rest goes another way, with the same bits. */
Test(engine_rails, links_go_and_come_back, .timeout = 120)
{
	struct net n;

	net_init(&n, 7, RAILS);
	for (uint32_t round = 0; round < 12; round++) {
		uint32_t tickets[HOSTS], gone = round % 3; /* 2: both */

		post(&n, ITEMS, round, tickets);
		poll(NULL, 0, (int)(round % 4));
		for (uint32_t r = 0; r < RAILS; r++) {
			if (gone == r || gone == 2) {
				set_link(&n, r, false);
			}
		}
		for (uint32_t r = 0; r < HOSTS; r++) {
			int status = lab_wait(n.lab, r, tickets[r]);

			cr_assert_eq(status, STATUS_OK, "status %d in round %u", status, round);
		}
		check(&n, ITEMS, round);
		for (uint32_t r = 0; r < RAILS; r++) {
			set_link(&n, r, true);
		}
		wait_up(&n);
	}
	cr_assert_eq(n.lab->failures + n.lab->peers_down, 0);
	net_fini(&n);
}

/* ---- memory that cannot be registered ------------------------------------------------------- */

static void put_region(struct net *n, uint32_t h, uint8_t **ret_base)
{
	struct quota_charge none = {0};
	struct region *region;
	uint8_t *base = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(base, MAP_FAILED);
	cr_assert_eq(region_new(base, MEM, MEM, &none, &region), 0);
	cr_assert_eq(engine_region_add(n->lab->engines[h], n->lab->ranks[h].session, 9, region), 0);
	region_unref(region);
	n->pending++;
	if (engine_region_ready(n->lab->engines[h], n->lab->ranks[h].session, 9, one_less, n)) {
		n->pending--;
	}
	settle(n);
	*ret_base = base;
}

static void sum_of_staged(struct net *n, uint8_t *base[HOSTS], uint32_t round)
{
	uint32_t tickets[HOSTS];

	for (uint32_t r = 0; r < HOSTS; r++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .dtype = DTYPE_I64,
				     .op = REDOP_SUM,
				     .count = ITEMS,
				     .send_buf = 9,
				     .recv_buf = 9,
				     .recv_off = HALF};

		for (uint64_t i = 0; i < ITEMS; i++) {
			((int64_t *)base[r])[i] = value(r, i, round);
		}
		tickets[r] = lab_post(n->lab, r, &d);
	}
	for (uint32_t r = 0; r < HOSTS; r++) {
		cr_assert_eq(lab_wait(n->lab, r, tickets[r]), STATUS_OK);
	}
	for (uint32_t r = 0; r < HOSTS; r++) {
		for (uint64_t i = 0; i < ITEMS; i++) {
			cr_assert_eq(((int64_t *)(base[r] + HALF))[i],
				     value(0, i, round) + value(1, i, round));
		}
	}
}

/* Refused by one device of two, on one host or both: staged, over the same rails. */
Test(engine_rails, registrations_that_fail, .timeout = 120)
{
	static const int errors[] = {ENOMEM, EFAULT, EPERM};

	for (uint32_t which = 0; which < ARRAY_SIZE(errors); which++) {
		uint8_t *base[HOSTS];
		uint64_t before;
		struct net n;
		int gone = 0;

		net_init(&n, 40 + which, RAILS);
		n.devices[0][which % RAILS]->caps.reg_errno = errors[which];
		n.devices[1][0]->caps.reg_errno = which == 2 ? EFAULT : 0;
		for (uint32_t h = 0; h < HOSTS; h++) {
			put_region(&n, h, &base[h]);
		}
		before = delivered(&n);
		for (uint32_t round = 0; round < 3; round++) {
			sum_of_staged(&n, base, round);
		}
		cr_assert_geq(delivered(&n) - before, 3 * 2 * HALF);
		cr_assert_gt(counted(&n, 0, offsetof(struct thread_view, bytes_copied)), HALF);
		/* What was registered before works as before. */
		allreduce(&n, 100003, which);
		for (uint32_t h = 0; h < HOSTS; h++) {
			n.devices[h][which % RAILS]->caps.reg_errno = 0;
			n.pending++;
			engine_region_remove(n.lab->engines[h], n.lab->ranks[h].session, 9,
					     one_less, &n);
		}
		settle(&n);
		cr_assert_eq(n.lab->failures + n.lab->peers_down + gone, 0);
		net_fini(&n);
	}
}
