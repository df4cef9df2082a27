/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reduction threads: the pool by itself, then engines that use it
 *
 * Thread: the test's plays the progress thread of a pool      Owns: pool, lab      Locks: none
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/workers.h"
#include "lab.h"
#include "proto/base.h"
#include "transport/wire.h"
#include "util/thread.h"

/* ---- the pool ----------------------------------------------------------------------------- */

/* What a slice of these tests does: adds its number to where `wire` points. */
static void add(struct slice *s)
{
	*(uint64_t *)(uintptr_t)s->wire += s->count;
	s->moved.reduced += s->count;
}

static void slow(struct slice *s)
{
	usleep(20000);
	add(s);
}

static struct workers *pool(unsigned int threads, uint32_t spin_us, void (*run)(struct slice *))
{
	struct workers_options o = {
		.threads = threads,
		.spin_us = spin_us,
		.stage = 4096,
		.bell = eventfd(0, EFD_NONBLOCK),
		.run = run,
	};
	struct workers *w;

	cr_assert_eq(workers_new(&o, &w), 0);
	cr_assert_eq(workers_start(w), 0);
	return w;
}

static void pool_free(struct workers *w)
{
	cr_assert_eq(workers_out(w), 0);
	workers_stop(w);
	workers_free(w);
}

static struct slice slice_for(uint64_t *cell, uint64_t n)
{
	struct slice s = {.count = n, .wire = (const uint8_t *)cell};

	return s;
}

/* Every slice is done once and comes back once, however the threads sleep and wake. */
static void count_all(unsigned int threads, uint32_t spin_us, unsigned int pause)
{
	enum { ROUNDS = 2000 };
	static uint64_t cells[WORKERS_QUEUE];
	struct workers *w = pool(threads, spin_us, add);
	uint64_t want = 0, got = 0, sum = 0;

	memset(cells, 0, sizeof(cells));
	for (uint64_t i = 0; i < ROUNDS || workers_out(w); i++) {
		struct slice s;
		struct slice_moved moved;
		bool helped;

		for (int k = 0; k < 3 && i < ROUNDS; k++) {
			/* A cell is used by one slice at a time: the queue is as long. */
			s = slice_for(&cells[want % WORKERS_QUEUE], 1);
			if (workers_push(w, &s, 0)) {
				want++;
			}
		}
		while (workers_pop(w, &s)) {
			cr_assert_eq(s.moved.reduced, 1);
			got++;
		}
		helped = i % 5 == 0 && workers_help(w, &moved);
		if (!helped && pause && i % pause == 0) {
			usleep(200);
		}
		cr_assert_lt(i, 100000000, "slices are lost");
	}
	cr_assert_eq(got, want);
	for (int i = 0; i < WORKERS_QUEUE; i++) {
		sum += cells[i];
	}
	cr_assert_eq(sum, want);
	pool_free(w);
}

Test(workers, every_slice_is_done_once, .timeout = 60)
{
	count_all(1, 0, 0);
	count_all(2, 0, 3);
	count_all(2, 50, 3);
	count_all(3, 1000, 0);
}

/* Who has announced sleep hears of the end of a slice, and only then. */
Test(workers, bell_rings_for_a_sleeper, .timeout = 60)
{
	struct workers_options o = {
		.threads = 1, .stage = 4096, .bell = eventfd(0, EFD_NONBLOCK), .run = slow};
	struct pollfd p = {.fd = o.bell, .events = POLLIN};
	struct workers *w;
	uint64_t cell = 0, value;
	struct slice s = slice_for(&cell, 1);

	cr_assert_eq(workers_new(&o, &w), 0);
	cr_assert_eq(workers_start(w), 0);
	for (int i = 0; i < 10; i++) {
		cr_assert(workers_push(w, &s, 0));
		cr_assert(workers_arm(w));
		cr_assert_eq(poll(&p, 1, 5000), 1, "no bell");
		workers_disarm(w);
		cr_assert_eq(read(o.bell, &value, 8), 8);
		cr_assert(workers_pop(w, &s));
		s.moved.reduced = 0;
		s.count = 1;
	}
	cr_assert(workers_push(w, &s, 0));
	usleep(100000);
	cr_assert_eq(poll(&p, 1, 0), 0, "a bell for nobody");
	cr_assert(!workers_arm(w), "asleep beside a finished slice");
	workers_disarm(w);
	cr_assert(workers_pop(w, &s));
	pool_free(w);
	close(o.bell);
}

