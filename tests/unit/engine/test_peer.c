/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Copies from GPU to GPU inside one host: when, right, and what happens when they cannot be
 *
 * Ranks 0 and 1 are on one GPU, 2 and 3 on the other one. LAB_GPU is "all". What the fake driver
 * does to copies between GPUs the environment says, which each test sets first.
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>

#include "lab.h"
#include "lab_gpu.h"
#include "proto/base.h"
#include "util/clock.h"

#define MEM (16u << 20)
#define HALF (MEM / 2)
#define RANKS 4u
#define COUNT 30011u

static const uint32_t one_host[] = {0, 0, 0, 0};
static const uint32_t two_hosts[] = {0, 1, 0, 1};

static int64_t value(uint32_t rank, uint64_t i)
{
	return (int64_t)(i * 64 + rank + 1);
}

static int64_t *at(struct lab *lab, uint32_t r, size_t off)
{
	return (int64_t *)(lab->ranks[r].mem + off);
}

static void fill(struct lab *lab, uint64_t n)
{
	for (uint32_t r = 0; r < lab->nranks; r++) {
		memset(lab->ranks[r].mem, 0, MEM);
		for (uint64_t i = 0; i < n; i++) {
			at(lab, r, 0)[i] = value(r, i);
		}
	}
}

static void run(struct lab *lab, uint8_t kind, uint32_t root, size_t out)
{
	uint32_t t[RANKS];

	for (uint32_t r = 0; r < lab->nranks; r++) {
		struct shm_desc d = {.kind = kind,
				     .dtype = DTYPE_I64,
				     .op = REDOP_SUM,
				     .root = root,
				     .count = COUNT,
				     .send_buf = 1,
				     .recv_buf = 1,
				     .recv_off = out};

		t[r] = lab_post(lab, r, &d);
	}
	for (uint32_t r = 0; r < lab->nranks; r++) {
		cr_assert_eq(lab_wait(lab, r, t[r]), STATUS_OK, "kind %u, rank %u", kind, r);
	}
}

/* What block @b of rank @r's result is, or nothing. */
static bool due(uint8_t kind, uint32_t root, uint32_t r, uint32_t b, uint64_t i, int64_t *ret)
{
	switch (kind) {
	case COLL_BROADCAST:
		*ret = value(root, i);
		return b == 0 && r != root;
	case COLL_ALLGATHER:
		*ret = value(b, i);
		return true;
	case COLL_GATHER:
		*ret = value(b, i);
		return r == root;
	case COLL_SCATTER:
		*ret = value(root, r * COUNT + i);
		return b == 0;
	case COLL_ALLTOALL:
		*ret = value(b, r * COUNT + i);
		return true;
	default: /* allreduce */
		*ret = 0;
		for (uint32_t k = 0; k < RANKS; k++) {
			*ret += value(k, i);
		}
		return b == 0;
	}
}

static void check(struct lab *lab, uint8_t kind, uint32_t root, size_t out)
{
	int64_t want;

	fill(lab, RANKS * (uint64_t)COUNT);
	run(lab, kind, root, out);
	for (uint32_t r = 0; r < RANKS; r++) {
		for (uint64_t k = 0; k < RANKS * (uint64_t)COUNT; k++) {
			if (due(kind, root, r, (uint32_t)(k / COUNT), k % COUNT, &want)) {
				cr_assert_eq(at(lab, r, out)[k], want, "kind %u rank %u [%zu]",
					     kind, r, (size_t)k);
			}
		}
	}
}

static struct lab *start(const uint32_t *host_of, uint32_t nhosts)
{
	setenv("LAB_GPU", "all", 1);
	setenv("FAKE_CUDA_HOST_US", "5000", 1); /* 0.2 GB/s: straight is faster on any machine */
	return lab_new(host_of, RANKS, nhosts, MEM, NULL);
}

/* Runs an operation until it goes from GPU to GPU. */
static void until_direct(struct lab *lab, uint8_t kind, uint32_t root, size_t out)
{
	uint64_t end = clock_monotonic() + 20 * CLOCK_NS_PER_S;
	uint64_t before = lab_gpu_peer_bytes(lab->gpus[0]);
	char text[300];

	while (lab_gpu_peer_bytes(lab->gpus[0]) == before) {
		lab_gpu_peer_reason(lab->gpus[0], 0, text, sizeof(text));
		cr_assert_lt(clock_monotonic(), end, "kind %u: %s", kind, text);
		check(lab, kind, root, out);
		lab_pump(lab);
	}
}

