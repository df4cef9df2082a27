/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Connecting, refusals in words, loss of the daemon at every byte, forked children
 *
 * Thread: the test's      Owns: nothing      Locks: none
 */
#include "test_client.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fake fake;

TestSuite(connect, .timeout = 60);

Test(connect, works_and_leaks_nothing)
{
	struct roce_client *client;
	struct roce_comm *comm, *other;
	int before, during;

	fake_start(&fake);
	before = count_fds();
	for (int i = 0; i < 20; i++) {
		client = test_connect(&fake);
		comm = test_comm(client, 3, 5);
		cr_assert_eq(roce_comm_rank(comm), 3);
		cr_assert_eq(roce_comm_size(comm), 5);
		cr_assert_eq(roce_comm_hosts(comm), 2);
		cr_assert_eq(roce_comm_host_of(comm, 3), 1);
		cr_assert_eq(roce_comm_host_of(comm, 5), -1);
		cr_assert_str_eq(roce_comm_host_name(comm, 1), "beta");
		cr_assert_null(roce_comm_host_name(comm, 2));
		cr_assert_str_eq(roce_comm_path(comm), "fake: nothing moves");
		other = comm;
		ok(roce_comm_split(comm, -1, 0, NULL, &other));
		cr_assert_null(other);
		ok(roce_comm_dup(comm, &other));
		ok(roce_comm_destroy(other));
		ok(roce_comm_error(comm, NULL, 0));
		roce_disconnect(client);
	}
	/* The daemon's side closes when it reads the hang-up. */
	for (int i = 0; i < 100 && (during = count_fds()) != before; i++) {
		poll(NULL, 0, 10);
	}
	cr_assert_eq(during, before, "%d descriptors before, %d after", before, during);
	fake_stop(&fake);
}

Test(connect, options)
{
	struct roce_client_options o = {.size = sizeof(o), .name = "a-test"};
	struct roce_client *client;
	struct {
		struct roce_client_options o;
		long future;
	} newer = {.o = {.size = sizeof(newer)}};
	char name[100];

	fake_start(&fake);
	ok(roce_connect(fake.path, &o, &client));
	roce_disconnect(client);
	ok(roce_connect(fake.path, &newer.o, &client));
	roce_disconnect(client);
	o.size = offsetof(struct roce_client_options, autostart);
	ok(roce_connect(fake.path, &o, &client));
	roce_disconnect(client);
	newer.future = 1;
	refused(roce_connect(fake.path, &newer.o, &client), ROCE_ERR_INVALID, "upgrade");
	o.size = 0;
	refused(roce_connect(fake.path, &o, &client), ROCE_ERR_INVALID, "size is 0");
	o.size = sizeof(o);
	memset(name, 'x', sizeof(name));
	name[99] = '\0';
	o.name = name;
	refused(roce_connect(fake.path, &o, &client), ROCE_ERR_INVALID, "99 bytes, at most 63");
	o.name = NULL;
	o.timeout_ms = -5;
	refused(roce_connect(fake.path, &o, &client), ROCE_ERR_INVALID, "timeout_ms is -5");
	refused(roce_connect(fake.path, NULL, NULL), ROCE_ERR_INVALID, "NULL");
	roce_disconnect(NULL);
	fake_stop(&fake);
}

Test(connect, says_what_is_wrong_with_the_path)
{
	struct roce_client *client;
	char path[200], longer[300];
	int fd;

	fake_start(&fake);
	snprintf(path, sizeof(path), "%s/none/sock", fake.dir);
	refused(roce_connect(path, NULL, &client), ROCE_ERR_NO_DAEMON, "none does not exist");
	snprintf(path, sizeof(path), "%s/other", fake.dir);
	refused(roce_connect(path, NULL, &client), ROCE_ERR_NO_DAEMON, "no such socket");
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	refused(roce_connect(path, NULL, &client), ROCE_ERR_NO_DAEMON, "is not a socket");
	close(fd);
	unlink(path);
	memset(longer, 'a', sizeof(longer));
	longer[299] = '\0';
	refused(roce_connect(longer, NULL, &client), ROCE_ERR_INVALID, "1 to 107");
	setenv("ROCECOMM_SOCKET", fake.path, 1);
	ok(roce_connect(NULL, NULL, &client));
	roce_disconnect(client);
	/* Nobody listens any more, the socket file is still there. */
	fake_deaf(&fake);
	refused(roce_connect(fake.path, NULL, &client), ROCE_ERR_NO_DAEMON, "left over");
	fake_stop(&fake);
}

