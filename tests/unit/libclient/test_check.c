/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Refusals of arguments: the status and the words
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

static struct fake fake;
static struct roce_client *client;
static struct roce_comm *comm; /* rank 1 of 4 */
static struct roce_request *request;
static float a[64], b[64];

static void setup(void)
{
	fake_start(&fake);
	client = test_connect(&fake);
	comm = test_comm(client, 1, 4);
	request = NULL;
}

static void teardown(void)
{
	struct shm_desc desc;

	/* Nothing of what was refused may have been posted. */
	cr_assert_eq(ring_pop(&fake.sessions[0].ring, &desc, 1), 0);
	cr_assert_null(request);
	roce_disconnect(client);
	fake_stop(&fake);
}

TestSuite(check, .init = setup, .fini = teardown, .timeout = 30);

Test(check, types_and_ops)
{
	refused(roce_iallreduce(a, b, 4, 14, ROCE_SUM, comm, &request), ROCE_ERR_INVALID,
		"dtype 14");
	refused(roce_iallreduce(a, b, 4, -1, ROCE_SUM, comm, &request), ROCE_ERR_INVALID,
		"dtype -1");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, 99, comm, &request), ROCE_ERR_INVALID, "op 99");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, 5, comm, &request), ROCE_ERR_INVALID, "op 5");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, -3, comm, &request), ROCE_ERR_INVALID, "op -3");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, ROCE_BXOR, comm, &request), ROCE_ERR_UNSUPPORTED,
		"bxor of f32 does not exist: bitwise");
	refused(roce_iallreduce(a, b, 4, ROCE_F8E4M3, ROCE_SUM, comm, &request),
		ROCE_ERR_UNSUPPORTED, "moved, never reduced");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, ROCE_OP_USER + 3, comm, &request),
		ROCE_ERR_INVALID, "0x10003");
}

Test(check, pointers_and_counts)
{
	refused(roce_iallreduce(NULL, b, 4, ROCE_F32, ROCE_SUM, comm, &request), ROCE_ERR_INVALID,
		"send is NULL with 16 bytes");
	refused(roce_iallreduce(a, NULL, 4, ROCE_F32, ROCE_SUM, comm, &request), ROCE_ERR_INVALID,
		"recv is NULL");
	refused(roce_iallreduce(a, b, SIZE_MAX / 2, ROCE_F32, ROCE_SUM, comm, &request),
		ROCE_ERR_INVALID, "exceed the address space");
	refused(roce_iallgather(a, b, (size_t)1 << 60, ROCE_F32, comm, &request), ROCE_ERR_INVALID,
		"for 4 ranks exceed");
	refused(roce_iallreduce(a, b, (size_t)1 << 60, ROCE_F32, ROCE_SUM, comm, &request),
		ROCE_ERR_INVALID, "overlap");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, ROCE_SUM, NULL, &request), ROCE_ERR_INVALID,
		"communicator is NULL");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, ROCE_SUM, comm, NULL), ROCE_ERR_INVALID,
		"ret_request is NULL");
	refused(roce_wait(NULL, 0), ROCE_ERR_INVALID, "NULL");
	ok(roce_wait(&request, 0));
}

Test(check, ranks)
{
	refused(roce_ibroadcast(a, 4, ROCE_F32, 4, comm, &request), ROCE_ERR_INVALID,
		"root 4 is not a rank of this communicator (0 .. 3)");
	refused(roce_ibroadcast(a, 4, ROCE_F32, -1, comm, &request), ROCE_ERR_INVALID, "root -1");
	refused(roce_isend(a, 4, ROCE_F32, 4, comm, &request), ROCE_ERR_INVALID, "destination 4");
	refused(roce_irecv(a, 4, ROCE_F32, -7, comm, &request), ROCE_ERR_INVALID, "source -7");
}

