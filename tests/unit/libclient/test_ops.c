/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Operations: descriptors, staging, groups, windows, tickets, waits
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libclient/client.h"
#include "libclient/staging.h"
#include "proto/base.h"
#include "proto/types.h"

static struct fake fake;
static struct roce_client *client;

static void setup(void)
{
	fake_start(&fake);
	client = test_connect(&fake);
}

static void teardown(void)
{
	roce_disconnect(client);
	fake_stop(&fake);
}

TestSuite(ops, .init = setup, .fini = teardown, .timeout = 60);

static void run_all(void)
{
	fake_set(&fake, run, true);
}

Test(ops, descriptor_of_shared_memory)
{
	struct roce_comm *comm = test_comm(client, 1, 4);
	struct roce_request *request, *again;
	struct roce_buffer *buffer;
	struct shm_desc d, e;
	char *mem;

	ok(roce_mem_alloc(client, 8192, 0, (void **)&mem));
	ok(roce_mem_lookup(client, mem, 8192, &buffer));
	ok(roce_ireduce(mem + 3, mem + 4096, 100, ROCE_BF16, ROCE_MAX, 1, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert_eq(d.kind, COLL_REDUCE);
	cr_assert_eq(d.dtype, DTYPE_BF16);
	cr_assert_eq(d.op, REDOP_MAX);
	cr_assert_eq(d.root, 1);
	cr_assert_eq(d.count, 100);
	cr_assert_eq(d.seq, 0);
	cr_assert_eq(d.flags, 0);
	cr_assert_eq(d.generation, 1);
	cr_assert(d.send_buf != 0 && d.send_buf == d.recv_buf);
	cr_assert_eq(d.send_off, 3);
	cr_assert_eq(d.recv_off, 4096);
	cr_assert_eq(fake_ptr(&fake, d.send_buf, 0)[0], 0);
	mem[0] = 42;
	cr_assert_eq(fake_ptr(&fake, d.send_buf, 0)[0], 42);
	/* Elsewhere than on the root the receive side is not looked at. */
	ok(roce_ireduce(mem, NULL, 100, ROCE_BF16, ROCE_MAX, 2, comm, &again));
	cr_assert_eq(fake_pop(&fake, &e, 1), 1);
	cr_assert_eq(e.recv_buf, 0);
	cr_assert_eq(e.seq, 1);
	cr_assert_eq(roce_test(&request), ROCE_IN_PROGRESS);
	cr_assert_eq(roce_wait(&request, 20), ROCE_IN_PROGRESS);
	fake_complete(&fake, &d, ROCE_OK);
	fake_complete(&fake, &e, ROCE_OK);
	ok(roce_test(&request));
	cr_assert_null(request);
	ok(roce_wait(&again, -1));
}

Test(ops, a_call_of_one_argument)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	unsigned char in[100], out[100] = {0};
	struct roce_allreduce_args args = {
		.size = sizeof(args),
		.send = in,
		.recv = out,
		.count = sizeof(in),
		.comm = comm,
		.dtype = ROCE_U8,
		.op = ROCE_SUM,
	};
	struct shm_desc d;

	memset(in, 7, sizeof(in));
	refused(roce_allreduce_call(NULL), ROCE_ERR_INVALID, "field size");
	cr_assert_eq(roce_allreduce_call(&args), ROCE_IN_PROGRESS);
	cr_assert_not_null(args.request);
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	memcpy(fake_ptr(&fake, d.recv_buf, d.recv_off), in, sizeof(in));
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&args.request, -1));
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	run_all();
	args.timeout_ms = -1;
	memset(in, 8, sizeof(in));
	ok(roce_allreduce_call(&args));
	cr_assert_null(args.request);
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	args.dtype = 99;
	refused(roce_allreduce_call(&args), ROCE_ERR_INVALID, "99");
	cr_assert_null(args.request);
	args.size = 8;
	refused(roce_allreduce_call(&args), ROCE_ERR_INVALID, "field size is 8");
}