Test(connect, says_who_may)
{
	struct roce_client *client;
	int status;
	pid_t pid;

	if (geteuid() != 0) {
		cr_skip_test("needs to change its user");
	}
	fake_start(&fake);
	chmod(fake.dir, 0755);
	chmod(fake.path, 0660);
	pid = fork();
	if (pid == 0) {
		int bad = setgid(65534) | setuid(65534);

		bad |= roce_connect(fake.path, NULL, &client) != ROCE_ERR_PERMISSION;
		bad |= !strstr(roce_last_error(), "mode is 0660, owner root, group root");
		bad |= !strstr(roce_last_error(), "socket_group");
		_exit(bad);
	}
	waitpid(pid, &status, 0);
	cr_assert_eq(status, 0);
	chmod(fake.dir, 0700);
	pid = fork();
	if (pid == 0) {
		int bad = setgid(65534) | setuid(65534);

		bad |= roce_connect(fake.path, NULL, &client) != ROCE_ERR_PERMISSION;
		bad |= !strstr(roce_last_error(), "mode 0700");
		bad |= !strstr(roce_last_error(), fake.dir);
		_exit(bad);
	}
	waitpid(pid, &status, 0);
	cr_assert_eq(status, 0);
	fake_stop(&fake);
}

Test(connect, refuses_in_words)
{
	struct roce_client_options quick = {.size = sizeof(quick), .timeout_ms = 200};
	struct roce_client *client;

	fake_start(&fake);
	fake_set(&fake, version, ((struct hello){.min = 100, .max = 101}));
	refused(roce_connect(fake.path, NULL, &client), ROCE_ERR_VERSION, "100 to 101");
	fake_set(&fake, version,
		 ((struct hello){.min = PROTOCOL_VERSION_MIN, .max = PROTOCOL_VERSION_MAX + 3}));
	ok(roce_connect(fake.path, NULL, &client));
	roce_disconnect(client);
	for (unsigned int n = 0; n <= 4; n++) {
		if (n != 3) {
			fake_set(&fake, welcome_fds, n);
			refused(roce_connect(fake.path, NULL, &client), ROCE_ERR_FD_MISSING,
				"SELinux");
		}
	}
	fake_set(&fake, welcome_fds, 3);
	fake_set(&fake, fail[MSG_CLIENT_HELLO], ROCE_ERR_QUOTA);
	refused(roce_connect(fake.path, NULL, &client), ROCE_ERR_QUOTA, "the fake daemon refuses");
	fake_set(&fake, fail[MSG_CLIENT_HELLO], 0);
	fake_set(&fake, mute[MSG_CLIENT_HELLO], true);
	refused(roce_connect(fake.path, &quick, &client), ROCE_ERR_TIMEOUT, "200 ms");
	fake_stop(&fake);
}

/* One session's worth of requests; returns the first status that is not OK. */
static int conversation(void)
{
	struct roce_client_options quick = {.size = sizeof(quick), .timeout_ms = 5000};
	struct roce_client *client = NULL;
	struct roce_comm *comm;
	struct roce_unique_id id;
	void *mem;
	int r;

	r = roce_connect(fake.path, &quick, &client);
	if (r == 0) {
		r = roce_get_unique_id(client, &id);
	}
	if (r == 0) {
		r = roce_comm_init(client, &id, 0, 2, NULL, &comm);
	}
	if (r == 0) {
		r = roce_mem_alloc(client, 10000, 0, &mem);
	}
	if (r == 0) {
		/* The connection is cut before the answer. */
		r = roce_comm_error(comm, NULL, 0);
	}
	roce_disconnect(client);
	return r;
}

Test(connect, survives_loss_at_every_byte)
{
	size_t in, out;
	int before, r;

	fake_start(&fake);
	ok(conversation());
	poll(NULL, 0, 20);
	in = fake_get(&fake, sessions[0].in);
	out = fake_get(&fake, sessions[0].out);
	cr_assert_gt(in, 100);
	before = count_fds();
	for (size_t i = 1; i < in; i++) {
		fake_set(&fake, cut_in, i);
		r = conversation();
		cr_assert(r == ROCE_OK || r == ROCE_ERR_NO_DAEMON, "byte %zu in: %s", i,
			  roce_last_error());
	}
	fake_set(&fake, cut_in, 0);
	for (size_t i = 1; i <= out; i++) {
		fake_set(&fake, cut_out, i);
		r = conversation();
		/* A reply cut behind its descriptors is no complete one either. */
		cr_assert(r == ROCE_OK || r == ROCE_ERR_NO_DAEMON, "byte %zu out: %s", i,
			  roce_last_error());
	}
	poll(NULL, 0, 20);
	cr_assert_eq(count_fds(), before);
	fake_stop(&fake);
}

