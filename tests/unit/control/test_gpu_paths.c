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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/control/gpu_bench.h"
#include "tests/unit/topo/pci_lab.h"

/* One device takes dma-bufs, the other one addresses only. A pair is tried once. */
Test(gpu_paths, dmabuf_and_peermem, .timeout = 60)
{
	struct gpu_bench b;
	char *text;

	gpu_bench_start(&b, 2);
	gpu_bench_reason(&b, "no network device here has registered memory");
	b.nic[1]->caps.dmabuf_errno = EOPNOTSUPP;
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 2);
	gpu_bench_row(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	gpu_bench_row(&b, 1, RDMA_MEM_PEER, "by address (a peer memory module); by dma-buf:");
	gpu_bench_reason(&b, "mlx5_0 could reach the memory itself (dma-buf)");
	b.nic[0]->caps.dmabuf_errno = b.nic[0]->caps.reg_errno = EIO;
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 2);
	gpu_bench_row(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	text = gpu_bench_json(&b);
	cr_assert(strstr(text, "\"devices\":[{\"device\":\"mlx5_0\",\"registers\":\"dma-buf\""),
		  "%s", text);
	cr_assert(strstr(text, "{\"device\":\"mlx5_1\",\"registers\":\"peermem\""), "%s", text);
	cr_assert(strstr(text, "\"path\":\"staged\",\"reason\":\"CPUs make the sums;"), "%s", text);
	free(text);
	gpu_bench_stop(&b);
}

Test(gpu_paths, neither, .timeout = 60)
{
	struct gpu_bench b;

	gpu_bench_start(&b, 1);
	b.nic[0]->caps.dmabuf_errno = EOPNOTSUPP;
	b.nic[0]->caps.reg_errno = EFAULT;
	gpu_bench_look(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_NONE,
		      "neither by dma-buf nor by address: mlx5_0: cannot register");
	gpu_bench_reason(&b, "mlx5_0 registers its memory neither");
	gpu_bench_stop(&b);
}

/* Devices and kernels that say yes and then do not, each in its own way. */
Test(gpu_paths, half_supported, .timeout = 60)
{
	static const int errors[] = {EOPNOTSUPP, EINVAL, 524, EFAULT, ENOMEM, EIO};

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		struct gpu_bench b;

		gpu_bench_start(&b, 2);
		b.nic[0]->caps.dmabuf_errno = errors[i];
		b.nic[1]->caps.dmabuf_errno = errors[i];
		b.nic[1]->caps.reg_errno = errors[ARRAY_SIZE(errors) - 1 - i];
		gpu_bench_look(&b);
		gpu_bench_row(&b, 0, RDMA_MEM_PEER, "by address (a peer memory module)");
		gpu_bench_row(&b, 1, RDMA_MEM_NONE, "nvidia-peermem lets it register addresses");
		gpu_bench_reason(&b, "mlx5_0 could reach the memory itself (peer memory)");
		gpu_bench_stop(&b);
	}
}

Test(gpu_paths, driver_without_dmabuf, .timeout = 60)
{
	struct gpu_bench b;

	setenv("FAKE_CUDA_NO_DMABUF", "1", 1);
	gpu_bench_start(&b, 2);
	b.nic[1]->caps.reg_errno = EFAULT;
	gpu_bench_look(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_PEER, "offers no dma-buf of this GPU");
	gpu_bench_row(&b, 1, RDMA_MEM_NONE, "offers no dma-buf of this GPU");
	gpu_bench_row(&b, 1, RDMA_MEM_NONE, "Bad address");
	gpu_bench_reason(&b, "mlx5_0 could reach the memory itself (peer memory)");
	gpu_bench_stop(&b);
}

Test(gpu_paths, descriptor_refused, .timeout = 60)
{
	struct gpu_bench b;

	setenv("FAKE_CUDA_FAIL", "cuMemGetHandleForAddressRange=801", 1);
	gpu_bench_start(&b, 1);
	gpu_bench_look(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_PEER, "CUDA_ERROR_NOT_SUPPORTED");
	gpu_bench_stop(&b);
}

Test(gpu_paths, no_memory_for_a_trial, .timeout = 60)
{
	struct gpu_bench b;

	setenv("FAKE_CUDA_FAIL", "cuMemAlloc=2", 1);
	gpu_bench_start(&b, 1);
	gpu_bench_look(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_NONE,
		      "not tried: no GPU memory for a trial: CUDA_ERROR_OUT_OF");
	gpu_bench_stop(&b);
}

/* A device that goes is not tried, one that comes later is, and neither is none at all. */
Test(gpu_paths, devices_that_come_and_go, .timeout = 60)
{
	struct rdma_options none = {NULL, NULL};
	struct gpu_bench b;

	gpu_bench_start(&b, 0);
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 0);
	b.nic[0] = fake_verbs_device(b.net, 0, "mlx5_0", 0);
	cr_assert_eq(rdma_refresh(b.devices, &none), 0);
	b.devices->devices[0]->gone = true;
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 0);
	b.devices->devices[0]->gone = false;
	gpu_bench_look(&b);
	gpu_bench_row(&b, 0, RDMA_MEM_DMABUF, "by dma-buf");
	gpu_bench_stop(&b);
}

Test(gpu_paths, without_gpus)
{
	struct gpu_paths paths = {0};
	struct gpu_bench b = {0};

	gpu_paths_look(&paths, NULL, NULL, gpu_bench_looked, &b);
	cr_assert(b.looked);
	gpu_paths_deinit(&paths);
}

/* ---- what is in between --------------------------------------------------------------------- */

/* mlx5_0 is behind a bridge that redirects, mlx5_1 is not. */
Test(gpu_paths, bridges_of_affected_pairs_only, .timeout = 60)
{
	struct pci_lab lab;
	struct gpu_bench b;
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
	gpu_bench_start(&b, 2);
	b.paths.tree = &lab.tree;
	snprintf(b.devices->devices[1]->pci, sizeof(b.devices->devices[1]->pci), "0000:3c:00.0");
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.n, 2);
	cr_assert(strstr(b.paths.rows[0].warning,
			 "ACS is on at bridge 0000:02:00.0 (SrcValid ReqRedir CmpltRedir "
			 "UpstreamFwd)"),
		  "%s", b.paths.rows[0].warning);
	cr_assert_eq(b.paths.rows[1].warning[0], '\0');
	cr_assert_eq(b.paths.rows[0].unseen[0], '\0');
	cr_assert_eq(b.paths.rows[1].unseen[0], '\0');
	text = gpu_bench_json(&b);
	cr_assert(strstr(text, "\"stalled\":false,\"warning\":\"ACS is on at bridge"), "%s", text);
	cr_assert(strstr(text, "\"warning\":null,\"unseen\":null,\"pci\":{\"iommu\":\"none\""),
		  "%s", text);
	free(text);
	gpu_bench_stop(&b);
	gpu_bench_start(&b, 1); /* what is staged in any case has no use for it */
	b.paths.tree = &lab.tree;
	b.nic[0]->caps.dmabuf_errno = EOPNOTSUPP;
	b.nic[0]->caps.reg_errno = EFAULT;
	gpu_bench_look(&b);
	cr_assert_eq(b.paths.rows[0].warning[0], '\0');
	gpu_bench_stop(&b);
	pci_lab_deinit(&lab);
}
