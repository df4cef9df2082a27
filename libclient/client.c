/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Client: connect, hello, session page, disconnect
 *
 * Thread: any      Owns: see client.h      Locks: see client.h
 */
#include "libclient/client.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "libclient/autostart.h"
#include "libclient/clock.h"
#include "libclient/comm.h"
#include "libclient/error.h"
#include "libclient/group.h"
#include "libclient/path.h"
#include "libclient/roceclient.h"
#include "proto/base.h"
#include "proto/gpu.h"
#include "proto/msg.h"
#include "rocecomm.pb-c.h"

#define CHECK_EVERY_NS INT64_C(100000000)
#define OPTIONS_MAX 4096

int client_enter_slow(const struct roce_client *client)
{
	if (!client) {
		return error_set(ROCE_ERR_INVALID, "the client is NULL");
	}
	return error_set(ROCE_ERR_FORKED,
			 "this handle belongs to the parent process: a forked child connects for "
			 "itself with roce_connect()");
}

int client_options(const char *what, const void *options, void *ret, size_t known)
{
	const unsigned char *bytes = options;
	size_t size;

	memset(ret, 0, known);
	if (!options) {
		return 0;
	}
	memcpy(&size, options, sizeof(size));
	if (size < sizeof(size) || size > OPTIONS_MAX) {
		return error_set(ROCE_ERR_INVALID,
				 "%s: its field size is %zu; set it to sizeof(%s)", what, size,
				 what);
	}
	for (size_t i = known; i < size; i++) {
		if (bytes[i] != 0) {
			return error_set(ROCE_ERR_INVALID,
					 "%s: %zu bytes long with values beyond byte %zu, which "
					 "library %s does not know: upgrade it, or leave them 0",
					 what, size, known, ROCECOMM_VERSION);
		}
	}
	memcpy(ret, options, MIN(size, known));
	return 0;
}

void client_bell(struct roce_client *client)
{
	uint64_t one = 1;

	/* A full counter means that the bell has been ringing all along. */
	while (write(client->bell_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
	}
}

int client_glance(struct roce_client *client)
{
	if (conn_dead(&client->conn) != 0) {
		return conn_dead(&client->conn);
	}
	/* acquire: nothing read after the daemon's last word is taken for older */
	if (atomic_load_explicit(&client->shm->daemon_state, memory_order_acquire) ==
	    SHM_DAEMON_STOPPING) {
		/* The reason may be on its way. */
		if (conn_check(&client->conn) == 0) {
			conn_die(&client->conn, ROCE_ERR_SHUTDOWN,
				 "the daemon is stopping; connect again when it is back");
		}
		return conn_dead(&client->conn);
	}
	return 0;
}

int client_check(struct roce_client *client, bool now)
{
	int dead = client_glance(client);
	int64_t t, last;

	if (dead != 0) {
		return dead;
	}
	t = clock_now_ns();
	/* relaxed: two threads that both look do no harm */
	last = atomic_load_explicit(&client->checked_at, memory_order_relaxed);
	if (!now && t - last < CHECK_EVERY_NS) {
		return 0;
	}
	atomic_store_explicit(&client->checked_at, t, memory_order_relaxed);
	return conn_check(&client->conn);
}

/* Maps the session page that came as @fd (consumed). Return: 0 or a status. */
static int client_map(struct roce_client *client, int fd_arg)
{
	cleanup_close int fd = fd_arg;
	struct stat st;
	void *page;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)SHM_SIZE ||
	    !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK)) {
		return error_set(ROCE_ERR_PROTOCOL,
				 "the daemon's session page is too small or not sealed");
	}
	client->page_size = st.st_size >= (off_t)SHM_FULL_SIZE ? SHM_FULL_SIZE : SHM_SIZE;
	page = mmap(NULL, client->page_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		return error_set(ROCE_ERR_NO_MEMORY, "cannot map the session page: %s",
				 strerror(errno));
	}
	client->page = page;
	madvise(page, client->page_size, MADV_DONTFORK);
	if (shm_check(page, client->page_size) != 0) {
		return error_set(ROCE_ERR_PROTOCOL,
				 "the daemon's session page has a layout that library %s does not "
				 "know",
				 ROCECOMM_VERSION);
	}
	client->shm = page;
	client->cells = shm_cells(page);
	client->gpu.gates = shm_gates(page, client->page_size);
	ring_producer_init(&client->ring, page);
	return 0;
}