Test(ops, empty_operations_need_no_memory)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct shm_desc d;
	struct roce_request *request;

	ok(roce_iallreduce(NULL, NULL, 0, ROCE_F32, ROCE_SUM, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert(d.send_buf == 0 && d.recv_buf == 0 && d.count == 0);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
	cr_assert_eq(fake_get(&fake, n_open), 0);
}

Test(ops, staging_moves_the_right_bytes)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	unsigned char *in = malloc(3 << 20), *out = malloc(3 << 20);
	static const size_t sizes[] = {1, 3, 1000, 1025, 70000, 300000, (3 << 20) - 9};

	run_all();
	for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
		for (size_t off = 0; off < 4; off++) {
			for (size_t i = 0; i < sizes[s] + off; i++) {
				in[i] = (unsigned char)(i * 7 + s);
			}
			memset(out, 0xee, 3 << 20);
			ok(roce_allreduce(in + off, out + 2, sizes[s], ROCE_U8, ROCE_SUM, comm));
			cr_assert(memcmp(in + off, out + 2, sizes[s]) == 0);
			cr_assert(out[1] == 0xee && out[2 + sizes[s]] == 0xee);
		}
	}
	/* In place: one block for both sides. */
	ok(roce_allreduce(in, in, 5000, ROCE_U8, ROCE_SUM, comm));
	ok(roce_allgather(in, in, 5000, ROCE_U8, comm));
	ok(roce_recv(out, 10, ROCE_U8, 0, comm));
	cr_assert(out[0] == 0x5a && out[9] == 0x5a && out[10] != 0x5a);
	free(in);
	free(out);
}

Test(ops, staging_is_reused)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	char *in = calloc(1, 1 << 20), *out = calloc(1, 1 << 20);
	unsigned int registered;
	int fds = count_fds();

	run_all();
	ok(roce_allreduce(in, out, 1 << 20, ROCE_U8, ROCE_SUM, comm));
	ok(roce_allreduce(in, out, 100, ROCE_U8, ROCE_SUM, comm));
	registered = fake_get(&fake, seen[MSG_BUFFER_REGISTER]);
	for (int i = 0; i < 200; i++) {
		ok(roce_allreduce(in, out, 1 << 20, ROCE_U8, ROCE_SUM, comm));
		ok(roce_allreduce(in, out, 100 + (size_t)i, ROCE_U8, ROCE_SUM, comm));
	}
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_REGISTER]), registered);
	cr_assert_eq(count_fds(), fds, "staging holds descriptors");
	free(in);
	free(out);
}

Test(ops, staging_idle_is_bounded)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	size_t size = (size_t)80 << 20;
	char *p = mmap(NULL, 16 * size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct roce_request *requests[6];

	/* Six receives hold six blocks at a time; what stays idle afterwards is bounded. */
	for (int i = 0; i < 6; i++) {
		ok(roce_irecv(p + i * 2 * (ssize_t)size, size, ROCE_U8, 0, comm, &requests[i]));
	}
	cr_assert_geq(fake_get(&fake, n_open), 6);
	for (int i = 0; i < 6; i++) {
		struct shm_desc d;

		cr_assert_eq(fake_pop(&fake, &d, 1), 1);
		/* Failed operations are not copied out. */
		fake_complete(&fake, &d, ROCE_ERR_ABORTED);
	}
	for (int i = 0; i < 6; i++) {
		cr_assert_eq(roce_wait(&requests[i], -1), ROCE_ERR_ABORTED);
	}
	cr_assert_leq(client->staging.idle, STAGING_IDLE_MAX);
	cr_assert_lt(fake_get(&fake, n_open), 6);
	munmap(p, 16 * size);
}