Test(connect, goodbye_ends_everything)
{
	struct roce_client *client;
	struct roce_request *request;
	struct roce_comm *comm;
	void *mem;

	fake_start(&fake);
	client = test_connect(&fake);
	comm = test_comm(client, 0, 2);
	ok(roce_mem_alloc(client, 4096, 0, &mem));
	ok(roce_iallreduce(mem, mem, 4, ROCE_F32, ROCE_SUM, comm, &request));
	fake_goodbye(&fake, ROCE_ERR_SHUTDOWN, "maintenance until noon");
	refused(roce_wait(&request, 10000), ROCE_ERR_SHUTDOWN, "maintenance until noon");
	cr_assert_null(request);
	refused(roce_barrier(comm), ROCE_ERR_SHUTDOWN, "noon");
	refused(roce_comm_error(comm, NULL, 0), ROCE_ERR_SHUTDOWN, "noon");
	ok(roce_mem_free(client, mem));
	ok(roce_comm_destroy(comm));
	roce_disconnect(client);
	fake_stop(&fake);
}

Test(connect, stopping_state_ends_waits)
{
	struct roce_client *client;
	struct roce_request *request;
	struct roce_comm *comm;

	fake_start(&fake);
	client = test_connect(&fake);
	comm = test_comm(client, 0, 2);
	ok(roce_ibarrier(comm, &request));
	atomic_store(&((struct shm_header *)fake.sessions[0].page)->daemon_state,
		     SHM_DAEMON_STOPPING);
	refused(roce_wait(&request, -1), ROCE_ERR_SHUTDOWN, "stopping");
	roce_disconnect(client);
	fake_stop(&fake);
}

static void *hang_up_later(void *arg)
{
	poll(NULL, 0, 150);
	fake_hang_up(&fake);
	return NULL;
}

Test(connect, loss_wakes_sleepers)
{
	struct roce_client *client;
	struct roce_request *requests[2];
	struct roce_comm *comm;
	pthread_t thread;
	float data[8] = {0};
	size_t index;

	fake_start(&fake);
	client = test_connect(&fake);
	comm = test_comm(client, 0, 2);
	ok(roce_iallreduce(data, data, 8, ROCE_F32, ROCE_SUM, comm, &requests[0]));
	ok(roce_ibarrier(comm, &requests[1]));
	pthread_create(&thread, NULL, hang_up_later, NULL);
	refused(roce_wait_any(requests, 2, -1, &index), ROCE_ERR_NO_DAEMON, "closed");
	refused(roce_wait_all(requests, 2, -1), ROCE_ERR_NO_DAEMON, "closed");
	cr_assert(!requests[0] && !requests[1]);
	pthread_join(thread, NULL);
	roce_disconnect(client);
	fake_stop(&fake);
}

static void *join_slowly(void *arg)
{
	struct roce_unique_id id = {{1}};
	struct roce_comm *comm;
	struct roce_comm_options o = {.size = sizeof(o), .join_timeout_ms = 300};

	return (void *)(intptr_t)roce_comm_init(arg, &id, 0, 2, &o, &comm);
}

Test(connect, threads_share_the_socket)
{
	struct roce_client_options quick = {.size = sizeof(quick), .timeout_ms = 500};
	struct roce_client *client;
	pthread_t thread;
	void *mem, *result;

	fake_start(&fake);
	ok(roce_connect(fake.path, &quick, &client));
	fake_set(&fake, mute[MSG_COMM_INIT], true);
	pthread_create(&thread, NULL, join_slowly, client);
	/* Answered while the other thread waits for its join. */
	for (int i = 0; i < 50; i++) {
		ok(roce_mem_alloc(client, 4096, 0, &mem));
		ok(roce_mem_free(client, mem));
	}
	pthread_join(thread, &result);
	cr_assert_eq((int)(intptr_t)result, ROCE_ERR_TIMEOUT);
	roce_disconnect(client);
	fake_stop(&fake);
}

/* What a data-loader worker may do with the parent's handles: nothing. */
static int child_checks(struct roce_client *client, struct roce_comm *comm,
			struct roce_request *request, char *mem)
{
	struct roce_unique_id id;
	struct roce_comm *other;
	struct roce_client *own;
	void *p;
	int bad = 0;

