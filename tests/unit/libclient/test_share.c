/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Memory shared in place: what is copied, what stays, forks, deleters
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/client.h"
#include "libclient/comm.h"
#include "proto/base.h"

#define PAGE ((size_t)4096)
#define SIZE (64 * PAGE)

static struct fake fake;
static struct roce_client *client;
static struct roce_comm *comm;
static uint8_t *area;

static void setup(void)
{
	fake_start(&fake);
	fake_set(&fake, run, true);
	client = test_connect(&fake);
	comm = test_comm(client, 0, 1);
	area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < SIZE; i++) {
		area[i] = (uint8_t)(i * 7 + i / PAGE);
	}
}

static void teardown(void)
{
	if (client) {
		roce_disconnect(client);
	}
	munmap(area, SIZE);
	fake_stop(&fake);
}

TestSuite(share, .init = setup, .fini = teardown, .timeout = 60);

static void same(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t at = (size_t)(p - area) + i;

		cr_assert_eq(p[i], (uint8_t)(at * 7 + at / PAGE), "byte %zu", at);
	}
}

static uint64_t staged(void)
{
	return atomic_load(&client->shm->staged);
}

Test(share, only_bytes_beside_whole_pages_are_copied)
{
	static const size_t begins[] = {0, 64, 100, PAGE - 1, PAGE}, rests[] = {0, 1, 40, PAGE - 1};
	static uint8_t out[SIZE];

	for (size_t b = 0; b < ARRAY_SIZE(begins); b++) {
		for (size_t e = 0; e < ARRAY_SIZE(rests); e++) {
			uint8_t *p = area + begins[b];
			size_t n = SIZE - begins[b] - rests[e];
			size_t head = (PAGE - begins[b] % PAGE) % PAGE;
			size_t tail = (begins[b] + n) % PAGE;
			struct roce_buffer *buffer;
			uint64_t before;

			ok(roce_mem_share(client, p, n, NULL, NULL, &buffer));
			cr_assert_eq(roce_buffer_is_shared(buffer), 1);
			cr_assert_eq(roce_buffer_ptr(buffer), p);
			same(area, SIZE);
			before = staged();
			ok(roce_allreduce(p, p, n, ROCE_U8, ROCE_SUM, comm));
			cr_assert_eq(staged() - before, 2 * (head + tail));
			same(area, SIZE);
			/* Out of place: the plain side is copied whole. */
			before = staged();
			memset(out, 0, sizeof(out));
			ok(roce_allreduce(p, out, n, ROCE_U8, ROCE_SUM, comm));
			cr_assert_eq(staged() - before, head + tail + n);
			cr_assert(memcmp(out, p, n) == 0);
			/* Parts of it, and what is only partly in it. */
			ok(roce_allreduce(p + 5 * PAGE + 3, out, PAGE, ROCE_U8, ROCE_SUM, comm));
			cr_assert(memcmp(out, p + 5 * PAGE + 3, PAGE) == 0);
			if (begins[b] + n < SIZE) {
				ok(roce_allreduce(p, out, n + 1, ROCE_U8, ROCE_SUM, comm));
				cr_assert(memcmp(out, p, n + 1) == 0);
			}
			roce_mem_unshare(buffer);
			same(area, SIZE);
		}
	}
}

Test(share, results_arrive_at_the_same_place)
{
	uint8_t *from = area, *to = area + 20 * PAGE + 64;
	struct roce_buffer *buffer;
	size_t n = 10 * PAGE;

	ok(roce_mem_share(client, to, n, NULL, NULL, &buffer));
	ok(roce_allreduce(from, to, n, ROCE_U8, ROCE_SUM, comm));
	cr_assert(memcmp(from, to, n) == 0);
	same(area, 20 * PAGE + 64);
	same(to + n, SIZE - n - (size_t)(to - area));
	roce_mem_unshare(buffer);
	cr_assert(memcmp(from, to, n) == 0);
}

Test(share, blocks_of_v_variants)
{
	struct roce_buffer *buffer;
	uint8_t *p = area + 100;
	static uint8_t in[3 * PAGE];
	size_t counts[1] = {3 * PAGE}, displs[1] = {PAGE + 7};

	memset(in, 0x33, sizeof(in));
	ok(roce_mem_share(client, p, 20 * PAGE, NULL, NULL, &buffer));
	ok(roce_allgatherv(in, 3 * PAGE, p, counts, displs, ROCE_U8, comm));
	cr_assert(memcmp(p + PAGE + 7, in, sizeof(in)) == 0);
	same(area, 100 + PAGE + 7);
	same(p + 4 * PAGE + 7, 8 * PAGE);
	roce_mem_unshare(buffer);
}