/* ClientHello and Welcome. Return: 0 or a status. */
static int client_welcome(struct roce_client *client)
{
	Rocecomm__ClientHello msg = ROCECOMM__CLIENT_HELLO__INIT;
	Rocecomm__Welcome *welcome;
	struct conn_reply reply;
	int r;

	msg.name = client->name;
	msg.pid = (uint32_t)getpid();
	msg.version = (char *)(uintptr_t)ROCECOMM_VERSION;
	r = conn_call(&client->conn, MSG_CLIENT_HELLO, &msg, -1, client->timeout_ms, MSG_WELCOME,
		      &reply);
	if (r != 0) {
		return r;
	}
	welcome = rocecomm__welcome__unpack(NULL, reply.size, reply.body);
	if (welcome) {
		client->gpu.takes = welcome->features & WELCOME_GPU;
		rocecomm__welcome__free_unpacked(welcome, NULL);
	}
	if (reply.fds.n != 3) {
		r = error_set(ROCE_ERR_FD_MISSING,
			      "the daemon's welcome came with %u of 3 descriptors: a security "
			      "module (SELinux, AppArmor) may forbid passing them: look for "
			      "denials in the audit log",
			      reply.fds.n);
	} else {
		client->bell_fd = fdset_take(&reply.fds, 1);
		client->event_fd = fdset_take(&reply.fds, 2);
		/* Reading it must never block, whatever the daemon set. */
		fcntl(client->event_fd, F_SETFL, O_NONBLOCK);
		r = client_map(client, fdset_take(&reply.fds, 0));
	}
	conn_reply_deinit(&reply);
	return r;
}

static void client_free(struct roce_client *client, bool forked)
{
	if (!client) {
		return;
	}
	fork_guard_remove(&client->guard);
	gpu_deinit(client, forked);
	staging_deinit(&client->staging, forked);
	mem_deinit(&client->mem, forked);
	if (!forked) {
		gpu_release(client);
	}
	request_pool_deinit(&client->requests);
	if (client->page && !forked) {
		munmap(client->page, client->page_size);
	}
	base_close(client->bell_fd);
	base_close(client->event_fd);
	base_close(client->epoll_fd);
	conn_deinit(&client->conn);
	free(client);
}

static int client_new(const struct roce_client_options *options, struct roce_client **ret)
{
	struct roce_client *client = calloc(1, sizeof(*client));
	const char *name = options->name ? options->name : program_invocation_short_name;

	if (!client) {
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a client");
	}
	client->fork_gen = fork_generation();
	client->bell_fd = -1;
	client->event_fd = -1;
	client->epoll_fd = -1;
	client->timeout_ms = options->timeout_ms ? options->timeout_ms : CLIENT_TIMEOUT_MS;
	snprintf(client->name, sizeof(client->name), "%s", name);
	pthread_mutex_init(&client->lock, NULL);
	gpu_init(&client->gpu);
	conn_init(&client->conn, -1);
	client->guard.fds[0] = &client->conn.fd;
	client->guard.fds[1] = &client->bell_fd;
	client->guard.fds[2] = &client->event_fd;
	client->guard.fds[3] = &client->epoll_fd;
	if (request_pool_init(&client->requests) != 0 || fork_guard_add(&client->guard) != 0) {
		client_free(client, false);
		return error_set(ROCE_ERR_NO_MEMORY, "no memory for a client");
	}
	*ret = client;
	return 0;
}

/* A named socket: it or nothing. */
static int connect_named(struct roce_client *client, const char *path)
{
	int status;

	return path_connect(path, clock_deadline(client->timeout_ms), &client->conn.fd, &status) ==
			       0
		       ? 0
		       : status;
}

/* The system's daemon, the user's, a new one. @ret_user: it is a user daemon. */
static int connect_search(struct roce_client *client, bool start, bool *ret_user)
{
	int64_t deadline = clock_deadline(client->timeout_ms);
	char user[PATH_MAX_SOCKET];
	int r, status;

	*ret_user = false;
	r = path_connect(PATH_SYSTEM_SOCKET, deadline, &client->conn.fd, &status);
	if (r != PATH_E_ABSENT) {
		return r == 0 ? 0 : status;
	}
	*ret_user = true;
	r = path_user_socket(user, sizeof(user), 0);
	if (r != 0) {
		return r;
	}
	r = path_connect(user, deadline, &client->conn.fd, &status);
	if (r == 0 || r == PATH_E_REFUSED) {
		return r == 0 ? 0 : status;
	}
	if (start) {
		return autostart_connect(user, &client->conn.fd);
	}
	return error_set(ROCE_ERR_NO_DAEMON,
			 "no daemon runs: looked at %s and %s: start rocecommd, name its socket in "
			 "ROCECOMM_SOCKET, or allow autostart",
			 PATH_SYSTEM_SOCKET, user);
}

