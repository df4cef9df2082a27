/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Trials of a GPU's memory that do not return, and those who wait for them
 *
 * Thread: the test's      Owns: what it makes      Locks: none
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/gpu_round.h"
#include "tests/unit/control/gpu_bench.h"
#include "util/clock.h"

static bool thread_there(const char *name)
{
	DIR *dir = opendir("/proc/self/task");
	bool found = false;
	struct dirent *e;

	cr_assert(dir);
	while ((e = readdir(dir))) {
		char path[300], text[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = fopen(path, "re");
		if (f && fgets(text, sizeof(text), f)) {
			found = found || strncmp(text, name, strlen(name)) == 0;
		}
		if (f) {
			fclose(f);
		}
	}
	closedir(dir);
	return found;
}

/* Until what was abandoned has come back and freed what it had. */
static void until_returned(struct gpu_bench *b)
{
	struct fake_mr_view view;

	for (int i = 0; i < 20000 && thread_there("gpu-register"); i++) {
		usleep(1000);
	}
	cr_assert(!thread_there("gpu-register"));
	fake_verbs_mrs(b->nic[0], &view); /* its lock: all that they did is seen from here on */
	cr_assert_eq(view.registered, 0);
}

/* A session that waits for a round waits with it when the daemon stops, which has 1.8 seconds. */
Test(gpu_round, ends_before_a_stop_does)
{
	cr_assert_leq(GPU_ROUND_MS, 1500);
}

/*
 * One device does not return from registering: its pair is staged with the reason, in bounded time;
 * meanwhile the control thread goes on, and the other device's trial is not lost.
 */
Test(gpu_round, registration_that_does_not_return, .timeout = 60)
{
	struct fake_mr_view view;
	struct gpu_bench b;
	uint64_t begun;

	gpu_bench_start(&b, 2);
	b.paths.trial_ms = 300;
	fake_verbs_hold(b.nic[0], 4096);
	begun = clock_monotonic();
	b.looked = false;
	gpu_paths_look(&b.paths, b.gpu, b.devices, gpu_bench_looked, &b);
	cr_assert(!b.looked, "the control thread waited for it");
	gpu_bench_until(&b, &b.looked);
	cr_assert_lt(clock_elapsed(clock_monotonic(), begun), 20 * CLOCK_NS_PER_S);
	cr_assert_eq(b.paths.n, 2);
	gpu_bench_row(&b, 0, RDMA_MEM_NONE,
		      "did not end a trial with its memory: registering 2048 KiB");
	cr_assert(b.paths.rows[0].stalled);
	gpu_bench_row(&b, 1, RDMA_MEM_DMABUF, "by dma-buf");
	fake_verbs_mrs(b.nic[0], &view);
	cr_assert_eq(view.waiting, 1);
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 2, "it is not tried again");
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_NONE, "did not end a trial");
	gpu_bench_stop(&b);
}

/* Its only device does not return from registering. */
static void bench_hangs(struct gpu_bench *b)
{
	gpu_bench_start(b, 1);
	b->paths.trial_ms = 100;
	fake_verbs_hold(b->nic[0], 4096);
	gpu_bench_look(b);
}

/* The device is closed while its trial still hangs: nothing that the call uses goes. */
Test(gpu_round, device_closed_under_a_hanging_trial, .timeout = 60)
{
	struct gpu_bench b;

	bench_hangs(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_NONE, "did not end a trial");
	gpu_bench_reason(&b, "mlx5_0 did not end a trial with its memory");
	b.devices->devices[0]->gone = true;
	rdma_device_close(b.devices->devices[0]);
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	gpu_bench_stop(&b);
}

/* The daemon ends while a trial still hangs. */
Test(gpu_round, end_with_a_hanging_trial, .timeout = 60)
{
	struct gpu_bench b;

	bench_hangs(&b);
	gpu_alloc_unref(b.alloc);
	gpu_bench_until(&b, &b.gone);
	gpu_paths_deinit(&b.paths);
	rdma_free(b.devices);
	gpu_free(b.gpu);
	cr_assert(thread_there("gpu-register"));
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	fake_verbs_free(b.net);
}

