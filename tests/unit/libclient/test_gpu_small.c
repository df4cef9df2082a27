/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Small operations of streams: copied by the stream, whatever the daemon has
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_gpu.h"

#include <poll.h>

#include "libclient/client.h"
#include "proto/base.h"

TestSuite(gpu_small, .init = setup, .fini = teardown, .timeout = 240);

static uint64_t staged(void)
{
	return atomic_load(&client->shm->staged);
}

Test(gpu_small, are_copied_by_the_stream)
{
	static const size_t sizes[] = {1, 2, 3, 8, 999, 4096, GPU_SMALL - 1, GPU_SMALL};
	size_t counts[] = {500}, displs[] = {3}, to[] = {200};
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(4 * GPU_SMALL), q = p + 2 * GPU_SMALL + 5;
	uint64_t before = staged();
	float *shared;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		moves(comm, p + 1, q, sizes[i]);
		moves(comm, q, q, sizes[i]);
		cr_assert_eq(staged() - before, 4 * sizes[i], "%zu bytes", sizes[i]);
		before = staged();
	}
	moves(comm, p, q, GPU_SMALL + 1);
	moves(comm, q, q, GPU_SMALL + 1);
	cr_assert_eq(staged(), before, "larger ones are the daemon's to copy");
	/* Only what is in the blocks is written. */
	ok(roce_alltoallv_stream(ptr(p), counts, displs, ptr(q), counts, to, ROCE_U8, comm, stream,
				 NULL));
	cr_assert_eq(staged() - before, 1000);
	sync_stream();
	/* One side of a device, the other shared with the daemon. */
	ok(roce_mem_alloc(client, 4096, 0, (void **)&shared));
	shared[0] = 1.5f;
	before = staged();
	ok(roce_allreduce_stream(shared, ptr(p), 1, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	ok(roce_allreduce_stream(ptr(p), shared + 1, 1, ROCE_F32, ROCE_SUM, comm, stream, NULL));
	sync_stream();
	cr_assert_eq(shared[1], 1.5f);
	cr_assert_eq(staged() - before, 8);
}

Test(gpu_small, in_flight_are_bounded)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	CUdeviceptr p = device_alloc(4 * GPU_SMALL);
	unsigned int n = GPU_SMALL_ROOM / (2 * GPU_SMALL) + 10, small = 0;
	struct shm_desc large, d[160];

	cr_assert_lt(n, ARRAY_SIZE(d));
	fake_set(&fake, run, false);
	ok(roce_allreduce_stream(ptr(p), ptr(p), GPU_SMALL + 1, ROCE_U8, ROCE_SUM, comm, stream,
				 NULL));
	cr_assert_eq(fake_pop(&fake, &large, 1), 1);
	for (unsigned int i = 0; i < n; i++) {
		ok(roce_allreduce_stream(ptr(p), ptr(p + 2 * GPU_SMALL), GPU_SMALL, ROCE_U8,
					 ROCE_SUM, comm, stream, NULL));
	}
	cr_assert_eq(fake_pop(&fake, d, (int)n), (int)n);
	for (unsigned int i = 0; i < n; i++) {
		small += d[i].send_buf != large.send_buf;
		cr_assert_eq(d[i].send_buf == large.send_buf, d[i].recv_buf == large.recv_buf);
	}
	cr_assert_eq(small, n - 10);
	fake_complete(&fake, &large, ROCE_OK);
	for (unsigned int i = 0; i < n; i++) {
		fake_complete(&fake, &d[i], ROCE_OK);
	}
	sync_stream();
	for (int i = 0; i < 1000 && atomic_load(&client->gpu.open) > 0; i++) {
		poll(NULL, 0, 1);
	}
	cr_assert_eq(client->gpu.small, 0);
	/* A group's inputs are read behind the operations ahead of it: by the daemon. */
	ok(roce_group_start(client));
	ok(roce_allreduce_stream(ptr(p), ptr(p), 8, ROCE_U8, ROCE_SUM, comm, stream, NULL));
	ok(roce_group_end(client));
	cr_assert_eq(fake_pop(&fake, d, 1), 1);
	cr_assert_eq(d[0].send_buf, large.send_buf);
	fake_complete(&fake, &d[0], ROCE_OK);
	sync_stream();
}

Test(gpu_small, without_staging)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	CUdeviceptr p = device_alloc(8192);

	fake_set(&fake, fail[MSG_BUFFER_REGISTER], ROCE_ERR_QUOTA);
	moves(comm, p, p + 4096, 100);
	moves(comm, p, p, 100);
	cr_assert_eq(staged(), 0, "the daemon copies");
	cr_assert_eq(client->gpu.small, 0);
	fake_set(&fake, fail[MSG_BUFFER_REGISTER], 0);
	moves(comm, p, p + 4096, 100);
	cr_assert_eq(staged(), 200);
}