Test(workers, a_full_queue_refuses, .timeout = 60)
{
	struct workers *w = pool(1, 0, slow);
	uint64_t cell = 0;
	struct slice s = slice_for(&cell, 1);
	unsigned int n = 0;

	while (workers_push(w, &s, 16)) {
		n++;
	}
	cr_assert_eq(n, WORKERS_QUEUE - 16);
	while (workers_push(w, &s, 0)) {
		n++;
	}
	cr_assert_eq(n, WORKERS_QUEUE);
	while (workers_out(w)) {
		n -= workers_pop(w, &s);
		sched_yield();
	}
	cr_assert_eq(n, 0);
	pool_free(w);
}

Test(workers, stages_end, .timeout = 60)
{
	struct workers *w = pool(1, 0, add);
	uint8_t *stages[WORKERS_STAGES];

	for (int i = 0; i < WORKERS_STAGES; i++) {
		stages[i] = workers_stage_take(w);
		cr_assert(stages[i]);
		memset(stages[i], i, 4096);
	}
	cr_assert_null(workers_stage_take(w));
	for (int i = 0; i < WORKERS_STAGES; i++) {
		cr_assert_eq(stages[i][4095], i);
		workers_stage_put(w, stages[i]);
	}
	cr_assert_eq(workers_stage_take(w), stages[WORKERS_STAGES - 1]);
	workers_stage_put(w, stages[WORKERS_STAGES - 1]);
	pool_free(w);
}

Test(workers, suit)
{
	cr_assert_eq(workers_suit(1), 0);
	cr_assert_eq(workers_suit(4), 0);
	cr_assert_eq(workers_suit(5), 1);
	cr_assert_eq(workers_suit(8), 2);
	cr_assert_eq(workers_suit(16), 4);
	cr_assert_eq(workers_suit(32), 8);
	cr_assert_eq(workers_suit(256), 8);
	cr_assert_geq(thread_cpus(), 1);
}

/* ---- engines ------------------------------------------------------------------------------ */

#define MEM (24u << 20)
#define HALF (MEM / 2)
#define GATHERED 400000u

static const uint32_t two_by_four[] = {0, 1, 0, 1, 1, 0, 0, 1};
static const uint32_t three[] = {0, 1, 1, 2, 1, 2, 1};

static uint64_t worked(struct lab *lab)
{
	const struct thread_view *v;
	uint64_t n = 0;

	for (uint32_t h = 0; h < lab->nhosts; h++) {
		for (unsigned int i = 0; (v = engine_worker_view(lab->engines[h], i)); i++) {
			n += counter_get(&v->bytes_reduced) + counter_get(&v->bytes_local);
		}
	}
	return n;
}

static void fill(struct lab *lab, uint64_t n)
{
	for (uint32_t r = 0; r < lab->nranks; r++) {
		float *at = (float *)lab->ranks[r].mem;

		for (uint64_t i = 0; i < n; i++) {
			at[i] = (float)((i * 7919 + r * 104729) % 100003) * 1e-3f;
		}
	}
}

/* Runs an f32 sum with @threads threads. Return: rank 0's result. @done: adds what they did. */
static float *result(bool big, const char *rule, const char *threads, uint64_t n, size_t out,
		     uint64_t *done)
{
	const uint32_t *host_of = big ? three : two_by_four;
	uint32_t nranks = big ? 7 : 8, nhosts = big ? 3 : 2;
	struct lab *lab;
	uint32_t t[LAB_MAX_RANKS];
	float *copy = malloc(n * sizeof(float));

	cr_assert(copy);
	setenv("LAB_REDUCE_THREADS", threads, 1);
	lab = lab_new(host_of, nranks, nhosts, MEM, rule);
	fill(lab, n);
	for (uint32_t r = 0; r < nranks; r++) {
		struct shm_desc d = {.kind = COLL_ALLREDUCE,
				     .dtype = DTYPE_F32,
				     .op = REDOP_SUM,
				     .count = n,
				     .send_buf = 1,
				     .recv_buf = 1,
				     .recv_off = out};

		t[r] = lab_post(lab, r, &d);
	}
	for (uint32_t r = 0; r < nranks; r++) {
		cr_assert_eq(lab_wait(lab, r, t[r]), STATUS_OK, "%s, %s threads", rule, threads);
	}
	for (uint32_t r = 1; r < nranks; r++) {
		cr_assert_eq(memcmp(lab->ranks[0].mem + out, lab->ranks[r].mem + out, n * 4), 0);
	}
	cr_assert(atoi(threads) > 0 || worked(lab) == 0);
	*done += worked(lab);
	memcpy(copy, lab->ranks[0].mem + out, n * sizeof(float));
	lab_free(lab);
	return copy;
}