Test(check, overlaps)
{
	refused(roce_iallreduce(a, a + 1, 4, ROCE_F32, ROCE_SUM, comm, &request), ROCE_ERR_INVALID,
		"overlap");
	refused(roce_iallgather(a, a, 4, ROCE_F32, comm, &request), ROCE_ERR_INVALID,
		"send == recv + 16 bytes");
	refused(roce_ireduce_scatter(a, a, 4, ROCE_F32, ROCE_SUM, comm, &request), ROCE_ERR_INVALID,
		"recv == send + 16 bytes");
	refused(roce_ialltoall(a, a + 2, 4, ROCE_F32, comm, &request), ROCE_ERR_INVALID, "overlap");
	refused(roce_sendrecv(a, 4, 0, a + 3, 4, 0, ROCE_F32, comm), ROCE_ERR_INVALID, "overlap");
}

Test(check, arrays)
{
	size_t counts[4] = {1, 2, 3, 4}, displs[4] = {0, 1, 3, 6};
	size_t huge[4] = {1, SIZE_MAX / 2, 1, 1};

	refused(roce_iallgatherv(a, 2, b, NULL, displs, ROCE_F32, comm, &request), ROCE_ERR_INVALID,
		"counts is NULL");
	refused(roce_iallgatherv(a, 2, b, counts, NULL, ROCE_F32, comm, &request), ROCE_ERR_INVALID,
		"displs is NULL");
	refused(roce_iallgatherv(a, 3, b, counts, displs, ROCE_F32, comm, &request),
		ROCE_ERR_INVALID, "own count is 3, but counts[1] is 2");
	refused(roce_iallgatherv(a, SIZE_MAX / 2, b, huge, displs, ROCE_F32, comm, &request),
		ROCE_ERR_INVALID, "address space");
	refused(roce_iallgatherv(a, 2, b, counts, huge, ROCE_F32, comm, &request), ROCE_ERR_INVALID,
		"recv block of rank 1");
	refused(roce_ireduce_scatterv(a, b, NULL, ROCE_F32, ROCE_SUM, comm, &request),
		ROCE_ERR_INVALID, "counts is NULL");
	refused(roce_ialltoallv(a, counts, displs, b, counts, NULL, ROCE_F32, comm, &request),
		ROCE_ERR_INVALID, "recv_displs is NULL");
	refused(roce_iscatterv(a, NULL, NULL, b, 1, ROCE_F32, 1, comm, &request), ROCE_ERR_INVALID,
		"counts is NULL");
	displs[3] = 0;
	refused(roce_iallgatherv(a, 2, b, counts, displs, ROCE_F32, comm, &request),
		ROCE_ERR_INVALID, "blocks of ranks");
	displs[3] = 6;
	refused(roce_iallgatherv(b + 4, 2, b, counts, displs, ROCE_F32, comm, &request),
		ROCE_ERR_INVALID, "overlap");
}

Test(check, communicators)
{
	struct roce_comm_options o = {.size = sizeof(o), .transfer_timeout_ms = -1};
	struct roce_unique_id id = {{0}};
	struct roce_comm *c;

	refused(roce_comm_init(client, &id, 0, 2, NULL, &c), ROCE_ERR_INVALID, "all zero");
	id.bytes[0] = 1;
	refused(roce_comm_init(client, &id, 2, 2, NULL, &c), ROCE_ERR_INVALID, "rank 2");
	refused(roce_comm_init(client, &id, 0, 0, NULL, &c), ROCE_ERR_INVALID, "size 0");
	refused(roce_comm_init(client, &id, 0, 140000, NULL, &c), ROCE_ERR_INVALID, "131072");
	refused(roce_comm_init(client, &id, 0, 2, &o, &c), ROCE_ERR_INVALID, "transfer -1");
	refused(roce_comm_init(NULL, &id, 0, 2, NULL, &c), ROCE_ERR_INVALID, "client is NULL");
	fake_set(&fake, fail[MSG_COMM_INIT], ROCE_ERR_EXISTS);
	refused(roce_comm_init(client, &id, 0, 2, NULL, &c), ROCE_ERR_EXISTS, "refuses");
	ok(roce_comm_destroy(NULL));
}