Test(ops, classes)
{
	for (size_t size = 1; size < ((size_t)1 << 40); size += 1 + size / 13) {
		unsigned int c = staging_class(size);

		cr_assert_lt(c, STAGING_CLASSES);
		cr_assert_geq(staging_class_size(c), size, "%zu", size);
		cr_assert(c == 0 || staging_class_size(c - 1) < size, "%zu", size);
		cr_assert_eq(staging_class(staging_class_size(c)), c);
	}
}

Test(ops, registered_memory_has_one_mirror)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	char *p = malloc(100000);
	struct roce_buffer *buffer;
	unsigned int registered;

	run_all();
	ok(roce_mem_register(client, p, 100000, &buffer));
	registered = fake_get(&fake, seen[MSG_BUFFER_REGISTER]);
	memset(p, 1, 50000);
	memset(p + 50000, 2, 50000);
	for (int i = 0; i < 10; i++) {
		ok(roce_allreduce(p + 1, p + 60000, 30000, ROCE_U8, ROCE_SUM, comm));
	}
	cr_assert(p[59999] == 2 && p[60000] == 1 && p[89999] == 1 && p[90000] == 2);
	cr_assert_eq(fake_get(&fake, seen[MSG_BUFFER_REGISTER]), registered);
	ok(roce_mem_deregister(buffer));
	cr_assert_eq(fake_get(&fake, n_open), 0);
	free(p);
}

Test(ops, deregister_copies_out_what_is_done)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct roce_request *request;
	struct roce_buffer *buffer;
	char p[4096] = {0};

	run_all();
	ok(roce_mem_register(client, p, sizeof(p), &buffer));
	ok(roce_irecv(p, sizeof(p), ROCE_U8, 0, comm, &request));
	while (!request_ready(request)) {
		poll(NULL, 0, 1);
	}
	ok(roce_mem_deregister(buffer));
	cr_assert(p[0] == 0x5a && p[4095] == 0x5a);
	ok(roce_wait(&request, -1));
}

Test(ops, overlapping_staged_operations_keep_their_order)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct roce_request *requests[3];
	char x[2000], y[2000], z[2000];

	run_all();
	for (int i = 0; i < 50; i++) {
		memset(x, i, sizeof(x));
		memset(y, 99, sizeof(y));
		memset(z, 98, sizeof(z));
		/* y is written by the first, read by the second; z overwritten by the third. */
		ok(roce_iallreduce(x, y, 2000, ROCE_U8, ROCE_SUM, comm, &requests[0]));
		ok(roce_iallreduce(y + 1, z + 1, 1998, ROCE_U8, ROCE_SUM, comm, &requests[1]));
		ok(roce_irecv(z, 10, ROCE_U8, 0, comm, &requests[2]));
		ok(roce_wait_all(requests, 3, -1));
		cr_assert(z[0] == 0x5a && z[9] == 0x5a && z[10] == i && z[1998] == i);
		cr_assert_eq(z[1999], 98);
	}
}

Test(ops, v_variants_touch_only_their_blocks)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	size_t counts[1] = {3}, displs[1] = {2}, sdispls[1] = {1};
	int in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];

	run_all();
	memset(out, 0xff, sizeof(out));
	ok(roce_allgatherv(in, 3, out, counts, displs, ROCE_I32, comm));
	cr_assert(out[1] == -1 && out[2] == 1 && out[4] == 3 && out[5] == -1);
	memset(out, 0xff, sizeof(out));
	ok(roce_alltoallv(in, counts, sdispls, out, counts, displs, ROCE_I32, comm));
	cr_assert(out[1] == -1 && out[2] == 2 && out[4] == 4 && out[5] == -1);
	/* In place, the send side is staged apart. */
	ok(roce_alltoallv(in, counts, sdispls, in, counts, displs, ROCE_I32, comm));
	cr_assert(in[0] == 1 && in[1] == 2 && in[2] == 2 && in[4] == 4 && in[5] == 6);
}