Test(peer, every_kind_of_movement, .timeout = 120)
{
	static const struct {
		uint8_t kind;
		uint64_t blocks, kept; /* of all ranks: between GPUs, that stay on theirs */
	} kinds[] = {
		{COLL_BROADCAST, 2, 1}, {COLL_ALLGATHER, 8, 8}, {COLL_GATHER, 2, 2},
		{COLL_SCATTER, 2, 2},	{COLL_ALLTOALL, 8, 8},
	};
	struct lab *lab = start(one_host, 1);

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		for (uint32_t root = 0; root < RANKS; root += RANKS - 1) {
			uint64_t peer, host, local;

			until_direct(lab, kinds[i].kind, root, HALF);
			peer = lab_gpu_peer_bytes(lab->gpus[0]);
			host = lab_gpu_host_bytes(lab->gpus[0]);
			local = atomic_load(&lab->views[0]->bytes_local);
			check(lab, kinds[i].kind, root, HALF);
			cr_assert_eq(lab_gpu_peer_bytes(lab->gpus[0]) - peer,
				     kinds[i].blocks * COUNT * 8, "kind %u", kinds[i].kind);
			cr_assert_eq(atomic_load(&lab->views[0]->bytes_local) - local,
				     (kinds[i].blocks + kinds[i].kept) * COUNT * 8);
			cr_assert_eq(lab_gpu_host_bytes(lab->gpus[0]) - host,
				     2 * kinds[i].kept * COUNT * 8, "kind %u", kinds[i].kind);
		}
	}
	lab_free(lab);
}

/* Sums are the CPU's; what is in place and swaps, and what comes from another host, is staged. */
Test(peer, what_goes_through_the_host, .timeout = 120)
{
	struct lab *lab = start(one_host, 1);
	uint64_t before;
	int64_t want;

	until_direct(lab, COLL_ALLTOALL, 0, HALF);
	before = lab_gpu_peer_bytes(lab->gpus[0]);
	check(lab, COLL_ALLREDUCE, 0, HALF);
	fill(lab, RANKS * (uint64_t)COUNT);
	run(lab, COLL_ALLTOALL, 0, 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		for (uint64_t k = 0; k < RANKS * (uint64_t)COUNT; k++) {
			due(COLL_ALLTOALL, 0, r, (uint32_t)(k / COUNT), k % COUNT, &want);
			cr_assert_eq(at(lab, r, 0)[k], want, "in place, rank %u [%zu]", r,
				     (size_t)k);
		}
	}
	cr_assert_eq(lab_gpu_peer_bytes(lab->gpus[0]), before);
	lab_free(lab);
	lab = start(two_hosts, 2);
	for (int i = 0; i < 5; i++) {
		check(lab, COLL_ALLGATHER, 0, HALF);
	}
	cr_assert_eq(lab_gpu_peer_bytes(lab->gpus[0]), 0);
	lab_free(lab);
}

/* An all-gather in place leaves each block where it is, and the others around it. */
Test(peer, in_place, .timeout = 60)
{
	struct lab *lab = start(one_host, 1);

	until_direct(lab, COLL_ALLGATHER, 0, HALF);
	for (int turn = 0; turn < 3; turn++) {
		uint64_t before = lab_gpu_host_bytes(lab->gpus[0]);
		uint32_t t[RANKS];

		for (uint32_t r = 0; r < RANKS; r++) {
			struct shm_desc d = {.kind = COLL_ALLGATHER,
					     .dtype = DTYPE_I64,
					     .count = COUNT,
					     .send_buf = 1,
					     .send_off = (uint64_t)r * COUNT * 8,
					     .recv_buf = 1};

			memset(lab->ranks[r].mem, 0, MEM);
			for (uint64_t i = 0; i < COUNT; i++) {
				at(lab, r, d.send_off)[i] = value(r, i);
			}
			t[r] = lab_post(lab, r, &d);
		}
		for (uint32_t r = 0; r < RANKS; r++) {
			cr_assert_eq(lab_wait(lab, r, t[r]), STATUS_OK);
			for (uint64_t k = 0; k < RANKS * (uint64_t)COUNT; k++) {
				cr_assert_eq(at(lab, r, 0)[k],
					     value((uint32_t)(k / COUNT), k % COUNT));
			}
		}
		/* Only the neighbour on the same GPU. */
		cr_assert_eq(lab_gpu_host_bytes(lab->gpus[0]) - before, 2 * 4 * COUNT * 8);
	}
	lab_free(lab);
}