	bad |= roce_barrier(comm) != ROCE_ERR_FORKED;
	bad |= !strstr(roce_last_error(), "parent");
	bad |= roce_wait(&request, 0) != ROCE_ERR_FORKED || !request;
	bad |= roce_get_unique_id(client, &id) != ROCE_ERR_FORKED;
	bad |= roce_mem_alloc(client, 1, 0, &p) != ROCE_ERR_FORKED;
	bad |= roce_mem_free(client, mem) != ROCE_ERR_FORKED;
	bad |= roce_comm_split(comm, 0, 0, NULL, &other) != ROCE_ERR_FORKED;
	bad |= roce_comm_destroy(comm) != ROCE_ERR_FORKED;
	bad |= roce_group_start(client) != ROCE_ERR_FORKED;
	bad |= roce_comm_rank(comm) != 0;
	roce_disconnect(client);
	bad |= roce_connect(fake.path, NULL, &own) != ROCE_OK;
	roce_disconnect(own);
	return bad;
}

Test(connect, forked_child_is_kept_out)
{
	struct roce_client *client;
	struct roce_request *request;
	struct roce_comm *comm;
	struct shm_desc desc;
	int plain[4] = {1, 2, 3, 4};
	int status, out[4] = {0};
	char *mem;
	pid_t pid;

	fake_start(&fake);
	client = test_connect(&fake);
	comm = test_comm(client, 0, 2);
	ok(roce_mem_alloc(client, 4096, 0, (void **)&mem));
	mem[0] = 17;
	ok(roce_iallreduce(plain, out, 4, ROCE_I32, ROCE_SUM, comm, &request));
	ok(roce_group_start(client));
	pid = fork();
	if (pid == 0) {
		_exit(child_checks(client, comm, request, mem));
	}
	waitpid(pid, &status, 0);
	cr_assert_eq(status, 0);
	ok(roce_group_end(client));
	/* The parent goes on. */
	cr_assert_eq(fake_pop(&fake, &desc, 1), 1);
	memset(fake_ptr(&fake, desc.recv_buf, desc.recv_off), 5, sizeof(out));
	fake_complete(&fake, &desc, ROCE_OK);
	ok(roce_wait(&request, 5000));
	cr_assert_eq(out[3], 0x05050505);
	cr_assert_eq(mem[0], 17);
	ok(roce_mem_free(client, mem));
	roce_disconnect(client);
	fake_stop(&fake);
}

Test(connect, children_do_not_keep_the_socket)
{
	struct roce_client *client;
	int status;
	pid_t parent, child = 0;
	int fds[2];

	fake_start(&fake);
	cr_assert_eq(pipe(fds), 0);
	parent = fork();
	if (parent == 0) {
		if (roce_connect(fake.path, NULL, &client) != ROCE_OK) {
			_exit(1);
		}
		child = fork();
		if (child == 0) {
			pause();
			_exit(0);
		}
		_exit(write(fds[1], &child, sizeof(child)) != sizeof(child));
	}
	cr_assert_eq(read(fds[0], &child, sizeof(child)), (ssize_t)sizeof(child));
	waitpid(parent, &status, 0);
	cr_assert_eq(status, 0);
	/* The parent is gone, its child is not: the daemon must see the hang-up all the same. */
	for (int i = 0; i < 200 && fake_get(&fake, sessions[0].fd) >= 0; i++) {
		poll(NULL, 0, 5);
	}
	cr_assert_lt(fake_get(&fake, sessions[0].fd), 0);
	kill(child, SIGKILL);
	fake_stop(&fake);
}

/* A stand-in for rocecommd: serves one hello on the user's socket and exits. */
Test(connect, autostart_says_why_not)
{
	struct roce_client *client;
	char script[128];
	FILE *f;

	if (access("/run/rocecomm/rocecomm.sock", F_OK) == 0) {
		cr_skip_test("a system daemon runs here");
	}
	fake_start(&fake);
	unsetenv("ROCECOMM_SOCKET");
	setenv("XDG_RUNTIME_DIR", fake.dir, 1);
	setenv("ROCECOMMD", "/nonexistent/rocecommd", 1);
	refused(roce_connect(NULL, NULL, &client), ROCE_ERR_NO_DAEMON, "is not a program");
	snprintf(script, sizeof(script), "%s/rocecommd", fake.dir);
	f = fopen(script, "w");
	fputs("#!/nonexistent/interpreter\n", f);
	fclose(f);
	chmod(script, 0700);
	setenv("ROCECOMMD", script, 1);
	refused(roce_connect(NULL, NULL, &client), ROCE_ERR_NO_DAEMON, "cannot run");
	unlink(script);
	fake_stop(&fake);
}