Test(ops, arrays_reach_the_daemon)
{
	struct roce_comm *comm = test_comm(client, 1, 3);
	size_t counts[3] = {4, 0, 2}, displs[3] = {10, 777, 20};
	struct roce_request *request;
	const uint64_t *args;
	struct shm_desc d;
	int *mem;

	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	ok(roce_iallgatherv(NULL, 0, mem, counts, displs, ROCE_I32, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	args = (uint64_t *)fake_ptr(&fake, d.args_buf, d.args_off);
	cr_assert_eq(d.recv_off, 40);
	cr_assert(args[0] == 4 && args[1] == 0 && args[2] == 2);
	cr_assert(args[3] == 0 && args[4] == 0 && args[5] == 10);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
	ok(roce_ireduce_scatterv(mem, mem + 100, counts, ROCE_I32, ROCE_SUM, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	args = (uint64_t *)fake_ptr(&fake, d.args_buf, d.args_off);
	cr_assert(args[0] == 4 && args[1] == 0 && args[2] == 2 && d.count == 0);
	cr_assert(args[3] == 0 && args[5] == 4);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
}

Test(ops, v_variants_share_no_slab)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	size_t counts[1] = {3}, displs[1] = {0};
	struct roce_request *requests[2];
	int in[3] = {1, 2, 3}, out[3], got[3];
	struct shm_desc d[2];

	ok(roce_irecv(got, 3, ROCE_I32, 0, comm, &requests[0]));
	ok(roce_iallgatherv(in, 3, out, counts, displs, ROCE_I32, comm, &requests[1]));
	cr_assert_eq(fake_pop(&fake, d, 2), 2);
	cr_assert(d[1].send_buf != d[0].recv_buf && d[1].recv_buf != d[0].recv_buf);
	cr_assert(d[1].send_buf != d[1].recv_buf && d[1].args_buf != d[1].recv_buf);
	fake_complete(&fake, &d[0], ROCE_OK);
	fake_complete(&fake, &d[1], ROCE_OK);
	ok(roce_wait_all(requests, 2, -1));
}

Test(ops, alltoall_in_place_stages_the_send_side)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct roce_request *request;
	struct shm_desc d;
	char *mem;

	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	memset(mem, 9, 200);
	ok(roce_ialltoall(mem, mem, 100, ROCE_U8, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert_neq(d.send_buf, d.recv_buf);
	cr_assert_eq(fake_ptr(&fake, d.send_buf, d.send_off)[199], 9);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
}

/* Half the memory is half the cache: what could be in place is, where it is ours. */
Test(ops, staged_sides_share_a_block)
{
	struct roce_comm *comm = test_comm(client, 1, 4);
	unsigned char *in = calloc(4, 4096), *out = calloc(16, 4096);
	struct roce_request *request[4];
	struct shm_desc d[4];

	ok(roce_iallreduce(in, out, 1024, ROCE_F32, ROCE_SUM, comm, &request[0]));
	ok(roce_iallgather(in, out + 4 * 4096, 1024, ROCE_F32, comm, &request[1]));
	ok(roce_ireduce_scatter(in, out + 8 * 4096, 1024, ROCE_F32, ROCE_SUM, comm, &request[2]));
	ok(roce_ialltoall(in, out + 12 * 4096, 1024, ROCE_F32, comm, &request[3]));
	cr_assert_eq(fake_pop(&fake, d, 4), 4);
	cr_assert(d[0].send_buf == d[0].recv_buf && d[0].send_off == d[0].recv_off);
	cr_assert(d[1].send_buf == d[1].recv_buf && d[1].send_off == d[1].recv_off + 4096);
	cr_assert(d[2].send_buf == d[2].recv_buf && d[2].recv_off == d[2].send_off + 4096);
	cr_assert(d[3].send_buf != d[3].recv_buf || d[3].send_off != d[3].recv_off);
	for (int i = 0; i < 4; i++) {
		fake_complete(&fake, &d[i], ROCE_OK);
		ok(roce_wait(&request[i], -1));
	}
	free(in);
	free(out);
}

Test(ops, premul_scalars)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct roce_request *request;
	struct shm_desc d;
	double scalar = 0.25;
	int half, three;
	void *mem;

	ok(roce_mem_alloc(client, 4096, 0, &mem));
	ok(roce_op_create_premul(comm, 0.25, &half));
	ok(roce_op_create_premul(comm, -3, &three));
	ok(roce_iallreduce(mem, mem, 4, ROCE_F16, half, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert_eq(d.op, REDOP_PREMUL_SUM);
	cr_assert(memcmp(&d.scalar, &scalar, 8) == 0);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
	ok(roce_iallreduce(mem, mem, 4, ROCE_I8, three, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert_eq((int64_t)d.scalar, -3);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
}

Test(ops, p2p_numbers_count_by_peer)
{
	struct roce_comm *comm = test_comm(client, 0, 3);
	struct roce_request *requests[5];
	struct shm_desc d[5];
	char *mem;

	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	ok(roce_isend(mem, 1, ROCE_U8, 1, comm, &requests[0]));
	ok(roce_isend(mem, 1, ROCE_U8, 2, comm, &requests[1]));
	ok(roce_isend(mem, 1, ROCE_U8, 1, comm, &requests[2]));
	ok(roce_irecv(mem, 1, ROCE_U8, 1, comm, &requests[3]));
	ok(roce_ibarrier(comm, &requests[4]));
	cr_assert_eq(fake_pop(&fake, d, 5), 5);
	cr_assert(d[0].seq == 0 && d[1].seq == 0 && d[2].seq == 1 && d[3].seq == 0 &&
		  d[4].seq == 0);
	cr_assert(d[1].root == 2 && d[3].kind == COLL_RECV);
	for (int i = 0; i < 5; i++) {
		fake_complete(&fake, &d[i], ROCE_OK);
	}
	ok(roce_wait_all(requests, 5, -1));
}

Test(ops, group_posts_one_batch)
{
	struct roce_comm *comm = test_comm(client, 0, 2), *other = test_comm(client, 0, 2);
	struct roce_request *requests[3];
	struct shm_desc d[4];
	char *mem;

	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	ok(roce_group_start(client));
	ok(roce_isend(mem, 1, ROCE_U8, 1, comm, &requests[0]));
	ok(roce_group_start(client));
	ok(roce_iallreduce(mem, mem, 1, ROCE_U8, ROCE_SUM, other, &requests[1]));
	ok(roce_group_end(client));
	ok(roce_irecv(mem + 8, 1, ROCE_U8, 1, comm, &requests[2]));
	refused(roce_wait(&requests[0], -1), ROCE_ERR_INVALID, "roce_group_end");
	refused(roce_comm_destroy(comm), ROCE_ERR_INVALID, "group");
	poll(NULL, 0, 20);
	pthread_mutex_lock(&fake.lock);
	cr_assert_eq(ring_pop(&fake.sessions[0].ring, d, 4), 0);
	fake.bells = 0;
	pthread_mutex_unlock(&fake.lock);
	ok(roce_group_end(client));
	cr_assert_eq(fake_pop(&fake, d, 3), 3);
	poll(NULL, 0, 20);
	cr_assert_eq(fake_get(&fake, bells), 1);
	cr_assert(d[0].flags == SHM_DESC_BATCH && d[1].flags == SHM_DESC_BATCH && d[2].flags == 0);
	cr_assert(d[0].kind == COLL_SEND && d[1].kind == COLL_ALLREDUCE && d[2].kind == COLL_RECV);
	for (int i = 0; i < 3; i++) {
		fake_complete(&fake, &d[i], ROCE_OK);
	}
	ok(roce_wait_all(requests, 3, -1));
	refused(roce_group_end(client), ROCE_ERR_INVALID, "no group");
}

Test(ops, failed_group_posts_nothing)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct roce_request *request, *none = NULL;
	struct shm_desc d;
	char x[10] = {0};

	ok(roce_group_start(client));
	ok(roce_isend(x, 1, ROCE_U8, 1, comm, &request));
	ok(roce_send(x, 1, ROCE_U8, 1, comm));
	refused(roce_isend(x, 1, ROCE_U8, 9, comm, &none), ROCE_ERR_INVALID, "destination 9");
	refused(roce_group_end(client), ROCE_ERR_INVALID, "not posted: send: destination 9");
	cr_assert_eq(ring_pop(&fake.sessions[0].ring, &d, 1), 0);
	cr_assert_eq(roce_wait(&request, -1), ROCE_ERR_INVALID);
	cr_assert_null(request);
	/* The numbers were not used up. */
	ok(roce_isend(x, 1, ROCE_U8, 1, comm, &request));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	cr_assert_eq(d.seq, 0);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
}

Test(ops, group_limits)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	char x = 0;

	ok(roce_group_start(client));
	for (int i = 0; i < LIMIT_P2P_WINDOW; i++) {
		ok(roce_send(&x, 1, ROCE_U8, 1, comm));
	}
	refused(roce_send(&x, 1, ROCE_U8, 1, comm), ROCE_ERR_QUOTA, "512 sends and receives");
	refused(roce_group_end(client), ROCE_ERR_QUOTA, "split it");
	/* An open group does not outlive its client. */
	ok(roce_group_start(client));
	ok(roce_send(&x, 1, ROCE_U8, 1, comm));
}

Test(ops, blocking_calls_in_groups_end_with_it)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	int in[3] = {1, 2, 3}, out[3] = {0}, got[2] = {0};

	run_all();
	ok(roce_group_start(client));
	ok(roce_allreduce(in, out, 3, ROCE_I32, ROCE_SUM, comm));
	ok(roce_sendrecv(in, 2, 0, got, 2, 0, ROCE_I32, comm));
	cr_assert_eq(out[0], 0);
	ok(roce_group_end(client));
	cr_assert(out[0] == 1 && out[2] == 3);
	cr_assert(got[0] == 0x5a5a5a5a);
	ok(roce_sendrecv(in, 2, 0, got, 2, 0, ROCE_I32, comm));
}

Test(ops, never_waiting_runs_out_of_nothing)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	size_t n = 3 * LIMIT_TICKETS;
	struct roce_request **requests = calloc(n, sizeof(*requests));
	int in = 5, *out = calloc(n, sizeof(int));

	run_all();
	for (size_t i = 0; i < n; i++) {
		/* Shared by all as input; each has its own output, staged. */
		ok(roce_iallreduce(&in, &out[i], 1, ROCE_I32, ROCE_SUM, comm, &requests[i]));
	}
	ok(roce_wait_all(requests, n, -1));
	for (size_t i = 0; i < n; i++) {
		cr_assert_eq(out[i], 5);
	}
	free(requests);
	free(out);
}

static void *drain_later(void *arg)
{
	poll(NULL, 0, 100);
	run_all();
	return NULL;
}

Test(ops, full_windows_wait)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct roce_request *requests[LIMIT_COMM_WINDOW + 1];
	pthread_t thread;
	char *mem;

	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	for (int i = 0; i < LIMIT_COMM_WINDOW; i++) {
		ok(roce_ibarrier(comm, &requests[i]));
	}
	pthread_create(&thread, NULL, drain_later, NULL);
	ok(roce_ibarrier(comm, &requests[LIMIT_COMM_WINDOW]));
	cr_assert(fake_get(&fake, run), "went beyond the window");
	ok(roce_wait_all(requests, LIMIT_COMM_WINDOW + 1, -1));
	pthread_join(thread, NULL);
	fake_set(&fake, run, false);
	for (int i = 0; i < LIMIT_P2P_WINDOW; i++) {
		ok(roce_irecv(mem, 1, ROCE_U8, 0, comm, &requests[i]));
	}
	pthread_create(&thread, NULL, drain_later, NULL);
	ok(roce_isend(mem, 1, ROCE_U8, 0, comm, &requests[LIMIT_P2P_WINDOW]));
	cr_assert(fake_get(&fake, run), "went beyond the window");
	ok(roce_wait_all(requests, LIMIT_P2P_WINDOW + 1, -1));
	pthread_join(thread, NULL);
}

Test(ops, tickets_are_reused_with_new_generations)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct roce_request *request;
	struct shm_desc d;

	for (uint32_t i = 1; i <= 100; i++) {
		ok(roce_ibarrier(comm, &request));
		cr_assert_eq(fake_pop(&fake, &d, 1), 1);
		cr_assert_eq(d.ticket, 0);
		cr_assert_eq(d.generation, i);
		cr_assert_eq(roce_test(&request), ROCE_IN_PROGRESS);
		fake_complete(&fake, &d, ROCE_OK);
		ok(roce_test(&request));
	}
}

static void *complete_later(void *arg)
{
	poll(NULL, 0, 60);
	fake_complete(&fake, arg, ROCE_OK);
	return NULL;
}

Test(ops, sleeping_waiters_are_woken)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct roce_request *request, *pair[2];
	pthread_t thread;
	struct shm_desc d[2];
	size_t index;

	ok(roce_ibarrier(comm, &request));
	cr_assert_eq(fake_pop(&fake, d, 1), 1);
	pthread_create(&thread, NULL, complete_later, &d[0]);
	ok(roce_wait(&request, 10000));
	pthread_join(thread, NULL);
	ok(roce_ibarrier(comm, &pair[0]));
	ok(roce_ibarrier(comm, &pair[1]));
	cr_assert_eq(fake_pop(&fake, d, 2), 2);
	pthread_create(&thread, NULL, complete_later, &d[1]);
	cr_assert_eq(roce_wait_any(pair, 2, 5, &index), ROCE_IN_PROGRESS);
	ok(roce_wait_any(pair, 2, -1, &index));
	cr_assert_eq(index, 1);
	pthread_join(thread, NULL);
	fake_complete(&fake, &d[0], ROCE_OK);
	ok(roce_wait_any(pair, 2, -1, &index));
	cr_assert_eq(index, 0);
	ok(roce_wait_any(pair, 2, -1, &index));
	cr_assert_eq(index, 2);
	cr_assert_eq(atomic_load(&client->shm->waiters), 0);
}

