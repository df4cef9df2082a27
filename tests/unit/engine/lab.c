/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Engine lab: see lab.h
 *
 * Thread: the test's      Owns: see lab.h      Locks: none
 */
#include "lab.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lab_gpu.h"
#include "mem/region.h"

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void on_failed(void *arg, void *user, const struct engine_failure *f)
{
	struct lab *lab = arg;

	(void)user;
	lab->failure = *f;
	lab->failures++;
}

static void on_corrupt(void *arg, void *user, const char *reason)
{
	struct lab *lab = arg;

	(void)user;
	(void)reason;
	lab->corrupt++;
}

static void on_down(void *arg, void *user, const char *what, int error, const char *reason)
{
	struct lab *lab = arg;

	(void)user;
	(void)what;
	(void)error;
	(void)reason;
	lab->peers_down++;
}

static const struct engine_events events = {
	.comm_failed = on_failed,
	.session_corrupt = on_corrupt,
	.peer_down = on_down,
};

static void done(void *arg)
{
	struct lab *lab = arg;

	lab->pending--;
}

void lab_pump(struct lab *lab)
{
	for (uint32_t h = 0; h < lab->nhosts; h++) {
		engine_dispatch(lab->engines[h]);
		lab_gpu_pump(lab->gpus[h]);
	}
}

void lab_rest(struct lab *lab, int ms)
{
	uint64_t end = now_ms() + (uint64_t)ms;

	while (now_ms() < end) {
		lab_pump(lab);
		usleep(1000);
	}
}

static void settle(struct lab *lab)
{
	uint64_t end = now_ms() + 20000;

	while (lab->pending && now_ms() < end) {
		lab_pump(lab);
		sched_yield();
	}
	cr_assert_eq(lab->pending, 0, "objects are not given back");
}

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(p, MAP_FAILED);
	return p;
}

static void make_engine(struct lab *lab, uint32_t h)
{
	/* Every test of the engine runs without reduction threads and with some. */
	const char *threads = getenv("LAB_REDUCE_THREADS");
	const char *min = getenv("LAB_REDUCE_MIN");
	const char *io = getenv("LAB_IO_THREADS");
	struct engine_options o = {
		.reduce_threads = threads ? atoi(threads) : 0,
		.io_threads = io ? (unsigned int)atoi(io) : 0,
		.reduce_min = min ? (uint32_t)atoi(min) : 2048, /* much is worth it */
		.chunk = 64 << 10,
		.eager = 16 << 10,
		.eager_credits = 8,
		.spin_us = lab->spin_us,
		.cpu = -1,
		.user_timeout_ms = 20000,
	};

	cr_assert_eq(engine_new(&o, &events, lab, &lab->engines[h]), 0);
	cr_assert_eq(engine_start(lab->engines[h]), 0);
}

static void make_peers(struct lab *lab)
{
	for (uint32_t a = 0; a < lab->nhosts; a++) {
		for (uint32_t b = 0; b < a; b++) {
			int fds[2];

			if (lab->ring && a - b != 1 && a - b != lab->nhosts - 1) {
				continue;
			}
			cr_assert_eq(engine_peer_add(lab->engines[a], NULL, &lab->peers[a][b]), 0);
			cr_assert_eq(engine_peer_add(lab->engines[b], NULL, &lab->peers[b][a]), 0);
			for (int s = 0; s < 2; s++) {
				cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
				cr_assert_eq(engine_peer_stream(lab->engines[a], lab->peers[a][b],
								fds[0], (unsigned int)s),
					     0);
				cr_assert_eq(engine_peer_stream(lab->engines[b], lab->peers[b][a],
								fds[1], (unsigned int)s),
					     0);
			}
		}
	}
}

static void make_rank(struct lab *lab, uint32_t r, size_t mem)
{
	struct lab_rank *k = &lab->ranks[r];
	struct quota_charge none = {0};
	struct engine *e;

	k->host = lab->layout->host_of[r];
	k->local = lab->layout->local_of[r];
	e = lab->engines[k->host];
	k->page = map(SHM_FULL_SIZE);
	shm_format(k->page);
	shm_format_gates(k->page);
	ring_producer_init(&k->ring, k->page);
	k->bell = eventfd(0, EFD_NONBLOCK);
	k->event = eventfd(0, EFD_NONBLOCK);
	k->size = mem;
	if (lab_gpu_has(lab->gpus[k->host], r)) {
		void *view;

		k->region = lab_gpu_region(lab->gpus[k->host], r, mem, &view);
		k->mem = view;
		cr_assert_eq(region_new(k->mem, k->region->size, mem, &none, &k->args), 0);
	} else {
		k->mem = map(mem);
		cr_assert_eq(region_new(k->mem, mem, mem, &none, &k->region), 0);
	}
	cr_assert_eq(engine_session_add(e, k->page, k->bell, k->event, k, &k->session), 0);
	cr_assert_eq(engine_region_add(e, k->session, 1, k->region), 0);
	if (k->args) {
		cr_assert_eq(engine_region_add(e, k->session, 3, k->args), 0);
	}
}