Test(check, premul)
{
	int ops[64], op;
	int i32[4] = {0}, o32[4];

	for (int i = 0; i < 64; i++) {
		ok(roce_op_create_premul(comm, i + 0.5, &ops[i]));
		cr_assert_geq(ops[i], ROCE_OP_USER);
	}
	refused(roce_op_create_premul(comm, 2, &op), ROCE_ERR_QUOTA, "all 64");
	refused(roce_iallreduce(i32, o32, 4, ROCE_I32, ops[1], comm, &request), ROCE_ERR_INVALID,
		"scalar 1.5");
	refused(roce_iallreduce(a, b, 4, ROCE_F8E5M2, ops[1], comm, &request), ROCE_ERR_UNSUPPORTED,
		"premul-sum of f8e5m2");
	ok(roce_op_free(comm, ops[1]));
	refused(roce_op_free(comm, ops[1]), ROCE_ERR_NOT_FOUND, "0x10001");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, ops[1], comm, &request), ROCE_ERR_INVALID,
		"freed");
}

Test(check, memory)
{
	struct roce_buffer *buffer, *other;
	char *mem;

	refused(roce_mem_alloc(client, 0, 0, (void **)&mem), ROCE_ERR_INVALID, "size is 0");
	refused(roce_mem_alloc(client, 1, 8, (void **)&mem), ROCE_ERR_INVALID, "flags 0x8");
	refused(roce_mem_alloc(client, SIZE_MAX, 0, (void **)&mem), ROCE_ERR_INVALID, "size");
	ok(roce_mem_alloc(client, 5000, ROCE_MEM_HUGE, (void **)&mem));
	ok(roce_mem_lookup(client, mem + 10, 4990, &buffer));
	cr_assert_eq(roce_buffer_ptr(buffer), mem);
	cr_assert_eq(roce_buffer_size(buffer), 5000);
	cr_assert_eq(roce_buffer_is_shared(buffer), 1);
	refused(roce_mem_lookup(client, mem + 10, 4991, &other), ROCE_ERR_NOT_FOUND, "partly");
	refused(roce_mem_lookup(client, a, 1, &other), ROCE_ERR_NOT_FOUND, "neither");
	refused(roce_mem_register(client, mem, 10, &other), ROCE_ERR_EXISTS, "roce_mem_alloc");
	refused(roce_mem_register(client, NULL, 10, &other), ROCE_ERR_INVALID, "NULL");
	refused(roce_mem_deregister(buffer), ROCE_ERR_INVALID, "roce_mem_free");
	refused(roce_mem_free(client, mem + 1), ROCE_ERR_NOT_FOUND, "not the start");
	ok(roce_mem_register(client, a, sizeof(a), &other));
	refused(roce_mem_register(client, a + 63, 100, &buffer), ROCE_ERR_EXISTS,
		"registered already");
	refused(roce_mem_free(client, a), ROCE_ERR_NOT_FOUND, "not the start");
	refused(roce_iallreduce(mem + 4000, b, 251, ROCE_F32, ROCE_SUM, comm, &request),
		ROCE_ERR_INVALID, "only partly inside");
	ok(roce_mem_deregister(other));
	ok(roce_mem_free(client, mem));
	refused(roce_mem_free(client, mem), ROCE_ERR_NOT_FOUND, "freed twice");
	ok(roce_mem_free(client, NULL));
	fake_set(&fake, fail[MSG_BUFFER_REGISTER], ROCE_ERR_QUOTA);
	refused(roce_mem_alloc(client, 4096, 0, (void **)&mem), ROCE_ERR_QUOTA, "4096 bytes");
	refused(roce_iallreduce(a, b, 4, ROCE_F32, ROCE_SUM, comm, &request), ROCE_ERR_QUOTA,
		"not from roce_mem_alloc()");
	cr_assert_eq(fake_get(&fake, n_open), 0);
}
