/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * limits: what this machine allows, whoever carries the collectives
 *
 *   limits local             memcpy, the sum of two sources, and the time of one matrix product
 *   limits pong              serves ping; says "ready" when it listens
 *   limits ping ADDRESS      half the round trip of 8 bytes over TCP
 *
 * local works on one thread with buffers of 25 MiB, which do not fit into a core's caches. ping and
 * pong poll and give way to each other (sched_yield), since waking a sleeping CPU would count for
 * most of the time. One JSON object is printed.
 *
 * Thread: main      Owns: its buffers and sockets      Locks: none
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "proto/base.h"
#include "tools/benchmark/work.h"

#define BYTES ((size_t)25 << 20)
#define REPS 15
#define PRODUCTS 50
#define PORT 4899
#define PINGS 5000
#define MESSAGE 8

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), less);
	return values[n / 2];
}

/* ---- local ---------------------------------------------------------------------------------- */

static void sum(float *restrict to, const float *restrict a, const float *restrict b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i] = a[i] + b[i];
	}
}

static int local(void)
{
	cleanup_free float *a = malloc(BYTES), *b = malloc(BYTES), *to = malloc(BYTES);
	struct work *work = work_new();
	double copies[REPS], sums[REPS], products[REPS], begin;
	float used = 0;

	if (!a || !b || !to || !work) {
		fprintf(stderr, "limits: no memory\n");
		work_free(work);
		return 1;
	}
	memset(a, 0, BYTES);
	memset(b, 0, BYTES);
	memset(to, 0, BYTES);
	for (size_t i = 0; i < REPS; i++) {
		a[i] = (float)i;
		begin = now();
		memcpy(to, a, BYTES);
		copies[i] = now() - begin;
		used += to[i];
		begin = now();
		sum(to, a, b, BYTES / sizeof(float));
		sums[i] = now() - begin;
		begin = now();
		used += to[i] + work_run(work, PRODUCTS);
		products[i] = (now() - begin) / PRODUCTS;
	}
	printf("{\"memcpy_GBps\":%.3f,\"sum_GBps\":%.3f,\"product_us\":%.3f,\"used\":%.1f}\n",
	       (double)BYTES / median(copies, REPS) * 1e-9,
	       (double)BYTES / median(sums, REPS) * 1e-9, median(products, REPS) * 1e6, used);
	work_free(work);
	return 0;
}

/* ---- ping and pong -------------------------------------------------------------------------- */

static int failed(const char *what)
{
	fprintf(stderr, "limits: %s: %s\n", what, strerror(errno));
	return 1;
}

/* Return: 1, 0 at the end of the stream, -1 with errno. */
static int message_receive(int fd)
{
	char data[MESSAGE];
	size_t have = 0;

	while (have < MESSAGE) {
		ssize_t n = recv(fd, data + have, MESSAGE - have, MSG_DONTWAIT);

		if (n == 0) {
			return 0;
		}
		if (n < 0 && errno != EAGAIN && errno != EINTR) {
			return -1;
		}
		if (n < 0) {
			sched_yield();
			continue;
		}
		have += (size_t)n;
	}
	return 1;
}

static int message_send(int fd)
{
	static const char data[MESSAGE] = "ping...";

	return send(fd, data, MESSAGE, MSG_NOSIGNAL) == MESSAGE ? 0 : -1;
}

static int pong(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	cleanup_close int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cleanup_close int fd = -1;
	int one = 1, r;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1) < 0) {
		return failed("listen");
	}
	puts("ready");
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0) {
		return failed("accept");
	}
	for (;;) {
		r = message_receive(fd);
		if (r <= 0) {
			return r == 0 ? 0 : failed("receive");
		}
		if (message_send(fd) < 0) {
			return failed("send");
		}
	}
}

static int ping(const char *to)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	cleanup_free double *times = calloc(PINGS, sizeof(*times));
	cleanup_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;

	if (!times || inet_pton(AF_INET, to, &address.sin_addr) != 1) {
		fprintf(stderr, "limits: not an IPv4 address: %s\n", to);
		return 1;
	}
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0) {
		return failed("connect");
	}
	for (size_t i = 0; i < PINGS; i++) {
		double begin = now();

		if (message_send(fd) < 0 || message_receive(fd) != 1) {
			return failed("ping");
		}
		times[i] = (now() - begin) / 2;
	}
	printf("{\"one_way_us\":%.3f}\n", median(times, PINGS) * 1e6);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "local") == 0) {
		return local();
	}
	if (argc == 2 && strcmp(argv[1], "pong") == 0) {
		return pong();
	}
	if (argc == 3 && strcmp(argv[1], "ping") == 0) {
		return ping(argv[2]);
	}
	fprintf(stderr, "usage: limits local | pong | ping ADDRESS\n");
	return 2;
}
