/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * GPU bench: implementation
 *
 * Thread: the test's      Owns: see gpu_bench.h      Locks: none
 */
#include "tests/unit/control/gpu_bench.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNIT (64u << 10)

static void on_done(struct gpu_request *r)
{
	((struct gpu_bench *)r->arg)->answered = true;
}

static void on_gone(void *arg)
{
	((struct gpu_bench *)arg)->gone = true;
}

void gpu_bench_looked(void *arg)
{
	((struct gpu_bench *)arg)->looked = true;
}

void gpu_bench_until(struct gpu_bench *b, const bool *what)
{
	struct pollfd p = {.fd = gpu_fd(b->gpu), .events = POLLIN};

	while (!*what) {
		cr_assert_eq(poll(&p, 1, 20000), 1);
		gpu_dispatch(b->gpu);
	}
}

void gpu_bench_use(struct gpu_bench *b, int device, uint8_t uuid[GPU_UUID_BYTES],
		   struct gpu_alloc **ret)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
	struct gpu_request r = {.done = on_done,
				.arg = b,
				.gone = on_gone,
				.gone_arg = b,
				.handle = GPU_HANDLE_VMM,
				.size = UNIT};
	CUmemGenericAllocationHandle handle;
	CUuuid id;

	cr_assert_eq(b->cuda.DeviceGetUuid(&id, device), CUDA_SUCCESS);
	memcpy(uuid, id.bytes, GPU_UUID_BYTES);
	memcpy(r.uuid, id.bytes, GPU_UUID_BYTES);
	cr_assert_eq(b->cuda.MemCreate(&handle, UNIT, &prop, 0), CUDA_SUCCESS);
	cr_assert_eq(
		b->cuda.MemExportToShareableHandle(&r.fd, handle, prop.requestedHandleTypes, 0),
		CUDA_SUCCESS);
	b->cuda.MemRelease(handle);
	b->answered = false;
	gpu_open(b->gpu, &r);
	gpu_bench_until(b, &b->answered);
	cr_assert_eq(r.status, STATUS_OK, "%s", r.text);
	*ret = r.alloc;
	close(r.fd);
}

void gpu_bench_start(struct gpu_bench *b, uint32_t nics)
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
	gpu_bench_use(b, 0, b->uuid, &b->alloc);
}

void gpu_bench_look(struct gpu_bench *b)
{
	b->looked = false;
	gpu_paths_look(&b->paths, b->gpu, b->devices, gpu_bench_looked, b);
	gpu_bench_until(b, &b->looked);
}

void gpu_bench_stop(struct gpu_bench *b)
{
	gpu_alloc_unref(b->alloc);
	gpu_bench_until(b, &b->gone);
	gpu_paths_deinit(&b->paths);
	rdma_free(b->devices);
	gpu_free(b->gpu);
	fake_verbs_free(b->net); /* nothing is registered any more */
}

void gpu_bench_reason(const struct gpu_bench *b, const char *words)
{
	char text[900];

	gpu_paths_reason(&b->paths, b->uuid, text, sizeof(text));
	cr_assert(strstr(text, words), "'%s' is due, not '%s'", words, text);
}

void gpu_bench_row(const struct gpu_bench *b, size_t row, enum rdma_mem_way way, const char *words)
{
	cr_assert_lt(row, b->paths.n);
	cr_assert_eq(b->paths.rows[row].way, way, "%s", b->paths.rows[row].reason);
	cr_assert(strstr(b->paths.rows[row].reason, words), "'%s' is due, not '%s'", words,
		  b->paths.rows[row].reason);
}

char *gpu_bench_json(const struct gpu_bench *b)
{
	struct json j;
	char *text;

	json_init(&j);
	json_open(&j, NULL);
	gpu_paths_json(&j, &b->paths, b->gpu);
	json_close(&j);
	cr_assert_eq(json_finish(&j, &text), 0);
	json_deinit(&j);
	return text;
}
