/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Wait: implementation, and the public wait and test calls
 *
 * Sleeping: the waiter counts itself in `waiters`, then reads `completions`, then looks at its
 * cell; the daemon stores the cell, then `completions`, then looks at `waiters`. All of it is
 * sequentially consistent, so either the waiter sees the cell or the word it sleeps on has changed
 * or the daemon sees the waiter.
 *
 * Thread: any      Owns: nothing      Locks: the client's lock, inside
 */
#include "libclient/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>

#include "libclient/client.h"
#include "libclient/clock.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/roceclient.h"

/*
 * Waking a sleeping CPU costs up to 40 us, and 64 KiB with four ranks a host take 60: who sleeps
 * after 50 us takes twice as long there (daemon/README.md). Each poll yields the CPU, since on a
 * small machine the daemon may need this very one.
 */
#define WAIT_SPIN_NS INT64_C(100000)

/* Return: true: @fn has yielded true, there is nothing to wait for. */
static bool wait_sleep(struct roce_client *client, wait_fn fn, void *arg, int64_t ns)
{
	struct shm_header *shm = client->shm;
	struct timespec ts = clock_timespec(ns);
	uint32_t seen;
	bool ready;

	/* seq_cst: see the title; pairs with the daemon's fence before it reads waiters */
	atomic_fetch_add_explicit(&shm->waiters, 1, memory_order_seq_cst);
	seen = atomic_load_explicit(&shm->completions, memory_order_seq_cst);
	ready = fn(arg);
	if (!ready) {
		syscall(SYS_futex, &shm->completions, FUTEX_WAIT, seen, &ts, NULL, 0);
	}
	atomic_fetch_sub_explicit(&shm->waiters, 1, memory_order_seq_cst);
	return ready;
}

int wait_until(struct roce_client *client, wait_fn fn, void *arg, int timeout_ms, int64_t slice)
{
	int64_t now, deadline, spin_end;
	int dead;

	if (fn(arg)) {
		return 0;
	}
	if (timeout_ms == 0) {
		dead = client_check(client, false);
		return dead == 0 ? ROCE_IN_PROGRESS : fn(arg) ? 0 : dead;
	}
	deadline = clock_deadline(timeout_ms);
	spin_end = clock_now_ns() + WAIT_SPIN_NS;
	for (;;) {
		do {
			sched_yield();
			if (fn(arg)) {
				return 0;
			}
			now = clock_now_ns();
		} while (now < spin_end && now < deadline);
		if (now >= deadline) {
			return ROCE_IN_PROGRESS;
		}
		if (wait_sleep(client, fn, arg, deadline - now < slice ? deadline - now : slice) ||
		    fn(arg)) {
			return 0;
		}
		dead = client_check(client, false);
		if (dead != 0) {
			/* What ended before the loss counts as ended. */
			return fn(arg) ? 0 : dead;
		}
	}
}

static bool wait_ready(void *arg)
{
	return request_ready(arg);
}

/* Checks a request that the user hands in. Return: 0 or a status. */
static int wait_check(const struct roce_request *request)
{
	int r = client_enter(request->client);

	if (r != 0) {
		return r;
	}
	switch (atomic_load_explicit(&request->state, memory_order_acquire)) {
	case REQUEST_FREE:
		return error_set(ROCE_ERR_INVALID,
				 "the request is not valid any more: it was waited for already");
	case REQUEST_GROUPED:
		return error_set(
			ROCE_ERR_INVALID,
			"the request belongs to an open group: call roce_group_end() first");
	default:
		return 0;
	}
}

/* Ends a ready request, frees it, finds the words when it failed. */
static int wait_take(struct roce_request **request)
{
	struct roce_client *client = (*request)->client;
	uint32_t comm = (*request)->comm_id;
	uint8_t kind = (*request)->kind;
	int status;

	status = request_finish(*request);
	*request = NULL;
	return status == ROCE_OK ? ROCE_OK : comm_op_error(client, comm, kind, status);
}