static void sendrecv(struct lab *lab, uint32_t from, uint32_t to, uint64_t count)
{
	struct shm_desc d = {
		.kind = COLL_SEND, .dtype = DTYPE_I64, .root = to, .count = count, .send_buf = 1};
	struct shm_desc e = {.kind = COLL_RECV,
			     .dtype = DTYPE_I64,
			     .root = from,
			     .count = count,
			     .recv_buf = 1,
			     .recv_off = HALF};
	uint32_t s, r;

	fill(lab, count);
	s = lab_post(lab, from, &d);
	r = lab_post(lab, to, &e);
	cr_assert_eq(lab_wait(lab, from, s), STATUS_OK);
	cr_assert_eq(lab_wait(lab, to, r), STATUS_OK);
	for (uint64_t i = 0; i < count; i++) {
		cr_assert_eq(at(lab, to, HALF)[i], value(from, i), "[%zu]", (size_t)i);
	}
}

Test(peer, sends_and_receives, .timeout = 60)
{
	struct lab *lab = start(one_host, 1);
	uint64_t peer, host;

	until_direct(lab, COLL_ALLTOALL, 0, HALF);
	peer = lab_gpu_peer_bytes(lab->gpus[0]);
	host = lab_gpu_host_bytes(lab->gpus[0]);
	sendrecv(lab, 0, 3, 500009);
	sendrecv(lab, 3, 1, 500009);
	cr_assert_eq(lab_gpu_peer_bytes(lab->gpus[0]) - peer, 2 * 500009 * 8);
	cr_assert_eq(lab_gpu_host_bytes(lab->gpus[0]) - host, 0);
	sendrecv(lab, 0, 1, 500009); /* on one GPU */
	sendrecv(lab, 0, 2, 0);
	cr_assert_eq(lab_gpu_peer_bytes(lab->gpus[0]) - peer, 2 * 500009 * 8);
	lab_free(lab);
}

/* Never direct, always right, and the reason is told. */
static void never(const char *words)
{
	struct lab *lab = start(one_host, 1);
	uint64_t end = clock_monotonic() + 20 * CLOCK_NS_PER_S;
	char text[300] = "";

	while (!strstr(text, words)) {
		cr_assert_lt(clock_monotonic(), end, "'%s' is due, not '%s'", words, text);
		check(lab, COLL_ALLGATHER, 0, HALF);
		check(lab, COLL_ALLTOALL, 0, HALF);
		lab_pump(lab);
		/* Either of the two ways. */
		lab_gpu_peer_reason(lab->gpus[0], 0, text, sizeof(text));
		if (!strstr(text, words)) {
			lab_gpu_peer_reason(lab->gpus[0], 2, text, sizeof(text));
		}
	}
	for (int i = 0; i < 3; i++) {
		check(lab, COLL_BROADCAST, 3, HALF);
		sendrecv(lab, 0, 3, 100003);
	}
	lab_free(lab);
}

Test(peer, no_access, .timeout = 60)
{
	setenv("FAKE_CUDA_NO_PEER", "1", 1);
	never("cannot reach each other, which takes NVLink");
}

Test(peer, bytes_that_arrive_wrong, .timeout = 60)
{
	setenv("FAKE_CUDA_PEER_SPOIL", "1", 1);
	never("arrived wrong");
}

Test(peer, slower_than_through_the_host, .timeout = 60)
{
	setenv("FAKE_CUDA_PEER_US", "400000", 1);
	never("MB/s straight");
}

Test(peer, a_trial_that_fails, .timeout = 60)
{
	setenv("FAKE_CUDA_FAIL", "cuMemcpyPeerAsync=304", 1);
	never("the trial failed, CUDA_ERROR_OPERATING_SYSTEM");
}

