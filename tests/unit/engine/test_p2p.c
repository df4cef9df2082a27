/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Sends and receives in parts: right bytes, bounded staging, overlap, failures in the middle
 *
 * The same tests run with memory of the host, with GPUs on both sides, and with one at every second
 * rank (environment LAB_GPU). The staging memory of the lab is 64 MiB a GPU.
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/p2p.h"
#include "lab.h"
#include "lab_gpu.h"
#include "proto/base.h"
#include "transport/wire.h"
#include "util/clock.h"

#define PART WIRE_P2P_PART
#define MEM (56u << 20)
#define HALF (MEM / 2)
#define LARGE (26 * UINT64_C(1048576) + 24) /* more than a quarter of the staging memory */

static const uint32_t one_host[] = {0, 0, 0, 0};
static const uint32_t two_by_one[] = {0, 1};

static int64_t value(uint32_t rank, uint64_t i)
{
	return (int64_t)(i * 64 + rank + 1);
}

static int64_t *at(struct lab *lab, uint32_t r, size_t off)
{
	return (int64_t *)(lab->ranks[r].mem + off);
}

static uint32_t post_send(struct lab *lab, uint32_t from, uint32_t to, uint64_t bytes)
{
	struct shm_desc d = {.kind = COLL_SEND,
			     .dtype = DTYPE_I64,
			     .root = to,
			     .count = bytes / 8,
			     .send_buf = 1};

	return lab_post(lab, from, &d);
}

static uint32_t post_recv(struct lab *lab, uint32_t to, uint32_t from, uint64_t bytes)
{
	struct shm_desc d = {.kind = COLL_RECV,
			     .dtype = DTYPE_I64,
			     .root = from,
			     .count = bytes / 8,
			     .recv_buf = 1,
			     .recv_off = HALF};

	return lab_post(lab, to, &d);
}

static void fill(struct lab *lab, uint32_t r, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		at(lab, r, 0)[i] = value(r, i);
	}
	memset(lab->ranks[r].mem + HALF, 0xee, HALF);
}

static void check(struct lab *lab, uint32_t to, uint32_t from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		cr_assert_eq(at(lab, to, HALF)[i], value(from, i), "rank %u [%zu]", to, (size_t)i);
	}
	cr_assert_eq(lab->ranks[to].mem[HALF + bytes], 0xee, "behind the end");
}

/* Both send to each other at the same time. */
static void exchange(struct lab *lab, uint32_t a, uint32_t b, uint64_t bytes)
{
	uint32_t t[4];

	fill(lab, a, bytes);
	fill(lab, b, bytes);
	t[0] = post_send(lab, a, b, bytes);
	t[1] = post_send(lab, b, a, bytes);
	t[2] = post_recv(lab, a, b, bytes);
	t[3] = post_recv(lab, b, a, bytes);
	for (int i = 0; i < 4; i++) {
		cr_assert_eq(lab_wait(lab, i % 2 ? b : a, t[i]), STATUS_OK, "%d of %zu", i,
			     (size_t)bytes);
	}
	check(lab, a, b, bytes);
	check(lab, b, a, bytes);
}

static const uint64_t sizes[] = {
	8,	  PART - 8,	   PART, PART + 8, 2 * PART, 4 * PART - 8, 4 * PART + 8,
	5 * PART, 5 * PART + 1000, LARGE};

Test(p2p, any_size_across_hosts, .timeout = 120)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, MEM, NULL);

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		exchange(lab, 0, 1, sizes[i]);
	}
	cr_assert_eq(lab->failures + lab->peers_down, 0);
	lab_free(lab);
}

/* Ranks 0 and 1 have one GPU, or one of them has none; 2 has another one. */
Test(p2p, any_size_on_one_host, .timeout = 120)
{
	struct lab *lab = lab_new(one_host, 3, 1, MEM, NULL);

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		exchange(lab, 0, 1, sizes[i]);
	}
	exchange(lab, 1, 2, LARGE);
	exchange(lab, 0, 2, LARGE);
	lab_free(lab);
}

/* What a receive and a send have of it, whatever their size. */
Test(p2p, staging_memory_is_bounded, .timeout = 60)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	uint32_t s, r;

	fill(lab, 0, LARGE);
	fill(lab, 1, LARGE);
	r = post_recv(lab, 1, 0, LARGE);
	lab_rest(lab, 50);
	/* Nobody has sent yet: one part. */
	cr_assert_leq(lab_gpu_staging_peak(lab->gpus[1]), PART);
	cr_assert_eq(lab_gpu_staging_peak(lab->gpus[1]) > 0, lab_gpu_has(lab->gpus[1], 1));
	s = post_send(lab, 0, 1, LARGE);
	cr_assert_eq(lab_wait(lab, 0, s), STATUS_OK);
	cr_assert_eq(lab_wait(lab, 1, r), STATUS_OK);
	check(lab, 1, 0, LARGE);
	for (uint32_t h = 0; h < 2; h++) {
		cr_assert_leq(lab_gpu_staging_peak(lab->gpus[h]), P2P_PLACES * PART);
	}
	lab_free(lab);
}