static void make_comm(struct lab *lab, uint32_t h)
{
	struct engine_comm_rank ranks[LIMIT_LOCAL_RANKS];
	struct engine_comm_params p = {
		.uid = 77,
		.layout = lab->layout,
		.tuning = &lab->tuning,
		.host = h,
		.peers = lab->peers[h],
		.ranks = ranks,
		.arrival_timeout_ms = lab->arrival_ms,
		.transfer_timeout_ms = 60000,
	};
	uint32_t n = coll_nlocal(lab->layout, h);

	for (uint32_t l = 0; l < n; l++) {
		uint32_t r = lab->layout->by_host[lab->layout->host_first[h] + l];

		ranks[l] = (struct engine_comm_rank){lab->ranks[r].session, 1, r};
	}
	cr_assert_eq(comm_view_new(n, &lab->views[h]), 0);
	p.view = lab->views[h];
	lab->pending++;
	cr_assert_eq(engine_comm_add(lab->engines[h], &p, done, lab, &lab->comms[h]), 0);
}

static struct lab *lab_make(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
			    const char *tuning, uint32_t spin_us, uint32_t arrival_ms, bool ring)
{
	struct lab *lab = calloc(1, sizeof(*lab));
	char err[256];

	cr_assert(lab);
	lab->nhosts = nhosts;
	lab->nranks = nranks;
	lab->spin_us = spin_us;
	lab->arrival_ms = arrival_ms;
	lab->ring = ring;
	cr_assert_eq(coll_layout_new(host_of, nranks, nhosts, &lab->layout), 0);
	if (tuning) {
		cr_assert_eq(coll_tuning_parse(&lab->tuning, tuning, err, sizeof(err)), 0, "%s",
			     err);
	}
	for (uint32_t h = 0; h < nhosts; h++) {
		lab->gpus[h] = lab_gpu_new();
		make_engine(lab, h);
	}
	make_peers(lab);
	for (uint32_t r = 0; r < nranks; r++) {
		make_rank(lab, r, mem);
	}
	for (uint32_t h = 0; h < nhosts; h++) {
		make_comm(lab, h);
	}
	settle(lab);
	return lab;
}

struct lab *lab_new_timed(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
			  const char *tuning, uint32_t spin_us, uint32_t arrival_ms)
{
	return lab_make(host_of, nranks, nhosts, mem, tuning, spin_us, arrival_ms, false);
}

struct lab *lab_new(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
		    const char *tuning)
{
	return lab_make(host_of, nranks, nhosts, mem, tuning, 20, 60000, false);
}

struct lab *lab_new_ring(const uint32_t *host_of, uint32_t nranks, uint32_t nhosts, size_t mem,
			 const char *tuning)
{
	return lab_make(host_of, nranks, nhosts, mem, tuning, 20, 60000, true);
}

