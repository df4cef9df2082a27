/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Gates: descriptors that count as posted when a stream says so
 *
 * The test is the stream: it stores into the gate, and nothing rings.
 *
 * Thread: the test's      Owns: the lab      Locks: none
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "engine/gate.h"
#include "lab.h"
#include "telemetry/counters.h"
#include "util/clock.h"

static const uint32_t two_by_one[] = {0, 1};
static const uint32_t one_host[] = {0, 0};

static uint32_t post(struct lab *lab, uint32_t rank, bool gated)
{
	struct shm_desc d = {
		.kind = COLL_ALLREDUCE,
		.dtype = DTYPE_I64,
		.op = REDOP_SUM,
		.count = 1000,
		.send_buf = 1,
		.recv_buf = 1,
		.recv_off = 8000,
		.flags = gated ? SHM_DESC_GATED : 0,
	};

	return lab_post(lab, rank, &d);
}

static void open_gate(struct lab *lab, uint32_t rank, uint32_t ticket)
{
	_Atomic uint32_t *gates = shm_gates(lab->ranks[rank].page, SHM_FULL_SIZE);

	cr_assert(gates);
	atomic_store_explicit(&gates[ticket], 1, memory_order_release);
}

static void pump(struct lab *lab, int ms)
{
	uint64_t end = clock_monotonic() + (uint64_t)ms * CLOCK_NS_PER_MS;

	while (clock_monotonic() < end) {
		lab_pump(lab);
		usleep(500);
	}
}

Test(gate, waits_and_keeps_the_order, .timeout = 60)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, 1 << 20, NULL);
	uint32_t a[3], b[3];

	for (int i = 0; i < 3; i++) {
		a[i] = post(lab, 0, i != 1); /* the second one has none, and waits for the first */
		b[i] = post(lab, 1, false);
	}
	pump(lab, 50);
	open_gate(lab, 0, a[2]); /* not its turn */
	pump(lab, 50);
	for (int i = 0; i < 3; i++) {
		cr_assert(!lab_done(lab, 0, a[i]));
		cr_assert(!lab_done(lab, 1, b[i]));
	}
	open_gate(lab, 0, a[0]);
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(lab_wait(lab, 0, a[i]), STATUS_OK);
		cr_assert_eq(lab_wait(lab, 1, b[i]), STATUS_OK);
	}
	lab_free(lab);
}

Test(gate, open_before_it_is_posted, .timeout = 60)
{
	struct lab *lab = lab_new(one_host, 2, 1, 1 << 20, NULL);
	uint32_t a, b;

	open_gate(lab, 0, lab->ranks[0].ticket);
	a = post(lab, 0, true);
	b = post(lab, 1, false);
	cr_assert_eq(lab_wait(lab, 0, a), STATUS_OK);
	cr_assert_eq(lab_wait(lab, 1, b), STATUS_OK);
	lab_free(lab);
}

/* Nothing wakes the thread when a gate opens: it looks by itself, and only while one is waited for.
 */
Test(gate, a_sleeping_thread_notices, .timeout = 60)
{
	struct lab *lab = lab_new(one_host, 2, 1, 1 << 20, NULL);
	const struct thread_view *view = engine_thread_view(lab->engines[0]);
	uint64_t best = UINT64_MAX, loops;
	uint32_t a, b;

	for (int i = 0; i < 20; i++) {
		uint64_t begin;

		a = post(lab, 0, true);
		b = post(lab, 1, false);
		pump(lab, 20);
		begin = clock_monotonic();
		open_gate(lab, 0, a);
		while (!lab_done(lab, 0, a)) {
			lab_pump(lab); /* the first one needs a plan */
			sched_yield();
			cr_assert_lt(clock_monotonic() - begin, 10 * CLOCK_NS_PER_S);
		}
		best = clock_monotonic() - begin < best ? clock_monotonic() - begin : best;
		cr_assert_eq(lab_wait(lab, 0, a), STATUS_OK);
		cr_assert_eq(lab_wait(lab, 1, b), STATUS_OK);
	}
	cr_assert_lt(best, 2 * CLOCK_NS_PER_MS, "%zu us at best", (size_t)(best / 1000));
	pump(lab, 20);
	loops = counter_get(&view->loops);
	usleep(300000);
	cr_assert_leq(counter_get(&view->loops) - loops, 2, "it does not sleep");
	lab_free(lab);
}