static void on_count(void *arg)
{
	++*(uint32_t *)arg;
}

/* As many as there are buffers of clients may wait for one that hangs. */
Test(gpu_round, many_wait, .timeout = 60)
{
	const uint32_t n = 100000;
	uint32_t told = 0;
	struct gpu_bench b;

	gpu_bench_start(&b, 1);
	b.paths.trial_ms = 100;
	fake_verbs_hold(b.nic[0], 4096);
	b.looked = false;
	gpu_paths_look(&b.paths, b.gpu, b.devices, gpu_bench_looked, &b);
	for (uint32_t i = 0; i < n; i++) {
		gpu_paths_look(&b.paths, b.gpu, b.devices, on_count, &told);
	}
	cr_assert_eq(told, 0);
	gpu_bench_until(&b, &b.looked);
	cr_assert_eq(told, n);
	cr_assert_eq(b.paths.n, 1);
	gpu_paths_look(&b.paths, b.gpu, b.devices, on_count, &told);
	cr_assert_eq(told, n + 1, "nothing is left to be tried");
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	gpu_bench_stop(&b);
}

/* Two who look at the same time: each pair is tried once, and both hear of the end. */
Test(gpu_round, looks_at_the_same_time, .timeout = 60)
{
	struct fake_mr_view view;
	struct gpu_bench b, other = {0};

	gpu_bench_start(&b, 1);
	b.looked = false;
	gpu_paths_look(&b.paths, b.gpu, b.devices, gpu_bench_looked, &b);
	gpu_paths_look(&b.paths, b.gpu, b.devices, gpu_bench_looked, &other);
	gpu_bench_until(&b, &b.looked);
	gpu_bench_until(&b, &other.looked);
	cr_assert_eq(b.paths.n, 1);
	gpu_bench_row(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	fake_verbs_mrs(b.nic[0], &view);
	cr_assert_eq(view.calls, 1);
	gpu_bench_stop(&b);
}

/* A device whose trial with one GPU hangs is given no second thread for another GPU. */
Test(gpu_round, one_thread_a_device, .timeout = 60)
{
	uint8_t uuid[GPU_UUID_BYTES];
	struct fake_mr_view view;
	struct gpu_alloc *other;
	struct gpu_bench b;

	gpu_bench_start(&b, 2);
	b.paths.trial_ms = 100;
	fake_verbs_hold(b.nic[0], 4096);
	gpu_bench_look(&b);
	gpu_bench_use(&b, 1, uuid, &other);
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 4);
	for (size_t i = 2; i < 4; i++) {
		cr_assert_eq(memcmp(b.paths.rows[i].gpu, uuid, sizeof(uuid)), 0);
		if (b.paths.rows[i].index == 0) {
			gpu_bench_row(&b, i, RDMA_MEM_NONE,
				      "not tried: its trial with another GPU did not end");
		} else {
			gpu_bench_row(&b, i, RDMA_MEM_DMABUF, "by dma-buf");
		}
	}
	fake_verbs_mrs(b.nic[0], &view);
	cr_assert_eq(view.waiting, 1);
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	gpu_alloc_unref(other);
	gpu_bench_until(&b, &b.gone);
	b.gone = false;
	gpu_bench_stop(&b);
}

/* A device that gives no second context; and one that is full, which its words say as ever. */
Test(gpu_round, device_that_refuses, .timeout = 60)
{
	struct gpu_bench b;

	gpu_bench_start(&b, 2);
	b.nic[0]->caps.open_errno = EMFILE;
	b.devices->devices[1]->attr.max_mr = 7;
	b.devices->devices[1]->regions = 7;
	b.nic[1]->caps.dmabuf_errno = b.nic[1]->caps.reg_errno = ENOMEM;
	gpu_bench_look(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_NONE,
		      "not tried: it cannot be opened again: Too many open files");
	gpu_bench_row(&b, 1, RDMA_MEM_NONE,
		      "the device takes 7 regions at a time, and 7 are this daemon's");
	cr_assert_eq(b.devices->devices[1]->refused[RDMA_REFUSED_FULL], 1);
	gpu_bench_stop(&b);
}