Test(share, refuses)
{
	FILE *file = tmpfile();
	struct roce_buffer *buffer, *other;
	uint8_t *mapped;

	refused(roce_mem_share(client, NULL, 10, NULL, NULL, &buffer), ROCE_ERR_INVALID, "NULL");
	refused(roce_mem_share(client, area, 0, NULL, NULL, &buffer), ROCE_ERR_INVALID, "0 bytes");
	refused(roce_mem_share(client, area + 1, PAGE, NULL, NULL, &buffer), ROCE_ERR_UNSUPPORTED,
		"no whole page");
	cr_assert_eq(ftruncate(fileno(file), SIZE), 0);
	mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
	refused(roce_mem_share(client, mapped, SIZE, NULL, NULL, &buffer), ROCE_ERR_UNSUPPORTED,
		"not private, anonymous");
	munmap(mapped, SIZE);
	fclose(file);
	cr_assert_eq(mprotect(area + 8 * PAGE, PAGE, PROT_READ), 0);
	refused(roce_mem_share(client, area, SIZE, NULL, NULL, &buffer), ROCE_ERR_UNSUPPORTED,
		"writable");
	cr_assert_eq(fake_get(&fake, n_open), 0);
	ok(roce_mem_share(client, area, 4 * PAGE, NULL, NULL, &buffer));
	refused(roce_mem_share(client, area + PAGE, PAGE, NULL, NULL, &other), ROCE_ERR_EXISTS,
		"overlaps");
	refused(roce_mem_deregister(buffer), ROCE_ERR_INVALID, "roce_mem_unshare");
	refused(roce_mem_free(client, area), ROCE_ERR_NOT_FOUND, "not the start");
	roce_mem_unshare(buffer);
	cr_assert_eq(fake_get(&fake, n_open), 0);
}

Test(share, not_while_an_operation_writes_there)
{
	struct roce_request *request;
	struct roce_buffer *buffer;
	struct shm_desc d;

	fake_set(&fake, run, false);
	ok(roce_iallreduce(area, area, 4 * PAGE, ROCE_U8, ROCE_SUM, comm, &request));
	refused(roce_mem_share(client, area, SIZE, NULL, NULL, &buffer), ROCE_ERR_EXISTS,
		"in flight");
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	fake_complete(&fake, &d, ROCE_OK);
	ok(roce_wait(&request, -1));
	ok(roce_mem_share(client, area, SIZE, NULL, NULL, &buffer));
	roce_mem_unshare(buffer);
}

static void *post_overlapping(void *arg)
{
	struct roce_request **ret_request = arg;

	/* Only partly in what is shared: its result is copied there. */
	ok(roce_iallreduce(area + 4 * PAGE, area + 4 * PAGE, 8 * PAGE, ROCE_U8, ROCE_SUM, comm,
			   ret_request));
	return NULL;
}

Test(share, results_are_not_copied_to_what_is_still_read)
{
	struct roce_request *reads, *writes;
	struct roce_buffer *buffer;
	struct shm_desc d;
	pthread_t thread;
	uint32_t at;

	ok(roce_mem_share(client, area, 8 * PAGE, NULL, NULL, &buffer));
	fake_set(&fake, run, false);
	ok(roce_ibroadcast(area, 8 * PAGE, ROCE_U8, 0, comm, &reads));
	cr_assert_eq(fake_pop(&fake, &d, 1), 1);
	at = client->ring.tail;
	pthread_create(&thread, NULL, post_overlapping, &writes);
	for (int i = 0; i < 10; i++) {
		usleep(10000);
		pthread_mutex_lock(&client->lock);
		cr_assert_eq(client->ring.tail - at, 0, "posted while it is read");
		pthread_mutex_unlock(&client->lock);
	}
	fake_set(&fake, run, true);
	fake_complete(&fake, &d, ROCE_OK);
	pthread_join(thread, NULL);
	ok(roce_wait(&writes, -1));
	ok(roce_wait(&reads, -1));
	same(area, SIZE);
	cr_assert_eq(comm->staged_open, 0);
	roce_mem_unshare(buffer);
}

/* Both sides are private again; whole pages first, since these are what was shared. */
Test(share, a_child_writes_for_itself)
{
	struct roce_buffer *buffer;
	int status;
	pid_t pid;

	ok(roce_mem_share(client, area + 64, SIZE - 64, NULL, NULL, &buffer));
	pid = fork();
	if (pid == 0) {
		bool good = area[3 * PAGE] == (uint8_t)(3 * PAGE * 7 + 3);

		memset(area, 0xee, SIZE);
		roce_disconnect(client);
		_exit(good && area[PAGE] == 0xee ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	cr_assert_eq(status, 0);
	same(area, SIZE);
	ok(roce_allreduce(area + 64, area + 64, SIZE - 64, ROCE_U8, ROCE_SUM, comm));
	same(area, SIZE);
	roce_mem_unshare(buffer);
}

static void count_free(void *arg)
{
	(*(int *)arg)++;
}

Test(share, takes_the_place_of_a_deleter)
{
	struct roce_buffer *buffer, *second;
	int freed = 0, status;
	pid_t pid;

	ok(roce_mem_share(client, area, 8 * PAGE, count_free, &freed, &buffer));
	ok(roce_mem_share(client, area + 8 * PAGE, 8 * PAGE, roce_mem_unshare, buffer, &second));
	pid = fork();
	if (pid == 0) {
		roce_mem_unshare(second);
		_exit(freed == 1 ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	cr_assert_eq(status, 0);
	cr_assert_eq(fake_get(&fake, n_open), 2);
	roce_mem_unshare(second);
	cr_assert_eq(freed, 1);
	cr_assert_eq(fake_get(&fake, n_open), 0);
	same(area + 16 * PAGE, SIZE - 16 * PAGE);
	roce_mem_unshare(NULL);
}

Test(share, outlives_the_client)
{
	struct roce_buffer *buffer;
	int freed = 0;

	ok(roce_mem_share(client, area, SIZE, count_free, &freed, &buffer));
	roce_disconnect(client);
	client = NULL;
	same(area, SIZE);
	cr_assert_eq(freed, 0);
	roce_mem_unshare(buffer);
	cr_assert_eq(freed, 1);
	same(area, SIZE);
}