static int client_connect(struct roce_client *client, const char *path, bool start, bool *ret_user)
{
	int r;

	r = path ? connect_named(client, path) : connect_search(client, start, ret_user);
	if (r == 0) {
		r = conn_hello(&client->conn, client->timeout_ms);
	}
	return r == 0 ? client_welcome(client) : r;
}

int roce_connect(const char *path, const struct roce_client_options *options,
		 struct roce_client **ret_client)
{
	struct roce_client_options o;
	bool user = false, reached;
	int r;

	if (!ret_client) {
		return error_set(ROCE_ERR_INVALID, "roce_connect: ret_client is NULL");
	}
	r = client_options("struct roce_client_options", options, &o, sizeof(o));
	if (r != 0) {
		return r;
	}
	if (!options || options->size < offsetof(struct roce_client_options, timeout_ms)) {
		o.autostart = 1;
	}
	if (o.timeout_ms < 0) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_connect: timeout_ms is %d; give 1 or more, or 0 for %d",
				 o.timeout_ms, CLIENT_TIMEOUT_MS);
	}
	if (o.name && strlen(o.name) >= LIMIT_NAME) {
		return error_set(ROCE_ERR_INVALID,
				 "roce_connect: the name has %zu bytes, at most %d are allowed",
				 strlen(o.name), LIMIT_NAME - 1);
	}
	if (!path) {
		path = getenv("ROCECOMM_SOCKET");
		path = path && path[0] != '\0' ? path : NULL;
	}
	/* A user daemon may exit for idleness just as we connect: it is worth another try. */
	for (int attempt = 0; attempt < 3; attempt++) {
		struct roce_client *client = NULL;

		r = client_new(&o, &client);
		if (r == 0) {
			r = client_connect(client, path, o.autostart, &user);
		}
		if (r == 0) {
			*ret_client = client;
			return ROCE_OK;
		}
		reached = client && client->conn.fd >= 0;
		client_free(client, false);
		if (!reached || !user || !o.autostart ||
		    (r != ROCE_ERR_NO_DAEMON && r != ROCE_ERR_SHUTDOWN)) {
			break;
		}
	}
	return r;
}

void roce_disconnect(struct roce_client *client)
{
	bool forked;

	if (!client) {
		return;
	}
	forked = client->fork_gen != fork_generation();
	if (!forked) {
		group_abandon(client);
	}
	while (client->comms) {
		if (forked) {
			struct roce_comm *comm = client->comms;

			client->comms = comm->next;
			comm_free(comm);
		} else {
			comm_destroy(client->comms, client->timeout_ms);
		}
	}
	client_free(client, forked);
}

int roce_event_fd(struct roce_client *client, int *ret_fd)
{
	struct epoll_event in = {.events = EPOLLIN};
	cleanup_close int fd = -1;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	if (!ret_fd) {
		return error_set(ROCE_ERR_INVALID, "roce_event_fd: ret_fd is NULL");
	}
	pthread_mutex_lock(&client->lock);
	if (client->epoll_fd < 0) {
		/* The socket is in it too, so that a lost daemon wakes the event loop. */
		fd = epoll_create1(EPOLL_CLOEXEC);
		if (fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, client->event_fd, &in) == 0 &&
		    epoll_ctl(fd, EPOLL_CTL_ADD, client->conn.fd, &in) == 0) {
			client->epoll_fd = take_fd(&fd);
			/* seq_cst: the daemon reads it after its completions */
			atomic_store(&client->shm->want_event, 1);
		}
	}
	r = client->epoll_fd;
	pthread_mutex_unlock(&client->lock);
	if (r < 0) {
		return error_set(ROCE_ERR_NO_MEMORY, "cannot make an epoll descriptor: %s",
				 strerror(errno));
	}
	*ret_fd = r;
	return ROCE_OK;
}

int roce_event_clear(struct roce_client *client)
{
	uint64_t count;
	int r;

	r = client_enter(client);
	if (r != 0) {
		return r;
	}
	while (read(client->event_fd, &count, sizeof(count)) < 0 && errno == EINTR) {
	}
	/* A message without a request is read here; a lost daemon shows at the next test. */
	client_check(client, true);
	return ROCE_OK;
}
