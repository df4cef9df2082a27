/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Verbs pair: meeting, exchange, set-up
 *
 * Thread: one      Owns: see pair.h      Locks: none
 */
#include "tests/device/verbs-pair/pair.h"

#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

void pair_die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("verbs_pair: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

static void put(const struct pair *p, const void *data, size_t size)
{
	if (send(p->tcp, data, size, MSG_NOSIGNAL) != (ssize_t)size) {
		pair_die("the other end is gone");
	}
}

static void get(const struct pair *p, void *data, size_t size)
{
	ssize_t n = recv(p->tcp, data, size, MSG_WAITALL);

	if (n != (ssize_t)size) {
		pair_die("the other end is gone (%s)", n < 0 ? strerror(errno) : "closed");
	}
}

/* From now on the connection carries messages with their length; length 0 is a barrier. */
void pair_barrier(struct pair *p)
{
	uint32_t size = 0;

	put(p, &size, sizeof(size));
	while (p->barriers == 0) {
		pair_turn(p);
	}
	p->barriers--;
}

bool pair_control(void *arg, struct verbs_peer *peer, const void *data, size_t size)
{
	const struct pair *p = arg;
	uint32_t n = (uint32_t)size;

	put(p, &n, sizeof(n));
	put(p, data, size);
	return true;
}

static void take_control(struct pair *p)
{
	uint8_t data[VERBS_CONTROL_MAX];
	uint32_t size;

	get(p, &size, sizeof(size));
	if (size == 0) {
		p->barriers++;
		return;
	}
	if (size > sizeof(data)) {
		pair_die("a message of %u bytes", size);
	}
	get(p, data, size);
	verbs_control(p->peer, data, size);
}

static int try_connect(const struct addrinfo *ai)
{
	int fd = -1;

	for (int i = 0; i < 100; i++) {
		fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(fd, ai->ai_addr, ai->ai_addrlen) == 0) {
			return fd;
		}
		base_close(fd);
		usleep(100000);
	}
	return -1;
}

static int do_accept(const struct addrinfo *ai)
{
	int one = 1, fd, listener = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, ai->ai_addr, ai->ai_addrlen) < 0 || listen(listener, 1) < 0) {
		pair_die("cannot listen: %s", strerror(errno));
	}
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	return fd;
}

void pair_meet(struct pair *p, const char *address, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *ai;
	struct timeval limit = {.tv_sec = 60};
	int r = getaddrinfo(address ? address : "::", port, &hints, &ai);

	if (r != 0) {
		pair_die("%s: %s", address ? address : "", gai_strerror(r));
	}
	p->listens = address == NULL;
	p->tcp = p->listens ? do_accept(ai) : try_connect(ai);
	freeaddrinfo(ai);
	if (p->tcp < 0) {
		pair_die("no connection: %s", strerror(errno));
	}
	setsockopt(p->tcp, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (p->listens) {
		get(p, &p->plan, sizeof(p->plan));
	} else {
		put(p, &p->plan, sizeof(p->plan));
	}
}

static uint32_t our_gids(const struct pair *p, union ibv_gid gids[VERBS_RAILS_MAX])
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < p->devices->count; d++) {
		const struct rdma_device *device = p->devices->devices[d];

		if (!device->context) {
			fprintf(stderr, "%s: %s\n", device->name, device->reason);
		}
		for (uint32_t i = 0; i < device->nports; i++) {
			const struct rdma_port *port = &device->ports[i];

			if (!port->usable) {
				fprintf(stderr, "%s port %u: %s\n", device->name, port->number,
					port->reason);
			}
			for (uint32_t g = 0; g < port->ngids && port->usable; g++) {
				if (!port->gids[g].reason && n < VERBS_RAILS_MAX) {
					gids[n++] = port->gids[g].gid;
				}
			}
		}
	}
	return n;
}

static struct rdma_port *port_of(const struct pair *p, const union ibv_gid *gid)
{
	for (uint32_t d = 0; d < p->devices->count; d++) {
		for (uint32_t i = 0; i < p->devices->devices[d]->nports; i++) {
			struct rdma_port *port = &p->devices->devices[d]->ports[i];

			if (rdma_port_find_gid(port, gid, NULL, 0)) {
				return port;
			}
		}
	}
	pair_die("no port has the GID that the other end chose");
}