Test(ops, event_loop)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct roce_request *request;
	struct pollfd pfd = {.events = POLLIN};
	struct shm_desc d;

	ok(roce_event_fd(client, &pfd.fd));
	ok(roce_ibarrier(comm, &request));
	cr_assert_eq(poll(&pfd, 1, 20), 0);
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	fake_complete(&fake, &d, ROCE_OK);
	cr_assert_eq(poll(&pfd, 1, 5000), 1);
	ok(roce_event_clear(client));
	ok(roce_test(&request));
	cr_assert_eq(poll(&pfd, 1, 20), 0);
	ok(roce_event_clear(client));
	/* A lost daemon wakes the loop too. */
	ok(roce_ibarrier(comm, &request));
	fake_hang_up(&fake);
	cr_assert_eq(poll(&pfd, 1, 5000), 1);
	ok(roce_event_clear(client));
	refused(roce_test(&request), ROCE_ERR_NO_DAEMON, "closed");
}

Test(ops, failures_are_sticky_and_have_words)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct roce_request *requests[2];
	struct shm_desc d[2];
	char text[100], x[4] = {1, 1, 1, 1};

	/* A failure of one operation only. */
	ok(roce_iallreduce(x, x, 4, ROCE_U8, ROCE_SUM, comm, &requests[0]));
	cr_assert_eq(fake_pop(&fake, d, 1), 1);
	memset(fake_ptr(&fake, d[0].recv_buf, d[0].recv_off), 3, 4);
	fake_complete(&fake, d, ROCE_ERR_BAD_MEMORY);
	refused(roce_wait(&requests[0], -1), ROCE_ERR_BAD_MEMORY, "allreduce of communicator");
	cr_assert_eq(x[0], 1);
	/* One that ends the communicator. */
	ok(roce_ibarrier(comm, &requests[0]));
	ok(roce_ibarrier(comm, &requests[1]));
	cr_assert_eq(fake_pop(&fake, d, 2), 2);
	fake_set(&fake, sticky, ROCE_ERR_PEER_DIED);
	fake_complete(&fake, &d[0], ROCE_ERR_PEER_DIED);
	fake_complete(&fake, &d[1], ROCE_ERR_PEER_DIED);
	refused(roce_wait_all(requests, 2, -1), ROCE_ERR_PEER_DIED, "rank 1 (beta) is gone");
	refused(roce_barrier(comm), ROCE_ERR_PEER_DIED, "rank 1 (beta) is gone");
	cr_assert_eq(roce_comm_error(comm, text, sizeof(text)), ROCE_ERR_PEER_DIED);
	cr_assert_str_eq(text, "rank 1 (beta) is gone");
	ok(roce_comm_destroy(comm));
	comm = test_comm(client, 0, 2);
	fake_set(&fake, sticky, 0);
	ok(roce_comm_abort(comm));
	refused(roce_barrier(comm), ROCE_ERR_ABORTED, "aborted");
}