Test(peer, no_memory_for_a_trial, .timeout = 60)
{
	/* The ranks' own memory is made before that: four times. */
	setenv("FAKE_CUDA_FAIL", "cuMemCreate=2@4", 1);
	never("no GPU memory was left");
}

/* The trial was good (four copies), a later copy fails: it goes through the host, from then on. */
Test(peer, a_copy_that_fails, .timeout = 60)
{
	setenv("FAKE_CUDA_FAIL", "cuMemcpyPeerAsync=1@9x1", 1);
	never("a copy failed, CUDA_ERROR_INVALID_VALUE");
}

/* The same with a send. */
Test(peer, a_send_that_fails, .timeout = 60)
{
	struct lab *lab;
	char text[300] = "";

	setenv("FAKE_CUDA_FAIL", "cuMemcpyPeerAsync=1@8x1", 1);
	lab = start(one_host, 1);
	for (int i = 0; i < 2000 && !strstr(text, "a copy failed"); i++) {
		sendrecv(lab, 0, 3, 100003);
		lab_pump(lab);
		lab_gpu_peer_reason(lab->gpus[0], 0, text, sizeof(text));
	}
	cr_assert(strstr(text, "a copy failed"), "%s", text);
	sendrecv(lab, 0, 3, 100003);
	lab_free(lab);
}

/* It spoils the context: the other way fails, too, everybody is told, and nothing is left behind.
 */
Test(peer, a_copy_that_spoils_the_context, .timeout = 60)
{
	struct lab *lab;
	int status = STATUS_OK;

	setenv("FAKE_CUDA_FAIL", "cuMemcpyPeerAsync=700@9x1", 1);
	lab = start(one_host, 1);
	for (int i = 0; i < 2000 && status == STATUS_OK; i++) {
		uint32_t t[RANKS];

		for (uint32_t r = 0; r < RANKS; r++) {
			struct shm_desc d = {.kind = COLL_ALLGATHER,
					     .dtype = DTYPE_I64,
					     .count = COUNT,
					     .send_buf = 1,
					     .recv_buf = 1,
					     .recv_off = HALF};

			t[r] = lab_post(lab, r, &d);
		}
		for (uint32_t r = 0; r < RANKS; r++) {
			int s = lab_wait(lab, r, t[r]);

			status = s == STATUS_OK ? status : s;
			cr_assert(s == STATUS_OK || s == STATUS_BAD_MEMORY, "rank %u: %d", r, s);
		}
		lab_pump(lab);
	}
	cr_assert_eq(status, STATUS_BAD_MEMORY);
	lab_free(lab);
}

/* Memory that cannot be opened to the other GPU stays with the host's way. */
Test(peer, memory_that_cannot_be_opened, .timeout = 60)
{
	struct lab *lab;

	/* Own memory four times, then for two trials three times each. */
	setenv("FAKE_CUDA_FAIL", "cuMemSetAccess=1@10", 1);
	lab = start(one_host, 1);
	for (int i = 0; i < 30; i++) {
		check(lab, COLL_ALLGATHER, 0, HALF);
		lab_pump(lab);
	}
	lab_free(lab);
}

/* A rank dies while its copies are under way: they end before its memory goes. */
Test(peer, killed_meanwhile, .timeout = 60)
{
	struct lab *lab;
	uint32_t t[RANKS];

	setenv("FAKE_CUDA_PEER_US", "20", 1);
	lab = start(one_host, 1);
	until_direct(lab, COLL_ALLGATHER, 0, HALF);
	for (uint32_t r = 0; r < RANKS; r++) {
		struct shm_desc d = {.kind = COLL_ALLGATHER,
				     .dtype = DTYPE_I64,
				     .count = 200000,
				     .send_buf = 1,
				     .recv_buf = 1,
				     .recv_off = HALF};

		t[r] = lab_post(lab, r, &d);
	}
	lab_kill(lab, 3);
	for (uint32_t r = 0; r < 3; r++) {
		cr_assert_geq(lab_wait(lab, r, t[r]), 0);
	}
	lab_free(lab);
}