/* The daemon is lost: all that is in flight ends now. */
static void wait_fail(struct roce_client *client, int status)
{
	pthread_mutex_lock(&client->lock);
	request_fail_all(client, status);
	pthread_mutex_unlock(&client->lock);
}

int roce_wait(struct roce_request **request, int timeout_ms)
{
	int r;

	if (!request) {
		return error_set(ROCE_ERR_INVALID, "roce_wait: the address of the request is NULL");
	}
	if (!*request) {
		return ROCE_OK;
	}
	r = wait_check(*request);
	if (r != 0) {
		return r;
	}
	/* What a stream does after the completion wakes nobody. */
	r = wait_until((*request)->client, wait_ready, *request, timeout_ms,
		       (*request)->gated ? WAIT_SLICE_SHORT_NS : WAIT_SLICE_NS);
	if (r == ROCE_IN_PROGRESS) {
		return r;
	}
	while (r != 0 && !request_ready(*request)) {
		wait_fail((*request)->client, r);
	}
	return wait_take(request);
}

int roce_test(struct roce_request **request)
{
	return roce_wait(request, 0);
}

int roce_wait_all(struct roce_request **requests, size_t n, int timeout_ms)
{
	int64_t deadline = clock_deadline(timeout_ms);
	bool pending = false;
	int first = ROCE_OK;
	char text[LIMIT_ERROR_TEXT];

	if (n > 0 && !requests) {
		return error_set(ROCE_ERR_INVALID, "roce_wait_all: requests is NULL, n is %zu", n);
	}
	for (size_t i = 0; i < n; i++) {
		int r = requests[i] ? wait_check(requests[i]) : 0;

		if (r != 0) {
			return error_prefix(r, "roce_wait_all: request %zu", i);
		}
	}
	for (size_t i = 0; i < n; i++) {
		int r = roce_wait(&requests[i], clock_left_ms(deadline));

		if (r == ROCE_IN_PROGRESS) {
			pending = true;
		} else if (r != ROCE_OK && first == ROCE_OK) {
			first = r;
			error_copy(text, error_last());
		}
	}
	if (first != ROCE_OK) {
		return error_set(first, "%s", text);
	}
	return pending ? ROCE_IN_PROGRESS : ROCE_OK;
}

struct wait_set {
	struct roce_request **requests;
	size_t n;
	size_t found;
};

static bool wait_set_ready(void *arg)
{
	struct wait_set *set = arg;

	for (size_t i = 0; i < set->n; i++) {
		if (set->requests[i] && request_ready(set->requests[i])) {
			set->found = i;
			return true;
		}
	}
	return false;
}

int roce_wait_any(struct roce_request **requests, size_t n, int timeout_ms, size_t *ret_index)
{
	struct wait_set set = {.requests = requests, .n = n};
	int64_t slice = WAIT_SLICE_NS;
	struct roce_client *client = NULL;
	int r;

	if (!ret_index || (n > 0 && !requests)) {
		return error_set(ROCE_ERR_INVALID, "roce_wait_any: %s is NULL",
				 ret_index ? "requests" : "ret_index");
	}
	for (size_t i = 0; i < n; i++) {
		if (!requests[i]) {
			continue;
		}
		r = wait_check(requests[i]);
		if (r == 0 && client && requests[i]->client != client) {
			r = error_set(ROCE_ERR_INVALID, "it belongs to another client than those "
							"before it: wait for one client at a time");
		}
		if (r != 0) {
			return error_prefix(r, "roce_wait_any: request %zu", i);
		}
		client = requests[i]->client;
		slice = requests[i]->gated ? WAIT_SLICE_SHORT_NS : slice;
	}
	if (!client) {
		*ret_index = n;
		return ROCE_OK;
	}
	r = wait_until(client, wait_set_ready, &set, timeout_ms, slice);
	if (r == ROCE_IN_PROGRESS) {
		return r;
	}
	while (r != 0 && !wait_set_ready(&set)) {
		wait_fail(client, r);
	}
	*ret_index = set.found;
	return wait_take(&requests[set.found]);
}