/* More of them at a time than there is staging memory for. */
Test(p2p, many_at_a_time, .timeout = 120)
{
	enum { N = 12 };
	struct lab *lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	const uint64_t bytes = 2 * PART + 8, room = bytes + 8;
	uint32_t t[2][2][N];

	for (uint32_t r = 0; r < 2; r++) {
		fill(lab, r, bytes);
		for (uint32_t i = 0; i < N; i++) {
			struct shm_desc d = {.kind = COLL_RECV,
					     .dtype = DTYPE_I64,
					     .root = 1 - r,
					     .count = bytes / 8,
					     .recv_buf = 1,
					     .recv_off = HALF + i % 3 * room};

			t[r][0][i] = lab_post(lab, r, &d);
		}
	}
	for (uint32_t i = 0; i < N; i++) {
		t[0][1][i] = post_send(lab, 0, 1, bytes);
		t[1][1][i] = post_send(lab, 1, 0, bytes);
	}
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t r = 0; r < 2; r++) {
			cr_assert_eq(lab_wait(lab, r, t[r][0][i]), STATUS_OK, "receive %u", i);
			cr_assert_eq(lab_wait(lab, r, t[r][1][i]), STATUS_OK, "send %u", i);
		}
	}
	check(lab, 0, 1, bytes);
	check(lab, 1, 0, bytes);
	lab_free(lab);
}

/* Bytes are on the wire before the last part has left its GPU, and arrive at the other one while
 * others are on the wire. */
Test(p2p, copies_overlap_the_wire, .timeout = 60)
{
	uint64_t sent = 0, left = 0, arrived = 0, on_wire = 0;
	struct lab *lab;
	uint32_t s, r;

	setenv("FAKE_CUDA_COPY_US", "30000", 1);
	lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	fill(lab, 0, LARGE);
	fill(lab, 1, LARGE);
	r = post_recv(lab, 1, 0, LARGE);
	s = post_send(lab, 0, 1, LARGE);
	while (!lab_done(lab, 1, r)) {
		const struct thread_view *v = engine_thread_view(lab->engines[0]);
		uint64_t out = counter_get(&v->bytes_wire_sent);
		uint64_t in = lab_gpu_host_bytes(lab->gpus[1]);

		if (lab_gpu_host_bytes(lab->gpus[0]) < LARGE) {
			sent = MAX(sent, out);
			left = lab_gpu_host_bytes(lab->gpus[0]);
		}
		if (counter_get(&v->bytes_wire_sent) < LARGE) {
			arrived = MAX(arrived, in);
			on_wire = out;
		}
		lab_pump(lab);
		usleep(500);
	}
	cr_assert_eq(lab_wait(lab, 0, s), STATUS_OK);
	cr_assert_eq(lab_wait(lab, 1, r), STATUS_OK);
	if (lab_gpu_has(lab->gpus[0], 0)) {
		cr_assert_geq(sent, 2 * PART, "%zu bytes had left the GPU", (size_t)left);
	}
	if (lab_gpu_has(lab->gpus[1], 1) && lab_gpu_has(lab->gpus[0], 0)) {
		cr_assert_geq(arrived, PART, "%zu bytes were sent", (size_t)on_wire);
	}
	check(lab, 1, 0, LARGE);
	lab_free(lab);
}

/* Whose length differs is told, also if both are of as many parts. */
static void mismatch(uint64_t sent, uint64_t received)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	uint32_t r = post_recv(lab, 1, 0, received);

	post_send(lab, 0, 1, sent);
	cr_assert_eq(lab_wait(lab, 1, r), STATUS_MISMATCH);
	for (int i = 0; i < 1000 && lab->failures == 0; i++) {
		lab_rest(lab, 1);
	}
	cr_assert_eq(lab->failure.cause, ENGINE_FAIL_LENGTH);
	cr_assert_eq(lab->failure.length_a, received);
	cr_assert_eq(lab->failure.length_b, sent);
	cr_assert_eq(lab->peers_down, 0);
	lab_free(lab);
}

Test(p2p, lengths_that_differ, .timeout = 60)
{
	mismatch(LARGE, LARGE - 8);
	mismatch(LARGE, PART);
	mismatch(PART, LARGE);
	mismatch(5 * PART, 80);
	mismatch(80, 5 * PART);
}

