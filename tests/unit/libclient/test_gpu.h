/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * What tests of GPU memory and streams share: a client of the fake daemon, on the fake CUDA
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#ifndef TEST_GPU_H
#define TEST_GPU_H

#include "test_client.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cuda_abi.h"

static struct fake fake;
static struct roce_client *client;
static struct cuda_abi cu;
static CUstream stream;

static inline void start(void)
{
	char err[256];
	CUcontext ctx;

	cr_assert_eq(cuda_abi_open(NULL, &cu, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(cu.Init(0), CUDA_SUCCESS);
	cr_assert_eq(cu.DevicePrimaryCtxRetain(&ctx, 0), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxSetCurrent(ctx), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
}

static inline void setup(void)
{
	start();
	fake_start(&fake);
	client = test_connect(&fake);
	fake_set(&fake, run, true);
}

static inline void teardown(void)
{
	roce_disconnect(client);
	fake_stop(&fake);
}

static inline CUdeviceptr device_alloc(size_t size)
{
	CUdeviceptr p;

	cr_assert_eq(cu.MemAlloc(&p, size), CUDA_SUCCESS);
	return p;
}

static inline void put(CUdeviceptr p, const void *from, size_t size)
{
	cr_assert_eq(cu.Memcpy(p, (uintptr_t)from, size), CUDA_SUCCESS);
}

static inline void get(CUdeviceptr p, void *to, size_t size)
{
	cr_assert_eq(cu.Memcpy((uintptr_t)to, p, size), CUDA_SUCCESS);
}

static inline void *ptr(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

static inline void sync_stream(void)
{
	cr_assert_eq(cu.StreamSynchronize(stream), CUDA_SUCCESS);
}

/* Moves @n bytes from @a to @b by a stream and looks at them. */
static inline void moves(struct roce_comm *comm, CUdeviceptr a, CUdeviceptr b, size_t n)
{
	uint8_t *in = malloc(n), *out = calloc(1, n);

	for (size_t i = 0; i < n; i++) {
		in[i] = (uint8_t)(i * 7 + n);
	}
	put(a, in, n);
	ok(roce_allreduce_stream(ptr(a), ptr(b), n, ROCE_U8, ROCE_SUM, comm, stream, NULL));
	sync_stream();
	get(b, out, n);
	cr_assert_eq(memcmp(in, out, n), 0, "%zu bytes differ", n);
	free(in);
	free(out);
}

#endif