/* The same bits whoever adds, also in place. */
Test(workers, same_bits_with_and_without, .timeout = 120)
{
	static const char *const rules[] = {"allreduce:direct", "allreduce:doubling",
					    "allreduce:halving", "allreduce:ring",
					    "allreduce:tree"};
	static const uint64_t counts[] = {4097, 100003, 1500000};
	uint64_t done = 0;

	for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(counts); k++) {
			uint64_t n = counts[k];
			float *a = result(k % 2, rules[i], "0", n, HALF, &done);
			float *b = result(k % 2, rules[i], "2", n, HALF, &done);
			float *c = result(k % 2, rules[i], "3", n, 0, &done);

			cr_assert_eq(memcmp(a, b, n * 4), 0, "%s", rules[i]);
			cr_assert_eq(memcmp(a, c, n * 4), 0, "%s in place", rules[i]);
			free(a);
			free(b);
			free(c);
		}
	}
	/* The progress thread helps, so of one operation it may have done everything. */
	cr_assert_gt(done, 0, "the threads have done nothing");
}

/* A client that was told of a failure may use its memory: nobody writes to it any more. */
Test(workers, nobody_writes_after_a_failure_was_told, .timeout = 120)
{
	static uint8_t before[HALF];

	setenv("LAB_REDUCE_THREADS", "2", 1);
	for (uint32_t round = 0; round < 20; round++) {
		struct lab *lab = lab_new(two_by_four, 8, 2, MEM, NULL);
		uint32_t t[LAB_MAX_RANKS];
		bool failed = false;

		for (uint32_t r = 0; r < 8; r++) {
			struct shm_desc d = {.kind = COLL_ALLREDUCE,
					     .dtype = DTYPE_I64,
					     .count = 1000000,
					     .send_buf = 1,
					     .recv_buf = 1,
					     .recv_off = HALF};

			t[r] = lab_post(lab, r, &d);
		}
		for (uint32_t i = 0; i < round * 20; i++) {
			lab_pump(lab);
			usleep(50);
		}
		for (uint32_t h = 0; h < 2; h++) {
			engine_comm_fail(lab->engines[h], lab->comms[h], STATUS_ABORTED);
		}
		for (uint32_t r = 0; r < 8; r++) {
			int s = lab_wait(lab, r, t[r]);

			cr_assert(s == STATUS_ABORTED || s == STATUS_OK, "rank %u: %d", r, s);
			if (s != STATUS_OK && !failed) {
				failed = true;
				memcpy(before, lab->ranks[r].mem + HALF, HALF);
				usleep(20000);
				cr_assert_eq(memcmp(before, lab->ranks[r].mem + HALF, HALF), 0);
			}
		}
		lab_free(lab);
	}
}

#define PART 16384u

/* Host 0 fails while an I/O thread is in the middle of a message; the rest comes afterwards. */
static void fail_in_the_middle(struct shm_desc d, struct wire_header h)
{
	static uint8_t ones[2 * PART];
	struct lab *lab = lab_new((const uint32_t[]){0, 1}, 2, 2, MEM, NULL);
	int wire = lab_wire(lab, 0, 1);
	uint32_t t;

	memset(ones, 1, sizeof(ones));
	memset(lab->ranks[0].mem, 0, MEM);
	d.dtype = h.dtype = DTYPE_U8;
	d.count = 2 * PART;
	d.root = 1;
	d.recv_buf = 1;
	t = lab_post(lab, 0, &d);
	for (int i = 0; i < 50; i++) {
		lab_pump(lab);
		usleep(1000);
	}
	h.magic = WIRE_MAGIC;
	h.comm = 77;
	h.count = h.length = h.fragment = 2 * PART;
	cr_assert_eq(write(wire, &h, sizeof(h)), sizeof(h));
	cr_assert_eq(write(wire, ones, PART), PART);
	usleep(50000);
	engine_comm_fail(lab->engines[0], lab->comms[0], STATUS_ABORTED);
	cr_assert_eq(lab_wait(lab, 0, t), STATUS_ABORTED);
	cr_assert(lab->gpus[0] || lab->ranks[0].mem[PART - 1] == 1);
	cr_assert_eq(write(wire, ones, PART), PART);
	usleep(50000);
	for (size_t i = PART; i < 2 * PART; i++) {
		cr_assert_eq(lab->ranks[0].mem[i], 0, "byte %zu", i);
	}
	cr_assert_eq(lab->peers_down, 0);
	lab_free(lab);
	close(wire);
}