/* Who was told of a failure may use his memory; all that was held comes back (lab_free()). */
static void fail_after(int us, bool cut)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	uint8_t *before = malloc(HALF);
	uint32_t t[4];

	cr_assert(before);
	t[0] = post_send(lab, 0, 1, LARGE);
	t[1] = post_send(lab, 1, 0, LARGE);
	t[2] = post_recv(lab, 0, 1, LARGE);
	t[3] = post_recv(lab, 1, 0, LARGE);
	usleep((useconds_t)us);
	if (cut) {
		lab_cut(lab, 0, 1);
	} else {
		engine_comm_fail(lab->engines[0], lab->comms[0], STATUS_ABORTED);
		engine_comm_fail(lab->engines[1], lab->comms[1], STATUS_ABORTED);
	}
	for (int i = 0; i < 4; i++) {
		int status = lab_wait(lab, i % 2 ? 1 : 0, t[i]);

		cr_assert(status == STATUS_OK || status == STATUS_ABORTED ||
				  (cut && status == STATUS_PEER_DIED),
			  "%d: status %d", i, status);
	}
	memcpy(before, lab->ranks[1].mem + HALF, HALF);
	lab_rest(lab, 30);
	cr_assert_eq(memcmp(before, lab->ranks[1].mem + HALF, HALF), 0);
	free(before);
	lab_free(lab);
}

Test(p2p, fails_in_the_middle, .timeout = 120)
{
	setenv("FAKE_CUDA_COPY_US", "300", 1);
	for (int i = 0; i < 10; i++) {
		fail_after(i * 2000, false);
	}
}

Test(p2p, peer_is_lost_in_the_middle, .timeout = 120)
{
	setenv("FAKE_CUDA_COPY_US", "300", 1);
	for (int i = 0; i < 10; i++) {
		fail_after(i * 2000, true);
	}
}

/* The second copy to or from a GPU fails: so does the communicator, and all comes back. */
Test(p2p, a_copy_fails_in_the_middle, .timeout = 60)
{
	struct lab *lab;
	uint32_t r;

	setenv("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync=1@1x1,cuMemcpyHtoDAsync=1@1x1", 1);
	lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	r = post_recv(lab, 1, 0, LARGE);
	post_send(lab, 0, 1, LARGE);
	for (int i = 0; i < 2000 && lab->failures == 0 && lab_gpu_has(lab->gpus[1], 1); i++) {
		lab_rest(lab, 1);
	}
	cr_assert_eq(lab->failures > 0, lab_gpu_has(lab->gpus[1], 1));
	for (uint32_t h = 0; h < 2 && lab->failures; h++) {
		engine_comm_fail(lab->engines[h], lab->comms[h], STATUS_BAD_MEMORY);
	}
	cr_assert_eq(lab_wait(lab, 1, r), lab->failures ? STATUS_BAD_MEMORY : STATUS_OK);
	lab_free(lab);
}

/* The engine has made the socket non-blocking. */
static void write_all(int fd, const void *data, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n = write(fd, (const char *)data + done, size - done);

		if (n < 0) {
			cr_assert_eq(errno, EAGAIN);
			usleep(100);
		} else {
			done += (size_t)n;
		}
	}
}

/* A part that has no place, comes twice, or has not its length closes the connections. */
static void breaks_rules(uint32_t segment, uint64_t length, bool twice)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, MEM, NULL);
	int wire = lab_wire(lab, 0, 1);
	struct wire_header h = {.magic = WIRE_MAGIC,
				.type = WIRE_P2P,
				.kind = COLL_SEND,
				.dtype = DTYPE_I64,
				.comm = 77,
				.tag = 1,
				.segment = segment,
				.count = LARGE,
				.length = length};
	uint32_t t = post_recv(lab, 0, 1, LARGE);

	lab_rest(lab, 20);
	h.fragment = (uint32_t)MIN(length, 64u << 10);
	write_all(wire, &h, sizeof(h));
	if (twice) {
		static uint8_t bytes[64 << 10];

		for (uint64_t off = 0; off < length; off += sizeof(bytes)) {
			h.offset = off;
			write_all(wire, &h, off ? sizeof(h) : 0);
			write_all(wire, bytes, sizeof(bytes));
		}
		h.offset = 0;
		write_all(wire, &h, sizeof(h));
	}
	cr_assert_eq(lab_wait(lab, 0, t), STATUS_PEER_DIED);
	lab_free(lab);
	close(wire);
}

Test(p2p, parts_that_break_rules, .timeout = 60)
{
	breaks_rules(1, PART, false);
	breaks_rules(1000, PART, false);
	breaks_rules(0, PART - 64, false);
	breaks_rules(0, LARGE - 64, false);
	breaks_rules(1, LARGE, false);
	breaks_rules(0, PART, true);
}