/* The connecting end decides which of our ports talks to which. */
static uint32_t agree(const struct pair *p, union ibv_gid ours[VERBS_RAILS_MAX])
{
	union ibv_gid mine[VERBS_RAILS_MAX] = {0}, theirs[VERBS_RAILS_MAX], far[VERBS_RAILS_MAX];
	struct rdma_remote remote[VERBS_RAILS_MAX];
	struct rdma_pair pairs[VERBS_RAILS_MAX];
	uint32_t nmine = our_gids(p, mine), ntheirs, n;

	put(p, &nmine, sizeof(nmine));
	put(p, mine, sizeof(mine));
	get(p, &ntheirs, sizeof(ntheirs));
	get(p, theirs, sizeof(theirs));
	if (p->listens) {
		get(p, &n, sizeof(n));
		get(p, ours, sizeof(far));
		return n;
	}
	for (uint32_t i = 0; i < ntheirs; i++) {
		remote[i] = (struct rdma_remote){theirs[i], i};
	}
	n = rdma_pair_rails(p->devices, remote, ntheirs, rdma_route_system, NULL, pairs, 0,
			    MIN(p->plan.rails, VERBS_RAILS_MAX));
	memset(far, 0, sizeof(far));
	for (uint32_t i = 0; i < n; i++) {
		ours[i] = pairs[i].gid->gid;
		far[i] = theirs[pairs[i].remote];
	}
	put(p, &n, sizeof(n));
	put(p, far, sizeof(far));
	return n;
}

static void open_rails(struct pair *p)
{
	union ibv_gid gids[VERBS_RAILS_MAX];
	struct verbs_blob mine[VERBS_RAILS_MAX] = {0}, theirs[VERBS_RAILS_MAX];
	char why[VERBS_REASON];

	p->nrails = agree(p, gids);
	if (p->nrails == 0) {
		pair_die("no rail: no port of ours reaches one of the other end");
	}
	for (uint32_t i = 0; i < p->nrails; i++) {
		struct rdma_port *port = port_of(p, &gids[i]);
		struct verbs_rail_params params = {port->device, port->number, gids[i], 0};

		if (verbs_device_add(p->v, port->device, why, sizeof(why)) < 0 ||
		    verbs_rail_open(p->peer, i, &params, &mine[i], why, sizeof(why)) < 0) {
			pair_die("%s", why);
		}
	}
	put(p, mine, sizeof(mine));
	get(p, theirs, sizeof(theirs));
	for (uint32_t i = 0; i < p->nrails; i++) {
		if (verbs_rail_connect(p->peer, i, &theirs[i], why, sizeof(why)) < 0) {
			fprintf(stderr, "%s\n", why);
		}
	}
}

static bool all_up(const struct pair *p)
{
	struct verbs_rail_info info;

	for (uint32_t i = 0; i < p->nrails; i++) {
		verbs_rail_info(p->peer, i, &info);
		if (info.state != VERBS_RAIL_UP) {
			return false;
		}
	}
	return true;
}

void pair_open(struct pair *p, const struct verbs_handler *handler)
{
	struct rdma_options all = {NULL, NULL};
	int r = rdma_new(&verbs_api_system, &all, &p->devices);

	if (r < 0 || p->devices->count == 0) {
		fprintf(stderr, "verbs_pair: %s\n", r < 0 ? strerror(-r) : p->devices->reason);
		exit(77);
	}
	r = verbs_new(&p->plan.options, handler, p, &clock_system, &p->v);
	if (r < 0 || verbs_peer_new(p->v, p, p->listens ? "connector" : "listener", !p->listens,
				    &p->peer) < 0) {
		pair_die("cannot make a context: %s", strerror(-r));
	}
	p->memory = mmap(NULL, p->memory_size, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p->memory == MAP_FAILED ||
	    rdma_mem_new(p->devices, p->memory, p->memory_size, &p->mem)) {
		pair_die("out of memory");
	}
	if (p->mem->reason[0]) {
		fprintf(stderr, "%s\n", p->mem->reason);
	}
	if (!p->plan.plain) {
		verbs_mem_add(p->v, p->mem);
	}
	open_rails(p);
	while (!all_up(p) && !p->down) {
		pair_turn(p);
	}
	if (p->down) {
		pair_die("%s", p->reason);
	}
	pair_barrier(p);
}

void pair_close(struct pair *p)
{
	verbs_peer_free(p->peer);
	verbs_free(p->v);
	rdma_mem_free(p->mem);
	rdma_free(p->devices);
	munmap(p->memory, p->memory_size);
	close(p->tcp);
}

static void take_events(struct pair *p, struct rdma_device *d)
{
	struct rdma_event event;

	while (rdma_device_event(d, &event) == 0) {
		fprintf(stderr, "%s port %u: %s\n", d->name, event.port, event.text);
		verbs_device_event(p->v, d, &event);
	}
}

void pair_turn(struct pair *p)
{
	struct pollfd fds[2 + RDMA_DEVICES_MAX];
	uint32_t n = p->devices->count;

	if (verbs_poll(p->v) > 0 || !verbs_arm(p->v)) {
		return;
	}
	fds[0] = (struct pollfd){verbs_fd(p->v), POLLIN, 0};
	for (uint32_t i = 0; i < n; i++) {
		fds[1 + i] = (struct pollfd){rdma_device_fd(p->devices->devices[i]), POLLIN, 0};
	}
	fds[1 + n] = (struct pollfd){p->tcp, POLLIN, 0};
	poll(fds, 2 + n, 1000);
	if (fds[1 + n].revents) {
		take_control(p);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (fds[1 + i].revents) {
			take_events(p, p->devices->devices[i]);
		}
	}
}
