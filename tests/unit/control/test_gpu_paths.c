/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Ways between GPUs and network devices: each branch of the trial, on the fakes
 *
 * What the fake CUDA driver refuses the environment says, which each test sets first.
 *
 * Thread: the test's      Owns: what it makes      Locks: none
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/gpu_paths.h"
#include "proto/base.h"
#include "proto/cuda_abi.h"
#include "tests/fake/verbs/fake_verbs.h"
#include "tests/unit/topo/pci_lab.h"
#include "util/clock.h"

#define UNIT (64u << 10)

struct bench {
	struct cuda_abi cuda;
	struct gpu *gpu;
	struct fake_net *net;
	struct fake_device *nic[2];
	struct rdma *devices;
	struct gpu_paths paths;
	struct gpu_alloc *alloc;
	uint8_t uuid[GPU_UUID_BYTES];
	bool answered, gone, looked;
};

static void on_done(struct gpu_request *r)
{
	((struct bench *)r->arg)->answered = true;
}

static void on_gone(void *arg)
{
	((struct bench *)arg)->gone = true;
}

static void on_looked(void *arg)
{
	((struct bench *)arg)->looked = true;
}

static void until(struct bench *b, const bool *what)
{
	struct pollfd p = {.fd = gpu_fd(b->gpu), .events = POLLIN};

	while (!*what) {
		cr_assert_eq(poll(&p, 1, 20000), 1);
		gpu_dispatch(b->gpu);
	}
}

/* A client's allocation, so that the GPU is in use. */
static void use_gpu(struct bench *b)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	struct gpu_request r = {.done = on_done,
				.arg = b,
				.gone = on_gone,
				.gone_arg = b,
				.handle = GPU_HANDLE_VMM,
				.size = UNIT};
	CUmemGenericAllocationHandle handle;
	CUuuid uuid;

	cr_assert_eq(b->cuda.DeviceGetUuid(&uuid, 0), CUDA_SUCCESS);
	memcpy(b->uuid, uuid.bytes, sizeof(b->uuid));
	memcpy(r.uuid, b->uuid, sizeof(r.uuid));
	cr_assert_eq(b->cuda.MemCreate(&handle, UNIT, &prop, 0), CUDA_SUCCESS);
	cr_assert_eq(
		b->cuda.MemExportToShareableHandle(&r.fd, handle, prop.requestedHandleTypes, 0),
		CUDA_SUCCESS);
	b->cuda.MemRelease(handle);
	gpu_open(b->gpu, &r);
	until(b, &b->answered);
	cr_assert_eq(r.status, STATUS_OK, "%s", r.text);
	b->alloc = r.alloc;
	close(r.fd);
}