static uint64_t copied(struct lab *lab, uint8_t kind)
{
	_Atomic uint64_t *local = &lab->views[0]->bytes_local;
	uint64_t before = atomic_load(local);

	check(lab, kind, 0, HALF);
	return atomic_load(local) - before;
}

/* What all ranks get a CPU writes once, and the GPUs of all read it there. */
Test(peer, one_place_for_a_result, .timeout = 60)
{
	struct lab *lab;

	setenv("FAKE_CUDA_NO_PEER", "1", 1);
	lab = start(one_host, 1);
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(copied(lab, COLL_ALLREDUCE), 0);
		cr_assert_eq(copied(lab, COLL_BROADCAST), COUNT * 8);
		cr_assert_eq(copied(lab, COLL_ALLGATHER), RANKS * COUNT * 8);
		/* Not these: each rank gets something else. */
		cr_assert_eq(copied(lab, COLL_ALLTOALL), RANKS * RANKS * COUNT * 8);
	}
	lab_free(lab);
}

/* The same between hosts, by every algorithm: what arrives is overwritten by nobody's neighbour. */
Test(peer, one_place_and_every_algorithm, .timeout = 120)
{
	static const uint32_t three_hosts[] = {0, 1, 2, 1};
	static const uint8_t kinds[] = {COLL_ALLREDUCE, COLL_ALLGATHER, COLL_BROADCAST};
	const struct {
		const uint32_t *host_of;
		uint32_t nhosts;
	} layouts[] = {{two_hosts, 2}, {three_hosts, 3}};

	setenv("LAB_GPU", "all", 1);
	for (uint32_t n = 0; n < ARRAY_SIZE(layouts) * ARRAY_SIZE(kinds) * COLL_ALGO_COUNT_; n++) {
		enum coll_algo algo = (enum coll_algo)(n % COLL_ALGO_COUNT_);
		uint8_t kind = kinds[n / COLL_ALGO_COUNT_ % ARRAY_SIZE(kinds)];
		uint32_t k = n / COLL_ALGO_COUNT_ / ARRAY_SIZE(kinds);
		char tuning[64];
		struct lab *lab;

		if (algo == COLL_ALGO_AUTO || !coll_supports(kind, algo, layouts[k].nhosts)) {
			continue;
		}
		snprintf(tuning, sizeof(tuning), "%s:%s", coll_kind_name(kind),
			 coll_algo_name(algo));
		lab = lab_new(layouts[k].host_of, RANKS, layouts[k].nhosts, MEM, tuning);
		for (uint32_t root = 0; root < RANKS; root += RANKS - 1) {
			check(lab, kind, root, HALF);
		}
		lab_free(lab);
	}
}

/* The staging memory of a GPU in the lab has 64 MiB; all-to-all takes it piece by piece. */
Test(peer, an_all_to_all_larger_than_the_staging_memory, .timeout = 120)
{
	const uint64_t count = (40u << 20) / 8 / RANKS, half = 40u << 20;
	const uint32_t *const layouts[] = {one_host, two_hosts};

	setenv("LAB_GPU", "all", 1);
	setenv("FAKE_CUDA_NO_PEER", "1", 1);
	for (uint32_t k = 0; k < ARRAY_SIZE(layouts); k++) {
		struct lab *lab = lab_new(layouts[k], RANKS, k + 1, 2 * half, NULL);
		uint32_t t[RANKS];

		for (uint32_t r = 0; r < RANKS; r++) {
			struct shm_desc d = {.kind = COLL_ALLTOALL,
					     .dtype = DTYPE_I64,
					     .count = count,
					     .send_buf = 1,
					     .recv_buf = 1,
					     .recv_off = half};

			for (uint64_t i = 0; i < count * RANKS; i++) {
				at(lab, r, 0)[i] = value(r, i);
			}
			t[r] = lab_post(lab, r, &d);
		}
		for (uint32_t r = 0; r < RANKS; r++) {
			cr_assert_eq(lab_wait(lab, r, t[r]), STATUS_OK);
			for (uint64_t i = 0; i < count * RANKS; i++) {
				cr_assert_eq(at(lab, r, half)[i],
					     value((uint32_t)(i / count), r * count + i % count));
			}
		}
		lab_free(lab);
	}
}