/* The same when an I/O thread receives: also if the rest of the message comes much later. */
Test(workers, no_lane_writes_after_a_failure_was_told, .timeout = 60)
{
	setenv("LAB_REDUCE_THREADS", "0", 1);
	setenv("LAB_IO_THREADS", "2", 1);
	fail_in_the_middle((struct shm_desc){.kind = COLL_RECV},
			   (struct wire_header){.type = WIRE_P2P, .kind = COLL_SEND, .tag = 1});
	fail_in_the_middle((struct shm_desc){.kind = COLL_BROADCAST},
			   (struct wire_header){
				   .type = WIRE_DATA, .kind = COLL_BROADCAST, .root = 1, .tag = 1});
	unsetenv("LAB_IO_THREADS");
}

/* Rank 0 gathers from ranks 0 to 2; rank 3 has nothing to give. */
static void gather(struct lab *lab, uint32_t *t)
{
	uint64_t *args = (uint64_t *)(lab->ranks[0].mem + MEM - 4096);

	for (uint32_t r = 0; r < 4; r++) {
		args[r] = r == 3 ? 0 : GATHERED;
		args[4 + r] = r * GATHERED;
	}
	for (uint32_t r = 0; r < 4; r++) {
		struct shm_desc d = {.kind = COLL_GATHERV, .dtype = DTYPE_I64};

		if (r != 3) {
			d.count = GATHERED;
			d.send_buf = 1;
			d.send_off = HALF;
		}
		if (r == 0) {
			d.recv_buf = d.args_buf = 1;
			d.args_off = MEM - 4096;
		}
		t[r] = lab_post(lab, r, &d);
	}
}

/*
 * A rank that brought no memory dies in the middle: nothing holds its session, so it must not be
 * told later than at once.
 */
Test(workers, death_of_a_rank_without_memory, .timeout = 120)
{
	setenv("LAB_REDUCE_THREADS", "2", 1);
	setenv("LAB_REDUCE_MIN", "262144", 1); /* all of it is handed out at once */
	for (uint32_t round = 0; round < 20; round++) {
		struct lab *lab = lab_new((const uint32_t[]){0, 0, 0, 0}, 4, 1, MEM, NULL);
		uint32_t t[4];

		/* The first one fetches the plan. */
		gather(lab, t);
		for (uint32_t r = 0; r < 4; r++) {
			cr_assert_eq(lab_wait(lab, r, t[r]), STATUS_OK);
		}
		gather(lab, t);
		usleep(round * 50);
		lab_kill(lab, 3);
		for (uint32_t r = 0; r < 3; r++) {
			int s = lab_wait(lab, r, t[r]);

			cr_assert(s == STATUS_PEER_DIED || s == STATUS_ABORTED || s == STATUS_OK,
				  "rank %u: %d", r, s);
		}
		lab_free(lab);
	}
	unsetenv("LAB_REDUCE_MIN");
}

/* The engine stops in the middle: the threads let go first. */
Test(workers, stop_in_the_middle, .timeout = 120)
{
	setenv("LAB_REDUCE_THREADS", "2", 1);
	for (uint32_t round = 0; round < 10; round++) {
		struct lab *lab = lab_new(two_by_four, 8, 2, MEM, NULL);
		uint32_t t[LAB_MAX_RANKS];

		for (uint32_t r = 0; r < 8; r++) {
			struct shm_desc d = {.kind = COLL_ALLREDUCE,
					     .dtype = DTYPE_I64,
					     .count = 1000000,
					     .send_buf = 1,
					     .recv_buf = 1};

			t[r] = lab_post(lab, r, &d);
		}
		for (uint32_t i = 0; i < round * 10; i++) {
			lab_pump(lab);
			usleep(50);
		}
		engine_stop(lab->engines[round % 2], STATUS_SHUTDOWN);
		for (uint32_t r = 0; r < 8; r++) {
			bool stopped = lab->ranks[r].host == round % 2;

			cr_assert(!stopped || lab_done(lab, r, t[r]), "rank %u was not told", r);
		}
		/* Nobody moves its messages any more: they end with the connection. */
		lab_cut(lab, round % 2, 1 - round % 2);
		lab_free(lab);
	}
}