static void start(struct bench *b, uint32_t nics)
{
	struct gpu_options o = {.staging = 64u << 20};
	struct rdma_options none = {NULL, NULL};
	char err[256];

	memset(b, 0, sizeof(*b));
	cr_assert_eq(cuda_abi_open(NULL, &b->cuda, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(b->cuda.Init(0), CUDA_SUCCESS);
	cr_assert_eq(gpu_new(&o, &b->gpu), 0);
	b->net = fake_verbs_new(1);
	for (uint32_t i = 0; i < nics; i++) {
		char name[16];

		snprintf(name, sizeof(name), "mlx5_%u", i);
		b->nic[i] = fake_verbs_device(b->net, 0, name, i);
	}
	cr_assert_eq(rdma_new(fake_verbs_api(b->net, 0), &none, &b->devices), 0);
	use_gpu(b);
}

static void look(struct bench *b)
{
	b->looked = false;
	gpu_paths_look(&b->paths, b->gpu, b->devices, on_looked, b);
	until(b, &b->looked);
}

static void stop(struct bench *b)
{
	gpu_alloc_unref(b->alloc);
	until(b, &b->gone);
	gpu_paths_deinit(&b->paths);
	rdma_free(b->devices);
	gpu_free(b->gpu);
	fake_verbs_free(b->net); /* nothing is registered any more */
}

static void reason_has(const struct bench *b, const char *words)
{
	char text[900];

	gpu_paths_reason(&b->paths, b->uuid, text, sizeof(text));
	cr_assert(strstr(text, words), "'%s' is due, not '%s'", words, text);
}

static void row_has(const struct bench *b, size_t row, enum rdma_mem_way way, const char *words)
{
	cr_assert_lt(row, b->paths.n);
	cr_assert_eq(b->paths.rows[row].way, way, "%s", b->paths.rows[row].reason);
	cr_assert(strstr(b->paths.rows[row].reason, words), "'%s' is due, not '%s'", words,
		  b->paths.rows[row].reason);
}

/* One device takes dma-bufs, the other one addresses only. A pair is tried once. */
Test(gpu_paths, dmabuf_and_peermem, .timeout = 60)
{
	struct bench b;
	struct json j;
	char *text;

	start(&b, 2);
	reason_has(&b, "no network device here has registered memory");
	b.nic[1]->caps.dmabuf_errno = EOPNOTSUPP;
	look(&b);
	cr_assert_eq(b.paths.n, 2);
	row_has(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	row_has(&b, 1, RDMA_MEM_PEER, "by address (a peer memory module); by dma-buf:");
	reason_has(&b, "mlx5_0 could reach the memory itself (dma-buf)");
	b.nic[0]->caps.dmabuf_errno = b.nic[0]->caps.reg_errno = EIO;
	look(&b);
	cr_assert_eq(b.paths.n, 2);
	row_has(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	json_init(&j);
	json_open(&j, NULL);
	gpu_paths_json(&j, &b.paths, b.gpu);
	json_close(&j);
	cr_assert_eq(json_finish(&j, &text), 0);
	json_deinit(&j);
	cr_assert(strstr(text, "\"devices\":[{\"device\":\"mlx5_0\",\"registers\":\"dma-buf\""),
		  "%s", text);
	cr_assert(strstr(text, "{\"device\":\"mlx5_1\",\"registers\":\"peermem\""), "%s", text);
	cr_assert(strstr(text, "\"path\":\"staged\",\"reason\":\"CPUs make the sums;"), "%s", text);
	free(text);
	stop(&b);
}

Test(gpu_paths, neither, .timeout = 60)
{
	struct bench b;

	start(&b, 1);
	b.nic[0]->caps.dmabuf_errno = EOPNOTSUPP;
	b.nic[0]->caps.reg_errno = EFAULT;
	look(&b);
	row_has(&b, 0, RDMA_MEM_NONE, "neither by dma-buf nor by address: mlx5_0: cannot register");
	reason_has(&b, "mlx5_0 registers its memory neither");
	stop(&b);
}

/* Devices and kernels that say yes and then do not, each in its own way. */
Test(gpu_paths, half_supported, .timeout = 60)
{
	static const int errors[] = {EOPNOTSUPP, EINVAL, 524, EFAULT, ENOMEM, EIO};

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		struct bench b;

		start(&b, 2);
		b.nic[0]->caps.dmabuf_errno = errors[i];
		b.nic[1]->caps.dmabuf_errno = errors[i];
		b.nic[1]->caps.reg_errno = errors[ARRAY_SIZE(errors) - 1 - i];
		look(&b);
		row_has(&b, 0, RDMA_MEM_PEER, "by address (a peer memory module)");
		row_has(&b, 1, RDMA_MEM_NONE, "nvidia-peermem lets it register addresses");
		reason_has(&b, "mlx5_0 could reach the memory itself (peer memory)");
		stop(&b);
	}
}

Test(gpu_paths, driver_without_dmabuf, .timeout = 60)
{
	struct bench b;

	setenv("FAKE_CUDA_NO_DMABUF", "1", 1);
	start(&b, 2);
	b.nic[1]->caps.reg_errno = EFAULT;
	look(&b);
	row_has(&b, 0, RDMA_MEM_PEER, "offers no dma-buf of this GPU");
	row_has(&b, 1, RDMA_MEM_NONE, "offers no dma-buf of this GPU");
	row_has(&b, 1, RDMA_MEM_NONE, "Bad address");
	reason_has(&b, "mlx5_0 could reach the memory itself (peer memory)");
	stop(&b);
}

Test(gpu_paths, descriptor_refused, .timeout = 60)
{
	struct bench b;

	setenv("FAKE_CUDA_FAIL", "cuMemGetHandleForAddressRange=801", 1);
	start(&b, 1);
	look(&b);
	row_has(&b, 0, RDMA_MEM_PEER, "CUDA_ERROR_NOT_SUPPORTED");
	stop(&b);
}

Test(gpu_paths, no_memory_for_a_trial, .timeout = 60)
{
	struct bench b;

	setenv("FAKE_CUDA_FAIL", "cuMemAlloc=2", 1);
	start(&b, 1);
	look(&b);
	row_has(&b, 0, RDMA_MEM_NONE, "not tried: no GPU memory for a trial: CUDA_ERROR_OUT_OF");
	stop(&b);
}

/* A device that goes is not tried, one that comes later is, and neither is none at all. */
Test(gpu_paths, devices_that_come_and_go, .timeout = 60)
{
	struct rdma_options none = {NULL, NULL};
	struct bench b;

	start(&b, 0);
	look(&b);
	cr_assert_eq(b.paths.n, 0);
	b.nic[0] = fake_verbs_device(b.net, 0, "mlx5_0", 0);
	cr_assert_eq(rdma_refresh(b.devices, &none), 0);
	b.devices->devices[0]->gone = true;
	look(&b);
	cr_assert_eq(b.paths.n, 0);
	b.devices->devices[0]->gone = false;
	look(&b);
	row_has(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	stop(&b);
}

Test(gpu_paths, without_gpus)
{
	struct gpu_paths paths = {0};
	struct bench b = {0};

	gpu_paths_look(&paths, NULL, NULL, on_looked, &b);
	cr_assert(b.looked);
	gpu_paths_deinit(&paths);
}

/* ---- what does not return ------------------------------------------------------------------- */

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
static void until_returned(struct bench *b)
{
	struct fake_mr_view view;

	for (int i = 0; i < 20000 && thread_there("gpu-register"); i++) {
		usleep(1000);
	}
	cr_assert(!thread_there("gpu-register"));
	fake_verbs_mrs(b->nic[0], &view); /* its lock: all that they did is seen from here on */
	cr_assert_eq(view.registered, 0);
}

/*
 * One device does not return from registering: its pair is staged with the reason, in bounded time;
 * meanwhile the control thread goes on, and the other device's trial is not lost.
 */
Test(gpu_paths, registration_that_does_not_return, .timeout = 60)
{
	struct fake_mr_view view;
	struct bench b;
	uint64_t begun;

	start(&b, 2);
	b.paths.trial_ms = 300;
	fake_verbs_hold(b.nic[0], 4096);
	begun = clock_monotonic();
	b.looked = false;
	gpu_paths_look(&b.paths, b.gpu, b.devices, on_looked, &b);
	cr_assert(!b.looked, "the control thread waited for it");
	until(&b, &b.looked);
	cr_assert_lt(clock_elapsed(clock_monotonic(), begun), 20 * CLOCK_NS_PER_S);
	cr_assert_eq(b.paths.n, 2);
	row_has(&b, 0, RDMA_MEM_NONE, "did not end a trial with its memory: registering 2048 KiB");
	cr_assert(b.paths.rows[0].stalled);
	row_has(&b, 1, RDMA_MEM_DMABUF, "by dma-buf");
	fake_verbs_mrs(b.nic[0], &view);
	cr_assert_eq(view.waiting, 1);
	look(&b);
	cr_assert_eq(b.paths.n, 2, "it is not tried again");
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	row_has(&b, 0, RDMA_MEM_NONE, "did not end a trial");
	stop(&b);
}

/* The device is closed while its trial still hangs: nothing that the call uses goes. */
Test(gpu_paths, device_closed_under_a_hanging_trial, .timeout = 60)
{
	struct bench b;

	start(&b, 1);
	b.paths.trial_ms = 100;
	fake_verbs_hold(b.nic[0], 4096);
	look(&b);
	row_has(&b, 0, RDMA_MEM_NONE, "did not end a trial");
	reason_has(&b, "mlx5_0 did not end a trial with its memory");
	b.devices->devices[0]->gone = true;
	rdma_device_close(b.devices->devices[0]);
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	stop(&b);
}

/* The daemon ends while a trial still hangs. */
Test(gpu_paths, end_with_a_hanging_trial, .timeout = 60)
{
	struct bench b;

	start(&b, 1);
	b.paths.trial_ms = 100;
	fake_verbs_hold(b.nic[0], 4096);
	look(&b);
	gpu_alloc_unref(b.alloc);
	until(&b, &b.gone);
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
Test(gpu_paths, many_wait, .timeout = 60)
{
	const uint32_t n = 100000;
	uint32_t told = 0;
	struct bench b;

	start(&b, 1);
	b.paths.trial_ms = 100;
	fake_verbs_hold(b.nic[0], 4096);
	b.looked = false;
	gpu_paths_look(&b.paths, b.gpu, b.devices, on_looked, &b);
	for (uint32_t i = 0; i < n; i++) {
		gpu_paths_look(&b.paths, b.gpu, b.devices, on_count, &told);
	}
	cr_assert_eq(told, 0);
	until(&b, &b.looked);
	cr_assert_eq(told, n);
	cr_assert_eq(b.paths.n, 1);
	gpu_paths_look(&b.paths, b.gpu, b.devices, on_count, &told);
	cr_assert_eq(told, n + 1, "nothing is left to be tried");
	fake_verbs_hold(b.nic[0], 0);
	until_returned(&b);
	stop(&b);
}

/* Two who look at the same time: each pair is tried once, and both hear of the end. */
Test(gpu_paths, looks_at_the_same_time, .timeout = 60)
{
	struct fake_mr_view view;
	struct bench b, other = {0};

	start(&b, 1);
	b.looked = false;
	gpu_paths_look(&b.paths, b.gpu, b.devices, on_looked, &b);
	gpu_paths_look(&b.paths, b.gpu, b.devices, on_looked, &other);
	until(&b, &b.looked);
	until(&b, &other.looked);
	cr_assert_eq(b.paths.n, 1);
	row_has(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	fake_verbs_mrs(b.nic[0], &view);
	cr_assert_eq(view.calls, 1);
	stop(&b);
}

/* ---- what is in between --------------------------------------------------------------------- */

/* mlx5_0 is behind a bridge that redirects, mlx5_1 is not. */
Test(gpu_paths, bridges_of_affected_pairs_only, .timeout = 60)
{
	struct pci_lab lab;
	struct bench b;
	struct json j;
	char *text;

	pci_lab_init(&lab);
	pci_lab_bridge(&lab, "pci0000:00/0000:00:01.0", 0);
	pci_lab_bridge(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0", -1);
	pci_lab_bridge(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0", 0x1d);
	pci_lab_bridge(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0", 0);
	pci_lab_bridge(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0", 0);
	pci_lab_device(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:3b:00.0",
		       NULL);
	pci_lab_device(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:3c:00.0",
		       NULL);
	pci_lab_device(&lab, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:10:00.0",
		       NULL);
	start(&b, 2);
	b.paths.tree = &lab.tree;
	snprintf(b.devices->devices[1]->pci, sizeof(b.devices->devices[1]->pci), "0000:3c:00.0");
	look(&b);
	cr_assert_eq(b.paths.n, 2);
	cr_assert(strstr(b.paths.rows[0].warning,
			 "ACS is on at bridge 0000:02:00.0 (SrcValid ReqRedir CmpltRedir "
			 "UpstreamFwd)"),
		  "%s", b.paths.rows[0].warning);
	cr_assert_eq(b.paths.rows[1].warning[0], '\0');
	cr_assert_eq(b.paths.rows[0].unseen[0], '\0');
	cr_assert_eq(b.paths.rows[1].unseen[0], '\0');
	json_init(&j);
	json_open(&j, NULL);
	gpu_paths_json(&j, &b.paths, b.gpu);
	json_close(&j);
	cr_assert_eq(json_finish(&j, &text), 0);
	json_deinit(&j);
	cr_assert(strstr(text, "\"stalled\":false,\"warning\":\"ACS is on at bridge"), "%s", text);
	cr_assert(strstr(text, "\"warning\":null,\"unseen\":null,\"pci\":{\"iommu\":\"none\""),
		  "%s", text);
	free(text);
	stop(&b);
	start(&b, 1); /* what is staged in any case has no use for it */
	b.paths.tree = &lab.tree;
	b.nic[0]->caps.dmabuf_errno = EOPNOTSUPP;
	b.nic[0]->caps.reg_errno = EFAULT;
	look(&b);
	cr_assert_eq(b.paths.rows[0].warning[0], '\0');
	stop(&b);
	pci_lab_deinit(&lab);
}