void lab_free(struct lab *lab)
{
	for (uint32_t h = 0; h < lab->nhosts; h++) {
		lab->pending++;
		engine_comm_remove(lab->engines[h], lab->comms[h], done, lab);
	}
	settle(lab);
	for (uint32_t r = 0; r < lab->nranks; r++) {
		struct lab_rank *k = &lab->ranks[r];

		if (k->gone) {
			continue;
		}
		lab->pending += 2;
		engine_region_remove(lab->engines[k->host], k->session, 1, done, lab);
		if (k->args) {
			lab->pending++;
			engine_region_remove(lab->engines[k->host], k->session, 3, done, lab);
		}
		engine_session_remove(lab->engines[k->host], k->session, done, lab);
	}
	for (uint32_t a = 0; a < lab->nhosts; a++) {
		for (uint32_t b = 0; b < lab->nhosts; b++) {
			if (lab->peers[a][b]) {
				lab->pending++;
				engine_peer_remove(lab->engines[a], lab->peers[a][b], done, lab);
			}
		}
	}
	settle(lab);
	for (uint32_t h = 0; h < lab->nhosts; h++) {
		engine_stop(lab->engines[h], STATUS_SHUTDOWN);
		engine_free(lab->engines[h]);
		comm_view_free(lab->views[h]);
	}
	for (uint32_t r = 0; r < lab->nranks; r++) {
		if (lab->ranks[r].gone) {
			continue;
		}
		region_unref(lab->ranks[r].region);
		region_unref(lab->ranks[r].args);
		munmap(lab->ranks[r].page, SHM_FULL_SIZE);
		close(lab->ranks[r].bell);
		close(lab->ranks[r].event);
	}
	coll_layout_free(lab->layout);
	for (uint32_t h = 0; h < lab->nhosts; h++) {
		lab_gpu_free(lab->gpus[h]);
	}
	free(lab);
}

uint32_t lab_post(struct lab *lab, uint32_t rank, struct shm_desc *d)
{
	struct lab_rank *k = &lab->ranks[rank];
	struct shm_cell *cell;

	d->ticket = k->ticket;
	k->ticket = (k->ticket + 1) % LIMIT_TICKETS;
	cell = &shm_cells(k->page)[d->ticket];
	cr_assert_eq(atomic_load(&cell->generation), 0, "more tickets than cells");
	d->generation = 1;
	d->comm = d->comm ? d->comm : 1;
	if (k->args && d->args_buf == 1) {
		d->args_buf = 3;
	}
	if (d->kind == COLL_SEND) {
		d->seq = k->sends[d->root]++;
	} else if (d->kind == COLL_RECV) {
		d->seq = k->recvs[d->root]++;
	} else {
		d->seq = k->seq++;
	}
	cr_assert_eq(ring_push(&k->ring, d), 0);
	if (ring_publish(&k->ring)) {
		uint64_t one = 1;

		cr_assert_eq(write(k->bell, &one, 8), 8);
	}
	return d->ticket;
}

/* A cell in use is 0 until it is done; lab_wait() sets it back. */
bool lab_done(struct lab *lab, uint32_t rank, uint32_t ticket)
{
	struct shm_cell *cell = &shm_cells(lab->ranks[rank].page)[ticket];

	return atomic_load_explicit(&cell->generation, memory_order_acquire) != 0;
}

int lab_wait(struct lab *lab, uint32_t rank, uint32_t ticket)
{
	struct shm_cell *cell = &shm_cells(lab->ranks[rank].page)[ticket];
	uint64_t end = now_ms() + 20000;

	while (!lab_done(lab, rank, ticket)) {
		if (now_ms() > end) {
			return -1;
		}
		lab_pump(lab);
		sched_yield();
	}
	/* The cell is free again. */
	atomic_store(&cell->generation, 0);
	return (int)cell->status;
}

void lab_kill(struct lab *lab, uint32_t rank)
{
	struct lab_rank *k = &lab->ranks[rank];
	struct engine *e = lab->engines[k->host];

	k->gone = true;
	lab->pending += 2;
	engine_comm_detach(e, lab->comms[k->host], k->local, done, lab);
	/* What control does when it hears of a death; the other hosts are told by their daemons. */
	for (uint32_t h = 0; h < lab->nhosts; h++) {
		engine_comm_fail(lab->engines[h], lab->comms[h], STATUS_PEER_DIED);
	}
	engine_session_remove(e, k->session, done, lab);
	settle(lab);
	region_unref(k->region); /* the last reference: unmaps */
	region_unref(k->args);
	munmap(k->page, SHM_FULL_SIZE);
	close(k->bell);
	close(k->event);
}

int lab_wire(struct lab *lab, uint32_t to, uint32_t from)
{
	int fds[2], own;

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	own = dup(fds[1]);
	cr_assert_eq(engine_peer_stream(lab->engines[to], lab->peers[to][from], fds[0], 1), 0);
	cr_assert_eq(engine_peer_stream(lab->engines[from], lab->peers[from][to], fds[1], 1), 0);
	return own;
}

static void nothing(void *arg)
{
	(void)arg;
}

void lab_cut(struct lab *lab, uint32_t a, uint32_t b)
{
	engine_peer_remove(lab->engines[a], lab->peers[a][b], nothing, NULL);
	lab->peers[a][b] = NULL;
}