/* The longer it is shut, the less often: a trainer may have stopped in a debugger for hours. */
Test(gate, one_that_stays_shut_costs_little, .timeout = 60)
{
	struct lab *lab = lab_new(one_host, 2, 1, 1 << 20, NULL);
	const struct thread_view *view = engine_thread_view(lab->engines[0]);
	uint64_t looks = 0, at = 0, n;
	uint32_t a, b;

	while (at < 60 * CLOCK_NS_PER_S) {
		uint64_t nap = gate_nap(at);

		cr_assert_leq(nap, 50 * CLOCK_NS_PER_US + at / 1000);
		at += nap;
		looks++;
	}
	cr_assert_lt(looks, 20000, "%zu looks in a minute", (size_t)looks);
	a = post(lab, 0, true);
	b = post(lab, 1, false);
	pump(lab, 1000);
	n = counter_get(&view->wakeups);
	pump(lab, 500);
	n = counter_get(&view->wakeups) - n;
	cr_assert_lt(n, 1000, "%zu wake-ups in half a second", (size_t)n);
	open_gate(lab, 0, a);
	cr_assert_eq(lab_wait(lab, 0, a), STATUS_OK);
	cr_assert_eq(lab_wait(lab, 1, b), STATUS_OK);
	lab_free(lab);
}

Test(gate, a_failure_lets_them_go, .timeout = 60)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, 1 << 20, NULL);
	uint32_t a = post(lab, 0, true);
	uint32_t b = post(lab, 0, false);

	pump(lab, 20);
	engine_comm_fail(lab->engines[0], lab->comms[0], STATUS_ABORTED);
	cr_assert_eq(lab_wait(lab, 0, a), STATUS_ABORTED);
	cr_assert_eq(lab_wait(lab, 0, b), STATUS_ABORTED);
	lab_free(lab);
}

Test(gate, its_client_dies, .timeout = 60)
{
	struct lab *lab = lab_new(two_by_one, 2, 2, 1 << 20, NULL);
	const struct thread_view *view = engine_thread_view(lab->engines[0]);
	uint64_t loops;

	for (int i = 0; i < 100; i++) {
		post(lab, 0, true);
	}
	pump(lab, 20);
	lab_kill(lab, 0);
	pump(lab, 20);
	loops = counter_get(&view->loops);
	usleep(300000);
	cr_assert_leq(counter_get(&view->loops) - loops, 2, "it still looks at gates");
	lab_free(lab);
}

static void gone(void *arg)
{
	*(bool *)arg = true;
}

static void remove_memory(struct lab *lab, uint32_t rank, bool *ret_gone)
{
	struct lab_rank *k = &lab->ranks[rank];

	*ret_gone = false;
	engine_region_remove(lab->engines[k->host], k->session, 1, gone, ret_gone);
	pump(lab, 50);
}

/* The client may get the number of a buffer that is gone for another one at once. */
Test(gate, what_it_names_stays, .timeout = 60)
{
	struct lab *lab = lab_new(one_host, 2, 1, 1 << 20, NULL);
	uint32_t a = post(lab, 0, true);
	uint32_t b = post(lab, 1, false);
	bool is_gone;

	pump(lab, 20);
	remove_memory(lab, 0, &is_gone);
	cr_assert(!is_gone);
	open_gate(lab, 0, a);
	cr_assert_eq(lab_wait(lab, 0, a), STATUS_OK);
	cr_assert_eq(lab_wait(lab, 1, b), STATUS_OK);
	pump(lab, 20);
	cr_assert(is_gone);
	cr_assert_eq(
		engine_region_add(lab->engines[0], lab->ranks[0].session, 1, lab->ranks[0].region),
		0);
	lab_free(lab);
}

Test(gate, what_it_names_goes_when_the_engine_stops, .timeout = 60)
{
	struct lab *lab = lab_new(one_host, 2, 1, 1 << 20, NULL);
	bool is_gone;

	for (int i = 0; i < 1000; i++) {
		post(lab, 0, true);
	}
	pump(lab, 20);
	remove_memory(lab, 0, &is_gone);
	cr_assert(!is_gone);
	engine_stop(lab->engines[0], STATUS_SHUTDOWN);
	engine_dispatch(lab->engines[0]);
	cr_assert(is_gone);
	cr_assert_eq(
		engine_region_add(lab->engines[0], lab->ranks[0].session, 1, lab->ranks[0].region),
		0);
	lab_free(lab);
}

/* What a hostile client may try. */
Test(gate, one_ticket_twice, .timeout = 60)
{
	struct lab *lab = lab_new(one_host, 2, 1, 1 << 20, NULL);

	post(lab, 0, true);
	lab->ranks[0].ticket = 0;
	post(lab, 0, true);
	pump(lab, 50);
	cr_assert_eq(lab->corrupt, 1);
	lab_kill(lab, 0);
	lab_free(lab);
}