Test(ops, destroy_leaves_requests_to_be_waited_for)
{
	struct roce_comm *comm = test_comm(client, 0, 2);
	struct roce_request *requests[2];
	struct shm_desc d[2];

	ok(roce_ibarrier(comm, &requests[0]));
	ok(roce_ibarrier(comm, &requests[1]));
	cr_assert_eq(fake_pop(&fake, d, 2), 2);
	fake_complete(&fake, &d[0], ROCE_ERR_ABORTED);
	ok(roce_comm_destroy(comm));
	fake_complete(&fake, &d[1], ROCE_ERR_ABORTED);
	refused(roce_wait(&requests[0], -1), ROCE_ERR_ABORTED, "destroyed");
	refused(roce_wait(&requests[1], -1), ROCE_ERR_ABORTED, "destroyed");
}

Test(ops, hot_path_makes_no_noise)
{
	struct roce_comm *comm = test_comm(client, 0, 1);
	struct shm_header *h = fake.sessions[0].page;
	struct roce_request *request;
	struct shm_desc d;
	char *mem;

	/* While the daemon is awake the bell is not rung. */
	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	atomic_store(&h->sleeping, 0);
	for (int i = 0; i < 100; i++) {
		ok(roce_iallreduce(mem, mem, 10, ROCE_F32, ROCE_SUM, comm, &request));
		cr_assert_eq(fake_pop(&fake, &d, 1), 1);
		fake_complete(&fake, &d, ROCE_OK);
		ok(roce_wait(&request, -1));
	}
	poll(NULL, 0, 20);
	cr_assert_eq(fake_get(&fake, bells), 0);
}

struct poster {
	struct roce_comm *comm;
	int seed;
};

static void *post_many(void *arg)
{
	struct poster *p = arg;
	unsigned char in[3000], out[3000];

	for (int i = 0; i < 500; i++) {
		size_t n = (size_t)(i * 37 + p->seed) % 2900 + 1;

		memset(in, i + p->seed, n);
		memset(out, 0, sizeof(out));
		if (roce_allreduce(in, out, n, ROCE_U8, ROCE_SUM, p->comm) != ROCE_OK ||
		    memcmp(in, out, n) != 0 || out[n] != 0) {
			return (void *)1;
		}
	}
	return NULL;
}

Test(ops, threads_share_a_client)
{
	struct poster posters[4];
	pthread_t threads[4];
	void *result;

	run_all();
	for (int i = 0; i < 4; i++) {
		posters[i].comm = test_comm(client, 0, 1);
		posters[i].seed = i * 50;
		pthread_create(&threads[i], NULL, post_many, &posters[i]);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		cr_assert_null(result);
	}
}
